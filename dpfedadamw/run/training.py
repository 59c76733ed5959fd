"""The rounds of one run, and what ends them: model and claim.

`setup.start` and `setup.resume` build what is trained here. Each round that is over is kept as
`journal` says, evaluated where that is due, and told of; then come the weights, the probe and the
claim, which is computed from what the ledger says was spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpfedadamw.algorithms.base import ServerState, released
from dpfedadamw.clipping.engines import ClippedSumEngine
from dpfedadamw.evidence.states import StateKeeper
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.rounds import (
    Federation,
    RoundResult,
    as_sent,
    divergence,
    published,
)
from dpfedadamw.models.registry import own_code
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.profiling import part
from dpfedadamw.run import checkpoints
from dpfedadamw.run.checkpoints import RoundNumbers
from dpfedadamw.run.computing import (
    determinism,
    divided,
    unit_of,
)
from dpfedadamw.run.evaluation import Evaluation, evaluate, evaluated, is_due
from dpfedadamw.run.header import (
    WholeSeconds,
    metrics_line,
)
from dpfedadamw.run.headline import with_dp_accounting, with_people
from dpfedadamw.run.journal import Journal, Outcome
from dpfedadamw.rundir import (
    RunDirectory,
)
from dpfedadamw.storage.lock import RunLock
from dpfedadamw.vectors.flat import FlatParameters

if TYPE_CHECKING:
    from dpfedadamw.canaries.engine import CanaryOrder
    from dpfedadamw.federation.probes import StepProbe
    from dpfedadamw.federation.update_probe import UpdateProbe


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
        repeated: How many more rounds were begun than are numbered: the run was cut off.
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
    repeated: int = 0
    times: WholeSeconds = field(default_factory=WholeSeconds)

    @property
    def engine(self) -> ClippedSumEngine:
        """Computes clipped sums, the same for steps and probe."""
        return self.federation.worker.engine

    @property
    def epsilon(self) -> float | None:
        """ε of the rounds so far (`RunPlan.epsilon_after`)."""
        return self.experiment.plan.epsilon_after(self.completed, self.repeated)

    @property
    def flat(self) -> FlatParameters:
        """The model's parameters."""
        return self.federation.worker.flat

    @property
    def ledger(self) -> Ledger:
        """The privacy ledger."""
        return self.federation.ledger


def train(
    training: Training,
    on_round: Callable[[RoundResult, Evaluation], None] | None = None,
    on_client: Callable[[int, int], None] | None = None,
    before_claim: Callable[[Training], None] | None = None,
) -> Outcome:
    """Run the remaining rounds, then write the model and the claim.

    If it fails the run is let go of, so that it can be resumed; else the caller goes on to hold it.

    Args:
        training: A run from `setup.start` or `setup.resume`.
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
        # The starting values are not kept in memory together with the message of the first round.
        training.state, message = as_sent(training.state)
        rounds = training.federation.run(training.state, training.completed, on_client, message)
        del message
        for result in _guarded(rounds, experiment):
            up, down = result.traffic
            numbers = RoundNumbers(result.learning_rate, up, down, result.last)
            state = checkpoints.pack_state(result.state, numbers)
            kept = False
            if training.keeper is not None:
                clients = len(experiment.plan.records)
                largest = checkpoints.largest_state(result.state, clients)
                kept = training.keeper.keep(result.completed - 1, state, largest)
            training.journal.complete(result.entry, state, kept)
            # Else it would stay while the next round is run.
            del state
            training.state, training.completed = result.state, result.completed
            evaluation = measure(training, numbers, result.seconds, training.epsilon)
            if on_round is not None:
                on_round(result, evaluation)
    training.flat.assign(published(experiment.plan, training.state))
    checkpoints.write_weights(run.weights, experiment.model)
    if training.finish_canaries is not None:
        training.finish_canaries()
    if evaluation is None:
        # All rounds were over before the run was cut off.
        evaluation = evaluated_model(experiment, finished=True)
    if before_claim is not None:
        before_claim(training)
    return Outcome(
        run=run,
        claim=close_claim(training),
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        measures={f"test_{name}": value for name, value in evaluation.measures.items()},
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


def evaluated_model(experiment: Experiment, finished: bool) -> Evaluation:
    """How good the experiment's model is now; with the measures of a finished one at the end."""
    with own_code(experiment.spec.model):
        of_the_end = experiment.spec.evaluation if finished else None
        return evaluate(*evaluated(experiment), finished=of_the_end)


def measure(
    training: Training, numbers: RoundNumbers, seconds: float | None, epsilon: float | None
) -> Evaluation:
    """Evaluate the state after a round, where that is due, and write the round's metrics."""
    experiment, completed = training.experiment, training.completed
    evaluation = Evaluation(None, None)
    if is_due(experiment, completed, numbers.last):
        training.flat.assign(released(training.state))
        evaluation = evaluated_model(experiment, numbers.last)
    whole = None if seconds is None else training.times.of(seconds)
    shown = published_seconds(experiment, whole)
    line = metrics_line(completed, evaluation, numbers, shown, training.canaries, epsilon)
    training.journal.measure(line)
    return evaluation


def published_seconds(experiment: Experiment, seconds: int | None) -> int | None:
    """A round's time, unless clients are drawn independently: it would tell how many took part."""
    return None if experiment.plan.participants_hidden else seconds


@part("ledger")
def close_claim(training: Training) -> dict[str, Any]:
    """Append the claim to the ledger: ε by view, from what the ledger says was spent."""
    entries, plan = training.ledger.entries, training.experiment.plan
    fields = {
        **with_dp_accounting(
            plan, with_people(plan, plan.unit.realised_claim(plan, entries), entries), entries
        ),
        **divergence(training.state, training.completed),
    }
    if "budget" in entries[0]:
        from dpfedadamw.run import budget

        fields |= budget.settle(training.experiment, entries)
    training.journal.close(fields)
    return fields


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
