"""Records that are read from files: decoded and tokenised once, then mapped into memory.

What was prepared is kept on disk for every later run.

An entry is a folder of plain binary files and ``entry.json``, which holds the digest of each. It is
written under another name and then moved into place; a damaged one is detected by its digests and
made again. Records are private: entries are their owner's alone. The folder may be deleted at any
time.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data import hub
from dpfedadamw.data.files import fingerprint
from dpfedadamw.data.preparation import content_bytes, prepare
from dpfedadamw.data.preparation import fingerprint as form_of
from dpfedadamw.data.registry import DATASETS, Part, Prepared, check_pin
from dpfedadamw.data.source import Chunk, Source
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.spec.data_section import DataSpec
from dpfedadamw.storage.disk import write_json

_FORMAT = 2
_BLOCK = 2**20
# How labels are stored that are one class a record; an entry says so of all others.
_CLASSES = np.dtype(np.int64).str, ()


def read(spec: DataSpec, form: Preprocessing) -> Prepared:
    """Records of a publisher's files or of one's own, with the digest of what was read.

    Raises:
        DataError: If they cannot be read, or are others than the spec pins.
    """
    found = _source(spec, form)
    read = fingerprint(found.files, found.root) if found.files else None
    if read is not None and spec.partition.file is None:
        # Refused before an hour is spent on decoding.
        check_pin(spec, read.sha256)
    identity = (spec.dataset, found.options, read.sha256 if read else "", form_of(form))
    ready = prepared(found, identity, form, folder(spec.cache))
    if read is not None:
        read.check_unchanged()
    return ready if read is None else replace(ready, content_sha256=read.sha256)


def _source(spec: DataSpec, preprocessing: Preprocessing) -> Source:
    """Find the data set that a spec names.

    Raises:
        DataError: If it is not there.
    """
    entry = DATASETS[spec.dataset]
    if spec.path is not None and entry.find is not None:
        try:
            return entry.find(Path(spec.path), spec, preprocessing)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"data.path: {spec.path}: cannot be read ({reason})") from None
    if entry.hub is None or spec.revision is None:
        raise DataError(f"data.path: missing; {spec.dataset} is read from a path")
    return hub.source(entry.hub.at(spec.repository, spec.revision))


def folder(wanted: str | None) -> Path:
    """The folder of the cache: the spec's, or the user's own.

    Raises:
        DataError: If there is no home folder that it could be in.
    """
    if wanted is not None:
        return Path(wanted)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        raise DataError(
            "data.cache: you have no home folder; give it a folder, or set XDG_CACHE_HOME"
        ) from None
    return Path(base) / "dpfedadamw"


def prepared(
    source: Source, identity: tuple[str, ...], preprocessing: Preprocessing, parent: Path
) -> Prepared:
    """The prepared records of a source, from the cache or made now.

    Args:
        source: Read only if the cache does not have it.
        identity: All that decides what the entry holds.
        preprocessing: What the model needs.
        parent: Folder of the cache; made if missing.

    Raises:
        DataError: If the source cannot be read or the folder not be written.
    """
    key = hashlib.sha256(json.dumps([_FORMAT, *identity]).encode()).hexdigest()[:32]
    place = parent / key
    found = _open(place)
    if found is not None:
        return found
    try:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = parent / f".{key}-{secrets.token_hex(4)}"
        temporary.mkdir(mode=0o700)
    except OSError as error:
        raise _unwritable(parent, error) from None
    try:
        _write(source, preprocessing, temporary)
        # Another run may have been faster; what it wrote is the same.
        if (faster := _open(place)) is not None:
            return faster
        if place.exists():
            _discard(place)
        temporary.rename(place)
    except OSError as error:
        raise _unwritable(parent, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    made = _open(place)
    if made is None:
        raise DataError(
            f"data.cache: {parent}: what was written there cannot be read back; use another folder"
        )
    return made


def _unwritable(parent: Path, error: OSError) -> DataError:
    return DataError(
        f"data.cache: {parent}: cannot be written ({error.strerror}); give data.cache a folder "
        "with space that you may write to"
    )


def _discard(place: Path) -> None:
    """Move a damaged entry away before it is deleted, so that nobody finds half of one."""
    away = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    place.rename(away)
    shutil.rmtree(away, ignore_errors=True)


class _Writer:
    """Appends to one file of an entry and keeps its digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def append(self, array: NDArray[Any]) -> None:
        content = np.ascontiguousarray(array).tobytes()
        self._file.write(content)
        self._digest.update(content)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def _writer(path: Path) -> Iterator[_Writer]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield _Writer(file)
        file.flush()
        os.fsync(file.fileno())


def _write(source: Source, preprocessing: Preprocessing, entry: Path) -> None:
    reading = source.read()
    content = hashlib.sha256()
    described: dict[str, Any] = {}
    people: dict[str, list[str]] = {}
    largest = 0
    for name, chunks in reading.parts.items():
        with _writer(entry / f"{name}.records") as records, _writer(entry / f"{name}.labels") as to:
            described[name] = _write_part(chunks, preprocessing, name, records, to, content)
        described[name] |= {"records": records.sha256, "labels": to.sha256}
        largest = max(largest, described[name].pop("largest"))
        clients = described[name].pop("clients")
        if clients:
            with _writer(entry / f"{name}.clients") as owners:
                order = {client: number for number, client in enumerate(sorted(set(clients)))}
                owners.append(np.array([order[client] for client in clients], np.int64))
            described[name]["clients"] = owners.sha256
        if named := described[name].pop("people"):
            people[name] = named
    # Numbers alone are kept: whom they stand for, the table says.
    number_of = {one: number for number, one in enumerate(sorted({*chain(*people.values())}))}
    for name, named in people.items():
        with _writer(entry / f"{name}.people") as numbers:
            numbers.append(np.array([number_of[one] for one in named], np.int64))
        described[name]["people"] = numbers.sha256
    shapes = {tuple(part["shape"]) for part in described.values()}
    if len(shapes) > 1:
        raise DataError(
            f"data.path: {source.root}: training and test records have shapes "
            f"{' and '.join(map(str, sorted(shapes)))}; they must agree"
        )
    described_whole: dict[str, Any] = {
        "format": _FORMAT,
        "classes": reading.classes or max(largest + 1, 2),
        "content_sha256": content.hexdigest(),
        "labels": list(reading.labels),
        "parts": described,
    }
    write_json(entry / "entry.json", _sealed(described_whole), 0o600)


def _write_part(
    chunks: Iterator[Chunk],
    preprocessing: Preprocessing,
    name: str,
    records: _Writer,
    labels: _Writer,
    content: Any,
) -> dict[str, Any]:
    """Write one part's chunks; returns what its entry says of it."""
    shape: tuple[int, ...] | None = None
    form: tuple[str, tuple[int, ...]] | None = None
    kind, count, largest = "", 0, 0
    clients: list[str] = []
    people: list[str] = []
    for chunk in chunks:
        values = prepare(chunk.content, preprocessing)
        if shape is not None and (values.shape[1:] != shape or values.dtype.str != kind):
            raise DataError(f"data.path: {name} records differ in shape within the data set")
        shape, kind = values.shape[1:], values.dtype.str
        of_labels = chunk.labels.dtype.str, chunk.labels.shape[1:]
        if form is not None and of_labels != form:
            raise DataError(f"data.path: {name} targets differ in shape within the data set")
        form = of_labels
        records.append(values)
        labels.append(chunk.labels)
        for piece in content_bytes(chunk.content):
            content.update(piece)
        content.update(chunk.labels.tobytes())
        count += len(chunk.labels)
        if form == _CLASSES:
            largest = max(largest, int(chunk.labels.max()))
        clients += chunk.clients or ()
        people += chunk.people or ()
    if shape is None:
        raise DataError(f"data.path: the {name} part holds no records")
    return {
        "count": count,
        "shape": list(shape),
        "dtype": kind,
        "largest": largest,
        "clients": clients,
        "people": people,
        **({"targets": [form[0], list(form[1])]} if form and form != _CLASSES else {}),
    }


def _sealed(description: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(description, sort_keys=True)
    return {**description, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _open(place: Path) -> Prepared | None:
    """The entry at a place, or None if there is none or it is damaged."""
    try:
        status = place.stat()
        if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
            raise DataError(
                f"data.cache: {place}: belongs to another user; give data.cache a folder of your "
                "own"
            )
        described = json.loads((place / "entry.json").read_text(encoding="utf-8"))
        seal = described.pop("sha256")
        if _sealed(described)["sha256"] != seal or described["format"] != _FORMAT:
            return None
        parts = {name: _part(place, name, one) for name, one in described["parts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    labels = tuple(described["labels"])
    return Prepared(parts, described["classes"], described["content_sha256"], labels)


def _part(place: Path, name: str, described: dict[str, Any]) -> Part:
    for file in ("records", "labels", "clients", "people"):
        if file in described and _digest(place / f"{name}.{file}") != described[file]:
            raise ValueError(f"{file} are damaged")
    count, shape = described["count"], tuple(described["shape"])
    values: NDArray[Any] = np.memmap(
        place / f"{name}.records", np.dtype(described["dtype"]), "r", shape=(count, *shape)
    )
    kind, form = described.get("targets", _CLASSES)
    labels = np.fromfile(place / f"{name}.labels", np.dtype(kind)).reshape(count, *form)
    clients, people = (
        np.fromfile(place / f"{name}.{column}", np.int64) if column in described else None
        for column in ("clients", "people")
    )
    return Part(values, labels, clients, people)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
