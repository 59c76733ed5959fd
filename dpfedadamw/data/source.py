"""What a reader hands over: records in chunks as their publisher gives them, not yet prepared.

A `Source` has been found but not read: its files give its fingerprint, and only if nothing was
prepared from them before does `read` run. Reading goes chunk by chunk, so that no data set need fit
into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DataError

# Records of one chunk: large enough to be fast, small compared with the memory of any machine.
CHUNK = 2048


@dataclass(frozen=True)
class Images:
    """Grey levels.

    Attributes:
        pixels: uint8 [b, channels, height, width].
    """

    pixels: NDArray[np.uint8]


@dataclass(frozen=True)
class Texts:
    """Texts or pairs of texts.

    Attributes:
        first: b texts.
        second: Their second texts, or None.
    """

    first: tuple[str, ...]
    second: tuple[str, ...] | None


@dataclass(frozen=True)
class Numbers:
    """Numbers that are used as they stand.

    Attributes:
        values: [b, …], of any real type.
    """

    values: NDArray[np.generic]


@dataclass(frozen=True)
class Chunk:
    """Some records of one part, in the publisher's order.

    Attributes:
        content: The records.
        labels: Classes int64 [b]; or other targets, real numbers [b, …].
        clients: The client that each belongs to by its own column, where there is one.
        people: The person whom each is about by its own column, where there is one.
    """

    content: Images | Texts | Numbers
    labels: NDArray[Any]
    clients: tuple[str, ...] | None = None
    people: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """A data set that is being read.

    Attributes:
        parts: Chunks of "train" and, where the publisher has a labelled test split, "test".
        classes: Number of classes, or None where it is one more than the largest label.
        labels: What the classes or targets are called, in their order; empty where they have
            numbers alone.
    """

    parts: Mapping[str, Iterator[Chunk]]
    classes: int | None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A data set that was found.

    Attributes:
        root: What the spec's path names.
        files: All that will be read.
        options: What else decides what is read, such as the names of columns.
        read: Starts to read.
    """

    root: Path
    files: tuple[Path, ...]
    options: str
    read: Callable[[], Reading]


def check_labels(labels: NDArray[np.int64], classes: int, place: str) -> NDArray[np.int64]:
    """Labels that lie in 0…classes-1.

    Raises:
        DataError: If one does not.
    """
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise DataError(
            f"{place}: holds the label {wrong}, outside 0 to {classes - 1}; these are not this "
            "data set's labels"
        )
    return labels
