"""What the auditor replays: all that went into and came out of single participations.

A participation's file holds the broadcast, every gradient that the oracle handed out and where it
was asked for, the upload, and the client's own memory before and after. From these, the spec and
the ledger the auditor recomputes the upload; anything it cannot recompute came from elsewhere.

Like all evidence it is private, though all of it but :attr:`Exchange.clean` is noised. Which
participations are kept is decided by a keyed digest of the upload, after it was made, so that a
rule cannot tell beforehand whether it will be looked at.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.vectors.flat import Blocks
from dpfedadamw.vectors.packing import views

# Bytes of all these files of a run, about; the auditor expects exactly what fits.
CAPACITY_BYTES = 1 << 26
MOST_FILES = 500
# Where fewer whole participations fit than this, a secret sample of coordinates is kept instead.
FEWEST_WHOLE = 16
# Vectors of a participation besides two a query: broadcast, upload, state and memory.
_OTHER_VECTORS = 8
_FLOAT_BYTES = 4
# How many are drawn scatters: aim below what fits.
_MARGIN = 0.75


@dataclass(frozen=True)
class Extent:
    """How much of a run is kept for replay.

    Attributes:
        share: Chance of a participation to be kept; the first and the last always are.
        coordinates: How many coordinates are kept of whole vectors; None keeps all.
    """

    share: float
    coordinates: int | None


def extent(parameters: int, queries: int, participations: int) -> Extent:
    """What fits into :data:`CAPACITY_BYTES`: everything, some participations, or coordinates.

    Args:
        parameters: d.
        queries: Gradients of one participation; 0 at client level, where a round's release counts
            as one.
        participations: Of the whole run.
    """
    row = _FLOAT_BYTES * (2 * queries + _OTHER_VECTORS)
    whole = CAPACITY_BYTES // (row * parameters)
    fewest = min(participations, FEWEST_WHOLE)
    if whole >= fewest:
        fitting = min(whole, MOST_FILES)
        share = 1.0 if fitting >= participations else _MARGIN * fitting / participations
        return Extent(share, None)
    share = min(1.0, _MARGIN * FEWEST_WHOLE / participations)
    return Extent(share, max(1, CAPACITY_BYTES // (row * fewest)))


def is_kept(salt: bytes, round_index: int, client: int, digest: bytes, share: float) -> bool:
    """Whether the keyed digest of an upload falls into the share that is kept."""
    message = b"kept for replay %d %d " % (round_index, client) + digest
    drawn = hmac.digest(salt, message, "sha256")
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64


def kept_coordinates(salt: bytes, parameters: int, count: int) -> NDArray[np.int64]:
    """One coordinate of each of ``count`` equal stretches of the vector, drawn with the salt."""
    raw = hashlib.shake_256(b"kept coordinates " + salt).digest(8 * count)
    drawn = np.frombuffer(raw, dtype=">u8").astype(np.uint64)
    edges = np.arange(count + 1, dtype=np.int64) * parameters // count
    widths = np.diff(edges).astype(np.uint64)
    return edges[:-1] + (drawn % widths).astype(np.int64)


@dataclass
class Exchange:
    """What passed between one rule and its oracle.

    Attributes:
        blocks: The measuring partition.
        coordinates: Those that are kept, int64; None keeps all.
        points: Where gradients were asked for.
        gradients: What was handed out.
        square_sums: Block sums of squares of each gradient, float64 [B]; where all coordinates are
            kept they follow from these.
        clean: Clipped sums before noise at the coordinates at which noise is sampled, noted by the
            code that notes the noise.
    """

    blocks: Blocks
    coordinates: Tensor | None
    points: list[NDArray[np.float32]] = field(default_factory=list)
    gradients: list[NDArray[np.float32]] = field(default_factory=list)
    square_sums: list[NDArray[np.float64]] = field(default_factory=list)
    clean: list[NDArray[np.float32]] = field(default_factory=list)

    def asked(self, point: Tensor) -> Tensor | NDArray[np.float32]:
        """Take note of the parameters [d] at which a gradient is asked for.

        Returns:
            The whole copy that is kept, or the point itself where only a part of it is.
        """
        self.points.append(self._keep(point))
        return self._whole(point, self.points[-1])

    def answered(self, gradient: Tensor) -> Tensor | NDArray[np.float32]:
        """Take note of a gradient [d] that is handed out.

        Returns:
            As `asked`.
        """
        self.gradients.append(self._keep(gradient))
        if self.coordinates is not None:
            self.square_sums.append(self.blocks.sum_of_squares(gradient).cpu().numpy())
        return self._whole(gradient, self.gradients[-1])

    def forget(self) -> None:
        """Let go of the vectors, once they are written or are not to be."""
        self.points.clear()
        self.gradients.clear()

    def _whole(self, vector: Tensor, kept: NDArray[np.float32]) -> Tensor | NDArray[np.float32]:
        same = self.coordinates is None and vector.dtype == torch.float32
        return kept if same else vector

    def _keep(self, vector: Tensor) -> NDArray[np.float32]:
        kept = vector if self.coordinates is None else vector[self.coordinates]
        # A copy on a CPU too: the rule may go on to write into its vector.
        array: NDArray[np.float32] = kept.numpy(force=True).astype(np.float32)
        return array


class UploadRecorder:
    """Writes a file for each participation, or each round's release, that is kept.

    Attributes:
        complete: Whether all are kept, and all of them whole.

    Args:
        directory: The run's ``evidence/``, which holds the salt.
        blocks: The measuring partition.
        queries: Gradients of one participation; 0 at client level.
        rounds: T.
        per_round: Participations of a round, or how many are expected.
        sample: Coordinates at which noise is sampled; they are kept too.
    """

    def __init__(
        self,
        directory: Path,
        blocks: Blocks,
        *,
        queries: int,
        rounds: int,
        per_round: int,
        sample: NDArray[np.int64],
    ) -> None:
        self._directory = directory
        self._blocks = blocks
        self._last_round = rounds - 1
        self._salt = read_salt(directory / "salt")
        kept = extent(blocks.parameters, queries, rounds * per_round)
        self._share = kept.share
        self.complete = kept == Extent(1.0, None)
        self.coordinates: Tensor | None = None
        if kept.coordinates is not None:
            chosen = kept_coordinates(self._salt, blocks.parameters, kept.coordinates)
            both = np.union1d(chosen, sample)
            self.coordinates = torch.from_numpy(both).to(blocks.sizes.device)

    def exchange(self) -> Exchange:
        """A collector for one participation."""
        return Exchange(self._blocks, self.coordinates)

    def forget_after(self, completed_rounds: int) -> None:
        """Delete what a run that was cut off left of rounds that will be run again."""
        for path in self._directory.glob("upload-*.npz"):
            if int(path.stem.split("-")[1]) >= completed_rounds:
                path.unlink()

    def participation(
        self,
        *,
        round_index: int,
        place: tuple[int, int],
        client: int,
        messages: tuple[bytes, bytes],
        memory: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
        digest: bytes,
        exchange: Exchange,
    ) -> None:
        """Write what went into and came out of one participation, if it is kept.

        Args:
            round_index: t.
            place: The client's place among the round's clients, and how many they are.
            client: Its index.
            messages: The serialised broadcast and the serialised upload.
            memory: What the client kept before and after.
            digest: The upload's sha256.
            exchange: What passed between its rule and its oracle.
        """
        broadcast, upload = messages
        if not self.keeps(round_index, place, client, digest):
            return
        arrays: dict[str, NDArray[Any]] = {
            "broadcast": self._message(broadcast),
            "upload": self._message(upload),
            "memory_before": self._message(save(_contiguous(memory[0]))),
            "memory_after": self._message(save(_contiguous(memory[1]))),
            "points": _stack(exchange.points),
            "gradients": _stack(exchange.gradients),
            "clean_sample": _stack(exchange.clean),
        }
        if self.coordinates is not None:
            arrays["square_sums"] = np.asarray(exchange.square_sums, dtype=np.float64)
        write_arrays(self._directory / upload_file(round_index, client), arrays)

    def release(
        self,
        round_index: int,
        messages: tuple[bytes, bytes],
        released: Tensor,
    ) -> None:
        """Write a client-level round's broadcasts, before and after, and what came in between.

        Args:
            round_index: t.
            messages: The serialised broadcast of this round and of the next.
            released: The noised mean update, [d].
        """
        if not self.keeps(round_index, (0, 1), -1, vector_digest(released)):
            return
        kept = released if self.coordinates is None else released[self.coordinates]
        arrays: dict[str, NDArray[Any]] = {
            "broadcast": self._message(messages[0]),
            "combined": self._message(messages[1]),
            "released": kept.float().cpu().numpy(),
        }
        write_arrays(self._directory / upload_file(round_index, None), arrays)

    def keeps(self, round_index: int, place: tuple[int, int], client: int, digest: bytes) -> bool:
        """Whether a participation is kept; its arguments are those of `participation`."""
        last = (round_index, place[0]) == (self._last_round, place[1] - 1)
        if last or (round_index, place[0]) == (0, 0):
            return True
        return is_kept(self._salt, round_index, client, digest, self._share)

    def _message(self, message: bytes) -> NDArray[np.uint8]:
        if self.coordinates is not None:
            chosen = self.coordinates.cpu()
            message = save(
                {
                    name: value[chosen] if value.shape == (self._blocks.parameters,) else value
                    for name, value in views(message).items()
                }
            )
        return np.frombuffer(message, dtype=np.uint8)


def upload_file(round_index: int, client: int | None) -> str:
    """Name of the file of one participation, or of a round's release at client level."""
    return f"upload-{round_index:05d}" + ("" if client is None else f"-{client:05d}") + ".npz"


def vector_digest(vector: Tensor) -> bytes:
    """Sha256 of a released vector or of parameters [d] as float32, little endian."""
    values = np.ascontiguousarray(vector.detach().float().cpu().numpy(), dtype="<f4")
    return hashlib.sha256(values.data).digest()


def digest_of_all(digests: Sequence[bytes]) -> str:
    """Sha256 (hex) over the sha256 of each upload, in the order of the round's clients."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _stack(rows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def frozen_digest(module: nn.Module) -> str | None:
    """The digest of what a module computes with and nobody trains; None where all is trained.

    Sha256 (hex) of names, types, shapes and numbers of frozen parameters and buffers. The ledger's
    header names it, and so does the line of every round: a backbone that moved between two rounds
    moved by something that nobody charged.

    Published weights and buffers that no file holds are part of it. The numbers are read each time:
    torch counts no changes that are made through ``data``.
    """
    whole, found = hashlib.sha256(), False
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.requires_grad:
            continue
        found = True
        plain = tensor.detach().cpu().contiguous()
        whole.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        whole.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest() if found else None
