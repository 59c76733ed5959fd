"""Rounds of a finished run, executed again by the engine that trained it.

`Rerun.rounds` executes the rounds of participations that an auditor has drawn, `Rerun.observe` all
of them, and `Rerun.run_round` one. It guarantees:

- Each round begins from a state that the ledger names by its digest, so that an error in one round
  does not reach the next and each is judged by itself. That state is one that the trainer kept, or
  what the rounds since the nearest such state lead to.
- A round uses the streams, the threads and the engine of clipped sums that the run had, and is
  bound to the ledger as it stood when the round was charged. On the same processor with the same
  versions it gives the same bits; any difference in these is noted in the outcome.
- Only clients whose keys are at hand are computed. What the server did is known where these are all
  of the round's clients.

Nothing is judged here: an outcome (`results`) holds what came out, and the auditor compares.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audit.recomputed import RecomputedRound, RecomputedStart
from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence.commitments import commitment_rows, commitments_of
from dpfedadamw.evidence.records import contents_digest, whose_digest
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.rounds import Federation, RoundResult, client_data
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.reexecution.history import (
    KeptStates,
    Keys,
    PastLedger,
    PastRound,
    ReexecutionError,
    TrainingMachine,
    append,
)
from dpfedadamw.reexecution.observation import ObservedRule, RoundObserver, Tap
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.reexecution.unprotected import Kept, RecomputedUnprotected
from dpfedadamw.run import checkpoints
from dpfedadamw.run.checkpoints import RoundNumbers
from dpfedadamw.run.columns import of_run, same_counts
from dpfedadamw.run.computing import determinism, engine_of, performance_of
from dpfedadamw.run.evaluation import Evaluation, evaluate, evaluated
from dpfedadamw.run.header import initial_weights, refuse_changed_source, tensors_digest
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters

# Round and client of each participation that an auditor has drawn.
Drawn = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Cost:
    """What it takes to compute participations again.

    Attributes:
        rounds: Rounds in which they are.
        executed: Rounds that the engine executes for them.
        total: Rounds of the run.
        participations: How many of them are computed a second time, record by record.
    """

    rounds: int
    executed: int
    total: int
    participations: int


class Rerun:
    """A finished run whose rounds can be executed again.

    Args:
        run: Its directory.
        keys: What the auditor holds.
        device: Where to compute.
        data: Where the data lie, if not where the spec says.

    Attributes:
        ledger: Its ledger.
        filed_spec: The spec as the run's directory has it.
        experiment: The spec with data and model.

    Raises:
        DpfedadamwError: If spec or data are not there, or not those of the run.
    """

    def __init__(
        self, run: RunDirectory, keys: Keys, device: torch.device, data: Path | None = None
    ) -> None:
        self._run, self._keys = run, keys
        self.ledger = PastLedger(run.ledger)
        changes = [] if data is None else [f"data.path={data.resolve()}"]
        self.filed_spec = specs.load_filed(run.spec)
        refuse_changed_source(run, self.filed_spec)
        self.experiment = of_run(prepare(specs.load_filed(run.spec, changes), device), run)
        if self.ledger.header.get("data_sha256") != self.experiment.dataset.sha256:
            raise ReexecutionError(
                "the data set is not the one whose digest is in the ledger; give the run's own "
                "data, with --data PATH if they are elsewhere"
            )
        if "canaries" in self.ledger.header:
            raise ReexecutionError(
                "an audit run has planted canaries, which no data set contains; replay the run "
                "that it audits"
            )
        self._machine = TrainingMachine(run.evidence, device)
        self._flat = FlatParameters(self.experiment.model)
        self._states = KeptStates(run, self.ledger, self.experiment, self._flat)
        self._clients = client_data(
            self.experiment.dataset.train,
            self.experiment.owner,
            len(self.experiment.plan.records),
            device,
            self.experiment.people,
        )

    def contents_digest(self) -> str:
        """What commits to the content under each row of the training records, hexadecimal."""
        salt = read_salt(self._run.evidence / "salt")
        return contents_digest(salt, self.experiment.dataset.train.inputs)

    def people_digest(self) -> str | None:
        """What commits to whom each record is about, hexadecimal; None where no data say."""
        people = self.experiment.dataset.people
        if people is None:
            return None
        return whose_digest(read_salt(self._run.evidence / "salt"), people.stored, people.test)

    def same_counts(self) -> bool:
        """Whether the histograms of columns, where bounds were learnt, are those of the records.

        Raises:
            ReexecutionError: If the evidence of them cannot be read.
        """
        if self.experiment.plan.column_queries is None:
            return True
        try:
            return same_counts(self.experiment, self._run)
        except (OSError, ValueError) as error:
            raise ReexecutionError(
                f"evidence/columns.npz: cannot be read ({type(error).__name__})"
            ) from None

    def cost(self, drawn: Drawn, last: int) -> Cost:
        """What `rounds` would take.

        Args:
            drawn: Round and client of each participation.
            last: The last round.
        """
        rounds = self._rounds_of(drawn, last)
        executed, reached = 0, 0
        for index in rounds:
            executed += index + 1 - max(self._states.latest(index), reached)
            reached = index + 1
        return Cost(len(rounds), executed, len(self.ledger.rounds), len(drawn))

    def rounds(self, drawn: Drawn, last: int) -> Iterator[RecomputedRound]:
        """Execute the rounds of participations, in their order, and the last round.

        Args:
            drawn: Round and client of each.
            last: The last round, which leads to the published model. Where the keys do not open
                it, it is left out.
        """
        reached: tuple[int, ServerState] | None = None
        for index in self._rounds_of(drawn, last):
            clients = frozenset(client for at, client in drawn if at == index)
            try:
                state = self._state_before(index, reached)
                result, outcome = self.run_round(index, state, clients)
            except DpfedadamwError as error:
                reached = None
                yield RecomputedRound(
                    round=index,
                    attempt=0,
                    problem=str(error),
                    digests={},
                    commitments=np.zeros((0, 32), np.uint8),
                )
                continue
            # From a state that the ledger does not name no other round may begin.
            named = outcome.whole and self._is_named(result)
            reached = (index + 1, result.state) if named else None
            del result
            yield outcome
            # What drawn clients asked and got is many vectors; the next round has as many.
            del outcome

    def _rounds_of(self, drawn: Drawn, last: int) -> list[int]:
        """The rounds of participations, and the last where its keys are there."""
        more = {last} if self._keys.open(last, [SERVER]) else set()
        return sorted({index for index, _ in drawn} | more)

    def observe(
        self, observer: RoundObserver, on_round: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Execute every round while somebody looks on.

        Args:
            observer: Looks on.
            on_round: Called with rounds done and rounds in all.

        Raises:
            ReexecutionError: If a round cannot be executed, or does not lead to the very state
                that the ledger names: what was seen is then not what happened in the run.
        """
        total, state = len(self.ledger.rounds), self.initial_state()
        for index in range(total):
            result = self._whole_round(index, state, observer)
            if result is None:
                raise ReexecutionError("the whole key is needed to run every round again")
            state = self._named_state(result)
            on_round(index + 1, total)

    def initial_state(self) -> ServerState:
        """The state before the first round."""
        return self._states.after(0)

    def executed_start(self) -> RecomputedStart:
        """What training begins with, as the auditor asks for it."""
        state = self.initial_state()
        # The module's own parameters are those of the round that was executed last.
        self.assign(state)
        made = initial_weights(self.experiment, state)
        return RecomputedStart(
            broadcast_sha256=made["broadcast_sha256"],
            parameters=state.parameters.float().cpu().numpy(),
            tensors_sha256=tensors_digest(self.experiment.model),
            file_sha256=made.get("file_sha256"),
            differences=self._machine.differences(0),
        )

    def assign(self, state: ServerState) -> None:
        """Give the experiment's model the parameters of a state."""
        self._flat.assign(state.parameters)

    def evaluate(self, state: ServerState, finished: bool = False) -> Evaluation:
        """Test metrics of a state, with as many threads as the run had."""
        self.assign(state)
        with self._machine.threads(0):
            of_the_end = self.experiment.spec.evaluation if finished else None
            return evaluate(*evaluated(self.experiment), of_the_end)

    def run_round(
        self,
        index: int,
        state: ServerState,
        drawn: frozenset[int] = frozenset(),
        observer: RoundObserver | None = None,
    ) -> tuple[RoundResult, RecomputedRound]:
        """Execute one round.

        Args:
            index: t, from 0.
            state: The state before it.
            drawn: Clients whose participations are to be computed a second time.
            observer: Looks on; None for nobody.

        Raises:
            ReexecutionError: If the ledger has no such round, or the keys do not open it.
        """
        past = self.ledger.rounds.get(index)
        if past is None:
            raise ReexecutionError(f"round {index}: the ledger does not record that it finished")
        with tempfile.TemporaryDirectory(prefix="dpfedadamw-again-") as folder:
            tap = None if observer is None else Tap(observer)
            unit = self._unit(past, Path(folder), drawn, tap)
            charges: list[Mapping[str, Any]] = []
            federation = self._federation(past, Path(folder), unit, charges)
            with self._machine.threads(index), determinism(self.experiment.spec):
                result = next(federation.run(state, index), None)
            if result is None:
                raise ReexecutionError(f"round {index}: the spec ends the run before it")
            return result, self._outcome(past, result, unit, charges)

    def _unit(
        self, past: PastRound, folder: Path, drawn: frozenset[int], tap: Tap | None
    ) -> RecomputedUnprotected:
        """The unit of protection, which keeps what drawn clients do; its files go to the folder."""
        if self.experiment.plan.private:
            # Commitments are keyed with the salt.
            (folder / "salt").write_bytes(read_salt(self._run.evidence / "salt"))
        setup = UnitSetup(
            experiment=self.experiment,
            directory=folder,
            completed=0,
            randomness=self._keys.source(past.commitment),
            commitments=commitments_of(self.ledger.header),
        )
        return _unit_class(self.experiment.plan).begin(setup, drawn, tap)

    def _federation(
        self,
        past: PastRound,
        folder: Path,
        unit: RecomputedUnprotected,
        charges: list[Mapping[str, Any]],
    ) -> Federation:
        """The run's federation as it stood before a round; notes what it would charge for it."""
        ledger = self.ledger.as_it_stood(past.before, folder)

        def charge(lines: Sequence[Mapping[str, Any]]) -> None:
            charges.extend(dict(line) for line in lines)
            # Streams are bound to what the ledger really says; what it should say is judged.
            append(ledger, "spend", past.charges or lines)

        experiment, tap = self.experiment, unit.kept.tap
        performance = performance_of(experiment, self._machine.engine(int(past.entry["round"])))
        rule = experiment.algorithm.local
        worker = Worker(
            rule=rule if tap is None else ObservedRule(rule, tap),
            unit=unit,
            engine=engine_of(experiment, performance),
            flat=self._flat,
            randomness=unit.kept.source,
            performance=performance,
        )
        return _FederationWithKeys(
            spec=experiment.spec,
            plan=experiment.plan,
            worker=worker,
            server=experiment.algorithm.server,
            round_schedule=experiment.algorithm.round_schedule,
            clients=self._clients,
            ledger=ledger,
            charge=charge,
            keys=self._keys,
            kept=unit.kept,
        )

    def _outcome(
        self,
        past: PastRound,
        result: RoundResult,
        unit: RecomputedUnprotected,
        charges: Sequence[Mapping[str, Any]],
    ) -> RecomputedRound:
        """What came out of a round; of the server's part only where all clients were computed."""
        index, kept, entry = result.completed - 1, unit.kept, result.entry
        whole, differences = self._keys.open(index, kept.cohort), self._machine.differences(index)
        participations = [
            unit.participation(client, self._clients[client], self._gradients)
            # A client that the key does not draw has no part in the round, whatever others say.
            for client in sorted(kept.drawn.intersection(entry["clients"]))
        ]
        outcome = RecomputedRound(
            round=index,
            attempt=past.attempt,
            exact=not differences,
            differences=differences,
            clients=tuple(int(client) for client in entry["clients"]),
            cohort=tuple(kept.cohort),
            commitments=commitment_rows(kept.commitments),
            participations=tuple(participations),
            # The server's own noise is known either way: its key is opened with any of the round.
            release=unit.release(whole),
            digests={name: str(entry[name]) for name in entry if name.endswith("_sha256")},
        )
        if not whole:
            # What depends on the clients that are missing is not the run's.
            name = "broadcast_sha256"
            return replace(outcome, digests={name: outcome.digests[name]})
        state_digest, moved = _state_digest(result), None
        if state_digest != past.entry.get("state_sha256"):
            before = unit.current.broadcast.parameters
            moved = self._states.distance(result.completed, before, result.state)
        return replace(
            outcome,
            whole=True,
            charges=tuple(charges),
            digests={**outcome.digests, "state_sha256": state_digest},
            moved=moved,
            published=self._states.is_published(result.state) if result.last else None,
        )

    @cached_property
    def _gradients(self) -> PlainGradients:
        return PlainGradients(self.experiment)

    def _state_before(self, index: int, reached: tuple[int, ServerState] | None) -> ServerState:
        """The state before a round.

        Args:
            index: t, from 0.
            reached: How many rounds were completed at a state that was computed, and that state.
        """
        completed = self._states.latest(index)
        if reached is not None and reached[0] >= completed:
            completed, state = reached
        else:
            state = self._states.after(completed)
        reason = f"round {index}: no state before it was kept, and "
        while completed < index:
            result = self._whole_round(completed, state)
            if result is None:
                raise ReexecutionError(
                    f"{reason}re-running the rounds before it needs the whole key"
                )
            completed, state = completed + 1, self._named_state(result, reason)
        return state

    def _whole_round(
        self, index: int, state: ServerState, observer: RoundObserver | None = None
    ) -> RoundResult | None:
        """A round with all of its clients; None where the keys do not open it."""
        if not self._keys.open(index, [SERVER]):
            return None
        result, outcome = self.run_round(index, state, observer=observer)
        return result if outcome.whole else None

    def _named_state(self, result: RoundResult, reason: str = "") -> ServerState:
        """The state after a round, which must be the ledger's."""
        if self._is_named(result):
            return result.state
        index = result.completed - 1
        differences = "; ".join(self._machine.differences(index))
        raise ReexecutionError(
            f"{reason}round {index}, run again, does not lead to the state that the ledger names"
            + (f" ({differences})" if differences else "")
        )

    def _is_named(self, result: RoundResult) -> bool:
        return _state_digest(result) == self.ledger.state_digest(result.completed)


@dataclass(frozen=True, kw_only=True)
class _FederationWithKeys(Federation):
    """A federation that computes no client whose key is not at hand.

    Attributes:
        keys: The keys that are.
        kept: Has the clients that were drawn, and gets everybody whom the round's stream draws.
    """

    keys: Keys
    kept: Kept

    def _choose(self, index: int) -> tuple[list[int], int]:
        cohort, attempt = super()._choose(index)
        self.kept.cohort = cohort
        return (cohort if self.keys.open(index, cohort) else sorted(self.kept.drawn)), attempt


def _unit_class(plan: RunPlan) -> type[RecomputedUnprotected]:
    """The unit of protection of a plan. Those of other plans are not loaded."""
    if not plan.private:
        return RecomputedUnprotected
    if plan.unit.noises_updates:
        from dpfedadamw.reexecution.client_level import RecomputedClientLevel

        return RecomputedClientLevel
    from dpfedadamw.reexecution.record_level import RecomputedRecordLevel

    return RecomputedRecordLevel


def round_numbers(result: RoundResult) -> RoundNumbers:
    """What metrics say of a round."""
    up, down = result.traffic
    return RoundNumbers(result.learning_rate, up, down, result.last)


def packed_state(result: RoundResult) -> bytes:
    """A round's state as the run serialises it."""
    return checkpoints.pack_state(result.state, round_numbers(result))


def _state_digest(result: RoundResult) -> str:
    return hashlib.sha256(packed_state(result)).hexdigest()
