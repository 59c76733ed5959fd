"""What ``init`` says of a table: its columns, what to look at, and what a spec took from its rows.

Nothing of it is a number that was counted among private cells, but sizes, which are public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpfedadamw.data.proposal import Proposed
from dpfedadamw.data.survey import Survey, Told

# Fewer records than these are sampled at a high rate.
_FEW = 50
FORM = (
    "Of the rows of {path} init took their form: which kinds its columns are, which have empty",
    "cells, how numbers are written, how many clients there are. That is public with this spec,",
    "as are the labels that occur, unless classes are given. No bound and no category was taken.",
)


def summary(table: Survey, records: int, clients: int, smallest: int) -> str:
    """How much there is, in a line."""
    return (
        f"{table.path}: {len(table.columns)} columns, {records:,} records of {clients:,} clients, "
        f"the smallest with {smallest:,}"
    )


def rows(
    table: Survey,
    proposed: Sequence[Proposed],
    section: Mapping[str, Any],
    label: str,
    client: str | None,
) -> list[tuple[str, str, str]]:
    """Name, guess and what becomes of each column."""
    said = {one.seen.name: one for one in proposed}
    found_rows = []
    for column in table.columns:
        found, kind = said.get(column.name), column.kind
        if column.name == label:
            become = "what the model is to tell"
        elif column.name == client:
            become = "whose a record is"
        elif column.name == section.get("person"):
            become = "whom a record is about"
        elif found is None:
            read = column.name in (*section.get("text", ()), *section.get("numbers", ()))
            become = "read as it stands" if read else "not read"
        elif found.keys is None:
            become = f"left out: {found.source}"
        else:
            words = constants(found.keys)
            become = f"{words} ({found.source})" if words else found.source
            kind = found.keys["kind"]
        empty = ", some empty" if column.has_empty else ""
        found_rows.append((column.name, f"{kind}{empty}", become))
    return found_rows


def constants(keys: Mapping[str, Any]) -> str:
    """The constants of a column in words."""
    if "low" in keys:
        low, high = (
            f"{end:,.10g}" if isinstance(end, float) else end for end in (keys["low"], keys["high"])
        )
        scale = ", in bins" if keys.get("scale") == "bins" else ""
        return f"{low} to {high}{scale}"
    if "buckets" in keys:
        return f"{keys['buckets']} hash buckets"
    if "categories" in keys:
        listed = ", ".join(keys["categories"])
        shown = listed if len(listed) < 60 else f"{len(keys['categories'])} categories"
        return f"{shown}{', other' if keys.get('unseen') == 'other' else ''}"
    return ""


def warnings(
    table: Survey,
    found: Told,
    proposed: Sequence[Proposed],
    label: str,
    client: str | None,
    person: str | None,
) -> list[str]:
    """What to look at. Nothing of it is a number that was counted among private cells."""
    told_of: list[str] = []
    if found.labels[""]:
        told_of.append(f"some rows have no {label}; they are left out (data.unlabelled: leave_out)")
    names = [name for name in found.labels if name]
    if len({name.casefold() for name in names}) < len(names):
        told_of.append(f"some labels of {label} differ in upper and lower case alone")
    given = {one.seen.name for one in proposed if one.keys is not None}
    for name in found.telling:
        if name in given:
            told_of.append(
                f"{name} alone says the {label} of every row: if it is the label in other words, "
                f"add --leave-out {name}"
            )
    for column in table.columns:
        about = column.kind == "identifier" and column.repeats and column.name != client
        if about and person is None:
            told_of.append(
                f"{column.name} stands in several rows: ε protects a record, and says less of a "
                f"person with several; if it says whom a row is about, add --person {column.name}"
            )
    unknown = [one.seen.name for one in proposed if one.unknown]
    if unknown:
        listed = f"{', '.join(unknown[:8])}{' and more' if len(unknown) > 8 else ''}"
        told_of.append(
            f"of {listed} no bounds or categories are known, and the model will tell less by them: "
            "give --dictionary, --public-sample, --bounds or --categories"
        )
    told_of += _about_clients(found, client)
    return told_of


def _about_clients(found: Told, client: str | None) -> list[str]:
    if client is None:
        return ["no --client says whose a record is: records are dealt out to made-up clients"]
    smallest = min(found.clients.values())
    if smallest >= _FEW:
        return []
    return [
        f"the smallest of {len(found.clients)} clients has {smallest} records: it is sampled at a "
        "high rate and decides the noise; leave such clients out, or join them"
    ]
