"""Single records as the unit of protection: each noised gradient is one subsampled Gaussian."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dpfedadamw.accounting import record_level
from dpfedadamw.accounting.calibration import PlannedRun, solve_step_limit
from dpfedadamw.accounting.epsilon_limit import (
    Participations,
    Rounds,
    Watch,
    rounds_that_fit,
    too_low,
)
from dpfedadamw.accounting.registry import check_epsilon, check_target, claimed, leading
from dpfedadamw.accounting.selection import trials_drawn
from dpfedadamw.accounting.views import ClientSpend
from dpfedadamw.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.histograms import ColumnQueries
from dpfedadamw.privacy.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledEpochs,
)
from dpfedadamw.spec import LocalIterationsSpec, NoiseDecaySpec, Spec
from dpfedadamw.spec.column_section import learns
from dpfedadamw.units.plan import PrivacyUnit, RunPlan, private_fields
from dpfedadamw.vectors.sparsification import Sparsification

_BATCHES = {
    "poisson": "each {one} by itself (Poisson)",
    "fixed-size": "of fixed size, without replacement",
    "shuffled": "shuffled epochs",
}


class SingleRecords(PrivacyUnit):
    """Protects one record of one client: its gradient is clipped, the sum of gradients noised.

    Attributes:
        one: What is protected, in a word.
        many: Several of them.
    """

    name: ClassVar[str] = "record"
    noises_gradients: ClassVar[bool] = True
    grid: ClassVar[Grid | None] = Grid(update=12)
    one: ClassVar[str] = "record"
    many: ClassVar[str] = "records"

    def plan(
        self,
        spec: Spec,
        records: tuple[int, ...],
        queries_per_step: int,
        _sparsification: Sparsification | None,
    ) -> RunPlan:
        """The plan of a spec, for clients of the given sizes."""
        sampling, key, size = _batches(spec)
        plan = RunPlan(
            unit=self,
            sampling=sampling,
            column_queries=_column_queries(spec),
            **private_fields(spec, records, queries_per_step),
        )
        smallest, largest, delta = min(records), max(records), plan.claimed_delta
        if size > smallest and plan.stated_rate is None:
            poisson = key.startswith("expected")
            why = ", whose sampling rate would exceed 1" if poisson else ""
            instead = ", or state privacy.sampling.rate" if poisson else ""
            raise PrivacyError(
                f"privacy.sampling.{key}: {size:g} exceeds the {smallest} {self.many} of client "
                f"{records.index(smallest)}{why}; use at most {smallest}, or raise "
                f"data.partition.minimum_records{instead}"
            )
        if delta * largest >= 1.0:
            raise PrivacyError(
                f"privacy.delta: {delta:g} times the {largest} {self.many} of the largest client "
                f"is {delta * largest:.3g}; a mechanism that publishes one {self.one} outright "
                f"would satisfy this; use a delta below {1.0 / largest:.2g}"
            )
        # Refuses what no accountant covers.
        plan.composition(plan.smallest_client)
        plan = replace(plan, adaptation=_adaptation(spec, plan))
        if plan.max_epsilon is not None and _rounds_that_fit(plan, plan.max_epsilon) < 1:
            raise too_low(plan.max_epsilon)
        return plan

    def realised_claim(self, plan: RunPlan, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The claim that the ledger's entries support."""
        counted = plan.spending_bound.accounted(entries)
        queries = record_level.queries_from_ledger(entries)
        bound = replace(plan.spending_bound, queries=queries)
        spends = record_level.spends_from_ledger(counted)
        released = record_level.rounds_released(entries)
        claim = _claim(plan, bound, spends, trials_drawn(entries), released)
        return {**claim, **plan.ends_early(entries)}

    def expected_claim(self, plan: RunPlan, dearest: int | None) -> dict[str, Any]:
        """The claim if every client takes part in every round."""
        bound = _most_rounds(plan)
        spends = [
            ClientSpend(client, records, bound.rounds, bound.of_rounds(plan.composition(client)))
            for client, records in enumerate(plan.records)
        ]
        if dearest is not None:
            # A larger rate and more steps never cost less, at one noise.
            spends.sort(key=lambda spend: (-spend.sampling_rate, -spend.steps))
            # All that a person may be at: what is claimed is what they cost together.
            most = max(dearest, plan.clients_per_person)
            spends = sorted(spends[:most], key=lambda spend: spend.client)
        return _claim(plan, plan.spending_bound, spends)

    def watch(self, plan: RunPlan, limit: float) -> Watch:
        """Says before each round whether it keeps to a limit on ε against the server."""
        if plan.participants_hidden or plan.clients_per_person > 1:
            dearest = plan.composition(plan.smallest_client)
            return Rounds(plan.spending_bound, dearest, limit, plan.claimed_delta)
        return Participations(
            plan.spending_bound,
            [plan.composition(client) for client in range(len(plan.records))],
            plan.sampling,
            plan.records,
            limit,
            plan.claimed_delta,
        )

    def check_cost(self, plan: RunPlan) -> None:
        """Refuse a plan whose ε against the server, which bounds all others, is no guarantee."""
        everything = _most_rounds(plan).of_person(plan.composition(plan.smallest_client))
        epsilon = leading()[0].epsilon(everything, plan.claimed_delta)
        check_epsilon(epsilon, "the server")
        check_target(epsilon, plan.target_epsilon, "the server")

    def planned_run(self, plan: RunPlan, view: str) -> PlannedRun:
        """The plan as the solvers take it, against the server or a third party."""
        return PlannedRun(
            sampling=plan.sampling,
            records=plan.records,
            noise_multiplier=plan.noise_multiplier,
            rounds=plan.rounds,
            local_steps=plan.local_steps,
            delta=plan.claimed_delta,
            queries_per_step=plan.queries_per_step,
            view=view,
            participation=plan.participation,
            decay=plan.adaptation.decay if plan.adaptation else None,
            clients_per_person=plan.clients_per_person,
            queries=plan.spending_bound.queries,
        )

    def epsilon_after(self, plan: RunPlan, rounds: int) -> float:
        """ε against the server of a client that is in each of so many rounds."""
        bound = replace(plan.spending_bound, rounds=rounds)
        everything = bound.of_person(plan.composition(plan.smallest_client))
        return leading()[0].epsilon(everything, plan.claimed_delta)

    def charged(self, plan: RunPlan) -> Hashable:
        """What a run is charged: its steps in each round, and how clients are drawn."""
        part = plan.composition(plan.smallest_client)
        each = plan.spending_bound.each_round(part)
        queries = plan.spending_bound.queries
        drawn = (plan.participation, plan.client_sampling, plan.clients_per_person)
        return (each, *drawn, *queries)

    def check_target(self, view: str, solve: str) -> None:
        """Any number of the spec may be solved for, in any view."""

    def spent(self, claim: Mapping[str, Any], view: str) -> float:
        """ε of an expected claim in a view."""
        part = "server_worst_case" if view == "server" else "third_party"
        return claimed(claim[part])

    def cost(self, plan: RunPlan) -> list[tuple[str, str]]:
        """Rows for a reader: what the plan's mechanism is."""
        rates = [plan.sampling_rate(client) for client in range(len(plan.records))]
        kind = plan.sampling.event_kind
        amplified, span = (
            "sampling rate q",
            f"{min(rates):.4f} … {max(rates):.4f} of a client's {self.many} in each step, "
            "B over its size, which is assumed to be public",
        )
        if plan.stated_rate is not None:
            span = (
                f"{plan.stated_rate:.4f} of a client's {self.many} in each step, as the spec states"
            )
        elif kind != "poisson":
            span = span.partition(", B over")[0]
        if kind == "shuffled":
            uses = plan.composition(plan.smallest_client, plan.rounds).steps
            amplified = "amplification"
            span = f"none claimed; a {self.one} is in at most {uses} batches of the run"
        deviation = plan.noise_variance(0) ** 0.5
        return [
            ("noise on one gradient", f"standard deviation σC/B = {deviation:.4g}"),
            ("batches", _BATCHES[kind].format(one=self.one)),
            (amplified, span),
            ("steps per client", _steps(plan)),
            *_columns(plan),
            (f"{self.many} per client", f"{min(plan.records)} … {max(plan.records)}"),
        ]


class WholePeople(SingleRecords):
    """Protects one person with all records that are about them, at all clients that have some.

    A person takes a record's place: people are drawn, and what each brings is one mean gradient.
    """

    name: ClassVar[str] = "person"
    of_people: ClassVar[bool] = True
    one: ClassVar[str] = "person"
    many: ClassVar[str] = "people"

    def cost(self, plan: RunPlan) -> list[tuple[str, str]]:
        """Rows for a reader: what the plan's mechanism is."""
        at = "client" if plan.clients_per_person == 1 else "clients"
        return [
            *super().cost(plan),
            ("records of a person", f"at most {plan.records_per_person} in a batch"),
            ("clients of a person", f"at most {plan.clients_per_person} {at}"),
        ]


def _claim(
    plan: RunPlan,
    bound: SpendingBound,
    spends: Sequence[ClientSpend],
    drawn: int | None = None,
    released: int = 0,
) -> dict[str, Any]:
    return record_level.claim(
        spends,
        per_round=plan.composition(plan.smallest_client),
        share=plan.stated_rate or plan.divisor(plan.smallest_client) / min(plan.records),
        clients=len(plan.records),
        clients_per_round=plan.clients_per_round,
        bound=bound,
        delta=plan.claimed_delta,
        client_sampling=plan.client_sampling,
        max_epsilon=plan.max_epsilon,
        rate_is_stated=plan.stated_rate is not None,
        selection=plan.tune.selection,
        trials=plan.trials,
        drawn=drawn,
        of_people=plan.unit.of_people,
        released=released,
    )


def _most_rounds(plan: RunPlan) -> SpendingBound:
    """The most that a run can spend that is not cut off."""
    if plan.max_epsilon is None:
        return plan.spending_bound
    return replace(plan.spending_bound, rounds=_rounds_that_fit(plan, plan.max_epsilon))


def _rounds_that_fit(plan: RunPlan, limit: float) -> int:
    """How many rounds fit a limit on ε if every client is in each."""
    per_round = plan.composition(plan.smallest_client)
    return rounds_that_fit(plan.spending_bound, per_round, limit, plan.claimed_delta)


def _batches(spec: Spec) -> tuple[Sampling, str, float]:
    """The sampler of noised steps, and the key of the spec that holds its batch size, with it."""
    sampling = spec.privacy.sampling
    if sampling.kind == "poisson":
        assert sampling.expected_batch_size is not None
        expected = sampling.expected_batch_size
        sampler = PoissonSampling(expected, sampling.rate, sampling.reference_size)
        return sampler, "expected_batch_size", expected
    assert sampling.batch_size is not None
    size = sampling.batch_size
    if sampling.kind == "fixed":
        return FixedSizeSampling(size), "batch_size", size
    return ShuffledEpochs(size), "batch_size", size


def _column_queries(spec: Spec) -> ColumnQueries | None:
    """The histograms by which bounds of columns are learnt; None where they are constants."""
    found = [column for column in getattr(spec.data, "columns", ()) if learns(column)]
    if not found:
        return None
    return ColumnQueries(
        columns=tuple(column.name for column in found),
        bins=tuple(column.learn_bins for column in found),
        noise_multiplier=getattr(spec.data, "column_noise_multiplier", 0.0),
    )


def _adaptation(spec: Spec, plan: RunPlan) -> Adaptation | None:
    """What the spec's rule may change from round to round; ``plan`` is that of the first round."""
    steps = spec.algorithm.part(LocalIterationsSpec)
    decay = spec.algorithm.part(NoiseDecaySpec)
    if decay is not None:
        falling = NoiseDecay(decay.factor, decay.patience, decay.floor)
        return Adaptation(plan.local_steps, None, True, falling)
    if steps is None:
        return None
    target = spec.privacy.target_epsilon
    assert target is not None
    limit = solve_step_limit(target, plan.planned_run(), plan.rounds * steps.maximum)
    return Adaptation(steps.maximum, limit, steps.estimate, None)


def _columns(plan: RunPlan) -> list[tuple[str, str]]:
    queries = plan.column_queries
    if queries is None:
        return []
    many = len(queries.columns)
    sigma = f"noise multiplier {queries.noise_multiplier:g} on each count"
    return [("bounds of columns", f"{many} learnt from histograms before round 1, {sigma}")]


def _steps(plan: RunPlan) -> str:
    """Steps of one client, in all and by round where they adapt."""
    most = plan.spending_bound
    text = f"at most {most.most_steps}"
    if plan.adaptation is None or plan.adaptation.step_limit is None:
        return text
    return f"{text} in all, {plan.local_steps} at first, then up to {most.most_local_steps}"
