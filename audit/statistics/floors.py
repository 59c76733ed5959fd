"""How many coordinates of a debiased second moment must have been raised to its floor?

Arithmetic of the check "second-moment". v̂ − Φ is an estimate: where noise dwarfs the gradients it
is negative at about half of all coordinates, and its root does not exist. Evidence keeps block
means of v̂ and counts of coordinates that were raised; the one bounds the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.untrusted import fields
from audit.untrusted.arrays import Floats, Integers
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
