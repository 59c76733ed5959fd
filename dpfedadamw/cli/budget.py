"""``budget show``: what all runs on a data set may spend together, and what remains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import out, print_json, status

if TYPE_CHECKING:
    from dpfedadamw.budget.reservations import Standing

DEFAULT = Path("budget.sqlite")


def budget_show(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The budget's file, as budget.file of a spec.")
    ] = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show what every run has spent or reserved of a budget, and what is left for each data set.

    A stopped run keeps its reservation until it is resumed, or until the next run on the same data
    reserves budget. From then on it counts with what its ledger says. This command changes nothing.
    """
    from dpfedadamw.budget.reservations import standings

    with status("composing all runs", quiet=as_json):
        found = standings(file)
    if as_json:
        print_json({"file": str(file), "budgets": [_plain(one) for one in found]})
        return
    if not found:
        out.print(Text(f"{file}: no run has reserved anything yet"))
    for one in found:
        out.print(_shown(one))


def _plain(one: Standing) -> dict[str, Any]:
    from dpfedadamw.budget.charges import epsilon_of, to_plain

    account = one.account
    return {
        "data_sha256": account.data_sha256,
        "dataset": account.dataset,
        "unit": account.unit,
        "adjacency": account.adjacency,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "spent": one.spent,
        "charged": one.epsilon,
        "charged_by_accountant": one.by_accountant,
        "left": one.left,
        "runs": [
            {
                "run": run.run,
                "directory": run.directory,
                "reservation": run.identifier,
                "state": str(condition),
                "settled": run.state == "settled",
                "epsilon_alone": epsilon_of([run.cost], account.delta),
                "events": to_plain(run.cost),
            }
            for run, condition in one.reservations
        ],
    }


def _shown(one: Standing) -> Panel:
    from dpfedadamw.budget.charges import epsilon_of

    account = one.account
    reader = "a third party" if account.unit == "client" else "the server"
    facts = display.facts(
        [
            ("budget", f"ε = {account.epsilon:g} at δ = {account.delta:g}, against {reader}"),
            ("protects", f"one {account.unit}, {account.adjacency}"),
            ("spent", display.epsilon_text(one.spent)),
            ("spent or reserved", Text(display.epsilon_text(one.epsilon), style="bold")),
            ("left", f"{math.floor(one.left * 1000) / 1000:.3f}"),
        ]
    )
    table = Table(box=None, pad_edge=False)
    for name in ("run", "state", "ε alone", ""):
        table.add_column(name, justify="right" if name == "ε alone" else "left")
    for run, condition in one.reservations:
        alone = display.epsilon_text(epsilon_of([run.cost], account.delta))
        kind = "spent" if run.state == "settled" else "reserved"
        table.add_row(Text(run.run), Text(str(condition)), alone, kind)
    title = Text.assemble((account.dataset, "bold"), f" {account.data_sha256[:12]}…")
    return Panel(Group(facts, Text(), table), title=title, title_align="left")


app = typer.Typer(help="Show what all runs on the same data spend.", no_args_is_help=True)
app.command("show")(budget_show)
