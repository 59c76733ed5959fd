"""Searches that invert an accountant: the number, or the count, that keeps to a target ε.

`calibration` says what is sought; here is how. Every value that is returned was put through the
accountant once more, and spends no more than the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpfedadamw.errors import PrivacyError

_LARGEST_COUNT = 1_000_000
# How much below the target is near enough.
_SLACK = 0.005


def _out_of_reach(target: float, nearest: float, how: str) -> PrivacyError:
    return PrivacyError(
        f"a target epsilon of {target:g} cannot be reached {how}; the nearest reachable is "
        f"{nearest:.4g}"
    )


def solve_number(
    spent: Callable[[float], float],
    start: float,
    factor: float,
    limits: tuple[float, float],
    target: float,
    round_safely: Callable[[float], float],
    name: str,
) -> float:
    """Return a value that spends between 99.5 % and 100 % of the target.

    Args:
        spent: ε as a function of the value, monotone.
        start: where to look first.
        factor: multiplying by it spends less.
        limits: (the value that spends most, the one that spends least); never left.
        target: ε to keep to.
        round_safely: rounds a value to the side that spends less.
        name: what the value is, for the error.
    """
    value = start
    loose = tight = None
    while loose is None or tight is None:
        epsilon = spent(value)
        if epsilon > target:
            loose = (value, epsilon)
        else:
            tight = (value, epsilon)
        if (value == limits[1] and tight is None) or (value == limits[0] and loose is None):
            raise _out_of_reach(target, epsilon, f"even at {name} {value:g}")
        step = factor if tight is None else 1.0 / factor
        value = min(max(limits), max(min(limits), value * step))
    for turn in range(60):
        safe = round_safely(tight[0])
        if (1.0 - _SLACK) * target <= spent(safe) <= target:
            return safe
        value = math.sqrt(loose[0] * tight[0])
        if turn % 3 and tight[1] > 0:
            # ε is close to a power of the value, so a straight line between logarithms hits nearby;
            # every third turn halves, so that the search ends whatever the shape.
            aim = math.log(target * (1.0 - _SLACK / 3.0) / loose[1])
            share = aim / math.log(tight[1] / loose[1])
            value = loose[0] * (tight[0] / loose[0]) ** min(1.0, max(0.0, share))
        epsilon = spent(value)
        if epsilon > target:
            loose = (value, epsilon)
        else:
            tight = (value, epsilon)
    raise PrivacyError(f"no value spends 99.5 % to 100 % of a target epsilon of {target:g}")


def largest_count(
    spent: Callable[[int], float], target: float, name: str, most: int | None = None
) -> int:
    """Return the largest count that spends at most the target.

    Args:
        spent: ε as a function of the count, increasing.
        target: ε to keep to.
        name: what is counted, for the error.
        most: no more than this is asked for; None to look up to a million.

    Raises:
        PrivacyError: if one already spends more, or, without `most`, a million spend less.
    """
    least = spent(1)
    if least > target:
        raise _out_of_reach(target, least, f"even with a single {name}")
    limit = _LARGEST_COUNT if most is None else most
    fits, over = 1, min(2, limit)
    while spent(over) <= target:
        if over >= limit:
            if most is not None:
                return most
            raise PrivacyError(
                f"a target epsilon of {target:g} leaves room for more than {limit} {name}s"
            )
        fits, over = over, min(2 * over, limit)
    while over - fits > 1:
        middle = (fits + over) // 2
        if spent(middle) <= target:
            fits = middle
        else:
            over = middle
    return fits


def round_up(value: float) -> float:
    """The next number above with six digits."""
    return _to_six_digits(value, math.ceil)


def round_down(value: float) -> float:
    """The next number below with six digits."""
    return _to_six_digits(value, math.floor)


def _to_six_digits(value: float, direction: Callable[[float], int]) -> float:
    digits = 5 - math.floor(math.log10(value))
    return round(direction(value * 10.0**digits) / 10.0**digits, digits)
