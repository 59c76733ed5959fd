"""CIFAR-10 and CIFAR-100 in their binary version: the publisher's tar.gz, or a folder of its files.

The "python version" holds pickles, which can run any code when they are read; none is ever loaded.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfedadamw.data import hub
from dpfedadamw.data.files import Unpacked, folder, opened, where
from dpfedadamw.data.registry import Contents, DatasetEntry, path_or_revision, register
from dpfedadamw.data.source import CHUNK, Chunk, Images, Reading, Source, check_labels
from dpfedadamw.errors import DataError
from dpfedadamw.spec.data_section import PublishedImagesSpec

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE


@dataclass(frozen=True)
class _Version:
    """One of the two: its files by part, and where in a record's labels the wanted one stands."""

    hub: hub.Published
    classes: int
    labels: int
    train: tuple[str, ...]
    test: tuple[str, ...]
    archive: str

    @property
    def record(self) -> int:
        return self.labels + _PIXELS


_VERSIONS = {
    "cifar10": _Version(
        hub=hub.Published("uoft-cs/cifar10", "plain_text", ("img",), "label"),
        classes=10,
        labels=1,
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        archive="cifar-10-binary.tar.gz",
    ),
    # A coarse label, then the fine one.
    "cifar100": _Version(
        hub=hub.Published("uoft-cs/cifar100", "cifar100", ("img",), "fine_label"),
        classes=100,
        labels=2,
        train=("train.bin",),
        test=("test.bin",),
        archive="cifar-100-binary.tar.gz",
    ),
}


def cifar(path: Path, name: str) -> Source:
    """CIFAR-10 or CIFAR-100 (fine labels) at a tar.gz or in a folder."""
    version = _VERSIONS[name]
    if path.is_file():
        return _source(path, (path,), name, _from_archive)
    root = folder(path)
    missing = [file for file in (*version.train, *version.test) if not (root / file).is_file()]
    if missing:
        if any((root / Path(file).stem).exists() for file in missing):
            raise _pickled(path, version)
        raise DataError(
            f"{where(path)}: holds no {missing[0]}; give the folder of {version.archive} or that "
            "file itself"
        )
    files = tuple(root / file for file in (*version.train, *version.test))
    return _source(root, files, name, _from_files)


def _source(
    root: Path,
    files: tuple[Path, ...],
    name: str,
    read: Callable[[Path, _Version, tuple[str, ...]], Iterator[Chunk]],
) -> Source:
    version = _VERSIONS[name]

    def reading() -> Reading:
        parts = {"train": version.train, "test": version.test}
        chunks = {part: read(root, version, wanted) for part, wanted in parts.items()}
        return Reading(chunks, version.classes)

    return Source(root, files, name, reading)


def _pickled(path: Path, version: _Version) -> DataError:
    return DataError(
        f"{where(path)}: this is the Python version (pickles), which can run any code and is never "
        f"loaded; download the binary version, {version.archive}"
    )


def _from_files(root: Path, version: _Version, files: tuple[str, ...]) -> Iterator[Chunk]:
    for file in files:
        with opened(root / file) as stream:
            yield from _records(stream, version, where(root / file))


def _from_archive(path: Path, version: _Version, files: tuple[str, ...]) -> Iterator[Chunk]:
    """The records of some members in the order of their names; nothing is ever extracted.

    The archive has them in another order, so it is gone through once for each: a folder and its
    archive give the same records in the same order.
    """
    for file in files:
        yield from _member(path, version, file)


def _member(path: Path, version: _Version, file: str) -> Iterator[Chunk]:
    with opened(path) as stream:
        unpacked = Unpacked(path, stream)
        if unpacked.read(1) == b"\x80":
            raise _pickled(path, version)
        stream.seek(0)
        try:
            with tarfile.open(fileobj=Unpacked(path, stream), mode="r|") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if name == Path(file).stem and member.isreg():
                        raise _pickled(path, version)
                    if name == file and member.isreg():
                        place = f"{where(path)}: {name}"
                        yield from _records(archive.extractfile(member), version, place)
                        return
        except tarfile.TarError as error:
            raise DataError(
                f"{where(path)}: not a whole tar archive ({error}); download {version.archive} "
                "again"
            ) from None
    raise DataError(f"{where(path)}: holds no {file}; give {version.archive}, the binary version")


def _records(stream: Any, version: _Version, place: str) -> Iterator[Chunk]:
    begun = False
    while content := stream.read(CHUNK * version.record):
        if not begun and content[:1] == b"\x80" and content[1:2] <= b"\x05":
            # A pickle's first two bytes; as a label 128 would be refused all the same.
            raise DataError(
                f"{place}: a Python pickle, which is never loaded; download the binary version, "
                f"{version.archive}"
            )
        begun = True
        count, rest = divmod(len(content), version.record)
        if rest:
            raise DataError(
                f"{place}: ends within a record of {version.record} bytes; the file is cut off or "
                "of another data set"
            )
        table = np.frombuffer(content, np.uint8).reshape(count, version.record)
        labels = table[:, version.labels - 1].astype(np.int64)
        pixels = table[:, version.labels :].reshape(count, _CHANNELS, _SIDE, _SIDE)
        yield Chunk(Images(pixels), check_labels(labels, version.classes, place))
    if not begun:
        raise DataError(f"{place}: is empty; download it again")


def _entry(name: str) -> DatasetEntry[PublishedImagesSpec]:
    version = _VERSIONS[name]
    return DatasetEntry(
        name=name,
        keys=PublishedImagesSpec,
        summary=f"small photographs, 50,000 + 10,000, 32x32 colour, {version.classes} classes; "
        "binary version",
        origin="cs.toronto.edu/~kriz/cifar.html",
        published=True,
        licence="not stated",
        find=lambda path, _, __: cifar(path, name),
        hub=version.hub,
        contents=lambda _: Contents((_CHANNELS, _SIDE, _SIDE), version.classes, 50_000, 10_000),
        check=path_or_revision,
        place=2,
    )


for _name in _VERSIONS:
    register(_entry(_name))
