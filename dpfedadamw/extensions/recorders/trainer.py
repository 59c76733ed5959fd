"""Records a Hugging Face `Trainer` that trains with an optimiser of Opacus.

    model, optimizer, loader = engine.make_private(...)

    class PrivateTrainer(Trainer):
        def get_train_dataloader(self):
            return loader                    # the Trainer's own shuffles, which is no Poisson draw

    callback = RecordingCallback(Recorder("my-run", delta=1e-5), optimizer)
    trainer = PrivateTrainer(model, args, optimizers=(optimizer, None), callbacks=[callback])
    trainer.model_accepts_loss_kwargs = False    # Opacus' wrapper seems to accept anything
    trainer.train()

The loader that is listened to is the one that the Trainer really takes its batches from.
"""

from __future__ import annotations

from typing import Any

from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from dpfedadamw.extensions.recorders.opacus import Recorder, RecorderError


class RecordingCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Attaches a recorder when training begins, and closes it when it ends.

    A Trainer clears gradients through the model alone, which leaves the clipped sums that Opacus
    keeps: they are cleared here before each step, without which Opacus refuses the next one.

    Args:
        recorder: The recorder, which nothing was attached to.
        optimizer: What ``make_private`` returned, before the Trainer wrapped it.
        pauses: Whether the recording is paused at the end of training, for a later process that
            goes on, such as the next round of a federated client.
    """

    def __init__(self, recorder: Recorder, optimizer: DPOptimizer, *, pauses: bool = False) -> None:
        self._recorder = recorder
        self._optimizer = optimizer
        self._pauses = pauses

    def on_train_begin(self, args: Any, *_: Any, **objects: Any) -> None:
        """Begin to record.

        Raises:
            RecorderError: If such a loop cannot be recorded; the reason says why.
        """
        if args.gradient_accumulation_steps > 1:
            raise RecorderError(
                "gradient_accumulation_steps is above 1: the Trainer then adds up several batches "
                "in a step that Opacus accounts as one draw. Set it to 1, and split batches that "
                "do not fit into memory with Opacus' BatchMemoryManager"
            )
        loader: DataLoader[Any] = objects["train_dataloader"]
        self._recorder.attach(self._optimizer, loader, objects["model"])

    def on_step_begin(self, *_: Any, **_objects: Any) -> None:
        """Clear the clipped sums of the step before."""
        self._optimizer.zero_grad()

    def on_train_end(self, *_: Any, **_objects: Any) -> None:
        """End the recording, or let a later process go on with it."""
        if self._pauses:
            self._recorder.pause()
        else:
            self._recorder.close()
