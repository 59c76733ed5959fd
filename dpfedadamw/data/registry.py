"""The registry of data sets: what each is, where it comes from, and who reads it.

Each file of `formats` registers what comes in its format; other packages do the same under the
entry points' group ``dpfedadamw.datasets``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.registration import Registry
from dpfedadamw.spec.data_section import DataSpec, RegisteredDataset
from dpfedadamw.spec.section import Contradictions, Values

if TYPE_CHECKING:
    from dpfedadamw.data.hub import Published
    from dpfedadamw.data.source import Chunk, Source

_Keys = TypeVar("_Keys", bound=DataSpec)


@dataclass(frozen=True)
class Part:
    """One part of a prepared data set.

    Attributes:
        values: Stored records [n, …], mapped from disk.
        labels: Classes int64 [n], or other targets [n, …] as they stand (`datasets.load`).
        clients: The client of each by its own column, numbered in the order of their names; None
            where there is no such column.
        people: The person whom each is about by its own column, numbered in the order of their
            names over all parts; None where there is no such column.
    """

    values: NDArray[Any]
    labels: NDArray[Any]
    clients: NDArray[np.int64] | None
    people: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Prepared:
    """A prepared data set.

    Attributes:
        parts: "train" and, where the publisher has one, "test".
        classes: Number of classes, or of other outputs that the targets ask for.
        content_sha256: Digest of the records themselves, in order.
        labels: What the classes or targets are called, in their order; empty where they have
            numbers alone.
        columns: The columns of a frame that records are made of, by the keys of a table: numbers,
            text, or columns with missing_values. Empty where no frame was given.
    """

    parts: dict[str, Part]
    classes: int
    content_sha256: str
    labels: tuple[str, ...] = ()
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """What a publisher's files hold.

    Attributes:
        shape: Shape of one image; empty for texts.
        classes: Number of classes.
        train: Training records.
        test: Records that are held out.
    """

    shape: tuple[int, ...]
    classes: int
    train: int
    test: int


@dataclass(frozen=True, kw_only=True)
class DatasetEntry(RegisteredDataset[_Keys]):
    """What is known about a data set, in addition to what a spec uses.

    Attributes:
        origin: Where to get it.
        licence: A hint at its licence; the publisher's own words count.
        find: Finds it at a path, for a model with these needs; None where nothing is read.
        hub: The same on the Hugging Face hub, or None.
        bring: Makes its records in memory, with their digest; None where they are read.
        contents: What the publisher's files hold, without reading them; None where nobody knows.
        unlabelled: Reads the records of another file of the same form, without labels, to have
            them predicted; None where it cannot.
        read_by: The keys of the section that this goes by; they are kept with the model.
    """

    origin: str
    licence: str
    find: Callable[[Path, _Keys, Preprocessing], Source] | None = None
    hub: Published | None = None
    bring: Callable[[_Keys, Preprocessing], Prepared] | None = None
    contents: Callable[[_Keys], Contents] | None = None
    unlabelled: Callable[[Path, _Keys], Iterator[Chunk]] | None = None
    read_by: tuple[str, ...] = ()


# What each file registers; a spec loads the file of its data set alone.
_FILES = {
    "digits": ("digits",),
    "idx": ("mnist", "fashion-mnist", "emnist"),
    "cifar": ("cifar10", "cifar100"),
    "folders": ("tiny-imagenet", "image-folder"),
    "glue": ("sst2", "cola", "mrpc", "rte", "qnli", "qqp", "mnli-matched", "mnli-mismatched"),
    "tables": ("table",),
    "arrays": ("arrays",),
    "given": ("given",),
    "visits": ("visits",),
}
DATASETS: Registry[DatasetEntry[Any]] = Registry(
    "data set",
    "dpfedadamw.data.formats",
    DatasetEntry,
    group="dpfedadamw.datasets",
    files=_FILES,
)
register = DATASETS.register


def path_or_revision(get: Values) -> Contradictions:
    """The check of data sets that are read from a path or from the hub: one of the two."""
    path, revision = ("data", "path"), ("data", "revision")
    if {path, revision} & get.bad:
        return
    given = [key for key in (path, revision) if get(*key) is not None]
    if len(given) != 1:
        found = "both are given" if given else "neither is given"
        yield path, f"{found}; give the path of the publisher's files, or a revision on the hub"


def check_pin(spec: DataSpec, found: str) -> None:
    """Refuse data whose digest is another than the spec pins.

    Raises:
        DataError: If it is.
    """
    if spec.sha256 is not None and spec.sha256 != found:
        raise DataError(
            f"data.sha256: the spec pins {spec.sha256}, but the data there have {found}; the data "
            "set has changed, or is another one"
        )
