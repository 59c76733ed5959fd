"""What is checked, written and built before the first round of a run, or the next one.

`start` makes the directory of a new run, `resume` goes on with one that was cut off. Both end in
`_built`, which wires experiment, engine and clients into the rounds that `training.train` runs.
"""

from __future__ import annotations

import bisect
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dpfedadamw import measures
from dpfedadamw import spec as specs
from dpfedadamw.accounting.epsilon_limit import Watch
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.clipping.engines import ClippedSumEngine, PerformanceOptions
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.commitments import commitments_of
from dpfedadamw.evidence.inputs import write_inputs, write_partition
from dpfedadamw.evidence.records import contents, write_people, write_records
from dpfedadamw.evidence.states import StateKeeper
from dpfedadamw.experiment import Experiment, RunError, prepare
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.rounds import Federation, has_diverged
from dpfedadamw.federation.unprotected import RunParts, UnitSetup
from dpfedadamw.federation.worker import ClientRunner, Worker
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.run import checkpoints, columns
from dpfedadamw.run.checkpoints import RoundNumbers
from dpfedadamw.run.computing import divided, engine_of, performance_of, unit_of, workers_of
from dpfedadamw.run.environment import write_environment
from dpfedadamw.run.header import (
    contents_committed,
    header,
    initial_weights,
    metrics_line,
    origin_of,
    recorded_origin,
    refuse_changed_source,
    write_model_config,
)
from dpfedadamw.run.journal import Journal, Recovery, begin
from dpfedadamw.run.start_options import (
    SECRET,
    Deployment,
    StartOptions,
    challenged_key,
    check_promise,
    check_trial,
)
from dpfedadamw.run.training import Training, evaluated_model, measure, published_seconds
from dpfedadamw.rundir import (
    RunDirectory,
    appeared,
    mark_resumable,
    point_latest,
    starting,
)
from dpfedadamw.spec import Spec
from dpfedadamw.storage.disk import PRIVATE_MODE, PUBLIC_MODE, write_atomically
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.storage.lock import RunLock
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters

# Of a longer one no report is made, since readers hold a ledger in memory: `reports.files`.
MOST_LEDGER_BYTES = 64 * 2**20

if TYPE_CHECKING:
    from dpfedadamw.canaries.engine import CanaryOrder
    from dpfedadamw.canaries.setup import CanarySetup
    from dpfedadamw.run.budget import Reservation


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What the rounds of a run are built of.

    Attributes:
        experiment: What is run.
        performance: How gradients are computed.
        engine: Computes clipped sums.
        flat: The model's parameters.
        randomness: Where every stream of the run comes from.
        state: The server's state before the next round.
        completed: Rounds completed.
        canaries: What is planted; None in a run that is no audit run.
        deployment: What is different where clients hold their records themselves.
    """

    experiment: Experiment
    performance: PerformanceOptions
    engine: ClippedSumEngine
    flat: FlatParameters
    randomness: RandomSource
    state: ServerState
    completed: int = 0
    canaries: CanarySetup | None = None
    deployment: Deployment | None = None


def start(
    experiment: Experiment,
    parent: Path,
    engine: str = "auto",
    options: StartOptions | None = None,
) -> Training:
    """Open a new run directory, with the spec, the ledger's header and the layout in it.

    The caller holds it for writing, by the training's lock.

    Args:
        experiment: What to run.
        parent: Folder that holds runs.
        engine: Which clipped-sum engine to use; "auto" picks the fastest that fits the model.
        options: What it is started with besides its spec.

    Raises:
        DpfedadamwError: If there is no key to keep, canaries cannot be planted, the model's weights
            are not finite, or the directory cannot be made.
    """
    options = options or StartOptions()
    options = replace(options, created=options.created or datetime.now(UTC))
    parts = _checked(experiment, engine, options)
    run, lock = _written(parts, parent, options)
    try:
        if options.canaries is None:
            point_latest(run)
        return _built(parts, run, lock, Journal(run))
    except BaseException as error:
        lock.release()
        if options.canaries is None:
            with_a_key = options.escrow or options.challenged
            mark_resumable(error, run.path, with_a_key is not None)
        raise


def _checked(experiment: Experiment, engine: str, options: StartOptions) -> _Parts:
    """What a new run is built of, once nothing speaks against it; nothing is written but a key."""
    challenged = options.challenged
    check_trial(experiment, options.trial)
    measures.given(experiment.spec.evaluation.metrics)
    _check_ledger(experiment.plan)
    if options.deployment is None:
        _check_engine(experiment)
    elif experiment.plan.column_queries is not None:
        raise RunError(
            "data.columns: bounds cannot be learnt yet where clients hold their own records"
        )
    performance = performance_of(experiment, engine)
    summing = engine_of(experiment, performance)
    randomness = _randomness(experiment.spec)
    if challenged is not None:
        check_promise(experiment, challenged)
        randomness = challenged.randomness
    drawn = None
    if options.canaries is not None:
        drawn = _drawn_canaries(experiment, options.canaries, randomness)
        experiment = drawn.renamed(experiment)
    if options.escrow is not None:
        _with_a_key(randomness).write_escrow(options.escrow)
    flat = FlatParameters(experiment.model)
    state = experiment.algorithm.server.start(flat.vector)
    if has_diverged(state):
        raise RunError("model: the starting weights hold numbers that are not finite; give others")
    return _Parts(
        experiment=experiment,
        performance=performance,
        engine=summing,
        flat=flat,
        randomness=randomness,
        state=state,
        canaries=drawn,
        deployment=options.deployment,
    )


def _spending(experiment: Experiment) -> contextlib.AbstractContextManager[Reservation | None]:
    """What reserves the most that a new run can cost; None where its spec names no budget."""
    if experiment.spec.budget.file is None:
        return contextlib.nullcontext()
    # The data base of budgets is loaded for runs that have one.
    from dpfedadamw.run import budget

    return budget.reserving(experiment)


def _written(parts: _Parts, parent: Path, options: StartOptions) -> tuple[RunDirectory, RunLock]:
    """Make a new run's directory with its first files, which appears once all of them are there."""
    experiment, challenged, trial = parts.experiment, options.challenged, options.trial
    assert options.created is not None
    text = specs.filed(experiment.spec).encode()
    # The budget is asked while the hidden folder is held, so that nobody takes the run for dead.
    with (
        _spending(experiment) as spending,
        starting(
            experiment.spec.name,
            parent,
            options.created,
            identifier=challenged.run if challenged is not None else None,
        ) as (hidden, lock),
    ):
        # Salted, the evidence's digest can be published: nobody can test guesses of it.
        write_atomically(
            hidden.evidence / "salt", secrets.token_bytes(32), PRIVATE_MODE, hidden.disk
        )
        if trial is not None:
            place = hidden.evidence / SECRET
            write_atomically(place, trial.secret, PRIVATE_MODE, hidden.disk)
        write_model_config(experiment, hidden, options.canaries)
        for name, content in challenged.files.items() if challenged is not None else ():
            write_atomically(hidden.path / name, content, PUBLIC_MODE, hidden.disk)
        # Metrics of the user's own are tried out before anything is spent.
        evaluation = evaluated_model(experiment, bool(experiment.spec.evaluation.metrics))
        reserved = None if spending is None else spending.reserve(appeared(hidden))
        first = header(
            experiment,
            hidden,
            text,
            parts.randomness,
            reserved,
            options,
        )
        first |= {"initial": initial_weights(experiment, parts.state)}
        # Canaries take records' places, and of a federation this process has no records.
        if options.canaries is None and options.deployment is None:
            first |= contents_committed(experiment, hidden)
        if options.deployment is not None:
            first |= options.deployment.header
        line = metrics_line(
            0,
            evaluation,
            None,
            published_seconds(experiment, 0),
            options.canaries,
            experiment.plan.epsilon_after(0),
        )
        begin(hidden, text, first, line)
    return appeared(hidden), lock


def resume(
    run: RunDirectory,
    device: torch.device,
    engine: str = "auto",
    lock: RunLock | None = None,
    escrow: Path | None = None,
    deployment: Deployment | None = None,
) -> Training:
    """Continue a run that was cut off, after its last completed round.

    The round that was cut off is charged again and, in release mode, draws fresh noise from a new
    key, whose commitment the ledger keeps; where an auditor has challenged the run, from the key
    that was committed to, for the next attempt and under what the ledger has charged by then.

    Args:
        run: Its directory.
        device: Where to compute.
        engine: Which clipped-sum engine to use.
        lock: The directory's, if the caller holds it already.
        escrow: The key's file, which a challenged run goes on with; the new key of any other is
            added to it.
        deployment: What is different where clients hold their records themselves.

    Raises:
        DpfedadamwError: If somebody else writes to the run, it has its claim already, or what it
            would go on from is not what it wrote.
    """
    lock = lock or RunLock(run.path)
    try:
        journal = Journal(run)
        experiment = _unchanged(journal, run, device, deployment)
        parts, found, numbers = _recovered(journal, run, experiment, engine, escrow, deployment)
        point_latest(run)
        training = _built(parts, run, lock, journal)
        training.note = found.note
        if numbers is not None and journal.lacks_metrics(found.completed):
            # The process that knew its time is gone; what was begun since is of later rounds.
            then = experiment.plan.epsilon_of_round(training.ledger.entries, found.completed)
            measure(training, numbers, None, then)
        return training
    except BaseException:
        lock.release()
        raise


def _unchanged(
    journal: Journal, run: RunDirectory, device: torch.device, deployment: Deployment | None
) -> Experiment:
    """The experiment of a run that can be continued, from what it began with."""
    noted = journal.header
    if journal.claim is not None:
        raise RunError(
            f"{run.path}: this run is finished: its claim is in the ledger, and no round is left"
        )
    if "canaries" in noted:
        raise RunError(
            f"{run.path}: an audit run cannot be resumed; start a new one with dpfedadamw canaries"
        )
    journal.check_spec()
    columns.refuse_half_done(run, journal)
    if (deployment is not None) != ("sites" in noted):
        raise RunError(
            f"{run.path}: this run's clients hold their own records; continue it with the server's "
            "own command: dpfedadamw flower superlink SERVER"
        )
    spec = specs.load_filed(run.spec)
    refuse_changed_source(run, spec)
    measures.given(spec.evaluation.metrics)
    experiment = deployment.experiment if deployment else prepare(spec, device)
    if noted["data_sha256"] != experiment.dataset.sha256:
        raise RunError(f"{run.path}: the data set has changed since the run began; start a new run")
    if recorded_origin(run) != origin_of(experiment.model):
        raise RunError(
            f"{run.path}: the published weights have changed since the run began; restore them, or "
            "start a new run"
        )
    return experiment


def _refuse_to_begin_again(
    run: RunDirectory, watch: Watch | None, entries: Sequence[Mapping[str, Any]], completed: int
) -> None:
    """Refuse a run that has no round, and could have none within its limit on ε.

    Raises:
        RunError: If its first round was cut off and does not fit once more.
    """
    resumed = [*entries, {"kind": "resume", "round": 0}]
    if not completed and watch is not None and not watch.allows(resumed, 0):
        raise RunError(
            f"{run.path}: it was cut off in its first round; with that round charged twice, ε "
            "would exceed what the spec allows; start a new run"
        )


def _recovered(
    journal: Journal,
    run: RunDirectory,
    experiment: Experiment,
    engine: str,
    escrow: Path | None,
    deployment: Deployment | None,
) -> tuple[_Parts, Recovery, RoundNumbers | None]:
    """What a run goes on with: the last state that the ledger names, and a key that it knows of."""
    performance = performance_of(experiment, engine)
    summing = engine_of(experiment, performance)
    flat = FlatParameters(experiment.model)
    found = journal.recover()
    server = experiment.algorithm.server
    state, numbers = server.start(flat.vector), None
    begun = journal.header.get("initial")
    if not found.completed and begun not in (None, initial_weights(experiment, state)):
        raise RunError(
            f"{run.path}: the model does not start from the weights that the run began with; "
            "continue with the versions of that time, or start a new run"
        )
    if found.state is not None:
        state, numbers = checkpoints.unpack_state(found.state, server, flat.vector)
    _refuse_to_begin_again(run, experiment.plan.watch, journal.ledger.entries, found.completed)
    randomness: RandomSource | None = challenged_key(journal.header, escrow)
    if randomness is None:
        randomness = _new_randomness(experiment, journal, escrow)
    if experiment.spec.budget.file is not None or "budget" in journal.header:
        from dpfedadamw.run import budget

        budget.reserve_resumed(experiment, run, journal.ledger.entries, found.completed)
    journal.ledger.append("resume", {"round": found.completed, "commitment": randomness.commitment})
    parts = _Parts(
        experiment=experiment,
        performance=performance,
        engine=summing,
        flat=flat,
        randomness=randomness,
        state=state,
        completed=found.completed,
        deployment=deployment,
    )
    return parts, found, numbers


def _built(parts: _Parts, run: RunDirectory, lock: RunLock, journal: Journal) -> Training:
    """Wire the rounds, and note the evidence that is there before the next of them."""
    experiment = columns.learnt(parts.experiment, run, journal, parts.randomness)
    deployment = parts.deployment
    plan, algorithm, randomness = experiment.plan, experiment.algorithm, parts.randomness
    clients = divided(
        experiment,
        experiment.dataset.train,
        experiment.owner,
        len(plan.records),
        experiment.people,
    )
    if deployment is None and plan.private:
        _note_records(experiment, run, journal.header, clients)
    if deployment is not None or plan.private:
        engine = parts.performance.engine
        write_environment(run, parts.completed, experiment, engine, randomness.commitment)
    setup = UnitSetup(
        experiment=experiment,
        directory=run.evidence,
        completed=parts.completed,
        randomness=randomness,
        commitments=commitments_of(journal.header),
    )
    unit = unit_of(plan).rounds.open(setup) if deployment is None else deployment.unit(setup)
    planted = RunParts(unit=unit, engine=parts.engine, clients=clients)
    if parts.canaries is not None:
        planted = parts.canaries.plant(planted, experiment, run.evidence, parts.flat)
    worker = Worker(
        rule=algorithm.local,
        unit=planted.unit,
        engine=planted.engine,
        flat=parts.flat,
        randomness=randomness,
        performance=parts.performance,
    )
    elsewhere: ClientRunner | None = None
    if deployment is not None:
        elsewhere = deployment.runner(run, worker)
    elif parts.canaries is None:
        # What is planted is watched in this process.
        elsewhere = _elsewhere(run, experiment, worker, setup)
    federation = Federation(
        spec=experiment.spec,
        plan=plan,
        worker=worker,
        server=algorithm.server,
        round_schedule=algorithm.round_schedule,
        clients=planted.clients,
        ledger=journal.ledger,
        charge=journal.charge,
        elsewhere=elsewhere,
    )
    return Training(
        experiment=experiment,
        run=run,
        lock=lock,
        journal=journal,
        federation=federation,
        state=parts.state,
        completed=parts.completed,
        keeper=StateKeeper(run.evidence, plan.rounds, run.disk) if plan.private else None,
        canaries=parts.canaries.order if parts.canaries is not None else None,
        finish_canaries=planted.finish,
        repeated=plan.begun_again(journal.ledger.entries, parts.completed),
    )


def _note_records(
    experiment: Experiment,
    run: RunDirectory,
    noted: Mapping[str, Any],
    clients: list[ClientData],
) -> None:
    """Write into the evidence which records there are, and which client has them."""
    dataset = experiment.dataset
    held = [one.inputs for one in clients if isinstance(one.inputs, StoredRecords)]
    salt = read_salt(run.evidence / "salt") if "contents_sha256" in noted else None
    digests = [] if salt is None else [contents(one, salt) for one in held]
    write_partition(run.evidence, experiment.owner, held, digests)
    write_records(run.evidence, dataset.train.inputs, dataset.strata, dataset.test.inputs)
    if dataset.people is not None:
        write_people(run.evidence, dataset.people.stored, dataset.people.test)
    write_inputs(run.evidence, held)


def ledger_bytes(plan: RunPlan, rounds: int) -> int:
    """Return about how long a ledger of so many rounds is, in bytes."""
    participations = rounds * plan.clients_per_round
    whole = 5000 + 1000 * rounds
    if plan.unit.noises_updates or not plan.private:
        return whole + 10 * participations
    # A charge for each participation, and a part of the claim for each client that took part.
    return whole + 390 * participations + 210 * min(len(plan.records), participations)


def _check_ledger(plan: RunPlan) -> None:
    """Refuse a run whose ledger is too long for its report, before it trains for hours."""
    if plan.max_epsilon is not None or ledger_bytes(plan, plan.rounds) <= MOST_LEDGER_BYTES:
        return
    most = bisect.bisect_right(
        range(plan.rounds), MOST_LEDGER_BYTES, key=lambda rounds: ledger_bytes(plan, rounds)
    )
    raise RunError(
        f"federation.rounds: {plan.rounds} rounds of {plan.clients_per_round} clients make a "
        f"ledger that is too long for a report; use at most {most - 1} rounds, or fewer clients a "
        "round"
    )


def _check_engine(experiment: Experiment) -> None:
    """Refuse Flower where it is not installed, before anything is written."""
    if experiment.spec.federation.engine == "flower":
        from dpfedadamw.federation.flower.required import require

        require(simulation=True)


def _elsewhere(
    run: RunDirectory, experiment: Experiment, worker: Worker, setup: UnitSetup
) -> ClientRunner | None:
    """What runs the clients, as the spec has it; None for this process.

    Other processes and Flower are loaded here, by a run that asks for them.
    """
    if experiment.spec.federation.engine == "inline":
        number = workers_of(experiment, len(worker.flat.vector))
        if number == 1:
            return None
        from dpfedadamw.run.workers import WorkerProcesses

        return WorkerProcesses(run, worker, setup.commitments, number)
    from dpfedadamw.run.simulated import SimulatedClients

    return SimulatedClients(run, experiment.spec, worker, setup.commitments)


def _drawn_canaries(
    experiment: Experiment, order: CanaryOrder, randomness: RandomSource
) -> CanarySetup:
    canaries = unit_of(experiment.plan).canaries
    if experiment.plan.column_queries is not None:
        raise RunError(
            "--canaries: column bounds are learnt from records before any canary is planted; audit "
            "a spec without learn_quantiles"
        )
    if canaries is None:
        raise RunError("--canaries: this spec claims no privacy, so there is nothing to contradict")
    return canaries.draw(experiment, order, randomness.stream("canary coins", -1, -1))


def _randomness(spec: Spec) -> RandomSource:
    if spec.randomness.mode == "reproducible":
        return ReproducibleRandomness(spec.randomness.seed or 0)
    return ReleaseRandomness()


def _new_randomness(experiment: Experiment, journal: Journal, escrow: Path | None) -> RandomSource:
    """The streams of a run that is taken up again: of a new key, which is kept where one asks."""
    randomness = _randomness(experiment.spec)
    if escrow is not None:
        entries = [journal.header, *journal.ledger.of_kind("resume")]
        # Before the ledger names it: what was drawn under a key that is lost cannot be replayed.
        known = {str(entry.get("commitment")) for entry in entries}
        _with_a_key(randomness).add_to_escrow(escrow, known)
    return randomness


def _with_a_key(randomness: RandomSource) -> ReleaseRandomness:
    if not isinstance(randomness, ReleaseRandomness):
        raise RunError("--escrow: only randomness: release has a key to save")
    return randomness
