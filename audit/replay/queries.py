"""Whether the gradients handed out to a rule are those whose noise the other checks judged.

Two recorders write evidence: one notes noise and norms, the other what passed between rule and
oracle. Here the one is held against the other, so that neither can show each check what it likes.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from audit.reading.evidence import RoundEvidence
from audit.reading.exchanges import Exchange
from audit.replay.base import Partition
from audit.replay.grid import on_grid
from audit.replay.rounding import ROUNDING
from audit.untrusted.arrays import Floats, Integers

# Recorded noise and norms are float32; their products and sums are a few roundings off.
RECORDED = 16.0 * ROUNDING


def block_sums(exchange: Exchange, partition: Partition) -> Floats:
    """Block sums of squares of each gradient handed out, [Q, B]."""
    if exchange.square_sums is not None:
        return exchange.square_sums
    index, count = partition.of_coordinate, len(partition.sizes)
    sums = np.zeros((len(exchange.gradients), count))
    for query, gradient in enumerate(exchange.gradients):
        sums[query] = np.bincount(index, weights=np.square(gradient), minlength=count)
    return sums


def carries(noise: Floats, clean: Floats, total: Floats, bits: int | None = None) -> bool:
    """Whether a total is a clean sum and its recorded noise, at each sampled coordinate.

    Args:
        noise: as it was recorded.
        clean: the same.
        total: what was released.
        bits: significant bits of the public grid that it was rounded to; None for none.
    """
    room = RECORDED * (np.abs(total) + np.abs(clean) + np.abs(noise))
    if bits is None:
        return bool(np.all(np.abs(total - clean - noise) <= room))
    low, high = on_grid(clean + noise - room, bits), on_grid(clean + noise + room, bits)
    return bool(np.all((low <= total) & (total <= high)))


def noise_faults(
    exchange: Exchange,
    sums: Floats,
    evidence: RoundEvidence,
    row: int,
    clip: float,
    sampled: Integers,
) -> list[str]:
    """What of the gradients handed out contradicts the evidence of their noise.

    Args:
        exchange: what was handed out.
        sums: block sums of squares of it, [Q, B].
        evidence: the round's noise and norms.
        row: the client's row in it.
        clip: C.
        sampled: where the coordinates of the sampled noise stand among the recorded ones.
    """
    divisor = evidence.divisor[row][:, None]
    if len(exchange.gradients) != len(divisor):
        return ["the queries handed out are not those whose noise was noted"]
    faults = []
    handed = exchange.gradients[:, sampled] * divisor
    if not carries(evidence.noise_sample[row] * clip, exchange.clean_sample, handed):
        faults.append("the gradients handed out do not carry the noise recorded for them")
    total, noise = sums * divisor**2, evidence.noise_sum_squares[row]
    clean = evidence.clean_sum_squares[row] * divisor**2
    # |Σ(c+z)² − Σc² − Σz²| = 2|Σcz| ≤ 2·√(Σc²·Σz²) in every block (Cauchy-Schwarz).
    room = 2.0 * np.sqrt(noise * clean) + RECORDED * (total + noise + clean)
    if not np.all(np.abs(total - noise - clean) <= room):
        faults.append("the size of the gradients handed out does not fit the noise recorded")
    starts = evidence.record_offsets[row * len(divisor) : (row + 1) * len(divisor) + 1]
    for query, (start, stop) in enumerate(pairwise(starts)):
        longest = float(evidence.clipped_norms[start:stop].sum())
        # Norms in float32, sums over a batch in float32: far within a thousandth.
        if not math.sqrt(float(clean[query].sum())) <= longest * 1.001 + 1e-6 * clip:
            faults.append("what is called the clean sum is longer than its clipped gradients")
            break
    return faults
