"""Arrays of your own: an .npz with x_train, y_train, x_test, y_test, read piece by piece."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.files import most_unpacked, opened, where
from dpfedadamw.data.registry import DatasetEntry, register
from dpfedadamw.data.source import Chunk, Images, Numbers, Reading, Source
from dpfedadamw.errors import DataError
from dpfedadamw.spec.data_section import (
    Augmentation,
    CacheFolder,
    DataSpec,
    MostRecordsPerPerson,
    PersonColumn,
)
from dpfedadamw.spec.section import key

_MEMBERS = ("x_train", "y_train", "x_test", "y_test")
_MOST_CLASSES = 1_000_000
# Bytes of one piece of an array.
_PIECE = 2**24


class ArraysSpec(DataSpec, title="Arrays"):
    """Records of your own from an .npz file.

    uint8 means grey levels from 0 to 255, other numbers are used as they stand. With person: NAME,
    the arrays NAME_train and, where test records may be about the same people, NAME_test say whom
    each record is about, in whole numbers or texts.
    """

    key_order: ClassVar[tuple[str, ...]] = ("dataset", "path", "person", "most_records_per_person")

    dataset: Literal["arrays"] = "arrays"
    path: str = key(
        ...,
        "An .npz file with the arrays x_train, y_train, x_test and y_test, numbers only; a "
        "relative path starts at the working directory.",
        title="File",
        min_length=1,
        max_length=4096,
        examples=("records.npz",),
    )
    person: PersonColumn = None
    most_records_per_person: MostRecordsPerPerson = None
    cache: CacheFolder = None
    augmentation: Augmentation = ()


@dataclass(frozen=True)
class _Array:
    """An array in the archive, as its header describes it."""

    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def arrays(path: Path, person: str | None = None) -> Source:
    """The arrays of an .npz file; uint8 records are grey levels, all others stay as they are.

    Args:
        path: The file.
        person: What the arrays that say whom records are about are called, before _train and _test.
    """

    def read() -> Reading:
        place = where(path)
        with _opened(path) as archive:
            found = {name: _header(archive, name, place) for name in _MEMBERS}
            people = {} if person is None else _people(archive, path, person, found)
        for part in ("train", "test"):
            _check_shapes(found[f"x_{part}"].shape, found[f"y_{part}"].shape, part, place)
        one, other = found["x_train"], found["x_test"]
        if one.shape[1:] != other.shape[1:]:
            raise DataError(
                f"{place}: training records have shape {one.shape[1:]}, test records "
                f"{other.shape[1:]}; they must agree"
            )
        parts = {
            part: _chunks(path, found[f"x_{part}"], found[f"y_{part}"], people.get(part))
            for part in ("train", "test")
        }
        return Reading(parts, None)

    return Source(path, (path,), "" if person is None else person, read)


def _people(
    archive: zipfile.ZipFile, path: Path, person: str, found: dict[str, _Array]
) -> dict[str, list[str]]:
    """Whom the records of each part are about; of test records where an array says it."""
    place, people = where(path), {}
    for part in ("train", "test"):
        name = f"{person}_{part}"
        if part == "test" and f"{name}.npy" not in archive.namelist():
            continue
        array, count = _header(archive, name, place, "iuU"), found[f"x_{part}"].shape[0]
        if array.shape != (count,):
            raise DataError(
                f"{place}: {name} has shape {array.shape}; needed is [{count}], a person a record"
            )
        (named,) = _pieces(path, array, count)
        people[part] = [str(one).strip() for one in named.tolist()]
        if "" in people[part]:
            raise DataError(
                f"{place}: {name}: entry {people[part].index('')} names no person; name the "
                "person, or leave the record out"
            )
    return people


def unlabelled(path: Path) -> Iterator[Chunk]:
    """The records of an .npz file without labels, its array x (or x_test)."""
    with _opened(path) as archive:
        name = "x_test" if "x_test.npy" in archive.namelist() else "x"
        found = _header(archive, name, where(path))
    if len(found.shape) < 2 or not math.prod(found.shape):
        raise DataError(f"{where(path)}: {name} has shape {found.shape}; needed are records [n, …]")
    for content in _contents(path, found):
        count = len(content.pixels if isinstance(content, Images) else content.values)
        yield Chunk(content, np.zeros(count, np.int64))


def _check_shapes(inputs: tuple[int, ...], labels: tuple[int, ...], part: str, place: str) -> None:
    apart = inputs[:1] != labels[:1] or not math.prod(inputs) or not math.prod(labels)
    if len(inputs) < 2 or len(labels) not in (1, 2) or apart:
        raise DataError(
            f"{place}: x_{part} has shape {inputs} and y_{part} {labels}; needed are records "
            "[n, …] and as many labels [n] (or targets [n, K]), n ≥ 1"
        )


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with opened(path) as stream, zipfile.ZipFile(stream) as archive:
            limit = most_unpacked(os.fstat(stream.fileno()).st_size)
            if sum(one.file_size for one in archive.infolist()) > limit:
                raise DataError(
                    f"{where(path)}: unpacks to more than {limit} bytes, which no data of this "
                    "kind do; the file is not what it claims to be"
                )
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{where(path)}: not a readable .npz of plain numbers ({error})") from None


def _header(archive: zipfile.ZipFile, name: str, place: str, kinds: str = "biuf") -> _Array:
    member = f"{name}.npy"
    if member not in archive.namelist():
        known = ", ".join(one.removesuffix(".npy")[:40] for one in archive.namelist()[:20])
        raise DataError(
            f"{place}: the array {name} is missing; needed are "
            f"{', '.join(dict.fromkeys([*_MEMBERS, name]))}, found "
            f"{known or 'none'}"
        )
    with archive.open(member) as stream:
        shape, fortran, dtype = _read_header(stream, place, name)
        size = math.prod(shape) * dtype.itemsize
        if stream.tell() + size != archive.getinfo(member).file_size:
            raise DataError(f"{place}: {name} does not match its header; the file is damaged")
    if dtype.kind not in kinds:
        needed = "whole numbers or texts" if "U" in kinds else "real numbers"
        raise DataError(f"{place}: {name} has type {dtype}; needed are {needed}")
    if fortran and len(shape) > 1:
        raise DataError(
            f"{place}: {name} is stored column by column; store np.ascontiguousarray of it"
        )
    return _Array(member, shape, dtype)


def _read_header(
    stream: IO[bytes], place: str, name: str
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
    except (ValueError, SyntaxError, MemoryError, tokenize.TokenError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{place}: not a readable .npz of plain numbers ({name}: {reason})"
        ) from None
    if dtype.hasobject:
        raise DataError(
            f"{place}: not a readable .npz of plain numbers ({name} holds Python objects, which "
            "are never loaded)"
        )
    return shape, fortran, dtype


def _chunks(
    path: Path, inputs: _Array, labels: _Array, people: list[str] | None = None
) -> Iterator[Chunk]:
    place = where(path)
    (known,) = list(_pieces(path, labels, labels.shape[0]))
    # Classes; targets of other tasks are looked at where the task is known.
    classes = known.ndim == 1 and known.dtype.kind != "f"
    if classes and (known.dtype.kind == "b" or known.min() < 0):
        name = labels.member.removesuffix(".npy")
        raise DataError(
            f"{place}: {name} must hold whole numbers 0, 1, 2, …, or real numbers of a regression"
        )
    if classes and known.max() >= _MOST_CLASSES:
        raise DataError(
            f"{place}: found a label of {_MOST_CLASSES:,} or more; give classes as 0, 1, 2, …"
        )
    start = 0
    for content in _contents(path, inputs):
        count = len(content.pixels if isinstance(content, Images) else content.values)
        part = known[start : start + count].astype(np.int64 if classes else known.dtype)
        about = None if people is None else tuple(people[start : start + count])
        start += count
        yield Chunk(content, part, None, about)


def _contents(path: Path, inputs: _Array) -> Iterator[Images | Numbers]:
    record = math.prod(inputs.shape[1:]) * inputs.dtype.itemsize
    for values in _pieces(path, inputs, max(1, _PIECE // record)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            name = inputs.member.removesuffix(".npy")
            raise DataError(
                f"{where(path)}: {name} holds values that are not finite; clean them first"
            )
        if values.dtype == np.uint8 and values.ndim == 4:
            yield Images(values.astype(np.uint8, copy=False))
        else:
            yield Numbers(values)


def _pieces(path: Path, array: _Array, rows: int) -> Iterator[NDArray[np.generic]]:
    """The array in pieces of some rows."""
    count, shape = array.shape[0], array.shape[1:]
    record = math.prod(shape) * array.dtype.itemsize
    with _opened(path) as archive, archive.open(array.member) as stream:
        _read_header(stream, where(path), array.member)
        for start in range(0, count, rows):
            number = min(rows, count - start)
            content = stream.read(number * record)
            yield np.frombuffer(content, array.dtype).reshape(number, *shape)


register(
    DatasetEntry(
        name="arrays",
        keys=ArraysSpec,
        summary="your own .npz with x_train, y_train, x_test, y_test (numbers only)",
        origin="yours",
        licence="yours",
        find=lambda path, keys, _: arrays(path, keys.person),
        has_targets=True,
        place=8,
    )
)
