"""Checks a signed run: signatures, files, evidence, and that all parts belong together.

The reader's end of `signing`. Every input may be hostile: nothing is followed out of the run
directory, and whatever is wrong becomes a `Problem` that names the file. The result says how far
the check reaches: keys taken from the run itself prove integrity only. Nothing is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reports.content.assurance import Facts, facts_from, facts_of, level_of
from reports.errors import KeyFileError, PdfSignatureError, SourceError, local
from reports.files import Snapshot, clean
from reports.signatures import pades, signing
from reports.signatures.dsse import Statement
from reports.signatures.inventory import CHALLENGE, DRAW, INTENT
from reports.signatures.keyring import own_fingerprints
from reports.signatures.keys import (
    ROLES,
    Role,
    default_directory,
    fingerprint,
    load_public,
    refuse_open,
)
from reports.signatures.statements import list_path, read_lists
from reports.signatures.timestamps import load_roots
from reports.signatures.verification import contents, envelopes, results
from reports.signatures.verification.envelopes import Trust, line_of
from reports.signatures.verification.results import (
    Found,
    Memory,
    Outcome,
    Present,
    Seen,
    Signer,
    VerificationResult,
)
from reports.source import RunSource, load

if TYPE_CHECKING:
    from reports.signatures.transparency import LogKey
    from reports.signatures.verification.envelopes import Keys

__all__ = [
    "Outcome",
    "Signer",
    "VerificationResult",
    "trust_of",
    "verify",
    "verify_and_read",
    "verify_comparison",
    "verify_pages",
]


def verify(
    run_dir: Path,
    trainer_key: Path | None = None,
    auditor_key: Path | None = None,
    revocations: Iterable[Path] = (),
    tsa_roots: Iterable[Path] = (),
    memory: Path | None = None,
    log_keys: Iterable[Path] = (),
) -> VerificationResult:
    """Check a signed run, or its public files where they lie alone.

    Each file is read once, so that what is judged is what was hashed.

    Args:
        run_dir: The run directory; links in it are refused, not followed.
        trainer_key: Public key that the trainer's signature must be by, or that a chain of the
            trainer's own rotations must start from. If not given, the run's own is used, and the
            signer is unknown unless that key lies in the caller's own key folder.
        auditor_key: The same for the auditor.
        revocations: Lists of revoked keys. Those in the caller's own key folder count as well.
        tsa_roots: Certificates of time-stamping authorities that the caller trusts, PEM.
        memory: File that keeps the latest state seen of each run and signer (`results`);
            nothing is compared or kept without, as a service should that checks runs for others.
        log_keys: Public keys of transparency logs that the caller trusts.

    Returns:
        Problems, statements and signers. Nothing in the run directory makes this raise.

    Raises:
        KeyFileError: A key, list or certificate that the caller gave cannot be read, or others
            may write to the caller's key folder.
        EnvelopeError: A list of revoked keys is damaged, or not signed by who may.
    """
    return verify_and_read(
        run_dir, trainer_key, auditor_key, revocations, tsa_roots, memory, log_keys
    )[0]


def verify_and_read(
    run_dir: Path,
    trainer_key: Path | None = None,
    auditor_key: Path | None = None,
    revocations: Iterable[Path] = (),
    tsa_roots: Iterable[Path] = (),
    memory: Path | None = None,
    log_keys: Iterable[Path] = (),
) -> tuple[VerificationResult, RunSource | None]:
    """Check a signed run as `verify` does, and hand on the run as it was read for that.

    Returns:
        What `verify` returns; and the run, None where it cannot be read or only its public files
        are there.

    Raises:
        KeyFileError: As `verify`.
        EnvelopeError: As `verify`.
    """
    trust = trust_of(
        {"trainer": trainer_key, "auditor": auditor_key}, revocations, tsa_roots, log_keys
    )
    known = results.read_memory(memory) if memory is not None else Memory()
    found = Found()
    if not run_dir.is_dir():
        found.add(clean(run_dir.name, 200), "no such run directory")
        return found.result(), None
    files = Snapshot(run_dir)
    alone = contents.is_public_alone(files)
    keys = envelopes.check_keys(files, trust, found)
    statements = envelopes.check_envelopes(files, keys, trust, found, alone)
    envelopes.check_pages(files, keys.get("auditor"), trust, found)
    last = signing.PUBLIC_ENVELOPE if alone else signing.RUN_ENVELOPE
    contents.check_files(files, statements, last, found)
    envelopes.check_model(files, keys.get("trainer"), trust, found)
    _check_announcements(files, keys, trust, found)
    source = facts = run = None
    if not alone:
        source = _check_run(files, statements, found)
        if source is not None:
            run, facts = source.run, facts_of(source)
    elif signing.PUBLIC_ENVELOPE in statements:
        statement = statements[signing.PUBLIC_ENVELOPE]
        run = contents.check_public(files, statement, found)
        facts = facts_from(statement.predicate)
    if memory is not None and run is not None:
        present = _present(files, trust, found)
        results.refuse_earlier(known, run, present, memory, found)
        if found.result().ok:
            results.remember(run, present, memory, found)
    _judge_signers(found)
    result = found.result()
    # Among public files is no signature of the trainer's: the key is the one that they name.
    named = (
        [trust.signer("trainer", fingerprint(keys["trainer"]), last)]
        if alone and "trainer" in keys
        else []
    )
    if facts is not None and not _is_challengers(files, last, trust, found):
        facts = facts._replace(public_coin=False)
    return replace(result, level=_level(result, facts, last, named)), source


def _is_challengers(files: Snapshot, last: str, trust: Trust, found: Found) -> bool:
    """Whether the auditor who signs is the one who challenged the run, by this key or an earlier.

    A trainer with two keys could else challenge a run with one and have a stranger audit it.
    """
    challengers = {one.fingerprint for one in found.signers if one.envelope == CHALLENGE}
    return any(
        challengers & line_of(files, signing.AUDITOR_ROTATIONS, "auditor", one.fingerprint, trust)
        for one in found.signers
        if challengers and one.envelope == last
    )


def _level(
    result: VerificationResult,
    facts: Facts | None,
    last: str = signing.RUN_ENVELOPE,
    named: Iterable[Signer] = (),
) -> int | None:
    """Return how much stands behind the verdict of a run that is whole and intact.

    Args:
        result: Who signed.
        facts: What the level is computed from.
        last: The envelope by which the auditor says so.
        named: The trainer, where the files have the key alone and no signature by it.
    """
    if facts is None or not result.is_intact:
        return None
    trainers = [*named, *(one for one in result.signers if one.role == "trainer")]
    auditors = [one for one in result.signers if one.envelope == last]
    theirs = {one.fingerprint for one in trainers}
    # Whoever has both keys audits their own run.
    in_one_hand = any(one.own for one in trainers) and any(one.own for one in auditors)
    another = bool(theirs) and not in_one_hand
    return level_of(
        facts,
        another_key=another and any(one.fingerprint not in theirs for one in auditors),
        key_is_trusted=any(one.is_known for one in auditors),
        time_is_trusted=any(one.time is not None for one in auditors),
    )


def verify_comparison(
    folder: Path,
    auditor_key: Path | None = None,
    revocations: Iterable[Path] = (),
    tsa_roots: Iterable[Path] = (),
) -> VerificationResult:
    """Check a signed comparison of runs; the runs themselves are checked one by one, by `verify`.

    Args:
        folder: The folder of the comparison; it may hold the internal and the public one.
        auditor_key: Public key that the signature must be by; see `verify`.
        revocations: Lists of revoked keys.
        tsa_roots: Certificates of time-stamping authorities that the caller trusts, PEM.

    Returns:
        Problems, statements and signers. Nothing in the folder makes this raise.

    Raises:
        KeyFileError: As `verify`.
        EnvelopeError: A list of revoked keys is damaged, or not signed by who may.
    """
    trust = trust_of({"auditor": auditor_key}, revocations, tsa_roots, ())
    found = Found()
    # A run's own check needs nothing of it.
    from reports.signatures.verification import comparisons

    comparisons.check(Snapshot(folder), trust, found)
    _judge_signers(found)
    return found.result()


def verify_pages(
    path: Path,
    auditor_key: Path | None = None,
    revocations: Iterable[Path] = (),
    tsa_roots: Iterable[Path] = (),
) -> VerificationResult:
    """Check a report's pages where nothing else is: its PDF, which the auditor certified.

    Args:
        path: The PDF file.
        auditor_key: Public key that the signature must be by; see `verify`.
        revocations: Lists of revoked keys.
        tsa_roots: Certificates of time-stamping authorities that the caller trusts, PEM.

    Returns:
        Problems, statements and signers. Nothing in the file makes this raise.

    Raises:
        KeyFileError: As `verify`.
        EnvelopeError: A list of revoked keys is damaged, or not signed by who may.
    """
    trust = trust_of({"auditor": auditor_key}, revocations, tsa_roots, ())
    found, files = Found(), Snapshot(path.parent)
    try:
        signed = pades.check(files.read(path.name), path.name, trust.roots).key
    except (SourceError, PdfSignatureError, KeyFileError) as error:
        found.add_error(path.name, local(error, path.parent))
        return found.result()
    wanted = trust.pinned.get("auditor", signed)
    envelopes.check_pages(files, wanted, trust, found, (path.name,))
    if not found.problems:
        found.say(
            "These are the pages alone. That what they state follows from ledger and evidence is "
            "their signer's word; give the run's folder to check more."
        )
    _judge_signers(found)
    return found.result()


def trust_of(
    pinned: Mapping[Role, Path | None],
    revocations: Iterable[Path],
    tsa_roots: Iterable[Path],
    log_keys: Iterable[Path],
) -> Trust:
    """Return what the caller brings along, and what lies in the caller's own key folder.

    Args:
        pinned: Public keys received another way, by role.
        revocations: Lists of revoked keys.
        tsa_roots: Certificates of time-stamping authorities that the caller trusts, PEM.
        log_keys: Public keys of transparency logs that the caller trusts.

    Raises:
        KeyFileError: As `verify`.
        EnvelopeError: As `verify`.
    """
    folder = default_directory()
    refuse_open(folder)
    own = (list_path(folder, role) for role in ROLES)
    return Trust(
        pinned={role: load_public(path) for role, path in pinned.items() if path is not None},
        roots=load_roots(tsa_roots),
        revoked=read_lists([*(path for path in own if os.path.lexists(path)), *revocations]),
        own={role: own_fingerprints(role, folder) for role in ROLES},
        logs=_logs(log_keys),
    )


def _logs(paths: Iterable[Path]) -> tuple[LogKey, ...]:
    """Return the keys of logs; how logs prove something is read where a caller trusts one."""
    given = tuple(paths)
    if not given:
        return ()
    from reports.signatures.transparency import load_log_keys

    return load_log_keys(given)


def _present(files: Snapshot, trust: Trust, found: Found) -> dict[str, Present]:
    """Return the number of each attestation whose signature holds, with its signer's keys."""
    present = {}
    for signer in found.signers:
        if signer.envelope in found.sequence and signer.role in ROLES:
            seen = Seen(found.sequence[signer.envelope], files.sha256(signer.envelope))
            rotations = signing.ROTATIONS[signer.role]
            line = line_of(files, rotations, signer.role, signer.fingerprint, trust)
            present[signer.envelope] = Present(seen, line)
    return present


def _check_announcements(files: Snapshot, keys: Keys, trust: Trust, found: Found) -> None:
    """Check what was announced of the run; few runs are, so how is read where one was."""
    coin = contents.public_coin(files)
    if coin is None and not any(map(files.holds, (INTENT, CHALLENGE, DRAW))):
        return
    from reports.signatures.verification import announcements

    announcements.check(files, coin, keys, trust, found)


def _check_run(files: Snapshot, statements: dict[str, Statement], found: Found) -> RunSource | None:
    """Check evidence, claims and reports of a whole run; return it if it can be read."""
    contents.check_evidence(files.folder, statements, found)
    try:
        source = load(files.folder, files)
    except SourceError as error:
        file = str(error).split(":")[0].split(",")[0]
        if file not in {problem.file for problem in found.problems}:
            found.add(file, local(error, files.folder).partition(": ")[2])
        return None
    contents.check_claims(source, statements, found)
    contents.check_reports(files, contents.about(source), found)
    contents.check_guarantees(files, source, found)
    return source


def _judge_signers(found: Found) -> None:
    """Say how far the signatures reach."""
    if not found.signers:
        return
    roles = [role for role in ROLES if any(signer.role == role for signer in found.signers)]
    unknown = [
        role for role in roles if any(s.role == role and not s.is_known for s in found.signers)
    ]
    if unknown:
        whose = " and the ".join(unknown)
        found.say(
            f"The key of the {whose} was taken from the run itself: this proves integrity only. "
            "Give a key that you received another way to learn who signed."
        )
    own = [role for role in roles if any(s.role == role and s.own for s in found.signers)]
    if own:
        found.say(f"Signed by your own key: the {' and the '.join(own)}'s.")
    if found.sequence:
        numbers = ", ".join(f"{name} number {value}" for name, value in found.sequence.items())
        found.say(
            f"Of this run's signatures these are {numbers}. An earlier signed state that was put "
            "back would hold as well: only who knows a higher number can tell."
        )
    if len(roles) == 2 and len({signer.fingerprint for signer in found.signers}) == 1:
        found.say("Trainer and auditor signed with the same key: integrity, not independence.")
    elif len(roles) == 2:
        found.say(
            "Trainer and auditor signed with different keys. If both keys are in one hand, that is "
            "integrity, not independence; no signature can tell."
        )
