"""The private evidence of single participations and of servers, and which of it must be there.

How much is kept follows from public sizes. Which participations are kept whole follows from a keyed
digest of what they uploaded. Where not every one is, a round's vectors are cut into pieces of equal
coordinates, the ledger notes Merkle roots over all of them before any is drawn, and which pieces
must be there follows from a key that was there before training and from the roots. All of it is
worked out here once more, so that a trainer cannot leave out what it likes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audit.reading.ledger import Pieces
from audit.untrusted import UntrustedError
from audit.untrusted.archives import (
    Arrays,
    Floats,
    Integers,
    Stored,
    bytes_of,
    floats,
    read_stored,
    read_tensors,
)
from audit.untrusted.fields import FieldError
from audit.untrusted.merkle import DIGEST_BYTES, leaf_digest, path_length, root_above, root_of

CAPACITY_BYTES = 1 << 26
MOST_FILES = 500
FEWEST_WHOLE = 16
_OTHER_VECTORS = 8
_FLOAT_BYTES = 4
_MARGIN = 0.75


@dataclass(frozen=True)
class Extent:
    """How much of a run is kept.

    Attributes:
        share: chance of a participation to be kept; the first and the last always are.
        coordinates: coordinates kept of whole vectors; None for all.
    """

    share: float
    coordinates: int | None


@dataclass(frozen=True)
class Exchange:
    """One participation: Q queries, d' recorded coordinates, B blocks, m sampled coordinates.

    Attributes:
        broadcast: the serialised broadcast.
        upload: the serialised upload.
        memory_before: what the client had kept, serialised.
        memory_after: what it keeps, serialised.
        points: [Q, d'] where gradients were asked for.
        gradients: [Q, d'] what was handed out.
        square_sums: [Q, B] block sums of squares of the whole gradients; None where all
            coordinates are recorded.
        clean_sample: [Q, m] clipped sums before noise at the coordinates of the sampled noise.
    """

    broadcast: bytes
    upload: bytes
    memory_before: bytes
    memory_after: bytes
    points: Floats
    gradients: Floats
    square_sums: Floats | None
    clean_sample: Floats


@dataclass(frozen=True)
class Release:
    """One round at client level: broadcasts before and after, and the noised mean in between."""

    broadcast: bytes
    combined: bytes
    released: Floats


def extent(parameters: int, queries: int, participations: int) -> Extent:
    """How much of a run must be kept: everything, a share, or a share and a sample of coordinates.

    Args:
        parameters: d.
        queries: gradients of one participation; 0 for a round's release at client level.
        participations: of the whole run.
    """
    row = _FLOAT_BYTES * (2 * queries + _OTHER_VECTORS)
    whole = CAPACITY_BYTES // (row * parameters)
    fewest = min(participations, FEWEST_WHOLE)
    if whole < fewest:
        count = max(1, CAPACITY_BYTES // (row * fewest))
        return Extent(min(1.0, _MARGIN * FEWEST_WHOLE / participations), count)
    fitting = min(whole, MOST_FILES)
    return Extent(1.0 if fitting >= participations else _MARGIN * fitting / participations, None)


def is_kept(salt: bytes, round_index: int, client: int, digest: bytes, share: float) -> bool:
    """Whether the keyed digest of an upload falls into the share that is kept."""
    message = b"kept for replay %d %d " % (round_index, client) + digest
    drawn = hmac.digest(salt, message, "sha256")
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64


def kept_coordinates(salt: bytes, parameters: int, count: int, sample: Integers) -> Integers:
    """One coordinate of each of ``count`` equal stretches, drawn with the salt; and the sampled."""
    stream = hashlib.shake_256(b"kept coordinates " + salt).digest(8 * count)
    numbers = [int.from_bytes(stream[8 * k : 8 * k + 8], "big") for k in range(count)]
    starts = [k * parameters // count for k in range(count + 1)]
    chosen = [
        start + number % (stop - start)
        for start, stop, number in zip(starts[:-1], starts[1:], numbers, strict=True)
    ]
    return np.union1d(np.asarray(chosen, dtype=np.int64), sample)


def read_exchange(arrays: Arrays, recorded: int, blocks: int, sample: int) -> Exchange:
    """One participation's archive.

    Args:
        arrays: the archive.
        recorded: d'.
        blocks: B.
        sample: m.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    points = floats(arrays, "points", (None, recorded), finite=False)
    queries = len(points)
    sums = None
    if "square_sums" in arrays:
        sums = floats(arrays, "square_sums", (queries, blocks), finite=False)
    return Exchange(
        broadcast=bytes_of(arrays, "broadcast"),
        upload=bytes_of(arrays, "upload"),
        memory_before=bytes_of(arrays, "memory_before"),
        memory_after=bytes_of(arrays, "memory_after"),
        points=points,
        gradients=floats(arrays, "gradients", (queries, recorded), finite=False),
        square_sums=sums,
        clean_sample=floats(arrays, "clean_sample", (queries, sample), finite=False),
    )


def read_release(arrays: Arrays, recorded: int) -> Release:
    """One client-level round's archive.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    return Release(
        broadcast=bytes_of(arrays, "broadcast"),
        combined=bytes_of(arrays, "combined"),
        released=floats(arrays, "released", (recorded,), finite=False),
    )


SERVER_CAPACITY_BYTES = 3 << 24
SHORTEST_PIECE = 64
MOST_PIECES = 1 << 14
FEWEST_PIECES = 8


@dataclass(frozen=True)
class Kept:
    """How much of the rounds of a run must be kept.

    Attributes:
        whole: chance of a round to be kept whole.
        part: chance of any other to be kept in part.
        pieces: pieces of such a part.
        last: pieces of the last round.
    """

    whole: float
    part: float
    pieces: int
    last: int


@dataclass(frozen=True)
class Sent:
    """One message at the coordinates that are kept: all its tensors by their stored names."""

    tensors: Mapping[str, Floats]


@dataclass(frozen=True)
class ServerRound:
    """One round as it was kept.

    Attributes:
        coordinates: those that are kept, rising; None for all.
        broadcast: what was sent to the clients.
        uploads: what came back, in the order of the round's clients.
        combined: the next broadcast; None in the last round.
        roots: of broadcast, uploads and next broadcast, as far as there are any.
        vectors: long vectors of one broadcast, and of one upload.
        heads: bytes of a broadcast and of the first upload in addition to these.
    """

    coordinates: Integers | None
    broadcast: Sent
    uploads: tuple[Sent, ...]
    combined: Sent | None
    roots: tuple[bytes, bytes, bytes | None]
    vectors: tuple[int, int]
    heads: tuple[int, int]


def pieces_of(parameters: int) -> tuple[int, int]:
    """How many pieces d coordinates are cut into, and how long each but the last is."""
    width = max(SHORTEST_PIECE, -(-parameters // MOST_PIECES))
    return -(-parameters // width), width


def kept_of(parameters: int, noted: Pieces, rounds: int) -> Kept:
    """What must be kept: half the capacity for whole rounds, the rest for parts of all others."""
    count, _ = pieces_of(parameters)
    row = _FLOAT_BYTES * parameters * noted.vectors
    if rounds * (row + noted.heads) <= SERVER_CAPACITY_BYTES:
        return Kept(1.0, 1.0, count, count)
    half = SERVER_CAPACITY_BYTES // 2
    fitting = half // (row + noted.heads)
    partly = min(count, max(FEWEST_PIECES, (half - noted.heads) * count // row))
    last = count if fitting else partly
    others = max(1, rounds - max(1, fitting))
    whole = _MARGIN * max(0, fitting - 1) / max(1, rounds - 1)
    pieces = (half // others - noted.heads) * count // row
    if pieces >= FEWEST_PIECES:
        return Kept(whole, 1.0, min(count, pieces), last)
    fewest = min(count, FEWEST_PIECES)
    due = noted.heads + row * fewest / count
    part = min(1.0, _MARGIN * half / (others * due))
    return Kept(whole, part, fewest, last)


def drawn(
    key: bytes, noted: Pieces, round_index: int, kept: Kept, count: int, last: bool
) -> Integers | None:
    """Which pieces of a round must be kept; none where it need not be kept at all."""
    message = b"server of round %d " % round_index + noted.broadcast + noted.uploads
    seed = hmac.digest(key, message, "sha256")
    coins = [int.from_bytes(seed[start : start + 8], "big") / 2.0**64 for start in (0, 8)]
    if last:
        number = kept.last
    elif coins[0] < kept.whole:
        number = count
    else:
        number = kept.pieces if coins[1] < kept.part else 0
    if not number:
        return None
    raw = hashlib.shake_256(b"pieces " + seed).digest(8 * count)
    order = np.argsort(np.frombuffer(raw, dtype=">u8"), kind="stable")
    return np.sort(order[:number]).astype(np.int64)


def read_server(arrays: Arrays, parameters: int, places: Integers, last: bool) -> ServerRound:
    """One round's archive, at the pieces that must be there.

    Args:
        arrays: the archive.
        parameters: d.
        places: the pieces that are due, rising.
        last: whether no round follows, so that there is no next broadcast.

    Raises:
        FieldError: an array is missing, or does not hold what is due.
    """
    count, width = pieces_of(parameters)
    edges = [(int(place) * width, min(int(place) * width + width, parameters)) for place in places]
    whole = len(places) == count
    names = ("broadcast", "uploads") if last else ("broadcast", "uploads", "combined")
    read = {name: _Messages(arrays, name, edges, places, count) for name in names}
    if len(read["broadcast"].sent) != 1 or not read["uploads"].sent:
        raise FieldError("does not hold one broadcast and the uploads of a round")
    after = read.get("combined")
    return ServerRound(
        coordinates=None if whole else np.concatenate([np.arange(*edge) for edge in edges]),
        broadcast=read["broadcast"].sent[0],
        uploads=tuple(read["uploads"].sent),
        combined=after.sent[0] if after is not None else None,
        roots=(
            read["broadcast"].root,
            read["uploads"].root,
            after.root if after is not None else None,
        ),
        vectors=(read["broadcast"].vectors, read["uploads"].vectors),
        heads=(len(read["broadcast"].head), read["uploads"].first),
    )


class _Messages:
    """Messages out of their heads and pieces, and the root that these lead to."""

    def __init__(
        self,
        arrays: Arrays,
        name: str,
        edges: Sequence[tuple[int, int]],
        places: Integers,
        count: int,
    ) -> None:
        self.head = bytes_of(arrays, f"{name}_head")
        try:
            heads = list(_heads(self.head))
            long = [_long(read_stored(head)) for head in heads]
            short = [read_tensors(head, whole=_whole(head)) for head in heads]
        except UntrustedError as error:
            raise FieldError(f"{name}_head {error}") from error
        if not heads or any(len(names) != len(long[0]) for names in long):
            raise FieldError(f"{name}_head does not hold messages of equal make")
        self.vectors, self.first = len(long[0]), len(heads[0])
        rows = len(heads) * self.vectors
        content = memoryview(bytes_of(arrays, f"{name}_pieces"))
        size = sum(stop - start for start, stop in edges)
        if len(content) != _FLOAT_BYTES * rows * size:
            raise FieldError(f"{name}_pieces do not hold the pieces that are due")
        values, leaves = np.empty((rows, size)), [leaf_digest(self.head)]
        begin = column = 0
        for start, stop in edges:
            end = begin + _FLOAT_BYTES * rows * (stop - start)
            piece = content[begin:end]
            leaves.append(leaf_digest(piece))
            numbers = np.frombuffer(piece, dtype="<f4").reshape(rows, stop - start)
            values[:, column : column + stop - start] = numbers
            begin, column = end, column + stop - start
        self.root = _root(arrays, name, leaves, [0, *(int(place) + 1 for place in places)], count)
        self.sent = [
            Sent({**other, **dict(zip(names, own, strict=True))})
            for other, names, own in zip(
                short, long, values.reshape(len(heads), self.vectors, size), strict=True
            )
        ]


def _heads(joined: bytes) -> list[bytes]:
    found, start = [], 0
    while start < len(joined):
        stop = start + 8 + int.from_bytes(joined[start : start + 8], "big")
        if stop > len(joined):
            raise FieldError("is cut off")
        found.append(joined[start + 8 : stop])
        start = stop
    return found


def _long(stored: Mapping[str, Stored]) -> list[str]:
    """Names of the vectors that were cut, in the order of their pieces."""
    return sorted(name for name, one in stored.items() if (one.dtype, one.shape) == ("F32", (0,)))


def _whole(head: bytes) -> str | None:
    """The one tensor of whole numbers, public coordinates."""
    return next((name for name, one in read_stored(head).items() if one.dtype[0] == "I"), None)


def _root(
    arrays: Arrays, name: str, leaves: Sequence[bytes], numbers: Sequence[int], count: int
) -> bytes:
    """The root that all leaves lead to; empty where they lead to several."""
    paths = bytes_of(arrays, f"{name}_paths")
    if len(leaves) == count + 1:
        return root_of(leaves)
    lengths = [path_length(number, count + 1) for number in numbers]
    if len(paths) != DIGEST_BYTES * sum(lengths):
        raise FieldError(f"{name}_paths do not hold a path for each piece")
    roots, start = set(), 0
    for leaf, number, length in zip(leaves, numbers, lengths, strict=True):
        stop = start + DIGEST_BYTES * length
        path = [paths[at : at + DIGEST_BYTES] for at in range(start, stop, DIGEST_BYTES)]
        roots.add(root_above(leaf, number, count + 1, path))
        start = stop
    return roots.pop() if len(roots) == 1 else b""
