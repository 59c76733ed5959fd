"""Refuses to sign anew, without judging, what is not as a key of the user's signed it before."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from dpfedadamw.errors import FilingError
from dpfedadamw.rundir import RunDirectory
from reports.errors import EnvelopeError, ReportError, local
from reports.files import read_bytes
from reports.signatures import copies, dsse, keyring, keys, signing, statements
from reports.signatures.dsse import Statement
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import contents, results
from reports.signatures.verification.results import Found


def refuse_changed(
    run: RunDirectory,
    key: SigningKey,
    rewritten: Collection[str] = (),
    *,
    by_anybody: bool = False,
) -> None:
    """Refuse to sign what was changed since it was signed, as a signature judges nothing.

    Args:
        run: Its directory, held for writing.
        key: The key that signs now, in the role whose signature is to be superseded.
        rewritten: Further files that are written anew whatever they are.
        by_anybody: Whether the last signature may be by the run's own key, whoever holds that;
            else it must be by this key or another one of the user's. By none that is compromised.

    Raises:
        FilingError: If something was changed, or the last signature is by no such key.
    """
    trainer = key.role == "trainer"
    name = signing.TRAINING_ENVELOPE if trainer else signing.RUN_ENVELOPE
    files = {*rewritten, *contents.BY_TRAINER, *(() if trainer else contents.BY_AUDITOR)}
    folder = keys.default_directory()
    try:
        signers = [key.public, *keyring.own_keys(key.role, folder)]
        if by_anybody:
            signers.append(keys.load_public(run.path / f"{key.role}.pub"))
        # Who has a compromised key can have signed anything with it.
        revoked = statements.own_revocations(folder)
        compromised = {one.key for one in revoked.values() if one.reason == "key-compromise"}
        sound = [one for one in signers if keys.fingerprint(one) not in compromised]
        statement = contents.refuse_changed(run.path, name, sound, files)
        _refuse_earlier(run, name, statement, sound, folder / results.MEMORY_FILE)
    except ReportError as error:
        remedy = f"judge the run anew: dpfedadamw audit {run.path} --write"
        if trainer or copies.erased_at(run.path) is not None:
            remedy = "put back what was signed"
        raise FilingError(f"{local(error, run.path)}; nothing was signed; {remedy}") from error


def _refuse_earlier(
    run: RunDirectory,
    name: str,
    statement: Statement,
    signers: Sequence[ec.EllipticCurvePublicKey],
    memory: Path,
) -> None:
    """Refuse an earlier state that was put back, where a later one was verified before.

    Args:
        run: Its directory.
        name: The envelope.
        statement: What it says.
        signers: Keys of which one signed it. What was seen under any of them counts: they are the
            user's own, or the run's.
        memory: What was seen.
    """
    digest = hashlib.sha256(read_bytes(run.path / name)).hexdigest()
    seen = results.Seen(dsse.sequence_number(statement, name), digest)
    present = {name: results.Present(seen, frozenset(map(keys.fingerprint, signers)))}
    found = Found()
    results.refuse_earlier(results.read_memory(memory), run.identifier, present, memory, found)
    for problem in found.problems:
        raise EnvelopeError(str(problem))
