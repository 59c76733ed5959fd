"""The recorder of a loop, from its first `attach` to its end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dpfedadamw.extensions.recorders.evidence import EvidenceWriter, Stated
from dpfedadamw.extensions.recorders.opacus.attachment import Attachment, digest_of, fingerprint_of
from dpfedadamw.extensions.recorders.opacus.declaration import (
    RecorderError,
    accountant_of,
    declared,
    history_of,
    inner_of,
    refuse,
)
from dpfedadamw.filing import after_training
from dpfedadamw.run.checkpoints import write_weights
from dpfedadamw.rundir import RunDirectory


class Recorder:
    """Notes what a loop does, from the first `attach` to `close`.

    Args:
        run_dir: A folder that is new or empty; the run is named after it.
        delta: δ of the guarantee, in (0, 1) and below one over the number of records.
        continued: Whether to go on with what an earlier process recorded there and paused: a
            federated client has one folder for all of its rounds.
    """

    def __init__(self, run_dir: str | Path, delta: float, *, continued: bool = False) -> None:
        self._path = Path(run_dir)
        self._delta = delta
        self._continued = continued
        self._left = (0, 0)
        self._writer: EvidenceWriter | None = None
        self._attached: Attachment | None = None
        self._squares = torch.zeros(0)
        self._accountants: list[Any] = []

    def attach(
        self,
        optimizer: DPOptimizer,
        data_loader: DataLoader[Any],
        model: nn.Module,
        *,
        privacy_engine: Any = None,
        criterion: Callable[..., Tensor] | None = None,
    ) -> None:
        """Begin to record; again for each further optimiser that the same training goes on with.

        Args:
            optimizer: What ``make_private`` returned.
            data_loader: The same.
            model: The same, or the module that it wraps.
            privacy_engine: The engine, whose accountant states ε; found by the optimiser's own
                step hook if left out.
            criterion: The loss function, for the probe; cross-entropy if left out.

        Raises:
            RecorderError: If such a loop cannot be recorded; the reason says why.
            DpfedadamwError: If the folder cannot be used.
        """
        self.detach()
        refuse(optimizer, data_loader, model)
        inner = inner_of(model)
        accountant = getattr(privacy_engine, "accountant", None) or accountant_of(optimizer)
        if accountant is not None and not any(accountant is one for one in self._accountants):
            self._accountants.append(accountant)
        loop = declared(optimizer, data_loader, inner, self._delta)
        if self._writer is None:
            self._writer = EvidenceWriter(self._path, loop, continued=self._continued)
            self._squares = torch.from_numpy(self._writer.squares.copy())
        elif (loop.tensors, loop.records) != (self._writer.loop.tensors, self._writer.loop.records):
            raise RecorderError(
                "the model's parameters or the number of records differ from the first attach; "
                "record each training into its own folder"
            )
        self._attached = Attachment(
            self._writer, optimizer, data_loader, model, inner, criterion, self._squares
        )

    def detach(self) -> None:
        """Stop recording until the next `attach`; the loop's objects are as they were."""
        if self._attached is not None and self._attached.release():
            unused, skipped = self._attached.left_over()
            self._left = (self._left[0] + unused, self._left[1] + skipped)

    def pause(self, epsilon: float | None = None, accountant: str = "stated") -> Path:
        """Write down what was seen, for a later process that goes on (``continued=True``).

        Nobody needs to know which pause is the last: ``dpfedadamw evidence close`` ends a paused
        recording by what is said here.

        Args:
            epsilon: ε as the loop prints it by now; what its accountant says if left out.
            accountant: By what that was computed, such as "prv" or "classical".

        Returns:
            The run directory, which has no claim until it is closed.

        Raises:
            RecorderError: If nothing was attached.
        """
        attached, writer = self._attached, self._writer
        if attached is None or writer is None:
            raise RecorderError("nothing was attached: call attach before training, and pause once")
        self.detach()
        if writer.in_stretch:
            stated = self._stated(epsilon, accountant)
            fingerprint, digest = self._finish(attached, writer)
            writer.pause(
                stated, digest, fingerprint=fingerprint,
                unused=self._left[0], skipped=self._left[1],
            )  # fmt: skip
        else:
            writer.pause(unused=self._left[0], skipped=self._left[1])
        self._attached, self._writer = None, None
        return writer.path

    def close(self, epsilon: float | None = None, accountant: str = "stated") -> Path:
        """End the recording: probe the model, write it, and state what the loop prints.

        Args:
            epsilon: ε as the loop prints it; what its accountant says if left out.
            accountant: By what that was computed, such as "prv" or "classical".

        Returns:
            The run directory.

        Raises:
            RecorderError: If nothing was attached.
            DpfedadamwError: If no step was recorded, or the folder cannot be written to.
        """
        attached, writer = self._attached, self._writer
        if attached is None or writer is None:
            raise RecorderError("nothing was attached: call attach before training, and close once")
        self.detach()
        stated = self._stated(epsilon, accountant)
        fingerprint, digest = self._finish(attached, writer)
        writer.close(
            stated, digest, fingerprint=fingerprint, unused=self._left[0], skipped=self._left[1]
        )
        self._attached = None
        return writer.path

    def _finish(self, attached: Attachment, writer: EvidenceWriter) -> tuple[int, str]:
        """Write the model and what it answers to made-up records; its checksum and digest."""
        inner = attached.inner
        fingerprint = fingerprint_of(attached.parameters)
        run = RunDirectory(writer.path)
        write_weights(run.weights, inner)
        try:
            with attached.undisturbed():
                after_training.record_probe(run, attached.probe())
        except Exception as error:
            # Whatever a stranger's model answers to synthetic records: without results the check
            # "sensitivity" says that there are none.
            (run.evidence / "probe.npz").unlink(missing_ok=True)
            cause = error.__cause__ or error
            warnings.warn(
                "the model could not be run on made-up records, so whether it clips is NOT "
                f"VERIFIED ({type(cause).__name__}: {cause})",
                stacklevel=3,
            )
        return fingerprint, digest_of(attached.parameters)

    def _stated(self, epsilon: float | None, accountant: str) -> Stated:
        """What the loop prints: as it was handed over, or as its accountant says."""
        # What accountants of earlier processes counted is not known here.
        history = None if self._continued else history_of(self._accountants)
        if epsilon is None:
            return self._of_the_accountant(history)
        return Stated(epsilon=epsilon, accountant=accountant, history=history)

    def _of_the_accountant(self, history: Sequence[tuple[float, float, int]] | None) -> Stated:
        """What the accountant says that was attached last, which is what a loop prints."""
        if not self._accountants:
            return Stated(epsilon=None, accountant="unstated", history=history)
        last = self._accountants[-1]
        try:
            found: float | None = float(last.get_epsilon(self._delta))
        except Exception:
            # An accountant that fails states nothing, and the auditor says so.
            found = None
        return Stated(epsilon=found, accountant=str(last.mechanism()), history=history_of([last]))
