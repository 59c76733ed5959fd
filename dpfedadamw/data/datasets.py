"""Loads the data set that a spec names: fingerprinted, prepared, divided into training and test.

Records are scaled by constants alone: statistics of the training records would be a release of
their own that nothing pays for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data import cache
from dpfedadamw.data.cache import Part, Prepared
from dpfedadamw.data.errors import DataError
from dpfedadamw.data.files import fingerprint
from dpfedadamw.data.lines import lines
from dpfedadamw.data.partition import in_order
from dpfedadamw.data.preparation import batchwise
from dpfedadamw.data.preparation import fingerprint as form_of
from dpfedadamw.data.registry import DATASETS, source
from dpfedadamw.data.stored import StoredRecords, check_shape
from dpfedadamw.data.targets import for_task
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing
from dpfedadamw.spec import DataSpec
from dpfedadamw.spec.task_section import CLASSIFICATION
from dpfedadamw.tasks import CLASSES, Task


@dataclass(frozen=True)
class Records:
    """Records with their labels, or the targets of another task.

    Attributes:
        inputs: n records, on disk or in memory.
        labels: Of a classification int64 [n], in 0…classes-1; else as `tasks` has them, [n, …].
    """

    inputs: StoredRecords
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: NDArray[np.int64]) -> Records:
        """These rows, in this order."""
        return Records(self.inputs.select(rows), self.labels[rows])


@dataclass(frozen=True)
class People:
    """Whom records are about, by numbers that hold for all parts. They are the clients' secret.

    Attributes:
        stored: Person of each record that is stored with the training records, those held out among
            them, int64 [m].
        test: Person of each record of a test part of its own, int64 [t]; None where there is none.
    """

    stored: NDArray[np.int64]
    test: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Dataset:
    """Records and labels, divided into training, test and perhaps public validation.

    Attributes:
        train: Private records, which clients hold.
        test: Held-out records.
        validation: Public records for tuning, or None.
        classes: Number of classes, or of other outputs of the model for a record or a token.
        sha256: Digest of what was read, hexadecimal.
        clients: The client of each training record by the data set's own column, int64 [n], or
            None.
        task: What the labels are.
        labels: What the classes or targets are called, in their order; empty where they have
            numbers alone.
        brings_test: Whether test records come from the data themselves, and none was held out.
        read_by: How further records are read (`unlabelled`): a data set's name, and the keys that
            say which columns; empty where they are arrays.
        people: Whom records are about, or None.
    """

    train: Records
    test: Records
    validation: Records | None
    classes: int
    sha256: str
    clients: NDArray[np.int64] | None = None
    task: Task = CLASSES
    labels: tuple[str, ...] = ()
    brings_test: bool = False
    read_by: Mapping[str, Any] = field(default_factory=dict)
    people: People | None = None

    @property
    def people_of_train(self) -> NDArray[np.int64] | None:
        """The person whom each training record is about, int64 [n]; None where nothing says it."""
        if self.people is None:
            return None
        rows = self.train.inputs.rows
        return self.people.stored if rows is None else self.people.stored[rows]

    @property
    def strata(self) -> NDArray[np.int64]:
        """The class of each training record, int64 [n]; 0 of all where targets are no classes."""
        if self.task.kind == CLASSIFICATION:
            return self.train.labels
        return np.zeros(len(self.train), np.int64)

    def made_up(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Targets for made-up records that follow from whole numbers [n]."""
        return self.task.made_up(numbers, self.train.labels, self.classes)

    @property
    def kinds_made_up(self) -> int:
        """How many different targets `made_up` tells apart, at least 1."""
        return self.task.kinds_made_up(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self.train.inputs.shape


def load(
    spec: DataSpec, preprocessing: Preprocessing | None = None, task: Task = CLASSES
) -> Dataset:
    """Read the data set that a spec names.

    Args:
        spec: The spec's section ``data``.
        preprocessing: What the model needs of its records; images as they are by default.
        task: What its labels are to be.

    Raises:
        DataError: If it cannot be read; the message says what and what would be right.
    """
    form = preprocessing if preprocessing is not None else ImagePreprocessing()
    bring = DATASETS[spec.dataset].bring
    found = for_task(bring(spec, form) if bring is not None else _prepared(spec, form), task)
    parts, classes, digest = found.parts, found.classes, found.content_sha256
    finishing = batchwise(form)
    if finishing is not None:
        check_shape(parts["train"].values.shape[1:], finishing, f"data.dataset: {spec.dataset}")
    whole = {
        name: Records(StoredRecords(part.values, None, finishing), part.labels)
        for name, part in parts.items()
    }
    train, clients = whole["train"], parts["train"].clients
    people = _people(parts)
    if spec.partition.file is not None:
        clients, digest = _clients_of_file(Path(spec.partition.file), len(train), digest)
    _check_pin(spec, digest)
    if "test" in whole:
        test, tested = whole["test"], None if people is None else people.test
    else:
        if spec.test_fraction is None:
            raise DataError(
                "data.test_fraction: null, but the data bring no test records of their own; give "
                "the share that is held out"
            )
        held_out, kept = _divided(
            spec.test_fraction,
            len(train),
            None if people is None else people.stored,
            np.random.default_rng(spec.seed),
        )
        if not len(held_out) or not len(kept):
            things = "records" if people is None else "records, person by person,"
            raise DataError(
                f"data.test_fraction: {spec.test_fraction:g} of {len(train)} {things} leaves none "
                "for training or for testing"
            )
        test, train = train.select(held_out), train.select(kept)
        clients = None if clients is None else clients[kept]
        tested = None if people is None else people.stored[held_out]
    test, validation = _validation(spec, test, tested)
    train = replace(train, inputs=_augmentable(spec, train.inputs))
    labels = found.labels if len(found.labels) == classes else ()
    return Dataset(
        train,
        test,
        validation,
        classes,
        digest,
        clients,
        task,
        labels,
        "test" in whole,
        _read_by(spec, found),
        people,
    )


def _read_by(spec: DataSpec, found: Prepared) -> dict[str, Any]:
    if found.columns:
        # A frame's rows come as those of a table.
        return {"dataset": "table", **{name: list(one) for name, one in found.columns.items()}}
    entry, section = DATASETS[spec.dataset], spec.to_mapping()
    if entry.unlabelled is None:
        return {}
    return {"dataset": spec.dataset, **{name: section[name] for name in entry.read_by}}


def _people(parts: Mapping[str, Part]) -> People | None:
    """Whom records are about; None where the data set does not say."""
    named = parts["train"].people
    return (
        None if named is None else People(named, parts["test"].people if "test" in parts else None)
    )


def _divided(
    fraction: float,
    records: int,
    people: NDArray[np.int64] | None,
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the records that are held out, a share of all, and of the rest.

    Of people so many are drawn, each with all records, that these are the share or just more.
    """
    count = round(records * fraction)
    if people is None:
        order = generator.permutation(records)
        return order[:count], order[count:]
    numbers = in_order(people)
    order = generator.permutation(int(numbers.max()) + 1)
    reached = np.cumsum(np.bincount(numbers)[order])
    drawn = order[: int(np.searchsorted(reached, count)) + 1] if count else order[:0]
    out = np.isin(numbers, drawn)
    return np.flatnonzero(out), np.flatnonzero(~out)


def absent(spec: DataSpec) -> str | None:
    """Which data a spec names that are not on this machine, in words; None where all are."""
    if DATASETS[spec.dataset].bring is not None:
        return None
    if spec.path is None:
        return f"data.revision: {spec.dataset} is fetched from the hub when it is first read"
    return None if Path(spec.path).exists() else f"data.path: {spec.path}: is not there"


def _prepared(spec: DataSpec, form: Preprocessing) -> Prepared:
    """Records of a publisher's files or of one's own, with the digest of what was read."""
    found = source(spec, form)
    read = fingerprint(found.files, found.root) if found.files else None
    if read is not None and spec.partition.file is None:
        # Refused before an hour is spent on decoding.
        _check_pin(spec, read.sha256)
    identity = (spec.dataset, found.options, read.sha256 if read else "", form_of(form))
    ready = cache.prepared(found, identity, form, cache.folder(spec.cache))
    if read is not None:
        read.check_unchanged()
    return ready if read is None else replace(ready, content_sha256=read.sha256)


def _check_pin(spec: DataSpec, found: str) -> None:
    if spec.sha256 is not None and spec.sha256 != found:
        raise DataError(
            f"data.sha256: the spec pins {spec.sha256}, but what lies there has {found}; the data "
            "set has changed, or is another one"
        )


def _clients_of_file(path: Path, count: int, digest: str) -> tuple[NDArray[np.int64], str]:
    """The client of each record by a file of names, and the digest of data and file together."""
    place = f"data.partition.file: {path}"
    try:
        names, read = list(lines(path)), fingerprint([path], path).sha256
    except DataError as error:
        raise DataError(str(error).replace("data.path", "data.partition.file", 1)) from None
    if len(names) != count:
        raise DataError(
            f"{place}: has {len(names)} lines, but the training file holds {count} records; give "
            "one client's name a line, in the records' order"
        )
    together = f"{digest}  data\n{read}  clients\n"
    owners = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return owners, hashlib.sha256(together.encode()).hexdigest()


def _validation(
    spec: DataSpec, test: Records, people: NDArray[np.int64] | None
) -> tuple[Records, Records | None]:
    """Divide held-out records into test and public validation; no person has some of both."""
    fraction = spec.validation.fraction
    if not fraction:
        return test, None
    generator = np.random.default_rng([spec.seed, 2])
    chosen, kept = _divided(fraction, len(test), people, generator)
    if not len(chosen) or not len(kept):
        raise DataError(
            f"data.validation.fraction: {fraction:g} of {len(test)} held-out records leaves none "
            "for validation or for testing"
        )
    return test.select(np.sort(kept)), test.select(np.sort(chosen))


def _augmentable(spec: DataSpec, inputs: StoredRecords) -> StoredRecords:
    if spec.augmentation and (len(inputs.values.shape) != 4 or inputs.preprocessing is None):
        raise DataError(
            f"data.augmentation: {', '.join(spec.augmentation)} are for images; records of "
            f"{spec.dataset} have shape {inputs.shape}; leave it empty"
        )
    return replace(inputs, augmentation=spec.augmentation or ())
