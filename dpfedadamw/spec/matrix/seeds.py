"""The numbers under which a sweep repeats its cells, and what varies with them.

    seeds: 5                                        # 0 to 4
    seeds: {numbers: [7, 8], vary: [weights, run]}
    tune: {seeds: 2, …}                             # 1000 and 1001, of the search's own runs

Runs over several partitions answer another question than runs over one, so what varies is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfedadamw.errors import SpecProblem
from dpfedadamw.spec import overrides
from dpfedadamw.spec.document import SWEEP_KEYS, TUNE, Document, KeyPath, Place, dotted
from dpfedadamw.spec.section import LARGEST_SEED

SEEDS: KeyPath = (SWEEP_KEYS[1],)
SEARCH_SEEDS: KeyPath = (TUNE, "seeds")
MOST_SEEDS = 1_000
# The field that each axis of randomness is drawn by.
SEED_FIELDS: Mapping[str, KeyPath] = {
    "data": ("data", "seed"),
    "partition": ("data", "partition", "seed"),
    "weights": ("model", "seed"),
    "run": ("randomness", "seed"),
}
_VARIED = ("weights", "run")
_NUMBERS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 1, "maximum": MOST_SEEDS},
    {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": LARGEST_SEED},
        "minItems": 1,
        "maxItems": MOST_SEEDS,
        "uniqueItems": True,
    },
]
# `seeds` in JSON Schema.
SEEDS_SCHEMA: dict[str, Any] = {
    "oneOf": [
        *_NUMBERS,
        {
            "title": "Numbers, and what varies",
            "description": "The seeds, and the axes of randomness that get their numbers.",
            "type": "object",
            "properties": {
                "numbers": {
                    "title": "Numbers",
                    "description": "How many seeds, or a list of them.",
                    "oneOf": _NUMBERS,
                },
                "vary": {
                    "title": "What varies",
                    "description": "The axes of randomness that these seeds set.",
                    "type": "array",
                    "items": {"enum": list(SEED_FIELDS)},
                    "minItems": 1,
                    "default": list(_VARIED),
                },
            },
            "required": ["numbers"],
            "additionalProperties": False,
        },
    ]
}


@dataclass(frozen=True)
class Seeds:
    """The numbers of repetitions.

    Attributes:
        numbers: Each once; empty where nothing is repeated.
        vary: The axes of randomness that a number is given to.
        path: The key of the sweep that says so.
    """

    numbers: tuple[int, ...] = ()
    vary: tuple[str, ...] = _VARIED
    path: KeyPath = SEEDS

    @property
    def repetitions(self) -> tuple[int | None, ...]:
        """The number of each repetition: None for the only one where nothing is repeated."""
        return self.numbers or (None,)

    def changes(self, number: int | None, spec: Any) -> list[overrides.Change]:
        """What a repetition changes in a spec that was read; in `release` mode no seed of the run.

        Args:
            number: Of `repetitions`.
            spec: The spec's values.
        """
        if number is None:
            return []
        varied = [axis for axis in self.vary if axis != "run" or _is_reproducible(spec)]
        place = Place(dotted(self.path))
        return [overrides.Change(SEED_FIELDS[axis], number, place) for axis in varied]


def seeds_of(document: Document, problems: list[SpecProblem]) -> Seeds:
    """Read `seeds`.

    Args:
        document: A sweep.
        problems: Gets what is wrong.
    """
    return _read(document, Seeds(), 0, problems)


def search_seeds_of(document: Document, reported: Seeds, problems: list[SpecProblem]) -> Seeds:
    """Read `tune.seeds`, of which none may be a number that the best candidate is reported with.

    Args:
        document: A sweep.
        reported: Its `seeds`. By default a search varies what these do.
        problems: Gets what is wrong.
    """
    # What counts from here on meets no number that `seeds: N` counts.
    found = _read(document, Seeds((), reported.vary, SEARCH_SEEDS), MOST_SEEDS, problems)
    both = [number for number in found.numbers if number in reported.numbers]
    message = ""
    if both:
        message = (
            f"has {', '.join(map(str, both))} in common with seeds, so the result would be "
            "reported on the runs that decided the search; give numbers that are not in seeds"
        )
    elif found.numbers and not reported.numbers:
        message = (
            "the best candidate is run again with each of seeds, which is missing; give seeds: 5, "
            "or a list of numbers that the search does not use"
        )
    if message and not problems:
        problems.append(document.place(SEARCH_SEEDS).problem(SEARCH_SEEDS, message))
    return found


def _read(document: Document, default: Seeds, first: int, problems: list[SpecProblem]) -> Seeds:
    """Read numbers and what they vary; a count of them starts at `first`."""
    path, value = default.path, document.at(default.path)
    if value is None:
        return default
    found: list[SpecProblem] = []

    def refuse(where: KeyPath, message: str) -> None:
        found.append(document.place(where).problem(where, message))

    numbers, vary = value, list(default.vary)
    if isinstance(value, dict):
        unknown = sorted(value.keys() - {"numbers", "vary"})
        if unknown or "numbers" not in value:
            refuse(path, f"the keys are numbers and vary, not {', '.join(unknown) or 'vary alone'}")
            problems += found
            return default
        numbers, vary = value["numbers"], value.get("vary", vary)
    if isinstance(numbers, int) and not isinstance(numbers, bool) and 1 <= numbers <= MOST_SEEDS:
        numbers = list(range(first, first + numbers))
    whole = isinstance(numbers, list) and 1 <= len(numbers) <= MOST_SEEDS
    if not whole or not all(_is_seed(number) for number in numbers):
        refuse(
            path,
            f"how many seeds, 1 to {MOST_SEEDS:,}, or a list of their numbers, each from 0 to "
            f"{LARGEST_SEED}",
        )
    elif len(set(numbers)) < len(numbers):
        refuse(path, "every seed once")
    words = isinstance(vary, list) and all(isinstance(axis, str) for axis in vary)
    if not words or not vary or not all(axis in SEED_FIELDS for axis in vary):
        known = ", ".join(SEED_FIELDS)
        refuse((*path, "vary"), f"what the seeds vary: a list of some of {known}")
    problems += found
    return default if found else Seeds(tuple(numbers), tuple(vary), path)


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_SEED


def _is_reproducible(spec: Any) -> bool:
    mode = spec.get("randomness") if isinstance(spec, dict) else None
    return (mode.get("mode") if isinstance(mode, dict) else mode) == "reproducible"
