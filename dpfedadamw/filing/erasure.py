"""Erases a run's evidence."""

from __future__ import annotations

from dpfedadamw.errors import FilingError
from dpfedadamw.filing.after_training import (
    changed_since_training,
    is_signed,
    problems,
    writing,
)
from dpfedadamw.filing.earlier import is_written_to, refuse_changed
from dpfedadamw.rundir import RunDirectory
from reports.files import clean
from reports.signatures import copies
from reports.signatures.inventory import EVIDENCE, Problem
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority


def erase(
    run: RunDirectory,
    auditor: SigningKey,
    reason: str | None = None,
    authority: Authority | None = None,
) -> bool:
    """Delete a run's evidence for good and sign that it was done, as `copies.erase`.

    Evidence is kept that could show what is wrong with a run: one that does not hold is refused.
    An erasure that was cut off goes on, as long as what was found is what was signed.

    Args:
        run: The run.
        auditor: The key that signs what is left.
        reason: Why, for the record; None for the usual reason, or the one that is recorded.
        authority: Timestamps the signature.

    Returns:
        Whether there was something to erase or to finish.

    Raises:
        FilingError: If the run does not hold, may not be written to, or another reason is recorded
            already.
        LockedError: If somebody else writes to it.
        reports.errors.ReportError: If a file cannot be deleted, or the rest not be signed.
    """
    begun = copies.erased_at(run.path) is not None
    if begun and reason is not None and reason != (known := copies.recorded_reason(run.path)):
        raise FilingError(
            f"{run.path}: its record of the erasure gives the reason {clean(known, 200)!r} "
            f"({copies.ERASURE}), which stands; repeat the command without a reason"
        )
    if begun and copies.is_erased(run.path) and not is_written_to(run) and not problems(run):
        return False
    with writing(run):
        if is_signed(run):
            problem = _problem(run, begun=begun)
            if problem is not None:
                raise FilingError(
                    f"{run.path}: its evidence is kept, because the run does not verify "
                    f"({problem}); see dpfedadamw verify"
                )
            # Whole evidence was just looked at; of an erasure that goes on, some is gone. A record
            # that was signed stays as it was signed.
            cut_off = not begun or copies.is_cut_off(run.path)
            refuse_changed(run, auditor, (EVIDENCE, *((copies.ERASURE,) if cut_off else ())))
        why = copies.NOT_NEEDED if reason is None else reason
        copies.erase(run.path, auditor, why, authority)
    return True


def _problem(run: RunDirectory, *, begun: bool) -> Problem | None:
    """The first thing that does not hold of a run.

    Of an erasure that goes on, evidence may be gone and the auditor's signatures may be half made.
    """
    found = problems(run)
    if begun:
        return changed_since_training(
            one for one in found if one.file.partition("/")[0] != EVIDENCE
        )
    return found[0] if found else None
