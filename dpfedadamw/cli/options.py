"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import completion

RUNS = Path("runs")

SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A YAML file, or a shipped spec's name: quickstart.",
        autocompletion=completion.specs,
    ),
]
RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN_DIR",
        help="A run's folder; the newest run by default.",
        autocompletion=completion.runs,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one field: --set federation.rounds=40. Repeatable.",
        autocompletion=completion.keys,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a machine to read.")]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that holds runs.")]
TrainerKeyOption = Annotated[
    str | None,
    typer.Option(
        "--trainer-key",
        metavar="KEY",
        help="Private key of the trainer, who signs the run: a PEM file, or a pkcs11: address.",
    ),
]
AuditorKeyOption = Annotated[
    str | None,
    typer.Option(
        "--auditor-key",
        metavar="KEY",
        help="Private key of the auditor, who signs the findings: a PEM file, or a pkcs11: "
        "address.",
    ),
]
TimestampOption = Annotated[
    str | None,
    typer.Option(
        "--timestamp",
        metavar="URL",
        help="Have signatures timestamped (RFC 3161) by the authority at URL.",
    ),
]
EscrowOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--escrow",
        metavar="FILE",
        help="The noise key that `run --escrow` saved, for a run in release mode. Repeatable.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


class ViewName(StrEnum):
    """Whom an ε holds against."""

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
