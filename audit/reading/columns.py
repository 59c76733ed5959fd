"""Bounds of columns that a run learnt: what spec, header, charges, answer and evidence say of them.

A client's histograms are charged by a line of kind "query" before their noise is drawn; one line of
kind "bounds" says what followed from all of them. Loaded for ledgers that have such lines, and for
specs that ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from audit.untrusted import fields
from audit.untrusted.archives import Arrays, Floats, Integers, floats, integers
from audit.untrusted.fields import FieldError

HEX = r"[0-9a-f]{64}"
_MOST_COLUMNS, _MOST_BINS = 10_000, 4096
_NAME = r"(?s).{1,200}"


@dataclass(frozen=True)
class Queries:
    """What the header declares: histograms of these columns, under this noise."""

    columns: tuple[str, ...]
    bins: tuple[int, ...]
    noise_multiplier: float


@dataclass(frozen=True)
class Query:
    """One client's charge for its histograms, written before their noise.

    Attributes:
        line: line of the ledger, from 1.
        client: whose records are counted.
        attempt: from 1.
        records: how many it has.
        columns: names, each a histogram.
        bins: cells of each.
        sensitivity: how far one record moves one histogram, in L2.
        noise_multiplier: noise on each count over the sensitivity.
    """

    line: int
    client: int
    attempt: int
    records: int
    columns: tuple[str, ...]
    bins: tuple[int, ...]
    sensitivity: float
    noise_multiplier: float


@dataclass(frozen=True)
class LearntColumn:
    """What the ledger or model.json says of one column's bounds: two edges of cells."""

    column: str
    place: int
    bins: int
    first: int
    last: int
    low: float
    high: float


@dataclass(frozen=True)
class Answer:
    """The ledger's line of kind "bounds": what was learnt, and the digest of what it follows from.

    Attributes:
        line: line of the ledger, from 1.
        columns: what was learnt.
        noised: sha256 (hex) of the noised counts of all clients.
    """

    line: int
    columns: tuple[LearntColumn, ...]
    noised: str


@dataclass(frozen=True)
class Promised:
    """A column whose bounds the spec has learnt."""

    name: str
    bins: int
    low: float
    high: float
    log: bool
    quantiles: tuple[float, float]


@dataclass(frozen=True)
class Histograms:
    """The evidence: counts of each client's records, and what was sent of them, [clients, cells].

    Attributes:
        counts: without noise.
        noised: with noise.
    """

    counts: Integers
    noised: Floats


def read_queries(section: Mapping[str, Any]) -> Queries:
    """The header's section as it stands in `Header`."""
    return Queries(*_columns(section), fields.positive(section, "noise_multiplier"))


def read_query(entry: Mapping[str, Any], line: int) -> Query:
    """A line of kind "query".

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    columns, bins = _columns(entry)
    return Query(
        line=line,
        client=fields.integer(entry, "client"),
        attempt=fields.integer(entry, "attempt", least=1, most=1_000_000),
        records=fields.integer(entry, "records"),
        columns=columns,
        bins=bins,
        sensitivity=fields.positive(entry, "sensitivity"),
        noise_multiplier=fields.positive(entry, "noise_multiplier"),
    )


def read_answer(entry: Mapping[str, Any], line: int) -> Answer:
    """A line of kind "bounds".

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    noised = fields.text(entry, "noised_sha256", pattern=HEX)
    return Answer(line, read_learnt(entry, "columns"), noised)


def read_learnt(source: Mapping[str, Any], key: str) -> tuple[LearntColumn, ...]:
    """The list of learnt columns under a key.

    Raises:
        FieldError: as for `read_answer`.
    """
    found = []
    for entry in fields.sequence(source, key, most=_MOST_COLUMNS):
        bins = fields.integer(entry, "bins", least=1, most=_MOST_BINS)
        first = fields.integer(entry, "first", most=bins - 1)
        found.append(
            LearntColumn(
                column=fields.text(entry, "column", pattern=_NAME),
                place=fields.integer(entry, "place"),
                bins=bins,
                first=first,
                last=fields.integer(entry, "last", least=first + 1, most=bins),
                low=fields.number(entry, "low"),
                high=fields.number(entry, "high"),
            )
        )
    return tuple(found)


def promised(spec: Mapping[str, Any]) -> tuple[Promised, ...]:
    """The columns whose bounds a spec has learnt; none of most specs.

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    data = fields.mapping(spec, "data")
    if not isinstance(data.get("columns"), list):
        return ()
    found = []
    for entry in fields.sequence(data, "columns", most=_MOST_COLUMNS):
        if not isinstance(entry, Mapping) or not entry.get("learn_quantiles"):
            continue
        shares = fields.sequence(entry, "learn_quantiles", most=2)
        if len(shares) != 2:
            raise FieldError("learn_quantiles does not hold two shares")
        low, high = (fields.as_number(one, "a quantile", least=0.0, most=1.0) for one in shares)
        found.append(
            Promised(
                name=fields.text(entry, "name", pattern=_NAME),
                bins=fields.integer(entry, "learn_bins", least=1, most=_MOST_BINS),
                low=fields.number(entry, "low"),
                high=fields.number(entry, "high"),
                log=fields.choice(entry, "scale", ("linear", "log")) == "log",
                quantiles=(low, high),
            )
        )
    return tuple(found)


def read_histograms(arrays: Arrays, clients: int, cells: int) -> Histograms:
    """The archive of the clients' histograms.

    Raises:
        FieldError: an array is missing, or has another shape or type.
    """
    shape = (clients, cells)
    return Histograms(integers(arrays, "counts", shape), floats(arrays, "noised", shape))


def _columns(source: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    names = fields.sequence(source, "columns", most=_MOST_COLUMNS)
    bins = fields.integers(source, "bins", least=1, most=_MOST_BINS)
    if not names or len(names) != len(bins) or len(set(map(str, names))) != len(names):
        raise FieldError("columns are not as many different names as there are numbers of bins")
    if not all(isinstance(name, str) and 1 <= len(name) <= 200 for name in names):
        raise FieldError("columns holds something that is not a column's name")
    return tuple(names), bins
