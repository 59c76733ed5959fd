"""What an engine that computed rounds again hands to the auditor, as plain arrays.

The engine has classes of the same fields (`dpfedadamw.reexecution.results`); the command line, the
only one who knows both, hands the one over as the other. The engine is the auditor's own
installation, so that these arrays are trusted; the run directory is not.
"""

from __future__ import annotations

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
        differences: what of them is not, one text each.
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
        differences: what of machine and versions is not as in the run, one text each.
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
