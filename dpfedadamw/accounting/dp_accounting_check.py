"""The headline ε of a claim once more, by Google's dp-accounting, which shares no code with `pld`.

What was composed is described by dp-accounting's own events, and its own accountants turn them into
ε. Where it has no event for a mechanism none is invented, and the claim says that there is no
number. The number stands in the ledger's claim, and the auditor compares it with its own accountant
and with the claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dpfedadamw.accounting.registry import claimed
from dpfedadamw.accounting.selection import Trials
from dpfedadamw.privacy.composition import Composition, adjacency_of, merge

if TYPE_CHECKING:
    import dp_accounting

__all__ = ["NO_EVENT", "TOO_FINE", "TOO_LARGE", "Composed", "checked", "difference", "disagrees"]

# How far a claim may lie below dp-accounting's number, which its grid lifts by a tenth of that.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
_GRID_SHARE = 0.1
# The most cells of its grids, a second or two; what needs more is not computed.
_MOST_CELLS = 2.0**22
_WIDEST = 0.1
# Standard deviations beyond which dp-accounting cuts a distribution off.
_CUT = 10.0
# Below this, a grid that is exact to `ABSOLUTE` is fine enough.
_SMALLEST_EPSILON = 0.02
# Of sampled batches it computes with e^ε in double precision, which ends at 709. Near that its
# numbers are wrong.
_LARGEST_EPSILON = 600.0

# Why a claim has no such number; reports and auditor know these words.
NO_EVENT, TOO_FINE, TOO_LARGE = "no event", "too fine", "too large"


@dataclass(frozen=True)
class Composed:
    """What a claim's headline is the ε of.

    Attributes:
        view: The claim's view.
        parts: The compositions, after one another; none where dp-accounting has no event for them.
        trials: The law of the number of trials, where the best of several is published.
    """

    view: str
    parts: tuple[Composition, ...]
    trials: Trials | None = None


def checked(claim: Mapping[str, Any], composed: Composed) -> dict[str, Any]:
    """Return what the ledger's claim says of dp-accounting.

    Args:
        claim: The claim.
        composed: What its headline is the ε of.

    Returns:
        Version, view, the accountant's name, ε, and, where batches have a fixed size, that it is a
        lower bound (see `_with_half_the_noise`); without an ε, the reason for that.
    """
    said = {"version": version("dp-accounting"), "view": composed.view}
    parts = merge(composed.parts) if composed.parts else ()
    kinds, delta = {part.sampling for part in parts}, float(claim["delta"])
    if not parts or (composed.trials is not None and not kinds <= {"poisson", "full"}):
        return {**said, "epsilon": None, "reason": NO_EVENT}
    if composed.trials is not None:
        epsilon = _of_selection(parts, delta, composed.trials)
        return {**said, "accountant": "rdp", "epsilon": epsilon}
    headline = claimed(claim[composed.view])
    if headline > _LARGEST_EPSILON and any(part.sampling_rate < 1.0 for part in parts):
        return {**said, "epsilon": None, "reason": TOO_LARGE}
    width = _width(parts, headline, delta)
    if width is None:
        return {**said, "epsilon": None, "reason": TOO_FINE}
    bound = {"bound": "lower"} if _is_bounded(parts) else {}
    return {**said, "accountant": "pld", "epsilon": _epsilon(parts, delta, width), **bound}


def difference(ours: float, theirs: float) -> float:
    """Return how far two accountants are apart, as a share of the second's number."""
    return abs(ours - theirs) / max(theirs, ABSOLUTE)


def disagrees(claim: Mapping[str, Any]) -> bool:
    """Whether a claim lies further below dp-accounting's number than rounding explains."""
    found = claim.get("dp_accounting", {})
    if found.get("epsilon") is None:
        return False
    return claimed(claim[found["view"]]) < float(found["epsilon"]) * (1.0 - RELATIVE) - ABSOLUTE


def _is_bounded(parts: Sequence[Composition]) -> bool:
    return any(part.sampling == "fixed-size" and part.sampling_rate < 1.0 for part in parts)


def _with_half_the_noise(part: Composition) -> Composition:
    """The Poisson batch that a batch of fixed size costs no less than.

    Let the other records' gradients be -C along one direction, and the replaced record's C before
    and -C after. Then the sum is a Gaussian of deviation σC that is moved by 2C with probability q
    before, and never after: what a Poisson batch of multiplier σ/2 does to a record that is
    removed, and the other way round to one that is added. No accountant can honestly say less.
    """
    half = part.step_noise_multiplier / 2.0
    return Composition(
        half, part.sampling_rate, part.steps, 1, "full" if part.sampling_rate == 1.0 else "poisson"
    )


def _event(parts: Sequence[Composition]) -> dp_accounting.DpEvent:
    import dp_accounting

    events = []
    for part in parts:
        step = dp_accounting.GaussianDpEvent(part.step_noise_multiplier)
        if part.sampling_rate < 1.0:
            step = dp_accounting.PoissonSampledDpEvent(part.sampling_rate, step)
        events.append(dp_accounting.SelfComposedDpEvent(step, part.steps))
    return dp_accounting.ComposedDpEvent(events)


@lru_cache(maxsize=256)
def _epsilon(parts: tuple[Composition, ...], delta: float, width: float) -> float:
    import dp_accounting

    if _is_bounded(parts):
        parts = tuple(_with_half_the_noise(part) for part in parts)
    neighbours = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if adjacency_of(parts[0].sampling) == "replace-one":
        # Given σ: it knows itself that a replaced record moves the sum by 2C.
        neighbours = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.pld.PLDAccountant(neighbours, width)
    return float(accountant.compose(_event(parts)).get_epsilon(delta))


@lru_cache(maxsize=256)
def _of_selection(parts: tuple[Composition, ...], delta: float, trials: Trials) -> float:
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant()
    event = dp_accounting.dp_event.RepeatAndSelectDpEvent(_event(parts), trials.mean, trials.shape)
    return float(accountant.compose(event).get_epsilon(delta))


def _width(parts: Sequence[Composition], epsilon: float, delta: float) -> float | None:
    """Choose the width of dp-accounting's cells; None where there are too many.

    Rounding n steps to cells of width h lifts ε by about order·n·h²/8 (see `pld`). The order and
    the spread of the losses are taken to be those of the one Gaussian with this ε.
    """
    epsilon = max(epsilon, _SMALLEST_EPSILON)
    tail = math.sqrt(2.0 * math.log(1.0 / delta))
    mu = math.sqrt(tail**2 + 2.0 * epsilon) - tail
    # Steps that draw every record are one Gaussian for dp-accounting too.
    steps = sum(part.steps if part.sampling_rate < 1.0 else 1 for part in parts)
    lifted = _GRID_SHARE * (RELATIVE * epsilon + ABSOLUTE)
    width = min(math.sqrt(8.0 * lifted / ((1.0 + tail / mu) * steps)), epsilon / 100.0, _WIDEST)
    spread = epsilon + mu * (mu + _CUT)
    for part in parts:
        shift = 2.0 / part.step_noise_multiplier
        largest = shift * (shift + _CUT)
        amplified = math.log1p(part.sampling_rate * math.expm1(min(largest, 600.0)))
        spread = max(spread, amplified if largest < 600.0 else largest)
    return width if 2.0 * spread / width <= _MOST_CELLS else None
