"""The cells of a sweep: every combination, under every seed, as a spec of its own."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides, reading
from dpfedadamw.spec.document import SWEEP_KEYS, TUNE, Document, KeyPath
from dpfedadamw.spec.matrix.axes import Axis, combinations
from dpfedadamw.spec.matrix.search import Search, search_of
from dpfedadamw.spec.matrix.seeds import Seeds
from dpfedadamw.spec.sections import BudgetSpec, NotTuned, ReportSpec, Spec
from dpfedadamw.spec.task_section import ClassificationTask
from dpfedadamw.spec.yamltext import write

MATRIX = SWEEP_KEYS[0]
MOST_CELLS = 10_000


@dataclass(frozen=True)
class Cell:
    """One combination, under one seed.

    Attributes:
        values: The label of each axis, by the axis's name.
        seed: The number that its seeds have; None where there are none.
        spec: What is run.
        digest: SHA-256, in hexadecimal digits, of what is run: of the resolved spec without its
            name, its texts and its budget and, where nothing reproduces a run, with the number of
            its repetition.
        candidate: The label of each axis of the search, by the axis's name; empty without one.
        released: The cells that the candidate is reported as, if it is the best; empty where it is
            reported as its trials themselves.
    """

    values: Mapping[str, str]
    seed: int | None
    spec: Spec
    digest: str
    candidate: Mapping[str, str] = field(default_factory=dict)
    released: tuple[Cell, ...] = field(default=(), repr=False)

    @property
    def labels(self) -> dict[str, str]:
        """The label of every axis, of the matrix and of the search."""
        return {**self.values, **self.candidate}

    @property
    def combination(self) -> tuple[str, ...]:
        """The labels of the matrix: cells that share them are of one search."""
        return tuple(self.values.values())

    @property
    def label(self) -> str:
        """The cell in a few words."""
        parts = [f"{name.rpartition('.')[2]} {value}" for name, value in self.labels.items()]
        return ", ".join([*parts, *([] if self.seed is None else [f"seed {self.seed}"])]) or "only"


def with_spec(cell: Cell, spec: Spec) -> Cell:
    """The cell, running another spec."""
    return replace(cell, spec=spec, digest=_digest(spec, cell.seed))


def cells_of(
    base: Document,
    axes: Sequence[Axis],
    seeds: Seeds,
    own: Seeds,
    grids: dict[tuple[str, ...], tuple[Axis, ...]],
) -> Iterator[Cell]:
    """Every combination as a spec of its own; what is wrong in several of them is said once.

    Args:
        base: A sweep without its matrix and seeds.
        axes: The axes of the matrix.
        seeds: What is reported.
        own: The seeds of the searches' own.
        grids: Gets the axes of each search, by the labels of the matrix.

    Raises:
        SpecError: With all that is wrong, or where there are too many.
    """
    _not_too_many(base, combinations(axes) * len(seeds.repetitions))
    problems: dict[SpecProblem, None] = {}
    found: list[Cell] = []
    many = 0
    for chosen in itertools.product(*(range(len(axis.labels)) for axis in axes)):
        pairs = list(zip(axes, chosen, strict=True))
        changes = [change for axis, index in pairs for change in axis.changes[index]]
        values = {axis.name: axis.labels[index] for axis, index in pairs}
        search = search_of(base, changes, values, seeds, own)
        many += search.runs
        if search.grid:
            grids[tuple(values.values())] = search.grid
            _not_too_many(base, many)
        for tried in itertools.product(*(range(len(axis.labels)) for axis in search.grid)):
            try:
                found += _candidate(search, tried)
            except SpecError as error:
                problems.update(dict.fromkeys(error.problems))
    if problems:
        raise SpecError(list(problems))
    yield from found


def _candidate(search: Search, tried: Sequence[int]) -> list[Cell]:
    """One candidate, or one combination without a search, under every seed."""
    pairs = list(zip(search.grid, tried, strict=True))
    changes = [change for axis, index in pairs for change in axis.changes[index]]
    candidate = {axis.name: axis.labels[index] for axis, index in pairs}

    def cell(seed: int | None, spec: Spec, released: tuple[Cell, ...] = ()) -> Cell:
        return Cell(search.values, seed, spec, _digest(spec, seed), candidate, released)

    elsewhere = [] if search.data is None else [search.data]
    trials = _repeated(search.document, [*changes, *elsewhere], search.tried)
    if search.data is not None:
        trials = {
            seed: spec.replace(tune=spec.tune.replace(dataset=spec.data.dataset))
            for seed, spec in trials.items()
        }
    released: tuple[Cell, ...] = ()
    if search.releases:
        tune = next(iter(trials.values())).tune.replace(search_seeds=search.own.numbers)
        reported = _repeated(search.document, changes, search.seeds)
        released = tuple(cell(seed, spec.replace(tune=tune)) for seed, spec in reported.items())
    return [cell(seed, spec, released) for seed, spec in trials.items()]


def _not_too_many(document: Document, many: int) -> None:
    if many > MOST_CELLS:
        message = f"{many} runs, but a sweep has at most {MOST_CELLS:,}; split it"
        raise SpecError([document.place((MATRIX,)).problem((MATRIX,), message)])


def _repeated(
    base: Document, changes: Sequence[overrides.Change], seeds: Seeds
) -> dict[int | None, Spec]:
    """The spec of each repetition, by its number.

    The first is read and checked as a whole. The others differ from it by numbers alone, which were
    checked when the seeds were read.
    """
    document = base.copy()
    overrides.apply_changes(document, changes)
    number, *others = seeds.repetitions
    varied = seeds.changes(number, document.value)
    overrides.apply_changes(document, varied)
    first = reading.specified(document)
    return {
        number: first,
        **{other: _seeded(first, [one.path for one in varied], other) for other in others},
    }


def _seeded(spec: Spec, paths: Iterable[KeyPath], number: int | None) -> Spec:
    """The spec with a number in place of the seeds that stand there."""
    for path in paths:
        spec = _with(spec, path, number)
    return spec


def _with(section: Any, path: KeyPath, value: Any) -> Any:
    name, rest = str(path[0]), path[1:]
    inner = _with(getattr(section, name), rest, value) if rest else value
    return section.replace(**{name: inner})


_CAME_LATER: Mapping[str, Mapping[str, Any]] = {
    "data": {
        "columns": [], "missing_values": [], "decimal": "point", "unlabelled": "refuse",
        "person": None, "most_records_per_person": None,
    },
    "evaluation": {"public_test": None, "metrics": []},
    "federation": {"clients_per_person": 1},
}  # fmt: skip


def _digest(spec: Spec, seed: int | None) -> str:
    same = spec.replace(name="cell", description="", report=ReportSpec(), budget=BudgetSpec())
    mapping = same.to_mapping()
    # What is said of governance, and the report's paper and language, came later, and is nothing of
    # the run.
    for later in ("governance", "paper", "language"):
        del mapping["report"][later]
    # So did where clients run, on which no result depends.
    del mapping["federation"]["engine"], mapping["federation"]["workers"]
    # Clients of a sweep are all on one machine, where none drops out.
    del mapping["federation"]["drop_outs"]
    # Cells that are no trials keep the digests that they had before there were searches.
    if same.tune == NotTuned():
        del mapping[TUNE]
    # Nor do trials change theirs by a key that is of what is run after them.
    elif not same.tune.search_seeds:
        mapping[TUNE].pop("search_seeds", None)
    # Nor do cells whose records have one class each, which was all that there was.
    if same.task == ClassificationTask():
        del mapping["task"]
        mapping["data"].pop("targets", None)
    # Nor do cells that leave keys alone which came later.
    for section, keys in _CAME_LATER.items():
        for name, default in keys.items():
            if mapping[section].get(name, default) == default:
                mapping[section].pop(name, None)
    # Nor do cells whose server publishes the last round's model, as all did.
    server = mapping["algorithm"].get("server")
    if isinstance(server, dict) and server.get("averaging", 0) is None:
        del server["averaging"]
    said = write(mapping)
    # What nothing reproduces is repeated by its number alone.
    if spec.randomness.seed is None:
        said += f"repetition: {seed}\n"
    return hashlib.sha256(said.encode()).hexdigest()
