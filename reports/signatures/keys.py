"""Signing keys: ECDSA on P-256, one for the trainer and one for the auditor.

Private keys are PKCS#8 PEM files that only their owner may read; public keys are PEM files in
the same folder. A key is never overwritten: what it signed must stay verifiable.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from audit.untrusted.files import FileError, Refusal, create, read_chosen
from reports.errors import KeyFileError

Role = Literal["trainer", "auditor"]
ROLES: tuple[Role, ...] = ("trainer", "auditor")
_KEY_LIMIT = 16_384
# What OpenSSL takes.
_MOST_SECRET_BYTES = 1_023
# Order of the base point of P-256 (SEC 2, section 2.4.2): s and n - s sign the same.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_REASONS = {
    Refusal.MISSING: "no such key",
    Refusal.NOT_PLAIN: "is not a regular file",
    Refusal.CANNOT_OPEN: "cannot be read ({})",
}


@dataclass(frozen=True)
class KeyFiles:
    """A new key pair.

    Attributes:
        private: PKCS#8 PEM file, mode 0600.
        public: SubjectPublicKeyInfo PEM file.
        fingerprint: What to tell others, over another channel.
    """

    private: Path
    public: Path
    fingerprint: str


def default_directory() -> Path:
    """Return the folder for keys: $DPFEDADAMW_KEYS, or dpfedadamw/keys in the XDG config folder.

    Raises:
        KeyFileError: There is no home folder that it could be in.
    """
    chosen = os.environ.get("DPFEDADAMW_KEYS")
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser()
        # The XDG specification ignores relative values.
        root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".config"
    except RuntimeError as error:
        place = f"DPFEDADAMW_KEYS={chosen}" if chosen else "keys"
        raise KeyFileError(
            f"{place}: there is no such home folder; set DPFEDADAMW_KEYS to a folder's whole path"
        ) from error
    return root / "dpfedadamw" / "keys"


def refuse_open(directory: Path) -> None:
    """Refuse a key folder to which others may write: they could change whom its owner trusts.

    Raises:
        KeyFileError: They may, or it belongs to another user, who may take that right at any time.
    """
    try:
        found = directory.stat()
    except OSError:
        return  # Whoever needs it says that it is missing or cannot be read.
    # Where there are no users, owner and bits of others say nothing.
    if os.name != "posix":
        return
    if found.st_uid not in (0, os.geteuid()):
        raise KeyFileError(
            f"{directory}: belongs to another user (number {found.st_uid}), who could bring in "
            "keys and take lists of revoked ones away. Use a folder of your own"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        raise KeyFileError(
            f"{directory}: others may write to it (mode {mode:04o}), so they could bring in keys "
            "and take lists of revoked ones away. Run chmod 700 on it and look at what it holds"
        )


def secret_bytes(passphrase: str | None) -> bytes | None:
    """Return the bytes by which a passphrase protects a key, UTF-8; None for none.

    Raises:
        KeyFileError: It is no text in UTF-8, or has more than 1,023 bytes.
    """
    if passphrase is None:
        return None
    try:
        secret = passphrase.encode("utf-8")
    except UnicodeEncodeError as error:
        raise KeyFileError("passphrase: is no text in UTF-8; choose another one") from error
    if len(secret) > _MOST_SECRET_BYTES:
        raise KeyFileError(
            f"passphrase: has {len(secret):,} bytes; at most {_MOST_SECRET_BYTES:,} can protect "
            "a key"
        )
    return secret


def store(
    private: ec.EllipticCurvePrivateKey,
    directory: Path,
    stem: str,
    passphrase: str | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> KeyFiles:
    """Write a key pair and what belongs to it, all or nothing, and never over an existing file.

    Args:
        private: The key.
        directory: Where to; made with mode 0700 if it does not exist.
        stem: The files are STEM.key and STEM.pub.
        passphrase: Encrypts the private key if given.
        beside: More public files, by their names. STEM.pub is written last: a key counts only
            once it is there.

    Raises:
        KeyFileError: One of the files exists, the passphrase is empty or none that a key can have,
            or the folder cannot be written, or can be by others.
    """
    if passphrase == "":
        raise KeyFileError("passphrase: is empty; give one, or none at all")
    secret = secret_bytes(passphrase)
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(secret)
        if secret is not None
        else serialization.NoEncryption()
    )
    private_pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    files = {
        f"{stem}.key": (private_pem, 0o600),
        **{name: (data, 0o644) for name, data in (beside or {}).items()},
        f"{stem}.pub": (public_pem(private.public_key()), 0o644),
    }
    made: list[Path] = []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_open(directory)
        for name, (data, mode) in files.items():
            try:
                create(directory / name, data, mode)
            except FileExistsError:
                # Who finds a private key without its public half writes that (`complete`).
                if name != f"{stem}.pub" or _read(directory / name, secret=False) != data:
                    raise
            made.append(directory / name)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise KeyFileError(
                f"{error.filename}: exists and is never overwritten; choose another folder"
            ) from error
        raise KeyFileError(f"{directory}: no key can be written ({error.strerror})") from error
    return KeyFiles(
        directory / f"{stem}.key", directory / f"{stem}.pub", fingerprint(private.public_key())
    )


def complete(private: Path, public: ec.EllipticCurvePublicKey) -> None:
    """Write the public half of a stored key where the process that made the pair was killed before.

    Args:
        private: The private key's file.
        public: Its public key.

    Raises:
        KeyFileError: It is missing and cannot be written.
    """
    path = private.with_suffix(".pub")
    try:
        if not os.path.lexists(path):
            create(path, public_pem(public), 0o644)
    except FileExistsError:
        pass  # By whoever made the key, or by another process that found it so.
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written ({error.strerror})") from error


def _read(path: Path, *, secret: bool) -> bytes:
    try:
        data, mode = read_chosen(path, _KEY_LIMIT)
    except FileError as error:
        raise KeyFileError(f"{path}: {_REASONS[error.refusal].format(error.detail)}") from error
    # Where there are no users, the bits of others say nothing.
    if secret and mode & 0o077 and os.name == "posix":
        raise KeyFileError(
            f"{path}: others may read it (mode {mode:04o}); "
            "run chmod 600 on it, and make a new key if someone may have copied it"
        )
    return data


def load_private(path: Path, passphrase: str | None = None) -> ec.EllipticCurvePrivateKey:
    """Load a private key.

    Args:
        path: PKCS#8 PEM file that nobody but its owner may read.
        passphrase: Needed if, and only if, the key is encrypted.

    Raises:
        KeyFileError: The file is missing, readable for others, encrypted with another passphrase,
        or
            not a P-256 key.
    """
    data = _read(path, secret=True)
    if not data:
        raise KeyFileError(
            f"{path}: is empty, so it holds no key; put a copy of the key back, or make another "
            "with: dpfedadamw keys new"
        )
    secret = secret_bytes(passphrase)
    try:
        key = serialization.load_pem_private_key(data, secret)
    except TypeError as error:
        needed = "a passphrase is needed" if secret is None else "it has no passphrase; give none"
        raise KeyFileError(f"{path}: {needed}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if b"ENCRYPTED" in data and secret is not None:
            raise KeyFileError(f"{path}: wrong passphrase, or a damaged key") from error
        raise KeyFileError(f"{path}: no private key in PKCS#8 PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise KeyFileError(f"{path}: not a P-256 key; make one with this package")
    return key


def load_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Load a public key.

    Raises:
        KeyFileError: The file is missing or holds no P-256 public key in PEM form.
    """
    return parse_public(_read(path, secret=False), str(path))


def parse_public(data: bytes, where: str) -> ec.EllipticCurvePublicKey:
    """Return the P-256 public key in PEM bytes; `where` names them in the error.

    Raises:
        KeyFileError: The bytes hold no such key.
    """
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{where}: no public key in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise KeyFileError(f"{where}: not a P-256 public key")
    return key


def sign(private: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Return the ECDSA signature (SHA-256, DER) of bytes, of the two equivalent ones the lower.

    Anyone who has (r, s) can write down (r, n - s), which holds as well. One form only is made, so
    that the other can be refused (`has_low_s`) and no byte of an envelope changes unnoticed.
    """
    r, s = decode_dss_signature(private.sign(data, ec.ECDSA(hashes.SHA256())))
    return encode_dss_signature(r, min(s, _ORDER - s))


def has_low_s(signature: bytes) -> bool:
    """Return whether a DER signature is the one of its two forms that `sign` makes.

    Raises:
        ValueError: The bytes are no such signature.
    """
    return decode_dss_signature(signature)[1] <= _ORDER // 2


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as PEM SubjectPublicKeyInfo."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def fingerprint(public: ec.EllipticCurvePublicKey) -> str:
    """Return "SHA256:" and the unpadded base64 of the SHA-256 of the DER SubjectPublicKeyInfo."""
    return "SHA256:" + base64.b64encode(_digest(public)).decode("ascii").rstrip("=")


def public_fingerprint(path: Path) -> str:
    """Return the fingerprint of a public key of any kind, or of the key in a certificate.

    Raises:
        KeyFileError: The file is missing, or holds neither in PEM form.
    """
    data = _read(path, secret=False)
    try:
        if b"BEGIN CERTIFICATE" in data:
            public: Any = x509.load_pem_x509_certificate(data).public_key()
        else:
            public = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path}: holds no public key or certificate in PEM form") from error
    return fingerprint(public)


def fingerprint_digest(public: ec.EllipticCurvePublicKey) -> str:
    """Return the same digest as `fingerprint` in 64 hexadecimal digits, for an attestation."""
    return _digest(public).hex()


def _digest(public: ec.EllipticCurvePublicKey) -> bytes:
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).digest()
