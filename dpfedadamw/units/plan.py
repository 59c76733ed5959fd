"""A privacy plan together with what a run of it may spend, and what it may claim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dpfedadamw.accounting.calibration import PlannedRun
from dpfedadamw.accounting.epsilon_limit import Each, OnceResumed, Watch, repeated
from dpfedadamw.accounting.selection import Trials
from dpfedadamw.accounting.several import PEOPLE_DERIVED_RATE, PEOPLE_STATED_RATE
from dpfedadamw.accounting.views import DERIVED_RATE, STATED_RATE
from dpfedadamw.accounting.worst_case import Adaptation, SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.plan import PrivacyPlan, ProtectedUnit
from dpfedadamw.privacy.sampling import FullBatch, PoissonSampling, Sampling, ShuffledEpochs
from dpfedadamw.spec import NotTuned, Spec, TuneSpec
from dpfedadamw.vectors.sparsification import Sparsification


@dataclass(frozen=True, kw_only=True)
class RunPlan(PrivacyPlan):
    """The mechanism of a run, and how far the run may go under it.

    Attributes:
        unit: What is protected, with its claims.
        adaptation: What the rules may change from round to round; None for nothing.
        max_epsilon: ε at which the run ends early, in the view of its target; None for no limit.
        target_epsilon: ε that the noise was solved for, at which a run that was cut off ends early;
            None where it was not.
        tune: How the hyper-parameters were chosen.
        most_records: Most training records that one person has; None where the data name no people.
        keeps_most_records: Whether the spec keeps so many of each person, whatever the data hold.
    """

    unit: PrivacyUnit
    adaptation: Adaptation | None = None
    max_epsilon: float | None = None
    target_epsilon: float | None = None
    tune: TuneSpec = field(default_factory=NotTuned)
    most_records: int | None = None
    keeps_most_records: bool = False

    @property
    def trials(self) -> Trials | None:
        """The law of the number of trials, of which the run is one; None for a run by itself."""
        if self.tune.mean_trials is None or self.tune.shape is None:
            return None
        return Trials(self.tune.mean_trials, self.tune.shape)

    @property
    def spending_bound(self) -> SpendingBound:
        """The most that the run can spend."""
        return SpendingBound(
            self.rounds,
            self.local_steps,
            self.noise_multiplier,
            self.adaptation,
            self.clients_per_person,
            () if self.column_queries is None else (self.column_queries.event,),
        )

    @property
    def watch(self) -> Watch | None:
        """Says before each round whether it keeps to the run's limits; None where there is none.

        Steps that a target limits stay below it by themselves.
        """
        limit, target = self.max_epsilon, self.target_epsilon
        if self.adaptation and self.adaptation.step_limit:
            target = None
        watches: list[Watch] = [] if limit is None else [self.unit.watch(self, limit)]
        if target is not None and (limit is None or target < limit):
            watches.append(OnceResumed(self.unit.watch(self, target)))
        if len(watches) > 1:
            return Each(tuple(watches))
        return watches[0] if watches else None

    def most_rounds(self, entries: Sequence[Mapping[str, Any]], completed: int) -> int:
        """How many rounds a run that is continued can have in the end.

        Fewer than the spec's where its limit on ε will end it. Where some clients sit out, or steps
        adapt, that depends on what is still to come.

        Args:
            entries: Its ledger, which does not yet say that it is continued.
            completed: Rounds that are not run again.
        """
        everybody = self.clients_per_round == len(self.records) and self.adaptation is None
        by_rounds = self.participants_hidden or self.clients_per_person > 1
        if (watch := self.watch) is None or not (
            everybody or by_rounds or self.unit.noises_updates
        ):
            return self.rounds
        clients = (0,) if self.unit.noises_updates else range(len(self.records))
        charge = {"kind": "spend", "attempt": 1, "steps": self.local_steps}
        ahead = [*entries, {"kind": "resume", "round": completed}]
        for index in range(completed, self.rounds):
            if not watch.allows(ahead, index):
                return index
            noise = self.spending_bound.counted_noise_multiplier(index)
            ahead += [
                {**charge, "round": index, "client": client, "noise_multiplier": noise}
                for client in clients
            ]
        return self.rounds

    def ends_early(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a claim says of a run that its limit on ε ended: ``stopped``; else nothing."""
        over = [entry["round"] for entry in entries if entry["kind"] == "round"]
        completed = max(over, default=-1) + 1
        if completed >= self.rounds or (watch := self.watch) is None:
            return {}
        if watch.allows(entries, completed):
            return {}
        limit, name = self.max_epsilon, "max_epsilon"
        if limit is None or self.unit.watch(self, limit).allows(entries, completed):
            name = "target_epsilon"
        return {"stopped": {"rounds": completed, name: getattr(self, name)}}

    @property
    def rate_assumption(self) -> str | None:
        """What a claim says of sizes and sampling rates; None where no rate amplifies."""
        if not self.unit.noises_gradients or not isinstance(self.sampling, PoissonSampling):
            return None
        if self.unit.of_people:
            return PEOPLE_DERIVED_RATE if self.stated_rate is None else PEOPLE_STATED_RATE
        return DERIVED_RATE if self.stated_rate is None else STATED_RATE

    def composition(self, client: int, rounds: int = 1) -> Composition:
        """What a number of participations costs one record of the client, at the first noise.

        Raises:
            PrivacyError: If no accountant covers the combination.
        """
        return self.event(client, self.spending_bound.most_local_steps, rounds)

    def planned_run(self, view: str = "server") -> PlannedRun:
        """The plan as the solvers of `calibration` take it.

        Args:
            view: "server" or "third-party", for a unit whose target may hold against either.
        """
        return self.unit.planned_run(self, view)

    def epsilon_after(self, completed: int, again: int = 0) -> float | None:
        """ε of the rounds so far, in the view of the claim's headline; None where nothing is told.

        At record level it is the ε of a client in every round, at client level the ε against a
        third party: a function of the plan, of how many rounds are over and of how often the run
        was resumed, and not of who took part. For a trial of a private selection it is None,
        because a trial has no ε of its own.

        Args:
            completed: Rounds completed.
            again: Rounds more that were begun (`begun_again`).
        """
        if not self.private or self.trials is not None:
            return None
        begun = completed + again
        return self.unit.epsilon_after(self, begun) if begun else 0.0

    def epsilon_of_round(
        self, entries: Sequence[Mapping[str, Any]], completed: int
    ) -> float | None:
        """What `epsilon_after` was when a round had ended, and its line stood last in the ledger.

        Args:
            entries: The ledger; whatever came after that line counts for nothing here.
            completed: Rounds completed with it, from 1.
        """
        ends = [
            place
            for place, entry in enumerate(entries, start=1)
            if entry["kind"] == "round" and entry["round"] == completed - 1
        ]
        return self.epsilon_after(completed, self.begun_again(entries[: ends[-1]], completed))

    def begun_again(self, entries: Sequence[Mapping[str, Any]], completed: int) -> int:
        """How many rounds were begun and charged but not finished, because of interruptions.

        Where nobody may be told how many clients took part, and spends would tell that some did,
        it is the most that they can be, by how often the run was taken up again.

        Args:
            entries: The ledger so far.
            completed: Rounds completed by then; one that is to be run again is not.
        """
        if self.participants_hidden and self.unit.noises_gradients:
            return repeated(entries)
        spends = [entry for entry in entries if entry["kind"] == "spend"]
        begun = {(entry["round"], entry["attempt"]) for entry in spends}
        over = {number for number, _ in begun if number < completed}
        return len(begun) - len(over)

    def expected_claim(self, dearest: int | None = None) -> dict[str, Any]:
        """The claim of a run in which every client takes part in every round.

        At client level this concerns the server's view alone: against a third party participation
        is part of the mechanism.

        Args:
            dearest: Of how many clients it states what each spends, of those that spend most, at
                least as many as a person may be at; None for all. What is claimed is the same.

        Raises:
            PrivacyError: If the plan claims nothing.
        """
        return self.unit.expected_claim(self, dearest)

    def check_cost(self) -> None:
        """Refuse a run whose most is no guarantee, or above its target, before anything is charged.

        Raises:
            PrivacyError: If no finite ε bounds what the run can spend, or one beyond
                `accounting.registry.LARGEST_EPSILON` or ``target_epsilon``.
        """
        self.unit.check_cost(self)

    @property
    def smallest_client(self) -> int:
        """The client whose participations cost most: the fewer records, the more each is used."""
        return min(range(len(self.records)), key=self.records.__getitem__)

    @property
    def queries(self) -> int:
        """Queries of the whole run, over all clients, at most."""
        return self.clients_per_round * self.spending_bound.most_steps * self.queries_per_step


class PrivacyUnit(ProtectedUnit, ABC):
    """What a run protects: it makes the plan, and says what holds under it.

    Whatever asks for an ε is refused by a unit that does not say how it is computed.
    """

    @abstractmethod
    def plan(
        self,
        spec: Spec,
        records: tuple[int, ...],
        queries_per_step: int,
        sparsification: Sparsification | None,
        /,
    ) -> RunPlan:
        """The plan of a spec, as `units.registry.make_plan` describes it."""

    @abstractmethod
    def realised_claim(
        self, plan: RunPlan, entries: Sequence[Mapping[str, Any]], /
    ) -> dict[str, Any]:
        """The claim that the ledger's entries support.

        Args:
            plan: The run's plan, of this unit.
            entries: The ledger so far; every spend line counts, also those of repeated rounds.
        """

    def expected_claim(self, _plan: RunPlan, _dearest: int | None, /) -> dict[str, Any]:
        """The claim of a run in which every client takes part in every round."""
        return self._refuse()

    @abstractmethod
    def check_cost(self, plan: RunPlan, /) -> None:
        """Refuse a plan whose most is no guarantee, or above its target."""

    def planned_run(self, _plan: RunPlan, _view: str, /) -> PlannedRun:
        """The plan as the solvers of `calibration` take it."""
        return self._refuse()

    def spent(self, _claim: Mapping[str, Any], _view: str, /) -> float:
        """ε of an expected claim, as a target in a view counts it."""
        return self._refuse()

    def cost(self, _plan: RunPlan, /) -> list[tuple[str, str]]:
        """What the plan's mechanism is, as rows of names and values for a reader."""
        return self._refuse()

    def epsilon_after(self, _plan: RunPlan, _rounds: int, /) -> float:
        """ε of so many rounds that were begun, at least one, in the view of the headline."""
        return self._refuse()

    def charged(self, _plan: RunPlan, /) -> Hashable:
        """What a run of the plan is charged; plans that are charged the same cost the same."""
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise PrivacyError(
            f"privacy.unit: {self.name}: this spec claims no privacy, so there is no ε to compute"
        )

    def watch(self, _plan: RunPlan, _limit: float, /) -> Watch:
        """Says before each round whether it keeps to a limit on ε."""
        return self._refuse()

    @abstractmethod
    def check_target(self, view: str, solve: str, /) -> None:
        """Refuse to solve for a number that could not meet a target in a view."""


def common_fields(spec: Spec, records: tuple[int, ...], queries_per_step: int) -> dict[str, Any]:
    """The fields of a plan that do not depend on the unit."""
    federation = spec.federation
    return {
        "records": records,
        "rounds": federation.rounds,
        "local_steps": federation.local_steps,
        "clients_per_round": federation.clients_per_round,
        "queries_per_step": queries_per_step,
        "client_sampling": "poisson" if federation.client_sampling == "poisson" else "fixed-size",
    }


def private_fields(spec: Spec, records: tuple[int, ...], queries_per_step: int) -> dict[str, Any]:
    """The fields of a plan that do not depend on which unit is protected."""
    privacy = spec.privacy
    assert privacy.noise_multiplier is not None
    assert privacy.clipping_norm is not None
    assert privacy.delta is not None
    assert privacy.adjacency is not None
    return {
        "adjacency": privacy.adjacency,
        "clipping_norm": privacy.clipping_norm,
        "noise_multiplier": privacy.noise_multiplier,
        "delta": privacy.delta,
        "max_epsilon": spec.federation.max_epsilon,
        "target_epsilon": privacy.target_epsilon,
        "tune": spec.tune,
        "records_per_person": privacy.records_per_person,
        "clients_per_person": spec.federation.clients_per_person,
        "gaussian_sampler": privacy.gaussian_sampler,
        **common_fields(spec, records, queries_per_step),
    }


def plain_batches(spec: Spec) -> Sampling:
    """Batches of local steps whose gradients are not noised."""
    size = spec.privacy.sampling.batch_size
    return ShuffledEpochs(size) if size is not None else FullBatch()
