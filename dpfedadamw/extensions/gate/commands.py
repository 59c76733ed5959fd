"""``gate``: set up a site's gate, divide its data, and see what left it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from audit.protection import NO_PROTECTION_ABOVE, WORDS, protects_nothing
from dpfedadamw.cli import display
from dpfedadamw.cli.options import AuditorKeyOption, JsonOption, TimestampOption
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    exit_by,
    out,
    print_json,
    refuse,
    relative,
    status,
)
from dpfedadamw.extensions.gate.arguments import SettingsArgument
from dpfedadamw.extensions.gate.flower.commands import gate_supernode
from dpfedadamw.extensions.gate.nvflare.commands import gate_nvflare

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


class Unit(StrEnum):
    """What neighbouring data differ in."""

    record = "record"
    person = "person"
    site = "site"


KeyOption = Annotated[
    Path | None,
    typer.Option("--key", metavar="PUB", help="The gate's public key; this machine's by default."),
]


def gate_init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for gate.yaml and the ledger.")
    ],
    unit: Annotated[Unit, typer.Option(help="What the budget protects.")],
    model: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A .safetensors file with the arrays that may leave; values unread.",
        ),
    ],
    clip: Annotated[float, typer.Option(metavar="C", help="Largest norm of a shard's update.")],
    epsilon: Annotated[float, typer.Option(metavar="ε", help="The budget of all jobs together.")],
    delta: Annotated[float, typer.Option(metavar="δ", help="Well below one over the records.")],
    releases: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Rounds that the budget is for.")
    ],
    anchor: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Second copy of the ledger's signed head, on another disk."
        ),
    ],
    shards: Annotated[
        int, typer.Option(metavar="K", min=1, max=4096, help="Fixed parts of the data.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Write gate.yaml with the noise that a budget needs, and begin the ledger.

    A ledger is begun once. Its unit and budget stay; clip, noise, shards and model may change.
    """
    from dpfedadamw.errors import SpecError
    from dpfedadamw.extensions.gate import book, settings, spending
    from dpfedadamw.storage.disk import write_atomically

    path = folder / "gate.yaml"
    if path.exists():
        refuse(f"{path}: exists; a gate is begun once")
    try:
        forms = settings.model_of_file(model)
    except ValueError as error:
        refuse(str(error))
    if not (0 < epsilon <= 1e6 and 1e-10 <= delta <= 0.5):
        refuse("--epsilon, --delta: must be above 0 up to 1,000,000, and from 1e-10 to 0.5")
    with status("finding the noise", quiet=as_json):
        noise = spending.noise_for(releases, epsilon, delta)
    text = settings.write(
        {
            "unit": unit.value,
            "shards": shards,
            "clip": clip,
            "noise_multiplier": noise,
            "budget": {"epsilon": epsilon, "delta": delta},
            "model": {name: str(form) for name, form in forms.items()},
            "ledger": "ledger",
            "anchor": str(anchor.absolute()),
        }
    )
    try:
        found = settings.parse(text, path)
    except SpecError as error:
        # The file is not there yet, so its lines would say nothing.
        refuse("; ".join(f"{one.path}: {one.message}" for one in error.problems))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key = book.load_key(make=True)
        book.begin(found, key)
        write_atomically(path, text.encode())
    except OSError as error:
        refuse(f"{error.filename or path}: cannot be written ({error.strerror})")
    if as_json:
        print_json(
            {"settings": str(path), "noise_multiplier": noise, "releases": releases,
             "key": key.fingerprint}
        )  # fmt: skip
        return
    out.print(
        display.facts(
            [
                ("settings", str(relative(path))),
                ("noise multiplier", f"{noise:g}, for {releases} releases at ε = {epsilon:g}"),
                ("signed by", key.fingerprint),
                ("anchor", str(found.anchor)),
            ]
        )
    )


def gate_shards(
    settings: SettingsArgument,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV file with a header line.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    person: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column that tells people apart; unit: person."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Divide a table into the gate's shards, by a keyed hash of each row or person.

    A row's shard depends only on the row, so a table that grows is divided as before. The
    key is made at the first call and lies next to the ledger.
    """
    from dpfedadamw.extensions.gate.settings import read
    from dpfedadamw.extensions.gate.sharding import write_shards

    counts = write_shards(read(settings), table, target, person)
    if as_json:
        print_json({"folder": str(target), "rows": counts})
        return
    out.print(
        Text(
            f"{relative(target)}: {sum(counts):,} rows in {len(counts)} shards of "
            f"{min(counts):,} to {max(counts):,}"
        ),
        soft_wrap=True,
    )


def gate_show(settings: SettingsArgument, as_json: JsonOption = False) -> None:
    """Show what left the site: ε spent, by which jobs, and how many releases are left.

    The ε of a job counts that job alone; these do not add up to the ε of all. This command changes
    nothing.
    """
    from audit.extensions.gate.judgement import UNIT
    from dpfedadamw.extensions.gate import verification
    from dpfedadamw.extensions.gate.settings import read

    wanted = read(settings)
    charges = verification.charges_of(wanted)
    with status("composing all releases", quiet=as_json):
        found = verification.standing(wanted, charges, datetime.now(UTC))
    if as_json:
        print_json(
            {
                "unit": wanted.unit,
                "budget": {"epsilon": wanted.epsilon, "delta": wanted.delta},
                "epsilon": found.epsilon,
                "releases": found.releases,
                "releases_left": found.left,
                "ends": found.ends,
                "jobs": {job: dict(one) for job, one in found.jobs.items()},
            }
        )
        return
    ends = f", until {found.ends} at the last 30 days' rate" if found.ends and found.left else ""
    out.print(
        display.facts(
            [
                ("protects", UNIT[wanted.unit]),
                ("budget", f"ε = {wanted.epsilon:g} at δ = {wanted.delta:g}"),
                ("spent", f"ε = {display.epsilon_text(found.epsilon)}, {found.releases} releases"),
                ("left", f"{found.left} releases{ends}"),
            ]
        )
    )
    if found.jobs:
        rows = [
            (job, str(one["releases"]), display.epsilon_text(one["epsilon_alone"]), one["first"],
             one["last"])
            for job, one in found.jobs.items()
        ]  # fmt: skip
        out.print(display.grid(("job", "releases", "ε alone", "first", "last"), rows))


def gate_verify(
    settings: SettingsArgument,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the ledger: the auditor's checks with key and anchor, and ε by dp-accounting.

    Ends with 1 if anything does not hold. This command changes nothing.
    """
    from dpfedadamw.extensions.gate import verification
    from dpfedadamw.extensions.gate.settings import read
    from reports.signatures.keys import public_pem

    wanted, public = read(settings), _public(key)
    with status("recomputing ε", quiet=as_json):
        rows = verification.verify(wanted, public_pem(public))
    holds = all(good for _, good, _ in rows)
    if as_json:
        checks = [{"check": what, "holds": good, "found": said} for what, good, said in rows]
        print_json({"holds": holds, "checks": checks})
    else:
        shown = [(what, "holds" if good else "DOES NOT HOLD", said) for what, good, said in rows]
        out.print(display.grid(("check", "result", "found"), shown))
    if not holds:
        raise typer.Exit(EXIT_NOT_PASSED)


def _public(named: Path | None) -> ec.EllipticCurvePublicKey:
    """The gate's public key: the one that is named, or this machine's."""
    from dpfedadamw.extensions.gate import book
    from dpfedadamw.extensions.gate.errors import GateError
    from reports.errors import KeyFileError
    from reports.signatures.keys import load_public

    try:
        return load_public(named or book.key_path().with_suffix(".pub"))
    except KeyFileError as error:
        raise GateError(f"{error}; name the gate's public key with --key") from error


def gate_report(
    settings: SettingsArgument,
    start: Annotated[
        datetime, typer.Option("--from", formats=["%Y-%m-%d"], help="First day, in UTC.")
    ],
    end: Annotated[datetime, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day, in UTC.")],
    target: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The PDF; gate-FROM-TO.pdf by default."),
    ] = None,
    key: KeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a signed page on a span of days: who took how much, and when the budget ends.

    The auditor reads the whole ledger first, and its verdict stands at the head of the page. Check
    the page with `dpfedadamw verify FILE`.
    """
    from audit.extensions.gate import judge_gate
    from dpfedadamw.extensions.gate import quarter
    from dpfedadamw.extensions.gate.settings import read
    from dpfedadamw.filing import after_training
    from reports.files import write_atomic
    from reports.render import pdf
    from reports.signatures import pades
    from reports.signatures.keys import fingerprint, public_pem

    wanted, gate_key = read(settings), _public(key)
    path = target or Path(f"gate-{start:%Y-%m-%d}-{end:%Y-%m-%d}.pdf")
    span = quarter.between(wanted, start.date(), end.date())
    signer = after_training.load_key("auditor", auditor_key, [])
    authority = after_training.authority(timestamp)
    anchor = wanted.anchor if wanted.anchor.is_file() else b""
    with status("auditing the ledger", quiet=as_json):
        findings = judge_gate(wanted.ledger, public_pem(gate_key), anchor)
        keys = fingerprint(gate_key), signer.fingerprint
        shown = quarter.document(wanted, span, findings, *keys)
        write_atomic(path, pades.sign(pdf.typeset(shown), signer, path.name, authority), 0o600)
    verdict = findings.verdict.value
    if as_json:
        print_json({"report": str(path), "verdict": verdict, **json.loads(shown.data)})
    else:
        said = f"{relative(path)}: {verdict}, signed by {signer.fingerprint}"
        out.print(Text(said), soft_wrap=True)
    exit_by(verdict)


def gate_measure(
    before: Annotated[
        Path,
        typer.Argument(metavar="BEFORE", help="Updates before the job's filter: FILE or folder."),
    ],
    after: Annotated[
        Path, typer.Argument(metavar="AFTER", help="The same after it, as .safetensors too.")
    ],
    delta: Annotated[float, typer.Option(metavar="δ", min=1e-10, max=0.5, help="δ of the ε.")],
    most: Annotated[
        float, typer.Option("--most", metavar="ε", min=0, help="Exit code 1 above it.")
    ] = NO_PROTECTION_ABOVE,
    as_json: JsonOption = False,
) -> None:
    """Measure the noise that a job's own filter adds, and what ε it has at least.

    The site is the unit: its update may become any other up to the longest that was seen. This can
    refute what a job states. It is never a guarantee: the job may do something else with other
    data. Ends with 1 if ε is above --most, or if the noise is not Gaussian or is repeated.
    """
    from dpfedadamw.extensions.gate import measurement

    pairs = measurement.files_of(before, after)
    with status("measuring", quiet=as_json):
        found = measurement.measured(pairs, delta)
    finite = found.epsilon is not None and math.isfinite(found.epsilon)
    holds = found.epsilon is not None and found.epsilon <= most
    if as_json:
        shown = {**asdict(found), "epsilon": found.epsilon if finite else None, "holds": holds}
        print_json({**shown, "delta": delta, "is_guarantee": False})
    else:
        bare = protects_nothing(found.epsilon)
        if found.epsilon is None:
            said = f"not measured: {found.why}"
        elif finite:
            said = f"at least ε = {display.epsilon_text(found.epsilon)}"
        else:
            said = "no finite ε: nothing was added"
        warning = f"{WORDS['anyone'].upper()} · " if bare else ""
        out.print(
            display.facts(
                [
                    ("measured", f"{warning}{said} at δ = {delta:g}"),
                    ("updates", str(found.updates)),
                    ("longest", f"{found.length:.4g}, without its noise"),
                    ("noise", f"deviation {found.deviation:.4g} at least"),
                    ("this is", "no guarantee: what the job does with other data is not seen"),
                ]
            )
        )
    if not holds:
        raise typer.Exit(EXIT_NOT_PASSED)


def judge(folder: Path, key: Path | None, anchor: Path | None, as_json: bool) -> None:
    """Judge a gate's folder for `audit`, say what was found, and end by it."""
    from audit.extensions.gate import folder_of_gate, judge_files

    with status("auditing", quiet=as_json):
        findings = judge_files(folder_of_gate(folder) or folder, key, anchor)
    found = findings.to_json()
    if as_json:
        print_json(found)
    else:
        out.print(Text(findings.run, style="bold"))
        out.print(display.findings_table(found))
    exit_by(found["verdict"])


app = typer.Typer(
    help="A gate at a site's door: jobs of other frameworks get noised updates, up to a budget.",
    no_args_is_help=True,
)
app.command("init")(gate_init)
app.command("shards")(gate_shards)
app.command("show")(gate_show)
app.command("verify")(gate_verify)
app.command("report")(gate_report)
app.command("measure")(gate_measure)
app.command("supernode")(gate_supernode)
app.command("nvflare")(gate_nvflare)
