"""What a run costs a person whose records are at several clients.

The server sees every upload. Each client's noise and draws are its own, so that all that a person's
records went into composes: the histories of the clients that they are at. Which these are nobody
may know, so that the claim is that of the dearest ones together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.views import (
    DERIVED_RATE,
    FIRST,
    REPLACE_ONE,
    STATED_RATE,
    ClientSpend,
)
from dpfedadamw.privacy.composition import Composition, covers, merge

__all__ = ["Dearest", "in_words_of_people", "together"]

# Sets of clients that are composed one by one; of more, what covers each of them is.
_MOST_SETS = 300

PEOPLE_DERIVED_RATE = (
    "the number of people of each client, as the ledger's header lists it, is assumed to be "
    "public, and the sampling rate q, B over it, to be a constant: data sets that differ by one "
    "person are drawn from at the same q, and how many people a client has is not protected"
)
PEOPLE_STATED_RATE = (
    "the sampling rate q and the divisor B are public constants that the spec states, the same for "
    "all clients and for data sets that differ by one person, whatever a client's number of people "
    "is; the numbers that the ledger lists are assumed to be known to its readers"
)
_OF_PEOPLE = {
    FIRST[0]: "each record is about one person and belongs to one client, where it occurs once",
    FIRST[1]: "the mean of the gradients of one person's records is clipped to the clipping norm "
    "over all trainable parameters before it is summed, and the sum is divided by a fixed public "
    "number; of each person as many records are drawn as the spec allows at most",
    DERIVED_RATE: PEOPLE_DERIVED_RATE,
    STATED_RATE: PEOPLE_STATED_RATE,
    REPLACE_ONE: "neighbouring data sets differ in what the records of one person hold, which "
    "moves a clipped sum by up to twice the clipping norm; that the person is there is not hidden",
}


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
        kept = [_envelope(kept)] * count
    sets = {
        merge([part for history in chosen for part in history])
        for chosen in combinations(kept, count)
    }
    epsilon = leading()[0].epsilon
    return max(
        (Dearest(epsilon(parts, delta), parts) for parts in sets), key=lambda one: one.epsilon
    )


def _envelope(histories: Sequence[tuple[Composition, ...]]) -> tuple[Composition, ...]:
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
