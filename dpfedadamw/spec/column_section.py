"""The items of `data.columns`: what a column of a table holds, and how it becomes numbers.

All of it is constants that are known before a record is read, but for bounds that a run learns
privately: what is computed from private records (a mean, the largest value, which categories occur)
is a release, and these are the only ones that are paid for.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from dpfedadamw.spec.section import (
    Absent,
    AbsentInteger,
    AbsentNumbers,
    AbsentText,
    AbsentTexts,
    Contradictions,
    Section,
    Values,
    key,
    one_of,
)

MOST_COLUMNS = 10_000
_CONSTANT = (
    "a value computed from private records would be a release that no budget covers; give a "
    "constant known without them, such as from a data dictionary or a public sample"
)
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_DATE_WORDS = "a date such as 2020-01-31"

_Category = Annotated[
    str,
    key(
        ...,
        "A category, as written in the table.",
        title="Category",
        min_length=1,
        max_length=200,
        examples=("ward A",),
    ),
]
_Quantile = Annotated[
    float,
    key(
        ...,
        "A share of the records.",
        title="Quantile",
        gt=0,
        lt=1,
        examples=(0.01, 0.99),
    ),
]
_Word = Annotated[
    str, key(..., "A cell's text.", title="Word", min_length=1, max_length=50, examples=("yes",))
]


class ColumnSpec(Section, title="Column"):
    """A column of a table, and the constants by which its cells become numbers."""

    key_order: ClassVar[tuple[str, ...]] = ("name", "kind", "low", "high", "scale", "format")

    name: str = key(
        ...,
        "Name of the column, as in the table's first line.",
        title="Column name",
        min_length=1,
        max_length=200,
        examples=("age", "ward"),
    )
    kind: str = key(..., "What the column holds.", title="Kind of column")
    low: Annotated[Any, Absent()] = None
    high: Annotated[Any, Absent()] = None
    scale: AbsentText = None
    format: AbsentText = None
    categories: AbsentTexts = None
    buckets: AbsentInteger = None
    learn_quantiles: AbsentNumbers = ()
    learn_bins: AbsentInteger = None
    unseen: AbsentText = None
    true_words: AbsentTexts = None
    false_words: AbsentTexts = None
    missing: Annotated[Any, Absent()] = None
    indicator: bool = key(
        False,
        "Adds a number that is 1 where the cell is empty and 0 elsewhere. With it, missing is "
        "optional; without both, an empty cell is refused.",
        examples=(False, True),
    )


class NumberColumn(ColumnSpec, title="Numbers"):
    """Numbers, held to bounds and scaled to −1 to 1, or put into bins."""

    kind: Literal["number"] = "number"
    low: float = key(
        ...,
        "Lower bound: smaller values are raised to it. It becomes −1.",
        title="Lower bound",
        why=_CONSTANT,
        ge=-1e30,
        le=1e30,
        examples=(0.0,),
    )
    high: float = key(
        ...,
        "Upper bound: larger values are lowered to it. It becomes 1.",
        title="Upper bound",
        why=_CONSTANT,
        ge=-1e30,
        le=1e30,
        examples=(120.0,),
    )
    scale: Literal["linear", "log", "bins"] = key(
        "linear",
        "linear; log: x and the bounds are replaced by sign(x)·log(1 + |x|); or bins, for a column "
        "whose order of magnitude is unknown. With bins, a 1 among zeros marks the bin of the "
        "number; edges are ±1, ±2 and ±5 times powers of ten, from 0.001 on, between the bounds.",
        examples=("linear", "log", "bins"),
    )
    missing: float | None = key(
        None,
        "Number used for an empty cell, in the column's unit. Null refuses empty cells, or, if "
        "indicator is true, uses the middle of the scale (with bins, none of them).",
        title="Number of an empty cell",
        why=_CONSTANT,
        ge=-1e30,
        le=1e30,
        examples=(None, 40.0),
    )
    learn_quantiles: tuple[_Quantile, ...] = key(
        (),
        "Two shares between 0 and 1. Before the first round, tighter bounds between low and high "
        "are learnt at these quantiles of all training records. Each client sends a histogram with "
        "the noise of data.column_noise_multiplier, which is charged to the ledger. If empty, low "
        "and high are used. Needs unit record and Poisson sampling.",
        title="Quantiles that become the bounds",
        max_length=2,
        examples=((), (0.01, 0.99)),
    )
    learn_bins: int = key(
        32,
        "Number of cells of that histogram, of equal width between low and high (between their "
        "logarithms with scale log). Learnt bounds are edges of cells. A cell with fewer records "
        "than about three standard deviations of all clients' noise counts as empty.",
        title="Cells of the histogram",
        unit="cells",
        ge=1,
        le=4096,
        examples=(32, 64),
    )


class CategoryColumn(ColumnSpec, title="Categories"):
    """One of several texts; each category becomes a number that is 1 there and 0 elsewhere."""

    kind: Literal["category"] = "category"
    categories: tuple[_Category, ...] = key(
        (),
        "All categories, in their order. Empty if buckets are given.",
        why=_CONSTANT,
        max_length=MOST_COLUMNS,
        examples=((), ("A", "B", "C")),
    )
    buckets: int | None = key(
        None,
        "For unknown categories: the number of buckets into which a public hash (SHA-256) sorts "
        "all texts. Two texts in one bucket cannot be distinguished. Null if categories are given.",
        unit="numbers",
        ge=2,
        le=4096,
        examples=(None, 64),
    )
    unseen: Literal["refuse", "other"] = key(
        "refuse",
        "What to do with a text that is not a category: refuse stops and names the file's line; "
        "other adds a number that is 1 for all such texts.",
        title="Unseen category",
        examples=("refuse", "other"),
    )
    missing: str | None = key(
        None,
        "Category used for an empty cell. Null refuses empty cells, or, if indicator is true, "
        "makes all numbers of the categories 0.",
        title="Category of an empty cell",
        min_length=1,
        max_length=200,
        examples=(None, "unknown"),
    )


class BooleanColumn(ColumnSpec, title="Truth values"):
    """True or false, as 1 or 0; upper and lower case are the same."""

    kind: Literal["boolean"] = "boolean"
    true_words: tuple[_Word, ...] = key(
        ("true", "yes", "t", "y", "1"),
        "Cells that mean true.",
        title="Words for true",
        max_length=50,
        examples=(("ja",),),
    )
    false_words: tuple[_Word, ...] = key(
        ("false", "no", "f", "n", "0"),
        "Cells that mean false.",
        title="Words for false",
        max_length=50,
        examples=(("nein",),),
    )
    missing: bool | None = key(
        None,
        "Value used for an empty cell. Null refuses empty cells, or, if indicator is true, makes "
        "it 0.",
        title="Value of an empty cell",
        examples=(None, False),
    )


class DateColumn(ColumnSpec, title="Dates"):
    """Days, held to bounds and scaled to −1 to 1; a time of day behind the date is not read."""

    kind: Literal["date"] = "date"
    low: str = key(
        ...,
        "First day: earlier days are moved to it. It becomes −1.",
        title="First day",
        why=_CONSTANT,
        pattern=_DATE,
        expected=_DATE_WORDS,
        examples=("2000-01-01",),
    )
    high: str = key(
        ...,
        "Last day: later days are moved to it. It becomes 1.",
        title="Last day",
        why=_CONSTANT,
        pattern=_DATE,
        expected=_DATE_WORDS,
        examples=("2030-12-31",),
    )
    format: Literal["YYYY-MM-DD", "YYYYMMDD", "DD.MM.YYYY", "DD/MM/YYYY", "MM/DD/YYYY"] = key(
        "YYYY-MM-DD",
        "How the table writes days.",
        title="Form of a date",
        examples=("YYYY-MM-DD", "DD.MM.YYYY"),
    )
    missing: str | None = key(
        None,
        "Day used for an empty cell. Null refuses empty cells, or, if indicator is true, uses the "
        "middle.",
        title="Day of an empty cell",
        why=_CONSTANT,
        pattern=_DATE,
        expected=f"{_DATE_WORDS}, or null",
        examples=(None, "2015-01-01"),
    )


COLUMN = one_of("kind", NumberColumn, CategoryColumn, BooleanColumn, DateColumn)
PreparedColumns = Annotated[
    tuple[Annotated[ColumnSpec, COLUMN], ...],
    key(
        (),
        "Columns to prepare, each by constants that it declares. Nothing is computed from the "
        "records, except for bounds learnt privately with learn_quantiles. Columns that are not "
        "listed are not read.",
        title="Columns",
        max_length=MOST_COLUMNS,
        examples=((), ({"name": "age", "kind": "number", "low": 0.0, "high": 120.0},)),
    ),
]
ColumnNoise = Annotated[
    float | None,
    key(
        None,
        "σ of the Gaussian noise that each client adds to each count of the histograms by which "
        "bounds are learnt, in records. Each column with learn_quantiles costs one Gaussian query "
        "of all records at this σ, in addition to the rounds. Null where no bound is learnt.",
        title="Noise on histograms of columns",
        unit="records",
        ge=0.1,
        le=1_000_000,
        examples=(None, 20.0),
    ),
]
MissingValues = Annotated[
    tuple[_Word, ...],
    key(
        (),
        "Texts that count as an empty cell, such as NA, in the label's column too.",
        title="Missing values",
        max_length=50,
        examples=((), ("NA", "?")),
    ),
]


def contradictions(get: Values) -> Contradictions:
    """What items of `data.columns` contradict, each other or themselves."""
    yield from _learnt(get)
    names: set[str] = set()
    for number, _ in enumerate(get("data", "columns") or ()):
        path = ("data", "columns", number)
        name, kind = get(*path, "name"), get(*path, "kind")
        if name in names:
            yield (*path, "name"), f"{name} is listed twice; a column is read once"
        if isinstance(name, str):
            names.add(name)
        if kind in ("number", "date"):
            yield from _bounds(get, path, kind)
        elif kind == "category":
            yield from _categories(get, path)
        elif kind == "boolean":
            true, false = (_texts(get(*path, key)) for key in ("true_words", "false_words"))
            both = {word.casefold() for word in true} & {word.casefold() for word in false}
            if both:
                yield (*path, "false_words"), f"holds {min(both)}, which means true; give it once"


def _texts(words: Any) -> list[str]:
    """The texts of a list; what is wrong with its other items was said already."""
    return [word for word in words or () if isinstance(word, str)]


def learns(column: ColumnSpec) -> bool:
    """Whether a column's bounds are learnt from private records."""
    return bool(column.learn_quantiles)


def _learnt(get: Values) -> Contradictions:
    """What learnt bounds need, in addition to their own two quantiles."""
    noise, items = ("data", "column_noise_multiplier"), get("data", "columns") or ()
    found = [
        ("data", "columns", number, "learn_quantiles")
        for number, _ in enumerate(items)
        if get("data", "columns", number, "learn_quantiles")
    ]
    if not found:
        wrong = any(path[:2] == ("data", "columns") for path in get.bad)
        if get(*noise) is not None and not wrong:
            message = f"{get.found(*noise)}, but no column has learn_quantiles; leave it out"
            yield noise, message
        return
    if get(*noise) is None and noise not in get.bad:
        yield noise, "missing with learn_quantiles; give σ of the noise on each count, such as 20"
    for path in found:
        shares = get(*path)
        if any(bad[: len(path)] == path for bad in get.bad):
            continue
        if len(shares) != 2 or not shares[0] < shares[1]:
            yield path, f"found {list(shares)}; give two shares, the smaller first: [0.01, 0.99]"
        if get(*path[:-1], "scale") == "bins":
            yield path, "bins have no bounds to learn; use scale linear or log"
    refused = _refused(get)
    if refused is not None:
        yield found[0], f"{refused}; leave learn_quantiles out and give low and high yourself"


def _refused(get: Values) -> str | None:
    """Why bounds cannot be learnt with what the rest of the spec says; None where they can."""
    unit = get("privacy", "unit")
    if unit == "client":
        return (
            "with unit client no bound can be learnt: a client may have any number of records, so "
            "it could change a histogram by any amount"
        )
    if unit == "person":
        return (
            "with unit person no bound can be learnt: a histogram counts a person's records "
            "without a limit"
        )
    if unit == "none":
        return "with unit none no bound can be learnt: nothing would add noise to the histograms"
    if get("privacy", "sampling", "kind") in ("fixed", "shuffled"):
        return (
            "with adjacency replace-one no bound can be learnt: the noise is accounted for adding "
            "or removing a record (privacy.sampling.kind poisson)"
        )
    if get("tune", "selection") == "private":
        return (
            "in a private selection no bound can be learnt: no accountant covers trials with "
            "learnt bounds"
        )
    for name in ("noise_decay", "local_iterations"):
        if get("algorithm", name) is not None:
            return (
                "where steps or noise adapt no bound can be learnt: their limits do not include "
                "its cost"
            )
    return None


def _bounds(get: Values, path: tuple[str | int, ...], kind: str) -> Contradictions:
    ends: dict[str, Any] = {end: get(*path, end) for end in ("low", "high", "missing")}
    if kind == "date":
        for end, day in ends.items():
            if isinstance(day, str):
                try:
                    ends[end] = date.fromisoformat(day)
                except ValueError:
                    ends[end] = None
                    yield (
                        (*path, end),
                        f"found {day}, which is not a day of the calendar; correct it",
                    )
    if ends["low"] is not None and ends["high"] is not None and not ends["low"] < ends["high"]:
        yield (*path, "high"), f"found {ends['high']}, but low is {ends['low']}; give a larger one"


def _categories(get: Values, path: tuple[str | int, ...]) -> Contradictions:
    listed, buckets = (*path, "categories"), (*path, "buckets")
    if {listed, buckets} & get.bad:
        return
    found = get(*listed) or ()
    if len(_texts(found)) != len(found):
        return
    if bool(found) == (get(*buckets) is not None):
        given = "both are given" if found else "neither is given"
        yield (
            listed,
            f"{given}; list all categories, which must be known without the records, or set "
            "buckets: 64, into which a public hash sorts them",
        )
        return
    if len(set(found)) != len(found):
        twice = next(one for number, one in enumerate(found) if one in found[:number])
        yield listed, f"holds {twice} twice; give it once"
    if not found and get(*path, "unseen") == "other":
        yield (*path, "unseen"), "found other, but every text has a bucket; leave it out"
    missing = get(*path, "missing")
    if found and missing is not None and missing not in found:
        yield (
            (*path, "missing"),
            f"found {missing}, which is not in categories; use one of them, or null",
        )
    empty = set(_texts(get("data", "missing_values"))) & set(found)
    if empty:
        yield listed, f"holds {min(empty)}, which data.missing_values lists as an empty cell"
