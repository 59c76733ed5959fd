"""Asks the model and the optimiser of a recorded loop for clipped sums of synthetic records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from dpfedadamw.errors import DpfedadamwError

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)

_BATCHWISE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class LoopProbe:
    """The clipped sum of a loop, without its noise; the auditor's `StepProbe`.

    Args:
        model: The model as the loop calls it.
        inner: The module with the parameters.
        optimizer: Opacus' optimiser.
        parameters: The trained parameters, in the vector's order.
        input_shape: Shape of one record; None where the model reads no single tensor of numbers.
        criterion: The loss function; cross-entropy if None.
        keyword: By which name the model is given its records; None where by none. It then answers
            with its logits, or with a mapping or an object that has them, as transformers do.
        tokens: Whether it reads whole numbers: made-up records are then tokens of its vocabulary.

    Raises:
        DpfedadamwError: If the model cannot be asked with made-up records.
    """

    grey_levels = False

    def __init__(
        self,
        model: nn.Module,
        inner: nn.Module,
        optimizer: DPOptimizer,
        parameters: Sequence[nn.Parameter],
        input_shape: tuple[int, ...] | None,
        criterion: Callable[..., Tensor] | None,
        keyword: str | None = None,
        *,
        tokens: bool = False,
    ) -> None:
        if input_shape is None:
            raise DpfedadamwError("the model reads no single tensor of numbers")
        self._model = model
        self._keyword = keyword
        self._vocabulary = _vocabulary(model) if tokens else 0
        self._inner = inner
        self._optimizer = optimizer
        self._parameters = parameters
        self.input_shape = input_shape
        self.clipping_norm = float(optimizer.max_grad_norm)
        self.parameters = sum(one.numel() for one in parameters)
        self._criterion = getattr(criterion, "criterion", criterion) or nn.CrossEntropyLoss()
        # Ghost clipping refuses another reduction than the loop's own.
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._device = parameters[0].device
        for module in model.modules():
            if isinstance(module, _DROPOUT):
                # Its chances would differ between two batches.
                module.eval()
            elif tokens and not isinstance(module, _BATCHWISE):
                # Attention drops by itself, without a layer for it. Opacus looks at layers with
                # parameters of their own, and only while these are in training.
                module.training = any(True for _ in module.parameters(recurse=False))
        self._forget()
        self.classes = self._classes()

    def sum_of_step(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
        elsewhere: bool = False,
    ) -> NDArray[np.float32]:
        """The clipped sum of the records drawn; see the auditor's `StepProbe`."""
        records, wanted = self._drawn(inputs, labels, clients, drawn)
        if not len(wanted):
            # Opacus adds nothing for an empty batch, and not every layer reads one.
            return np.zeros(self.parameters, np.float32)
        if elsewhere:
            return self._at(0.5, 0.0, records, wanted)
        return self._alone(records, wanted) if len(wanted) == 1 else self._sum(records, wanted)

    def sum_of_step_far_off(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """The same at parameters of another sign and size; see the auditor's `FarOffStepProbe`."""
        return self._at(-3.0, 4.0, *self._drawn(inputs, labels, clients, drawn))

    def _drawn(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> tuple[Tensor, Tensor]:
        """The records and labels that the step draws of client 0."""
        own = np.flatnonzero(clients == 0)[drawn]
        records = torch.from_numpy(inputs[own].astype(np.float32)).to(self._device)
        return records, torch.from_numpy(labels[own]).to(self._device)

    def _at(
        self, factor: float, shift: float, records: Tensor, wanted: Tensor
    ) -> NDArray[np.float32]:
        """The sum at factor · θ + shift; θ is the model's again afterwards."""
        kept = [one.detach().clone() for one in self._inner.parameters()]
        try:
            with torch.no_grad():
                for one in self._inner.parameters():
                    one.mul_(factor).add_(shift)
            return self._sum(records, wanted)
        finally:
            with torch.no_grad():
                for one, value in zip(self._inner.parameters(), kept, strict=True):
                    one.copy_(value)

    def _alone(self, record: Tensor, label: Tensor) -> NDArray[np.float32]:
        """The sum of a batch of one, for which statistics of a batch do not exist."""
        batchwise = [one for one in self._model.modules() if isinstance(one, _BATCHWISE)]
        training = [one for one in batchwise if one.training]
        for one in training:
            one.eval()
        try:
            return self._sum(record, label)
        finally:
            for one in training:
                one.train()

    def _sum(self, records: Tensor, labels: Tensor) -> NDArray[np.float32]:
        self._clear()
        with torch.enable_grad():
            if self._ghost:
                loss = DPLossFastGradientClipping(
                    self._model, self._optimizer, self._criterion, self._optimizer.loss_reduction
                )(self._logits(records), labels)
            else:
                loss = self._criterion(self._logits(records), labels)
            loss.backward()
        if self._ghost:
            found = [one.grad for one in self._parameters]
        else:
            self._optimizer.clip_and_accumulate()
            found = [getattr(one, "summed_grad", None) for one in self._parameters]
        parts = [
            (torch.zeros(one.numel()) if value is None else value.detach()).reshape(-1).cpu()
            for one, value in zip(self._parameters, found, strict=True)
        ]
        self._clear()
        total: NDArray[np.float32] = torch.cat(parts).float().numpy().copy()
        return total

    def _logits(self, records: Tensor) -> Any:
        """What the model answers, as the loop calls it."""
        if self._vocabulary:
            # Any number becomes a token, the same wherever it is asked for.
            records = (records.view(torch.int32) & 0x7FFFFFFF).long() % self._vocabulary
        if self._keyword is None:
            return self._model(records)
        answer = self._model(**{self._keyword: records})
        if isinstance(answer, Mapping):
            return answer.get("logits")
        return getattr(answer, "logits", answer)

    def _clear(self) -> None:
        self._optimizer._is_last_step_skipped = False
        for one in self._parameters:
            for name in ("grad", "grad_sample", "summed_grad"):
                if hasattr(one, name):
                    setattr(one, name, None)

    def _forget(self) -> None:
        """Let Opacus forget passes of the loop that no backward pass followed."""
        for module in self._model.modules():
            vars(module).pop("activations", None)
        for one in self._parameters:
            if hasattr(one, "_forward_counter"):
                one._forward_counter = 0

    def _classes(self) -> int:
        """How many labels there are: the length of an answer."""
        with torch.no_grad():
            records = torch.ones(2, *self.input_shape, device=self._device)
            answer, again = self._logits(records), self._logits(records)
        self._clear()
        if not isinstance(answer, Tensor) or answer.dim() != 2:
            raise DpfedadamwError("the model does not answer with one row of numbers a record")
        if not torch.allclose(answer, again, atol=1e-5, equal_nan=True):
            raise DpfedadamwError("the model answers the same records differently, by chance")
        return int(answer.shape[1])


def _vocabulary(model: nn.Module) -> int:
    """How many tokens the model knows: the rows of its first embedding.

    Raises:
        DpfedadamwError: If it has none.
    """
    found = [one.num_embeddings for one in model.modules() if isinstance(one, nn.Embedding)]
    if not found:
        raise DpfedadamwError("the model reads whole numbers and has no embedding of them")
    return int(found[0])
