"""Calibration: the noise, rounds, steps or batch size that a target ε leaves room for.

Each solver inverts the tight accountant. The value returned was put through that accountant once
more and never spends more than the target; where the quantity is continuous it spends at most 0.5 %
less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import check_delta
from dpfedadamw.privacy.course import Adaptation, Course, NoiseDecay
from dpfedadamw.privacy.views import server_worst_case, third_party_view

__all__ = [
    "solve_expected_batch_size",
    "solve_local_steps",
    "solve_noise_multiplier",
    "solve_rounds",
    "solve_step_limit",
]

_LARGEST_NOISE = 1e4
_SMALLEST_NOISE = 0.05
_SMALLEST_RATE = 1e-6
_LARGEST_COUNT = 1_000_000
# How much below the target is near enough.
_SLACK = 0.005


@dataclass(frozen=True)
class _Setting:
    """A planned run, as far as its ε goes."""

    delta: float
    rate: float
    noise_multiplier: float
    rounds: int
    local_steps: int
    queries_per_step: int
    view: str
    participation: float
    decay: NoiseDecay | None = None

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.view not in ("server", "third-party"):
            raise PrivacyError(
                f"a view is towards the 'server' or a 'third-party', not '{self.view}'"
            )

    def epsilon(self) -> float:
        """Return what the run will spend at most, in its view."""
        adaptation = None
        if self.decay is not None:
            adaptation = Adaptation(self.local_steps, None, True, self.decay)
        course = Course(self.rounds, self.local_steps, self.noise_multiplier, adaptation)
        if self.view == "server":
            return server_worst_case(course, self.rate, self.delta, self.queries_per_step).value
        view = third_party_view(
            course, self.rate, self.participation, self.delta, self.queries_per_step
        )
        return view.epsilon.value


def solve_noise_multiplier(
    target_epsilon: float,
    delta: float,
    rates: Sequence[float],
    rounds: int,
    local_steps: int,
    queries_per_step: int = 1,
    view: str = "server",
    participation: float = 1.0,
    decay: NoiseDecay | None = None,
) -> float:
    """Return the smallest noise multiplier, to six digits, that keeps to a target ε.

    Args:
        target_epsilon: ε > 0 to keep to.
        delta: δ.
        rates: sampling rate of every client; the largest decides.
        rounds: T.
        local_steps: K.
        queries_per_step: noised answers on each batch.
        view: "server", whose worst case is a client in every round, or "third-party".
        participation: l = S/N, used by the third party's view.
        decay: how the noise may fall; the multiplier is then the first round's.

    Returns:
        σ, whose ε lies in [0.995, 1] times the target.

    Raises:
        PrivacyError: if the target is out of reach; the text names the nearest reachable ε.
    """
    _check_target(target_epsilon)
    setting = _Setting(
        delta,
        max(rates),
        1.0,
        rounds,
        local_steps,
        queries_per_step,
        view,
        participation,
        decay,
    )

    def spent(noise_multiplier: float) -> float:
        return replace(setting, noise_multiplier=noise_multiplier).epsilon()

    limits = (_SMALLEST_NOISE, _LARGEST_NOISE)
    return _solve(spent, 1.0, 4.0, limits, target_epsilon, _round_up, "noise multiplier")


def solve_expected_batch_size(
    target_epsilon: float,
    delta: float,
    records: Sequence[int],
    noise_multiplier: float,
    rounds: int,
    local_steps: int,
    queries_per_step: int = 1,
    view: str = "server",
    participation: float = 1.0,
    decay: NoiseDecay | None = None,
) -> float:
    """Return the largest expected batch size, to six digits, that keeps to a target ε.

    Args:
        target_epsilon: ε > 0 to keep to.
        delta: δ.
        records: number of records of every client; the smallest client decides.
        noise_multiplier: σ.
        rounds: T.
        local_steps: K.
        queries_per_step: noised answers on each batch.
        view: "server" or "third-party".
        participation: l = S/N, used by the third party's view.
        decay: how the noise may fall; the multiplier is then the first round's.

    Returns:
        B, at most the smallest client's number of records; below that its ε lies in [0.995, 1]
        times the target.

    Raises:
        PrivacyError: if the target is out of reach; the text names the nearest reachable ε.
    """
    _check_target(target_epsilon)
    setting = _Setting(
        delta,
        1.0,
        noise_multiplier,
        rounds,
        local_steps,
        queries_per_step,
        view,
        participation,
        decay,
    )
    smallest = min(records)

    def spent(batch_size: float) -> float:
        return replace(setting, rate=min(1.0, batch_size / smallest)).epsilon()

    if spent(smallest) <= target_epsilon:
        return float(smallest)
    limits = (smallest, _SMALLEST_RATE * smallest)
    return _solve(spent, smallest, 0.25, limits, target_epsilon, _round_down, "batch size")


def solve_rounds(
    target_epsilon: float,
    delta: float,
    rates: Sequence[float],
    noise_multiplier: float,
    local_steps: int,
    queries_per_step: int = 1,
    view: str = "server",
    participation: float = 1.0,
    decay: NoiseDecay | None = None,
) -> int:
    """Return the largest number of rounds that keeps to a target ε.

    Arguments are those of `solve_noise_multiplier`, with σ given and the rounds sought.

    Raises:
        PrivacyError: if one round already spends more, or a million spend less.
    """
    _check_target(target_epsilon)
    setting = _Setting(
        delta,
        max(rates),
        noise_multiplier,
        1,
        local_steps,
        queries_per_step,
        view,
        participation,
        decay,
    )
    return _largest_count(
        lambda count: replace(setting, rounds=count).epsilon(), target_epsilon, "round"
    )


def solve_local_steps(
    target_epsilon: float,
    delta: float,
    rates: Sequence[float],
    noise_multiplier: float,
    rounds: int,
    queries_per_step: int = 1,
    view: str = "server",
    participation: float = 1.0,
    decay: NoiseDecay | None = None,
) -> int:
    """Return the largest number of local steps a round that keeps to a target ε.

    Arguments are those of `solve_noise_multiplier`, with σ given and the local steps sought.

    Raises:
        PrivacyError: if one local step already spends more, or a million spend less.
    """
    _check_target(target_epsilon)
    setting = _Setting(
        delta,
        max(rates),
        noise_multiplier,
        rounds,
        1,
        queries_per_step,
        view,
        participation,
        decay,
    )
    return _largest_count(
        lambda count: replace(setting, local_steps=count).epsilon(), target_epsilon, "local step"
    )


def solve_step_limit(
    target_epsilon: float,
    delta: float,
    rates: Sequence[float],
    noise_multiplier: float,
    most: int,
    queries_per_step: int = 1,
) -> int:
    """Return R_c, how many local steps in all a target ε affords (ALI-DPFL, Algorithm 3).

    The algorithm is a bisection whose printed loop ends at once; this one keeps going until the
    number is exact: it fits the target, and one more step would not.

    Args:
        target_epsilon: ε > 0 to keep to, towards the server.
        delta: δ.
        rates: sampling rate of every client; the largest decides.
        noise_multiplier: σ.
        most: steps that rounds and their bounds leave room for, at least 1; no more is asked for.
        queries_per_step: noised answers on each batch.

    Raises:
        PrivacyError: if one step already spends more.
    """
    _check_target(target_epsilon)

    def spent(steps: int) -> float:
        course = Course(1, steps, noise_multiplier)
        return server_worst_case(course, max(rates), delta, queries_per_step).value

    return _largest_count(spent, target_epsilon, "local step", most)


def _check_target(target: float) -> None:
    if not (math.isfinite(target) and target > 0):
        raise PrivacyError(f"a target epsilon is a positive number, not {target}")


def _out_of_reach(target: float, nearest: float, how: str) -> PrivacyError:
    return PrivacyError(
        f"a target epsilon of {target:g} cannot be reached {how}; the nearest reachable is "
        f"{nearest:.4g}"
    )


def _solve(
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


def _largest_count(
    spent: Callable[[int], float], target: float, name: str, most: int | None = None
) -> int:
    """The largest count within a target; at most ``most`` where that is given."""
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


def _round_up(value: float) -> float:
    return _to_six_digits(value, math.ceil)


def _round_down(value: float) -> float:
    return _to_six_digits(value, math.floor)


def _to_six_digits(value: float, direction: Callable[[float], int]) -> float:
    digits = 5 - math.floor(math.log10(value))
    return round(direction(value * 10.0**digits) / 10.0**digits, digits)
