"""Re-execution: which participations are computed again, and what the auditor is given of them.

The computing needs torch, the model and the data, so the engine does it and returns plain arrays
(`audit.recomputed`). The engine is the auditor's own installation, so that these arrays are
trusted; the run directory is not.

The draw is made after the run is over, from bits that the trainer could not know while it trained:
the auditor's own, or the second nonce of a challenge. It is a function of these bits and of the
ledger alone, so that anybody who has both can repeat it, and know what a liar's chances are.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from audit.recomputed import RecomputedRound, RecomputedStart


@dataclass(frozen=True, kw_only=True)
class Replay:
    """That participations are to be computed again.

    Attributes:
        count: N, how many.
        seed: 32 bytes by which they are drawn.
        faults: what is wrong with the data or the keys before anything is computed.
        drawn_by: whose bits these are, for the finding.
        rounds: computes the rounds of participations (round and client) again, and the last round,
            whose number follows, where the keys open all of it.
        start: makes again what training begins with.
    """

    count: int
    seed: bytes
    faults: tuple[str, ...] = ()
    drawn_by: str
    rounds: Callable[[Sequence[tuple[int, int]], int], Iterator[RecomputedRound]]
    start: Callable[[], RecomputedStart] | None = None


SEED_BYTES = 32

_DRAW = b"dpfedadamw draw 1\x00"


@dataclass(frozen=True, order=True)
class Participation:
    """One client's part in one finished round, in the attempt that counts."""

    round: int
    client: int
    attempt: int


def draw(
    among: Sequence[Participation], seed: bytes, ledger_sha256: str, count: int
) -> tuple[Participation, ...]:
    """Draw without replacement; every choice is equally likely. By round and client.

    Each has a number, HMAC(seed, ledger's digest, round, client, attempt); the smallest are drawn.

    Args:
        among: All participations of the finished run.
        seed: 32 bytes that nobody could know while the run was going on, such as a challenge's
            second nonce.
        ledger_sha256: Digest (hex) of the ledger's file.
        count: How many to draw; all where there are fewer.
    """
    bound = _DRAW + bytes.fromhex(ledger_sha256)

    def number(one: Participation) -> bytes:
        return hmac.digest(seed, bound + numbers(one.round, one.client, one.attempt), "sha256")

    return tuple(sorted(sorted(among, key=number)[:count]))


def with_the_first_round(
    drawn: Sequence[Participation],
    among: Sequence[Participation],
    seed: bytes,
    ledger_sha256: str,
) -> tuple[Participation, ...]:
    """What was drawn, with a participation of the first round where none is among it.

    All that comes later rests on what that round began with. The others stay as likely as they
    were, so that what is said of them holds.

    Args:
        drawn: By `draw`, from the same participations, seed and ledger.
        among: All participations of the finished run.
        seed: 32 bytes, as there.
        ledger_sha256: Digest (hex) of the ledger's file.
    """
    first = min((one.round for one in among), default=0)
    if not drawn or any(one.round == first for one in drawn):
        return tuple(drawn)
    of_it = [one for one in among if one.round == first]
    return tuple(sorted((*drawn, *draw(of_it, seed, ledger_sha256, 1))))


def numbers(*values: int) -> bytes:
    """Whole numbers as they enter digests, eight bytes each, the highest first."""
    return b"".join(value.to_bytes(8, "big", signed=True) for value in values)


def escape_probability(participations: int, falsified: int, drawn: int) -> float:
    """The chance that none of the falsified participations is drawn (hypergeometric).

    Args:
        participations: M.
        falsified: How many of them are false, in 0 … M.
        drawn: N.
    """
    honest, drawn = participations - falsified, min(drawn, participations)
    if drawn > honest:
        return 0.0
    # C(honest, drawn) / C(M, drawn), as a product of N factors, each at most 1.
    return math.prod((honest - place) / (participations - place) for place in range(drawn))


def participations_needed(participations: int, falsified: int, chance: float) -> int:
    """The fewest to draw so that falsified ones escape with at most this chance."""
    for drawn in range(participations + 1):
        if escape_probability(participations, falsified, drawn) <= chance:
            return drawn
    return participations
