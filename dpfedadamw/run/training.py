"""Wires one run together, top to bottom: experiment → rounds → model, ledger, evidence.

``start`` and ``resume`` open the run directory; ``train`` runs the rounds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dpfedadamw import measures
from dpfedadamw import spec as specs
from dpfedadamw.algorithms.averaging import released
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.canaries.setup import CanarySetup, RunParts, renamed
from dpfedadamw.clipping.engines import ClippedSumEngine
from dpfedadamw.clipping.performance import PerformanceOptions
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.commitments import commitments_of
from dpfedadamw.evidence.inputs import write_inputs, write_partition
from dpfedadamw.evidence.records import contents, write_people, write_records
from dpfedadamw.evidence.states import StateKeeper
from dpfedadamw.experiment import Experiment, RunError, prepare
from dpfedadamw.federation.rounds import (
    Federation,
    RoundResult,
    as_sent,
    divergence,
    has_diverged,
    published,
)
from dpfedadamw.federation.runners import ClientRunner
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.own.faults import own_code
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.profiling import part
from dpfedadamw.run import budget, checkpoints
from dpfedadamw.run.challenge import Challenged, challenged_again, check_promise
from dpfedadamw.run.checkpoints import RoundNumbers
from dpfedadamw.run.computing import (
    determinism,
    divided,
    engine_of,
    performance_of,
    unit_of,
    workers_of,
)
from dpfedadamw.run.environment import write_environment
from dpfedadamw.run.evaluation import Evaluation, evaluate, evaluated, is_due
from dpfedadamw.run.header import (
    WholeSeconds,
    contents_committed,
    header,
    initial_weights,
    metrics_line,
    origin_of,
    recorded_origin,
    refuse_changed_source,
    write_model_config,
)
from dpfedadamw.run.headline import with_dp_accounting, with_people
from dpfedadamw.run.journal import Journal, begin
from dpfedadamw.run.tuning import SECRET, Trial, check_trial
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
from dpfedadamw.vectors.flat import FlatParameters

if TYPE_CHECKING:
    from dpfedadamw.federation.probes import StepProbe
    from dpfedadamw.federation.update_probe import UpdateProbe


@dataclass(frozen=True, kw_only=True)
class Apart:
    """What is different of a run whose clients hold their records and their evidence themselves.

    Attributes:
        experiment: What is run, as far as it is known here: without clients' records.
        header: What the ledger's header says of the clients; it takes the place of what would be
            noted of one who has all evidence.
        unit: Opens what the rounds protect, without clients' evidence.
        runner: Runs the clients of a round.
    """

    experiment: Experiment
    header: Mapping[str, Any]
    unit: Callable[[UnitSetup], Unprotected]
    runner: Callable[[RunDirectory, Worker], ClientRunner]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run tells.

    Attributes:
        run: Its directory.
        claim: The ledger's last entry: the privacy claim by view.
        accuracy: Test accuracy of the final model, in [0, 1]; None of a regression.
        loss: Its test loss.
        measures: Further measures of its task.
        own: Metrics of the user's own, by name.
        engine: How clipped sums were computed, one line.
    """

    run: RunDirectory
    claim: dict[str, Any]
    accuracy: float | None
    loss: float | None
    measures: Mapping[str, float]
    own: Mapping[str, float]
    engine: str


@dataclass(kw_only=True)
class Training:
    """A run in progress.

    Attributes:
        experiment: What is run.
        run: Where it is written.
        lock: Held while it is written.
        journal: Its durable course.
        federation: The rounds, and the worker that runs clients.
        state: The server's state.
        completed: Rounds completed.
        keeper: Keeps states for re-execution; None where nothing is claimed.
        canaries: What is planted; None in a run that is no audit run.
        finish_canaries: Writes the evidence of the canaries.
        note: What the user should know of how the run was taken up again.
        again: How many more rounds were begun than are numbered: the run was cut off.
        times: What this process has published of its rounds' times.
    """

    experiment: Experiment
    run: RunDirectory
    lock: RunLock
    journal: Journal
    federation: Federation
    state: ServerState
    completed: int
    keeper: StateKeeper | None = None
    canaries: CanaryOrder | None = None
    finish_canaries: Callable[[], None] | None = None
    note: str | None = None
    again: int = 0
    times: WholeSeconds = field(default_factory=WholeSeconds)

    @property
    def engine(self) -> ClippedSumEngine:
        """Computes clipped sums, the same for steps and probe."""
        return self.federation.worker.engine

    @property
    def epsilon(self) -> float | None:
        """ε of the rounds so far (`RunPlan.epsilon_after`)."""
        return self.experiment.plan.epsilon_after(self.completed, self.again)

    @property
    def flat(self) -> FlatParameters:
        """The model's parameters."""
        return self.federation.worker.flat

    @property
    def ledger(self) -> Ledger:
        """The privacy ledger."""
        return self.federation.ledger


def start(
    experiment: Experiment,
    parent: Path,
    engine: str = "auto",
    created: datetime | None = None,
    escrow: Path | None = None,
    canaries: CanaryOrder | None = None,
    challenged: Challenged | None = None,
    trial: Trial | None = None,
    apart: Apart | None = None,
) -> Training:
    """Open a new run directory, with the spec, the ledger's header and the layout in it.

    The caller holds it for writing, by the training's lock.

    Args:
        experiment: What to run.
        parent: Folder that holds runs.
        engine: Which clipped-sum engine to use; "auto" picks the fastest that fits the model.
        created: Time to write down; now by default.
        escrow: A new file for the noise key, mode 0600; None keeps the key in memory alone.
        canaries: Makes it an audit run with planted canaries, which is named and marked as such.
        challenged: Intent, challenge and escrowed key of a run that an auditor knows of.
        trial: Which trial of a private selection the run is.
        apart: What is different where clients hold their records themselves.

    Raises:
        DpfedadamwError: If there is no key to keep, canaries cannot be planted, the model's weights
            are not finite, or the directory cannot be made.
    """
    check_trial(experiment, trial)
    measures.given(experiment.spec.evaluation.metrics)
    if apart is None:
        _check_engine(experiment)
    performance = performance_of(experiment, engine)
    summing = engine_of(experiment, performance)
    created = created or datetime.now(UTC)
    randomness = _randomness(experiment.spec)
    if challenged is not None:
        check_promise(experiment, challenged)
        randomness = challenged.randomness
    drawn = None
    if canaries is not None:
        drawn = _draw(experiment, canaries, randomness)
        experiment = renamed(experiment)
    if escrow is not None:
        _with_a_key(randomness).write_escrow(escrow)
    flat = FlatParameters(experiment.model)
    state = experiment.algorithm.server.start(flat.vector)
    if has_diverged(state):
        raise RunError(
            "model: the weights that training begins with hold numbers that are not finite; give "
            "others"
        )
    text = specs.dump(experiment.spec).encode()
    # The budget is asked while the hidden folder is held, so that nobody takes the run for dead.
    with (
        budget.opening(experiment) as spending,
        starting(
            experiment.spec.name,
            parent,
            created,
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
        write_model_config(experiment, hidden, canaries)
        for name, content in challenged.files.items() if challenged is not None else ():
            write_atomically(hidden.path / name, content, PUBLIC_MODE, hidden.disk)
        # Metrics of the user's own are tried out before anything is spent.
        evaluation = _evaluated(experiment, bool(experiment.spec.evaluation.metrics))
        reserved = spending.reserve(appeared(hidden))
        begin(
            hidden,
            text,
            header(
                experiment,
                hidden,
                text,
                created,
                randomness,
                canaries,
                reserved,
                challenged.header if challenged is not None else None,
                trial,
            )
            | {"initial": initial_weights(experiment, state)}
            # Canaries take records' places, and of a federation this process has no records.
            | (contents_committed(experiment, hidden) if canaries is None and apart is None else {})
            | dict(apart.header if apart is not None else {}),
            metrics_line(
                0,
                evaluation,
                None,
                _published(experiment, 0),
                canaries,
                experiment.plan.epsilon_after(0),
            ),
        )
    run = appeared(hidden)
    try:
        if canaries is None:
            point_latest(run)
        return _training(
            experiment=experiment,
            run=run,
            lock=lock,
            journal=Journal(run),
            performance=performance,
            engine=summing,
            flat=flat,
            randomness=randomness,
            state=state,
            completed=0,
            drawn=drawn,
            apart=apart,
        )
    except BaseException as error:
        lock.release()
        if canaries is None:
            mark_resumable(error, run.path, (escrow or challenged) is not None)
        raise


def resume(
    run: RunDirectory,
    device: torch.device,
    engine: str = "auto",
    lock: RunLock | None = None,
    escrow: Path | None = None,
    apart: Apart | None = None,
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
        apart: What is different where clients hold their records themselves.

    Raises:
        DpfedadamwError: If somebody else writes to the run, it has its claim already, or what it
            would go on from is not what it wrote.
    """
    lock = lock or RunLock(run.path)
    try:
        return _resume(run, device, engine, lock, escrow, apart)
    except BaseException:
        lock.release()
        raise


def _resume(
    run: RunDirectory,
    device: torch.device,
    engine: str,
    lock: RunLock,
    escrow: Path | None,
    apart: Apart | None,
) -> Training:
    course = Journal(run)
    if course.claim is not None:
        raise RunError(
            f"{run.path}: this run is finished: its claim is in the ledger, no round is left"
        )
    if "canaries" in course.header:
        raise RunError(f"{run.path}: an audit run is not continued; plant its canaries anew")
    course.check_spec()
    if (apart is not None) != ("sites" in course.header):
        raise RunError(
            f"{run.path}: this run's clients hold their records themselves; it is continued by its "
            "project's own command: flwr run"
        )
    spec = specs.load_filed(run.spec)
    refuse_changed_source(run, spec)
    measures.given(spec.evaluation.metrics)
    experiment = apart.experiment if apart else prepare(spec, device)
    if course.header["data_sha256"] != experiment.dataset.sha256:
        raise RunError(f"{run.path}: the data set has changed since the run began; start a new run")
    if recorded_origin(run) != origin_of(experiment.model):
        raise RunError(
            f"{run.path}: the published weights have changed since the run began; put them back, "
            "or start a new run"
        )
    performance = performance_of(experiment, engine)
    summing = engine_of(experiment, performance)
    flat = FlatParameters(experiment.model)
    found = course.recover()
    server = experiment.algorithm.server
    state, numbers = server.start(flat.vector), None
    begun = course.header.get("initial")
    if not found.completed and begun not in (None, initial_weights(experiment, state)):
        raise RunError(
            f"{run.path}: the model is not built with the weights that the run began with; go on "
            "with the versions of then, or start a new run"
        )
    if found.state is not None:
        state, numbers = checkpoints.unpack_state(found.state, server, flat.vector)
    randomness = challenged_again(course.header, escrow) or _drawn_again(experiment, course, escrow)
    budget.reserve_again(experiment, run, course.ledger.entries, found.completed)
    course.ledger.append("resume", {"round": found.completed, "commitment": randomness.commitment})
    point_latest(run)
    training = _training(
        experiment=experiment,
        run=run,
        lock=lock,
        journal=course,
        performance=performance,
        engine=summing,
        flat=flat,
        randomness=randomness,
        state=state,
        completed=found.completed,
        apart=apart,
    )
    training.note = found.note
    if numbers is not None and course.lacks_metrics(found.completed):
        # Its time went with the process that took it; what was begun since belongs to later rounds.
        then = experiment.plan.epsilon_of_round(training.ledger.entries, found.completed)
        _measure(training, numbers, None, then)
    return training


def train(
    training: Training,
    on_round: Callable[[RoundResult, Evaluation], None] | None = None,
    on_client: Callable[[int, int], None] | None = None,
    before_claim: Callable[[Training], None] | None = None,
) -> Outcome:
    """Run the remaining rounds, then write the model and the claim.

    If it fails the run is let go of, so that it can be resumed; else the caller goes on to hold it.

    Args:
        training: A run from :func:`start` or :func:`resume`.
        on_round: Called after each round.
        on_client: Called after each client with (done, of the round).
        before_claim: Called once the model is written: for evidence that the claim must not
            precede, because nobody can make it later.
    """
    try:
        return _train(training, on_round, on_client, before_claim)
    except BaseException:
        training.lock.release()
        raise
    finally:
        training.federation.runner.close()


def _train(
    training: Training,
    on_round: Callable[[RoundResult, Evaluation], None] | None,
    on_client: Callable[[int, int], None] | None,
    before_claim: Callable[[Training], None] | None,
) -> Outcome:
    experiment, run = training.experiment, training.run
    evaluation = None
    with determinism(experiment.spec):
        # What the run was started with is not held beside the message of its first round.
        training.state, message = as_sent(training.state)
        rounds = training.federation.run(training.state, training.completed, on_client, message)
        del message
        for result in _guarded(rounds, experiment):
            up, down = result.traffic
            numbers = RoundNumbers(result.learning_rate, up, down, result.last)
            state = checkpoints.pack_state(result.state, numbers)
            if training.keeper is not None:
                clients = len(experiment.plan.records)
                largest = checkpoints.largest_state(result.state, clients)
                training.keeper.keep(result.completed - 1, state, largest)
            training.journal.complete(result.entry, state)
            # Else it would stay while the next round is run.
            del state
            training.state, training.completed = result.state, result.completed
            evaluation = _measure(training, numbers, result.seconds, training.epsilon)
            if on_round is not None:
                on_round(result, evaluation)
    training.flat.assign(published(experiment.plan, training.state))
    checkpoints.write_weights(run.weights, experiment.model)
    if training.finish_canaries is not None:
        training.finish_canaries()
    if evaluation is None:
        # All rounds were over before the run was cut off.
        evaluation = _evaluated(experiment, finished=True)
    if before_claim is not None:
        before_claim(training)
    return Outcome(
        run=run,
        claim=close_claim(training),
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        measures=evaluation.measures,
        own=evaluation.own,
        engine=training.federation.unit.explain(training.engine, experiment.plan),
    )


def _guarded(rounds: Iterator[RoundResult], experiment: Experiment) -> Iterator[RoundResult]:
    """The rounds; what a model's own code raises in one is told without a record."""
    while True:
        with own_code(experiment.spec.model):
            result = next(rounds, None)
        if result is None:
            return
        yield result
        # Else it would stay while the next round is run.
        del result


def _evaluated(experiment: Experiment, finished: bool) -> Evaluation:
    with own_code(experiment.spec.model):
        of_the_end = experiment.spec.evaluation if finished else None
        return evaluate(*evaluated(experiment), finished=of_the_end)


def _measure(
    training: Training, numbers: RoundNumbers, seconds: float | None, epsilon: float | None
) -> Evaluation:
    """Evaluate the state after a round, where that is due, and write the round's metrics."""
    experiment, completed = training.experiment, training.completed
    evaluation = Evaluation(None, None)
    if is_due(experiment, completed, numbers.last):
        training.flat.assign(released(training.state))
        evaluation = _evaluated(experiment, numbers.last)
    whole = None if seconds is None else training.times.of(seconds)
    shown = _published(experiment, whole)
    line = metrics_line(completed, evaluation, numbers, shown, training.canaries, epsilon)
    training.journal.measure(line)
    return evaluation


def _published(experiment: Experiment, seconds: int | None) -> int | None:
    """A round's time, unless clients are drawn independently: it would tell how many took part."""
    return None if experiment.plan.participants_hidden else seconds


@part("ledger")
def close_claim(training: Training) -> dict[str, Any]:
    """Append the claim to the ledger: ε by view, from what the ledger says was spent."""
    entries, plan = training.ledger.entries, training.experiment.plan
    fields = {
        **with_dp_accounting(
            plan, with_people(plan, plan.realised_claim(entries), entries), entries
        ),
        **divergence(training.state, training.completed),
        **budget.settle(training.experiment, entries),
    }
    training.journal.close(fields)
    return fields


def _training(
    *,
    experiment: Experiment,
    run: RunDirectory,
    lock: RunLock,
    journal: Journal,
    performance: PerformanceOptions,
    engine: ClippedSumEngine,
    flat: FlatParameters,
    randomness: RandomSource,
    state: ServerState,
    completed: int,
    drawn: CanarySetup | None = None,
    apart: Apart | None = None,
) -> Training:
    plan, dataset, algorithm = experiment.plan, experiment.dataset, experiment.algorithm
    clients = divided(
        experiment, dataset.train, experiment.owner, len(plan.records), experiment.people
    )
    if apart is not None:
        write_environment(run, completed, experiment, performance.engine, randomness.commitment)
    elif plan.private:
        held = [one.inputs for one in clients if isinstance(one.inputs, StoredRecords)]
        salt = read_salt(run.evidence / "salt") if "contents_sha256" in journal.header else None
        digests = [] if salt is None else [contents(one, salt) for one in held]
        write_partition(run.evidence, experiment.owner, held, digests)
        write_records(run.evidence, dataset.train.inputs, dataset.strata, dataset.test.inputs)
        if dataset.people is not None:
            write_people(run.evidence, dataset.people.stored, dataset.people.test)
        write_inputs(run.evidence, held)
        write_environment(run, completed, experiment, performance.engine, randomness.commitment)
    setup = UnitSetup(
        experiment=experiment,
        directory=run.evidence,
        completed=completed,
        randomness=randomness,
        commitments=commitments_of(journal.header),
    )
    unit = unit_of(plan).rounds.open(setup) if apart is None else apart.unit(setup)
    parts = RunParts(unit=unit, engine=engine, clients=clients)
    if drawn is not None:
        parts = drawn.plant(parts, experiment, run.evidence, flat)
    worker = Worker(
        rule=algorithm.local,
        unit=parts.unit,
        engine=parts.engine,
        flat=flat,
        randomness=randomness,
        performance=performance,
    )
    if apart is not None:
        elsewhere: ClientRunner | None = apart.runner(run, worker)
    else:
        # What is planted is watched in this process.
        elsewhere = _elsewhere(run, experiment, worker, setup) if drawn is None else None
    federation = Federation(
        spec=experiment.spec,
        plan=plan,
        worker=worker,
        server=algorithm.server,
        round_schedule=algorithm.round_schedule,
        clients=parts.clients,
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
        state=state,
        completed=completed,
        keeper=StateKeeper(run.evidence, plan.rounds, run.disk) if plan.private else None,
        canaries=drawn.order if drawn is not None else None,
        finish_canaries=parts.finish,
        again=plan.begun_again(journal.ledger.entries, completed),
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


def _draw(experiment: Experiment, order: CanaryOrder, randomness: RandomSource) -> CanarySetup:
    canaries = unit_of(experiment.plan).canaries
    if canaries is None:
        why = "this spec claims no privacy, so there is nothing to contradict"
        if experiment.plan.private:
            why = "of people there are none yet; use privacy.unit record or client"
        raise RunError(f"--canaries: {why}")
    return canaries.draw(experiment, order, randomness.stream("canary coins", -1, -1))


def _randomness(spec: Spec) -> RandomSource:
    if spec.randomness.mode == "reproducible":
        return ReproducibleRandomness(spec.randomness.seed or 0)
    return ReleaseRandomness()


def _drawn_again(experiment: Experiment, course: Journal, escrow: Path | None) -> RandomSource:
    """The streams of a run that is taken up again: of a new key, which is kept where one asks."""
    randomness = _randomness(experiment.spec)
    if escrow is not None:
        entries = [course.header, *course.ledger.of_kind("resume")]
        # Before the ledger names it: what was drawn under a key that is lost cannot be replayed.
        known = {str(entry.get("commitment")) for entry in entries}
        _with_a_key(randomness).add_to_escrow(escrow, known)
    return randomness


def _with_a_key(randomness: RandomSource) -> ReleaseRandomness:
    if not isinstance(randomness, ReleaseRandomness):
        raise RunError("--escrow: only randomness: release has a key to keep")
    return randomness


@part("probe")
def probe_of(training: Training) -> StepProbe | UpdateProbe | None:
    """What the auditor may poke at: the run's own private step or round, on data of its choosing.

    None of a run without privacy.
    """
    probe = unit_of(training.experiment.plan).probe
    if probe is None:
        return None
    from dpfedadamw.federation.probes import ProbedRun

    return probe(
        ProbedRun(
            experiment=training.experiment,
            worker=training.federation.worker,
            state=training.state,
            divide=divided,
        )
    )
