"""What the finished model of an audit run says of secret texts: their exposure, and extraction.

Of each secret the evidence has the rank of its code among candidates, whether greedy decoding after
its prompt repeats the code, and the chance that one sample does. Secrets that were there by their
coins are told next to those that were not, which show what a model says of texts it never saw. The
numbers describe; the bounds on ε from the same canaries are what is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.canaries.bounds import CONFIDENCE
from audit.reading.canary_evidence import KnownSecrets
from audit.statistics.intervals import binomial_interval


@dataclass(frozen=True)
class _Group:
    """Secrets that were there, or that were not.

    Attributes:
        secrets: how many.
        exposure: log2 |R| − log2 rank, in bits, the mean over them.
        repeated: how many greedy decoding repeats.
        interval: of the share that it repeats, at `CONFIDENCE`.
        chance: that one sample at temperature 1 repeats one, the mean over them.
    """

    secrets: int
    exposure: float
    repeated: int
    interval: tuple[float, float]
    chance: float


def details(known: KnownSecrets, included: NDArray[np.bool_]) -> dict[str, Any]:
    """How well the model knows secrets that were there and secrets that were not.

    Args:
        known: of each canary, [planted].
        included: the coins, [planted].
    """
    groups = {"there": included, "not_there": ~included}
    return {
        "candidates": known.candidates,
        "unseen_exposure": unseen_exposure(known.candidates),
        **{
            name: vars(_group(known, chosen)) if chosen.any() else None
            for name, chosen in groups.items()
        },
    }


def words(found: dict[str, Any]) -> str:
    """The same in sentences."""
    bits = np.log2(found["candidates"])
    told = []
    for name, where in (("there", "were there"), ("not_there", "were not")):
        one = found[name]
        if one is None:
            continue
        low, high = one["interval"]
        told.append(
            f"For secrets that {where} ({one['secrets']}), the final model gives an exposure of "
            f"{one['exposure']:.2f} of {bits:.2f} bits. Greedy decoding repeats {one['repeated']} "
            f"({low:.0%} to {high:.0%}), and one sample repeats one with a chance of "
            f"{one['chance']:.2g}."
        )
    unseen = f"An unseen secret has an exposure of {found['unseen_exposure']:.2f} on average."
    return " ".join([*told, unseen])


def unseen_exposure(candidates: int) -> float:
    """The mean exposure where every rank is equally likely."""
    ranks = np.arange(1, candidates + 1)
    return float(np.mean(np.log2(candidates / ranks)))


def _group(known: KnownSecrets, chosen: NDArray[np.bool_]) -> _Group:
    count, repeated = int(chosen.sum()), int(known.repeated[chosen].sum())
    return _Group(
        secrets=count,
        exposure=float(np.mean(np.log2(known.candidates / known.rank[chosen]))),
        repeated=repeated,
        interval=binomial_interval(repeated, count, 1.0 - CONFIDENCE),
        chance=float(np.mean(np.exp(-known.nats[chosen]))),
    )
