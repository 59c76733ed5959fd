"""What the auditor works a server's step out from: a round's uploads, and the broadcasts around it.

Where not every participation of a run is kept whole, no round might have all its uploads, and then
nobody could tell what the server made of them. So each round's vectors are cut into pieces of equal
coordinates, and two Merkle trees over all pieces are noted in the ledger, one of the broadcast and
one of all uploads together. After that a key that was there before training draws from the two
roots which rounds are kept whole, and which pieces of the others; the last round is always kept.
What a server adds to a round nobody can fit to pieces that are drawn from the round itself, and
what is kept can be shown to be what was sent.

At client level the noised mean stands for the uploads: single ones leave no evidence.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.storage.merkle import LEAF, MerkleTree
from dpfedadamw.vectors.flat import is_short

# Bytes of all these files of a run, about; the auditor expects exactly what fits.
CAPACITY_BYTES = 3 << 24
# Coordinates of a piece: so many at least, and so many pieces at most.
SHORTEST_PIECE = 64
MOST_PIECES = 1 << 14
# A round of which fewer pieces fit is kept by chance.
FEWEST_PIECES = 8
_FLOAT_BYTES = 4
# How many are drawn scatters: aim below what fits.
_MARGIN = 0.75


@dataclass(frozen=True)
class Kept:
    """How much of the rounds of a run is kept.

    Attributes:
        whole: Chance of a round to be kept whole.
        part: Chance of any other to be kept in part.
        pieces: Pieces of such a part.
        last: Pieces of the last round.
    """

    whole: float
    part: float
    pieces: int
    last: int


def pieces_of(parameters: int) -> tuple[int, int]:
    """How many pieces d coordinates are cut into, and how long each but the last is."""
    width = max(SHORTEST_PIECE, -(-parameters // MOST_PIECES))
    return -(-parameters // width), width


def kept_of(parameters: int, vectors: int, heads: int, rounds: int) -> Kept:
    """What fits into `CAPACITY_BYTES`: half of it whole rounds, the rest parts of all others.

    Args:
        parameters: d.
        vectors: Of a round: those of its uploads, and twice those of a broadcast.
        heads: Bytes of a round in addition to its vectors.
        rounds: T.
    """
    count, _ = pieces_of(parameters)
    row = _FLOAT_BYTES * parameters * vectors
    if rounds * (row + heads) <= CAPACITY_BYTES:
        return Kept(1.0, 1.0, count, count)
    half = CAPACITY_BYTES // 2
    fitting = half // (row + heads)
    last = count if fitting else min(count, max(FEWEST_PIECES, (half - heads) * count // row))
    others = max(1, rounds - max(1, fitting))
    whole = _MARGIN * max(0, fitting - 1) / max(1, rounds - 1)
    pieces = (half // others - heads) * count // row
    if pieces >= FEWEST_PIECES:
        return Kept(whole, 1.0, min(count, pieces), last)
    fewest = min(count, FEWEST_PIECES)
    part = min(1.0, _MARGIN * half / (others * (heads + row * fewest / count)))
    return Kept(whole, part, fewest, last)


def drawn(
    key: bytes, roots: tuple[bytes, bytes], round_index: int, kept: Kept, count: int, last: bool
) -> NDArray[np.int64] | None:
    """Which pieces of a round are kept; none where it is not kept at all.

    Args:
        key: The secret key that was there before training.
        roots: Of the trees over the round's broadcast and uploads.
        round_index: t.
        kept: How much of the run is kept.
        count: Pieces of a vector.
        last: Whether no round follows.
    """
    message = b"server of round %d " % round_index + b"".join(roots)
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


class _Messages:
    """Serialised messages of one round as a head and pieces, and the tree over them.

    Args:
        messages: Of a broadcast, or of all uploads in the order of the round's clients.
        parameters: d: tensors of float32 and this length are cut, all others are in the head.
    """

    def __init__(self, messages: Sequence[bytes], parameters: int) -> None:
        self._parameters = parameters
        self.count, width = pieces_of(parameters)
        opened = [_opened(message, parameters) for message in messages]
        self.heads = [head for head, _ in opened]
        # Seen as bytes, so that a piece is cut without a copy and an array of its own.
        self._vectors = [vector.view(np.uint8) for _, vectors in opened for vector in vectors]
        joined = b"".join(len(head).to_bytes(8, "big") + head for head in self.heads)
        self.head = joined
        self.vectors = len(self._vectors)
        # Many short vectors are cut at once: one call a piece, not one for each vector.
        together = is_short(parameters) and bool(self._vectors)
        self._stacked = np.stack(self._vectors) if together else None
        starts = range(0, _FLOAT_BYTES * parameters, _FLOAT_BYTES * width)
        self._cuts = [slice(start, start + starts.step) for start in starts]
        sha256 = hashlib.sha256
        leaves = [sha256(LEAF + joined).digest()]
        leaves += [sha256(LEAF + self._piece(cut)).digest() for cut in self._cuts]
        self.tree = MerkleTree(b"".join(leaves))

    def _piece(self, cut: slice) -> bytes:
        """The bytes of all vectors at a piece, vector after vector."""
        if self._stacked is not None:
            return self._stacked[:, cut].tobytes()
        return b"".join(one[cut].data for one in self._vectors)

    def evidence(self, name: str, places: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Head and kept pieces, with paths to the root unless all pieces are there."""
        chosen = [self._cuts[place] for place in places]
        whole = len(places) == self.count
        return {
            f"{name}_head": _bytes(self.head),
            f"{name}_pieces": _bytes(b"".join(map(self._piece, chosen))),
            f"{name}_paths": _bytes(b"" if whole else self.tree.paths([0, *(places + 1)])),
        }


class ServerRecorder:
    """Notes each round's roots, and writes a file for each round that is kept, whole or in part.

    Args:
        directory: The run's ``evidence/``, which holds the key that draws.
        parameters: d.
        rounds: T.
        per_round: Uploads of a round, or how many are expected; 1 at client level.
    """

    def __init__(self, directory: Path, parameters: int, *, rounds: int, per_round: int) -> None:
        self._directory = directory
        self._parameters = parameters
        self._rounds = rounds
        self._per_round = per_round
        self._key = read_salt(directory / "salt")

    def combined(
        self,
        round_index: int,
        messages: tuple[bytes, bytes],
        uploads: Sequence[bytes],
        *,
        last: bool,
    ) -> dict[str, object]:
        """Write what is kept of a round; what the ledger is to note of it.

        Args:
            round_index: t.
            messages: The serialised broadcast of this round and of the next.
            uploads: The serialised uploads; none where nobody took part.
            last: Whether no round follows: then the published weights tell what came of it.
        """
        if not uploads:
            return {}
        broadcast = _Messages([messages[0]], self._parameters)
        sent = _Messages(uploads, self._parameters)
        vectors = self._per_round * (sent.vectors // len(uploads)) + 2 * broadcast.vectors
        heads = self._per_round * len(sent.heads[0]) + 2 * len(broadcast.head)
        roots = (broadcast.tree.root, sent.tree.root)
        kept = kept_of(self._parameters, vectors, heads, self._rounds)
        places = drawn(self._key, roots, round_index, kept, broadcast.count, last)
        if places is not None:
            arrays = {**broadcast.evidence("broadcast", places), **sent.evidence("uploads", places)}
            if not last:
                after = _Messages([messages[1]], self._parameters)
                arrays |= after.evidence("combined", places)
            write_arrays(self._directory / server_file(round_index), arrays)
        return {
            "pieces": {
                "broadcast": roots[0].hex(),
                "uploads": roots[1].hex(),
                "vectors": vectors,
                "heads": heads,
            }
        }

    def forget_after(self, completed_rounds: int) -> None:
        """Delete what a run that was cut off left of rounds that will be run again."""
        for path in self._directory.glob("server-*.npz"):
            if int(path.stem.split("-")[1]) >= completed_rounds:
                path.unlink()


def server_file(round_index: int) -> str:
    """Name of the file of one round's server."""
    return f"server-{round_index:05d}.npz"


def _opened(message: bytes, parameters: int) -> tuple[bytes, list[NDArray[np.float32]]]:
    """A safetensors message without the numbers of its long vectors, and these by name, uncopied.

    The head is in the same format: there a vector that was cut has no numbers.
    """
    begin = 8 + int.from_bytes(message[:8], "little")
    entries = json.loads(message[8:begin])
    head, data, vectors = dict[str, Any](), b"", []
    for name in sorted(set(entries) - {"__metadata__"}):
        entry, (start, stop) = entries[name], entries[name]["data_offsets"]
        shape, content = entry["shape"], b""
        if (entry["dtype"], shape) == ("F32", [parameters]):
            vectors.append(np.frombuffer(message, "<f4", parameters, begin + start))
            shape = [0]
        else:
            content = message[begin + start : begin + stop]
        place = [len(data), len(data) + len(content)]
        head[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": place}
        data += content
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data, vectors


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, dtype=np.uint8)
