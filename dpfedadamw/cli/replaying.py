"""Which participations an auditor wants recomputed, and with which keys."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.reexecution import SEED_BYTES
from dpfedadamw.cli.challenge_files import FinishedRun, read_drawn, read_openings
from dpfedadamw.filing.replaying import Order
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.reexecution.history import (
    Keys,
    PastLedger,
    ReexecutionError,
    escrowed,
    opened,
    published,
)
from dpfedadamw.run.start_options import coin_of
from dpfedadamw.rundir import RunDirectory

NONCE = "the second nonce of the run's challenge, after its ledger was signed"


@dataclass(frozen=True, kw_only=True)
class Asked(Order):
    """What an auditor asked for.

    Attributes:
        challenged: The run as bound by its challenge; None without one.
    """

    challenged: FinishedRun | None = None


def order_of(
    run: RunDirectory,
    count: int | None,
    escrow: Sequence[Path] = (),
    draw: Path | None = None,
    openings: Path | None = None,
) -> Asked:
    """What to recompute of a run.

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
            f"{run.path}: claims no privacy, so no participation has noise to recompute; to repeat "
            "the whole run use: dpfedadamw replay RUN_DIR"
        )
    if openings is not None:
        assert draw is not None
        shown = read_openings(run, draw, openings)
        _, read, _ = read_drawn(run, draw)
        leaves = {(leaf.round, leaf.client): leaf.key for leaf in shown.leaves}
        return Asked(
            keys=opened(leaves, shown.run.coin),
            count=read.participations,
            seed=read.nonce,
            drawn_by=NONCE,
            promised=shown.run.challenge.intent.promised.data,
            challenged=shown.run,
            salts=shown.salts,
        )
    keys = keys_of(header, escrow)
    if draw is None:
        assert count is not None
        seed = secrets.token_bytes(SEED_BYTES)
        return Asked(keys=keys, count=count, seed=seed, salts={})
    found, read, _ = read_drawn(run, draw)
    drawn = found.drawn(read)
    source = ReleaseRandomness.from_escrow(escrow[0], found.coin)
    return Asked(
        keys=keys,
        count=read.participations,
        seed=read.nonce,
        drawn_by=NONCE,
        promised=found.challenge.intent.promised.data,
        challenged=found,
        salts={one.client: source.data_salt(one.client) for one in drawn},
    )


def keys_of(header: Mapping[str, Any], escrow: Sequence[Path]) -> Keys:
    """The keys of a run: its published seed, or its escrow file.

    Args:
        header: The ledger's.
        escrow: Files that hold keys.

    Raises:
        ReexecutionError: If a release's key is missing.
    """
    if header.get("randomness") == "reproducible":
        return published(int(header.get("seed") or 0))
    if not escrow:
        raise ReexecutionError(
            "the noise of a run in release mode can only be recomputed from its key. Give --escrow "
            "FILE, the file that `run --escrow` saved, or what was opened for a draw. Without a "
            "key nothing can be recomputed, and the trainer alone vouches for the run"
        )
    if "streams" not in header:
        raise ReexecutionError(
            "the run was made by a version that derived its streams from the key differently; it "
            "cannot be recomputed"
        )
    return escrowed(escrow, coin_of(header))
