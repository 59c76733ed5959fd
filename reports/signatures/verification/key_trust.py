"""Whether a key may be believed: is it the one given, did it follow from that one, is it revoked.

Without a time from an authority whom the caller trusts, nothing signed by a revoked key holds: its
thief can write any date. With such a time before the revocation it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from asn1crypto import x509
from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, SourceError, TimestampError, local
from reports.files import Snapshot
from reports.signatures.keys import Role, fingerprint
from reports.signatures.trust import certificates, timestamps
from reports.signatures.trust.certificates import Chain
from reports.signatures.trust.revocations import Revoked
from reports.signatures.trust.statements import (
    MOST_BYTES,
    Rotation,
    read_bundle,
    read_rotation,
    signer_of,
    written_time,
)
from reports.signatures.trust.timestamps import Timestamp
from reports.signatures.trust.transparency import LogKey
from reports.signatures.verification.results import Found, Signer


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
