"""One frozen plan from which sampler, clipper, noise and accounting all come.

They cannot disagree, because none of them can be chosen alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.calibration import Setting, solve_step_limit
from dpfedadamw.privacy.accounting.composition import Composition
from dpfedadamw.privacy.accounting.worst_case import Adaptation, Course, NoiseDecay
from dpfedadamw.privacy.noise.noise import Method
from dpfedadamw.privacy.sampling import (
    FixedClients,
    FixedSizeSampling,
    FullBatch,
    PoissonClients,
    PoissonSampling,
    Sampling,
    ShuffledEpochs,
    composition_of,
)
from dpfedadamw.spec import Spec
from dpfedadamw.vectors.sparsification import Sparsification


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Everything that decides what a run's gradients reveal.

    Attributes:
        unit: "record", "client", or "none" for a run that claims nothing.
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
        gaussian_sampler: How normal numbers are drawn, "box-muller" or "four-draw".
        sparsification: Which coordinates of a client's update survive; None for all.
        adaptation: What the rules may change from round to round; None for nothing.
    """

    unit: str
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

    @property
    def course(self) -> Course:
        """The most that the run can spend."""
        return Course(self.rounds, self.local_steps, self.noise_multiplier, self.adaptation)

    @property
    def private(self) -> bool:
        """Whether the run claims anything."""
        return self.unit != "none"

    @property
    def noise_standard_deviation(self) -> float:
        """σC, of the noise on a clipped sum of gradients; 0 where no gradient is noised."""
        return self.noise_multiplier * self.clipping_norm if self.unit == "record" else 0.0

    @property
    def update_noise_standard_deviation(self) -> float:
        """σC, of the noise on the sum of a round's clipped updates; 0 where there is none."""
        return self.noise_multiplier * self.clipping_norm if self.unit == "client" else 0.0

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

    def divisor(self, client: int) -> float:
        """B, the fixed public number by which the noisy sum is divided.

        Never the realised batch size: that depends on the data, and so would the sensitivity.
        """
        return self.sampling.normaliser(self.records[client])

    def fixed_divisor(self, client: int) -> float | None:
        """B where gradients are noised; None where a mean is that of the records in the batch."""
        return self.divisor(client) if self.unit == "record" else None

    def noise_variance(self, client: int) -> float:
        """Φ = (σC/B)², what noise adds to each coordinate's variance of the mean gradient."""
        return (self.noise_standard_deviation / self.divisor(client)) ** 2

    def sampling_rate(self, client: int) -> float:
        """q_i, a record's chance to be in a batch that is counted; 1 where nothing amplifies."""
        return self.sampling.rate(self.records[client])

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
            self.course.most_local_steps,
            rounds,
            self.queries_per_step,
        )

    def setting(self, view: str = "server") -> Setting:
        """The plan as the solvers of `calibration` take it.

        At client level a round is one subsampled Gaussian over clients, whatever happens within
        it; seen by a third party it has the form that a record's step has towards the server.

        Args:
            view: "server" or "third-party", for the unit "record".
        """
        assert self.delta is not None
        if self.unit == "client":
            sampling = PoissonSampling(self.clients_per_round)
            clients = (len(self.records),)
            return Setting(sampling, clients, self.noise_multiplier, self.rounds, 1, self.delta)
        return Setting(
            self.sampling,
            self.records,
            self.noise_multiplier,
            self.rounds,
            self.local_steps,
            self.delta,
            self.queries_per_step,
            view,
            self.participation,
            self.adaptation.decay if self.adaptation else None,
        )

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
        return self.clients_per_round * self.course.most_steps * self.queries_per_step


def make_plan(
    spec: Spec,
    records: tuple[int, ...],
    queries_per_step: int,
    sparsification: Sparsification | None = None,
) -> PrivacyPlan:
    """The plan of a spec, for clients of the given sizes.

    Args:
        spec: The resolved spec, its noise multiplier known.
        records: R_i of each client.
        queries_per_step: What the local rule asks for.
        sparsification: What is kept of a client's update, for the unit "client".

    Raises:
        PrivacyError: If no accountant covers the combination; the reason is named.
    """
    privacy = spec.privacy
    common = _common(spec, records, queries_per_step)
    if privacy.unit == "none":
        return PrivacyPlan(
            unit="none",
            adjacency="none",
            clipping_norm=math.inf,
            noise_multiplier=0.0,
            delta=None,
            sampling=_plain_batches(spec),
            **common,
        )
    if privacy.unit == "client":
        return _client_plan(spec, records, queries_per_step, sparsification)
    assert privacy.noise_multiplier is not None
    assert privacy.clipping_norm is not None
    assert privacy.delta is not None
    assert privacy.adjacency is not None
    sampling, key, size = _record_batches(spec)
    smallest = min(records)
    if size > smallest:
        why = ", whose sampling rate would exceed 1" if key.startswith("expected") else ""
        raise PrivacyError(
            f"privacy.sampling.{key}: {size:g} exceeds the {smallest} records of client "
            f"{records.index(smallest)}{why}; use at most {smallest}, or raise "
            "data.partition.minimum_records"
        )
    largest = max(records)
    if privacy.delta * largest >= 1.0:
        raise PrivacyError(
            f"privacy.delta: {privacy.delta:g} times the {largest} records of the largest client is"
            f" {privacy.delta * largest:.3g}; a mechanism that publishes one record in the clear "
            f"would pass. Use a delta below {1.0 / largest:.2g}"
        )
    plan = PrivacyPlan(
        unit=privacy.unit,
        adjacency=privacy.adjacency,
        clipping_norm=privacy.clipping_norm,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
        sampling=sampling,
        gaussian_sampler=_sampler(spec),
        **common,
    )
    plan.composition(plan.smallest_client)
    return replace(plan, adaptation=_adaptation(spec, plan))


def _common(spec: Spec, records: tuple[int, ...], queries_per_step: int) -> dict[str, Any]:
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


def _record_batches(spec: Spec) -> tuple[Sampling, str, float]:
    """The sampler of noised steps, and the key of the spec that holds its batch size, with it."""
    sampling = spec.privacy.sampling
    if sampling.kind == "poisson":
        assert sampling.expected_batch_size is not None
        expected = sampling.expected_batch_size
        return PoissonSampling(expected), "expected_batch_size", expected
    assert sampling.batch_size is not None
    size = sampling.batch_size
    if sampling.kind == "fixed":
        return FixedSizeSampling(size), "batch_size", size
    return ShuffledEpochs(size), "batch_size", size


def noise_decay(spec: Spec) -> NoiseDecay | None:
    """How a spec lets its noise fall, or None."""
    section = spec.algorithm.noise_decay
    return NoiseDecay(section.factor, section.patience, section.floor) if section else None


def _adaptation(spec: Spec, plan: PrivacyPlan) -> Adaptation | None:
    """What the spec's rule may change from round to round; ``plan`` is that of the first round."""
    steps, decay = spec.algorithm.local_iterations, noise_decay(spec)
    if decay is not None:
        return Adaptation(plan.local_steps, None, True, decay)
    if steps is None:
        return None
    target = spec.privacy.target_epsilon
    assert target is not None
    limit = solve_step_limit(target, plan.setting(), plan.rounds * steps.maximum)
    return Adaptation(steps.maximum, limit, steps.estimate, None)


def _plain_batches(spec: Spec) -> Sampling:
    """Batches of local steps whose gradients are not noised."""
    size = spec.privacy.sampling.batch_size
    return ShuffledEpochs(size) if size is not None else FullBatch()


def _client_plan(
    spec: Spec,
    records: tuple[int, ...],
    queries_per_step: int,
    sparsification: Sparsification | None,
) -> PrivacyPlan:
    privacy = spec.privacy
    assert privacy.noise_multiplier is not None
    assert privacy.clipping_norm is not None
    assert privacy.delta is not None
    assert privacy.adjacency is not None
    clients = len(records)
    if privacy.delta * clients >= 1.0:
        raise PrivacyError(
            f"privacy.delta: {privacy.delta:g} times the {clients} clients is "
            f"{privacy.delta * clients:.3g}; a mechanism that publishes one client in the clear "
            f"would pass. Use a delta below {1.0 / clients:.2g}"
        )
    return PrivacyPlan(
        unit="client",
        adjacency=privacy.adjacency,
        clipping_norm=privacy.clipping_norm,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
        sampling=_plain_batches(spec),
        noise_added_by=privacy.noise_added_by,
        gaussian_sampler=_sampler(spec),
        sparsification=sparsification,
        **_common(spec, records, queries_per_step),
    )


def _sampler(spec: Spec) -> Method:
    return "four-draw" if spec.privacy.gaussian_sampler == "four-draw" else "box-muller"
