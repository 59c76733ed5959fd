"""Calibration: the noise, rounds, steps or batch size that a target ε leaves room for.

Each solver inverts the tight accountant. The value returned was put through that accountant once
more and never spends more than the target; where the quantity is continuous it spends at most 0.5 %
less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import check_delta
from dpfedadamw.privacy.course import Adaptation, Course, NoiseDecay
from dpfedadamw.privacy.search import largest_count, round_down, round_up, solve_number
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
        delta, max(rates), 1.0, rounds, local_steps, queries_per_step, view, participation, decay
    )

    def spent(noise_multiplier: float) -> float:
        return replace(setting, noise_multiplier=noise_multiplier).epsilon()

    limits = (_SMALLEST_NOISE, _LARGEST_NOISE)
    return solve_number(spent, 1.0, 4.0, limits, target_epsilon, round_up, "noise multiplier")


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
    return solve_number(spent, smallest, 0.25, limits, target_epsilon, round_down, "batch size")


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
    return largest_count(
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
        delta, max(rates), noise_multiplier, rounds, 1, queries_per_step, view, participation, decay
    )
    return largest_count(
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

    return largest_count(spent, target_epsilon, "local step", most)


def _check_target(target: float) -> None:
    if not (math.isfinite(target) and target > 0):
        raise PrivacyError(f"a target epsilon is a positive number, not {target}")
