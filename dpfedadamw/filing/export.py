"""A signed run's model and its card, for other tools and other people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpfedadamw.filing.after_training import FilingError
from dpfedadamw.rundir import RunDirectory

if TYPE_CHECKING:
    from dpfedadamw.run.export import Exported


class SignatureDoesNotHoldError(FilingError):
    """A run's signatures do not hold, so that nothing is made of it."""


def export(run: RunDirectory, folder: Path, licence: str = "unknown") -> Exported:
    """Write a run's model as transformers or peft load it, with a model card.

    Args:
        run: A finished run.
        folder: The folder; must not exist, or be empty.
        licence: The model's licence, for its card.

    Raises:
        SignatureDoesNotHoldError: If the run is not signed, or was changed since.
        DpfedadamwError: As `dpfedadamw.run.export.export`.
        reports.errors.ReportError: If the card cannot be made.
    """
    from dpfedadamw.run.export import export as export_model
    from dpfedadamw.storage.disk import write_atomically
    from reports.content.build import build
    from reports.content.parts import PUBLIC
    from reports.render import model_card
    from reports.signatures.verification import verify

    checked = verify(run.path)
    if not checked.is_intact:
        raise SignatureDoesNotHoldError(f"{run.path}: not exported, {checked.problems[0]}")
    report = build(run.path, PUBLIC)
    written = export_model(run, folder)
    with_base = written.base_folder is not None
    text = model_card.write(report, written.form, written.reads, written.base, with_base, licence)
    write_atomically(folder / "README.md", text.encode())
    return written
