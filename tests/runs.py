"""Small whole runs for tests: train, record the probe, sign, audit, report, all in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

from dpfedadamw import cli
from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.rounds import Federation, RoundResult
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.journal import Outcome
from dpfedadamw.run.training import Training, probe_of
from dpfedadamw.spec import Spec

# A drawing that stands for a report's.
PICTURE = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9" height="9"/>'
# A page that stands for a report's; the report's data lie in it as in every report.
PAGE = """
#let page-data = json("page.json")
#let (year, month, day, hour, minute, second) = page-data.moment
#set document(
  title: page-data.label + ": " + page-data.title,
  author: "dpfedadamw",
  date: datetime(
    year: year, month: month, day: day, hour: hour, minute: minute, second: second,
  ),
  description: page-data.description,
  keywords: page-data.keywords,
)
#set text(lang: "en", font: "DejaVu Sans")
#for (name, kind, about, relation) in page-data.files {
  pdf.attach(name, relationship: relation, mime-type: kind, description: about)
}
#page-data.title
"""
SMALL = """
version: 1
name: small
data:
  dataset: digits
  clients: 5
  partition: {{kind: dirichlet, alpha: 1.0, minimum_records: 100}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: {algorithm}, learning_rate: 0.1}}
federation: {{rounds: {rounds}, clients_per_round: {clients_per_round}, local_steps: 3}}
privacy: {privacy}
randomness: {{mode: {mode}{seed}}}
"""
PRIVATE = (
    "{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, "
    "sampling: {kind: poisson, expected_batch_size: 24}}"
)
CLIENT_LEVEL = "{unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}"
BUDGETED = PRIVATE.replace("noise_multiplier: 2.0", "noise_multiplier: 2.0, target_epsilon: 2.5")
NOT_PRIVATE = "{unit: none, sampling: {kind: full}}"
PRIVACY = {"record": PRIVATE, "client": CLIENT_LEVEL, "none": NOT_PRIVATE}


def small_spec(
    algorithm: str = "dp-fedadamw",
    rounds: int = 4,
    clients_per_round: int = 4,
    mode: str = "reproducible",
    seed: int = 1,
    overrides: tuple[str, ...] = (),
) -> Spec:
    """A spec that trains in well under a second."""
    text = SMALL.format(
        algorithm=algorithm,
        rounds=rounds,
        clients_per_round=clients_per_round,
        privacy=BUDGETED if algorithm == "ali-dpfl" else PRIVACY[ALGORITHMS[algorithm].unit],
        mode=mode,
        seed=f", seed: {seed}" if mode == "reproducible" else "",
    )
    return specs.loads(text, overrides=overrides)


def key_of_a_test(number: int = 1) -> bytes:
    """A fixed release key that nobody would try first.

    The audit's statistical checks have a false-alarm rate, which a test that must pass cannot have.
    """
    return hashlib.sha256(f"release key {number} of a test".encode()).digest()


def begin(spec: Spec, parent: Path, engine: str = "auto") -> Training:
    """Prepare and start a run."""
    return engine_setup.start(prepare(spec, torch.device("cpu")), parent, engine)


def played(federation: Federation, state: ServerState) -> Iterator[RoundResult]:
    """All rounds of a federation that belongs to no run directory."""
    for result in federation.run(state, 0):
        federation.ledger.append("round", result.entry)
        yield result


def train(spec: Spec, parent: Path, engine: str = "auto") -> tuple[Training, Outcome]:
    """A whole training with its probe, neither signed nor audited."""
    training = begin(spec, parent, engine)
    with training.lock:
        return training, engine_run.train(training, before_claim=probed)


def probed(training: Training) -> None:
    """Record the active probe of a run's own step, as ``run`` does before the claim."""
    filing.record_probe(training.run, probe_of(training))


def attest(training: Training) -> None:
    """Record the active probe of a run that was trained without it, and sign what was run."""
    probed(training)
    filing.attest_training(training.run, filing.load_signers(None, None))


def judged(spec: Spec, parent: Path) -> dict[str, object]:
    """Train, record the active probe, audit: the findings as audit.json has them."""
    training, _ = train(spec, parent)
    filing.attest_training(training.run, filing.load_signers(None, None))
    return filing.audit(training.run).to_json()


def verdicts(findings: dict[str, object]) -> dict[str, str]:
    """Each check's verdict by name."""
    return {check["name"]: check["verdict"] for check in findings["checks"]}


def failing(findings: dict[str, object]) -> list[tuple[str, str]]:
    """What the checks that did not pass say, for a failing test's message."""
    return [
        (check["name"], check["measurement"])
        for check in findings["checks"]
        if check["verdict"] not in ("PASS", "NOT APPLICABLE")
    ]


def call(*arguments: str) -> int:
    """The exit code of a command."""
    try:
        cli.main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0
