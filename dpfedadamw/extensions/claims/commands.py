"""``claim``: a printed privacy claim, judged without a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import EXIT_NOT_PASSED, out, print_json, status


def claim(
    file: Annotated[
        str,
        typer.Argument(metavar="CLAIM", help="A YAML file, or a shipped claim's name."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Judge a printed privacy claim without a run, as `audit --paper-claim`.

    What epsilon follows from the settings that a paper states, under each way of reading them, and
    which of those the printed one covers. Exit code 1 where it does not hold.
    """
    judge(file, as_json)


def judge(source: str, as_json: bool) -> None:
    """Judge a claim, say what was found, and end by it."""
    from audit.extensions.claims import judge_claim, load_claim

    with status("accounting", quiet=as_json):
        judged = judge_claim(load_claim(source))
    if as_json:
        print_json(judged.to_json())
    else:
        out.print(_shown(judged.to_json()))
    if not judged.holds:
        raise typer.Exit(EXIT_NOT_PASSED)


def _shown(found: Mapping[str, Any]) -> RenderableType:
    """A judged claim of a paper: what it states, the verdict, and every reading."""
    from audit.extensions.claims import rendering

    verdict = Text.assemble(display.verdict_text(found["verdict"]), f": {found['reason']}")
    remarks = [("remark", text) for text in found["remarks"]]
    parts: list[RenderableType] = [
        display.facts([*rendering.facts(found), ("verdict", verdict), *remarks])
    ]
    if found["readings"]:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(rendering.heading(found), justify="right", no_wrap=True)
        table.add_column("reading", overflow="fold", ratio=1)
        table.add_column("against", no_wrap=True)
        table.add_column("the claim", no_wrap=True)
        for name, means, towards, value, how in rendering.rows(found):
            reading = Text.assemble(name, "\n", (means, "dim"))
            table.add_row(Text(value, style="bold"), reading, towards, how)
        parts.append(table)
    if found["implied_noise_multiplier"]:
        title = "noise multiplier needed for the claimed epsilon"
        parts.append(display.facts(rendering.implied_rows(found), title=title))
    return Group(*parts)
