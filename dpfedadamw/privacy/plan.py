"""Sampler, clipper, noise and accounting event come from one frozen plan: they cannot disagree.

They cannot disagree, because none of them can be chosen alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.sampling import (
    FixedClients,
    PoissonClients,
    PoissonSampling,
    Sampling,
    composition_of,
)
from dpfedadamw.vectors.sparsification import Sparsification

if TYPE_CHECKING:
    from dpfedadamw.privacy.histograms import ColumnQueries
    from dpfedadamw.privacy.noise.noise import Method


class ProtectedUnit:
    """What a run protects: which sums are noised, and on which grid what is released lies.

    Attributes:
        name: The spec's word, "record", "person", "client" or "none".
        noises_gradients: Whether clipped sums of gradients get noise.
        noises_updates: Whether clipped sums of updates do.
        grid: On which uploads and published weights lie; None where nothing is private.
        of_people: Whether people take the place of records: they are drawn, and each has one mean
            gradient, which is clipped.
    """

    name: ClassVar[str]
    noises_gradients: ClassVar[bool] = False
    noises_updates: ClassVar[bool] = False
    grid: ClassVar[Grid | None] = None
    of_people: ClassVar[bool] = False

    @property
    def private(self) -> bool:
        """Whether anything is claimed."""
        return self.noises_gradients or self.noises_updates


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Everything that decides what a run's gradients reveal.

    Attributes:
        unit: What is protected.
        adjacency: Neighbouring data sets, "add-remove" or "replace-one".
        clipping_norm: C > 0, L2 norm to which one record's gradient, one person's mean gradient, or
            one client's update, is clipped; infinite without privacy.
        noise_multiplier: σ; the clipped sum gets noise of standard deviation σC. 0 without privacy.
            For the unit "client" the sum is that of the round's updates, and gradients are plain.
        delta: δ in (0, 1); None without privacy.
        sampling: How the records of a step are drawn.
        records: R_i, number of training records of each client, or of people where these take the
            place of records. Public metadata.
        rounds: T.
        local_steps: K.
        clients_per_round: S.
        queries_per_step: Gradients asked for on one batch.
        client_sampling: How the clients of a round are drawn, "fixed-size" or "poisson".
        noise_added_by: "server" or "clients" for the unit "client", else None.
        gaussian_sampler: How normal numbers are drawn, as `noise.add_gaussian_noise` has it.
        sparsification: Which coordinates of a client's update survive; None for all.
        records_per_person: m, most records of a drawn person in a batch; None where records are
            drawn themselves.
        clients_per_person: s, at how many clients one person's records may be, at least 1.
        column_queries: What every client sends before the first round; None for nothing.
    """

    unit: ProtectedUnit
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
    records_per_person: int | None = None
    clients_per_person: int = 1
    column_queries: ColumnQueries | None = None

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
    def participants_hidden(self) -> bool:
        """Whether the claim against a third party needs the number of participants kept secret."""
        return self.private and self.client_sampling == "poisson"

    @property
    def cohort(self) -> FixedClients | PoissonClients:
        """Draws the clients of a round."""
        if self.client_sampling == "poisson":
            return PoissonClients(self.clients_per_round)
        return FixedClients(self.clients_per_round)

    def event(self, client: int, steps: int, rounds: int = 1) -> Composition:
        """What participations of so many steps cost one record of the client, under this noise.

        Args:
            client: Its index.
            steps: Batches drawn in each participation, at least 1.
            rounds: Participations, at least 1.

        Raises:
            PrivacyError: If no accountant covers the combination.
        """
        return composition_of(
            self.sampling,
            self.adjacency,
            self.records[client],
            self.noise_multiplier,
            steps,
            rounds,
            self.queries_per_step,
        )
