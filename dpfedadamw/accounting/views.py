"""Privacy views at record level: what noised queries mean, against whom, and assuming what.

Against the server, who sees every upload, each client has its own ε; against a third party, who
sees only broadcast models, the number of participations is hidden. Every result is an `Epsilon`,
which carries its assumptions with it. `client_level` does the same at client level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpfedadamw.accounting.registry import epsilons, leading
from dpfedadamw.accounting.worst_case import SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, Compositions, adjacency_of

__all__ = [
    "ClientEpsilon",
    "ClientSpend",
    "Epsilon",
    "ServerView",
    "ThirdPartyView",
    "mechanism_assumptions",
    "server_view",
    "server_worst_case",
    "third_party_view",
]

DERIVED_RATE = (
    "the number of records R of each client, as the ledger's header lists it, is assumed to be "
    "public. The sampling rate q = B/R that follows from it is assumed to be a constant. Data sets "
    "that differ by one record are drawn from at the same q, and a client's size is not protected"
)
STATED_RATE = (
    "the sampling rate q and the divisor B are public constants that the spec states. They are the "
    "same for all clients and for data sets that differ by one record, however many records a "
    "client has. The sizes that the ledger lists are assumed to be known to its readers"
)
FIRST = (
    "each record belongs to one client and occurs there once",
    "every record's gradient is clipped to the clipping norm over all trainable parameters before "
    "it is summed, and the sum is divided by a fixed public number",
    "the noise on each sum is Gaussian with the stated multiplier, independent between queries, "
    "and unknown to those whom the claim holds against",
)
NOT_TUNED = (
    "hyperparameters were not tuned on the private records, or their tuning is accounted elsewhere"
)
REPLACE_ONE = (
    "neighbouring data sets differ in the content of one record, which moves a clipped sum by up "
    "to twice the clipping norm. That the record is there at all is not hidden"
)
_BATCHES = {
    "poisson": (
        "batches are independent Poisson draws at the stated rate, never truncated or redrawn",
        DERIVED_RATE,
    ),
    "full": ("every batch holds all records of the client, whose number is public metadata",),
    "fixed-size": (
        REPLACE_ONE,
        "each batch is a fresh uniform draw of the stated number of records without replacement",
    ),
    "shuffled": (
        REPLACE_ONE,
        "each participation begins a new epoch in a fresh random order; no amplification is "
        "claimed: each batch that a record can be in counts as a plain Gaussian query",
    ),
}
_SERVER = (
    "the reader sees every upload and who took part in which round; clients do not collude with it"
)
_THIRD_PARTY = (
    "the reader sees only broadcast models, and nothing that tells who took part in which round",
    "the clients of each round are drawn independently of the data and of earlier rounds",
)
SEEN_BY_ALL = (
    "nothing is gained from the reader's not knowing who took part: this is the server's number"
)
_CLIENT_DRAWS = {
    "fixed-size": (
        "each round has the same number of clients, every such set equally likely, so how often "
        "one client takes part is binomial"
    ),
    "poisson": (
        "each client is in a round independently of the others, so how often it takes part is "
        "binomial. How many are in a round is drawn without regard to the records, and a round may "
        "have none"
    ),
}


def mechanism_assumptions(sampling: str) -> tuple[str, ...]:
    """Return what must hold for any view, by the event kind of the sampler."""
    return (*FIRST, *_BATCHES[sampling], NOT_TUNED)


@dataclass(frozen=True)
class Epsilon:
    """One ε with everything needed to read it.

    Attributes:
        by_accountant: ε ≥ 0 by the names of the accountants that computed it.
        delta: the δ it holds with.
        adjacency: "add-remove" or "replace-one"; the unit is one record.
        towards: "server" or "third-party".
        assumptions: sentences that must hold for the number to hold.
    """

    by_accountant: Mapping[str, float]
    delta: float
    adjacency: str
    towards: str
    assumptions: tuple[str, ...]

    @property
    def value(self) -> float:
        """The ε that is promised: the leading accountant's."""
        return self.by_accountant[leading()[0].name]


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
        """Steps counted in all: the noised ones, or as many of them as one record can be in."""
        return sum(part.steps for part in self.compositions)

    @property
    def sampling_rate(self) -> float:
        """The largest rate at which its records were drawn."""
        return max(part.sampling_rate for part in self.compositions)


@dataclass(frozen=True)
class ClientEpsilon:
    """What one client spent; the fields are those of the ledger's claim, ε is by accountant."""

    client: int
    records: int
    sampling_rate: float
    participations: int
    steps: int
    epsilon: Mapping[str, float]
    delta_records: float


@dataclass(frozen=True)
class ServerView:
    """The claim against the server: each client's own ε, and their maximum.

    Attributes:
        clients: one entry for each client that took part, by number.
        epsilon: the headline, the largest ε of any client.
    """

    clients: tuple[ClientEpsilon, ...]
    epsilon: Epsilon


@dataclass(frozen=True)
class ThirdPartyView:
    """The claim against a reader of broadcast models.

    Attributes:
        epsilon: for the client whose participations cost most.
        rounds: T.
        participation: l = S/N.
    """

    epsilon: Epsilon
    rounds: int
    participation: float


def server_view(
    spends: Sequence[ClientSpend],
    delta: float,
    most: Compositions | None = None,
    queries: tuple[Composition, ...] = (),
) -> ServerView:
    """Return every client's ε against the server from its actual charges.

    Args:
        spends: what each client was charged.
        delta: δ of every ε.
        most: the most that a client was to be charged; see `registry.epsilons`.
        queries: what every client was charged in addition to the rounds.

    Raises:
        PrivacyError: if no client was charged, or no finite ε holds.
    """
    if not spends:
        raise PrivacyError("no client was charged: there is nothing to claim")
    # Once for each class of participation: who was charged alike spent alike, and among very many
    # clients there are few sizes and few numbers of rounds.
    classes = {spend.compositions: spend for spend in spends}
    spent = {
        parts: _epsilons_of(spend.client, (*parts, *queries), delta, most)
        for parts, spend in classes.items()
    }
    clients = tuple(_client_epsilon(spend, delta, spent[spend.compositions]) for spend in spends)
    name = leading()[0].name
    largest = max(entry.epsilon[name] for entry in clients)
    return ServerView(clients, _epsilon(largest, delta, "server", (_SERVER,), _kind(spends)))


def server_worst_case(bound: SpendingBound, per_round: Composition, delta: float) -> Epsilon:
    """Return the ε against the server of a client that takes part in every round.

    This is the bound that is known before a run.

    Args:
        bound: rounds, steps and noise, and what may change in them.
        per_round: what one participation costs the client for which it costs most, at most.
        delta: δ.
    """
    note = "the client takes part in every round, which is the worst case"
    value = leading()[0].epsilon(bound.of_person(per_round), delta)
    return _epsilon(value, delta, "server", (_SERVER, note), per_round.sampling)


def third_party_view(
    bound: SpendingBound,
    per_round: Composition,
    participation: float,
    delta: float,
    client_sampling: str = "fixed-size",
) -> ThirdPartyView:
    """Return the ε against a reader of broadcast models: δ(ε) ≤ E_n[δ_{nK}(ε)], n ~ Binomial(T, l).

    Sampling clients does not amplify a record's privacy in the usual way, since leaving a client
    out is not a neighbouring data set; only the number of participations is random. It is binomial
    for S of N clients as for independent ones, since rounds are independent: the law of the other
    clients' participations does not enter. At l = 1 this is the worst case against the server,
    which bounds it at any l where all rounds together have a limit on their steps.

    Args:
        bound: as for `server_worst_case`.
        per_round: as there.
        participation: l = S/N in (0, 1].
        delta: δ.
        client_sampling: "fixed-size" or "poisson".
    """
    accountant, leads = leading()
    if bound.clients_per_person > 1:
        # Which of a person's clients take part is one mixture; all of them in every round bound it.
        value = accountant.epsilon(bound.of_person(per_round), delta)
        epsilon = _epsilon(value, delta, "third-party", (SEEN_BY_ALL,), per_round.sampling)
        return ThirdPartyView(epsilon, bound.rounds, participation)
    always = (bound.queries,) if bound.queries else ()
    value = leads.mixture(bound.each_round(per_round), participation, delta, *always)
    if bound.adaptation is not None and bound.adaptation.step_limit is not None:
        value = min(value, accountant.epsilon(bound.everything(per_round), delta))
    assumptions = (*_THIRD_PARTY, _CLIENT_DRAWS[client_sampling])
    epsilon = _epsilon(value, delta, "third-party", assumptions, per_round.sampling)
    return ThirdPartyView(epsilon, bound.rounds, participation)


def _epsilons_of(
    client: int, parts: Compositions, delta: float, most: Compositions | None
) -> Mapping[str, float]:
    values = epsilons(parts, delta, most)
    if not all(math.isfinite(value) for value in values.values()):
        raise PrivacyError(f"client {client} has no finite epsilon at delta {delta:g}")
    return values


def _client_epsilon(spend: ClientSpend, delta: float, values: Mapping[str, float]) -> ClientEpsilon:
    return ClientEpsilon(
        spend.client,
        spend.records,
        spend.sampling_rate,
        spend.participations,
        spend.steps,
        values,
        delta_records=delta * spend.records,
    )


def _kind(spends: Sequence[ClientSpend]) -> str:
    return spends[0].compositions[0].sampling


def _epsilon(
    value: float, delta: float, towards: str, assumptions: tuple[str, ...], sampling: str
) -> Epsilon:
    every = (*mechanism_assumptions(sampling), *assumptions)
    if not math.isfinite(value):
        raise PrivacyError(f"no finite epsilon holds at delta {delta:g}: the noise is too small")
    values = {leading()[0].name: value}
    return Epsilon(values, delta, adjacency_of(sampling), towards, every)
