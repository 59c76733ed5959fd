"""Privacy views at record level: what noised queries mean, towards whom, and if what holds.

Towards the server, who sees every upload, each client has its own ε; towards a third party, who
sees only broadcast models, the number of participations is hidden. Every result is an `Epsilon`,
which carries its assumptions with it. `client_claims` does the same at client level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.course import Course
from dpfedadamw.privacy.pld import epsilon_pld, mixture_epsilon_pld
from dpfedadamw.privacy.rdp import epsilon_rdp

__all__ = [
    "MECHANISM_ASSUMPTIONS",
    "ClientEpsilon",
    "ClientSpend",
    "Epsilon",
    "ServerView",
    "ThirdPartyView",
    "server_view",
    "server_worst_case",
    "third_party_view",
]

MECHANISM_ASSUMPTIONS = (
    "each record belongs to one client and occurs there once",
    "every record's gradient is clipped to the clipping norm over all trainable parameters before "
    "it is summed, and the sum is divided by a fixed public number",
    "the noise on each sum is Gaussian with the stated multiplier, independent between queries, "
    "and unknown to whom the claim is made towards",
    "batches are independent Poisson draws at the stated rate, never truncated or redrawn",
    "the number of records of each client, and so its sampling rate, is public metadata",
    "hyperparameters were not tuned on the private records, or their tuning is accounted elsewhere",
)
_SERVER = (
    "the reader sees every upload and who took part in which round; clients do not collude with it"
)
_THIRD_PARTY = (
    "the reader sees only broadcast models, and nothing that tells who took part in which round",
    "the clients of each round are drawn independently of the data and of earlier rounds",
)


@dataclass(frozen=True)
class Epsilon:
    """One ε with everything needed to read it.

    Attributes:
        value: ε ≥ 0.
        delta: the δ it holds with.
        accountant: "pld" or "rdp".
        conversion: how RDP became (ε, δ); None for PLD.
        unit: "record".
        adjacency: "add-remove" or "replace-one".
        towards: "server" or "third-party".
        assumptions: sentences that must hold for the number to hold.
    """

    value: float
    delta: float
    accountant: str
    conversion: str | None
    unit: str
    adjacency: str
    towards: str
    assumptions: tuple[str, ...]

    def __float__(self) -> float:
        """Return ε."""
        return self.value


@dataclass(frozen=True)
class ClientSpend:
    """What one client was charged over a run.

    Attributes:
        client: its number.
        records: R, how many records it holds.
        participations: rounds charged, repeated attempts included.
        compositions: its steps; one entry for each combination of noise, rate and queries.
    """

    client: int
    records: int
    participations: int
    compositions: tuple[Composition, ...]

    @property
    def steps(self) -> int:
        """Noised steps in all."""
        return sum(part.steps for part in self.compositions)

    @property
    def sampling_rate(self) -> float:
        """The largest rate at which its records were drawn."""
        return max(part.sampling_rate for part in self.compositions)


@dataclass(frozen=True)
class ClientEpsilon:
    """What one client spent, by three accountants; the fields are those of the ledger's claim."""

    client: int
    records: int
    sampling_rate: float
    participations: int
    steps: int
    epsilon_pld: float
    epsilon_rdp: float
    epsilon_rdp_classic: float
    delta_records: float


@dataclass(frozen=True)
class ServerView:
    """What holds towards the server: each client's own ε, and their maximum.

    Attributes:
        clients: one entry for each client that took part, by number.
        epsilon: the headline, the largest ε of any client, by PLD.
    """

    clients: tuple[ClientEpsilon, ...]
    epsilon: Epsilon


@dataclass(frozen=True)
class ThirdPartyView:
    """What holds towards a reader of broadcast models.

    Attributes:
        epsilon: by PLD, for the client with the largest sampling rate.
        sampling_rate: that rate.
        rounds: T.
        participation: l = S/N.
    """

    epsilon: Epsilon
    sampling_rate: float
    rounds: int
    participation: float


def server_view(spends: Sequence[ClientSpend], delta: float) -> ServerView:
    """Return every client's ε towards the server from what it was really charged.

    Args:
        spends: what each client was charged.
        delta: δ of every ε.

    Raises:
        PrivacyError: if no client was charged, or no finite ε holds.
    """
    if not spends:
        raise PrivacyError("no client was charged: there is nothing to claim")
    clients = tuple(_client_epsilon(spend, delta) for spend in spends)
    largest = max(entry.epsilon_pld for entry in clients)
    return ServerView(
        clients, _epsilon(largest, delta, "server", (*MECHANISM_ASSUMPTIONS, _SERVER))
    )


def server_worst_case(
    course: Course, sampling_rate: float, delta: float, queries_per_step: int = 1
) -> Epsilon:
    """Return the ε towards the server of a client that takes part in every round.

    This is the bound that is known before a run. The rate is the largest of any client.
    """
    whole = course.everything(sampling_rate, queries_per_step)
    note = "the client takes part in every round, the most that can happen"
    value = epsilon_pld(whole, delta)
    return _epsilon(value, delta, "server", (*MECHANISM_ASSUMPTIONS, _SERVER, note))


def third_party_view(
    course: Course,
    sampling_rate: float,
    participation: float,
    delta: float,
    queries_per_step: int = 1,
) -> ThirdPartyView:
    """Return the ε towards a reader of broadcast models: δ(ε) ≤ E_n[δ_{nK}(ε)], n ~ Binomial(T, l).

    Sampling clients does not amplify a record's privacy in the usual way, since leaving a client
    out is not a neighbouring data set; only the number of participations is random. At l = 1 this
    is the worst case towards the server, which bounds it at any l where all rounds together have
    a limit on their steps.

    Args:
        course: Rounds, steps and noise.
        sampling_rate: q, the largest of any client, in (0, 1].
        participation: l = S/N in (0, 1].
        delta: δ.
        queries_per_step: answers on each batch.
    """
    value = mixture_epsilon_pld(
        course.each_round(sampling_rate, queries_per_step), participation, delta
    )
    whole = course.everything(sampling_rate, queries_per_step)
    value = min(value, epsilon_pld(whole, delta))
    epsilon = _epsilon(value, delta, "third-party", (*MECHANISM_ASSUMPTIONS, *_THIRD_PARTY))
    return ThirdPartyView(epsilon, sampling_rate, course.rounds, participation)


def _client_epsilon(spend: ClientSpend, delta: float) -> ClientEpsilon:
    parts = spend.compositions
    values = (
        epsilon_pld(parts, delta),
        epsilon_rdp(parts, delta),
        epsilon_rdp(parts, delta, conversion="classic"),
    )
    if not all(math.isfinite(value) for value in values):
        raise PrivacyError(f"client {spend.client} has no finite epsilon at delta {delta:g}")
    return ClientEpsilon(
        spend.client,
        spend.records,
        spend.sampling_rate,
        spend.participations,
        spend.steps,
        *values,
        delta_records=delta * spend.records,
    )


def _epsilon(value: float, delta: float, towards: str, assumptions: tuple[str, ...]) -> Epsilon:
    if not math.isfinite(value):
        raise PrivacyError(f"no finite epsilon holds at delta {delta:g}: the noise is too small")
    return Epsilon(value, delta, "pld", None, "record", "add-remove", towards, assumptions)
