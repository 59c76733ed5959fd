"""What a run whose unit is the record costs a person with several records.

A step draws each of k records by itself, so that the person adds to the sum up to j clipped vectors
with the probability of Bin(k, q) at j. The dominating pair of a step is N(0, σ²) against the
mixture of N(j, σ²) over that law, which dp-accounting composes (Charles et al. 2024, arXiv
2407.07737).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, merge

__all__ = ["MOST_RECORDS", "epsilon_of_records"]

MOST_RECORDS = 1000
# By how much of itself a grid may lift ε, about, and the most cells of a step's grid.
_LIFTED = 2e-4
_MOST_CELLS = 2.0**21
# Probabilities of a number of drawn records that are given to the largest number instead.
_TAIL = 1e-13


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
        raise PrivacyError(f"{records} records of a person: must be from 1 to {MOST_RECORDS:,}")
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
