"""A run's signatures: the two envelopes, their timestamps, and the one in the report's PDF."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import (
    EnvelopeError,
    KeyFileError,
    PdfSignatureError,
    SourceError,
    TimestampError,
    local,
)
from reports.files import Snapshot
from reports.signatures import bundles, pades, sequence, signing
from reports.signatures.dsse import (
    COMPARISON_TYPE,
    PUBLIC_TYPE,
    RUN_TYPE,
    TRAINING_TYPE,
    Statement,
    check_signature,
    parse_envelope,
    parse_statement,
    refuse_high_s,
)
from reports.signatures.keys import ROLES, Role, fingerprint, parse_public
from reports.signatures.trust import timestamps
from reports.signatures.trust.certificates import common_name, is_self_signed, issuer_name
from reports.signatures.trust.statements import read_time, written_time
from reports.signatures.trust.timestamps import Timestamp
from reports.signatures.verification import key_trust
from reports.signatures.verification.key_trust import Trust
from reports.signatures.verification.results import Found

Keys = dict[Role, ec.EllipticCurvePublicKey]

_KEY_FILES: tuple[tuple[Role, str, str], ...] = (
    ("trainer", signing.TRAINER_KEY, signing.TRAINER_ROTATIONS),
    ("auditor", signing.AUDITOR_KEY, signing.AUDITOR_ROTATIONS),
)
# Role, envelope, and the predicate's type.
_TRAINING: tuple[Role, str, str] = ("trainer", signing.TRAINING_ENVELOPE, TRAINING_TYPE)
_RUN: tuple[Role, str, str] = ("auditor", signing.RUN_ENVELOPE, RUN_TYPE)
_PUBLIC: tuple[Role, str, str] = ("auditor", signing.PUBLIC_ENVELOPE, PUBLIC_TYPE)


def check_keys(files: Snapshot, trust: Trust, found: Found, roles: Iterable[Role] = ROLES) -> Keys:
    """Return by role the key that its signatures must be by, where there is one."""
    keys = {}
    for role, key_file, rotations in _KEY_FILES:
        if role not in roles:
            continue
        key = _key(files, role, key_file, rotations, trust, found)
        if key is not None:
            keys[role] = key
    return keys


def check_envelopes(
    files: Snapshot, keys: Keys, trust: Trust, found: Found, public: bool = False
) -> dict[str, Statement]:
    """Check the envelopes.

    Args:
        files: The files of a run directory, or the public ones alone.
        keys: The keys that they must be by, of `check_keys`.
        trust: What the caller brings along.
        found: Gets what does not hold, and the signatures that do.
        public: Whether only the public files are there.

    Returns:
        The statements whose signatures hold, by the envelope's name.
    """
    expected = [_PUBLIC] if public else [_TRAINING, _RUN]
    if not public and files.holds(signing.PUBLIC_ENVELOPE):
        expected.append(_PUBLIC)
    statements = {}
    for role, envelope, kind in expected:
        statement = open_envelope(files, role, envelope, kind, keys.get(role), trust, found)
        if statement is not None:
            statements[envelope] = statement
    return statements


def _key(
    files: Snapshot, role: Role, key_file: str, rotations: str, trust: Trust, found: Found
) -> ec.EllipticCurvePublicKey | None:
    """Return the key that the signature must be by, or None if there is none."""
    pinned = trust.pinned.get(role)
    try:
        embedded = parse_public(files.read(key_file, 16_384), key_file)
    except (SourceError, KeyFileError) as error:
        found.add_error(key_file, local(error, files.folder))
        return pinned
    if pinned is None or fingerprint(pinned) == fingerprint(embedded):
        return embedded
    if key_trust.leads_to(files, rotations, role, pinned, embedded, trust, found):
        return embedded
    found.add(key_file, f"is {fingerprint(embedded)}, not the key you gave, {fingerprint(pinned)}")
    return pinned


def open_envelope(
    files: Snapshot,
    role: Role,
    name: str,
    kind: str,
    key: ec.EllipticCurvePublicKey | None,
    trust: Trust,
    found: Found,
) -> Statement | None:
    """Return a statement whose signature holds, or None and a problem."""
    try:
        data = files.read(name)
        envelope = parse_envelope(data, name)
        if key is None:
            return None
        check_signature(envelope, key, name)
        statement = parse_statement(envelope.payload, kind, name)
        if statement.is_numbered:
            refuse_high_s(envelope, name)
        # A comparison is made anew from runs, and supersedes nothing.
        if kind != COMPARISON_TYPE:
            found.sequence[name] = sequence.number(statement, name)
    except SourceError as error:
        missing = "" if files.holds(name) else f"; the {role}'s signature is missing"
        found.add(name, local(error, files.folder).removeprefix(f"{name}: ") + missing)
        return None
    except EnvelopeError as error:
        found.add_error(name, error)
        return None
    stamp = stamp_beside(files, name, data, trust, found)
    if key_trust.refuse_revoked(fingerprint(key), name, trust, stamp, found):
        return statement
    time = written_time(stamp.time) if stamp is not None else None
    found.signers.append(trust.signer(role, fingerprint(key), name, time))
    if envelope.keyid != fingerprint(key):
        found.add(name, "its keyid names another key than the one that signed")
    if statement.predicate.get("role") != role:
        found.add(name, f"was not signed in the role of the {role}")
    return statement


def stamp_beside(
    files: Snapshot, name: str, data: bytes, trust: Trust, found: Found
) -> Timestamp | None:
    """Return the time to rely on from the timestamp beside an envelope, if there is one."""
    beside = name + signing.STAMP_SUFFIX
    if not files.holds(beside):
        return None
    try:
        answer = files.read(beside, timestamps.MOST_BYTES)
        stamp = timestamps.check(answer, data, trust.roots, beside)
    except (SourceError, TimestampError) as error:
        found.add_error(beside, local(error, files.folder))
        return None
    return key_trust.trusted_time(stamp, name, found)


def check_pages(
    files: Snapshot,
    auditor: ec.EllipticCurvePublicKey | None,
    trust: Trust,
    found: Found,
    names: Iterable[str] = signing.SIGNED_PAGES,
) -> None:
    """Check the certification signature in each of the PDFs that are there.

    Args:
        files: The directory's files.
        auditor: The key that it must be by; None if there is none, which is a problem by itself.
        trust: What the caller brings along.
        found: Gets what does not hold, and the signatures that do.
        names: Names of the PDFs.
    """
    for name in sorted(names):
        if not files.holds(name):
            continue
        try:
            signature = pades.check(files.read(name), name, trust.roots)
        except (SourceError, PdfSignatureError, KeyFileError) as error:
            found.add_error(name, local(error, files.folder))
            continue
        key = fingerprint(signature.key)
        if auditor is None or key != fingerprint(auditor):
            wanted = fingerprint(auditor) if auditor is not None else "whose key is missing"
            found.add(name, f"is signed by {key}, not by the auditor, {wanted}")
            continue
        stamp = key_trust.trusted_time(signature.timestamp, name, found)
        if key_trust.refuse_revoked(key, name, trust, stamp, found):
            continue
        key_trust.refuse_expired(signature.chain, name, stamp, found)
        if not is_self_signed(signature.chain[0]):
            found.say(
                f"{name}: its certificate is for {common_name(signature.chain[0])}, issued by "
                f"{issuer_name(signature.chain[0])}. Whether to trust that issuer is yours to "
                "judge; here the key alone counts."
            )
        time = written_time(stamp.time) if stamp is not None else None
        found.signers.append(trust.signer("auditor", key, name, time))


def check_model(
    files: Snapshot, trainer: ec.EllipticCurvePublicKey | None, trust: Trust, found: Found
) -> None:
    """Check the model's own signature, if there is one, after the envelopes.

    It has no timestamp; but the auditor's envelope covers it, so it is no younger than that.

    Args:
        files: The run directory's files.
        trainer: The key that it must be by; None if there is none, which is a problem by itself.
        trust: What the caller brings along.
        found: Gets what does not hold, and the signature if it does.
    """
    if trainer is None or not files.holds(bundles.BUNDLE):
        return
    problems = bundles.check_bundle(files, trainer)
    for problem in problems:
        found.add(problem.file, problem.reason)
    key = fingerprint(trainer)
    covered = [entry for entry in found.signers if entry.envelope == signing.RUN_ENVELOPE]
    time = covered[0].time if covered else None
    stamp = (
        Timestamp(read_time(time, signing.RUN_ENVELOPE), "", trusted=True)
        if time is not None
        else None
    )
    if not key_trust.refuse_revoked(key, bundles.BUNDLE, trust, stamp, found) and not problems:
        found.signers.append(trust.signer("trainer", key, bundles.BUNDLE, time))
