"""The registry of data sets: what each is, where it comes from, and who reads it.

Each file of `formats` registers what comes in its format; other packages do the same under the
entry points' group ``dpfedadamw.datasets``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from dpfedadamw.data import hub as hugging_face
from dpfedadamw.data.cache import Prepared
from dpfedadamw.data.errors import DataError
from dpfedadamw.data.source import Source
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.registration import LAST, Registry
from dpfedadamw.spec.data_section import DataSpec
from dpfedadamw.spec.values import Check, Contradictions, Values, nothing_to_check

_Keys = TypeVar("_Keys", bound=DataSpec)


@dataclass(frozen=True, kw_only=True)
class DatasetEntry(Generic[_Keys]):
    """What is known of a data set.

    Attributes:
        name: What a spec calls it.
        keys: Its section of a spec; several names may share one.
        summary: What it is, in one line.
        origin: Where to get it.
        licence: A hint at its licence; the publisher's own words count.
        find: Finds it at a path, for a model with these needs; None where nothing is read.
        hub: The same on the Hugging Face hub, or None.
        bring: Makes its records in memory, with their digest; None where they are read.
        check: Finds what its keys contradict.
        record_shape: Shape of one record where it is known before any is read, or None.
        has_columns: Whether a column of it can say whose each record is.
        place: Where it stands in lists; data sets of other packages stand last.
    """

    name: str
    keys: type[_Keys]
    summary: str
    origin: str
    licence: str
    find: Callable[[Path, _Keys, Preprocessing], Source] | None = None
    hub: hugging_face.Published | None = None
    bring: Callable[[_Keys, Preprocessing], Prepared] | None = None
    check: Check = nothing_to_check
    record_shape: tuple[int, ...] | None = None
    has_columns: bool = False
    place: int = LAST


DATASETS: Registry[DatasetEntry[Any]] = Registry(
    "data set", "dpfedadamw.data.formats", DatasetEntry, group="dpfedadamw.datasets"
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
