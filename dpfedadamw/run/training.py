"""Wires one run together, top to bottom: experiment → rounds → model, ledger, evidence.

``start`` and ``resume`` open the run directory; ``train`` runs the rounds.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfedadamw import spec as specs
from dpfedadamw.algorithms import registry as algorithms
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.canaries import setup as planting
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.canaries.observers import CanaryWatch, ClientWatch
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.client_level import ClientLevelEvidence
from dpfedadamw.evidence.inputs import write_inputs, write_partition
from dpfedadamw.evidence.record_level import EvidenceWriter
from dpfedadamw.experiment import Experiment, RunError, prepare
from dpfedadamw.federation.client import Worker
from dpfedadamw.federation.client_level import ClientLevelFederation
from dpfedadamw.federation.rounds import Federation, RoundResult, client_data
from dpfedadamw.models.dropout import drops
from dpfedadamw.privacy.claims import realised_claim
from dpfedadamw.privacy.clipping import engines as clipping
from dpfedadamw.privacy.clipping.engines import ClippedSumEngine
from dpfedadamw.privacy.clipping.unclipped import PlainSum
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.run import checkpoints
from dpfedadamw.run.evaluation import Evaluation, evaluate
from dpfedadamw.run.header import (
    header,
    metrics_line,
    origin_of,
    recorded_origin,
    write_model_config,
)
from dpfedadamw.rundir import RunDirectory, append_line, create, point_latest, write_atomically
from dpfedadamw.spec import Spec
from dpfedadamw.vectors.flat import Blocks, FlatParameters


@dataclass(frozen=True)
class Outcome:
    """What a finished run tells.

    Attributes:
        run: Its directory.
        claim: The ledger's last entry: the privacy claim by view.
        accuracy: Test accuracy of the final model, in [0, 1].
        loss: Its test loss.
        engine: How clipped sums were computed, one line.
    """

    run: RunDirectory
    claim: dict[str, Any]
    accuracy: float | None
    loss: float | None
    engine: str


@dataclass
class Training:
    """A run in progress.

    Attributes:
        experiment: What is run.
        run: Where it is written.
        engine: Computes clipped sums, the same for steps and probe.
        flat: The model's parameters.
        federation: The rounds.
        ledger: The privacy ledger.
        state: The server's state.
        completed: Rounds completed.
        order: What canaries are planted; None in a run that is no audit run.
        watch: Looks at them.
    """

    experiment: Experiment
    run: RunDirectory
    engine: ClippedSumEngine
    flat: FlatParameters
    federation: Federation
    ledger: Ledger
    state: ServerState
    completed: int
    order: CanaryOrder | None = None
    watch: CanaryWatch | ClientWatch | None = None


def start(
    experiment: Experiment,
    parent: Path,
    engine: str = "auto",
    created: datetime | None = None,
    escrow: Path | None = None,
    canaries: CanaryOrder | None = None,
) -> Training:
    """Open a new run directory and write the spec, the ledger's header and the layout.

    Args:
        experiment: What to run.
        parent: Folder that holds runs.
        engine: Which clipped-sum engine to use; "auto" picks the fastest that fits the model.
        created: Time to write down; now by default.
        escrow: A new file for the noise key, mode 0600; None keeps the key in memory alone.
        canaries: Makes it an audit run with planted canaries, which is named and marked as such.

    Raises:
        RunError: If there is no key to keep, canaries cannot be planted, or the directory cannot
            be made.
    """
    chosen = _engine(experiment, engine)
    created = created or datetime.now(UTC)
    randomness = _randomness(experiment.spec)
    drawn = None
    if canaries is not None:
        drawn = planting.draw(experiment, canaries, randomness)
        experiment = planting.renamed(experiment)
    if escrow is not None:
        if not isinstance(randomness, ReleaseRandomness):
            raise RunError("--escrow: only randomness: release has a key to keep")
        randomness.write_escrow(escrow)
    run = create(experiment.spec.name, parent, created)
    text = specs.dump(experiment.spec).encode()
    write_atomically(run.spec, text)
    # Salted, the evidence's digest can be published: nobody can test guesses of it.
    write_atomically(run.evidence / "salt", secrets.token_bytes(32), 0o600)
    ledger = Ledger(run.ledger)
    ledger.append("header", header(experiment, run, text, created, randomness, canaries))
    flat = FlatParameters(experiment.model)
    state = experiment.algorithm.server.start(flat.vector)
    evaluation = evaluate(experiment.model, experiment.dataset, experiment.device)
    append_line(run.metrics, metrics_line(0, evaluation, None, order=canaries))
    write_model_config(experiment, run, canaries)
    if canaries is None:
        point_latest(run)
    return _training(experiment, run, chosen, flat, randomness, ledger, state, 0, drawn)


def resume(run: RunDirectory, device: torch.device, engine: str = "auto") -> Training:
    """Continue a run that was cut off, after its last completed round.

    The round that was cut off is charged again and, in release mode, draws fresh noise from a new
    key, whose commitment the ledger keeps.

    Raises:
        RunError: If the run is finished or its checkpoint is missing.
    """
    experiment = prepare(specs.load(run.spec), device)
    ledger = Ledger(run.ledger)
    if ledger.of_kind("claim"):
        raise RunError(f"{run.path}: this run is finished; start a new one with `dpfedadamw run`")
    if not ledger.of_kind("header"):
        raise RunError(f"{run.path}: the ledger has no header; start a new run")
    if "canaries" in ledger.of_kind("header")[0]:
        raise RunError(f"{run.path}: an audit run is not continued; plant its canaries anew")
    if ledger.of_kind("header")[0]["data_sha256"] != experiment.dataset.sha256:
        raise RunError(f"{run.path}: the data set has changed since the run began; start a new run")
    if recorded_origin(run) != origin_of(experiment.model):
        raise RunError(
            f"{run.path}: the published weights have changed since the run began; put them back, "
            "or start a new run"
        )
    chosen = _engine(experiment, engine)
    flat = FlatParameters(experiment.model)
    state, completed = checkpoints.read(run.checkpoint, experiment.algorithm.server, flat.vector)
    checkpoints.forget_later_metrics(run.metrics, completed)
    randomness = _randomness(experiment.spec)
    ledger.append("resume", {"round": completed, "commitment": randomness.commitment})
    return _training(experiment, run, chosen, flat, randomness, ledger, state, completed)


def train(
    training: Training,
    on_round: Callable[[RoundResult, Evaluation], None] | None = None,
    on_client: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Run the remaining rounds, then write the model and the claim.

    Args:
        training: A run from :func:`start` or :func:`resume`.
        on_round: Called after each round.
        on_client: Called after each client with (done, of the round).
    """
    experiment, run = training.experiment, training.run
    spec = experiment.spec
    evaluation = Evaluation(None, None)
    with _determinism(spec):
        for result in training.federation.run(training.state, training.completed, on_client):
            training.state, training.completed = result.state, result.completed
            checkpoints.write(run.checkpoint, result.state, result.completed)
            evaluation = Evaluation(None, None)
            if result.last or result.completed % spec.evaluation.every == 0:
                training.flat.assign(result.state.parameters)
                evaluation = evaluate(experiment.model, experiment.dataset, experiment.device)
            published = not experiment.plan.participants_hidden
            line = metrics_line(result.completed, evaluation, result, published, training.order)
            append_line(run.metrics, line)
            if on_round is not None:
                on_round(result, evaluation)
    training.flat.assign(training.state.parameters)
    checkpoints.write_weights(run.weights, experiment.model)
    if training.watch is not None:
        training.watch.close()
    claim = close_claim(training)
    explained = training.engine.explain()
    if experiment.plan.unit == "client":
        explained = "whole updates, each over all parameters as one vector; gradients are plain"
        if sparse := experiment.plan.sparsification:
            explained = (
                f"updates cut to {sparse.kept} of {sparse.size} coordinates ({sparse.kind}), then "
                "each clipped as one vector; gradients are plain"
            )
    return Outcome(run, claim, evaluation.accuracy, evaluation.loss, explained)


def close_claim(training: Training) -> dict[str, Any]:
    """Append the claim to the ledger: ε by view, from what the ledger says was spent."""
    fields = realised_claim(training.experiment.plan, training.ledger.entries)
    training.ledger.append("claim", fields)
    return fields


def _training(
    experiment: Experiment,
    run: RunDirectory,
    engine: ClippedSumEngine,
    flat: FlatParameters,
    randomness: RandomSource,
    ledger: Ledger,
    state: ServerState,
    completed: int,
    drawn: planting.Planting | None = None,
) -> Training:
    plan, dataset = experiment.plan, experiment.dataset
    clients = client_data(dataset.train, experiment.owner, len(plan.records), experiment.device)
    watch: CanaryWatch | ClientWatch | None = None
    if drawn is not None:
        engine, watch, clients = drawn.plant(experiment, run, engine, flat, clients)
    if plan.private:
        held = [one.inputs for one in clients if isinstance(one.inputs, StoredRecords)]
        write_partition(run.evidence, experiment.owner, held)
        write_inputs(run.evidence, held)
    worker = Worker(plan, experiment.algorithm.local, engine, flat, randomness, watch)
    algorithm = experiment.algorithm
    wiring = (experiment.spec, worker, algorithm.server, algorithm.pace, clients, ledger)
    if plan.unit == "client":
        blocks = _blocks(experiment)
        sparse = plan.sparsification
        released = sparse.released if sparse is not None else blocks.parameters
        written = ClientLevelEvidence(
            run.evidence, blocks, plan.clipping_norm, plan.rounds, released
        )
        written.uploads.forget_after(completed)
        federation: Federation = ClientLevelFederation(*wiring, None, written)
    else:
        evidence = _evidence(experiment, run) if plan.private else None
        if evidence is not None:
            evidence.restore(completed)
        federation = Federation(*wiring, evidence)
    order = drawn.order if drawn is not None else None
    return Training(
        experiment, run, engine, flat, federation, ledger, state, completed, order, watch
    )


def _blocks(experiment: Experiment) -> Blocks:
    """The partition by which noise and moments are measured."""
    measured = algorithms.measuring_blocks(experiment.spec.algorithm, experiment.model)
    return measured.to(experiment.device)


def _evidence(experiment: Experiment, run: RunDirectory) -> EvidenceWriter:
    spec, plan = experiment.spec, experiment.plan
    blocks = _blocks(experiment)
    moment = spec.algorithm.second_moment
    return EvidenceWriter(
        run.evidence,
        blocks,
        algorithms.measured_beta2(spec.algorithm),
        aggregated=moment is not None and moment.aggregation != "none",
        clipping_norm=plan.clipping_norm,
        queries=plan.local_steps * plan.queries_per_step,
        rounds=plan.rounds,
        per_round=plan.clients_per_round,
    )


def record_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each record, [b]."""
    return cross_entropy(outputs, targets, reduction="none")


def _engine(experiment: Experiment, name: str) -> ClippedSumEngine:
    experiment.model.train()
    if name == "vmap" and drops(experiment.model):
        raise RunError(
            "--engine vmap: it hides the records, and dropout needs to see them; use auto, "
            "book-keeping or loop, or a dropout of 0"
        )
    plan, precision = experiment.plan, experiment.spec.compute.precision
    if plan.unit != "record":
        return PlainSum(experiment.model, record_loss, precision)
    if precision != "float32":
        # Batches are of one size then, in every dimension.
        vars(experiment.model)["cuts_padding"] = False
    expected = plan.divisor(0)
    return clipping.choose(
        experiment.model,
        record_loss,
        plan.clipping_norm,
        engine=name,
        precision=precision,
        # Most Poisson batches fit; a public number either way.
        batch=min(plan.physical_batch_size, math.ceil(expected + 2.0 * math.sqrt(expected))),
    )


def _randomness(spec: Spec) -> RandomSource:
    if spec.randomness.mode == "reproducible":
        return ReproducibleRandomness(spec.randomness.seed or 0)
    return ReleaseRandomness()


@contextlib.contextmanager
def _determinism(spec: Spec) -> Iterator[None]:
    """In reproducible mode, use only deterministic kernels while training."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if spec.randomness.mode == "reproducible":
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
