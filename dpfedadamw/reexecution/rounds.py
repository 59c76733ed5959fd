"""Rounds of a finished run, run again by the engine, each from the state that the trainer kept.

The states between rounds are bound by their digests in the ledger, so an error in one round does
not reach the next: each is judged by itself. Where no state was kept before a round, those before
it are run again as well, from the nearest that was, and each must lead to the state that the ledger
names.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.clipping.performance import PerformanceOptions
from dpfedadamw.data.datasets import Dataset
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence.commitments import commitment_rows, commitments_of
from dpfedadamw.evidence.records import contents_digest
from dpfedadamw.evidence.states import state_file
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.rounds import Federation, RoundResult, client_data
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.reexecution.history import Keys, PastLedger, PastRound, append
from dpfedadamw.reexecution.observation import ObservedRule, RoundObserver, Tap
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.reexecution.results import ReexecutionError, RoundAgain, StartAgain
from dpfedadamw.reexecution.unprotected import UnprotectedAgain
from dpfedadamw.run import checkpoints
from dpfedadamw.run.checkpoints import RoundNumbers
from dpfedadamw.run.computing import determinism, unit_of
from dpfedadamw.run.environment import differences, environment, read_environments
from dpfedadamw.run.evaluation import Evaluation, evaluated
from dpfedadamw.run.header import (
    initial_weights,
    refuse_changed_source,
    tensors_digest,
)
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec import EvaluationSpec
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters

Drawn = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Cost:
    """What computing participations again takes.

    Attributes:
        rounds: Rounds in which they are.
        again: Rounds that the engine runs again for them.
        of: Rounds of the run.
        participations: How many of them are computed a second time, record by record.
    """

    rounds: int
    again: int
    of: int
    participations: int


class Rerun:
    """A finished run that can be run again, round by round.

    Args:
        run: Its directory.
        keys: What the auditor holds.
        device: Where to compute.
        data: Where the data lie, if not where the spec says.

    Attributes:
        past: Its ledger.
        stated: The spec as the run has it.
        experiment: The spec with data and model.

    Raises:
        DpfedadamwError: If spec or data are not there, or not those of the run.
    """

    def __init__(
        self, run: RunDirectory, keys: Keys, device: torch.device, data: Path | None = None
    ) -> None:
        self._run, self._keys = run, keys
        self.past = PastLedger(run.ledger)
        changes = [] if data is None else [f"data.path={data.resolve()}"]
        self.stated = specs.load_filed(run.spec)
        refuse_changed_source(run, self.stated)
        self.experiment = prepare(specs.load_filed(run.spec, changes), device)
        if self.past.header.get("data_sha256") != self.experiment.dataset.sha256:
            raise ReexecutionError(
                "the data set is not the one that the ledger names by its digest; give the run's "
                "own data, with --data PATH where they lie elsewhere"
            )
        if "canaries" in self.past.header:
            raise ReexecutionError(
                "an audit run has planted canaries, which are in no data set; replay the run that "
                "it audits"
            )
        self._environments = read_environments(run.evidence)
        self._flat = FlatParameters(self.experiment.model)
        self._initial = self._flat.vector.clone()
        dataset = self.experiment.dataset
        clients = len(self.experiment.plan.records)
        owner, people = self.experiment.owner, self.experiment.people
        self._clients = client_data(dataset.train, owner, clients, device, people)

    @cached_property
    def _gradients(self) -> PlainGradients:
        return PlainGradients(self.experiment)

    def contents_digest(self) -> str:
        """What commits to the content under each row of the training records, hexadecimal."""
        salt = read_salt(self._run.evidence / "salt")
        return contents_digest(salt, self.experiment.dataset.train.inputs)

    def assign(self, state: ServerState) -> None:
        """Give the experiment's model the parameters of a state."""
        self._flat.assign(state.parameters)

    def measured(
        self,
        state: ServerState,
        evaluate: Callable[
            [nn.Module, Dataset, torch.device, bool, EvaluationSpec | None], Evaluation
        ],
        finished: bool = False,
    ) -> Evaluation:
        """Test metrics of a state, with as many threads as the run had."""
        self.assign(state)
        experiment = self.experiment
        with self._threads(0):
            of_the_end = experiment.spec.evaluation if finished else None
            return evaluate(*evaluated(experiment), of_the_end)

    def cost(self, drawn: Drawn, last: int) -> Cost:
        """What it takes to compute participations again.

        Args:
            drawn: Round and client of each.
            last: The last round, which is computed with them where its keys are there.
        """
        rounds = self._wanted(drawn, last)
        again, at = 0, -1
        for index in rounds:
            start = max(self._kept_before(index), at)
            again += index + 1 - start
            at = index + 1
        return Cost(len(rounds), again, len(self.past.rounds), len(drawn))

    def _wanted(self, drawn: Drawn, last: int) -> list[int]:
        """The rounds of participations, and the last where its keys are there."""
        more = {last} if self._keys.open(last, [SERVER]) else set()
        return sorted({index for index, _ in drawn} | more)

    def rounds(self, drawn: Drawn, last: int) -> Iterator[RoundAgain]:
        """Compute the rounds of participations again, in their order, and the last round.

        Args:
            drawn: Round and client of each.
            last: The last round, which leads to the published model. Where the keys do not open
                it, it is left out.
        """
        wanted: dict[int, set[int]] = {index: set() for index in self._wanted(drawn, last)}
        for index, client in drawn:
            wanted[index].add(client)
        at: tuple[int, ServerState] | None = None
        for index, clients in wanted.items():
            try:
                state = self._state_before(index, at)
                result, again = self.play(index, state, frozenset(clients))
            except DpfedadamwError as error:
                at = None
                yield _failed(index, str(error))
                continue
            at = (index + 1, result.state) if again.whole and self._as_named(result) else None
            del result
            yield again
            # What drawn clients asked and got is many vectors; the next round has as many.
            del again

    def play(
        self,
        index: int,
        state: ServerState,
        drawn: frozenset[int] = frozenset(),
        observer: RoundObserver | None = None,
    ) -> tuple[RoundResult, RoundAgain]:
        """Run one round again.

        Args:
            index: t, from 0.
            state: The state before it.
            drawn: Clients whose participations are to be computed a second time.
            observer: Looks on; None for nobody.

        Raises:
            ReexecutionError: If the ledger has no such round, or the keys do not open it.
        """
        past = self._past(index)
        different = self._differences(index)
        with tempfile.TemporaryDirectory(prefix="dpfedadamw-again-") as temporary:
            folder = Path(temporary)
            if self.experiment.plan.private:
                # Commitments are keyed with the salt.
                (folder / "salt").write_bytes(read_salt(self._run.evidence / "salt"))
            ledger = self.past.as_it_stood(past.before, folder)
            computed: list[dict[str, Any]] = []

            def charge(lines: Sequence[Mapping[str, Any]]) -> None:
                computed.extend(dict(line) for line in lines)
                # Streams are bound to what the ledger really says; what it should is judged.
                append(ledger, "spend", past.charges or lines)

            source = self._keys.source(past.commitment)
            cohort: list[int] = []
            tap = None if observer is None else Tap(observer)
            unit = self._unit(folder, source, drawn, cohort, tap)
            experiment, options = self.experiment, self._performance(index)
            rule = experiment.algorithm.local
            self.experiment.model.train()
            worker = Worker(
                rule=rule if tap is None else ObservedRule(rule, tap),
                unit=unit,
                engine=unit_of(experiment.plan).rounds.engine(experiment, options),
                flat=self._flat,
                randomness=source,
                performance=options,
            )
            federation = _Again(
                spec=experiment.spec,
                plan=experiment.plan,
                worker=worker,
                server=experiment.algorithm.server,
                round_schedule=experiment.algorithm.round_schedule,
                clients=self._clients,
                ledger=ledger,
                charge=charge,
                open=lambda clients: self._keys.open(index, clients),
                drawn=drawn,
                cohort=cohort,
            )
            with self._threads(index), determinism(experiment.spec):
                result = next(federation.run(state, index), None)
            if result is None:
                raise ReexecutionError(f"round {index}: the spec ends the run before it")
            participations = tuple(
                unit.participation(client, self._clients[client], self._gradients)
                # Whom the key does not draw has no part in the round; that others say so is judged.
                for client in sorted(drawn.intersection(result.entry["clients"]))
            )
            return result, RoundAgain(
                round=index,
                attempt=past.attempt,
                exact=not different,
                differences=different,
                clients=tuple(int(client) for client in result.entry["clients"]),
                cohort=tuple(cohort),
                commitments=commitment_rows(unit.kept.commitments),
                participations=participations,
                **self._server(past, result, unit, computed, self._keys.open(index, cohort)),
            )

    def observe(
        self, observer: RoundObserver, on_round: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """Run the whole run again while somebody looks on.

        Args:
            observer: Looks on.
            on_round: Called with rounds done and rounds in all.

        Raises:
            ReexecutionError: If a round cannot be run again, or does not lead to the very state
                that the ledger names: what was seen is then not what happened in the run.
        """
        total, state = len(self.past.rounds), self.start()
        for index in range(total):
            if not self._keys.open(index, [SERVER]):
                raise ReexecutionError("the whole key is needed to run every round again")
            result, _ = self.play(index, state, observer=observer)
            if not self._as_named(result):
                raise ReexecutionError(
                    f"round {index}, run again, does not lead to the state that the ledger names"
                    + _because(self._differences(index))
                )
            state = result.state
            on_round(index + 1, total)

    def start(self) -> ServerState:
        """The state before the first round."""
        return self.experiment.algorithm.server.start(self._initial.clone())

    def start_again(self) -> StartAgain:
        """What training begins with, as the auditor asks for it."""
        start, experiment = self.start(), self.experiment
        # The module's own parameters are those of the round that was played last.
        self.assign(start)
        made = initial_weights(experiment, start)
        return StartAgain(
            broadcast_sha256=made["broadcast_sha256"],
            parameters=start.parameters.float().cpu().numpy(),
            tensors_sha256=tensors_digest(experiment.model),
            file_sha256=made.get("file_sha256"),
            differences=self._differences(0),
        )

    def _server(
        self,
        past: PastRound,
        result: RoundResult,
        unit: UnprotectedAgain,
        computed: Sequence[Mapping[str, Any]],
        whole: bool,
    ) -> dict[str, Any]:
        """What is told of the server's part of a round, of which all clients were computed or not.

        The server's own noise is told either way: its key is opened with any of the round.
        """
        digests = {name: str(of) for name, of in result.entry.items() if name.endswith("_sha256")}
        release = unit.release(whole)
        if not whole:
            return {
                "digests": {"broadcast_sha256": digests["broadcast_sha256"]},
                "release": release,
            }
        digests["state_sha256"] = hashlib.sha256(packed_state(result)).hexdigest()
        same = digests["state_sha256"] == past.entry.get("state_sha256")
        index = int(past.entry["round"])
        return {
            "whole": True,
            "charges": tuple(computed),
            "digests": digests,
            "release": release,
            "moved": None
            if same
            else self._moved(index, unit.current.broadcast.parameters, result.state),
            "published": self._is_published(result) if result.last else None,
        }

    def _is_published(self, result: RoundResult) -> bool:
        published, own = self._published(), result.state.parameters
        if published is None:
            return False
        # A model that diverged is what was published as well, though NaN equals nothing.
        return torch.allclose(published, own.to(published.dtype), rtol=0, atol=0, equal_nan=True)

    def _moved(self, index: int, before: Tensor, state: ServerState) -> float | None:
        """How far a state lies from the trainer's, over the distance that the round went."""
        kept = self._kept_state(index + 1)
        if kept is None and index + 1 == len(self.past.rounds):
            kept = self._published()
        if kept is None:
            return None
        off = float(torch.linalg.vector_norm(state.parameters.double() - kept.double()))
        went = float(torch.linalg.vector_norm(kept.double() - before.double()))
        return off / went if went > 0.0 else float("inf") if off > 0.0 else 0.0

    def _published(self) -> Tensor | None:
        """The published parameters as a flat vector; None where they do not fit the model."""
        try:
            tensors = load(DISK.read(self._run.weights))
            found = [tensors[part.name].reshape(-1) for part in self._flat.layout.slices]
        except (OSError, SafetensorError, KeyError):
            # Whatever the file holds is judged elsewhere; here it only cannot be compared with.
            return None
        whole = torch.cat(found).to(self.experiment.device)
        return whole if len(whole) == len(self._initial) else None

    def _state_before(self, index: int, at: tuple[int, ServerState] | None) -> ServerState:
        """The state before a round, running those before it again where none was kept."""
        kept = self._kept_before(index)
        if at is not None and at[0] >= kept:
            completed, state = at
        elif kept:
            completed, state = kept, self._kept(kept)
        else:
            completed, state = 0, self.start()
        while completed < index:
            found = self.play(completed, state) if self._keys.open(completed, [SERVER]) else None
            if found is None or not found[1].whole:
                raise ReexecutionError(
                    f"round {index}: no state before it was kept, and to run the rounds before it "
                    "again needs the whole key"
                )
            result = found[0]
            if not self._as_named(result):
                raise ReexecutionError(
                    f"round {index}: no state before it was kept, and round {completed}, run "
                    "again, does not lead to the state that the ledger names"
                    + _because(self._differences(completed))
                )
            completed, state = completed + 1, result.state
        return state

    def _as_named(self, result: RoundResult) -> bool:
        digest = hashlib.sha256(packed_state(result)).hexdigest()
        return digest == self.past.state_digest(result.completed)

    def _kept_before(self, index: int) -> int:
        """The last round, by how many are completed, before which the trainer kept the state."""
        for completed in range(index, 0, -1):
            if (self._run.evidence / state_file(completed - 1)).is_file():
                return completed
        return 0

    def _kept(self, completed: int) -> ServerState:
        found = self._read_state(completed)
        if found is None:
            raise ReexecutionError(
                f"evidence/{state_file(completed - 1)}: is not the state that the ledger names"
            )
        return found

    def _kept_state(self, completed: int) -> Tensor | None:
        found = self._read_state(completed)
        return None if found is None else found.parameters

    def _read_state(self, completed: int) -> ServerState | None:
        path = self._run.evidence / state_file(completed - 1)
        try:
            content = DISK.read(path)
        except OSError:
            return None
        if hashlib.sha256(content).hexdigest() != self.past.state_digest(completed):
            return None
        server = self.experiment.algorithm.server
        return checkpoints.unpack_state(content, server, self._initial)[0]

    def _past(self, index: int) -> PastRound:
        past = self.past.rounds.get(index)
        if past is None:
            raise ReexecutionError(f"round {index}: the ledger does not say that it was finished")
        return past

    def _unit(
        self,
        folder: Path,
        source: RandomSource,
        drawn: frozenset[int],
        cohort: Sequence[int],
        tap: Tap | None,
    ) -> UnprotectedAgain:
        setup = UnitSetup(
            experiment=self.experiment,
            directory=folder,
            completed=0,
            randomness=source,
            commitments=commitments_of(self.past.header),
        )
        return _computing_again(self.experiment.plan).begin(setup, drawn, cohort, tap)

    def _recorded(self, index: int) -> Mapping[str, Any] | None:
        firsts = [first for first in self._environments if first <= index]
        return self._environments[max(firsts)] if firsts else None

    def _performance(self, index: int) -> PerformanceOptions:
        recorded, compute = self._recorded(index), self.experiment.spec.compute
        return PerformanceOptions(
            engine=str((recorded or {}).get("engine", "auto")),
            physical_batch_size=compute.physical_batch_size,
            precision=compute.precision,
        )

    def _differences(self, index: int) -> tuple[str, ...]:
        """What of the trainer's machine is not as here, threads aside, which can be set."""
        recorded = self._recorded(index)
        if recorded is None:
            return ("the run did not note on what it was computed",)
        here = environment(self.experiment.device, str(recorded.get("engine", "auto")))
        return tuple(differences(recorded, {**here, "threads": recorded.get("threads")}))

    @contextmanager
    def _threads(self, index: int) -> Iterator[None]:
        """Compute with as many threads as the trainer did: sums are cut up by them."""
        before = torch.get_num_threads()
        wanted = (self._recorded(index) or {}).get("threads", before)
        if isinstance(wanted, int) and 1 <= wanted <= 1024:
            torch.set_num_threads(wanted)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _computing_again(plan: RunPlan) -> type[UnprotectedAgain]:
    """What computes a plan's rounds again; that of another unit is not loaded."""
    if not plan.private:
        return UnprotectedAgain
    if plan.unit.noises_updates:
        from dpfedadamw.reexecution.client_level import ClientLevelAgain

        return ClientLevelAgain
    from dpfedadamw.reexecution.record_level import RecordLevelAgain

    return RecordLevelAgain


@dataclass(frozen=True, kw_only=True)
class _Again(Federation):
    """Rounds as they were, with the clients of whom there is a key.

    Attributes:
        open: Whether there are the keys of all these clients.
        drawn: The clients that are computed where not all of a round's are open.
        cohort: Gets everybody whom the round's own stream draws.
    """

    open: Callable[[Sequence[int]], bool]
    drawn: frozenset[int]
    cohort: list[int]

    def _choose(self, index: int) -> tuple[list[int], int]:
        self.cohort[:], attempt = super()._choose(index)
        return (self.cohort if self.open(self.cohort) else sorted(self.drawn)), attempt


def packed_state(result: RoundResult) -> bytes:
    """A round's state as the run serialises it."""
    up, down = result.traffic
    return checkpoints.pack_state(
        result.state, RoundNumbers(result.learning_rate, up, down, result.last)
    )


def _failed(index: int, problem: str) -> RoundAgain:
    return RoundAgain(
        round=index,
        attempt=0,
        problem=problem,
        digests={},
        commitments=np.zeros((0, 32), np.uint8),
    )


def _because(different: Sequence[str]) -> str:
    return f" ({'; '.join(different)})" if different else ""
