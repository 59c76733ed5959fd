"""Re-execution: which participations are computed again, and what the auditor is given of them.

The computing needs torch, the model and the data, so the engine does it, and hands over plain
arrays (its classes of the same fields are in `dpfedadamw.reexecution.results`). The engine is the
auditor's own installation, so that these arrays are trusted; the run directory is not.

The draw is made after the run is over, from bits that the trainer could not know while it trained:
the auditor's own, or the second nonce of a challenge. It is a function of these bits and of the
ledger alone, so that anybody who has both can repeat it, and know what a liar's chances are.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class QueryAgain:
    """One gradient query.

    Attributes:
        records: rows of the client's records that are in the batch, [b].
        gradient: what the run's own arithmetic hands out, [d].
        noise: noise on the clipped sum that the key gives, [d], before it is put on a grid.
        spacing: of the grid.
        divisor: what the noisy sum is divided by.
        clean: the clipped sum of a second, plain implementation in float64, [d].
        bound: how far the run's precision can have moved the engine's sum from it, in the L2 norm.
        norms: norm of each record's gradient as the run's own arithmetic takes it, [b].
        raw_norms: the same in float64, [b].
        norm_errors: how far the run's precision can have moved each, [b].
        moved: computes how far each record's gradient moves within rounding of a kink, [b], which
            takes many times as long as the query.
    """

    records: Integers
    gradient: Singles
    noise: Floats
    spacing: float
    divisor: float
    clean: Floats
    bound: float
    norms: Singles
    raw_norms: Floats
    norm_errors: Floats
    moved: Callable[[], Floats]


@dataclass(frozen=True, kw_only=True)
class UpdateAgain:
    """One client's local training, where whole clients are protected.

    Attributes:
        update: what the local rule came to in the run's arithmetic, [d].
        reference: the same in float64 throughout, [d].
        bound: how far the run's precision can have moved it, in the L2 norm.
        moved: computes how far it moves within rounding of kinks, in the L2 norm.
        taken: what the update is before clipping, [k] at public coordinates, else [d].
        clipped: after clipping, of the same length.
        noise: the client's share of the noise; None where the server adds it.
        upload: what the client sent, with zeros where it named no coordinate.
        spacing: of the grid that noised uploads are rounded to.
        bits: significant bits that noised uploads are then written with; None for all.
    """

    update: Singles
    reference: Floats
    bound: float
    moved: Callable[[], float]
    taken: Singles
    clipped: Singles
    noise: Floats | None
    upload: Singles
    spacing: float
    bits: int | None


@dataclass(frozen=True, kw_only=True)
class ReleaseAgain:
    """A client-level round's release at the k coordinates that are released.

    Attributes:
        released: the mean update as the server applies it, [k]; None where not all of its
            clients were computed.
        total: sum of the uploads, [k]; None likewise.
        noise: the server's, [k]; None where the clients have added theirs.
        spacing: of the grid.
        divisor: what the noisy sum is divided by.
        bits: significant bits that it is then written with; None for all.
    """

    released: Singles | None
    total: Floats | None
    noise: Floats | None
    spacing: float
    divisor: float
    bits: int | None


@dataclass(frozen=True, kw_only=True)
class ParticipationAgain:
    """One participation that was drawn.

    Attributes:
        client: its client.
        batches: the records of each step's batch, rows of the client's.
        records: how many records the client has.
        upload: the serialised upload.
        queries: computes the queries one after the other; none at client level.
        update: computes the update; None at record level.
    """

    client: int
    batches: Sequence[Integers]
    records: int
    upload: bytes
    queries: Callable[[], Iterator[QueryAgain]]
    update: Callable[[], UpdateAgain] | None = None


@dataclass(frozen=True, kw_only=True)
class RoundAgain:
    """One round in which a participation was drawn.

    Attributes:
        round: t, from 0.
        attempt: which attempt at it.
        problem: why it could not be computed; None where it was.
        exact: whether machine and versions are those that trained, as far as the run noted them.
        differences: which of them differ, one text each.
        whole: whether all its clients were computed, so that what the server did is known.
        clients: whose part was computed.
        cohort: everybody whom the key draws for the round; None where its key is not there.
        charges: what the ledger is charged for it, line by line; empty where it is not whole.
        digests: hexadecimal sha256 by the name under which the ledger's line has it.
        commitments: to each computed client's participation, [S, 32].
        participations: those that were drawn.
        release: of a client-level round; None elsewhere.
        moved: how far the state after it lies from the one that the trainer kept, over the distance
            that the round went; None where both are the same, or none was kept.
        published: whether the published parameters are those after the round, to the last bit; None
            where another round follows it.
    """

    round: int
    attempt: int
    problem: str | None = None
    exact: bool = False
    differences: tuple[str, ...] = ()
    whole: bool = False
    clients: tuple[int, ...] = ()
    cohort: tuple[int, ...] | None = None
    charges: tuple[Mapping[str, Any], ...] = ()
    digests: Mapping[str, str]
    commitments: NDArray[np.uint8]
    participations: tuple[ParticipationAgain, ...] = ()
    release: ReleaseAgain | None = None
    moved: float | None = None
    published: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StartAgain:
    """What training begins with, made again from spec and published files.

    Attributes:
        broadcast_sha256: digest (hex) of the first broadcast.
        parameters: its weights, [d].
        tensors_sha256: digest (hex) of the list of the model's tensors, which has the digests of
            those that are not trained.
        file_sha256: digest (hex) of published weights that it is made of; None without any.
        differences: how machine and versions differ from the run, one text each.
    """

    broadcast_sha256: str
    parameters: Singles
    tensors_sha256: str
    file_sha256: str | None
    differences: tuple[str, ...]


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
    rounds: Callable[[Sequence[tuple[int, int]], int], Iterator[RoundAgain]]
    start: Callable[[], StartAgain] | None = None


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
