"""``init``: a spec to start from, by flags or, in a terminal, by questions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import out, print_json, refuse

_TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".feather")


def init(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The spec to write; must not exist.")
    ] = Path("spec.yaml"),
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_PATH",
            help="A data set's name (dpfedadamw list datasets), a table, an .npz, or a folder of "
            "images.",
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="Of a table: the column of the class.")] = "label",
    text: Annotated[
        list[str] | None, typer.Option(help="Of a table: a column of text. Repeatable.")
    ] = None,
    numbers: Annotated[
        list[str] | None, typer.Option(help="Of a table: a column of numbers. Repeatable.")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Of a table: the column that says whose a record is.")
    ] = None,
    person: Annotated[
        str | None, typer.Option(help="Of a table: the column that says whom a record is about.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model's name (dpfedadamw list models), or package.module:Net."),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="An algorithm's name: dpfedadamw list algorithms.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="What is protected: record, person, client, or none.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="Delta.")] = 1e-5,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Write a spec to start from: what is left out is asked for, or has a default.

    The spec is checked before it is written. A file that is there already is never changed.
    """
    from dpfedadamw import spec as specs
    from dpfedadamw.spec import yamlwriter

    if file.exists():
        refuse(f"{file}: exists already; name a new file")
    asking = sys.stdin.isatty() and not as_json
    data = data or _asked("data: a name, a table, an .npz or a folder of images", "digits", asking)
    model = model or _asked("model: a name, or package.module:Net", "mlp", asking)
    unit = unit or _asked("what is protected: record, person, client or none", "record", asking)
    usual = {"client": "dp-fedavg", "none": "fedadamw"}.get(unit, "dp-fedadamw")
    algorithm = algorithm or _asked("algorithm", usual, asking)
    if epsilon is None and unit != "none":
        epsilon = float(_asked("target epsilon", "4", asking))
    held = _data(data, label, text or [], numbers or [], client, person) | {"clients": clients}
    if client is not None:
        held["partition"] = {"kind": "column", "column": client}
    mapping: dict[str, Any] = {
        "version": 1,
        "name": file.stem if file.stem.isidentifier() else "experiment",
        "data": held,
        "model": {"name": "python", "target": model} if ":" in model else {"name": model},
        "algorithm": {"name": algorithm},
        "federation": {
            "rounds": rounds,
            # A sampler of clients needs some who are left out.
            "clients_per_round": max(1, clients // 2) if unit == "client" else clients,
        },
        "privacy": _privacy(unit, epsilon, delta),
    }
    checked = specs.from_mapping(mapping)
    written = yamlwriter.write(mapping)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(f"# Keys that are left out have defaults: dpfedadamw spec show {file}\n")
            stream.write(written)
    except OSError as error:
        refuse(f"{file}: cannot be written ({error.strerror}); name a file that you may write to")
    from dpfedadamw.data.identifiers import suspected

    people = suspected(checked.data)
    if as_json:
        told = {} if people is None else {"people": str(people)}
        print_json({"file": str(file), "spec": mapping, **told})
        return
    out.print(Text(f"wrote {file}"))
    if people is not None:
        out.print(Text(f"people:         {people}"))
    allowed = f" --allow-code {model.partition(':')[0]}" if ":" in model else ""
    if unit != "none":
        out.print(Text(f"what it costs:  dpfedadamw epsilon {file}"))
    out.print(Text(f"run it:         dpfedadamw run {file}{allowed}"))


def _asked(question: str, usual: str, asking: bool) -> str:
    """The answer to a question in a terminal; elsewhere the usual one."""
    return str(typer.prompt(question, default=usual, err=True)) if asking else usual


def _data(
    named: str,
    label: str,
    text: list[str],
    numbers: list[str],
    client: str | None,
    person: str | None,
) -> dict[str, Any]:
    """The section `data` of a name or a path."""
    path = Path(named)
    if path.suffix.lower() in _TABLES:
        if not text and not numbers:
            refuse(f"--data {named}: say which columns are read: --text or --numbers, and --label")
        columns = {"text": text} if text else {"numbers": numbers}
        about = {} if person is None else {"person": person}
        return {"dataset": "table", "path": named, "label": label, **columns, **about}
    if text or numbers or client is not None or person is not None:
        refuse("--text, --numbers, --client, --person: name columns of a table; give one as --data")
    if path.suffix.lower() == ".npz":
        return {"dataset": "arrays", "path": named}
    if path.is_dir():
        return {"dataset": "image-folder", "path": named}
    return {"dataset": named}


def _privacy(unit: str, epsilon: float | None, delta: float) -> dict[str, Any]:
    if unit == "none":
        return {"unit": "none"}
    found = {"unit": unit, "clipping_norm": 1.0, "target_epsilon": epsilon, "delta": delta}
    if unit == "client":
        return found
    if unit == "person":
        found["records_per_person"] = 4
    return {**found, "sampling": {"kind": "poisson", "expected_batch_size": 32}}
