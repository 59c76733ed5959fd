"""What releases cost: Gaussians on a sum that one unit moves by 2C, composed over all jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpfedadamw.extensions.gate.errors import GateError

if TYPE_CHECKING:
    from dpfedadamw.privacy.composition import Composition

# Beyond so many releases no budget of a gate is planned.
MOST_RELEASES = 100_000


def epsilon_of(noise_multipliers: Iterable[float], delta: float) -> float:
    """ε of releases with these σ at δ, by the accountant that leads every claim; 0 of none.

    Args:
        noise_multipliers: σ of each release, its noise over 2C.
        delta: δ.
    """
    from dpfedadamw.accounting.registry import leading

    parts = compositions(noise_multipliers)
    return float(leading()[0].epsilon(parts, delta)) if parts else 0.0


def compositions(noise_multipliers: Iterable[float]) -> tuple[Composition, ...]:
    """The compositions that accountants take: σ is over the sensitivity, and nothing is sampled."""
    from dpfedadamw.privacy.composition import Composition

    counted = Counter(noise_multipliers)
    return tuple(Composition(sigma, 1.0, times, 1, "full") for sigma, times in counted.items())


def releases_left(
    spent: Iterable[float], noise_multiplier: float, epsilon: float, delta: float
) -> int:
    """How many more releases the budget allows.

    Args:
        spent: σ of each release so far.
        noise_multiplier: σ of those to come.
        epsilon: ε of the budget.
        delta: δ of the budget.
    """
    so_far = list(spent)

    def fits(more: int) -> bool:
        return epsilon_of(so_far + [noise_multiplier] * more, delta) <= epsilon

    low, high = 0, 1
    while high <= MOST_RELEASES and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def noise_for(releases: int, epsilon: float, delta: float) -> float:
    """The smallest σ, to four digits, at which so many releases fit into a budget.

    Raises:
        GateError: If no σ from 0.01 to a million does.
    """
    low, high = 0.01, 1e6
    if epsilon_of([high] * releases, delta) > epsilon:
        raise GateError(
            f"{releases} releases do not fit into ε = {epsilon:g} at δ = {delta:g} with any noise "
            "multiplier up to 1,000,000; plan fewer releases or a larger budget"
        )
    while high / low > 1.00001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if epsilon_of([middle] * releases, delta) <= epsilon else (
            middle, high,
        )  # fmt: skip
    rounded = float(f"{high:.4g}")
    return rounded if rounded >= high else float(f"{high * 1.001:.4g}")
