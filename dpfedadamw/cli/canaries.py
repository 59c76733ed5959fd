"""``canaries``, and ``audit --canaries N``: bounds ε from below by planted records.

A spec is trained again with records planted by fair coin flips, in a separate run that is audited,
reported and signed like any other. What its canaries show is printed by view.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from audit.protection import lower_bound_text, protects_nothing
from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import RUNS, AuditorKeyOption, DeviceOption, JsonOption, OutOption
from dpfedadamw.cli.terminal import (
    EXIT_INTERRUPTED,
    exit_by,
    find_run,
    out,
    print_json,
    progress_bar,
    refuse,
    relative,
    status,
    stop,
)
from dpfedadamw.storage.foreign import read_json_lines

if TYPE_CHECKING:
    from audit.verdict import Findings
    from dpfedadamw.canaries.engine import CanaryOrder
    from dpfedadamw.federation.rounds import RoundResult
    from dpfedadamw.run.evaluation import Evaluation
    from dpfedadamw.run.training import Training
    from dpfedadamw.rundir import RunDirectory
    from dpfedadamw.spec import Spec

# Not among the runs themselves: an audit run must never be picked as the newest run.
FOLDER = "canaries"


@may_run_named_code
def canaries(
    subject: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR|SPEC", help="What to train again; the newest run by default."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="Canaries planted.")] = 100,
    kind: Annotated[
        str,
        typer.Option(
            help="gradient (the strongest); input: crafted records, through the whole engine; "
            "secret: texts with a code, in a language model."
        ),
    ] = "gradient",
    out_dir: OutOption = RUNS,
    device: DeviceOption = "auto",
    auditor_key: AuditorKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a spec again with planted records and bound epsilon from below, as `audit --canaries`.

    The audit run is written to DIR/canaries; the audited run is not changed. Exit code 0 for PASS,
    1 for FAIL and NOT VERIFIED.
    """
    asked = CanaryAudit(
        subject=subject,
        out_dir=out_dir,
        count=count,
        kind=kind,
        device=device,
        auditor_key=auditor_key,
        as_json=as_json,
    )
    audit_with_canaries(asked)


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What is asked of an audit run.

    Attributes:
        subject: A run's folder, a spec file or a shipped spec's name; None for the newest run.
        out_dir: Folder that holds runs.
        count: N.
        kind: "gradient", "input" or "secret".
        device: As for ``run``.
        auditor_key: Signs what was found.
        as_json: Whether to print JSON.
    """

    subject: Path | None
    out_dir: Path
    count: int
    kind: str
    device: str
    auditor_key: str | None
    as_json: bool


def audit_with_canaries(asked: CanaryAudit) -> None:
    """Train, audit, report and sign an audit run, and print what its canaries show."""
    from dpfedadamw.canaries.engine import KINDS, RETIRED, CanaryOrder
    from dpfedadamw.experiment import pick_device, prepare
    from dpfedadamw.filing import after_training
    from dpfedadamw.run.setup import start
    from dpfedadamw.run.start_options import StartOptions

    if asked.kind in RETIRED:
        refuse(f"--canary-kind {asked.kind}: retired, because {RETIRED[asked.kind]}")
    if asked.kind not in KINDS:
        refuse(f"--canary-kind {asked.kind}: unknown; use {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if asked.count < 1:
        refuse(f"--canaries {asked.count}: must be at least 1")
    spec, audited, data = _subject(asked.subject, asked.out_dir)
    order = CanaryOrder(asked.count, asked.kind, audited)
    with status("reading the data and dividing them among clients", quiet=asked.as_json):
        experiment = prepare(spec, pick_device(asked.device))
        if data is not None and data != experiment.dataset.sha256:
            refuse(
                f"{asked.subject}: the data set has changed since this run, so canaries would say "
                "nothing about it; audit its spec instead"
            )
        signers = after_training.load_signers(None, asked.auditor_key)
        training = start(experiment, asked.out_dir / FOLDER, options=StartOptions(canaries=order))
    with training.lock:
        _train(training, asked.as_json)
        with status("auditing", quiet=asked.as_json):
            after_training.attest_training(training.run, signers)
            findings = after_training.audit(training.run)
        with status("writing and signing the report", quiet=asked.as_json):
            after_training.file_report(training.run, findings, signers.auditor, one_hand=True)
    _show(training.run, order, findings, asked.as_json)


def _subject(subject: Path | None, out_dir: Path) -> tuple[Spec, str | None, str | None]:
    """The spec to train again, and of a run its identifier and the digest of its data."""
    from dpfedadamw import spec as specs

    if subject is not None and not subject.is_dir():
        return specs.load(str(subject)), None, None
    run = find_run(subject, out_dir)
    header: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        header = read_json_lines(run.ledger)[0]
    if "canaries" in header:
        refuse(f"{run.path}: is an audit run itself; give the run or the spec that it audits")
    return specs.load_filed(run.spec), run.identifier, header.get("data_sha256")


def _train(training: Training, quiet: bool) -> None:
    from dpfedadamw.filing.after_training import probing_before_claim
    from dpfedadamw.run.training import train

    rounds = training.experiment.spec.federation.rounds
    with progress_bar(quiet=quiet) as progress:
        task = progress.add_task("training with canaries", total=rounds)

        def after_round(result: RoundResult, _evaluation: Evaluation) -> None:
            progress.update(task, completed=result.completed)

        try:
            train(training, after_round, before_claim=probing_before_claim())
        except KeyboardInterrupt:
            stop(
                "stopped; an audit run cannot be resumed, so start a new one with the same command",
                EXIT_INTERRUPTED,
            )


def _show(run: RunDirectory, order: CanaryOrder, findings: Findings, as_json: bool) -> None:
    """Print what the canaries found, and end with the verdict's exit code."""
    found, check = findings.to_json(), findings.named("canaries").to_json()
    if as_json:
        print_json(
            {
                "run": run.identifier,
                "directory": str(run.path),
                "audited": order.audited,
                "verdict": found["verdict"],
                **{key: found[key] for key in ("unprotected_against",) if key in found},
                "canaries": check,
            }
        )
    else:
        out.print(summary(run.identifier, relative(run.path), order, check))
        if found["verdict"] not in ("PASS", "NO CLAIM"):
            out.print(display.findings_table(found))
    exit_by(found["verdict"])


def _score_rows(scores: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """What all scores together say about the ledger's steps, in two lines."""
    if scores["contradicted"]:
        verdict = f"not explained by the ledger's steps: noise {scores['noise']:.3g} times theirs"
        interval = scores["noise_interval"]
        if interval is None or interval[0] <= 1.0 <= interval[1]:
            verdict += f", {scores['contribution']:.3g} times the clipping norm from a canary"
    else:
        verdict = "explained by the ledger's steps"
        if scores["noise_interval"] is not None:
            low, high = scores["noise_interval"]
            verdict += f": noise {low:.3f} to {high:.3f} times theirs"
        verdict += f"; {scores['noise_seen']:.2f} would have been seen"
    bound = (
        f"at least {lower_bound_text(scores['epsilon_these_steps'])} of these steps, "
        f"{lower_bound_text(scores['epsilon_any_contribution'])} whatever a canary adds, claimed "
        f"{display.epsilon_text(scores['claimed_epsilon'])}"
    )
    return [("scores", f"{scores['scores']:,}, {verdict}"), ("ε by them", bound)]


def _secret_rows(secrets: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    """How well the final model knows secrets that were there, and those that were not."""
    rows: list[tuple[str, RenderableType]] = []
    for name, words in (("there", "secrets there"), ("not_there", "secrets not there")):
        one = secrets[name]
        if one is not None:
            text = (
                f"exposure {one['exposure']:.2f} bits ({secrets['unseen_exposure']:.2f} of an "
                f"unseen one); {one['repeated']} of {one['secrets']} repeated by greedy decoding; "
                f"one sample repeats one with probability {one['chance']:.2g}"
            )
            rows.append((words, text))
    return rows


_VERDICTS = {"PASS": "NOT CONTRADICTED", "FAIL": "CONTRADICTED", "NOT VERIFIED": "NOT VERIFIED"}
_RELEASES = {
    "record": "every noised gradient",
    "person": "every noised gradient",
    "client": "every noised mean",
}
_VIEWS = {
    "beginning": "  of its first rounds alone",
    "final-model": "the final model",
}


def summary(
    identifier: str, folder: Path, order: CanaryOrder, check: Mapping[str, Any]
) -> RenderableType:
    """What the canaries of an audit run say: the bounds by view, their ceilings, the verdict.

    Args:
        identifier: The audit run's.
        folder: Where it lies.
        order: What was planted.
        check: The finding, as audit.json has it.
    """
    verdict = display.verdict_text(check["verdict"])
    verdict.plain = _VERDICTS.get(check["verdict"], check["verdict"])
    rows: list[tuple[str, RenderableType]] = [
        ("the claim", verdict),
        ("canaries", f"{order.count} of the kind {order.kind}, each there by a fair coin"),
        ("audits", order.audited or "the spec"),
        ("audit run", str(folder)),
    ]
    views = check["details"].get("views", [])
    high = [protects_nothing(view["claimed_epsilon"]) for view in views]
    if any(high):
        rows.insert(0, display.unprotected_row("anyone" if all(high) else "the server"))
    if scores := check["details"].get("scores"):
        rows += _score_rows(scores)
    if secrets := check["details"].get("secrets"):
        rows += _secret_rows(secrets)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("who sees", no_wrap=True)
    for heading in ("claimed ε", "any mechanism", "these steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for view in views:
        table.add_row(
            _VIEWS.get(view["view"], _RELEASES[check["details"]["unit"]]),
            display.epsilon_text(view["claimed_epsilon"])
            + (" " if view["could_contradict"] else "*"),
            *(
                " of ".join(
                    lower_bound_text(view[f"{what}_{name}"]) for what in ("epsilon", "ceiling")
                )
                for name in ("any_mechanism", "these_steps")
            ),
        )
    parts: list[RenderableType] = [display.facts(rows)]
    if check["details"]:
        parts += [table, Text()]
        delta, confidence = check["details"]["delta"], check["details"]["confidence"]
        parts.append(
            Text(
                f"Lower bounds on ε at δ = {delta:g} and {confidence:.0%} confidence: for any "
                "mechanism, and for the ledger's steps with only the noise in doubt. Next to them "
                f"is the most that {order.count} canaries could show. A claim that is not "
                "contradicted is not proved.",
                style="dim",
            )
        )
        if not all(view["could_contradict"] for view in check["details"]["views"]):
            text = f"* more than {order.count} canaries could ever contradict"
            parts.append(Text(text, style="yellow"))
    if check["verdict"] != "PASS":
        parts += [Text(), Text(check["measurement"], style="bold")]
    return Panel(Group(*parts), title=f"[bold]{identifier}", title_align="left")
