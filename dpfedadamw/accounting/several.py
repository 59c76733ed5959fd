"""What a run costs a person with several records: at one client, or at several clients.

At one client whose unit is the record, a step draws each of k records by itself, so that the person
adds to the sum up to j clipped vectors with the probability of Bin(k, q) at j. The dominating pair
of a step is N(0, σ²) against the mixture of N(j, σ²) over that law, which dp-accounting composes
(Charles et al. 2024, arXiv 2407.07737).

The server sees every client's upload. Each client's noise and draws are its own, so that all that a
person's records went into composes: the histories of the clients that they are at. Which these are
nobody may know, so that the claim is that of the dearest ones together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.views import (
    DERIVED_RATE,
    FIRST,
    REPLACE_ONE,
    STATED_RATE,
    ClientSpend,
)
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, covers, merge

__all__ = [
    "MOST_RECORDS",
    "Dearest",
    "epsilon_of_records",
    "in_words_of_people",
    "together",
]

MOST_RECORDS = 1000
# By how much of itself a grid may lift ε, about, and the most cells of a step's grid.
_LIFTED = 2e-4
_MOST_CELLS = 2.0**21
# Probabilities of a number of drawn records that are given to the largest number instead.
_TAIL = 1e-13
# Sets of clients that are composed one by one; of more, what covers each of them is.
_MOST_SETS = 300

PEOPLE_DERIVED_RATE = (
    "the number of people of each client, as the ledger's header lists it, is assumed to be "
    "public, and the sampling rate q, B over it, to be a constant. Data sets that differ by one "
    "person are drawn from at the same q, and how many people a client has is not protected"
)
PEOPLE_STATED_RATE = (
    "the sampling rate q and the divisor B are public constants that the spec states. They are the "
    "same for all clients and for data sets that differ by one person, however many people a "
    "client has. The numbers that the ledger lists are assumed to be known to its readers"
)
_OF_PEOPLE = {
    FIRST[0]: "each record is about one person and belongs to one client, where it occurs once",
    FIRST[1]: "the mean of the gradients of one person's records is clipped to the clipping norm "
    "over all trainable parameters before it is summed. The sum is divided by a fixed public "
    "number. Of each person as many records are drawn as the spec allows at most",
    DERIVED_RATE: PEOPLE_DERIVED_RATE,
    STATED_RATE: PEOPLE_STATED_RATE,
    REPLACE_ONE: "neighbouring data sets differ in what the records of one person hold, which "
    "moves a clipped sum by up to twice the clipping norm. That the person is there is not hidden",
}


@lru_cache(maxsize=256)
def epsilon_of_records(parts: tuple[Composition, ...], records: int, delta: float) -> float:
    """Return the ε of a person who has so many records, with all of them added or removed.

    The records may be at one client or at several whose charges are no more than `parts`: noise of
    different clients is independent, so that at one client they cost most.

    Args:
        parts: What was released, by Poisson sampling of records or with all of them in every batch.
        records: k, from 1 to `MOST_RECORDS`.
        delta: δ.

    Raises:
        PrivacyError: If batches are drawn otherwise, which no accountant covers for several
            records; or if ε is beyond what can be computed.
    """
    if not 1 <= records <= MOST_RECORDS:
        raise PrivacyError(f"{records} records per person: must be from 1 to {MOST_RECORDS:,}")
    for part in parts:
        if part.sampling not in ("poisson", "full"):
            raise PrivacyError(
                f"batches are {part.sampling}, and no accountant covers several records of one "
                "person in them; use privacy.sampling.kind: poisson"
            )
    merged = merge(parts)
    # A first number on a wide grid tells how fine the grid must be.
    rough = _composed(merged, records, delta, _interval(merged, records, 10.0 * _LIFTED, 1.0))
    if not math.isfinite(rough):
        raise PrivacyError(f"{records} records of a person: no finite ε holds at δ = {delta}")
    return _composed(merged, records, delta, _interval(merged, records, _LIFTED, rough))


def _interval(parts: Sequence[Composition], records: int, lifted: float, epsilon: float) -> float:
    """Choose the width of cells.

    Rounding n steps to cells of width h lifts ε by about order·n·h²/8 (see `pld`); the order is
    taken to be 1 + ε's own size, at least.
    """
    steps = sum(part.steps for part in parts)
    width = math.sqrt(8.0 * lifted * max(epsilon, 0.1) / (steps * (2.0 + 10.0 / max(epsilon, 0.1))))
    largest = max(
        (records / part.step_noise_multiplier) * (records / part.step_noise_multiplier + 10.0)
        for part in parts
    )
    return max(min(width, 0.1), 2.0 * largest / _MOST_CELLS)


def _composed(parts: Sequence[Composition], records: int, delta: float, width: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed = None
    for part in parts:
        counts, chances = _drawn(records, part.sampling_rate)
        step = pld.from_mixture_gaussian_mechanism(
            part.step_noise_multiplier,
            counts,
            chances,
            value_discretization_interval=width,
            use_connect_dots=True,
        ).self_compose(part.steps)
        composed = step if composed is None else composed.compose(step)
    assert composed is not None
    return float(composed.get_epsilon_for_delta(delta))


def _drawn(records: int, rate: float) -> tuple[list[float], list[float]]:
    """The law of how many records of a person a batch has; its thin tail counts as all of them."""
    if rate == 1.0:
        return [float(records)], [1.0]
    among = range(records + 1)
    chances = [
        math.comb(records, count) * rate**count * (1.0 - rate) ** (records - count)
        for count in among
    ]
    kept = [count for count in among if chances[count] > _TAIL or count in (0, records)]
    chances[-1] = max(0.0, 1.0 - sum(chances[count] for count in kept[:-1]))
    return [float(count) for count in kept], [chances[count] for count in kept]


def in_words_of_people(assumptions: Sequence[str], clients: int) -> list[str]:
    """Return what a claim on people assumes, where on records it assumes these sentences.

    Args:
        assumptions: Of a claim on single records.
        clients: At how many clients one person's records may be.
    """
    at = "one client" if clients == 1 else f"{clients} clients"
    return [
        f"no person has records at more than {at}; whom each record is about, the data say",
        *(_OF_PEOPLE.get(one, one) for one in assumptions),
    ]


@dataclass(frozen=True)
class Dearest:
    """The clients that cost a person most together.

    Attributes:
        epsilon: ε of their histories, by the leading accountant.
        parts: These histories as one.
    """

    epsilon: float
    parts: tuple[Composition, ...]


def together(spends: Sequence[ClientSpend], clients: int, delta: float) -> Dearest:
    """Return what the so many dearest clients cost together, or all where there are fewer.

    A client that as many others cover is left out. Where still many sets of clients are left, what
    has as many steps of each kind as any of them, at the largest rate, is composed in their place,
    which costs no less.

    Args:
        spends: What each client was charged, of one client at least.
        clients: s, at how many of them one person's records may be.
        delta: δ.
    """
    histories = [merge(spend.compositions) for spend in spends]
    kept = [
        history
        for place, history in enumerate(histories)
        if sum(
            covers(other, history) and (other != history or before < place)
            for before, other in enumerate(histories)
            if before != place
        )
        < clients
    ]
    count = min(clients, len(kept))
    if math.comb(len(kept), count) > _MOST_SETS:
        kept = [envelope(kept)] * count
    sets = {
        merge([part for history in chosen for part in history])
        for chosen in combinations(kept, count)
    }
    epsilon = leading()[0].epsilon
    return max(
        (Dearest(epsilon(parts, delta), parts) for parts in sets), key=lambda one: one.epsilon
    )


def envelope(histories: Sequence[tuple[Composition, ...]]) -> tuple[Composition, ...]:
    """Return as many steps of each kind of noise as any history has, at the largest rate."""
    rate = max(part.sampling_rate for history in histories for part in history)
    steps: dict[tuple[float, int, str], int] = {}
    for history in histories:
        own: dict[tuple[float, int, str], int] = {}
        for part in history:
            kind = (part.noise_multiplier, part.queries_per_step, part.sampling)
            own[kind] = own.get(kind, 0) + part.steps
        for kind, count in own.items():
            steps[kind] = max(steps.get(kind, 0), count)
    return tuple(
        Composition(noise, rate, count, queries, sampling)
        for (noise, queries, sampling), count in sorted(steps.items())
    )
