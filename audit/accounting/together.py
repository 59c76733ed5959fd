"""What several clients cost a person together, whose records are at so many of them.

The server sees every upload, and clients draw batches and noise by themselves: all histories of the
clients that the person is at compose. The claim must hold whichever these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from audit.accounting.budget import budget
from audit.accounting.steps import Steps, merge

# Sets that are composed one by one; of more, one that covers each of them is.
_MOST_SETS = 300


def together(
    histories: Sequence[tuple[Steps, ...]], clients: int, delta: float
) -> tuple[Steps, ...]:
    """The history of the clients that cost most together.

    Args:
        histories: each client's.
        clients: s, at how many of them one person's records may be.
        delta: δ.
    """
    left = [
        history
        for place, history in enumerate(histories)
        if sum(
            _before(other, history, before < place)
            for before, other in enumerate(histories)
            if before != place
        )
        < clients
    ]
    count = min(clients, len(left))
    if math.comb(len(left), count) > _MOST_SETS:
        left = [_most_of_each(left)] * count
    sets = {
        merge([item for history in some for item in history]) for some in combinations(left, count)
    }
    return max(sets, key=lambda history: budget(history, delta).headline)


def _before(one: tuple[Steps, ...], other: tuple[Steps, ...], first: bool) -> bool:
    """Whether one history costs as much as another whatever it is composed with, or ties first."""
    return _covers(one, other) and (first or not _covers(other, one))


def _covers(one: tuple[Steps, ...], other: tuple[Steps, ...]) -> bool:
    """Up to any noise, at least as many steps with at most that noise, at no smaller rate."""
    if not one or not other:
        return not other
    if len({item.fixed_size for item in (*one, *other)}) > 1:
        return False
    if max(item.sampling_rate for item in other) > min(item.sampling_rate for item in one):
        return False
    return all(
        sum(item.steps for item in one if item.noise_multiplier <= noise)
        >= sum(item.steps for item in other if item.noise_multiplier <= noise)
        for noise in {item.noise_multiplier for item in other}
    )


def _most_of_each(histories: Sequence[tuple[Steps, ...]]) -> tuple[Steps, ...]:
    """As many steps of each noise as any history has, at the largest rate of all."""
    rate = max(item.sampling_rate for history in histories for item in history)
    most: dict[tuple[float, bool], int] = {}
    for history in histories:
        own: dict[tuple[float, bool], int] = {}
        for item in history:
            kind = (item.noise_multiplier, item.fixed_size)
            own[kind] = own.get(kind, 0) + item.steps
        for kind, steps in own.items():
            most[kind] = max(most.get(kind, 0), steps)
    return merge([Steps(rate, noise, steps, fixed) for (noise, fixed), steps in most.items()])
