"""Transparency logs: a proof that an append-only, public log holds an envelope, checked offline.

A log that everybody can read shows all intents of a trainer, also those that were put to other
auditors. What its client hands out is a C2SP tlog-proof: place, path and a checkpoint that the log
signed. The path is checked always; the log is trusted only under a key that the reader brings.

Sources: c2sp.org/tlog-proof@v1, c2sp.org/tlog-checkpoint, c2sp.org/signed-note (Ed25519 alone);
tree and path are RFC 9162, section 2.1.3.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from audit.untrusted.merkle import DIGEST_BYTES, leaf_digest, path_length, root_above
from reports.errors import EnvelopeError, KeyFileError, SourceError
from reports.files import clean, read_bytes

MOST_BYTES = 65_536
_FORMAT = "c2sp.org/tlog-proof@v1"
_ED25519 = b"\x01"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class LogKey:
    """A log's public key, as the reader was given it.

    Attributes:
        name: The log's.
        key: Ed25519.
        identifier: Four bytes by which signatures name it.
    """

    name: str
    key: Ed25519PublicKey
    identifier: bytes


@dataclass(frozen=True)
class Inclusion:
    """That a log holds some bytes.

    Attributes:
        origin: The log's name, as its checkpoint says.
        index: Place of the bytes in it, from 0.
        size: How many entries it had.
        trusted: Whether a key that the reader gave signed the checkpoint.
    """

    origin: str
    index: int
    size: int
    trusted: bool


def load_log_keys(paths: Iterable[Path]) -> tuple[LogKey, ...]:
    """Read logs' keys: files with a line NAME+HASH+KEY each (c2sp.org/signed-note).

    Raises:
        KeyFileError: A file cannot be read, or holds no such line.
    """
    found = []
    for path in paths:
        try:
            lines = read_bytes(path, MOST_BYTES).decode("utf-8").split()
        except (SourceError, UnicodeDecodeError) as error:
            raise KeyFileError(f"{path}: cannot be read as a log's key") from error
        if not lines:
            raise KeyFileError(f"{path}: holds no log's key, NAME+HASH+KEY")
        found += [_log_key(line, path) for line in lines]
    return tuple(found)


def check(proof: bytes, data: bytes, keys: Iterable[LogKey], where: str) -> Inclusion:
    """Check that a proof is one for these bytes.

    Args:
        proof: A tlog-proof.
        data: What the log must hold.
        keys: Logs that the reader trusts.
        where: Named in the error.

    Raises:
        EnvelopeError: It is no proof, or one for other bytes.
    """
    try:
        head, _, checkpoint = proof.decode("utf-8").partition("\n\n")
        first, *lines = head.split("\n")
        if lines and lines[0].startswith("extra "):
            del lines[0]
        if first != _FORMAT or not lines or not lines[0].startswith("index "):
            raise ValueError
        index = _number(lines[0].removeprefix("index "))
        path = [_decoded(line) for line in lines[1:]]
        body, mark, signatures = checkpoint.partition("\n\n")
        origin, size, root, *_ = body.split("\n")
        entries, expected = _number(size), _decoded(root)
        fits = index < entries and len(path) == path_length(index, entries)
        if not mark or not fits or any(len(one) != DIGEST_BYTES for one in path):
            raise ValueError
    except (ValueError, binascii.Error) as error:
        raise EnvelopeError(f"{where}: is no proof of inclusion ({_FORMAT})") from error
    if root_above(leaf_digest(data), index, entries, path) != expected:
        raise EnvelopeError(f"{where}: proves that the log holds something else")
    signed = f"{body}\n".encode()
    trusted = any(
        key.name == origin and _signed_by(key, signed, signatures.split("\n")) for key in keys
    )
    return Inclusion(clean(origin, 120), index, entries, trusted)


def _signed_by(key: LogKey, signed: bytes, lines: list[str]) -> bool:
    """Whether one of a note's signatures is by a key."""
    for line in lines:
        mark, _, rest = line.partition(" ")
        name, _, encoded = rest.rpartition(" ")
        if mark != "—" or name != key.name:
            continue
        try:
            content = _decoded(encoded)
            if content[:4] == key.identifier:
                key.key.verify(content[4:], signed)
                return True
        except (binascii.Error, ValueError, InvalidSignature):
            continue
    return False


def _log_key(line: str, path: Path) -> LogKey:
    try:
        name, identifier, encoded = line.split("+", 2)
        content = _decoded(encoded)
        made = hashlib.sha256(name.encode() + b"\n" + content).digest()[:4]
        if not name or content[:1] != _ED25519 or made.hex() != identifier:
            raise ValueError
        return LogKey(name, Ed25519PublicKey.from_public_bytes(content[1:]), made)
    except (ValueError, binascii.Error) as error:
        raise KeyFileError(f"{path}: holds no Ed25519 key of a log, NAME+HASH+KEY") from error


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return int(text)
