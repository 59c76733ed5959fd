"""What noise does to an exponential average of squares, and to the floor under its debiased value.

The statistics behind the check "second-moment", apart from its judgement: means and variances of
the average's innovations; and how many coordinates must have been raised to the floor. v̂ − Φ is an
estimate: where noise dwarfs the gradients it is negative at about half of all coordinates, and its
root does not exist. Evidence keeps block means of v̂ and counts of coordinates that were raised;
the one bounds the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.reading.evidence import RoundEvidence, SecondMoment
from audit.untrusted import fields
from audit.untrusted.archives import Floats, Integers
from audit.untrusted.fields import FieldError

# Block means of float32 moments.
_RELATIVE = 1e-4


@dataclass(frozen=True)
class Floor:
    """The floor that a spec promises.

    Attributes:
        relative: multiple of Φ, or None.
        absolute: a number, or None.
        by_block: whether one value stands for a whole block.
    """

    relative: float | None
    absolute: float | None
    by_block: bool

    def value(self, variance_of_noise: float) -> float:
        """The least value of v̂ − Φ, given Φ."""
        if self.relative is not None:
            return self.relative * variance_of_noise
        return self.absolute or 0.0


def promised_floor(moment: Mapping[str, Any]) -> Floor:
    """The floor of the spec's section on the second moment.

    Raises:
        FieldError: there is none, or it is malformed.
    """
    section = fields.mapping(moment, "floor")
    given = {
        name: fields.number(section, name, least=0.0) if section.get(name) is not None else None
        for name in ("relative", "absolute")
    }
    if sum(value is not None for value in given.values()) != 1:
        raise FieldError("floor does not have exactly one of relative and absolute")
    shared = moment.get("aggregation") not in ("full", "none")
    by_block = shared and moment.get("denominator") == "block"
    return Floor(given["relative"], given["absolute"], by_block)


def floor_faults(
    corrected: Floats,
    floored: Integers,
    sizes: Floats,
    variance_of_noise: float,
    floor: Floor,
) -> list[str]:
    """What is wrong with one round's counts of coordinates at the floor; empty if nothing is.

    A coordinate that was not raised has v̂ ≥ Φ + floor, and none is negative. So at most a share
    mean(v̂)/(Φ + floor) of a block was not raised (Markov's inequality), whatever the gradients.

    Args:
        corrected: block means of v̂, [S, B].
        floored: coordinates raised to the floor, [S, B].
        sizes: coordinates of each block, [B].
        variance_of_noise: Φ.
        floor: what the spec promises.
    """
    if np.any(floored > sizes):
        return ["more coordinates reached the floor than there are"]
    if floor.value(variance_of_noise) <= 0.0:
        if np.any(floored > 0):
            return ["v-hat minus Phi was negative at some coordinate, and no floor held it"]
        return []
    bound = variance_of_noise + floor.value(variance_of_noise)
    if floor.by_block:
        below, above = corrected < bound * (1.0 - _RELATIVE), corrected > bound * (1.0 + _RELATIVE)
        if np.any(below & (floored != sizes)) or np.any(above & (floored != 0)):
            return ["a block's one denominator was not raised to the floor exactly where it must"]
        return []
    least = sizes * (1.0 - corrected * (1.0 + _RELATIVE) / bound) - 1.0
    if np.any(floored < least):
        return ["fewer coordinates were raised to the floor than the mean of v-hat leaves below it"]
    return []


Array = NDArray[np.float64]


@dataclass(frozen=True)
class MomentRule:
    """What the spec promises about the second moment.

    Attributes:
        beta2: its decay.
        carried: whether a round starts from the last one's.
        debias: whether the noise's variance is subtracted.
        local_counter: whether the bias correction counts the steps of the round alone.
        restarts: whether steps are counted from the round's start because the moment is.
        floor: the least that is left; None where nothing is subtracted.
        whole: whether all of it is exchanged, and not means of blocks.
    """

    beta2: float
    carried: bool
    debias: bool
    local_counter: bool
    restarts: bool
    floor: Floor | None = None
    whole: bool = False


@dataclass
class InnovationSums:
    """Innovations of D = noisy − clean over all clients and rounds: sums, one entry a block.

    Attributes:
        total: the innovations, [B].
        expected: their means, [B].
        variance: their variances, [B].
        third: their third cumulants, [B].
        noise_variance: the part of their variances that squares of noise have, [B].
        rounding: how far float32 and the public grid may have moved their sum, [B].
        count: how many were added.
    """

    total: Array
    expected: Array
    variance: Array
    third: Array
    noise_variance: Array
    rounding: Array
    count: int = 0

    @classmethod
    def start(cls, blocks: int) -> InnovationSums:
        """Nothing added yet."""
        total, expected, variance, third, noise_variance, rounding = np.zeros((6, blocks))
        return cls(total, expected, variance, third, noise_variance, rounding)


def promised_rule(spec: Mapping[str, Any], beta2: float) -> MomentRule:
    """The rule that a spec promises, where the evidence was written for this beta2.

    Raises:
        FieldError: a field is missing or malformed, or beta2 is another one.
    """
    algorithm = fields.mapping(spec, "algorithm")
    name = fields.text(algorithm, "name")
    declared = fields.number(algorithm, "beta2", least=0.0, most=1.0)
    if declared != beta2:
        raise FieldError("beta2 of the evidence is not the spec's")
    if "second_moment" not in algorithm:
        return MomentRule(beta2, carried=False, debias=False, local_counter=True, restarts=True)
    moment = fields.mapping(algorithm, "second_moment")
    restarts = name == "dp-localadamw" or moment.get("aggregation", "none") == "none"
    return MomentRule(
        beta2,
        carried=not restarts,
        debias=bool(moment.get("debias", False)),
        local_counter=moment.get("counter") == "local",
        restarts=restarts,
        floor=promised_floor(moment) if moment.get("debias") is True else None,
        whole=moment.get("aggregation") == "full",
    )


def step_weights(beta2: float, steps: int) -> Array:
    """(1−β2)·β2^(K−j) for j = 1…K: how much the j-th square counts at the end of the round."""
    ages = np.arange(steps - 1, -1, -1, dtype=np.float64)
    result: Array = (1.0 - beta2) * np.power(beta2, ages)
    return result


def steps_gain(beta2: float, steps: int) -> float:
    """1 − β2^steps without cancellation."""
    return float(-np.expm1(steps * np.log(beta2))) if beta2 > 0.0 else 1.0


def relative_rounding(steps: int, bits: int) -> float:
    """How far rounding moves a mean of v within a round at most, over v at its end.

    A step of float32 rounds β2, 1−β2 (alike at all coordinates and steps, so that it adds up), a
    product and a sum, each by 2^-24 of v at most; between two rounds v is averaged twice and put
    on the grid. What v has at the start counts β2^K-fold, and so no more than v at the end.

    Args:
        steps: K.
        bits: significant bits of what is exchanged.
    """
    return (steps + 2) * 2.0**-22 + 2.0**-bits


def accumulate(
    sums: InnovationSums,
    evidence: RoundEvidence,
    moment: SecondMoment,
    start: Array,
    beta2: float,
    variance_of_noise: float,
    sizes: Array,
    bits: int,
) -> Array:
    """Add one round's innovations; returns the difference D of every client at its end.

    Given the past, the innovation D_end − β2^K·D_start of a client is a sum of independent means of
    ξ² + 2ξg with ξ ~ N(0, Φ): its mean is (1−β2^K)Φ, and over a block of n coordinates step j has
    variance w²·(2Φ²/n + 4Φ·Σg²/n²) and third cumulant w³·(8Φ³/n² + 24Φ²·Σg²/n³), where w =
    (1−β2)β2^(K−j). Clients share the start of a round but not its innovations, which is what makes
    them independent terms. Of a large model these sums are known more finely than float32 computes
    v, so rounding is counted in addition to chance.
    """
    steps = evidence.batch_size.shape[1]
    weights = step_weights(beta2, steps)
    difference = moment.noisy - moment.clean
    innovations = difference - beta2**steps * start
    phi = variance_of_noise
    square, cube = np.square(weights), np.power(weights, 3)

    def signal(powers: Array) -> Array:
        """Σg² of all clients, each step by its weight, [B]."""
        summed: Array = np.tensordot(evidence.clean_sum_squares, powers, axes=(1, 0)).sum(axis=0)
        return summed

    clients = len(evidence.clients)
    noise_variance = clients * square.sum() * 2.0 * phi**2 / sizes
    sums.total += innovations.sum(axis=0)
    sums.expected += clients * steps_gain(beta2, steps) * phi
    sums.variance += noise_variance + signal(square) * 4.0 * phi / sizes**2
    sums.third += clients * cube.sum() * 8.0 * phi**3 / sizes**2
    sums.third += signal(cube) * 24.0 * phi**2 / sizes**3
    sums.noise_variance += noise_variance
    sums.rounding += relative_rounding(steps, bits) * moment.noisy.sum(axis=0)
    sums.count += clients
    return difference
