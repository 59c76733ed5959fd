"""Calibration: the noise, rounds, steps or batch size that a target ε leaves room for.

Each solver inverts the tight accountant. The value returned was put through that accountant once
more and never spends more than the target; where the quantity is continuous it spends at most 0.5 %
less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpfedadamw.accounting.views import server_worst_case, third_party_view
from dpfedadamw.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, check_delta
from dpfedadamw.privacy.sampling import PoissonSampling, Sampling, composition_of, from_ledger

__all__ = [
    "PlannedRun",
    "largest_count",
    "round_down",
    "round_up",
    "solve_batch_size",
    "solve_local_steps",
    "solve_noise_multiplier",
    "solve_number",
    "solve_rounds",
    "solve_step_limit",
]
_LARGEST_COUNT = 1_000_000
# How much below the target is near enough.
_SLACK = 0.005

_LARGEST_NOISE = 1e4
_SMALLEST_NOISE = 0.05
_SMALLEST_RATE = 1e-6
# Of an expected batch, as a spec allows it.
_SMALLEST_BATCH = 1e-3


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A planned run, as far as its ε goes: the one thing that every solver here varies a part of.

    Attributes:
        sampling: how records are drawn.
        records: R of each client; the smallest is the one for which a participation costs most.
        noise_multiplier: σ.
        rounds: T.
        local_steps: K.
        delta: δ.
        queries_per_step: noised answers on each batch.
        view: "server", whose worst case is a client in every round, or "third-party".
        participation: l = S/N, used by the third party's view.
        decay: how the noise may fall; the multiplier is then the first round's.
        clients_per_person: at how many clients the records of one person may be.
        queries: what every record is in in addition to the rounds.
    """

    sampling: Sampling
    records: tuple[int, ...]
    noise_multiplier: float
    rounds: int
    local_steps: int
    delta: float
    queries_per_step: int = 1
    view: str = "server"
    participation: float = 1.0
    decay: NoiseDecay | None = None
    clients_per_person: int = 1
    queries: tuple[Composition, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what has no ε."""
        check_delta(self.delta)
        if self.view not in ("server", "third-party"):
            raise PrivacyError(f"a view is 'server' or 'third-party', not '{self.view}'")

    def epsilon(self) -> float:
        """Return what the run will spend at most, in its view."""
        per_round = composition_of(
            self.sampling,
            self.sampling.adjacency[0],
            min(self.records),
            self.noise_multiplier,
            self.local_steps,
            queries_per_step=self.queries_per_step,
        )
        adaptation = None
        if self.decay is not None:
            adaptation = Adaptation(self.local_steps, None, True, self.decay)
        bound = SpendingBound(
            self.rounds,
            self.local_steps,
            self.noise_multiplier,
            adaptation,
            self.clients_per_person,
            self.queries,
        )
        if self.view == "server":
            return server_worst_case(bound, per_round, self.delta).value
        view = third_party_view(bound, per_round, self.participation, self.delta)
        return view.epsilon.value


def solve_noise_multiplier(target_epsilon: float, run: PlannedRun) -> float:
    """Return the smallest noise multiplier, to six digits, that keeps to a target ε.

    Args:
        target_epsilon: ε > 0 to keep to.
        run: the run; its own noise multiplier plays no part.

    Returns:
        σ, whose ε lies in [0.995, 1] times the target.

    Raises:
        PrivacyError: if the target is out of reach; the text names the nearest reachable ε.
    """
    _check_target(target_epsilon)

    def spent(noise_multiplier: float) -> float:
        return replace(run, noise_multiplier=noise_multiplier).epsilon()

    limits = (_SMALLEST_NOISE, _LARGEST_NOISE)
    return solve_number(spent, 1.0, 4.0, limits, target_epsilon, round_up, "noise multiplier")


def solve_batch_size(target_epsilon: float, run: PlannedRun) -> float:
    """Return the largest batch size that keeps to a target ε.

    An expected batch size is found to six digits; the size of batches of fixed size and of shuffled
    epochs is a whole number, which the float then holds.

    Args:
        target_epsilon: ε > 0 to keep to.
        run: the run; its own batch size plays no part.

    Returns:
        B, at most the reference size, or else the records of the smallest client; an expected one
        below that has an ε in [0.995, 1] times the target.

    Raises:
        PrivacyError: if the target is out of reach; the text names the nearest reachable ε.
    """
    _check_target(target_epsilon)
    given, smallest = run.sampling, float(min(run.records))
    if isinstance(given, PoissonSampling):
        if given.stated_rate is not None:
            raise PrivacyError(
                "privacy.sampling.rate: the spec states the rate, so no batch size changes "
                "epsilon; leave it out, or give reference_size instead"
            )
        smallest = given.reference_size or smallest

    def spent(batch_size: float) -> float:
        size = min(batch_size, smallest)
        if isinstance(given, PoissonSampling):
            return replace(run, sampling=replace(given, expected_batch_size=size)).epsilon()
        return replace(run, sampling=from_ledger(given.event_kind, size)).epsilon()

    if spent(smallest) <= target_epsilon:
        return smallest
    if not isinstance(given, PoissonSampling):
        return float(largest_count(spent, target_epsilon, "record in a batch"))
    limits = (smallest, max(_SMALLEST_BATCH, _SMALLEST_RATE * smallest))
    return solve_number(spent, smallest, 0.25, limits, target_epsilon, round_down, "batch size")


def solve_rounds(target_epsilon: float, run: PlannedRun) -> int:
    """Return the largest number of rounds that keeps to a target ε.

    Args:
        target_epsilon: ε > 0 to keep to.
        run: the run; its own number of rounds plays no part.

    Raises:
        PrivacyError: if one round already spends more, or a million spend less.
    """
    _check_target(target_epsilon)
    return largest_count(
        lambda count: replace(run, rounds=count).epsilon(), target_epsilon, "round"
    )


def solve_local_steps(target_epsilon: float, run: PlannedRun) -> int:
    """Return the largest number of local steps a round that keeps to a target ε.

    Args:
        target_epsilon: ε > 0 to keep to.
        run: the run; its own number of local steps plays no part.

    Raises:
        PrivacyError: if one local step already spends more, or a million spend less.
    """
    _check_target(target_epsilon)
    return largest_count(
        lambda count: replace(run, local_steps=count).epsilon(), target_epsilon, "local step"
    )


def solve_step_limit(target_epsilon: float, run: PlannedRun, most: int) -> int:
    """Return R_c, how many local steps in all a target ε affords (ALI-DPFL, Algorithm 3).

    The algorithm is a bisection whose printed loop ends at once; this one keeps going until the
    number is exact: it fits the target, and one more step would not.

    Args:
        target_epsilon: ε > 0 to meet, against the server.
        run: the run; its own rounds and local steps are ignored.
        most: steps that rounds and their bounds leave room for, at least 1; no more is asked for.

    Raises:
        PrivacyError: if one step already spends more.
    """
    _check_target(target_epsilon)
    once = replace(run, rounds=1, view="server", decay=None)
    return largest_count(
        lambda steps: replace(once, local_steps=steps).epsilon(),
        target_epsilon,
        "local step",
        most,
    )


def _check_target(target: float) -> None:
    if not (math.isfinite(target) and target > 0):
        raise PrivacyError(f"a target epsilon is a positive number, not {target}")


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

    Raises:
        PrivacyError: if the target is none, or out of reach.
    """
    _check_target(target)
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
