"""A holder's keys over the years: made, brought along, replaced, revoked; never overwritten.

A key folder holds ROLE.key, then ROLE-2.key, ROLE-3.key: the last one signs. Each has its public
key, its certificate and, where the one before vouched for it, the chain of statements that says so.

A `SigningKey` is one key ready to sign, in a file or in hardware, with certificates and history.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, KeyFileError
from reports.files import alone, read_bytes, write_atomic
from reports.signatures import certificates, statements
from reports.signatures.certificates import VALID_DAYS, Chain, check_chain, load_chain
from reports.signatures.keys import (
    ROLES,
    KeyFiles,
    Role,
    default_directory,
    fingerprint,
    load_private,
    load_public,
    refuse_open,
    store,
)
from reports.signatures.statements import (
    Revocation,
    Sealed,
    consented,
    list_path,
    own_revocations,
    read_entries,
    read_rotation,
    rotations_of,
    signer_of,
)
from reports.signatures.timestamps import Authority

HARDWARE_SCHEME = "pkcs11:"
CERTIFICATE_SUFFIX, ROTATIONS_SUFFIX = ".crt", ".rotations.json"


@dataclass(frozen=True)
class SigningKey:
    """What a signer holds.

    Attributes:
        role: "trainer" or "auditor".
        private: The key; one in hardware signs there and cannot be read out.
        chain: Its certificate, and those above it.
        rotations: The statements that lead from the holder's first key to this one.
        location: The key's file, or None if it is not in one.
    """

    role: Role
    private: ec.EllipticCurvePrivateKey
    chain: Chain
    rotations: tuple[Sealed, ...] = ()
    location: Path | None = None

    @property
    def public(self) -> ec.EllipticCurvePublicKey:
        """The public half."""
        return self.private.public_key()

    @property
    def fingerprint(self) -> str:
        """The public half's fingerprint."""
        return fingerprint(self.public)

    @property
    def replaced(self) -> frozenset[str]:
        """Fingerprints of the keys that it replaced, each step signed by both keys."""
        last, found, where = self.fingerprint, set[str](), "rotations"
        try:
            for sealed in reversed(self.rotations):
                signer = signer_of(sealed, where)
                step = read_rotation(sealed, signer, where) if signer is not None else None
                if step is None or not step.is_consented or fingerprint(step.following) != last:
                    break
                last = step.previous
                found.add(last)
        except EnvelopeError:
            pass  # What holds no line joins no keys.
        return frozenset(found)


def load_signing_key(role: Role, location: Path | str, passphrase: str | None = None) -> SigningKey:
    """Load a key that is to sign now.

    Args:
        role: What it will sign as.
        location: A PKCS#8 PEM file (STEM.crt and STEM.rotations.json are read too, if they lie next
            to it), or a PKCS#11 address (RFC 7512) such as "pkcs11:token=Audit;object=key".
        passphrase: Of the file, or the token's PIN.

    Raises:
        KeyFileError: It cannot be read or used, its certificate has expired or is of the future, or
            a list next to it or in the caller's own key folder revokes it.
        EnvelopeError: The statements next to it, or a list in the key folder, are damaged.
    """
    if str(location).startswith(HARDWARE_SCHEME):
        from reports.signatures import hardware

        private, chain = hardware.open_key(str(location), passphrase)
        key = SigningKey(role, private, chain or (certificates.self_signed(private, role),))
    else:
        key = _load_file(role, Path(location), passphrase)
    _refuse_revoked_by_owner(role, str(location), key.fingerprint)
    moment = certificates.now()
    problem = certificates.expiry_problem(key.chain, moment)
    if problem and certificates.is_early(key.chain, moment):
        raise KeyFileError(
            f"{location}: {problem}, and this machine's clock says {moment:%Y-%m-%d %H:%M} UTC; "
            "set the clock right"
        )
    if problem:
        raise KeyFileError(f"{location}: {problem}; make a successor with: dpfedadamw keys rotate")
    return key


def _load_file(role: Role, path: Path, passphrase: str | None) -> SigningKey:
    private = load_private(path, passphrase)
    stem = path.with_suffix("")
    _refuse_revoked(role, str(path), fingerprint(private.public_key()), path.parent)
    certificate_path = stem.with_name(stem.name + CERTIFICATE_SUFFIX)
    rotations_path = stem.with_name(stem.name + ROTATIONS_SUFFIX)
    chain: Chain = ()
    if os.path.lexists(certificate_path):
        data = read_bytes(certificate_path, certificates.MOST_BYTES)
        chain = certificates.parse_chain(data, str(certificate_path))
        certificates.check_chain(chain, private.public_key(), str(certificate_path))
    chain = chain or (certificates.self_signed(private, role),)
    rotations = consenting(rotations_of(rotations_path), private, str(rotations_path))
    return SigningKey(role, private, chain, rotations, path)


def _refuse_revoked_by_owner(role: Role, location: str, key: str) -> None:
    """Refuse a copy elsewhere, or in a token, of a key that the caller's own key folder revokes."""
    try:
        folder = default_directory()
        refuse_open(folder)
    except KeyFileError:
        return  # A caller without a folder that counts has revoked nothing in one.
    _refuse_revoked(role, location, key, folder)


def _refuse_revoked(role: Role, location: str, key: str, directory: Path) -> None:
    own = own_revocations(directory).get(key)
    if own is not None:
        raise KeyFileError(
            f"{location}: this key is revoked since {own.since:%Y-%m-%d} ({own.reason}) and signs "
            f"no more; make a new one with: dpfedadamw keys new --role {role}"
        )


def consenting(
    rotations: tuple[Sealed, ...], private: ec.EllipticCurvePrivateKey, where: str
) -> tuple[Sealed, ...]:
    """Return the statements that lead to a key, the last one with the key's consent.

    In the form of before, the old key signed alone. Anyone who keeps such a list next to
    the key and signs with it consents to it.

    Raises:
        EnvelopeError: They lead to another key.
    """
    if not rotations or rotations[-1].consent is not None:
        return rotations
    return (*rotations[:-1], consented(rotations[-1], private, where))


@dataclass(frozen=True)
class Generation:
    """One key of a holder.

    Attributes:
        role: "trainer" or "auditor".
        number: 1 for the first key, counted up.
        directory: The key folder.
    """

    role: Role
    number: int
    directory: Path

    @property
    def stem(self) -> str:
        """Name of its files without suffix."""
        return self.role if self.number == 1 else f"{self.role}-{self.number}"

    @property
    def private(self) -> Path:
        """The private key's file."""
        return self.directory / f"{self.stem}.key"

    @property
    def public(self) -> Path:
        """The public key's file."""
        return self.directory / f"{self.stem}.pub"

    @property
    def certificate(self) -> Path:
        """The certificates' file, which may not exist."""
        return self.directory / f"{self.stem}{CERTIFICATE_SUFFIX}"

    @property
    def rotations(self) -> Path:
        """The file of statements that lead to this key, which may not exist."""
        return self.directory / f"{self.stem}{ROTATIONS_SUFFIX}"


def generations(role: Role, directory: Path) -> tuple[Generation, ...]:
    """Return a holder's keys, the oldest first.

    A first private key without its public half counts, an empty file in its place does not: it is
    what is left where a disk was full.

    Raises:
        KeyFileError: The folder exists and cannot be listed, or others may write to it.
    """
    refuse_open(directory)
    pattern = re.compile(rf"{role}(?:-([1-9][0-9]{{0,3}}))?\.pub")
    try:
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        numbers = {int(found[1] or 1) for name in names if (found := pattern.fullmatch(name))}
        if f"{role}.key" in names and (directory / f"{role}.key").stat().st_size > 0:
            numbers.add(1)
    except OSError as error:
        raise KeyFileError(f"{directory}: cannot be listed ({error.strerror})") from error
    return tuple(Generation(role, number, directory) for number in sorted(numbers))


def own_fingerprints(role: Role, directory: Path) -> frozenset[str]:
    """Return the fingerprints of a holder's keys, replaced and revoked ones among them.

    Raises:
        KeyFileError: The folder or a public key in it cannot be read.
    """
    return frozenset(map(fingerprint, own_keys(role, directory)))


def own_keys(role: Role, directory: Path) -> tuple[ec.EllipticCurvePublicKey, ...]:
    """Return a holder's public keys, the oldest first, replaced and revoked ones among them.

    Raises:
        KeyFileError: The folder or a public key in it cannot be read.
    """
    found = (entry.public for entry in generations(role, directory))
    return tuple(load_public(path) for path in found if path.exists())


def current(role: Role, directory: Path) -> Generation | None:
    """Return the key that signs: the newest, or None if there is none."""
    found = generations(role, directory)
    return found[-1] if found else None


def new(
    role: Role, directory: Path, passphrase: str | None = None, days: int = VALID_DAYS
) -> KeyFiles:
    """Make a first key, or a fresh start after the last one was revoked or its private half lost.

    Args:
        role: "trainer" or "auditor".
        directory: The key folder; made with mode 0700 if it does not exist.
        passphrase: Encrypts the private key if given.
        days: How long its certificate is valid.

    Raises:
        KeyFileError: There is a key that could sign or be put back, or the folder cannot be
            written.
    """
    if role not in ROLES:
        raise KeyFileError(f"role {role!r}: must be one of {', '.join(ROLES)}")
    number = _free_number(role, directory)
    private = ec.generate_private_key(ec.SECP256R1())
    chain = (certificates.self_signed(private, role, days),)
    return _store(Generation(role, number, directory), private, passphrase, chain, ())


def bring(
    role: Role,
    directory: Path,
    key_file: Path,
    certificate_file: Path | None = None,
    passphrase: str | None = None,
) -> KeyFiles:
    """Copy an existing key, with its chain of certificates if there is one, into the key folder.

    Args:
        role: "trainer" or "auditor".
        directory: The key folder.
        key_file: PKCS#8 PEM, ECDSA P-256, readable by its owner only.
        certificate_file: PEM, the key's own certificate first, then those above it.
        passphrase: Of the key file; the copy is encrypted with it too.

    Raises:
        KeyFileError: The key or the chain cannot be used, or there is a key already.
    """
    number = _free_number(role, directory)
    private = load_private(key_file, passphrase)
    if certificate_file is None:
        chain: Chain = (certificates.self_signed(private, role),)
    else:
        chain = load_chain(certificate_file)
        check_chain(chain, private.public_key(), str(certificate_file))
        problem = certificates.expiry_problem(chain, certificates.now())
        if problem:
            raise KeyFileError(f"{certificate_file}: {problem}")
    return _store(Generation(role, number, directory), private, passphrase, chain, ())


def rotate(
    role: Role,
    directory: Path,
    passphrase: str | None = None,
    new_passphrase: str | None = None,
    days: int = VALID_DAYS,
    authority: Authority | None = None,
) -> KeyFiles:
    """Make a successor; the present key and the successor both sign that it follows.

    Args:
        role: "trainer" or "auditor".
        directory: The key folder.
        passphrase: Of the present key.
        new_passphrase: Encrypts the successor if given.
        days: How long the successor's certificate is valid.
        authority: Timestamps the statement, so that it holds even if the present key is revoked
            later.

    Raises:
        KeyFileError: There is no key, it is revoked, or the successor cannot be written.
        TimestampError: The authority does not answer; nothing was written.
    """
    present = current(role, directory)
    if present is None:
        raise KeyFileError(f"{directory}: no {role} key to replace; make one with: keys new")
    private = load_private(present.private, passphrase)
    revoked = own_revocations(directory).get(fingerprint(private.public_key()))
    if revoked is not None:
        raise KeyFileError(
            f"{present.private}: is revoked, so it cannot vouch for a successor; make a fresh key "
            f"with: dpfedadamw keys new --role {role}"
        )
    path = present.rotations
    earlier = consenting(statements.rotations_of(path), private, str(path))
    if len(earlier) >= statements.MOST_STATEMENTS:
        raise KeyFileError(f"{present.rotations}: no more than {len(earlier)} rotations")
    following = ec.generate_private_key(ec.SECP256R1())
    envelope = statements.write_rotation(role, private, following.public_key(), certificates.now())
    stamp = authority.stamp(envelope) if authority is not None else None
    chain = (certificates.self_signed(following, role, days),)
    target = Generation(role, _unused(role, directory, present.number + 1), directory)
    step = statements.consented(Sealed(envelope, stamp), following, str(target.rotations))
    return _store(target, following, new_passphrase, chain, (*earlier, step))


def revoke(
    role: Role,
    directory: Path,
    revoked: ec.EllipticCurvePublicKey | None,
    reason: str,
    since: datetime | None = None,
    passphrase: str | None = None,
) -> tuple[Path, Revocation]:
    """Say, signed by the present key, that a key of this holder is not to be trusted.

    Args:
        role: "trainer" or "auditor".
        directory: The key folder; the entry is added to its list.
        revoked: The key; the present one if not given.
        reason: One of `statements.REASONS`.
        since: From when on; now if not given, never later.
        passphrase: Of the present key.

    Returns:
        The list's path and the new entry.

    Raises:
        KeyFileError: There is no key, the present one has no say over the revoked one, or the list
            is full.
        SourceError: The folder cannot be held or written.
    """
    present = current(role, directory)
    if present is None:
        raise KeyFileError(f"{directory}: no {role} key")
    if reason not in statements.REASONS:
        raise KeyFileError(f"reason {reason!r}: must be one of {', '.join(statements.REASONS)}")
    moment = certificates.now()
    if since is not None and since > moment:
        raise KeyFileError(f"since: {statements.written_time(since)} lies in the future")
    signer, key, rotations = _who_may_revoke(present, revoked, passphrase)
    issuer = fingerprint(signer.public_key())
    entry = Revocation(role, fingerprint(key), since or moment, reason, issuer)
    envelope = statements.write_revocation(entry, key, signer, rotations, moment)
    path = list_path(directory, role)
    statements.read_revocation(envelope, str(path))
    with alone(directory):
        known = own_revocations(directory).get(entry.key)
        if known is not None and known.since <= entry.since:
            raise KeyFileError(
                f"{entry.key}: is revoked already, since {statements.written_time(known.since)}"
            )
        before = read_entries(path) if path.exists() else ()
        data = statements.write_bundle("revocations", (*before, Sealed(envelope)))
        # No reader takes more: the folder's own commands would then refuse the whole list.
        most, most_bytes = statements.MOST_STATEMENTS, statements.MOST_LIST_BYTES
        if len(before) >= most or len(data) > most_bytes:
            raise KeyFileError(
                f"{path}: holds {len(before)} revocations, and a list holds at most {most} in "
                f"{most_bytes:,} bytes; nothing was written. Tell the readers of {entry.key} that "
                "it is revoked"
            )
        write_atomic(path, data)
    return path, entry


def _who_may_revoke(
    present: Generation, revoked: ec.EllipticCurvePublicKey | None, passphrase: str | None
) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey, tuple[Sealed, ...]]:
    """Return the key that signs, the key it revokes, and the rotations from the second to it.

    The present key signs where it followed from the revoked one; else the revoked key itself.

    Raises:
        KeyFileError: Neither can.
    """
    private = load_private(present.private, passphrase)
    if revoked is None or fingerprint(revoked) == fingerprint(private.public_key()):
        return private, private.public_key(), ()
    chain = statements.rotations_of(present.rotations)
    for index, sealed in enumerate(chain):
        try:
            statements.read_rotation(sealed, revoked, str(present.rotations))
        except EnvelopeError:
            continue
        return private, revoked, chain[index:]
    for generation in generations(present.role, present.directory):
        if fingerprint(load_public(generation.public)) == fingerprint(revoked):
            return load_private(generation.private, passphrase), revoked, ()
    raise KeyFileError(
        f"{fingerprint(revoked)}: is no {present.role} key of {present.directory}, and none there "
        "followed from it, so none has a say over it"
    )


def _free_number(role: Role, directory: Path) -> int:
    present = current(role, directory)
    if present is None:
        return _unused(role, directory, 1)
    if not _is_empty(present.private):
        revoked = own_revocations(directory)
        if not present.public.exists() or fingerprint(load_public(present.public)) not in revoked:
            raise KeyFileError(
                f"{present.private}: exists and is never overwritten; replace it with: "
                f"dpfedadamw keys rotate --role {role}"
            )
    return _unused(role, directory, present.number + 1)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _unused(role: Role, directory: Path, first: int) -> int:
    """The next number of which no half of a pair was left behind, where a process was killed.

    A whole trainer.key without its public half is no such thing: it counts, or is being made by
    another process right now.
    """
    number = first
    while True:
        entry = Generation(role, number, directory)
        left = os.path.lexists(entry.private) and not os.path.lexists(entry.public)
        if not left or (number == 1 and not _is_empty(entry.private)):
            return number
        number += 1


def _store(
    target: Generation,
    private: ec.EllipticCurvePrivateKey,
    passphrase: str | None,
    chain: Chain,
    rotations: tuple[Sealed, ...],
) -> KeyFiles:
    beside = {target.certificate.name: certificates.chain_pem(chain)}
    if rotations:
        beside[target.rotations.name] = statements.write_bundle("rotations", rotations)
    return store(private, target.directory, target.stem, passphrase, beside)
