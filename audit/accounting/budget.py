"""The auditor's own privacy accounting: what a history of queries costs, and to whom.

Facade over `rdp` and `pld`. The checks "accounting" and "views" call only this module. It shares
no code with the engine or with dp-accounting, so agreement of the two is evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from audit.accounting.losses import LossPair
from audit.accounting.pld import Composer, Kind, Steps
from audit.accounting.rdp import (
    epsilon_classic,
    epsilon_improved,
    fine_orders,
    rdp_of_step,
    whole_orders,
)
from audit.accounting.rdp_fixed_size import rdp_of_fixed_size_step

__all__ = [
    "Budget",
    "Steps",
    "ThirdParty",
    "budget",
    "closed_forms",
    "effective_noise_multiplier",
    "epsilon_curve",
    "merge",
    "privacy_profile",
    "rdp_estimate",
    "server_delta",
]


@dataclass(frozen=True)
class Budget:
    """ε of one history at one δ, by every method.

    Attributes:
        epsilon_pld: tight, from the privacy loss distribution.
        epsilon_rdp: Rényi, improved conversion, optimum over a fine grid of orders.
        epsilon_rdp_classic: Rényi, Mironov's conversion, same grid.
        epsilon_rdp_whole: as `epsilon_rdp` over whole orders only, the most that an honest
            accountant with a coarser grid would say.
        epsilon_rdp_classic_whole: as `epsilon_rdp_classic` over whole orders only.
    """

    epsilon_pld: float
    epsilon_rdp: float
    epsilon_rdp_classic: float
    epsilon_rdp_whole: float
    epsilon_rdp_classic_whole: float


def effective_noise_multiplier(noise_multiplier: float, queries_per_step: int) -> float:
    """Noise multiplier of several queries on one batch, seen as one Gaussian query.

    Two noised queries of the same batch are jointly one Gaussian with multiplier σ/√2, subsampled
    once; counting them as two Poisson steps would assume two independent batches.
    """
    return noise_multiplier / float(np.sqrt(queries_per_step))


def budget(history: Sequence[Steps], delta: float) -> Budget:
    """ε(δ) of a composition of subsampled Gaussian steps.

    Args:
        history: queries; equal ones may be given once with their number of steps.
        delta: δ in (0, 1).

    Returns:
        All zero for an empty history.
    """
    events = merge(history)
    if not events:
        return Budget(0.0, 0.0, 0.0, 0.0, 0.0)
    return _cached_budget(events, float(delta))


def merge(history: Sequence[Steps]) -> tuple[Steps, ...]:
    """A history with each kind of step once, in a fixed order; empty entries are dropped."""
    counts: dict[Kind, int] = {}
    for item in history:
        if item.steps > 0:
            counts[item.kind] = counts.get(item.kind, 0) + item.steps
    return tuple(
        Steps(rate, sigma, steps, fixed_size)
        for (rate, sigma, fixed_size), steps in sorted(counts.items())
    )


@lru_cache(maxsize=4096)
def _cached_budget(history: tuple[Steps, ...], delta: float) -> Budget:
    fine, coarse = fine_orders(), whole_orders()
    fine_rdp = _composed_rdp(history, fine)
    coarse_rdp = _composed_rdp(history, coarse)
    return Budget(
        epsilon_pld=_composer(history, delta).distribution().epsilon(delta),
        epsilon_rdp=epsilon_improved(fine_rdp, fine, delta)[0],
        epsilon_rdp_classic=epsilon_classic(fine_rdp, fine, delta)[0],
        epsilon_rdp_whole=epsilon_improved(coarse_rdp, coarse, delta)[0],
        epsilon_rdp_classic_whole=epsilon_classic(coarse_rdp, coarse, delta)[0],
    )


@lru_cache(maxsize=32)
def _composer(history: tuple[Steps, ...], delta: float) -> Composer:
    return Composer(history, delta)


def _composed_rdp(history: tuple[Steps, ...], orders: tuple[float, ...]) -> NDArray[np.float64]:
    total = np.zeros(len(orders))
    for item in history:
        rdp_of = rdp_of_fixed_size_step if item.fixed_size else rdp_of_step
        step = rdp_of(item.sampling_rate, item.noise_multiplier, orders)
        total = total + item.steps * step
    return total


def epsilon_curve(
    history: Sequence[Steps], counts: Sequence[Sequence[int]], delta: float
) -> list[float]:
    """ε (PLD) after each of several stages of one history.

    Args:
        history: the whole history, each kind of step once with its final number.
        counts: for each stage, how many steps of each kind had been made.
        delta: δ in (0, 1).

    Returns:
        One ε a stage. All stages share one grid and one transform, so a curve costs little more
        than its last point.
    """
    kinds = tuple(history)
    known: dict[tuple[int, ...], float] = {}
    for stage in counts:
        key = tuple(stage)
        if key not in known:
            spent = any(key)
            known[key] = (
                _composer(kinds, float(delta)).distribution(key).epsilon(delta) if spent else 0.0
            )
    return [known[tuple(stage)] for stage in counts]


def rdp_estimate(history: Sequence[Steps], delta: float) -> float:
    """ε by Rényi differential privacy over the coarse orders: quick, to rank histories by."""
    events = merge(history)
    if not events:
        return 0.0
    orders = whole_orders()
    return epsilon_improved(_composed_rdp(events, orders), orders, delta)[0]


def privacy_profile(history: Sequence[Steps], delta: float) -> LossPair:
    """The whole curve δ(ε) of a history, accurate around the given δ and above."""
    return _composer(merge(history), float(delta)).distribution()


class ThirdParty:
    """ε towards someone who sees only broadcast models and not who took part.

    A run is a mixture over participation patterns that do not depend on the records, and
    hockey-stick divergences are jointly convex, hence δ(ε) ≤ E_n[δ_{nK}(ε)] with
    n ~ Binomial(rounds, participation), and likewise for rounds of several kinds. The expectation
    is linear in the loss distributions, so the binomial sum is evaluated exactly by one product of
    transforms: no count is left out.

    Args:
        kinds: what one participation costs, and the largest number of rounds that cost it which
            will be asked for; one entry a kind of round.
        participation: l = S/N in (0, 1].
        delta: δ in (0, 1).
    """

    def __init__(
        self, kinds: Sequence[tuple[Steps, int]], participation: float, delta: float
    ) -> None:
        """Prepare the grid for participation in every round, the worst case."""
        self._steps = [item.steps for item, _ in kinds]
        self._participation = participation
        self._delta = delta
        history = tuple(replace(item, steps=item.steps * rounds) for item, rounds in kinds)
        self._composer = _composer(history, delta)

    def epsilon(self, rounds: Sequence[int]) -> float:
        """ε after these numbers of rounds of each kind; kinds left out at the end have none."""
        return self.losses(rounds).epsilon(self._delta) if any(rounds) else 0.0

    def losses(self, rounds: Sequence[int]) -> LossPair:
        """The whole mixture's privacy losses, after as many rounds; at least one in all."""
        counts = [*rounds, *[0] * (len(self._steps) - len(rounds))]
        return self._composer.distribution(self._steps, (counts, self._participation))


def server_delta(delta: float, participation: float) -> float:
    """δ of the closed server bound: (δ/2)(1/l + 1) (Noble et al. 2022; DP-FedAdamW eq. 14)."""
    return 0.5 * delta * (1.0 / participation + 1.0)


def closed_forms(
    sampling_rate: float,
    noise_multiplier: float,
    local_steps: float,
    rounds: int,
    clients: int,
    participation: float,
    delta: float,
) -> Mapping[str, float]:
    """The papers' closed forms with the constant of their O(·) set to 1.

    Noble et al. 2022: third party s·sqrt(l·T·K·log(2/δ)·log(2T/δ)/N)/σ, server sqrt(N/l) times
    that. DP-FedAdamW equation 13 has the server's form already; equation 14 multiplies it by
    sqrt(N/l) once more.

    Returns:
        third_party_noble, server_noble, equation_13, equation_14, delta_server, sampling_rate.
    """
    logs = np.log(2.0 / delta) * np.log(2.0 * rounds / delta)
    server = float(sampling_rate * np.sqrt(rounds * local_steps * logs) / noise_multiplier)
    ratio = float(np.sqrt(clients / participation))
    return {
        "third_party_noble": server / ratio,
        "server_noble": server,
        "equation_13": server,
        "equation_14": server * ratio,
        "delta_server": server_delta(delta, participation),
        "sampling_rate": sampling_rate,
    }
