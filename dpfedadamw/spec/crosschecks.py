"""What keys of a spec mean to each other, where each alone is in range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpfedadamw.spec.algorithm_section import RegisteredAlgorithm, algorithms
from dpfedadamw.spec.document import KeyPath, dotted

# The adjacency under which each sampler of single records is accounted, why no other, and which
# sampler goes with the other one.
_PAIRINGS = {
    "poisson": ("add-remove", "the size of a Poisson batch varies with who is there", "fixed"),
    "fixed": ("replace-one", "adding a record changes who else is drawn", "poisson"),
    "shuffled": ("replace-one", "adding a record moves all batch boundaries", "poisson"),
}
_DIGITS_SIDE = 8


class _Values:
    """Resolved values of which some may be bad; a bad one reads as None."""

    def __init__(self, given: Any, resolved: Any, bad: set[KeyPath]) -> None:
        self._given, self._resolved, self.bad = given, resolved, bad

    def __call__(self, *path: str | int) -> Any:
        if any(path[:length] in self.bad for length in range(len(path) + 1)):
            return None
        return _at(self._resolved, path)

    def shown(self, *path: str) -> str:
        default = "" if _at(self._given, path) is not None else " (the default)"
        return f"{dotted(path)} is {self(*path)}{default}"

    def found(self, *path: str) -> str:
        default = "" if _at(self._given, path) is not None else " (the default)"
        return f"found {self(*path)}{default}"

    def is_bad(self, *path: str | int) -> bool:
        return path in self.bad


def _at(value: Any, path: KeyPath) -> Any:
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def contradictions(given: Any, resolved: Any, bad: set[KeyPath]) -> Iterator[tuple[KeyPath, str]]:
    """Yield (path, message) for what contradicts itself though each value is in range."""
    get = _Values(given, resolved, bad)
    yield from _participation(get)
    yield from _records(get)
    yield from _model_shapes(get)
    yield from _unit(get)
    yield from _second_moment(get)
    yield from _local_iterations(get, bad)
    yield from _sampling(get)
    yield from _adaptive_sampling(get)
    if get("privacy", "unit") in ("record", "client"):
        noise, target = ("privacy", "noise_multiplier"), ("privacy", "target_epsilon")
        if not {noise, target} & bad and get(*noise) is None and get(*target) is None:
            yield (
                noise,
                "missing; give noise_multiplier, or target_epsilon to have it solved for",
            )


def _participation(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    clients, drawn = get("data", "clients"), get("federation", "clients_per_round")
    if clients is not None and drawn is not None and drawn > clients >= 1:
        path = ("federation", "clients_per_round")
        message = f"{get.found(*path)}, but {get.shown('data', 'clients')}"
        yield path, f"{message}; must be at most {clients}"


def _records(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    dataset, path = get("data", "dataset"), ("data", "path")
    if "revision" in (get("data") or {}) and not {path, ("data", "revision")} & get.bad:
        sources = [key for key in ("path", "revision") if get("data", key) is not None]
        if len(sources) != 1:
            found = "both are given" if sources else "neither is given"
            message = f"{found}; give the path of the publisher's files, or a revision on the hub"
            yield path, message
    columns = {("data", "text"), ("data", "numbers")}
    if dataset == "table" and not columns & get.bad:
        given = [path for path in sorted(columns) if get(*path)]
        if len(given) != 1:
            yield ("data", "text"), "give columns of text or columns of numbers, one of the two"
    if get("data", "partition", "kind") == "column":
        section = ("data", "partition")
        column, file = get(*section, "column"), get(*section, "file")
        unknown = {(*section, "column"), (*section, "file")} & get.bad
        if not unknown and (column is None) == (file is None):
            yield (*section, "column"), "give a column of the table or a file, one of the two"
        elif column is not None and dataset is not None and dataset != "table":
            yield (*section, "column"), f"{dataset} has no columns; give file instead"
    if get("data", "validation", "fraction") and get("data", "validation", "public") is False:
        message = (
            "validation records are evaluated without noise and must be public; say public: true, "
            "or leave the fraction at 0"
        )
        yield ("data", "validation", "public"), message


def _model_shapes(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    match get("model", "name"):
        case "vit":
            width, heads = get("model", "width"), get("model", "heads")
            if width and heads and width % heads:
                what = get.shown("model", "heads")
                found = get.found("model", "width")
                yield ("model", "width"), f"{found}, but {what}; {_multiple(width, heads)}"
            patch = get("model", "patch")
            if patch and get("data", "dataset") == "digits" and _DIGITS_SIDE % patch:
                message = f"found {patch}, but digits are 8 x 8 pixels; must be one of 1, 2, 4, 8"
                yield ("model", "patch"), message
        case "cnn":
            groups = get("model", "groups")
            for index, channels in enumerate(get("model", "channels") or []):
                path = ("model", "channels", index)
                if groups and not get.is_bad(*path) and channels % groups:
                    message = f"found {channels}, but {get.shown('model', 'groups')}"
                    yield path, f"{message}; {_multiple(channels, groups)}"


def _multiple(value: int, unit: int) -> str:
    below = value - value % unit
    near = f"{below} or {below + unit}" if below else f"{unit}"
    return f"must be a multiple of {unit}, such as {near}"


def _algorithm(get: _Values) -> RegisteredAlgorithm | None:
    name = get("algorithm", "name")
    return algorithms().get(name) if isinstance(name, str) else None


def _unit(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    """What an algorithm runs under, and what would do the same under the unit that is asked for."""
    name, unit, entry = get("algorithm", "name"), get("privacy", "unit"), _algorithm(get)
    if entry is None or unit is None or unit in entry.units:
        return
    made_for = entry.units[0]
    nearest = [entry.relatives[unit]] if unit in entry.relatives else []
    if made_for == "none":
        found = f"{name} adds no noise, but privacy.unit is {unit}"
        choices = [*nearest, "privacy.unit none"]
    elif made_for == "client":
        found = f"{name} works on whole clients' updates, but privacy.unit is {unit}"
        choices = ["privacy.unit client", *nearest]
    elif unit == "none":
        found = f"{name} needs privacy.unit record, but it is none"
        choices = [*nearest, "privacy.unit record"]
    else:
        found = (
            f"{name} rests on noised gradients or uploads more than an update, which clipping "
            "whole updates does not cover"
        )
        fitting = [other for other, its in algorithms().items() if "client" in its.units]
        # What runs under both units comes first: it needs the least change.
        fitting.sort(key=lambda other: "record" not in algorithms()[other].units)
        yield (
            ("algorithm", "name"),
            f"{found}; with privacy.unit client use {' or '.join(fitting)}",
        )
        return
    yield ("algorithm", "name"), f"{found}; use {', or '.join(choices)}"


def _sampling(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    unit = get("privacy", "unit")
    if unit == "record":
        path = ("privacy", "adjacency")
        kind, adjacency = get("privacy", "sampling", "kind"), get(*path)
        right, why, other = _PAIRINGS.get(kind, (None, "", ""))
        if right and adjacency and adjacency != right:
            message = (
                f"{get.found(*path)}, but privacy.sampling.kind is {kind}, which is accounted "
                f"under {right} alone: {why}; use adjacency {right}, or sampling.kind {other}"
            )
            yield path, message
    if unit == "client" and get("federation", "client_sampling") == "fixed":
        message = (
            "found fixed, but privacy.unit is client, whose accounting rests on independent draws; "
            "use poisson, or leave it out"
        )
        yield ("federation", "client_sampling"), message


def _adaptive_sampling(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    """What rules that adapt from round to round are not accounted with."""
    name, entry = get("algorithm", "name"), _algorithm(get)
    if get("privacy", "unit") != "record" or entry is None or not entry.adaptive:
        return
    path: KeyPath = ("privacy", "sampling", "kind")
    if entry.budgeted and get(*path) == "shuffled":
        message = (
            f"found shuffled, but {name} holds all rounds together to a limit on steps, while "
            "shuffled epochs begin anew in each participation and count by it; use fixed, or "
            "poisson with adjacency add-remove"
        )
        yield path, message
    path = ("federation", "client_sampling")
    if get(*path) == "poisson":
        message = (
            f"found poisson, but {name} goes by what the round before released, and of "
            "independently drawn clients a round may have none; use fixed"
        )
        yield path, message


def _second_moment(get: _Values) -> Iterator[tuple[KeyPath, str]]:
    section = ("algorithm", "second_moment")
    aggregation = get(*section, "aggregation")
    if aggregation in ("full", "none") and get(*section, "denominator") == "block":
        message = (
            f"found block, but aggregation {aggregation} has no blocks; use coordinate, or an "
            "aggregation with blocks (heads, hessian, tensor, layer)"
        )
        yield (*section, "denominator"), message
    if aggregation == "none" and get(*section, "counter") == "local":
        message = (
            "found local, but aggregation none restarts the second moment every round, so both "
            "counters are the same; leave it at global"
        )
        yield (*section, "counter"), message


def _local_iterations(get: _Values, bad: set[KeyPath]) -> Iterator[tuple[KeyPath, str]]:
    section = ("algorithm", "local_iterations")
    fewest, most = get(*section, "minimum"), get(*section, "maximum")
    if fewest is None or most is None:
        return
    steps = get("federation", "local_steps")
    if fewest > most:
        message = f"found {fewest}, but {get.shown(*section, 'maximum')}; must be at most {most}"
        yield (*section, "minimum"), message
    elif steps is not None and not fewest <= steps <= most:
        path = ("federation", "local_steps")
        message = (
            f"{get.found(*path)}, the first round's, but algorithm.local_iterations allows "
            f"{fewest} to {most}; choose one of these, or change minimum or maximum"
        )
        yield path, message
    if get("privacy", "unit") != "record":
        return
    name = get("algorithm", "name")
    for key, other in (
        ("noise_multiplier", "target_epsilon"),
        ("target_epsilon", "noise_multiplier"),
    ):
        path = ("privacy", key)
        # Where both are missing, that is said for every algorithm.
        if path not in bad and get(*path) is None and get("privacy", other) is not None:
            message = (
                f"missing; {name} fits its local steps to target_epsilon under noise_multiplier, "
                "so it needs both"
            )
            yield path, message
