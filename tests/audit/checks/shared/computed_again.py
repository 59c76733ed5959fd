"""What an engine hands out of a round that it computed again, beside a correct run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from audit.checks.shared.recomputed import (
    Recomputed,
    judge_round,
)
from audit.reading.bundle import Bundle
from audit.recomputed import RecomputedParticipation, RecomputedRound
from tests.audit.synthetic_run import read_entries

ROUND = 2
Change = Callable[[Any], Any]


def charges_of(bundle: Bundle) -> tuple[dict[str, Any], ...]:
    """The round's charges as the engine makes them: lines of the ledger without their chain."""
    return tuple(
        {name: value for name, value in entry.items() if name not in ("previous", "digest")}
        for entry in read_entries(bundle.root)
        if entry["kind"] == "spend" and entry["round"] == ROUND
    )


def computed(bundle: Bundle, parts: list[RecomputedParticipation], **more: Any) -> RecomputedRound:
    """The whole round as an engine computes it that comes to the same, but for what is given."""
    item = bundle.readable_ledger.rounds[ROUND]
    return RecomputedRound(
        **{
            "round": ROUND,
            "attempt": 1,
            "whole": True,
            "clients": item.clients,
            "cohort": item.clients,
            "charges": charges_of(bundle),
            "digests": dict(item.digests),
            "commitments": np.zeros((len(item.clients), 32), np.uint8),
            "participations": tuple(parts),
            **more,
        }
    )


def judge(bundle: Bundle, again: RecomputedRound) -> Recomputed:
    """What is said of the round as it was computed again."""
    tally = Recomputed()
    judge_round(bundle, bundle.readable_ledger.rounds[ROUND], again, tally)
    return tally
