"""``flower``: federations of machines that hold their own records."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import (
    RUNS,
    AuditorKeyOption,
    JsonOption,
    OutOption,
    SetOption,
    TimestampOption,
    TrainerKeyOption,
)
from dpfedadamw.cli.terminal import (
    err,
    exit_by,
    out,
    print_json,
    refuse,
    refuse_unstamped,
    relative,
    status,
)

if TYPE_CHECKING:
    from dpfedadamw.experiment import Experiment
    from dpfedadamw.extensions.deployment.collect import Collected

SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or a shipped spec's name: quickstart.")
]
ClientsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of clients, all in each round; sets data.clients too."),
]  # fmt: skip


@may_run_named_code
def flower_new(
    spec: SpecArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    host: Annotated[
        str, typer.Option(help="Name or address at which clients reach the SuperLink.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperLink's port.")] = 9092,
    clients: ClientsOption = None,
    changes: SetOption = None,
) -> None:
    """Write a Flower project: keys, certificates, clients' folders, units, and how to run them.

    The spec's data are divided among the clients as a run would divide them. README.md in DIR has
    every command that follows.
    """
    from dpfedadamw.extensions.deployment.project import Addresses, make_project

    experiment = _experiment(spec, changes, clients)
    project = make_project(experiment, folder, Addresses(host=host, port=port))
    _tell_promise(experiment)
    out.print(
        Text(f"{relative(project.path)}: a federation of {project.clients} clients; continue with "
        f"{relative(project.path / 'README.md')}"),
        soft_wrap=True,
    )  # fmt: skip


@may_run_named_code
def flower_superlink(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The server's folder of the project.")
    ],
    host: Annotated[
        str, typer.Option(help="Address of this machine to listen on; 127.0.0.1 for itself alone.")
    ] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 9092,
    again: Annotated[
        float,
        typer.Option("--again-seconds", min=0.1,
                     help="Until a silent client is asked again; then twice as long each time."),
    ] = 30.0,
    answer: Annotated[
        float,
        typer.Option("--answer-seconds", min=1.0, help="Until a silent client counts as absent."),
    ] = 3600.0,
    meeting: Annotated[
        float, typer.Option("--meeting-seconds", min=1.0, help="Until all must have connected.")
    ] = 600.0,
) -> None:  # fmt: skip
    """Run the SuperLink and lead the run: the one command of the server's machine.

    SuperNodes reach it by TLS, and it knows them by their keys; it serves nothing else, to nobody.
    It ends with the run. If it was cut off, the same command continues the run.
    """
    from dpfedadamw.extensions.deployment.federated import lead
    from dpfedadamw.extensions.deployment.leading import finished
    from dpfedadamw.extensions.deployment.server import Patience
    from dpfedadamw.federation.flower.required import quiet, require

    run = finished(folder)
    if run is not None:
        # As after a restart of the machine.
        _tell_finished(run, folder)
        return
    require()
    from dpfedadamw.extensions.deployment.superlink import Door, grid
    from dpfedadamw.federation.flower.grid import GridLink

    door = Door(
        host=host, port=port, certificate=folder / "superlink.crt", key=folder / "superlink.key"
    )
    quiet()
    with grid(door, folder / "nodes") as found:
        err.print(Text(f"the SuperLink listens on {door.address}", style="dim"), soft_wrap=True)
        run = lead(folder, GridLink(found), Patience(again=again, answer=answer, meeting=meeting))
    _tell_finished(run, folder)


def flower_supernode(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The SuperNode's folder.")],
    superlink: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="The SuperLink's address, if it differs from the settings."
        ),
    ] = "",
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The client's socket, if it differs from the settings."),
    ] = None,
) -> None:
    """Run one client's SuperNode: it carries messages between the SuperLink and the client.

    It runs no app and no other code that the server sends. It ends when it is told to (Ctrl-C,
    SIGTERM), and connects again by itself where the SuperLink was away.
    """
    from dpfedadamw.extensions.deployment.supernode import NodeFolder, serve

    def tell(line: str) -> None:
        err.print(Text(line, style="dim"), soft_wrap=True)

    # A link that leads to itself is no error here, but what is read below it.
    serve(NodeFolder(Path(os.path.realpath(folder))), superlink, socket, tell)


@may_run_named_code
def flower_client(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The client's folder.")],
    most_charges: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, metavar="N",
                     help="Pay for at most N participations from now on. Default: the number "
                     "that the first start pinned."),
    ] = None,
) -> None:  # fmt: skip
    """Run one client's own process: it alone opens the client's records and key.

    It charges the client's ledger, computes, notes its evidence and signs what it sends, and is
    asked by the SuperNode of its machine. It ends when it is told to (Ctrl-C, SIGTERM); killed at
    any moment, it can be started again. The first start pins spec, records, keys and the number of
    participations in the client's ledger; a start that finds them changed is refused.
    """
    from dpfedadamw.extensions.deployment.listening import serve
    from dpfedadamw.extensions.deployment.site import Site

    def say(line: str) -> None:
        err.print(Text(line, style="dim"), soft_wrap=True)

    def ready(client: Any) -> None:
        for line in client.notes:
            say(line)
        say(f"client {client.number} listens in {folder}")

    serve(Site(Path(os.path.realpath(folder))), ready, say, most_charges)


@may_run_named_code
def flower_collect(
    server: Annotated[
        Path, typer.Argument(metavar="SERVER", help="The server's folder of the project.")
    ],
    clients: Annotated[
        list[Path],
        typer.Argument(metavar="CLIENT...", help="Folders of the clients that consent."),
    ],
    out_dir: OutOption = RUNS,
    replaces: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="An earlier collection of this run, whose signatures the new ones supersede.",
        ),
    ] = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one run of what server and clients hand in; audit it, report, and sign.

    What was not handed in is named, and the audit says which checks lack it: exit code 1. A
    client's folder may come without its key, and without share.npz where its records are not to be
    seen. To collect the same run again, as when a client's folder comes late, name the earlier
    collection by --replaces: otherwise both are signed as the first, and `verify` refuses one.
    """
    from dpfedadamw.extensions.deployment.collect import collect
    from dpfedadamw.extensions.deployment.leading import led_run

    filing = _filing(trainer_key, auditor_key, timestamp)
    with status("putting evidence together", quiet=as_json):
        collected = collect(led_run(server), server, clients, out_dir, replaces)
    _judge(collected, filing, as_json, again=replaces is not None)


@may_run_named_code
def flower_poc(
    spec: SpecArgument,
    clients: ClientsOption = None,
    out_dir: OutOption = RUNS,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--project", metavar="DIR", help="Keep the project here; by default it is deleted."
        ),
    ] = None,
    changes: SetOption = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole federation on this machine: SuperLink, SuperNodes and clients as processes.

    Each client has its own folder, records, ledger, evidence and keys; messages go over TLS, and
    SuperNodes are authenticated. The run is collected, audited, reported and signed; all processes
    are ended, however the command ends.
    """
    from dpfedadamw.federation.flower.required import require

    require()
    from dpfedadamw.extensions.deployment.collect import collect
    from dpfedadamw.extensions.deployment.leading import led_run
    from dpfedadamw.extensions.deployment.processes import Federation, local_addresses
    from dpfedadamw.extensions.deployment.project import make_project

    experiment = _experiment(spec, changes, clients)
    filing = _filing(trainer_key, auditor_key, timestamp)

    def tell(told: Any) -> None:
        if not as_json and told["state"] == "training":
            done = f"{told['completed']} of {experiment.spec.federation.rounds} rounds"
            err.print(Text(done, style="dim"), soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="poc-") as scratch:
        addresses = local_addresses()
        place = folder if folder is not None else Path(scratch) / "p"
        project = make_project(experiment, place, addresses)
        if not as_json:
            _tell_promise(experiment)
            err.print(Text(f"project: {relative(project.path)}", style="dim"), soft_wrap=True)
        with Federation(project, addresses) as federation:
            federation.run(tell)
        sites = [project.site(client).path for client in range(project.clients)]
        collected = collect(led_run(project.server), project.server, sites, out_dir)
    _judge(collected, filing, as_json)


def _experiment(spec: str, changes: list[str] | None, clients: int | None) -> Experiment:
    from dpfedadamw import spec as specs

    number: list[str] = []
    if clients is not None:
        number = [f"data.clients={clients}", f"federation.clients_per_round={clients}"]
    wanted = specs.load(spec, [*number, *(changes or ()), "federation.engine=flower"])
    from dpfedadamw.experiment import pick_device, prepare

    return prepare(wanted, pick_device("cpu"))


def _tell_finished(run: Path, folder: Path) -> None:
    line = (
        f"finished: {relative(run)}; next: dpfedadamw flower collect {relative(folder)} CLIENT..."
    )
    out.print(Text(line), soft_wrap=True)


def _tell_promise(experiment: Experiment) -> None:
    """What the clients of a new project agree to, which a lying server may use up."""
    from dpfedadamw.extensions.deployment.promise import sentences
    from dpfedadamw.extensions.deployment.site import reserve

    plan = experiment.plan
    reproducible = experiment.spec.randomness.mode == "reproducible"
    for line in sentences(plan, plan.rounds + reserve(plan.rounds), reproducible):
        err.print(Text(line, style="dim"), soft_wrap=True)


def _filing(trainer_key: str | None, auditor_key: str | None, timestamp: str | None) -> Any:
    from dpfedadamw.filing import after_training

    signers = after_training.load_signers(trainer_key, auditor_key)
    for path in signers.created:
        err.print(Text(f"made a signing key: {path}", style="dim"), soft_wrap=True)
    return after_training.Filing(signers, after_training.authority(timestamp))


def _judge(collected: Collected, filing: Any, as_json: bool, *, again: bool = False) -> None:
    from dpfedadamw.filing import after_training
    from dpfedadamw.storage.lock import RunLock

    run = collected.run
    for line in collected.missing:
        err.print(Text(f"not seen: {line}", style="yellow"), soft_wrap=True)
    for line in collected.refused:
        err.print(Text(line, style="yellow"), soft_wrap=True)
    with RunLock(run.path):
        trained = after_training.outcome_of(run)
        if trained is None:
            refuse(f"{run.path}: the run is not finished")
        if again:
            # The trainer's envelope that lies there is of the earlier collection.
            sign = partial(after_training.attest_training, run, filing.signers)
            after_training.stamped(sign, filing.authority)
        finished = after_training.finish(trained, filing, lambda what: status(what, quiet=as_json))
    summary, found = finished.summary, finished.findings
    if as_json:
        noted = {"not_seen": list(collected.missing), "refused": list(collected.refused)}
        print_json({**summary, **noted})
    else:
        shown = relative(run.path)
        out.print(display.run_summary(summary, found["verdict"], found["qualifications"], shown))
        if found["verdict"] not in ("PASS", "NO CLAIM"):
            out.print(display.findings_table(found))
    refuse_unstamped(finished.unstamped, run.path)
    exit_by(found["verdict"])


app = typer.Typer(
    help="Federations of machines by Flower: each client holds its own records, ledger and key.",
    no_args_is_help=True,
)
app.command("new")(flower_new)
app.command("poc")(flower_poc)
app.command("superlink")(flower_superlink)
app.command("client")(flower_client)
app.command("supernode")(flower_supernode)
app.command("collect")(flower_collect)
