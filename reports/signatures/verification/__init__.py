"""Checks a signed run: signatures, files, evidence, and that all parts belong together.

The reader's end of `signing`. Every input may be hostile: nothing is followed out of the run
directory, and whatever is wrong becomes a `Problem` that names the file. The result says how far
the check reaches: keys taken from the run itself prove integrity only. Nothing is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from reports.errors import SourceError, local
from reports.reading.files import clean
from reports.reading.source import load
from reports.signatures.keys import ROLES, default_directory, load_public
from reports.signatures.trust.revocations import list_path, read_lists
from reports.signatures.trust.timestamps import load_roots
from reports.signatures.verification import contents, envelopes
from reports.signatures.verification.key_trust import Trust
from reports.signatures.verification.results import Found, Signer, VerificationResult

__all__ = ["Signer", "VerificationResult", "verify"]


def verify(
    run_dir: Path,
    trainer_key: Path | None = None,
    auditor_key: Path | None = None,
    revocations: Iterable[Path] = (),
    tsa_roots: Iterable[Path] = (),
) -> VerificationResult:
    """Check a signed run.

    Args:
        run_dir: The run directory; links in it are refused, not followed.
        trainer_key: Public key that the trainer's signature must be by, or that a chain of the
            trainer's own rotations must start from; the run's own if not given.
        auditor_key: The same for the auditor.
        revocations: Lists of revoked keys. Those in the caller's own key folder count as well.
        tsa_roots: Certificates of time-stamping authorities that the caller trusts, PEM.

    Returns:
        Problems, statements and signers. Nothing in the run directory makes this raise.

    Raises:
        KeyFileError: A key, list or certificate that the caller gave cannot be read.
        EnvelopeError: A list of revoked keys is damaged, or not signed by who may.
    """
    pinned = {"trainer": trainer_key, "auditor": auditor_key}
    own = (list_path(default_directory(), role) for role in ROLES)
    trust = Trust(
        pinned={role: load_public(path) for role in ROLES if (path := pinned[role]) is not None},
        roots=load_roots(tsa_roots),
        revoked=read_lists([*(path for path in own if os.path.lexists(path)), *revocations]),
    )
    found = Found()
    if not run_dir.is_dir():
        found.add(clean(run_dir.name, 200), "no such run directory")
        return found.result()
    statements, keys = envelopes.check_envelopes(run_dir, trust, found)
    envelopes.check_pages(run_dir, keys.get("auditor"), trust, found)
    contents.check_files(run_dir, statements, found)
    contents.check_evidence(run_dir, statements, found)
    envelopes.check_model(run_dir, keys.get("trainer"), trust, found)
    try:
        source = load(run_dir)
    except SourceError as error:
        file = str(error).split(":")[0].split(",")[0]
        if file not in {problem.file for problem in found.problems}:
            found.add(file, local(error, run_dir).partition(": ")[2])
    else:
        contents.check_claims(source, statements, found)
        contents.check_reports(run_dir, source, found)
    _judge_signers(found)
    return found.result()


def _judge_signers(found: Found) -> None:
    """Say how far the signatures reach."""
    if not found.signers:
        return
    roles = [role for role in ROLES if any(signer.role == role for signer in found.signers)]
    unpinned = [
        role for role in roles if any(s.role == role and not s.pinned for s in found.signers)
    ]
    if unpinned:
        whose = " and the ".join(unpinned)
        found.say(
            f"The key of the {whose} was taken from the run itself: this proves integrity only. "
            "Give a key that you received another way to learn who signed."
        )
    if len(roles) == 2 and len({signer.fingerprint for signer in found.signers}) == 1:
        found.say("Trainer and auditor signed with the same key: integrity, not independence.")
    elif len(roles) == 2:
        found.say(
            "Trainer and auditor signed with different keys. If both keys are in one hand, that is "
            "integrity, not independence; no signature can tell."
        )
