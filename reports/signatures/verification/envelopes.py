"""A run's signatures: the two envelopes, their timestamps, the report's PDF; and their keys.

Whether a key may be believed: is it the one given, did it follow from that one, is it revoked?
Without a time from an authority whom the caller trusts, nothing signed by a revoked key holds: its
thief can write any date. With such a time before the revocation it does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asn1crypto import x509
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
from reports.signatures import certificates, dsse, pades, signing, timestamps
from reports.signatures.certificates import Chain, common_name, is_self_signed, issuer_name
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
from reports.signatures.inventory import BUNDLE
from reports.signatures.keys import ROLES, Role, fingerprint, parse_public
from reports.signatures.statements import (
    MOST_BYTES,
    Revoked,
    Rotation,
    read_bundle,
    read_rotation,
    read_time,
    signer_of,
    written_time,
)
from reports.signatures.timestamps import Timestamp
from reports.signatures.verification.results import Found, Signer

if TYPE_CHECKING:
    from reports.signatures.transparency import LogKey


@dataclass(frozen=True)
class Trust:
    """What the caller brings along.

    Attributes:
        pinned: Keys received another way, by role.
        roots: Certificates of time-stamping authorities.
        revoked: Revoked keys, by fingerprint.
        own: Fingerprints of the keys in the caller's own key folder, by role.
        logs: Keys of transparency logs.
    """

    pinned: dict[Role, ec.EllipticCurvePublicKey]
    roots: tuple[x509.Certificate, ...]
    revoked: Revoked
    own: dict[Role, frozenset[str]]
    logs: tuple[LogKey, ...] = ()

    def signer(
        self, role: Role, fingerprint: str, envelope: str, time: str | None = None
    ) -> Signer:
        """Return a signature that holds, with what the caller knows of its key."""
        pinned = role in self.pinned
        own = not pinned and fingerprint in self.own[role]
        return Signer(role, fingerprint, envelope, pinned, time, own)


def trusted_time(stamp: Timestamp | None, file: str, found: Found) -> Timestamp | None:
    """Say what a timestamp is worth, and return it if it can be relied on."""
    if stamp is None:
        return None
    if not stamp.trusted:
        found.say(
            f"{file}: the authority {stamp.authority} says {written_time(stamp.time)}; give its "
            "certificate (--tsa-root) to rely on that."
        )
        return None
    found.say(f"{file}: signed before {written_time(stamp.time)}, says {stamp.authority}.")
    return stamp


def refuse_revoked(
    key: str, file: str, trust: Trust, stamp: Timestamp | None, found: Found
) -> bool:
    """Note a signature by a revoked key, unless a trusted time shows that it came before.

    Args:
        key: Fingerprint of the key that signed.
        file: What it signed.
        trust: What the caller brings along.
        stamp: A time to rely on, or None.
        found: Gets the problem or the statement.

    Returns:
        Whether the signature is refused.
    """
    revocation = trust.revoked.get(key)
    if revocation is None:
        return False
    since = written_time(revocation.since)
    if stamp is not None and stamp.time < revocation.since:
        found.say(
            f"{file}: its key {key} is revoked since {since} ({revocation.reason}); the timestamp "
            "shows that it was signed before, so it holds."
        )
        return False
    why = (
        "no timestamp that you trust shows that it was signed before"
        if stamp is None
        else f"it was signed at {written_time(stamp.time)} or shortly before"
    )
    found.add(file, f"its key {key} is revoked since {since} ({revocation.reason}), and {why}")
    return True


def refuse_expired(chain: Chain, file: str, stamp: Timestamp | None, found: Found) -> None:
    """Note a certificate that was not valid when it signed, or now if no time can be relied on."""
    problem = certificates.expiry_problem(chain, stamp.time if stamp else certificates.now())
    if problem is None:
        return
    hint = "" if stamp else ", and no timestamp that you trust shows that it was signed before"
    found.add(file, problem + hint)


def leads_to(
    files: Snapshot,
    name: str,
    role: Role,
    start: ec.EllipticCurvePublicKey,
    end: ec.EllipticCurvePublicKey,
    trust: Trust,
    found: Found,
) -> bool:
    """Whether the holders of both say, in the run's own file, that one key replaced another.

    A statement to which the key that follows did not consent counts for nothing: its holder may be
    somebody else.

    Args:
        files: The run directory's files.
        name: The file of rotations in it.
        role: Whose keys.
        start: The key that the caller trusts.
        end: The key that signed the run.
        trust: Revoked keys and authorities.
        found: Gets a problem for every statement that cannot be relied on.
    """
    if not files.holds(name):
        return False
    try:
        chain = read_bundle(files.read(name, MOST_BYTES), "rotations", name)
    except (SourceError, EnvelopeError) as error:
        found.add_error(name, local(error, files.folder))
        return False
    key, steps = start, list[Rotation]()
    for sealed in chain:
        try:
            rotation = read_rotation(sealed, key, name)
        except EnvelopeError:
            if steps:
                break
            continue  # The caller's key may not be the first one.
        if not rotation.is_consented:
            found.say(
                f"{name}: {rotation.previous} names {fingerprint(rotation.following)} as its "
                "successor, which did not consent (earlier versions did not ask it), so it is not "
                "followed. Give the new key itself, or let its holder sign this run again."
            )
            return False
        stamp = None
        if sealed.timestamp is not None:
            try:
                stamp = timestamps.check(sealed.timestamp, sealed.envelope, trust.roots, name)
            except TimestampError as error:
                found.add_error(name, error)
                return False
        held = stamp if stamp is not None and stamp.trusted else None
        if rotation.role != role or refuse_revoked(rotation.previous, name, trust, held, found):
            return False
        key = rotation.following
        steps.append(rotation)
    if not steps or fingerprint(key) != fingerprint(end):
        return False
    dates = ", ".join(f"{step.created:%Y-%m-%d}" for step in steps)
    found.say(
        f"The {role}'s key that you gave, {fingerprint(start)}, was replaced by its holder "
        f"({dates}); {fingerprint(end)} follows from it."
    )
    return True


def line_of(files: Snapshot, name: str, role: Role, key: str, trust: Trust) -> frozenset[str]:
    """Return a key and those that it replaced, as far as their holders say so in the run's file.

    Each step must be signed by both keys, and the earlier one not revoked: its thief could name a
    successor too. All keys in the caller's own key folder are of one line.

    Args:
        files: The run directory's files.
        name: The file of rotations in it.
        role: Whose keys.
        key: Fingerprint of the key that signed the run.
        trust: What the caller brings along.
    """
    own = trust.own[role]
    line, last = {key, *(own if key in own else ())}, key
    try:
        data = files.read(name, MOST_BYTES) if files.holds(name) else None
        chain = read_bundle(data, "rotations", name) if data is not None else ()
        for sealed in reversed(chain):
            signer = signer_of(sealed, name) or trust.pinned.get(role)
            if signer is None:
                break
            step = read_rotation(sealed, signer, name)
            joined = step.is_consented and fingerprint(step.following) == last
            if not joined or step.role != role or step.previous in trust.revoked:
                break
            last = step.previous
            line.add(last)
    except (SourceError, EnvelopeError):
        pass  # Named already where it matters; what holds no line joins no keys.
    return frozenset(line)


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
    if leads_to(files, rotations, role, pinned, embedded, trust, found):
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
            found.sequence[name] = dsse.sequence_number(statement, name)
    except SourceError as error:
        missing = "" if files.holds(name) else f"; the {role}'s signature is missing"
        found.add(name, local(error, files.folder).removeprefix(f"{name}: ") + missing)
        return None
    except EnvelopeError as error:
        found.add_error(name, error)
        return None
    stamp = stamp_beside(files, name, data, trust, found)
    if refuse_revoked(fingerprint(key), name, trust, stamp, found):
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
    """Return the time to rely on from an envelope's timestamp, if there is one."""
    beside = name + signing.STAMP_SUFFIX
    if not files.holds(beside):
        return None
    try:
        answer = files.read(beside, timestamps.MOST_BYTES)
        stamp = timestamps.check(answer, data, trust.roots, beside)
    except (SourceError, TimestampError) as error:
        found.add_error(beside, local(error, files.folder))
        return None
    return trusted_time(stamp, name, found)


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
        stamp = trusted_time(signature.timestamp, name, found)
        if refuse_revoked(key, name, trust, stamp, found):
            continue
        refuse_expired(signature.chain, name, stamp, found)
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
    if trainer is None or not files.holds(BUNDLE):
        return
    # Few runs have one, so how it is checked is read here.
    from reports.signatures.bundles import check_bundle

    problems = check_bundle(files, trainer)
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
    if not refuse_revoked(key, BUNDLE, trust, stamp, found) and not problems:
        found.signers.append(trust.signer("trainer", key, BUNDLE, time))
