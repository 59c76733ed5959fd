"""How much noise a job's own filter added, from updates before and after it; never a guarantee.

A filter that clips to C and adds Gaussian noise turns an update u into cu + z. Least squares give
c, and with it the length that was released and the noise's deviation. The true C is at least the
longest cu that was seen, so the ε found is one that the job has at least: it can refute what a job
states, and cannot confirm it. It is sharp where the noise is small. Where one coordinate's noise is
as long as cu, it is 0. What the job does with other data, or says elsewhere, is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.statistics.intervals import (
    FALSE_ALARM,
    chi_square_interval,
    correlation_threshold,
    kolmogorov_p_value,
)
from audit.untrusted import UntrustedError
from audit.untrusted.archives import read_tensors
from audit.untrusted.files import read_chosen
from dpfedadamw.extensions.gate import spending
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.mechanism import SENSITIVITY

Floats = NDArray[np.float64]
_MOST_BYTES = 1 << 30
# Fewer numbers say too little of a deviation.
_FEWEST = 30


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What updates show.

    Attributes:
        updates: How many pairs.
        length: The longest update as it was released without its noise.
        deviation: The smallest deviation of the noise.
        epsilon: What all updates cost at least, at 99.9 % confidence; None where it is not Gaussian
            noise, and then `why` says what was found.
        why: Empty where an ε was found.
    """

    updates: int
    length: float
    deviation: float
    epsilon: float | None
    why: str = ""


def files_of(before: Path, after: Path) -> list[tuple[Floats, Floats]]:
    """The pairs: two .safetensors files, or two folders with files of the same names.

    Raises:
        GateError: If they are no such pairs.
    """
    names = [""]
    if before.is_dir() or after.is_dir():
        listed = [
            sorted(one.name for one in folder.glob("*.safetensors")) if folder.is_dir() else []
            for folder in (before, after)
        ]
        if not listed[0] or listed[0] != listed[1]:
            raise GateError(f"{before}, {after}: must hold .safetensors files of the same names")
        names = listed[0]
    found = []
    for name in names:
        one, two = _read(before / name), _read(after / name)
        if {key: value.size for key, value in one.items()} != {
            key: value.size for key, value in two.items()
        }:
            raise GateError(f"{after / name}: has other arrays than {before / name}")
        pair = [np.concatenate([arrays[key] for key in sorted(arrays)]) for arrays in (one, two)]
        if pair[0].size < _FEWEST:
            raise GateError(f"{before / name}: has {pair[0].size} numbers; {_FEWEST} are needed")
        found.append((pair[0], pair[1]))
    return found


def measured(pairs: list[tuple[Floats, Floats]], delta: float) -> Measured:
    """Measure clip and noise of updates, and compose what they cost."""
    level = FALSE_ALARM / (2 * len(pairs))
    reach = -_quantile(level)
    multipliers, lengths, noises, why = [], [], [], ""
    for number, (before, after) in enumerate(pairs, start=1):
        if not (np.isfinite(before).all() and np.isfinite(after).all()):
            why = why or f"update {number} holds values that are not finite"
            continue
        size = before.size
        square = float(before @ before)
        share = float(before @ after) / square if square else 0.0
        noise = after - share * before
        deviation = math.sqrt(float(noise @ noise) / (size - 1))
        lengths.append(abs(share) * math.sqrt(square))
        if deviation <= 1e-12 * max(lengths[-1], 1e-300):
            multipliers.append(0.0)
            noises.append((noise, 0.0))
            continue
        if kolmogorov_p_value(noise / deviation) < level:
            why = why or f"what was added to update {number} is no Gaussian noise"
        noises.append((noise, deviation))
        # Both ends on the side of a smaller ε.
        most = deviation / math.sqrt(chi_square_interval(size - 1, 2 * level)[0])
        least = max(0.0, lengths[-1] - reach * deviation)
        multipliers.append(most / (SENSITIVITY * least) if least else math.inf)
    again = _repeated(noises)
    if again is not None:
        why = why or f"updates {again[0]} and {again[1]} share noise"
    deviation = min((one for _, one in noises), default=0.0)
    found = None if why else _epsilon(multipliers, delta)
    return Measured(
        updates=len(pairs),
        length=max(lengths, default=0.0),
        deviation=deviation,
        epsilon=found,
        why=why,
    )


def _epsilon(multipliers: list[float], delta: float) -> float:
    if 0.0 in multipliers:
        return math.inf
    # Beyond this multiplier a release costs nothing that could be seen.
    finite = [one for one in multipliers if one <= 1e6]
    return spending.epsilon_of(finite, delta)


def _repeated(noises: list[tuple[Floats, float]]) -> tuple[int, int] | None:
    """Two updates whose noise is not drawn by itself."""
    pairs = len(noises) * (len(noises) - 1) // 2
    for first, (one, scale) in enumerate(noises):
        for second, (two, other) in enumerate(noises[:first]):
            if one.size != two.size or not scale or not other:
                continue
            limit = correlation_threshold(one.size, pairs, FALSE_ALARM)
            if abs(float(one @ two)) / float(np.sqrt((one @ one) * (two @ two))) > limit:
                return second + 1, first + 1
    return None


def _quantile(chance: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(chance))


def _read(path: Path) -> Mapping[str, Floats]:
    try:
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise GateError(f"{path}: is larger than {_MOST_BYTES} bytes; measure fewer arrays")
        content, _ = read_chosen(path, _MOST_BYTES)
        return read_tensors(content, metadata=True)
    except UntrustedError as error:
        said = str(error).removeprefix(f"{path}: ")
        raise GateError(f"{path}: cannot be read as a .safetensors file ({said})") from error
