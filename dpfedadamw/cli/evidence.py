"""``evidence check``, ``close`` and ``merge``: evidence from recorders of other loops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import (
    EXIT_WRONG_INPUT,
    err,
    exit_by,
    out,
    print_json,
    status,
)


def evidence_check(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, written by any program.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Report faults of form in a ledger and its evidence, one line each; reads only.

    For programs that write their own evidence (docs/evidence.md). Readable evidence is not yet good
    evidence: `dpfedadamw audit` judges it. Exit code 0 without a fault, else 2.
    """
    from audit.evidence import faults

    found = faults(run_dir)
    if as_json:
        print_json({"run_dir": str(run_dir), "faults": found})
    elif not found:
        out.print(Text("ledger and evidence can be read; dpfedadamw audit judges them"))
    else:
        for fault in found:
            err.print(Text(fault), soft_wrap=True)
    if found:
        raise typer.Exit(EXIT_WRONG_INPUT)


def evidence_close(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Folders of recordings that were paused."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Close paused recordings that will not be continued, by writing their last line.

    A federated client does not know which of its rounds is the last, so it pauses after each. The
    claim is the one that the loop stated at its last pause. Sign and audit afterwards.
    """
    from dpfedadamw.registration import extension

    recorders = extension("dpfedadamw.extensions.recorders.evidence", "evidence close")
    closed = [str(recorders.close_paused(run_dir).path) for run_dir in run_dirs]
    if as_json:
        print_json({"closed": closed})
    else:
        out.print(Text(f"closed: {', '.join(one.name for one in run_dirs)}"), soft_wrap=True)


def evidence_merge(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="The folders of a training's clients."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Audit the folders of several clients, and show what holds for all of them; reads only.

    Clients that add noise to their own steps are audited one by one. If their records are disjoint,
    the largest ε holds for every record; the overall verdict is the clients' worst. Exit code 0 for
    PASS, else 1.
    """
    from audit.auditor import audit_run
    from audit.evidence.clients import Client, merge
    from audit.protection import in_front
    from audit.reading.bundle import open_bundle

    audited = []
    for run_dir in run_dirs:
        with status(f"auditing {run_dir.name}", quiet=as_json):
            ledger = open_bundle(run_dir).ledger
            header = ledger.header if ledger is not None else None
            audited.append(Client(run_dir.name, header, audit_run(run_dir)))
    merged = merge(audited)
    if as_json:
        print_json(merged.to_json())
    else:
        for one in merged.clients:
            spent = one["epsilon"]
            shown = "" if spent is None else f"  costs epsilon {display.epsilon_text(spent)}"
            failed = f"  {', '.join(one['failed'])}" if one["failed"] else ""
            out.print(Text(f"{one['folder']}: {one['verdict']}{shown}{failed}"), soft_wrap=True)
        for reason in merged.reasons:
            out.print(Text(reason), soft_wrap=True)
        if merged.epsilon is not None and merged.delta is not None:
            spent = display.epsilon_text(merged.epsilon)
            text = f"all clients: epsilon {spent} at delta = {merged.delta:g}"
            out.print(Text(text), soft_wrap=True)
        out.print(
            Text(f"overall: {in_front(merged.verdict.value, merged.unprotected)}", style="bold")
        )
        for text in merged.qualifications:
            out.print(Text(f"  {text}"), soft_wrap=True)
    exit_by(merged.verdict.value)


app = typer.Typer(help="Check evidence that another program wrote.", no_args_is_help=True)
app.command("check")(evidence_check)
app.command("close")(evidence_close)
app.command("merge")(evidence_merge)
