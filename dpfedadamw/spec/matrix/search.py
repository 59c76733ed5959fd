"""How one combination of a matrix is searched: over what, on which records, under which seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides
from dpfedadamw.spec.document import TUNE, TUNE_KEYS, Document, KeyPath, dotted
from dpfedadamw.spec.matrix.axes import Axis, axes_of, combinations
from dpfedadamw.spec.matrix.seeds import SEARCH_SEEDS, Seeds

_GRID, _PUBLIC_DATA = ((TUNE, key) for key in TUNE_KEYS[:2])
_SELECTIONS = "private, public or unaccounted"


@dataclass(frozen=True)
class Search:
    """One combination of the matrix, and how it is searched.

    Attributes:
        document: The combination, without its search.
        values: The label of each axis of the matrix.
        grid: The axes of the search; none where there is no search.
        data: What is searched on, where that is other than what is reported on.
        seeds: What is reported.
        own: The seeds of the search's own, where it has some.
    """

    document: Document
    values: Mapping[str, str]
    grid: tuple[Axis, ...]
    data: overrides.Change | None
    seeds: Seeds
    own: Seeds

    @property
    def releases(self) -> bool:
        """Whether what is reported is other than what the best is chosen by."""
        return self.data is not None or bool(self.own.numbers)

    @property
    def tried(self) -> Seeds:
        """The seeds under which candidates are tried."""
        return self.own if self.own.numbers else self.seeds

    @property
    def runs(self) -> int:
        """How many there are, once the best is chosen."""
        reported = len(self.seeds.repetitions) if self.releases else 0
        return combinations(self.grid) * len(self.tried.repetitions) + reported


def search_of(
    base: Document,
    changes: Sequence[overrides.Change],
    values: Mapping[str, str],
    seeds: Seeds,
    own: Seeds,
) -> Search:
    """Read how a combination is searched.

    Args:
        base: A sweep without its matrix and seeds.
        changes: What the combination sets.
        values: Its label of each axis.
        seeds: What is reported.
        own: The seeds of the search's own.

    Raises:
        SpecError: With all that is wrong with the search.
    """
    document = base.copy()
    overrides.apply_changes(document, changes)
    problems: list[SpecProblem] = []
    _check(document, problems)
    grid = axes_of(document, _GRID, problems)
    for change in changes:
        if change.path[: len(SEARCH_SEEDS)] == SEARCH_SEEDS:
            message = "every search has the same seeds; give tune.seeds outside the matrix"
            problems.append(change.place.problem(SEARCH_SEEDS, message))
    tune = document.at((TUNE,))
    if isinstance(tune, dict) and tune.get("data") is not None:
        # The whole section is replaced for each trial, so all of them would be the same.
        for change in (one for axis in grid for value in axis.changes for one in value):
            if change.path[0] == "data":
                message = (
                    f"{dotted(change.path)} varies nothing: trials of a public search have "
                    "tune.data in the place of data; remove it from the grid, or compare it by a "
                    "matrix"
                )
                problems.append(change.place.problem(_GRID, message))
    if problems:
        raise SpecError(list(dict.fromkeys(problems)))
    if not isinstance(tune, dict):
        return Search(document, values, (), None, seeds, own)
    data = None
    if tune.get("data") is not None:
        data = overrides.Change(("data",), tune["data"], document.place(_PUBLIC_DATA))
    document.value[TUNE] = {key: value for key, value in tune.items() if key not in TUNE_KEYS}
    return Search(document, values, grid, data, seeds, own)


def check_equal_effort(
    document: Document, grids: Mapping[tuple[str, ...], tuple[Axis, ...]]
) -> None:
    """Refuse searches of which one has more candidates than another."""
    sizes = {labels: combinations(grid) for labels, grid in grids.items()}
    if len(set(sizes.values())) > 1:
        least, most = (pick(sizes, key=lambda one: sizes[one]) for pick in (min, max))
        message = (
            f"{', '.join(most)} has {sizes[most]} candidates and {', '.join(least)} has "
            f"{sizes[least]}; compare at equal effort, with grids of equal size"
        )
        raise SpecError([document.place(_GRID).problem(_GRID, message)])


def _check(document: Document, problems: list[SpecProblem]) -> None:
    """Refuse a search that says nothing of what accounts for it."""
    section = document.at((TUNE,))
    if not isinstance(section, dict) or not section:
        return
    selection = section.get("selection")

    def refuse(path: KeyPath, message: str, key: bool = False) -> None:
        problems.append(document.place(path, key=key).problem(path, message))

    if section.get("grid") is None:
        # A trial's own spec has none, and is a sweep of one run.
        for path in (_PUBLIC_DATA, SEARCH_SEEDS):
            if section.get(path[-1]) is not None:
                message = (
                    "belongs to a search over tune.grid, which is missing; give it, or remove "
                    f"{dotted(path)}"
                )
                refuse(path, message, key=True)
        return
    if selection is None or selection == "none":
        refuse(
            (TUNE, "selection"),
            f"missing; state how the search is accounted for: {_SELECTIONS}; to compare settings "
            "without picking the best, use a matrix",
        )
    elif selection == "public" and not isinstance(section.get("data"), dict):
        refuse(
            _PUBLIC_DATA,
            "missing; give a section data with the public records to search on, such as data: "
            "{dataset: mnist, clients: 10}",
        )
    elif selection != "public" and section.get("data") is not None:
        message = f"is for selection public, not {selection}; remove it"
        refuse(_PUBLIC_DATA, message, key=True)
    if selection == "private" and section.get("seeds") is not None:
        refuse(
            SEARCH_SEEDS,
            "the ε of a private selection covers publishing the winning trial itself, and running "
            "the winner again would cost more; remove tune.seeds",
            key=True,
        )
