"""What the auditor is given to recompute a run's participations: where engine and auditor meet."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.recomputed import RecomputedRound
from audit.reexecution import SEED_BYTES, Replay
from dpfedadamw.data.digests import client_digests
from dpfedadamw.privacy.noise.key_tree import data_commitment
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.reexecution.history import Keys, escrowed, held
from dpfedadamw.reexecution.rounds import Cost, Rerun
from dpfedadamw.run.training import Training

OWN_BITS = "the auditor's own random bits, after the run"
# What a run computes again where nobody says how many, unless it is thought to take longer.
BY_DEFAULT, AT_MOST_SECONDS = 20, 60.0
# How much longer a participation takes record by record, in float64 too: 14 times for a ViT of
# 20,000 parameters on one core, less for larger models.
_ALONE = 15.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be computed again, and with which keys.

    Attributes:
        keys: What the auditor holds.
        count: How many participations.
        seed: By what they are drawn.
        drawn_by: Whose bits these are.
        promised: The commitment (sha256 hex) to each client's records, by client, of a run that was
            challenged; empty of any other.
        salts: What hides each drawn client's data in its commitment, by client.
    """

    keys: Keys
    count: int
    seed: bytes
    drawn_by: str = OWN_BITS
    promised: tuple[str, ...] = ()
    salts: Mapping[int, bytes]


def by_default(training: Training, seconds: float) -> int:
    """How many participations a run computes again where nobody says: `BY_DEFAULT`, or none.

    Args:
        training: The run, all of whose rounds this process has trained.
        seconds: How long it took.
    """
    experiment = training.experiment
    federation = experiment.spec.federation
    # Elsewhere than in this process and on its processor, last bits may come out otherwise.
    here = federation.engine == "inline" and experiment.device.type == "cpu"
    if experiment.spec.privacy.unit == "none" or not here:
        return 0
    rounds, participations = federation.rounds, federation.rounds * federation.clients_per_round
    # The rounds in which participations are, the first and the last are run again as a whole.
    again = min(1.0, (BY_DEFAULT + 2) / rounds)
    alone = min(1.0, BY_DEFAULT / participations) * _ALONE
    return BY_DEFAULT if seconds * (again + alone) <= AT_MOST_SECONDS else 0


def after_training(
    training: Training,
    count: int,
    escrow: Path | None = None,
    announce: Callable[[Cost], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Replay:
    """That participations of a run that this process has trained are to be computed again.

    Args:
        training: The run, which has its claim.
        count: How many participations are drawn.
        escrow: Where its noise keys are kept; None where they are in memory alone.
        announce: As of `replay_of`.
        progress: As of `replay_of`.

    Raises:
        DpfedadamwError: If data or model are not those that a spec alone leads to.
    """
    source = training.federation.worker.randomness
    keys = held(source)
    if escrow is not None and isinstance(source, ReleaseRandomness):
        keys = escrowed([escrow], source.coin)
    rerun = Rerun(training.run, keys, training.experiment.device)
    order = Order(keys=keys, count=count, seed=secrets.token_bytes(SEED_BYTES), salts={})
    return replay_of(rerun, order, announce, progress)


def replay_of(
    rerun: Rerun,
    order: Order,
    announce: Callable[[Cost], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Replay:
    """That participations are to be computed again, for the auditor.

    Args:
        rerun: The run.
        order: What to recompute.
        announce: Called with the cost, once the participations are known.
        progress: Called with rounds done and rounds in all.
    """

    def rounds(drawn: Sequence[tuple[int, int]], last: int) -> Iterator[RecomputedRound]:
        cost = rerun.cost(drawn, last)
        announce(cost)
        computed = rerun.rounds(drawn, last)
        # Two rounds of a large model are not held at once: `enumerate` would hold the last.
        for done in range(1, cost.rounds + 1):
            yield next(computed)
            progress(done, cost.rounds)

    return Replay(
        count=order.count,
        seed=order.seed,
        faults=tuple(_data_faults(rerun, order)),
        drawn_by=order.drawn_by,
        rounds=rounds,
        start=rerun.executed_start,
    )


def _data_faults(rerun: Rerun, order: Order) -> Iterator[str]:
    """Whose records are not those that were committed to before the run's nonce was known."""
    experiment, committed = rerun.experiment, rerun.ledger.header.get("contents_sha256")
    if committed is not None and rerun.contents_digest() != committed:
        yield "the records' contents are not those that the ledger's header committed to"
    people = rerun.ledger.header.get("people_sha256")
    if people is not None and rerun.people_digest() != people:
        yield "whom the records are about is not what the ledger's header committed to"
    if not rerun.same_counts():
        yield "the histograms of columns are not those of the records"
    if not order.promised:
        return
    digests = client_digests(experiment.dataset.train, experiment.owner, len(order.promised))
    for client, salt in sorted(order.salts.items()):
        if data_commitment(salt, client, digests[client]) != order.promised[client]:
            yield f"client {client}: its records are not those that the intent committed to"
