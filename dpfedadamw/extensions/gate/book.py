"""The gate's ledger: what left the site, charged before its noise exists, and no way back.

    LEDGER/ledger.jsonl        the header, one line a charge ("spend"), one a stored reply
    LEDGER/head.json           how far the ledger was written, signed
    LEDGER/replies/            the newest replies, to be sent again byte for byte
    LEDGER/gate.pub            the public key, for auditors
    LEDGER/refusals.json       how often was refused, by day and kind; counted, not signed
    ANCHOR                     the same signed head at a second place

A ledger that is shorter than its head or its anchor says, or that differs from it, was rolled back;
the gate does not start on it. One may be longer, because a crash can come between a line and its
head: the line counts, and is signed when the ledger is next opened.

Every operation locks the folder and reads both heads, and of the ledger what was written since the
heads that this process last saw. So the gates of several frameworks, each a process of its own,
spend one budget, and an operation takes the same time whatever the ledger's length.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import PrivacyError
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.settings import Settings
from dpfedadamw.privacy.ledger import Ledger, Spend, extended
from dpfedadamw.storage.disk import (
    DISK,
    PRIVATE_MODE,
    PUBLIC_MODE,
    make_folders,
    write_atomically,
    write_json,
)
from dpfedadamw.storage.foreign import parse
from dpfedadamw.storage.lock import HeldError, LockedError, RunLock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

HEADER, CHARGE, REPLY = "gate", "spend", "reply"
FORMAT = 1
_TYPE = "urn:dpfedadamw:attestation:gate:v1"
_KEY = "gate"
# Replies that are kept: a request is asked again within a round or two.
_KEPT = 16
_PATIENCE_SECONDS = 60.0
# A job waits while its refusal is counted.
_BRIEFLY = 1.0
_SUBJECT, _REFUSALS = "ledger.jsonl", "refusals.json"


@dataclass(frozen=True)
class Head:
    """How far a ledger was written.

    Attributes:
        size: Its bytes.
        digest: Their sha256, hex.
    """

    size: int
    digest: str


@dataclass(frozen=True)
class Key:
    """The key that signs heads, of one user on one machine."""

    private: ec.EllipticCurvePrivateKey
    fingerprint: str


def key_path() -> Path:
    """Where the gate's private key is: gate.key in the folder of keys."""
    from reports.signatures.keys import default_directory

    return default_directory() / f"{_KEY}.key"


def load_key(make: bool = False) -> Key:
    """The gate's key.

    Args:
        make: Whether to make one where there is none.

    Raises:
        GateError: If it cannot be read.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    from reports.errors import KeyFileError
    from reports.signatures import keys

    path = key_path()
    try:
        if make and not path.exists():
            keys.store(ec.generate_private_key(ec.SECP256R1()), path.parent, _KEY)
        private = keys.load_private(path)
    except KeyFileError as error:
        raise GateError(
            f"{error}; the gate signs with it: put it back, or set DPFEDADAMW_KEYS to its folder"
        ) from error
    return Key(private, keys.fingerprint(private.public_key()))


def read_head(path: Path, public: ec.EllipticCurvePublicKey) -> Head:
    """The signed head in a file.

    Raises:
        GateError: If it is missing, damaged, or not signed by this key.
    """
    from reports.errors import EnvelopeError
    from reports.signatures import dsse

    try:
        envelope = dsse.parse_envelope(DISK.read(path, 1 << 20), str(path))
        dsse.check_signature(envelope, public, str(path))
        statement = dsse.parse_statement(envelope.payload, _TYPE, str(path))
        size = statement.predicate.get("bytes")
        if list(statement.subjects) != [_SUBJECT] or type(size) is not int or size < 0:
            raise GateError(f"{path}: is no head of a gate's ledger; put back the one that was")
    except EnvelopeError as error:
        raise GateError(f"{error}; put back the head that the gate wrote") from error
    except OSError as error:
        raise GateError(
            f"{path}: the signed head cannot be read ({error.strerror}); put it back: without it "
            "a ledger that was rolled back cannot be told from this one"
        ) from error
    return Head(size, statement.subjects[_SUBJECT][1])


def refuse_rollback(content: bytes, head: Head, ledger: Path, where: Path | str) -> None:
    """Refuse a ledger that does not begin with what a head says.

    Raises:
        GateError: If it does not.
    """
    if hashlib.sha256(content[: head.size]).hexdigest() != head.digest:
        raise GateError(
            f"{ledger}: was rolled back or changed: {where} says that {head.size} bytes were "
            f"written, and they are not there; put the newest ledger back"
        )


class _Lines(Ledger):
    """The ledger, and what another process has added to it."""

    def follow(self, added: bytes) -> None:
        """Take in whole lines that follow those that are known.

        Raises:
            PrivacyError: If one does not continue the chain.
        """
        for line in added.split(b"\n")[:-1]:
            entry = self._entry(line)
            if entry is None:
                raise PrivacyError(
                    f"{self._path}: the hash chain is broken behind byte {self.size}; "
                    "the file was changed"
                )
            self.entries.append(Spend(entry) if entry["kind"] == CHARGE else entry)
            self._previous = hashlib.sha256(line).hexdigest()
            self.history = extended(self.history, entry)
            self.size += len(line) + 1


class Book:
    """A ledger as one process knows it; only `opened` and `begin` make one, under its lock."""

    def __init__(self, settings: Settings, key: Key, synced: int | None = None) -> None:
        self._settings = settings
        self._key = key
        self._path = settings.ledger / _SUBJECT
        self._ledger = _Lines(self._path, synced=synced)
        self._digest = hashlib.sha256(DISK.read(self._path))
        self._releases = 0
        self._spent: Counter[float] = Counter()
        self._asked: dict[tuple[str, str, str], list[int]] = {}
        self._replies: dict[int, str] = {}
        self._take_in(0)

    @property
    def first(self) -> Mapping[str, Any]:
        """The ledger's first line."""
        return self._ledger.entries[0] if self._ledger.entries else {}

    def __len__(self) -> int:
        """How many lines the ledger has."""
        return len(self._ledger.entries)

    @property
    def head(self) -> Head:
        """How far the ledger goes, as this process knows it."""
        return Head(self._ledger.size, self._digest.hexdigest())

    @property
    def spent(self) -> Mapping[float, int]:
        """How many releases were charged with each σ."""
        return self._spent

    @property
    def history(self) -> bytes:
        """Digest of all charges, to which noise is bound."""
        return self._ledger.history

    def charge(self, fields: Mapping[str, Any]) -> int:
        """Write a charge, and return its number; it is on the disk, signed, when this returns."""
        release = self._releases + 1
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        self._append(CHARGE, {"release": release, "time": now, **fields})
        return release

    def keep(self, release: int, reply: bytes) -> None:
        """Store a reply that was paid for, so that it can be sent again."""
        folder = self._settings.ledger / "replies"
        make_folders(folder)
        write_atomically(_reply(folder, release), reply, PRIVATE_MODE)
        self._append(REPLY, {"release": release, "sha256": hashlib.sha256(reply).hexdigest()})
        with contextlib.suppress(FileNotFoundError):
            DISK.remove(_reply(folder, release - _KEPT))

    def kept(self, framework: str, job: str, request: str) -> bytes | None:
        """The stored reply to a request; None if there is none, or it is not as it was stored."""
        for release in reversed(self._asked.get((framework, job, request), [])):
            if release not in self._replies:
                continue
            try:
                reply = DISK.read(_reply(self._settings.ledger / "replies", release))
            except OSError:
                continue
            if hashlib.sha256(reply).hexdigest() == self._replies[release]:
                return reply
        return None

    def sign(self) -> None:
        """Sign how far the ledger goes, at both places."""
        from reports.signatures import dsse

        statement = dsse.Statement(
            {_SUBJECT: (dsse.SHA256, self.head.digest)},
            _TYPE,
            {"bytes": self.head.size, "charges": self._releases},
        )
        sealed = dsse.seal(dsse.write_statement(statement), self._key.private)
        for path in (self._settings.ledger / "head.json", self._settings.anchor):
            write_atomically(path, sealed, PUBLIC_MODE)

    def follow(self, head: Head) -> bool:
        """Take in what was written up to a signed head; False if it does not continue this book."""
        before = self.head.size
        if head.size < before or DISK.size(self._path) != head.size:
            return False
        added = _bytes_from(self._path, before)
        digest = self._digest.copy()
        digest.update(added)
        if digest.hexdigest() != head.digest:
            return False
        if added:
            known = len(self._ledger.entries)
            self._ledger.follow(added)
            self._digest = digest
            self._take_in(known)
        return True

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        before, known = self._ledger.size, len(self._ledger.entries)
        self._ledger.append(kind, fields)
        self._digest.update(_bytes_from(self._path, before))
        self._take_in(known)
        self.sign()

    def _take_in(self, known: int) -> None:
        """Count the entries behind those that are known.

        Raises:
            GateError: If a charge names no framework, as earlier versions wrote it.
        """
        for entry in self._ledger.entries[known:]:
            if entry["kind"] == CHARGE:
                if "framework" not in entry:
                    raise GateError(
                        f"{self._path}: an earlier version wrote it, without the framework of each "
                        "release; keep it, and begin another ledger with what is left of the budget"
                    )
                self._releases += 1
                self._spent[entry["noise_multiplier"]] += 1
                asked = entry["framework"], entry["job"], entry["request"]
                self._asked.setdefault(asked, []).append(entry["release"])
            elif entry["kind"] == REPLY:
                self._replies[entry["release"]] = entry["sha256"]


def _bytes_from(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read()


@contextlib.contextmanager
def opened(
    settings: Settings, key: Key, known: Book | None = None, seen: Head | None = None
) -> Iterator[Book]:
    """Lock the ledger and read it.

    Args:
        settings: Where it is, and what it must say.
        key: The key that signs its heads.
        known: The book of this process's last operation; only what was added since is read. What
            was changed in place before that is found by `gate verify`, and when a gate is opened.
        seen: How far this process has seen it written, if the book itself is lost.

    Raises:
        GateError: If it is not there, damaged, rolled back, held by another process for a minute,
            of other settings, or on a disk that fails.
    """
    with _told(settings), _locked(settings.ledger):
        path = settings.ledger / _SUBJECT
        heads = settings.ledger / "head.json", settings.anchor
        public = key.private.public_key()
        found = [(where, read_head(where, public)) for where in heads]
        if (
            len({head for _, head in found}) == 1
            and known is not None
            and known.follow(found[0][1])
        ):
            yield known
            return
        content = DISK.read(path)
        for where, head in found:
            refuse_rollback(content, head, path, where)
        if seen is not None:
            refuse_rollback(content, seen, path, "this process")
        synced = max(head.size for _, head in found)
        book = Book(settings, key, synced)
        _refuse_others(settings, key, book.first)
        if len({head for _, head in found}) > 1 or book.head.size > synced:
            book.sign()
        yield book


def begin(settings: Settings, key: Key) -> None:
    """Make a ledger, its head and its anchor, or the rest of them where that failed before.

    Raises:
        GateError: If there is another ledger or anchor already, or they cannot be written.
    """
    for path in (settings.ledger / _SUBJECT, settings.anchor):
        if path.exists() and not _is_begun(settings, key):
            raise GateError(
                f"{path}: exists, so this gate was begun before; its budget is spent once, and a "
                "gate with a new ledger would spend it again"
            )
    from reports.signatures import keys

    with _told(settings):
        make_folders(settings.ledger)
        make_folders(settings.anchor.parent)
        with _locked(settings.ledger):
            public = keys.public_pem(key.private.public_key())
            write_atomically(settings.ledger / "gate.pub", public, PUBLIC_MODE)
            # Empty, or with its header: then only the heads are missing.
            begun = Book(settings, key)
            if begun.first:
                begun.sign()
            else:
                begun._append(HEADER, header(settings, key.fingerprint))


def _is_begun(settings: Settings, key: Key) -> bool:
    """Whether a first `begin` by this key was cut off after the ledger's header.

    Nothing was charged: there is no anchor, without which no gate opens, or it is of that header.
    """
    if not (settings.ledger / _SUBJECT).exists():
        return False
    with _told(settings), _locked(settings.ledger):
        found = Book(settings, key)
        if settings.anchor.exists():
            anchored = read_head(settings.anchor, key.private.public_key())
            if anchored != found.head:
                return False
        told = header(settings, key.fingerprint)
        return len(found) == 1 and all(found.first.get(name) == one for name, one in told.items())


def count_refusal(settings: Settings, kind: str) -> None:
    """Count one refusal of today; it stays uncounted if the disk fails or the ledger is held."""
    path, today = settings.ledger / _REFUSALS, f"{datetime.now(UTC):%Y-%m-%d}"
    with contextlib.suppress(GateError, OSError), _locked(settings.ledger, _BRIEFLY):
        found = refusals(settings)
        of_day = found.setdefault(today, {})
        of_day[kind] = of_day.get(kind, 0) + 1
        write_json(path, found)


def refusals(settings: Settings) -> dict[str, dict[str, int]]:
    """How often was refused, by day (ISO 8601) and kind; empty where nothing was counted.

    Raises:
        GateError: If the file is no such count.
    """
    path = settings.ledger / _REFUSALS
    if not DISK.is_file(path):
        return {}
    try:
        found = parse(DISK.read(path), str(path))
        return {
            f"{date.fromisoformat(day)}": {str(kind): int(count) for kind, count in kinds.items()}
            for day, kinds in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise GateError(f"{path}: is no count of refusals; remove it to count from zero") from error


def header(settings: Settings, fingerprint: str) -> dict[str, Any]:
    """What a ledger's first line says, and what its settings must go on saying."""
    return {
        "format": FORMAT,
        "unit": settings.unit,
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "key": fingerprint,
    }


def _refuse_others(settings: Settings, key: Key, first: Mapping[str, Any]) -> None:
    for name, value in header(settings, key.fingerprint).items():
        if first.get("kind") != HEADER or first.get(name) != value:
            where = f"budget.{name}" if name in ("epsilon", "delta") else name
            raise GateError(
                f"{settings.path}: {where}: is {value}, but the ledger was begun with "
                f"{first.get(name)}; a ledger keeps its unit, budget and key: write that value"
            )


@contextlib.contextmanager
def _locked(folder: Path, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
    end = time.monotonic() + patience
    while True:
        try:
            lock = RunLock(folder)
            break
        except HeldError as error:
            if time.monotonic() > end:
                raise GateError(
                    f"{folder}: another process has held the gate's ledger for "
                    f"{patience:.0f} seconds; end it, or wait"
                ) from error
            time.sleep(0.01)
        except LockedError as error:
            raise GateError(str(error)) from error
    with lock:
        yield


@contextlib.contextmanager
def _told(settings: Settings) -> Iterator[None]:
    """Turn what the disk and the chain say into a line for the operator."""
    try:
        yield
    except PrivacyError as error:
        said = str(error).rpartition(";")[0] or str(error)
        raise GateError(f"{said}; put the newest ledger back") from error
    except FileNotFoundError as error:
        raise GateError(
            f"{error.filename}: is missing; begin a gate with: dpfedadamw gate init, or put back "
            f"what {settings.path} names"
        ) from error
    except OSError as error:
        raise GateError(
            f"{error.filename or settings.ledger}: {error.strerror}; nothing is released until the "
            "gate can write there"
        ) from error


def _reply(folder: Path, release: int) -> Path:
    return folder / f"{release:06d}.safetensors"
