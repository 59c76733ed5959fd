"""Participations computed again: the engine's answers in the auditor's own terms."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from audit.reexecution import base
from audit.reexecution.drawing import SEED_BYTES
from dpfedadamw.reexecution import results
from dpfedadamw.reexecution.history import PastLedger
from dpfedadamw.reexecution.keys import EscrowedKeys, Keys, PublishedSeed
from dpfedadamw.reexecution.rounds import Cost, Rerun
from dpfedadamw.rundir import RunDirectory

OWN_BITS = "the auditor's own random bits, after the run"


def keys_of(run: RunDirectory, escrow: Sequence[Path]) -> Keys:
    """The keys that a run's streams come from.

    Args:
        run: Its directory.
        escrow: Files that hold keys; none are needed where the seed is published.

    Raises:
        DpfedadamwError: If the run's key is not at hand.
    """
    header = PastLedger(run.ledger).header
    if header.get("randomness") == "reproducible":
        return PublishedSeed(int(header.get("seed") or 0))
    if not escrow:
        raise results.ReexecutionError(
            "--replay: the noise of a release is computed again from its key; give --escrow FILE, "
            "which `run --escrow FILE` keeps. Without a key nothing can be computed again, and the "
            "run rests on the trainer's word"
        )
    return EscrowedKeys(escrow)


def replay_of(
    rerun: Rerun,
    count: int,
    announce: Callable[[Cost], None],
    progress: Callable[[int, int], None],
    seed: bytes | None = None,
) -> base.Replay:
    """That so many participations are to be computed again.

    Args:
        rerun: The run.
        count: N.
        announce: Told what it costs, once it is known which they are.
        progress: Called with rounds done and rounds in all.
        seed: Bits of a challenge; the auditor's own if None.
    """

    def rounds(drawn: Sequence[tuple[int, int]], last: int) -> Iterator[base.RoundAgain]:
        cost = rerun.cost(drawn, last)
        announce(cost)
        for number, one in enumerate(rerun.rounds(drawn, last), start=1):
            yield _round(one)
            progress(number, cost.rounds)

    return base.Replay(
        count=count,
        seed=secrets.token_bytes(SEED_BYTES) if seed is None else seed,
        drawn_by=OWN_BITS if seed is None else "the challenge's second nonce",
        rounds=rounds,
    )


def _round(one: results.RoundAgain) -> base.RoundAgain:
    release = None if one.release is None else base.ReleaseAgain(**vars(one.release))
    parts = tuple(_participation(part) for part in one.participations)
    return base.RoundAgain(**{**vars(one), "participations": parts, "release": release})


def _participation(part: results.ParticipationAgain) -> base.ParticipationAgain:
    update = part.update

    def queries() -> Iterator[base.QueryAgain]:
        for query in part.queries():
            yield base.QueryAgain(**vars(query))

    told: dict[str, Any] = {"queries": queries}
    if update is not None:
        told["update"] = lambda: base.UpdateAgain(**vars(update()))
    return base.ParticipationAgain(**{**vars(part), **told})
