"""The registry of data sets: what each is, where it comes from, and who reads it.

Each file of `formats` registers what comes in its format; other packages do the same under the
entry points' group ``dpfedadamw.datasets``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpfedadamw.data import hub as hugging_face
from dpfedadamw.data.cache import Prepared
from dpfedadamw.data.errors import DataError
from dpfedadamw.data.source import Chunk, Source
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.registration import Registry
from dpfedadamw.spec.data_section import DataSpec, RegisteredDataset
from dpfedadamw.spec.values import Contradictions, Values

_Keys = TypeVar("_Keys", bound=DataSpec)


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
    """What is known of a data set, beside what a spec goes by.

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
    hub: hugging_face.Published | None = None
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


def source(spec: DataSpec, preprocessing: Preprocessing) -> Source:
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
    return hugging_face.source(entry.hub.at(spec.repository, spec.revision))
