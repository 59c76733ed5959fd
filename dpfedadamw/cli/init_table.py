"""The part of ``init`` that reads a table: its content, the questions, and the spec's data section.

The table is private, and a spec is published. So only the table's form enters the spec; bounds and
categories are the user's, a dictionary's or a public sample's, or fit whatever a column holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpfedadamw.cli import display
from dpfedadamw.cli.init_words import constants, rows, summary, warnings
from dpfedadamw.cli.terminal import out, refuse
from dpfedadamw.data.files import fingerprint
from dpfedadamw.data.proposal import (
    Known,
    Proposed,
    bounds,
    check_names,
    propose,
    read_dictionary,
)
from dpfedadamw.data.survey import MISSING_WORDS, Survey, Told, survey, told
from dpfedadamw.errors import DataError

_MOST_CLASSES = 100
# Clients where no column names them, as the spec has by default.
_MADE_UP = 10


@dataclass(frozen=True)
class Wanted:
    """What the options say about a table.

    Attributes:
        label: Column of the class.
        client: Column that names the client of a record.
        person: Column that names the person of a record.
        text: Columns of text.
        numbers: Columns of numbers that are used unchanged.
        classes: Labels that may occur, with commas between them.
        dictionary: A data dictionary.
        sample: A public table with the same columns.
        bounds: NAME=LOW:HIGH each.
        categories: NAME=A,B,C each.
        leave_out: Columns that no model is given.
    """

    label: str | None
    client: str | None
    person: str | None
    text: Sequence[str]
    numbers: Sequence[str]
    classes: str | None
    dictionary: Path | None
    sample: Path | None
    bounds: Sequence[str]
    categories: Sequence[str]
    leave_out: Sequence[str]

    def given(self) -> bool:
        """Whether any option that belongs to a table was given."""
        return any(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True)
class Described:
    """What a spec says about a table.

    Attributes:
        section: The section `data`.
        smallest: Fewest records of a client, about.
        summary: The amount of data, in one line: sizes are public.
        warnings: What to look at, one line each.
        columns: Name, guess and treatment of each column.
    """

    section: dict[str, Any]
    smallest: int
    summary: str
    warnings: tuple[str, ...]
    columns: tuple[tuple[str, str, str], ...]


Ask = Callable[[str, str], str]


def describe(named: str, wanted: Wanted, clients: int | None, ask: Ask | None) -> Described:
    """Read a table and return what a spec would say about it.

    Args:
        named: The table's path, as given.
        wanted: What the options say.
        clients: The number of clients from an option.
        ask: Asks a question with a default answer, in a terminal; None without one.

    Raises:
        DataError: If the table, or an option about it, is wrong.
    """
    table = _read(Path(named), "--data")
    label = wanted.label or ("label" if "label" in table.names else "")
    if ask is not None and not label:
        out.print(display.grid(("column", "looks like"), [(c.name, c.kind) for c in table.columns]))
        label = ask("the column of the class to predict", "")
    if not label:
        columns = ", ".join(table.names[:20])
        refuse(f"--label: say which column is the class; {named} has {columns}")
    client = wanted.client
    if ask is not None and client is None:
        client = (
            ask("the column that names the client of a record; Enter if there is none", "") or None
        )
    _check(table, wanted, label, client)
    classes = [one.strip() for one in wanted.classes.split(",")] if wanted.classes else []
    found = told(table.path, label, client, classes)
    known = [replace(one, has_empty=one.name in found.with_empty) for one in table.columns]
    table = replace(table, columns=tuple(known))
    _check_numbers(table, wanted.numbers)
    _check_labels(found.labels, label, classes)
    section: dict[str, Any] = {"dataset": "table", "path": named, "label": label}
    proposed: list[Proposed] = []
    if wanted.text or wanted.numbers:
        section |= {"text": [*wanted.text]} if wanted.text else {"numbers": [*wanted.numbers]}
    else:
        proposed = _proposals(table, wanted, [label, client, wanted.person], ask)
        items = [one.keys for one in proposed if one.keys is not None]
        if not items:
            why = "; ".join(f"{one.seen.name}: {one.source}" for one in proposed[:5])
            refuse(f"--data {named}: no column is left that a model could be given ({why})")
        section["columns"] = items
        meant = {word for item in items for word in item.get("categories", ())} | {*classes}
        section["missing_values"] = [word for word in MISSING_WORDS if word not in meant]
    if found.labels[""] and "missing_values" not in section:
        section["missing_values"] = [word for word in MISSING_WORDS if word not in classes]
    section |= {"decimal": "comma"} if table.decimal == "comma" else {}
    section |= {"classes": classes} if classes else {}
    section |= {"person": wanted.person} if wanted.person is not None else {}
    section |= {"unlabelled": "leave_out"} if found.labels[""] else {}
    section |= _division(found, client, clients)
    records = found.labels.total() - found.labels[""]
    smallest = min(found.clients.values(), default=records // section["clients"])
    return Described(
        section,
        smallest,
        summary(table, records, section["clients"], smallest),
        tuple(warnings(table, found, proposed, label, client, wanted.person)),
        tuple(rows(table, proposed, section, label, client)),
    )


def _division(found: Told, client: str | None, clients: int | None) -> dict[str, Any]:
    """The number of clients, and which client holds which records."""
    if client is None:
        # Every client needs at least one batch of records.
        return {"clients": clients or _MADE_UP, "partition": {"kind": "iid"}}
    if clients not in (None, len(found.clients)):
        count = len(found.clients)
        refuse(f"--clients {clients}: the column {client} names {count}; leave --clients out")
    partition = {"kind": "column", "column": client}
    return {"clients": len(found.clients), "partition": partition}


def _read(path: Path, option: str) -> Survey:
    try:
        return survey(path)
    except DataError as error:
        raise DataError(str(error).replace("data.path:", option, 1)) from None


def _check(table: Survey, wanted: Wanted, label: str, client: str | None) -> None:
    """Check that every named column exists and is named for one purpose."""
    options = dict.fromkeys(wanted.leave_out, "--leave-out")
    options |= {one.partition("=")[0]: "--categories" for one in wanted.categories}
    options |= {one.partition("=")[0]: "--bounds" for one in wanted.bounds}
    options |= dict.fromkeys(wanted.numbers, "--numbers") | dict.fromkeys(wanted.text, "--text")
    options |= {wanted.person: "--person"} if wanted.person is not None else {}
    options |= {client: "--client"} if client is not None else {}
    inputs = [*wanted.text, *wanted.numbers]
    check_names({**options, label: "--label"}, table)
    if client == label:
        refuse(
            f"--client {client}: is also the label; name the column that holds the client of "
            "each record"
        )
    if label in inputs:
        option = "--text" if label in wanted.text else "--numbers"
        refuse(f"{option} {label}: is the label, which the model predicts; leave it out")
    if wanted.text and wanted.numbers:
        refuse("--text, --numbers: give one of the two; a record is texts or numbers")
    if inputs:
        _refuse_preparation(wanted)


def _refuse_preparation(wanted: Wanted) -> None:
    """Refuse options that say how columns are prepared, where columns are read unchanged."""
    options = {
        "--dictionary": wanted.dictionary,
        "--public-sample": wanted.sample,
        "--bounds": wanted.bounds,
        "--categories": wanted.categories,
        "--leave-out": wanted.leave_out,
    }
    for option, value in options.items():
        if value:
            reading = "--text" if wanted.text else "--numbers"
            refuse(
                f"{option}: is for columns that are prepared, and {reading} names all that are "
                "read; leave one of the two out"
            )


def _check_numbers(table: Survey, numbers: Sequence[str]) -> None:
    """Check that columns which are read unchanged hold numbers."""
    for name in numbers:
        column = table.column(name)
        if column is not None and (column.kind in ("category", "date", "text") or column.has_empty):
            why = "has empty cells" if column.has_empty else f"looks like a {column.kind}"
            refuse(
                f"--numbers {name}: {why}, and --numbers reads numbers unchanged; leave --numbers "
                "out to have columns prepared"
            )


def _check_labels(labels: Counter[str], label: str, classes: Sequence[str]) -> None:
    found = [name for name in labels if name]
    if len(found) < 2:
        how = "is empty in every row" if not found else "has one value in all non-empty rows"
        refuse(f"--label {label}: {how}; a classifier needs two or more classes")
    if len(found) > _MOST_CLASSES and not classes:
        refuse(
            f"--label {label}: more than {_MOST_CLASSES} different labels; to predict them as "
            "numbers, write data.targets and task: regression; otherwise give --classes"
        )
    if classes and set(found) - set(classes):
        refuse(f"--classes {','.join(classes)}: some rows of {label} have another label; list all")


def _proposals(
    table: Survey, wanted: Wanted, taken: Sequence[str | None], ask: Ask | None
) -> list[Proposed]:
    """What is proposed for each column that is neither label nor client."""
    dictionary = read_dictionary(wanted.dictionary) if wanted.dictionary is not None else {}
    keys: dict[str, dict[str, Any]] = {name: dict(one) for name, one in dictionary.items()}
    for one in wanted.categories:
        name, _, listed = one.partition("=")
        words = [word.strip() for word in listed.split(",") if word.strip()]
        if not words:
            refuse(f"--categories {one}: write NAME=A,B,C")
        keys[name] = {"kind": "category", "categories": words}
    for one in wanted.bounds:
        name, equals, ends = one.partition("=")
        low, colon, high = ends.partition(":")
        if not equals or not colon:
            refuse(f"--bounds {one}: write NAME=LOW:HIGH")
        keys[name] = bounds(low, high, f"--bounds {one}")
    keys |= {name: {"kind": "identifier"} for name in wanted.leave_out}
    known = Known(keys, _public(table, wanted.sample) if wanted.sample is not None else None)
    columns = [column for column in table.columns if column.name not in taken]
    return [_asked(propose(column, known), known, ask) for column in columns]


def _public(table: Survey, path: Path) -> Survey:
    """A public sample, which must not be the private table itself."""
    sample = _read(path, "--public-sample")
    digests = {fingerprint([one], one).sha256 for one in (path, table.path)}
    if len(digests) == 1:
        refuse(
            f"--public-sample {path}: is the private table itself: reading bounds from its rows "
            "would be a release that no ε accounts for; give rows that anyone may see, or "
            "--dictionary"
        )
    if not set(sample.names) & set(table.names):
        refuse(f"--public-sample {path}: has none of the columns of {table.path}")
    return sample


def _asked(proposed: Proposed, known: Known, ask: Ask | None) -> Proposed:
    """A proposal with the user's bounds or categories, where no other source has them."""
    if ask is None or not proposed.unknown or proposed.keys is None:
        return proposed
    name, kind = proposed.seen.name, proposed.keys["kind"]
    if kind == "category":
        said = ask(f"all categories of {name} with commas between them; Enter for 64 buckets", "")
        words = [word.strip() for word in said.split(",") if word.strip()]
        keys: dict[str, Any] = {"kind": "category", "categories": words} if words else {}
    else:
        usual = constants(proposed.keys)
        said = ask(f"bounds of {name}, LOW:HIGH; Enter for {usual}", "")
        low, _, high = said.partition(":")
        keys = bounds(low, high, f"bounds of {name}") if said else {}
    if not keys:
        return proposed
    return propose(proposed.seen, replace(known, told={name: keys}))
