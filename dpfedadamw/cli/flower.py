"""``flower``: federations of machines that hold their own records."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
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
    from dpfedadamw.deployment.collect import Collected
    from dpfedadamw.experiment import Experiment

SpecArgument = Annotated[
    str, typer.Argument(metavar="SPEC", help="A YAML file, or a shipped spec's name: quickstart.")
]


def flower_new(
    spec: SpecArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    host: Annotated[
        str, typer.Option(help="Name or address at which clients reach the SuperLink.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The SuperLink's port.")] = 9092,
    changes: SetOption = None,
) -> None:
    """Write a Flower project: keys, certificates, clients' folders, units, and how to run them.

    The spec's data are divided among the clients as a run would divide them. README.md in DIR has
    every command that follows.
    """
    from dpfedadamw.deployment.project import Addresses, make_project

    experiment = _experiment(spec, changes)
    project = make_project(experiment, folder, Addresses(host=host, port=port))
    out.print(
        Text(f"{relative(project.path)}: a federation of {project.clients} clients; go on with "
             f"{relative(project.path / 'README.md')}"),
        soft_wrap=True,
    )  # fmt: skip


def flower_client(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The client's folder.")],
) -> None:
    """Run one client's own process: it alone opens the client's records and key.

    It charges the client's ledger, computes, notes its evidence and signs what it sends, and is
    asked by the SuperNode of its machine. It ends when it is told to (Ctrl-C, SIGTERM); killed at
    any moment, it can be started again.
    """
    from dpfedadamw.deployment.site import Site
    from dpfedadamw.federation.flower.required import require

    require()
    from dpfedadamw.deployment.listening import serve

    def ready(client: Any) -> None:
        err.print(Text(f"client {client.number} listens in {folder}", style="dim"), soft_wrap=True)

    serve(Site(folder.resolve()), ready)


def flower_collect(
    server: Annotated[
        Path, typer.Argument(metavar="SERVER", help="The server's folder of the project.")
    ],
    clients: Annotated[
        list[Path],
        typer.Argument(metavar="CLIENT...", help="Folders of the clients that consent."),
    ],
    out_dir: OutOption = RUNS,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one run of what server and clients hand in; audit it, report, and sign.

    What was not handed in is named, and the audit says which checks lack it: exit code 1. A
    client's folder may come without its key, and without share.npz where its records are not to be
    seen.
    """
    from dpfedadamw.deployment.collect import collect
    from dpfedadamw.deployment.leading import led_run

    filing = _filing(trainer_key, auditor_key, timestamp)
    with status("putting evidence together", quiet=as_json):
        collected = collect(led_run(server), server, clients, out_dir)
    _judge(collected, filing, as_json)


def flower_poc(
    spec: SpecArgument,
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many clients: short for --set data.clients=N and as many a "
                     "round."),
    ] = None,
    out_dir: OutOption = RUNS,
    folder: Annotated[
        Path | None,
        typer.Option("--project", metavar="DIR", help="Keep the project here; by default it goes."),
    ] = None,
    changes: SetOption = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Run a whole federation on this machine: SuperLink, SuperNodes and clients as processes.

    Each client has its own folder, records, ledger, evidence and keys; messages go over TLS, and
    SuperNodes are authenticated. The run is collected, audited, reported and signed; all processes
    are ended, however the command ends.
    """
    from dpfedadamw.federation.flower.required import require

    require()
    from dpfedadamw.deployment.collect import collect
    from dpfedadamw.deployment.leading import led_run
    from dpfedadamw.deployment.processes import Federation, local_addresses
    from dpfedadamw.deployment.project import make_project

    if clients is not None:
        number = (f"data.clients={clients}", f"federation.clients_per_round={clients}")
        changes = [*number, *(changes or ())]
    experiment = _experiment(spec, changes)
    filing = _filing(trainer_key, auditor_key, timestamp)

    def tell(told: Any) -> None:
        if not as_json and told["state"] == "training":
            done = f"{told['completed']} of {experiment.spec.federation.rounds} rounds"
            err.print(Text(done, style="dim"), soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="poc-") as scratch:
        addresses = local_addresses(len(experiment.plan.records))
        place = folder if folder is not None else Path(scratch) / "p"
        project = make_project(experiment, place, addresses)
        if not as_json:
            err.print(Text(f"project: {relative(project.path)}", style="dim"), soft_wrap=True)
        with Federation(project, addresses) as federation:
            federation.run(tell)
        sites = [project.site(client).path for client in range(project.clients)]
        collected = collect(led_run(project.server), project.server, sites, out_dir)
    _judge(collected, filing, as_json)


def _experiment(spec: str, changes: list[str] | None) -> Experiment:
    from dpfedadamw import spec as specs

    wanted = specs.load(spec, [*(changes or ()), "federation.engine=flower"])
    from dpfedadamw.experiment import pick_device, prepare

    return prepare(wanted, pick_device("cpu"))


def _filing(trainer_key: str | None, auditor_key: str | None, timestamp: str | None) -> Any:
    from dpfedadamw.filing import after_training

    signers = after_training.load_signers(trainer_key, auditor_key)
    for path in signers.created:
        err.print(Text(f"made a signing key: {path}", style="dim"), soft_wrap=True)
    return after_training.Filing(signers, after_training.authority(timestamp))


def _judge(collected: Collected, filing: Any, as_json: bool) -> None:
    from dpfedadamw.filing import after_training, whole
    from dpfedadamw.storage.lock import RunLock

    run = collected.run
    for line in collected.missing:
        err.print(Text(f"not seen: {line}", style="yellow"), soft_wrap=True)
    with RunLock(run.path):
        trained = after_training.trained(run)
        if trained is None:
            refuse(f"{run.path}: the run is not finished")
        finished = whole.finish(trained, filing, lambda what: status(what, quiet=as_json))
    summary, found = finished.summary, finished.findings
    if as_json:
        print_json({**summary, "not_seen": list(collected.missing)})
    else:
        shown = relative(run.path)
        out.print(display.run_summary(summary, found["verdict"], found["qualifications"], shown))
        if found["verdict"] not in ("PASS", "NO CLAIM"):
            out.print(display.findings_table(found))
    refuse_unstamped(finished.unstamped, run.path)
    exit_by(found["verdict"])
