"""Loads the data set that a spec names: fingerprinted, prepared, divided into training and test.

Records are scaled by constants alone: statistics of the training records would be a release of
their own that nothing pays for. Targets are private, too: no message shows one; it names the part,
the row and what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.partition import in_order, kept_of_people
from dpfedadamw.data.registry import DATASETS, Part, Prepared, check_pin
from dpfedadamw.data.stored import StoredRecords, batchwise, check_shape
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import (
    ImagePreprocessing,
    Preprocessing,
    TextPreprocessing,
    next_tokens,
)
from dpfedadamw.spec import DataSpec
from dpfedadamw.spec.task_section import CLASSIFICATION, LANGUAGE, MULTI_LABEL, REGRESSION
from dpfedadamw.tasks import CLASSES, Task

_MOST_CLASSES = 1_000_000
# Squares of larger numbers are beyond float32.
_LARGEST = 1e18


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
        clients: Client of each stored record, as `Dataset.clients` has those of training, int64
            [m]; None where the data do not say.
    """

    stored: NDArray[np.int64]
    test: NDArray[np.int64] | None = None
    clients: NDArray[np.int64] | None = None


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
    found = _for_task(_brought_or_read(spec, form), task, form)
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
        from dpfedadamw.data.lines import owners_of

        clients, digest = owners_of(Path(spec.partition.file), len(train), digest)
    people = None if people is None else replace(people, clients=clients)
    check_pin(spec, digest)
    if "test" in whole:
        test, tested = whole["test"], None if people is None else people.test
    else:
        if spec.test_fraction is None:
            raise DataError(
                "data.test_fraction: null, but the data have no test records of their own; give "
                "the share to hold out"
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
    most = getattr(spec, "most_records_per_person", None)
    if people is not None and most is not None:
        rows = train.inputs.rows
        kept = kept_of_people(
            people.stored if rows is None else people.stored[rows], most, spec.seed
        )
        train = train.select(kept)
        clients = None if clients is None else clients[kept]
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


def _brought_or_read(spec: DataSpec, form: Preprocessing) -> Prepared:
    """The records of a data set as its entry makes them, or as its files have them."""
    bring = DATASETS[spec.dataset].bring
    if bring is not None:
        return bring(spec, form)
    # What reads files, keeps a cache and asks the hub is loaded where there are files.
    from dpfedadamw.data import cache

    return cache.read(spec, form)


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


def _for_task(found: Prepared, task: Task, form: Preprocessing) -> Prepared:
    """Records with the targets of a task, and as many outputs as it needs.

    Args:
        found: As a data set's files or arrays have them.
        task: The spec's.
        form: What the model needs of its records.

    Raises:
        DataError: If its targets are none of the task's.
    """
    if task.kind == LANGUAGE:
        return _foretold(found, task, form)
    given = {name: part.labels for name, part in found.parts.items()}
    if task.kind == CLASSIFICATION:
        for name, labels in given.items():
            if labels.ndim != 1 or labels.dtype != np.int64:
                raise DataError(
                    f"data ({name}): its targets are {_form(labels)}, not classes; set task.kind "
                    "to regression, multi_label or token_classification, or give each record one "
                    "class"
                )
        if found.classes == 1:
            raise DataError("data: all records have one class; a classifier needs two or more")
        weights = len(task.spec.class_weights)
        if weights not in (0, found.classes):
            raise DataError(
                f"task.class_weights: {weights} weights for {found.classes} classes; give one per "
                "class, in their order"
            )
        return found
    if task.kind in (REGRESSION, MULTI_LABEL):
        targets: dict[str, NDArray[Any]] = {
            name: _numbers(one, name, task.kind) for name, one in given.items()
        }
        outputs = _one_width(targets)
    else:
        targets = {name: _classes(one, name, task) for name, one in given.items()}
        _one_width(targets)
        outputs = max(2, 1 + max(int(one.max(initial=0)) for one in targets.values()))
    parts: dict[str, Part] = {
        name: replace(part, labels=targets[name]) for name, part in found.parts.items()
    }
    return replace(found, parts=parts, classes=outputs)


def _foretold(found: Prepared, task: Task, form: Preprocessing) -> Prepared:
    """Texts with their own tokens as targets, each one place ahead."""
    if not isinstance(form, TextPreprocessing) or form.vocabulary is None:
        raise DataError("data.dataset: task.kind causal_lm needs texts, and a model to read them")
    parts = {
        name: replace(part, labels=next_tokens(part.values, task.ignored))
        for name, part in found.parts.items()
    }
    return replace(found, parts=parts, classes=form.vocabulary, labels=())


def _numbers(labels: NDArray[Any], name: str, kind: str) -> NDArray[Any]:
    """Targets [n] or [n, K] as float32 [n, K]."""
    if labels.ndim not in (1, 2) or not labels.size:
        raise DataError(
            f"data ({name}): its targets are {_form(labels)}; task.kind {kind} needs [n] or [n, K]"
        )
    wide = labels.reshape(len(labels), -1).astype(np.float64)
    if kind == MULTI_LABEL:
        if labels.ndim != 2:
            raise DataError(
                f"data ({name}): its targets are {_form(labels)}; task.kind multi_label needs a "
                "matrix [n, K] with 1 where a label applies and 0 where it does not"
            )
        bad, right = (wide != 0.0) & (wide != 1.0), "0 or 1"
    else:
        bad = ~(np.abs(wide) < _LARGEST)
        right = f"a finite number below {_LARGEST:g}"
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise DataError(
            f"data ({name}): row {row}: its target {column + 1} of {wide.shape[1]} is not {right}; "
            "correct it, or leave the record out"
        )
    return wide.astype(np.float32)


def _classes(labels: NDArray[Any], name: str, task: Task) -> NDArray[Any]:
    """Classes of tokens, int64 [n, length]."""
    if labels.ndim != 2 or labels.dtype.kind not in "iu" or not labels.size:
        raise DataError(
            f"data ({name}): its targets are {_form(labels)}; task.kind {task.kind} needs whole "
            "numbers [n, length], a class for each token"
        )
    ignored = task.spec.ignore_index
    whole = labels.astype(np.int64)
    bad = ((whole < 0) & (whole != ignored)) | (whole >= _MOST_CLASSES)
    if bad.any():
        row, token = np.argwhere(bad)[0].tolist()
        raise DataError(
            f"data ({name}): row {row}, token {token}: its label is neither a class 0, 1, 2, … nor "
            f"task.ignore_index ({ignored})"
        )
    return whole


def _one_width(targets: Mapping[str, NDArray[Any]]) -> int:
    """How many targets, or tokens, each record of every part has."""
    widths = {int(one.shape[1]) for one in targets.values()}
    if len(widths) > 1:
        found = " and ".join(map(str, sorted(widths)))
        raise DataError(f"data: training and test records have {found} targets; they must agree")
    (width,) = widths
    return width


def _form(labels: NDArray[Any]) -> str:
    kind = "whole numbers" if labels.dtype.kind in "iu" else "real numbers"
    return f"{kind} [{', '.join(['n', *map(str, labels.shape[1:])])}]"
