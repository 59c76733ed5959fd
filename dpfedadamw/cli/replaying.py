"""Participations computed again: with which keys, which of them, and the engine's answers.

The command line alone knows both the engine and the auditor, so it hands the one's arrays over in
the other's terms.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.reexecution import base
from audit.reexecution.drawing import SEED_BYTES
from dpfedadamw.cli.opened import FinishedRun, read_drawn, read_opened
from dpfedadamw.data.digests import client_digests
from dpfedadamw.privacy.noise.key_tree import data_commitment
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.reexecution import results
from dpfedadamw.reexecution.history import PastLedger
from dpfedadamw.reexecution.keys import Keys, escrowed, opened, published
from dpfedadamw.reexecution.results import ReexecutionError
from dpfedadamw.reexecution.rounds import Cost, Rerun
from dpfedadamw.run.challenge import coin_of
from dpfedadamw.rundir import RunDirectory

OWN_BITS = "the auditor's own random bits, after the run"
NONCE = "the second nonce of the run's challenge, after its ledger was signed"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be computed again, and with which keys.

    Attributes:
        keys: What the auditor holds.
        count: How many participations.
        seed: By what they are drawn.
        drawn_by: Whose bits these are.
        challenged: The run as its challenge has it; None without one.
        salts: What hides each drawn client's data in its commitment, by client.
    """

    keys: Keys
    count: int
    seed: bytes
    drawn_by: str = OWN_BITS
    challenged: FinishedRun | None = None
    salts: Mapping[int, bytes]


def order_of(
    run: RunDirectory,
    count: int | None,
    escrow: Sequence[Path] = (),
    draw: Path | None = None,
    openings: Path | None = None,
) -> Order:
    """What is to be computed again of a run.

    Args:
        run: Its directory.
        count: How many participations to draw; None where a draw says which.
        escrow: Files that hold keys; none are needed where the seed is published.
        draw: An auditor's draw (`challenge draw`).
        openings: What the trainer opened for it (`challenge open`).

    Raises:
        DpfedadamwError: If keys, draw and run do not belong together.
        reports.errors.ReportError: If a signature does not hold.
    """
    header = PastLedger(run.ledger).header
    if header.get("unit") == "none":
        raise ReexecutionError(
            f"{run.path}: claims no privacy, so no participation has noise to compute again; the "
            "whole run is run again by: dpfedadamw replay RUN_DIR"
        )
    if openings is not None:
        assert draw is not None
        shown = read_opened(run, draw, openings)
        _, read, _ = read_drawn(run, draw)
        leaves = {(leaf.round, leaf.client): leaf.key for leaf in shown.leaves}
        return Order(
            keys=opened(leaves, shown.run.coin),
            count=read.participations,
            seed=read.nonce,
            drawn_by=NONCE,
            challenged=shown.run,
            salts=shown.salts,
        )
    keys = keys_of(header, escrow)
    if draw is None:
        assert count is not None
        seed = secrets.token_bytes(SEED_BYTES)
        return Order(keys=keys, count=count, seed=seed, salts={})
    found, read, _ = read_drawn(run, draw)
    drawn = found.drawn(read)
    source = ReleaseRandomness.from_escrow(escrow[0], found.coin)
    return Order(
        keys=keys,
        count=read.participations,
        seed=read.nonce,
        drawn_by=NONCE,
        challenged=found,
        salts={one.client: source.data_salt(one.client) for one in drawn},
    )


def keys_of(header: Mapping[str, Any], escrow: Sequence[Path]) -> Keys:
    """The keys of a run: its published seed, or what was put into escrow.

    Args:
        header: The ledger's.
        escrow: Files that hold keys.

    Raises:
        ReexecutionError: If a release's key is not at hand.
    """
    if header.get("randomness") == "reproducible":
        return published(int(header.get("seed") or 0))
    if not escrow:
        raise ReexecutionError(
            "the noise of a release is computed again from its key; give --escrow FILE, "
            "which `run --escrow FILE` keeps, or what was opened for a draw. Without a key nothing "
            "can be computed again, and the run rests on the trainer's word"
        )
    if "streams" not in header:
        raise ReexecutionError(
            "the run is of a version whose streams followed from the key in another way; it cannot "
            "be computed again"
        )
    return escrowed(escrow, coin_of(header))


def replay_of(
    rerun: Rerun,
    order: Order,
    announce: Callable[[Cost], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> base.Replay:
    """That participations are to be computed again, for the auditor.

    Args:
        rerun: The run.
        order: What of it.
        announce: Told what it costs, once it is known which they are.
        progress: Called with rounds done and rounds in all.
    """

    def rounds(drawn: Sequence[tuple[int, int]], last: int) -> Iterator[base.RoundAgain]:
        cost = rerun.cost(drawn, last)
        announce(cost)
        computed = map(_round, rerun.rounds(drawn, last))
        # Two rounds of a large model are not held at once: `enumerate` would hold the last.
        for done in range(1, cost.rounds + 1):
            yield next(computed)
            progress(done, cost.rounds)

    return base.Replay(
        count=order.count,
        seed=order.seed,
        faults=tuple(_data_faults(rerun, order)),
        drawn_by=order.drawn_by,
        rounds=rounds,
        start=lambda: base.StartAgain(**vars(rerun.start_again())),
    )


def _data_faults(rerun: Rerun, order: Order) -> Iterator[str]:
    """Whose records are not those that were committed to before the run's nonce was known."""
    if order.challenged is None:
        return
    promised = order.challenged.challenge.intent.promised
    experiment = rerun.experiment
    digests = client_digests(experiment.dataset.train, experiment.owner, promised.clients)
    for client, salt in sorted(order.salts.items()):
        if data_commitment(salt, client, digests[client]) != promised.data[client]:
            yield f"client {client}: its records are not those that the intent committed to"


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
