"""One frozen plan from which sampler, clipper, noise and accounting all come.

They cannot disagree, because none of them can be chosen alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.calibration import PlannedRun
from dpfedadamw.privacy.accounting.epsilon_limit import Watch, repeated
from dpfedadamw.privacy.accounting.selection import Trials
from dpfedadamw.privacy.accounting.views import DERIVED_RATE, STATED_RATE
from dpfedadamw.privacy.accounting.worst_case import Adaptation, SpendingBound
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.sampling import (
    FixedClients,
    FullBatch,
    PoissonClients,
    PoissonSampling,
    Sampling,
    ShuffledEpochs,
    composition_of,
)
from dpfedadamw.spec import NotTuned, Spec, TuneSpec
from dpfedadamw.vectors.sparsification import Sparsification

if TYPE_CHECKING:
    from dpfedadamw.privacy.noise.noise import Method


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Everything that decides what a run's gradients reveal.

    Attributes:
        unit: What is protected.
        adjacency: Neighbouring data sets, "add-remove" or "replace-one".
        clipping_norm: C > 0, L2 norm to which one record's gradient, or one client's update, is
            clipped; infinite without privacy.
        noise_multiplier: σ; the clipped sum gets noise of standard deviation σC. 0 without privacy.
            For the unit "client" the sum is that of the round's updates, and gradients are plain.
        delta: δ in (0, 1); None without privacy.
        sampling: How the records of a step are drawn.
        records: R_i, number of training records of each client. Public metadata.
        rounds: T.
        local_steps: K.
        clients_per_round: S.
        queries_per_step: Gradients asked for on one batch.
        client_sampling: How the clients of a round are drawn, "fixed-size" or "poisson".
        noise_added_by: "server" or "clients" for the unit "client", else None.
        gaussian_sampler: How normal numbers are drawn, as `noise.add_gaussian_noise` has it.
        sparsification: Which coordinates of a client's update survive; None for all.
        adaptation: What the rules may change from round to round; None for nothing.
        max_epsilon: ε at which the run ends early, in the view of its target; None for no limit.
        tune: How the hyper-parameters were chosen.
    """

    unit: PrivacyUnit
    adjacency: str
    clipping_norm: float
    noise_multiplier: float
    delta: float | None
    sampling: Sampling
    records: tuple[int, ...]
    rounds: int
    local_steps: int
    clients_per_round: int
    queries_per_step: int
    client_sampling: str = "fixed-size"
    noise_added_by: str | None = None
    gaussian_sampler: Method = "box-muller"
    sparsification: Sparsification | None = None
    adaptation: Adaptation | None = None
    max_epsilon: float | None = None
    tune: TuneSpec = field(default_factory=NotTuned)

    @property
    def trials(self) -> Trials | None:
        """The law of the number of trials, of which the run is one; None for a run by itself."""
        if self.tune.mean_trials is None or self.tune.shape is None:
            return None
        return Trials(self.tune.mean_trials, self.tune.shape)

    @property
    def spending_bound(self) -> SpendingBound:
        """The most that the run can spend."""
        return SpendingBound(self.rounds, self.local_steps, self.noise_multiplier, self.adaptation)

    @property
    def watch(self) -> Watch | None:
        """Says before each round whether it keeps to ``max_epsilon``; None where there is none."""
        return None if self.max_epsilon is None else self.unit.watch(self, self.max_epsilon)

    def ends_early(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What a claim says of a run that its limit on ε ended: ``stopped``; else nothing."""
        over = [entry["round"] for entry in entries if entry["kind"] == "round"]
        completed = max(over, default=-1) + 1
        if completed >= self.rounds or (watch := self.watch) is None:
            return {}
        if watch.allows(entries, completed):
            return {}
        return {"stopped": {"rounds": completed, "max_epsilon": self.max_epsilon}}

    @property
    def private(self) -> bool:
        """Whether the run claims anything."""
        return self.unit.private

    @property
    def claimed_delta(self) -> float:
        """δ of a run that claims something."""
        assert self.delta is not None
        return self.delta

    @property
    def noise_standard_deviation(self) -> float:
        """σC, of the noise on a clipped sum of gradients; 0 where no gradient is noised."""
        return self.noise_multiplier * self.clipping_norm if self.unit.noises_gradients else 0.0

    @property
    def update_noise_standard_deviation(self) -> float:
        """σC, of the noise on the sum of a round's clipped updates; 0 where there is none."""
        return self.noise_multiplier * self.clipping_norm if self.unit.noises_updates else 0.0

    @property
    def private_coordinates(self) -> int | None:
        """How many coordinates of an upload differ from 0, where clients choose them; else None.

        A client that adds its own noise adds it everywhere, and so uploads every coordinate.
        """
        sparse = self.sparsification
        if sparse is None or sparse.public or self.noise_added_by == "clients":
            return None
        return sparse.kept

    @property
    def participation(self) -> float:
        """L = S/N, probability with which a client is in a round."""
        return self.clients_per_round / len(self.records)

    def parameters_of_equal_signal(self) -> float | None:
        """D up to which a gradient's second moment could hold as much signal as noise.

        Averaged over d coordinates the noise gives Φ = (σC/B)², and the clean mean gradient, of
        expected square norm up to C²(1 + 1/B) under Poisson sampling, at most C²(1 + 1/B)/d. So in
        a model of d trained parameters the signal is at most this number, (B/σ)²(1 + 1/B), over d
        of the noise: where that is small, whatever divides by the second moment follows the noise.

        Returns:
            The number for the client whose gradients are least noisy; None where gradients are not
            noised.
        """
        if not self.unit.noises_gradients:
            return None
        batch = max(self.divisor(client) for client in range(len(self.records)))
        return (batch / self.noise_multiplier) ** 2 * (1.0 + 1.0 / batch)

    def divisor(self, client: int) -> float:
        """B, the fixed public number by which the noisy sum is divided.

        Never the realised batch size: that depends on the data, and so would the sensitivity.
        """
        return self.sampling.normaliser(self.records[client])

    def fixed_divisor(self, client: int) -> float | None:
        """B where gradients are noised; None where a mean is that of the records in the batch."""
        return self.divisor(client) if self.unit.noises_gradients else None

    def noise_variance(self, client: int) -> float:
        """Φ = (σC/B)², what noise adds to each coordinate's variance of the mean gradient."""
        return (self.noise_standard_deviation / self.divisor(client)) ** 2

    def sampling_rate(self, client: int) -> float:
        """q_i, a record's chance to be in a batch that is counted; 1 where nothing amplifies."""
        return self.sampling.rate(self.records[client])

    @property
    def stated_rate(self) -> float | None:
        """Q where it is stated for all clients; None where sizes give it, or nothing amplifies."""
        sampler = self.sampling if self.unit.noises_gradients else None
        return sampler.constant_rate if isinstance(sampler, PoissonSampling) else None

    @property
    def rate_assumption(self) -> str | None:
        """What a claim says of sizes and sampling rates; None where no rate amplifies."""
        if not self.unit.noises_gradients or not isinstance(self.sampling, PoissonSampling):
            return None
        return DERIVED_RATE if self.stated_rate is None else STATED_RATE

    def composition(self, client: int, rounds: int = 1) -> Composition:
        """What a number of participations costs one record of the client, at the first noise.

        Raises:
            PrivacyError: If no accountant covers the combination.
        """
        return composition_of(
            self.sampling,
            self.adjacency,
            self.records[client],
            self.noise_multiplier,
            self.spending_bound.most_local_steps,
            rounds,
            self.queries_per_step,
        )

    def planned_run(self, view: str = "server") -> PlannedRun:
        """The plan as the solvers of `calibration` take it.

        Args:
            view: "server" or "third-party", for a unit whose target may hold towards either.
        """
        return self.unit.planned_run(self, view)

    def realised_claim(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The claim that the ledger's entries support.

        Args:
            entries: The ledger so far; every spend line counts, also those of repeated rounds.
        """
        return self.unit.realised_claim(self, entries)

    def epsilon_after(self, completed: int, again: int = 0) -> float | None:
        """ε of the rounds so far, in the view of the claim's headline; None where nothing is told.

        Of a client in every round where single records are protected, towards a third party where
        whole clients are: a function of the plan, of how many rounds are over and of how often the
        run was taken up again, and not of who took part. Of a trial of a private selection
        nothing is told: its ε is none of its own.

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
        """How many rounds were begun and charged beside those that are over: it was cut off.

        Where nobody may be told how many clients took part, and spends would tell that some did,
        it is the most that they can be, by how often the run was taken up again.

        Args:
            entries: The ledger so far.
            completed: Rounds completed by then; one that is to be run again is not.
        """
        if self.participants_hidden and self.unit.name == "record":
            return repeated(entries)
        spends = [entry for entry in entries if entry["kind"] == "spend"]
        begun = {(entry["round"], entry["attempt"]) for entry in spends}
        over = {number for number, _ in begun if number < completed}
        return len(begun) - len(over)

    def expected_claim(self, dearest: int | None = None) -> dict[str, Any]:
        """The claim of a run in which every client takes part in every round.

        At client level this concerns the server's view alone: towards a third party participation
        is part of the mechanism.

        Args:
            dearest: Of how many clients it states what each spends, of those that spend most; None
                for all. What is claimed is the same.

        Raises:
            PrivacyError: If the plan claims nothing.
        """
        return self.unit.expected_claim(self, dearest)

    def check_cost(self) -> None:
        """Refuse a run whose most is no guarantee, before anything is charged.

        Raises:
            PrivacyError: If no finite ε bounds what the run can spend, or one beyond
                `accounting.registry.LARGEST_EPSILON`.
        """
        self.unit.check_cost(self)

    @property
    def smallest_client(self) -> int:
        """The client whose participations cost most: the fewer records, the more each is used."""
        return min(range(len(self.records)), key=self.records.__getitem__)

    @property
    def participants_hidden(self) -> bool:
        """Whether the claim towards a third party rests on nobody's telling how many took part."""
        return self.private and self.client_sampling == "poisson"

    @property
    def cohort(self) -> FixedClients | PoissonClients:
        """Draws the clients of a round."""
        if self.client_sampling == "poisson":
            return PoissonClients(self.clients_per_round)
        return FixedClients(self.clients_per_round)

    @property
    def queries(self) -> int:
        """Queries of the whole run, over all clients, at most."""
        return self.clients_per_round * self.spending_bound.most_steps * self.queries_per_step


class PrivacyUnit(ABC):
    """What a run protects: it makes the plan, and says what holds under it.

    Whatever asks for an ε is refused by a unit that does not say how it is computed.

    Attributes:
        name: The spec's word, "record", "client" or "none".
        noises_gradients: Whether clipped sums of gradients get noise.
        noises_updates: Whether clipped sums of updates do.
        grid: On which uploads and published weights lie; None where nothing is private.
    """

    name: ClassVar[str]
    noises_gradients: ClassVar[bool] = False
    noises_updates: ClassVar[bool] = False
    grid: ClassVar[Grid | None] = None

    @property
    def private(self) -> bool:
        """Whether anything is claimed."""
        return self.noises_gradients or self.noises_updates

    @abstractmethod
    def plan(
        self,
        spec: Spec,
        records: tuple[int, ...],
        queries_per_step: int,
        sparsification: Sparsification | None,
        /,
    ) -> PrivacyPlan:
        """The plan of a spec, as `units.registry.make_plan` describes it."""

    @abstractmethod
    def realised_claim(
        self, plan: PrivacyPlan, entries: Sequence[Mapping[str, Any]], /
    ) -> dict[str, Any]:
        """The claim that the ledger's entries support."""

    def expected_claim(self, _plan: PrivacyPlan, _dearest: int | None, /) -> dict[str, Any]:
        """The claim of a run in which every client takes part in every round."""
        return self._refuse()

    @abstractmethod
    def check_cost(self, plan: PrivacyPlan, /) -> None:
        """Refuse a plan whose most is no guarantee."""

    def planned_run(self, _plan: PrivacyPlan, _view: str, /) -> PlannedRun:
        """The plan as the solvers of `calibration` take it."""
        return self._refuse()

    def spent(self, _claim: Mapping[str, Any], _view: str, /) -> float:
        """ε of an expected claim, as a target towards a view counts it."""
        return self._refuse()

    def cost(self, _plan: PrivacyPlan, /) -> list[tuple[str, str]]:
        """What the plan's mechanism is, as rows of names and values for a reader."""
        return self._refuse()

    def epsilon_after(self, _plan: PrivacyPlan, _rounds: int, /) -> float:
        """ε of so many rounds that were begun, at least one, in the view of the headline."""
        return self._refuse()

    def charged(self, _plan: PrivacyPlan, /) -> Hashable:
        """What a run of the plan is charged; plans that are charged the same cost the same."""
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise PrivacyError(
            f"privacy.unit: {self.name}: this spec claims no privacy, so there is no ε to compute"
        )

    def watch(self, _plan: PrivacyPlan, _limit: float, /) -> Watch:
        """Says before each round whether it keeps to a limit on ε."""
        return self._refuse()

    @abstractmethod
    def check_target(self, view: str, solve: str, /) -> None:
        """Refuse to solve for what could not keep to a target towards a view."""


def common_fields(spec: Spec, records: tuple[int, ...], queries_per_step: int) -> dict[str, Any]:
    """What of a plan does not depend on the unit, by field."""
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
    """What of a plan does not depend on which unit is protected, by field."""
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
        "tune": spec.tune,
        "gaussian_sampler": privacy.gaussian_sampler,
        **common_fields(spec, records, queries_per_step),
    }


def plain_batches(spec: Spec) -> Sampling:
    """Batches of local steps whose gradients are not noised."""
    size = spec.privacy.sampling.batch_size
    return ShuffledEpochs(size) if size is not None else FullBatch()
