"""What ``init`` prints about a table: its columns, warnings, and what a spec took from its rows.

Except for sizes, which are public, none of it is a number counted from private cells.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from dpfedadamw.data.proposal import Proposed
from dpfedadamw.data.survey import Survey, Told

# A client with fewer records is sampled at a high rate.
_FEW = 50
FORM = (
    "From the rows of {path} init took only their form: the kinds of columns, which have empty",
    "cells, how numbers are written, how many clients there are. That is public with this spec,",
    "as are the labels that occur, unless classes are given. No bound and no category was taken.",
)


def summary(table: Survey, records: int, clients: int, smallest: int) -> str:
    """The amount of data, in one line."""
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
    """Name, guess and treatment of each column."""
    said = {one.seen.name: one for one in proposed}
    found_rows = []
    for column in table.columns:
        found, kind = said.get(column.name), column.kind
        if column.name == label:
            become = "what the model predicts"
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
    """Warnings, none of which is a number counted from private cells."""
    told_of: list[str] = []
    if found.labels[""]:
        told_of.append(f"some rows have no {label}; they are left out (data.unlabelled: leave_out)")
    names = [name for name in found.labels if name]
    if len({name.casefold() for name in names}) < len(names):
        told_of.append(f"some labels of {label} differ only in upper and lower case")
    given = {one.seen.name for one in proposed if one.keys is not None}
    for name in found.telling:
        if name in given:
            told_of.append(
                f"{name} alone determines the {label} of every row; if it restates the label, add "
                f"--leave-out {name}"
            )
    for column in table.columns:
        about = column.kind == "identifier" and column.repeats and column.name != client
        if about and person is None:
            told_of.append(
                f"values of {column.name} occur in several rows, and ε protects one record, not a "
                "person with several; if it names the person a row is about, add --person "
                f"{column.name}"
            )
    told_of += _about_forms(table, given)
    unknown = [one.seen.name for one in proposed if one.unknown]
    if unknown:
        listed = f"{', '.join(unknown[:8])}{' and more' if len(unknown) > 8 else ''}"
        told_of.append(
            f"no bounds or categories are known for {listed}, so the model can learn less from "
            "them; give --dictionary, --public-sample, --bounds or --categories"
        )
    told_of += _about_clients(found, client)
    return told_of


def _about_forms(table: Survey, given: Container[str]) -> list[str]:
    """Columns whose cells can be read in two ways."""
    told_of = [
        f"{column.name} is read as {column.format}, and all its cells are days by "
        f"{column.other_format} too; if that is meant, write it as format in the spec"
        for column in table.columns
        if column.other_format and column.name in given
    ]
    if table.with_comma and (wrong := [name for name in table.with_point if name in given]):
        told_of.append(
            f"numbers of {table.with_comma[0]} have a decimal comma and those of {wrong[0]} a "
            "point; data.decimal holds for all, so write them alike"
        )
    for name in () if table.with_comma else table.with_thousands:
        told_of.append(
            f"{name} has commas between thousands, or a decimal comma; write its numbers without, "
            "or set data.decimal: comma in the spec"
        )
    return told_of


def _about_clients(found: Told, client: str | None) -> list[str]:
    if client is None:
        return [
            "no --client names the client of a record: records are dealt out to simulated clients"
        ]
    smallest = min(found.clients.values())
    if smallest >= _FEW:
        return []
    return [
        f"the smallest of {len(found.clients)} clients has {smallest} records: it is sampled at a "
        "high rate and determines the noise; leave such clients out, or merge them"
    ]
