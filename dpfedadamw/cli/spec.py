"""``spec`` and ``list``: what a spec says, and what it can name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import (
    JsonOption,
    Kind,
    SetOption,
    SpecArgument,
)
from dpfedadamw.cli.terminal import (
    out,
    print_document,
    print_json,
    refuse,
    status,
)
from dpfedadamw.registration import Registry


def spec_validate(
    spec: SpecArgument, changes: SetOption = None, as_json: JsonOption = False
) -> None:
    """Check a spec as a run would before it begins: its keys, its data and what it can spend.

    All faults in its keys are listed at once. If the data are not on this machine, only what needs
    no record is checked, and the output says so. A model that needs the spec's own code is not
    built.
    """
    from dpfedadamw import spec as specs

    loaded = specs.load(spec, changes or ())
    from dpfedadamw.data.identifiers import suspected
    from dpfedadamw.experiment import check, not_built

    with status("checking", quiet=as_json):
        absent = check(loaded)
        people = None if absent else suspected(loaded.data)
    code = not_built(loaded)
    if as_json:
        noted: dict[str, Any] = {} if code is None else {"not_built": code}
        if people is not None:
            noted["people"] = {"column": people.column, "most_rows": people.most}
        print_json({"valid": True, "name": loaded.name, "unchecked": absent, **noted})
        return
    out.print(Text(f"{spec}: valid", style="green"))
    if people is not None:
        out.print(Text(f"People: {people}."))
    if absent is not None:
        out.print(
            Text(
                f"Only its keys were checked: {absent}. What it can spend, and whether its model "
                "reads its records, is known once the data are here."
            )
        )
    if code is not None:
        module = code.partition(":")[0]
        line = f"Its model was not built, because {code} is code named in the spec: dpfedadamw "
        out.print(Text(f"{line}model check {spec} --allow-code {module} builds it."))


@may_run_named_code
def spec_show(
    spec: SpecArgument,
    changes: SetOption = None,
    partition: Annotated[
        bool, typer.Option("--partition", help="Show how many records each client holds.")
    ] = False,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels", help="With --partition: also show label counts, which are private."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --partition: a picture, .svg, .png or .pdf."),
    ] = None,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Show the model's parameter blocks instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the resolved spec with every default, or its partition, or its blocks."""
    from dpfedadamw import spec as specs

    if not partition and (labels or output is not None):
        refuse("--labels, --output: these belong to --partition; add it")
    if partition and blocks:
        refuse("--partition, --blocks: give one of the two")
    loaded = specs.load(spec, changes or ())
    if partition:
        from dpfedadamw.cli.partition import show

        show(loaded, labels, output, as_json)
    elif blocks:
        from dpfedadamw.run.block_table import table_of

        with status("building the model", quiet=as_json):
            found = table_of(loaded)
        if as_json:
            print_json(asdict(found))
        else:
            out.print(display.block_table(found))
    elif as_json:
        print_json(loaded.to_mapping())
    else:
        print_document(specs.dump(loaded))


def spec_schema(as_json: JsonOption = False) -> None:
    """Print every field of a spec and of a sweep: type, range, default, unit and meaning."""
    from dpfedadamw import spec as specs
    from dpfedadamw.spec.fields import describe
    from dpfedadamw.spec.matrix.schema import describe_sweep, file_schema

    if as_json:
        print_json(file_schema())
        return
    rows = [
        (row.path, row.type, row.range, row.default, row.unit, row.description)
        for row in (*describe(specs.schema()), *describe_sweep())
    ]
    out.print(display.grid(("field", "type", "range", "default", "unit", "meaning"), rows))


def list_(kind: Annotated[Kind, typer.Argument()], as_json: JsonOption = False) -> None:
    """List what a spec can name: algorithms, models, datasets or shipped specs."""
    columns, rows = _listing(kind)
    listed = [dict(zip(columns, row, strict=True)) for row in rows]
    if kind is Kind.specs:
        _list_specs(listed, as_json)
    elif as_json:
        print_json(listed)
    else:
        out.print(display.sourced(columns, rows))


def _list_specs(listed: list[dict[str, str]], as_json: bool) -> None:
    """Single-run specs with their descriptions; the many sweeps with one line per folder."""
    from dpfedadamw import spec as specs
    from specs import SWEEP_FOLDERS, folder_of

    sweeps = specs.shipped_sweeps()
    if as_json:
        many = [
            {"name": s.name, "title": s.title, "description": s.description, "sweep": True}
            for s in sweeps
        ]
        print_json([*({**one, "sweep": False} for one in listed), *many])
        return
    columns = ("name", "title", "description")
    out.print(display.sourced(columns, [tuple(one.values()) for one in listed]))
    for folder, what in SWEEP_FOLDERS.items():
        rows = [(s.name, s.title) for s in sweeps if folder_of(s.name) == folder]
        title = f"{what}, many runs each: dpfedadamw sweep NAME --dry-run"
        out.print(display.grid(("name", "title"), rows, title=title))


def _listing(kind: Kind) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    if kind is Kind.algorithms:
        from dpfedadamw.algorithms.registry import ALGORITHMS

        order = ("record", "client", "none")
        rows: list[tuple[str, ...]] = []
        for entry in sorted(ALGORITHMS.values(), key=lambda entry: order.index(entry.unit)):
            source = _with_origin(ALGORITHMS, entry.name, entry.source)
            units = ", ".join(entry.units)
            rows.append((entry.name, units, entry.summary, source))
        return ("name", "privacy unit", "what it is", "source"), rows
    if kind is Kind.specs:
        from dpfedadamw import spec as specs

        return ("name", "title", "description"), [
            (s.name, s.title, s.description) for s in specs.shipped()
        ]
    if kind is Kind.datasets:
        from dpfedadamw.data.registry import DATASETS

        return ("name", "licence", "what it is", "from"), [
            (name, entry.licence, entry.summary, _with_origin(DATASETS, name, entry.origin))
            for name, entry in DATASETS.items()
        ]
    from dpfedadamw.models.registry import MODELS

    return ("name", "what it is", "source"), [
        (name, entry.summary, _with_origin(MODELS, name, entry.source))
        for name, entry in MODELS.items()
    ]


def _with_origin(registry: Registry[Any], name: str, source: str) -> str:
    """A source, and the distribution of a name that another package provides."""
    return "; from ".join(filter(None, (source, registry.origin(name))))


app = typer.Typer(help="Check, show and explain specs.", no_args_is_help=True)
app.command("validate")(spec_validate)
app.command("show")(spec_show)
app.command("schema")(spec_schema)
