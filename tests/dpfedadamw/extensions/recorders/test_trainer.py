"""Hugging Face's Trainer with an optimiser of Opacus, recorded: the recipe, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from audit.auditor import audit_run
from audit.verdict import Finding, Verdict
from dpfedadamw.extensions.recorders.opacus import Recorder, RecorderError
from tests.audit.corruptions import attest, finding_of
from tests.dpfedadamw.extensions.recorders import loops

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' Trainer needs it")

from dpfedadamw.extensions.recorders.trainer import RecordingCallback  # noqa: E402  # needs transformers

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]


class Classifier(nn.Module):
    """As models of transformers are: it is called by keywords and answers with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = loops.network()

    def forward(
        self, features: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.network(features)
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


class Records(torch.utils.data.Dataset):
    """Records as mappings, as the Trainer's collator wants them."""

    def __init__(self) -> None:
        self._data = loops.data()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        features, label = self._data[row]
        return {"features": features, "labels": label}


def trained(
    folder: Path, *, own_loader: bool = False, clips_again: bool = False, **arguments
) -> Path:
    """Train for two epochs, as the module's docstring has it.

    Args:
        folder: The recording's.
        own_loader: Whether the Trainer takes its own batches, which are shuffled.
        clips_again: Whether the noised gradient is changed once more before the update.
        arguments: Further arguments of the Trainer's.
    """
    torch.manual_seed(604_227_113)
    dataset = Records()
    parts = loops.private(
        model=Classifier(), dataset=dataset, adam=True, poisson_sampling=not own_loader
    )

    class PrivateTrainer(transformers.Trainer):
        def get_train_dataloader(self) -> torch.utils.data.DataLoader:
            return super().get_train_dataloader() if own_loader else parts.loader

    class ClipsAgain(transformers.TrainerCallback):
        def on_optimizer_step(self, *_, **objects) -> None:
            with torch.no_grad():
                for one in objects["model"].parameters():
                    one.mul_(0.999)

    settings = {
        "output_dir": str(folder.parent / "trainer"),
        "num_train_epochs": 2,
        "per_device_train_batch_size": loops.BATCH,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "use_cpu": True,
        "seed": 604_227_114,
        **arguments,
    }
    recorder = Recorder(folder, delta=loops.DELTA)
    callbacks = [RecordingCallback(recorder, parts.optimizer)]
    if clips_again:
        callbacks.append(ClipsAgain())
    trainer = PrivateTrainer(
        model=parts.model,
        args=transformers.TrainingArguments(**settings),
        train_dataset=dataset,
        optimizers=(parts.optimizer, None),
        callbacks=callbacks,
    )
    trainer.model_accepts_loss_kwargs = False
    trainer.train()
    return folder


def found(run: Path, name: str) -> Finding:
    return finding_of(attest(run), name)


def test_the_recipe_passes(tmp_path: Path) -> None:
    findings = audit_run(attest(trained(tmp_path / "run")))
    assert {
        one.name: one.measurement for one in findings.findings if one.verdict is Verdict.FAIL
    } == {}
    assert findings.verdict is Verdict.PASS, findings.named("sensitivity").measurement
    assert findings.named("steps").details["steps"] == 16


def test_the_trainers_own_shuffled_batches_are_no_poisson_draws(tmp_path: Path) -> None:
    assert found(trained(tmp_path / "run", own_loader=True), "sampling").verdict is Verdict.FAIL


def test_what_moves_the_parameters_beside_the_optimiser_is_seen(tmp_path: Path) -> None:
    assert found(trained(tmp_path / "run", clips_again=True), "steps").verdict is Verdict.FAIL


def test_accumulation_by_the_trainer_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RecorderError, match="gradient_accumulation_steps is above 1"):
        trained(tmp_path / "run", gradient_accumulation_steps=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("given", "end"), [({}, "close"), ({"pauses": True}, "pause")])
def test_a_callback_records_from_the_beginning_of_training_to_its_end(given, end) -> None:
    """For a federated client, whose later rounds go on, the end is a pause."""
    called: list[tuple] = []
    recorder = SimpleNamespace(
        attach=lambda *given: called.append(("attach", *given)),
        close=lambda: called.append(("close",)),
        pause=lambda: called.append(("pause",)),
    )
    optimizer = SimpleNamespace(zero_grad=lambda: called.append(("zero_grad",)))
    callback = RecordingCallback(recorder, optimizer, **given)
    arguments = SimpleNamespace(gradient_accumulation_steps=1)
    callback.on_train_begin(arguments, None, None, train_dataloader="loader", model="model")
    callback.on_step_begin(arguments, None, None)
    callback.on_train_end(arguments, None, None)
    assert called == [("attach", optimizer, "loader", "model"), ("zero_grad",), (end,)]
