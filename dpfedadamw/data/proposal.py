"""What `data.columns` could say of a table: by what is public, and else by constants of a kind.

Of the private table only its form is used: names, kinds, which columns have empty cells, the
decimal sign. Bounds and categories come from a data dictionary, from a public sample, or from the
user; where there is none of these, the constants fit whatever the column holds: bins
up to a million, 64 hash buckets, two centuries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from dpfedadamw.data.features import number_in
from dpfedadamw.data.lines import close_to, rows
from dpfedadamw.data.survey import DATE_FORMS, LEFT_OUT, Seen, Survey
from dpfedadamw.errors import DataError

_UNKNOWN: Mapping[str, Mapping[str, Any]] = {
    "number": {"low": -1e6, "high": 1e6, "scale": "bins"},
    "category": {"buckets": 64},
    "boolean": {},
    "date": {"low": "1900-01-01", "high": "2099-12-31"},
}
_KINDS = {
    "number": ("number", "numeric", "integer", "int", "float", "decimal", "continuous"),
    "category": ("category", "categorical", "nominal", "factor", "string"),
    "boolean": ("boolean", "bool", "binary"),
    "date": ("date", "datetime", "timestamp"),
    "identifier": ("identifier", "id", "ignore", "skip", "text"),
}
# What a dictionary's columns may be called, besides the keys of a spec.
_HEADS = {
    "name": ("name", "column", "variable", "field"),
    "kind": ("kind", "type"),
    "low": ("low", "min", "minimum"),
    "high": ("high", "max", "maximum"),
    "categories": ("categories", "values", "levels", "codes"),
    "missing": ("missing",),
    "format": ("format",),
}
# Beyond these a sample's texts are hardly a column's categories.
_MOST_CATEGORIES = 200


@dataclass(frozen=True)
class Known:
    """What is known of columns without the private table, by name.

    Attributes:
        told: Keys of `data.columns` by a dictionary or the user; kind "identifier" leaves it out.
        sample: What was seen of a public sample; None where there is none.
    """

    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sample: Survey | None = None


@dataclass(frozen=True)
class Proposed:
    """What is proposed of one column.

    Attributes:
        seen: What was seen of it in the private table.
        keys: Its item of `data.columns`; None where it is left out.
        source: Where its constants are from, or why it is left out, in words.
        unknown: Whether its constants are those of a column of which nothing is known.
    """

    seen: Seen
    keys: Mapping[str, Any] | None
    source: str
    unknown: bool = False


def propose(seen: Seen, known: Known) -> Proposed:
    """Propose an item of `data.columns` for a column of the private table."""
    told = dict(known.told.get(seen.name, {}))
    public = known.sample.column(seen.name) if known.sample is not None else None
    said = told.pop("kind", "") or _implied(told)
    kind = said or (public.kind if public is not None else "") or seen.kind
    if kind in LEFT_OUT:
        reason = "as you say" if said else (public or seen).reason
        return Proposed(seen, None, reason)
    keys: dict[str, Any] = {"name": seen.name, "kind": kind}
    found, source = _constants(kind, told, public)
    keys |= found
    if kind == "date":
        form = told.get("format") or seen.format or (public.format if public else "")
        keys |= {"format": form} if form and form != DATE_FORMS[0] else {}
    if kind == "category" and "categories" in keys and "missing" not in told:
        keys["unseen"] = "other"
    if "missing" in told:
        keys["missing"] = _missing(kind, told["missing"], f"--dictionary: {seen.name}")
    if seen.has_empty or (public is not None and public.has_empty):
        keys["indicator"] = True
    return Proposed(seen, keys, source, source == _OF_ITS_KIND and kind != "boolean")


def _implied(told: Mapping[str, Any]) -> str:
    """The kind that follows from categories or bounds, where no kind is told."""
    if "categories" in told:
        return "category"
    return "" if "low" not in told else "date" if isinstance(told["low"], str) else "number"


def _missing(kind: str, cell: str, place: str) -> str | float | bool:
    """What an empty cell of a column counts as.

    Raises:
        DataError: If the column holds numbers, and it is none.
    """
    if kind == "boolean":
        return cell.lower() in ("true", "yes", "1")
    value = number_in(cell) if kind == "number" else cell
    if value is None:
        raise DataError(f"{place}: missing: found {cell[:40]!r}; give a number")
    return value


_OF_ITS_KIND = "constants that fit any column"


def _constants(
    kind: str, told: Mapping[str, Any], public: Seen | None
) -> tuple[dict[str, Any], str]:
    """Bounds or categories, and where they are from."""
    wanted = ("categories",) if kind == "category" else ("low", "high")
    if kind == "boolean":
        return {}, "true or false"
    # Many dictionaries have bounds of every column, and mean the codes of a category.
    fits = kind == "category" or isinstance(told.get("low"), str) == (kind == "date")
    if all(name in told for name in wanted) and fits:
        return {name: told[name] for name in wanted}, "given"
    if public is not None and public.kind == kind:
        if kind == "category" and len(public.values) <= _MOST_CATEGORIES:
            return {"categories": list(public.values)}, "the public sample"
        if isinstance(public.low, float) and isinstance(public.high, float):
            low, high = outward(public.low, public.high)
            return {"low": low, "high": high}, "the public sample"
        if kind == "date":
            return {"low": public.low, "high": public.high}, "the public sample"
    return dict(_UNKNOWN[kind]), _OF_ITS_KIND


def outward(low: float, high: float) -> tuple[float, float]:
    """Bounds around two numbers, of two digits each."""

    def rounded(value: float, away: Any) -> float:
        if not value:
            return 0.0
        step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
        return float(f"{away(value / step) * step:.6g}")

    below, above = rounded(low, math.floor), rounded(high, math.ceil)
    return (below, above) if below < above else (below, below + 1.0)


def read_dictionary(path: Path) -> dict[str, dict[str, Any]]:
    """Read a data dictionary: a CSV file with a row for each column of a table.

    Its own columns are name, kind, low, high, categories (with | between them), missing and format,
    of which name alone must be there.

    Raises:
        DataError: If it is none; the message says its line.
    """
    place = f"--dictionary {path}"
    try:
        lines = list(rows(path, True))
    except DataError as error:
        raise DataError(str(error).replace("data.path:", "--dictionary", 1)) from None
    if not lines:
        raise DataError(f"{place}: is empty; its first line is name,kind,low,high,categories")
    header = [name.strip().lower() for name in lines[0][1]]
    heads = {
        key: header.index(found)
        for key, names in _HEADS.items()
        if (found := next((name for name in names if name in header), None)) is not None
    }
    if "name" not in heads:
        raise DataError(
            f"{place}: has no column name; its first line is such as name,kind,low,high,categories"
        )
    told: dict[str, dict[str, Any]] = {}
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            raise DataError(
                f"{place}: line {number}: {len(cells)} cells, the header has {len(header)}"
            )
        row = {key: cells[at].strip() for key, at in heads.items() if cells[at].strip()}
        if "name" not in row or row["name"] in told:
            what = "is empty" if "name" not in row else f"{row['name']} stands there twice"
            raise DataError(f"{place}: line {number}: name: {what}; give each column once")
        told[row.pop("name")] = _row(row, f"{place}: line {number}")
    return told


def _row(row: Mapping[str, str], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "kind" in row:
        word = row["kind"].lower()
        found["kind"] = next((kind for kind, words in _KINDS.items() if word in words), None)
        if found["kind"] is None:
            raise DataError(
                f"{place}: kind: found {row['kind'][:40]!r}; use number, category, boolean, date "
                "or identifier"
            )
    if "categories" in row:
        found["categories"] = [one.strip() for one in row["categories"].split("|") if one.strip()]
    if "low" in row or "high" in row:
        found |= bounds(row.get("low", ""), row.get("high", ""), place)
    if "format" in row:
        found["format"] = row["format"]
        if row["format"] not in DATE_FORMS:
            raise DataError(
                f"{place}: format: found {row['format'][:40]!r}; use {', '.join(DATE_FORMS)}"
            )
    if "missing" in row:
        found["missing"] = row["missing"]
        _missing(found.get("kind", ""), row["missing"], place)
    return found


def bounds(low: str, high: str, place: str) -> dict[str, Any]:
    """Bounds that somebody wrote: two numbers or two days, the smaller first.

    Raises:
        DataError: If they are none.
    """
    ends: list[Any] = [number_in(low), number_in(high)]
    if None in ends:
        try:
            ends = [
                date.fromisoformat(low.strip()).isoformat(),
                date.fromisoformat(high).isoformat(),
            ]
        except ValueError:
            raise DataError(
                f"{place}: found {low[:40]!r} and {high[:40]!r} as bounds; give two numbers, or "
                "two days such as 2020-01-31"
            ) from None
    if not ends[0] < ends[1]:
        raise DataError(f"{place}: found {low} and {high} as bounds; give the smaller first")
    return {"low": ends[0], "high": ends[1]}


def check_names(names: Mapping[str, str], table: Survey) -> None:
    """Check that columns which options name are in a table.

    Args:
        names: The option that names each.
        table: The table.

    Raises:
        DataError: If one is not.
    """
    for name, option in names.items():
        if name not in table.names:
            raise DataError(
                f"{option} {name}: {table.path} has no such column among its {len(table.names)}"
                f"{close_to(name, table.names)}"
            )
