"""The command line: every command of the project, and the only module that prints.

Exit codes: 0 good; 1 the audit says FAIL or NOT VERIFIED, or a signature does not hold; 2 what the
user gave is wrong, said in one line each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dpfedadamw import __version__, display
from dpfedadamw.errors import DpfedadamwError, SpecError

if TYPE_CHECKING:
    from dpfedadamw.run import Training

EXIT_NOT_PASSED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
RUNS = Path("runs")

app = typer.Typer(
    help="Differentially private federated learning that can be believed.\n\n"
    "A YAML spec goes in; a trained model comes out, with a privacy ledger, an independent audit "
    "and a signed report.\n\nStart with: dpfedadamw run quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
spec_app = typer.Typer(help="Check, show and explain specs.", no_args_is_help=True)
keys_app = typer.Typer(help="Make and show signing keys.", no_args_is_help=True)
app.add_typer(spec_app, name="spec")
app.add_typer(keys_app, name="keys")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

SpecArgument = Annotated[
    str,
    typer.Argument(metavar="SPEC", help="A YAML file, or a shipped spec's name: quickstart."),
]
RunArgument = Annotated[
    Path | None,
    typer.Argument(metavar="RUN_DIR", help="A run's folder; the newest run if left out."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one field: --set federation.rounds=40. Repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that holds runs.")]
TrainerKeyOption = Annotated[
    Path | None,
    typer.Option("--trainer-key", metavar="PEM", help="Private key that signs what was run."),
]
AuditorKeyOption = Annotated[
    Path | None,
    typer.Option("--auditor-key", metavar="PEM", help="Private key that signs what was found."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


class ViewName(StrEnum):
    """Towards whom an ε holds."""

    server = "server"
    third_party = "third-party"


class SolveName(StrEnum):
    """What calibration may change."""

    noise = "noise"
    rounds = "rounds"
    rate = "rate"
    local_steps = "local-steps"


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    models = "models"
    datasets = "datasets"
    specs = "specs"


class Role(StrEnum):
    """Who signs."""

    trainer = "trainer"
    auditor = "auditor"


class Audience(StrEnum):
    """Who reads a report."""

    internal = "internal"
    public = "public"


def _version(shown: bool) -> None:
    if shown:
        out.print(f"dpfedadamw {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Differentially private federated learning that can be believed."""


@app.command()
def run(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="SPEC", help="A YAML file, or a shipped spec's name: quickstart."),
    ] = None,
    out_dir: OutOption = RUNS,
    changes: SetOption = None,
    device: DeviceOption = "auto",
    engine: Annotated[
        str, typer.Option(help="Clipped-sum engine: auto, book-keeping, vmap or loop.")
    ] = "auto",
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Continue a run that was cut off.")
    ] = None,
    escrow: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the noise key in FILE (mode 0600). Whoever has it can subtract all noise.",
        ),
    ] = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train, audit, report and sign: SPEC in; model, ledger, audit and signed report out.

    The run is written to DIR/NAME-TIMESTAMP-ID, and DIR/latest points to it. Exit code 0 when the
    audit passes, 1 when it does not, 2 when the spec is wrong.
    """
    from dpfedadamw import spec as specs

    if (spec is None) == (resume is None):
        _refuse("give either a SPEC or --resume RUN_DIR, and not both")
    if resume is not None and changes:
        _refuse("--set: a resumed run keeps its spec; start a new run to change it")
    if resume is not None and escrow is not None:
        _refuse("--escrow: a resumed run draws a new key; escrow is for whole runs")
    # The spec is read before the engine is loaded, so that a wrong one is refused at once.
    wanted = specs.load(spec, changes or ()) if spec is not None else None
    from dpfedadamw import filing
    from dpfedadamw import run as engine_run

    chosen = engine_run.pick_device(device)
    with _status("reading data and dividing it among clients", quiet=as_json):
        if resume is not None:
            from dpfedadamw.rundir import open_existing

            training = engine_run.resume(open_existing(resume), chosen, engine)
        else:
            assert wanted is not None
            experiment = engine_run.prepare(wanted, chosen)
        signers = filing.load_signers(trainer_key, auditor_key)
        if resume is None:
            training = engine_run.start(experiment, out_dir, engine, escrow=escrow)
    for path in signers.created:
        err.print(Text(f"made a signing key: {path}", style="dim"))
    _train_and_file(training, signers, as_json)


def _train_and_file(training: Training, signers: Any, as_json: bool) -> None:
    from dpfedadamw import filing
    from dpfedadamw import run as engine_run
    from dpfedadamw.probe import probe_of

    folder = training.run.path
    federation = training.experiment.spec.federation
    try:
        with _progress(quiet=as_json) as progress:
            task = progress.add_task("training", total=federation.rounds)
            progress.update(task, completed=training.completed)

            def after_round(result: Any, evaluation: Any) -> None:
                text = "training"
                if evaluation.accuracy is not None:
                    text = f"training  accuracy {evaluation.accuracy:.1%}"
                progress.update(task, completed=result.completed, description=text)

            outcome = engine_run.train(training, on_round=after_round)
    except KeyboardInterrupt:
        _stop(f"stopped; continue with: dpfedadamw run --resume {folder}", EXIT_INTERRUPTED)
    with _status("auditing", quiet=as_json):
        filing.attest_training(training.run, probe_of(training), signers)
        findings = filing.audit(training.run)
    with _status("writing and signing the report", quiet=as_json):
        filing.file_report(training.run, findings, signers)
    found = findings.to_json()
    summary = {
        "run": training.run.identifier,
        "directory": str(folder),
        "test_accuracy": outcome.accuracy,
        "test_loss": outcome.loss,
        "privacy": {k: v for k, v in outcome.claim.items() if k != "profile"},
        "verdict": found["verdict"],
        "qualifications": found["qualifications"],
        "engine": outcome.engine,
    }
    if as_json:
        _print_json(summary)
    else:
        shown = _relative(folder)
        out.print(display.run_summary(summary, found["verdict"], found["qualifications"], shown))
        if found["verdict"] not in ("PASS", "NO CLAIM"):
            out.print(display.findings_table(found))
    _exit_by(found["verdict"])


@app.command()
def audit(
    run_dir: RunArgument = None,
    out_dir: OutOption = RUNS,
    write: Annotated[
        bool, typer.Option("--write", help="Replace audit.json and the report, and sign them anew.")
    ] = False,
    auditor_key: AuditorKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a run by its evidence: PASS, FAIL or NOT VERIFIED, check by check.

    Reads only, unless --write is given. Missing or unreadable evidence is never PASS. Exit code 0
    for PASS, 1 for FAIL and NOT VERIFIED. `python -m audit RUN_DIR` needs no engine.
    """
    from dpfedadamw import filing

    found_run = _find_run(run_dir, out_dir)
    with _status("auditing", quiet=as_json):
        findings = filing.audit(found_run)
    found = findings.to_json()
    if as_json:
        _print_json(found)
    else:
        out.print(Text(f"run {found_run.identifier}", style="bold"))
        out.print(display.findings_table(found))
    if write:
        filing.file_report(found_run, findings, filing.load_signers(None, auditor_key))
        err.print(Text("audit.json, report and attestation were written anew", style="dim"))
    elif not filing.same_as_filed(found_run, findings):
        err.print(
            Text(
                "note: these findings differ from the run's audit.json; --write files them",
                style="yellow",
            )
        )
    _exit_by(found["verdict"])


@app.command()
def report(
    run_dir: RunArgument = None,
    out_dir: OutOption = RUNS,
    audience: Annotated[
        Audience, typer.Option(help="internal, or public: nothing tells who took part how often.")
    ] = Audience.internal,
    auditor_key: AuditorKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report again (report.json, report.pdf) and sign it as the auditor.

    The same run gives the same bytes.
    """
    from dpfedadamw import filing

    found_run = _find_run(run_dir, out_dir)
    signers = filing.load_signers(None, auditor_key)
    with _status("writing and signing the report", quiet=as_json):
        files = filing.file_report(found_run, None, signers, audience.value)
    if as_json:
        _print_json({"json": str(files.json), "pdf": str(files.pdf)})
    else:
        out.print(display.facts([("report", str(files.pdf)), ("data", str(files.json))]))


@app.command()
def verify(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder.")],
    trainer_key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Public key that the trainer gave you by another way."),
    ] = None,
    auditor_key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Public key that the auditor gave you by another way."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every signature and hash of a run, offline.

    Without keys this proves integrity only: the files are the ones that were signed. With the keys
    you trust it proves by whom. Exit code 1 names each file that does not hold.
    """
    from dpfedadamw.rundir import open_existing
    from reports.verification import verify as verify_run

    result = verify_run(open_existing(run_dir).path, trainer_key, auditor_key)
    if as_json:
        _print_json(asdict(result))
    else:
        out.print(Text(f"run {open_existing(run_dir).identifier}", style="bold"))
        for problem in result.problems:
            out.print(Text.assemble(("  does not hold  ", "bold red"), str(problem)))
        for statement in result.statements:
            out.print(Text(f"  {statement}"))
        text = "every signature and hash holds" if result.ok else "NOT VALID"
        out.print(Text(text, style="bold green" if result.ok else "bold white on red"))
    if not result.ok:
        raise typer.Exit(EXIT_NOT_PASSED)


@app.command()
def epsilon(spec: SpecArgument, changes: SetOption = None, as_json: JsonOption = False) -> None:
    """Say what a spec will cost in privacy, before anything is trained.

    Every client is assumed to take part in every round; a run can only cost less.
    """
    from dpfedadamw import run as engine_run
    from dpfedadamw import spec as specs
    from dpfedadamw.claims import expected_claim

    with _status("accounting", quiet=as_json):
        experiment = engine_run.prepare(
            specs.load(spec, changes or ()), engine_run.pick_device("cpu")
        )
        claim = expected_claim(experiment.plan)
    if as_json:
        _print_json({**claim, "noise_multiplier": experiment.plan.noise_multiplier})
        return
    summary, by_client = display.cost(experiment.spec.name, experiment.plan, claim)
    out.print(summary)
    if by_client is not None:
        out.print(by_client)


@app.command()
def calibrate(
    spec: SpecArgument,
    target_epsilon: Annotated[
        float, typer.Option("--target-epsilon", metavar="E", help="ε to keep to, at the spec's δ.")
    ],
    view: Annotated[
        ViewName, typer.Option(help="Towards whom it holds: server, or third-party.")
    ] = ViewName.server,
    solve: Annotated[
        SolveName, typer.Option(help="What may change: noise, rounds, rate or local-steps.")
    ] = SolveName.noise,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the spec."),
    ] = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the noise, rounds, rate or local steps that keep to a target ε, and write the spec.

    The accountant is inverted and then asked again about the written spec: noise and rate end
    within 0.5 % below the target, never above. An existing file is never overwritten.
    """
    from dpfedadamw import spec as specs

    loaded = specs.load(spec, changes or ())
    from dpfedadamw.planning import Solve, View
    from dpfedadamw.planning import calibrate as solve_for

    path = output or Path(f"{loaded.name}-calibrated.yaml")
    if path.exists():
        _refuse(f"--output {path}: exists and is never overwritten; choose another name")
    with _status("inverting the accountant", quiet=as_json):
        found = solve_for(loaded, target_epsilon, View(view.value), Solve(solve.value))
    try:
        path.write_text(specs.dump(found.spec), encoding="utf-8")
    except OSError as error:
        _refuse(f"--output {path}: cannot be written ({error.strerror}); choose another place")
    if as_json:
        _print_json(
            {"spec": str(path), "key": found.key, "value": found.value, "epsilon": found.epsilon}
        )
        return
    towards = "the server" if view is ViewName.server else "a third party"
    out.print(
        display.facts(
            [
                (found.key, Text(f"{found.value:g}", style="bold")),
                (f"ε towards {towards}", f"{found.epsilon:.4f}  (target {target_epsilon:g})"),
                ("δ", f"{found.spec.privacy.delta:g}"),
                ("spec", str(path)),
            ]
        )
    )


@spec_app.command("validate")
def spec_validate(
    spec: SpecArgument, changes: SetOption = None, as_json: JsonOption = False
) -> None:
    """Check a spec without its data; all that is wrong is listed at once."""
    from dpfedadamw import spec as specs

    loaded = specs.load(spec, changes or ())
    if as_json:
        _print_json({"valid": True, "name": loaded.name})
    else:
        out.print(Text(f"{spec}: valid", style="green"))


@spec_app.command("show")
def spec_show(spec: SpecArgument, changes: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the resolved spec, every default written out."""
    from dpfedadamw import spec as specs

    loaded = specs.load(spec, changes or ())
    if as_json:
        _print_json(loaded.to_mapping())
    else:
        sys.stdout.write(specs.dump(loaded))


@spec_app.command("schema")
def spec_schema(as_json: JsonOption = False) -> None:
    """Print every field of a spec: type, range, default, unit and meaning."""
    from dpfedadamw import spec as specs

    if as_json:
        _print_json(specs.schema())
        return
    rows = [
        (row.path, row.type, row.range, row.default, row.unit, row.description)
        for row in specs.describe(specs.schema())
    ]
    out.print(display.grid(("field", "type", "range", "default", "unit", "meaning"), rows))


@app.command("list")
def list_(kind: Annotated[Kind, typer.Argument()], as_json: JsonOption = False) -> None:
    """List what a spec can name: algorithms, models, datasets or shipped specs."""
    columns, rows = _listing(kind)
    if as_json:
        _print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        out.print(display.grid(columns, rows))


def _listing(kind: Kind) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    if kind is Kind.algorithms:
        from dpfedadamw.algorithms.registry import ALGORITHMS

        rows = [(n, e.unit, e.summary, e.source) for n, e in ALGORITHMS.items()]
        return ("name", "privacy unit", "what it is", "source"), list(rows)
    if kind is Kind.specs:
        from dpfedadamw import spec as specs

        return ("name", "title", "description"), [
            (s.name, s.title, s.description) for s in specs.shipped()
        ]
    if kind is Kind.models:
        from dpfedadamw.models.registry import DESCRIPTIONS
    else:
        from dpfedadamw.data.datasets import DESCRIPTIONS
    return ("name", "what it is"), list(DESCRIPTIONS.items())


@keys_app.command("new")
def keys_new(
    role: Annotated[Role, typer.Option(help="Who will sign with it.")],
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to put it; your key folder by default."),
    ] = None,
    protect: Annotated[
        bool, typer.Option("--passphrase", help="Ask for a passphrase to encrypt it with.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a signing key (ECDSA P-256): ROLE.key, private, and ROLE.pub, to give away.

    An existing key is never overwritten. Set DPFEDADAMW_PASSPHRASE to use a protected key.
    """
    from dpfedadamw import filing
    from reports import keys

    phrase = filing.passphrase()
    if protect and phrase is None:
        phrase = typer.prompt("passphrase", hide_input=True, confirmation_prompt=True, err=True)
    made = keys.create(role.value, directory or keys.default_directory(), phrase)
    fingerprint = keys.fingerprint(keys.load_public(made.public))
    if as_json:
        _print_json(
            {
                "private": str(made.private),
                "public": str(made.public),
                "fingerprint": fingerprint,
            }
        )
        return
    out.print(
        display.facts(
            [
                ("private key", f"{made.private}   keep it"),
                ("public key", f"{made.public}   give it away"),
                ("fingerprint", fingerprint),
            ]
        )
    )


def _find_run(run_dir: Path | None, parent: Path) -> Any:
    from dpfedadamw.rundir import newest, open_existing

    return open_existing(run_dir) if run_dir is not None else newest(parent)


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _exit_by(verdict: str) -> None:
    if verdict not in ("PASS", "NO CLAIM"):
        raise typer.Exit(EXIT_NOT_PASSED)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def _status(text: str, quiet: bool) -> Iterator[None]:
    if quiet or not err.is_terminal:
        yield
        return
    with err.status(text):
        yield


def _progress(quiet: bool) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=quiet,
        transient=True,
    )


def _refuse(message: str) -> NoReturn:
    _stop(message, EXIT_WRONG_INPUT)


def _stop(message: str, code: int) -> NoReturn:
    err.print(Text(message), soft_wrap=True)
    raise typer.Exit(code)


def _user_errors() -> tuple[type[Exception], ...]:
    """The base errors of all packages; the auditor and reports load only if they were used."""
    kinds: list[type[Exception]] = [DpfedadamwError]
    if "audit.errors" in sys.modules:
        from audit.errors import AuditError

        kinds.append(AuditError)
    if "reports.errors" in sys.modules:
        from reports.errors import ReportError

        kinds.append(ReportError)
    return tuple(kinds)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: runs a command and turns every error of ours into one line and exit code 2."""
    try:
        app(arguments, prog_name="dpfedadamw")
    except SpecError as error:
        for problem in error.problems:
            err.print(Text(str(problem)), soft_wrap=True)
        sys.exit(EXIT_WRONG_INPUT)
    except Exception as error:
        if isinstance(error, _user_errors()):
            err.print(Text(f"error: {error}"), soft_wrap=True)
            sys.exit(EXIT_WRONG_INPUT)
        if os.environ.get("DPFEDADAMW_DEBUG"):
            raise
        err.print(
            Text(
                f"internal error: {type(error).__name__}: {error}\nThis is a bug of dpfedadamw; "
                "DPFEDADAMW_DEBUG=1 shows where. Please report it."
            ),
            soft_wrap=True,
        )
        sys.exit(EXIT_INTERNAL)


if __name__ == "__main__":
    main()
