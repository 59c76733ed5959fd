"""IDX, the format of MNIST and its kin: Fashion-MNIST and EMNIST, gzip or plain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data import hub
from dpfedadamw.data.files import Unpacked, find, folder, opened, where
from dpfedadamw.data.registry import Contents, DatasetEntry, path_or_revision, register
from dpfedadamw.data.source import CHUNK, Chunk, Images, Reading, Source, check_labels
from dpfedadamw.errors import DataError
from dpfedadamw.spec.data_section import (
    Augmentation,
    CacheFolder,
    DataSpec,
    PublishedImagesSpec,
    RequiredPath,
)
from dpfedadamw.spec.section import key

_LABELS, _IMAGES = 0x0801, 0x0803
_MEANING = {_LABELS: "labels", _IMAGES: "images"}
# Sides of scanned characters are below a hundred; counts, below a million.
_LONGEST_SIDE = 4096
_MOST_RECORDS = 100_000_000

_SIDE = 28

# Splits of EMNIST (Cohen et al. 2017): classes, and the number that the first class is given.
EMNIST_SPLITS = {
    "balanced": (47, 0),
    "byclass": (62, 0),
    "bymerge": (47, 0),
    "digits": (10, 0),
    "letters": (26, 1),
    "mnist": (10, 0),
}
# Their training and test records, of the same source.
_EMNIST_RECORDS = {
    "balanced": (112_800, 18_800),
    "byclass": (697_932, 116_323),
    "bymerge": (697_932, 116_323),
    "digits": (240_000, 40_000),
    "letters": (124_800, 20_800),
    "mnist": (60_000, 10_000),
}


class EmnistSpec(DataSpec, title="EMNIST"):
    """One split of EMNIST (Cohen et al. 2017) in its IDX files."""

    key_order: ClassVar[tuple[str, ...]] = ("dataset", "path", "split")

    dataset: Literal["emnist"] = "emnist"
    path: RequiredPath
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = key(
        "balanced", "Which of EMNIST's splits.", examples=("balanced", "letters")
    )
    cache: CacheFolder = None
    augmentation: Augmentation = ()


def mnist(path: Path) -> Source:
    """MNIST or Fashion-MNIST: a folder with the four files."""
    return _source(path, "", 10, first=0, transposed=False)


def emnist(path: Path, split: str) -> Source:
    """One split of EMNIST, whose images are stored with rows and columns exchanged."""
    classes, first = EMNIST_SPLITS[split]
    return _source(path, f"emnist-{split}-", classes, first, transposed=True)


def _source(path: Path, prefix: str, classes: int, first: int, transposed: bool) -> Source:
    root = folder(path)
    # MNIST's own name for its test files is t10k, EMNIST's is test.
    parts = {"train": "train", "test": "test" if prefix else "t10k"}
    pairs = {
        part: (
            find(root, _names(f"{prefix}{name}-images", "idx3")),
            find(root, _names(f"{prefix}{name}-labels", "idx1")),
        )
        for part, name in parts.items()
    }

    def read() -> Reading:
        chunks = {
            part: _chunks(*pair, classes=classes, first=first, transposed=transposed)
            for part, pair in pairs.items()
        }
        return Reading(chunks, classes)

    files = tuple(file for pair in pairs.values() for file in pair)
    return Source(root, files, prefix, read)


def _names(stem: str, kind: str) -> list[str]:
    return [f"{stem}{sign}{kind}-ubyte{end}" for sign in "-." for end in (".gz", "")]


def _chunks(
    images: Path, labels: Path, classes: int, first: int, transposed: bool
) -> Iterator[Chunk]:
    with opened(labels) as stream:
        unpacked = Unpacked(labels, stream)
        (count,) = _header(unpacked, labels, _LABELS)
        raw = np.frombuffer(unpacked.exactly(count, "the labels"), np.uint8)
        _check_end(unpacked, labels)
    known = check_labels(raw.astype(np.int64) - first, classes, where(labels))
    with opened(images) as stream:
        unpacked = Unpacked(images, stream)
        number, height, width = _header(unpacked, images, _IMAGES)
        if number != count:
            raise DataError(
                f"{where(images)}: holds {number} images, but {labels.name} {count} labels; these "
                "files do not belong together"
            )
        for start in range(0, count, CHUNK):
            part = known[start : start + CHUNK]
            content = unpacked.exactly(len(part) * height * width, "the images")
            pixels: NDArray[np.uint8] = np.frombuffer(content, np.uint8)
            pixels = pixels.reshape(len(part), 1, height, width)
            yield Chunk(Images(pixels.swapaxes(2, 3) if transposed else pixels), part)
        _check_end(unpacked, images)


def _header(unpacked: Unpacked, path: Path, wanted: int) -> tuple[int, ...]:
    """The dimensions that an IDX file announces, checked before anything is made of them."""
    magic = int.from_bytes(unpacked.exactly(4, "its header"), "big")
    if magic != wanted:
        found = f"IDX {_MEANING[magic]}" if magic in _MEANING else f"magic number 0x{magic:08X}"
        raise DataError(
            f"{where(path)}: found {found}, needed are IDX {_MEANING[wanted]} (0x{wanted:08X}); "
            "are files swapped?"
        )
    sizes = tuple(
        int.from_bytes(unpacked.exactly(4, "its header"), "big") for _ in range(magic & 0xFF)
    )
    absurd = sizes[0] > _MOST_RECORDS or any(not 1 <= side <= _LONGEST_SIDE for side in sizes[1:])
    if absurd or not sizes[0] or math.prod(sizes) > unpacked.limit:
        raise DataError(
            f"{where(path)}: its header announces {' x '.join(map(str, sizes))} values, which this "
            "file cannot hold; it is damaged"
        )
    return sizes


def _check_end(unpacked: Unpacked, path: Path) -> None:
    if unpacked.read(1):
        raise DataError(f"{where(path)}: goes on after its last record; the file is damaged")


def _entry(
    name: str, summary: str, origin: str, licence: str, published: hub.Published
) -> DatasetEntry[PublishedImagesSpec]:
    return DatasetEntry(
        name=name,
        keys=PublishedImagesSpec,
        summary=f"{summary}, 60,000 + 10,000, 28x28 grey, 10 classes; IDX",
        origin=origin,
        published=True,
        licence=licence,
        find=lambda path, _, __: mnist(path),
        hub=published,
        contents=lambda _: Contents((1, _SIDE, _SIDE), 10, 60_000, 10_000),
        check=path_or_revision,
        place=1,
    )


register(
    _entry(
        "mnist",
        "handwritten digits",
        "yann.lecun.com/exdb/mnist",
        "CC BY-SA 3.0",
        hub.Published("ylecun/mnist", "mnist", ("image",), "label", channels=1),
    ),
    _entry(
        "fashion-mnist",
        "Zalando's articles",
        "github.com/zalandoresearch/fashion-mnist",
        "MIT",
        hub.Published(
            "zalando-datasets/fashion_mnist", "fashion_mnist", ("image",), "label", channels=1
        ),
    ),
    DatasetEntry(
        name="emnist",
        keys=EmnistSpec,
        summary="handwritten letters and digits, 28x28 grey, six splits of 10 to 62 classes; IDX",
        origin="nist.gov, EMNIST dataset",
        published=True,
        licence="public domain (NIST)",
        find=lambda path, keys, _: emnist(path, keys.split),
        contents=lambda keys: Contents(
            (1, _SIDE, _SIDE), EMNIST_SPLITS[keys.split][0], *_EMNIST_RECORDS[keys.split]
        ),
        place=4,
    ),
)
