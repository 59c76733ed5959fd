"""Sweeps: a spec with `matrix` and `seeds` means many specs, one for each combination.

    matrix:
      algorithm.learning_rate: [0.02, 0.05, 0.1]
      method:
        label: [DP-FedAvg, DP-FedAdamW]
        algorithm.name: [dp-fedavg, dp-fedadamw]
    seeds: {numbers: 5, vary: [weights, run]}

An axis whose name is a field's dotted path holds that field's values. An axis of any other name
holds a mapping of fields to lists of one length, which are taken together. Every combination of the
axes, under every seed, is a *cell*: a spec like any other, held to all that a spec is held to.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides, reading
from dpfedadamw.spec.document import SWEEP_KEYS, Document, KeyPath, Place, dotted
from dpfedadamw.spec.sections import BudgetSpec, ReportSpec, Spec
from dpfedadamw.spec.yamlwriter import write, write_value

MATRIX, SEEDS = SWEEP_KEYS
MOST_CELLS = 10_000
_MOST_SEEDS = 1_000
_LARGEST_SEED = 9_007_199_254_740_991
_LABEL = "label"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
# The field that each axis of randomness is drawn by.
SEED_FIELDS: Mapping[str, KeyPath] = {
    "data": ("data", "seed"),
    "partition": ("data", "partition", "seed"),
    "weights": ("model", "seed"),
    "run": ("randomness", "seed"),
}
_VARIED = ("weights", "run")


@dataclass(frozen=True)
class Axis:
    """What varies together.

    Attributes:
        name: The field's dotted path, or a name of its own.
        labels: Each value in short, all different.
        changes: For each value, the fields that it sets, with the place of each.
    """

    name: str
    labels: tuple[str, ...]
    changes: tuple[tuple[overrides.Change, ...], ...]


@dataclass(frozen=True)
class Cell:
    """One combination, under one seed.

    Attributes:
        values: The label of each axis, by the axis's name.
        seed: The number that the seeds of `vary` have in it; None where there are no seeds.
        spec: What is run.
        digest: SHA-256, in hexadecimal digits, of what is run: of the resolved spec without its
            name, its texts and its budget and, where nothing reproduces a run, with the number of
            its repetition.
    """

    values: Mapping[str, str]
    seed: int | None
    spec: Spec
    digest: str

    @property
    def label(self) -> str:
        """The cell in a few words."""
        parts = [f"{name.rpartition('.')[2]} {value}" for name, value in self.values.items()]
        return ", ".join([*parts, *([] if self.seed is None else [f"seed {self.seed}"])]) or "only"


@dataclass(frozen=True)
class Sweep:
    """A spec with all that it means.

    Attributes:
        name: The spec's name.
        description: The spec's description.
        axes: What varies, in the order of the file.
        seeds: The numbers of the repetitions; empty where there are none.
        vary: The axes of randomness that the numbers are given to.
        cells: Every combination; the seeds vary fastest, then the last axis.
        text: The sweep's file, with overrides applied, as it was understood.
    """

    name: str
    description: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    vary: tuple[str, ...]
    cells: tuple[Cell, ...]
    text: str = field(repr=False)


def load_sweep(path_or_name: str | Path, changes: Sequence[str] = ()) -> Sweep:
    """Read a sweep from a file, or a shipped one by name; a plain spec is a sweep of one cell.

    Args:
        path_or_name: As in `load`.
        changes: `dotted.path=value` each, applied to every cell before its own values.

    Raises:
        SpecError: With all that is wrong, in the sweep itself or in any of its cells.
    """
    document = reading.read(path_or_name)
    overrides.apply(document, changes)
    problems: list[SpecProblem] = []
    axes = _axes(document, problems)
    seeds, vary = _seeds(document, problems)
    if problems:
        raise SpecError(problems)
    text = write(document.value)
    base = _without(document)
    many = len(seeds or (0,))
    for axis in axes:
        many *= len(axis.labels)
    if many > MOST_CELLS:
        message = f"these are {many} runs, and at most {MOST_CELLS:,} are one sweep; split it"
        raise SpecError([document.place((MATRIX,)).problem((MATRIX,), message)])
    cells = tuple(_cells(base, axes, seeds, vary))
    first = cells[0].spec
    return Sweep(first.name, first.description, axes, seeds, vary, cells, text)


def _axes(document: Document, problems: list[SpecProblem]) -> tuple[Axis, ...]:
    section = _section(document, MATRIX)
    if section is None:
        return ()
    where = document.place((MATRIX,))
    if not isinstance(section, dict) or not section:
        message = "a section of axes is due, such as algorithm.learning_rate: [0.02, 0.05]"
        problems.append(where.problem((MATRIX,), message))
        return ()
    found = []
    for name, value in section.items():
        try:
            found.append(_axis(name, value, document))
        except SpecError as error:
            problems += error.problems
    set_by: dict[KeyPath, str] = {}
    for axis in found:
        for change in axis.changes[0]:
            for path, other in set_by.items():
                shorter = min(len(path), len(change.path))
                if other != axis.name and path[:shorter] == change.path[:shorter]:
                    message = f"{dotted(change.path)} is set by {other} too; one axis sets a field"
                    problems.append(change.place.problem((MATRIX, axis.name), message))
            set_by[change.path] = axis.name
    return tuple(found)


def _axis(name: str, value: Any, document: Document) -> Axis:
    here: KeyPath = (MATRIX, name)
    if isinstance(value, list):
        columns = {name: value}
        labels = None
    elif isinstance(value, dict) and value.keys() - {_LABEL}:
        columns = {key: column for key, column in value.items() if key != _LABEL}
        labels = value.get(_LABEL)
        if not _NAME.fullmatch(name):
            message = "an axis is called by letters, digits, spaces, dots, dashes and underscores"
            raise SpecError([document.place(here, key=True).problem(here, message)])
    else:
        message = "a list of values, or a section of fields with a list each, is due"
        raise SpecError([document.place(here).problem(here, message)])
    listed = {**columns, **({} if labels is None else {_LABEL: labels})}
    for key, column in listed.items():
        path = here if columns is not value and isinstance(value, list) else (*here, key)
        if not isinstance(column, list) or not column:
            message = "a list of at least one value is due"
            raise SpecError([document.place(path).problem(path, message)])
    lengths = {len(column) for column in listed.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{key} has {len(column)}" for key, column in listed.items())
        message = f"lists that are taken together have one length; {told}"
        raise SpecError([document.place(here).problem(here, message)])
    changes = tuple(
        tuple(
            _change(key, column[index], document, here, index, plain=isinstance(value, list))
            for key, column in columns.items()
        )
        for index in range(lengths.pop())
    )
    names = _given_labels(labels, document, here) if labels is not None else _labels(changes)
    if len(set(names)) < len(names):
        twice = next(one for one in names if names.count(one) > 1)
        message = f"{twice} stands there twice; every value once, and every label"
        raise SpecError([document.place(here).problem(here, message)])
    return Axis(name, names, changes)


def _change(
    key: str, value: Any, document: Document, here: KeyPath, index: int, plain: bool
) -> overrides.Change:
    path = (*here, index) if plain else (*here, key, index)
    return overrides.Change(overrides.parse_path(key, document.place(here)), value,
                            document.place(path))  # fmt: skip


def _given_labels(labels: list[Any], document: Document, here: KeyPath) -> tuple[str, ...]:
    for index, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip() or len(label) > 100:
            path = (*here, _LABEL, index)
            message = "a label is a text of 1 to 100 characters"
            raise SpecError([document.place(path).problem(path, message)])
    return tuple(labels)


def _labels(changes: Sequence[Sequence[overrides.Change]]) -> tuple[str, ...]:
    """Short words for values; sections go by their names where these tell them apart."""
    short = [", ".join(_word(change.value) for change in each) for each in changes]
    if len(set(short)) == len(short):
        return tuple(short)
    return tuple(", ".join(write_value(change.value) for change in each) for each in changes)


def _word(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return str(value["name"])
    return value if isinstance(value, str) else write_value(value)


def _seeds(
    document: Document, problems: list[SpecProblem]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    value = _section(document, SEEDS)
    if value is None:
        return (), _VARIED
    numbers, vary = value, list(_VARIED)
    if isinstance(value, dict):
        unknown = sorted(value.keys() - {"numbers", "vary"})
        if unknown or "numbers" not in value:
            message = f"the keys are numbers and vary, not {', '.join(unknown) or 'vary alone'}"
            problems.append(document.place((SEEDS,)).problem((SEEDS,), message))
            return (), _VARIED
        numbers, vary = value["numbers"], value.get("vary", vary)
    if isinstance(numbers, int) and not isinstance(numbers, bool) and 1 <= numbers <= _MOST_SEEDS:
        numbers = list(range(numbers))
    whole = isinstance(numbers, list) and 1 <= len(numbers) <= _MOST_SEEDS
    if not whole or not all(_is_seed(number) for number in numbers):
        message = (
            f"how many seeds, 1 to {_MOST_SEEDS:,}, or a list of their numbers, each from 0 to "
            f"{_LARGEST_SEED}"
        )
        problems.append(document.place((SEEDS,)).problem((SEEDS,), message))
    elif len(set(numbers)) < len(numbers):
        problems.append(document.place((SEEDS,)).problem((SEEDS,), "every seed once"))
    known = ", ".join(SEED_FIELDS)
    if not isinstance(vary, list) or not vary or not all(axis in SEED_FIELDS for axis in vary):
        message = f"what the seeds vary: a list of some of {known}"
        problems.append(document.place((SEEDS, "vary")).problem((SEEDS, "vary"), message))
    return ((), _VARIED) if problems else (tuple(numbers), tuple(vary))


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_SEED


def _section(document: Document, name: str) -> Any:
    return document.value.get(name) if isinstance(document.value, dict) else None


def _without(document: Document) -> Document:
    """The document's spec alone."""
    base = copy.copy(document)
    if isinstance(document.value, dict):
        base.value = {
            key: value for key, value in document.value.items() if key not in (MATRIX, SEEDS)
        }
    return base


def _cells(
    base: Document, axes: Sequence[Axis], seeds: tuple[int, ...], vary: tuple[str, ...]
) -> Iterator[Cell]:
    """Every combination as a spec of its own; what is wrong in several of them is said once."""
    problems: dict[SpecProblem, None] = {}
    found: list[Cell] = []
    for chosen in itertools.product(*(range(len(axis.labels)) for axis in axes)):
        pairs = list(zip(axes, chosen, strict=True))
        changes = [change for axis, index in pairs for change in axis.changes[index]]
        values = {axis.name: axis.labels[index] for axis, index in pairs}
        for seed in seeds or (None,):
            try:
                spec = _spec(base, changes, seed, vary)
            except SpecError as error:
                problems |= dict.fromkeys(error.problems)
                break
            found.append(Cell(values, seed, spec, _digest(spec, seed)))
    if problems:
        raise SpecError(list(problems))
    yield from found


def _spec(
    base: Document, changes: Sequence[overrides.Change], seed: int | None, vary: Sequence[str]
) -> Spec:
    document = copy.deepcopy(base)
    overrides.apply_changes(document, changes)
    if seed is not None:
        place = Place("seeds")
        reproducible = _is_reproducible(document.value)
        given = [
            overrides.Change(SEED_FIELDS[axis], seed, place)
            for axis in vary
            if axis != "run" or reproducible
        ]
        overrides.apply_changes(document, given)
    return reading.specified(document)


def _is_reproducible(value: Any) -> bool:
    mode = value.get("randomness") if isinstance(value, dict) else None
    return (mode.get("mode") if isinstance(mode, dict) else mode) == "reproducible"


def _digest(spec: Spec, seed: int | None) -> str:
    same = spec.replace(name="cell", description="", report=ReportSpec(), budget=BudgetSpec())
    said = reading.dump(same)
    # What nothing reproduces is repeated by its number alone.
    if spec.randomness.seed is None:
        said += f"repetition: {seed}\n"
    return hashlib.sha256(said.encode()).hexdigest()
