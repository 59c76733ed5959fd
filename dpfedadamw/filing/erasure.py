"""Erasing a run's evidence, and what may be done with a run that has none any more."""

from __future__ import annotations

import os

from dpfedadamw.errors import FilingError
from dpfedadamw.filing.after_training import is_signed, problems, writing
from dpfedadamw.filing.unchanged import refuse_changed
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import UNFINISHED
from reports.signatures import copies
from reports.signatures.inventory import EVIDENCE
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority


def refuse_erased(run: RunDirectory) -> None:
    """Refuse to judge a run anew whose evidence was erased: its findings would be lost.

    Raises:
        FilingError: If a record says that it was.
    """
    when = copies.erased_at(run.path)
    if when is None:
        return
    reason = f"{run.path}: its evidence was erased on {when}, so it cannot be audited any more; "
    if _is_written_to(run) or not copies.is_erased(run.path):
        raise FilingError(
            f"{reason}what was cut off is finished by doing it again: dpfedadamw erase, report or "
            f"sign {run.path}"
        )
    raise FilingError(f"{reason}what was found before stands, signed, in audit.json")


def erase(
    run: RunDirectory, auditor: SigningKey, reason: str, authority: Authority | None = None
) -> bool:
    """Delete a run's evidence for good and sign that it was done, as `copies.erase`.

    Evidence is kept that could show what is wrong with a run: one that does not hold is refused.
    An erasure that was cut off goes on, as long as what was found is what was signed.

    Returns:
        Whether there was something to erase or to finish.

    Raises:
        FilingError: If the run does not hold, or may not be written to.
        LockedError: If somebody else writes to it.
        reports.errors.ReportError: If a file cannot be deleted, or the rest not be signed.
    """
    begun = copies.erased_at(run.path) is not None
    if begun and copies.is_erased(run.path) and not _is_written_to(run) and not problems(run):
        return False
    with writing(run):
        if is_signed(run):
            for problem in () if begun else problems(run):
                raise FilingError(
                    f"{run.path}: its evidence is kept, because the run does not hold ({problem}); "
                    "see dpfedadamw verify"
                )
            # Whole evidence was just looked at; of an erasure that goes on, some is gone.
            refuse_changed(run, auditor, (copies.ERASURE, EVIDENCE))
        copies.erase(run.path, auditor, reason, authority)
    return True


def _is_written_to(run: RunDirectory) -> bool:
    """Whether somebody writes to a run, or was cut off while they did."""
    return os.path.lexists(run.path / UNFINISHED)
