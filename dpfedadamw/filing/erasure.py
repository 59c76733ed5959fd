"""Erases a run's evidence."""

from __future__ import annotations

from dpfedadamw.errors import FilingError
from dpfedadamw.filing.after_training import is_signed, problems, writing
from dpfedadamw.filing.earlier import is_written_to, refuse_changed
from dpfedadamw.rundir import RunDirectory
from reports.signatures import copies
from reports.signatures.inventory import EVIDENCE
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority


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
    if begun and copies.is_erased(run.path) and not is_written_to(run) and not problems(run):
        return False
    with writing(run):
        if is_signed(run):
            for problem in () if begun else problems(run):
                raise FilingError(
                    f"{run.path}: its evidence is kept, because the run does not verify "
                    f"({problem}); see dpfedadamw verify"
                )
            # Whole evidence was just looked at; of an erasure that goes on, some is gone.
            refuse_changed(run, auditor, (copies.ERASURE, EVIDENCE))
        copies.erase(run.path, auditor, reason, authority)
    return True
