"""What was recomputed of a run, as plain arrays: the engine makes them, the auditor judges them.

The computing needs torch, the model and the data, so the engine does it. This module imports
nothing of either side; both import it.
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
class RecomputedQuery:
    """One gradient query.

    Attributes:
        records: Rows of the client's records that are in the batch, int64 [b].
        gradient: What the trainer's engine handed out, by its own arithmetic, float32 [d].
        noise: Noise on the clipped sum that the key gives, float64 [d], before it is put on a grid.
        spacing: Of the grid that noisy sums are rounded to.
        divisor: What the noisy sum is divided by.
        clean: The clipped sum of the second implementation, float64 [d].
        bound: How far float32 can have moved the engine's clipped sum from it, in the L2 norm.
        norms: Norm of each record's gradient as the engine takes it, float32 [b].
        raw_norms: The same in float64, [b].
        norm_errors: How far float32 can have moved each, [b].
        moved: Computes how far each record's gradient moves within rounding of a kink, [b], which
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
class RecomputedUpdate:
    """One client's local training, where whole clients are protected.

    Attributes:
        update: What the local rule came to in the engine's arithmetic, float32 [d].
        reference: The same in float64 throughout, [d].
        bound: How far float32 can have moved it, in the L2 norm.
        moved: Computes how far it moves within rounding of kinks, in the L2 norm.
        taken: What is kept of it before clipping, float32 [k]; [d] with zeros where clients choose.
        clipped: After clipping, float32 [k].
        noise: The client's share of the noise, float64 [k]; None where the server adds it.
        upload: What the client sent, float32 [k].
        spacing: Of the grid that noised uploads are rounded to.
        bits: Significant bits that noised uploads are then written with; None for all.
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
class RecomputedRelease:
    """A client-level round's release.

    Attributes:
        released: The mean update as the server applies it, at the coordinates that are released,
            float32 [k]; None where not all of its clients were computed.
        total: Sum of the uploads, float64 [k]; None likewise.
        noise: The server's, float64 [k]; None where the clients have added theirs.
        spacing: Of the grid.
        divisor: What the noisy sum is divided by.
        bits: Significant bits that it is then written with; None for all.
    """

    released: Singles | None
    total: Floats | None
    noise: Floats | None
    spacing: float
    divisor: float
    bits: int | None


@dataclass(frozen=True, kw_only=True)
class RecomputedParticipation:
    """One participation that was drawn.

    Attributes:
        client: Its client.
        batches: The records of each step's batch, rows of the client's.
        records: How many records the client has.
        upload: The serialised upload.
        queries: Computes the queries one after the other; none at client level.
        update: Computes the update; None at record level.
    """

    client: int
    batches: Sequence[Integers]
    records: int
    upload: bytes
    queries: Callable[[], Iterator[RecomputedQuery]]
    update: Callable[[], RecomputedUpdate] | None = None


@dataclass(frozen=True, kw_only=True)
class RecomputedRound:
    """One round that was recomputed.

    Attributes:
        round: t, from 0.
        attempt: Which attempt at it.
        problem: Why it could not be computed; None where it was.
        exact: Whether the machine and the versions are those that trained, as far as noted.
        differences: Which of them differ, one text each.
        whole: Whether all its clients were computed, so that what the server did is known.
        clients: Whose part was computed.
        cohort: Everybody whom the key draws for the round; None where its key is not there.
        charges: What the ledger is charged for it, line by line; empty where it is not whole.
        digests: Hexadecimal sha256 by the name under which the ledger's line has it.
        commitments: To each client's participation, uint8 [S, 32].
        participations: Those that were drawn.
        release: Of a client-level round; None elsewhere.
        moved: How far the state after it lies from the one that the trainer kept, over the distance
            that the round went; None where none was kept or both are the same.
        published: Whether the published parameters are those after the round, to the last bit; None
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
    participations: tuple[RecomputedParticipation, ...] = ()
    release: RecomputedRelease | None = None
    moved: float | None = None
    published: bool | None = None


@dataclass(frozen=True, kw_only=True)
class RecomputedStart:
    """What training begins with, made again from spec and published files.

    Attributes:
        broadcast_sha256: Digest (hex) of the first broadcast.
        parameters: Its weights, float32 [d].
        tensors_sha256: Digest (hex) of the list of the model's tensors, which has the digests of
            those that are not trained.
        file_sha256: Digest (hex) of published weights that it is made of; None without any.
        differences: How machine and versions differ from the run, one text each.
    """

    broadcast_sha256: str
    parameters: Singles
    tensors_sha256: str
    file_sha256: str | None
    differences: tuple[str, ...]
