"""What a run that protects records, or people, writes down for the auditor.

For each query of each client: the realised batch size, norms of records' gradients, and how much
noise lies between the clipped sums before and after it; for each client: how often each record was
drawn, and the second moment with which its rule ended; for each round one file (`RecordEvidence`).
A client's own are collected in the order of its queries by `ClientEvidence`, which is all that its
oracle and its rule know of; those of short models are looked at many at once, by `Gathering`.
Private, like all evidence (`round_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.evidence.commitments import Commitment, commitment_rows
from dpfedadamw.evidence.coordinates import ShortSums, look_by_block
from dpfedadamw.evidence.exchanges import Exchange
from dpfedadamw.evidence.records import digest_rows, rows_digest, seen_in
from dpfedadamw.evidence.round_files import EvidenceSetup, RoundFiles, round_file
from dpfedadamw.privacy.oracle import Query
from dpfedadamw.profiling import part
from dpfedadamw.storage.foreign import ForeignFileError, read_arrays
from dpfedadamw.vectors.flat import Blocks, is_short


class RecordEvidence(RoundFiles):
    """Writes one file a round, and carries the shadow of the second moment between rounds.

    The shadow is the second moment that the same clean gradients would have left without noise.
    The recursion v ← β₂v + (1 - β₂)g² is linear in g², so the block means of the shadow follow
    from the block sums of squares alone.

    Args:
        setup: What the evidence depends on.
        aggregated: Whether the rule's second moment goes on from round to round.
    """

    def __init__(self, setup: EvidenceSetup, *, aggregated: bool) -> None:
        super().__init__(setup)
        blocks = setup.blocks
        self._aggregated = aggregated
        self._shadow = np.zeros(len(blocks.names))
        # Of one participation first, then added to the round's: so the sums are the same wherever
        # a participation is computed.
        self._squares = torch.zeros_like(self._coordinates.current)
        self._sample = torch.from_numpy(self._chosen).to(blocks.sizes.device)
        self._gathering: Gathering | None = None
        if is_short(blocks.parameters) and blocks.sizes.is_cpu:
            sums = ShortSums(blocks, self._chosen, self._squares)
            self._gathering = Gathering(sums, setup.clipping_norm)

    def client(self) -> ClientEvidence:
        """A collector for one client's round."""
        return ClientEvidence(
            self._setup.blocks,
            self._setup.clipping_norm,
            self._sample,
            self.uploads.exchange(),
            Commitment(self._salt, self._setup.commitments),
            self._squares,
            self._gathering,
        )

    def take_squares(self) -> NDArray[np.float32]:
        """Squared noise at each coordinate in the participation that is over, float32 [d].

        For a client in a process of its own, whose squares another process adds up.
        """
        squares: NDArray[np.float32] = self._squares.cpu().numpy().copy()
        self._squares.zero_()
        return squares

    def add_squares(self, squares: NDArray[np.float32] | None = None) -> None:
        """Add a participation's squared noise to the running round's.

        Args:
            squares: What `take_squares` gave in the client's process; None for the participation
                that is over in this process.
        """
        current = self._coordinates.current
        if squares is None:
            current.add_(self._squares)
            self._squares.zero_()
        else:
            current.add_(torch.from_numpy(squares).to(current.device))

    def write_round(
        self,
        *,
        index: int,
        attempt: int,
        clients: Sequence[int],
        collected: Sequence[ClientEvidence],
        noise_multiplier: float,
    ) -> None:
        """Write the evidence of one round.

        Args:
            index: t.
            attempt: How often it was begun.
            clients: Who took part.
            collected: What was noted of each.
            noise_multiplier: The round's σ.
        """
        arrays: dict[str, NDArray[Any]] = {
            "clients": np.asarray(clients, dtype=np.int64),
            "attempt": np.asarray(attempt, dtype=np.int64),
            **_arrays_of_records(collected),
            **self._arrays_of_noise(collected),
            "upload_sha256": commitment_rows([one.upload_sha256 for one in collected]),
            "commitment": commitment_rows([one.commitment.digest() for one in collected]),
            **digest_rows([one.rows_digest(self._salt) for one in collected]),
            **seen_in(clients, [one.seen for one in collected]),
        }
        moments = [client.moment for client in collected if client.moment is not None]
        if self._setup.beta2 is not None and len(moments) == len(collected):
            shadows = self._shadows_after(arrays["clean_sum_squares"], self._setup.beta2)
            arrays |= _arrays_of_moments(moments, shadows)
            if self._aggregated and moments:
                self._shadow = shadows.mean(0)
        self._write(index, arrays, (noise_multiplier * self._setup.clipping_norm) ** 2)

    def restore(self, completed_rounds: int) -> None:
        """Continue after a resume: the shadow from the last completed round that had clients."""
        super().restore(completed_rounds)
        if not self._aggregated or self._setup.beta2 is None:
            return
        for index in reversed(range(completed_rounds)):
            path = self._setup.directory / round_file(index)
            clean = read_arrays(path).get("v_clean")
            if clean is None or clean.shape[1:] != self._shadow.shape or clean.dtype.kind != "f":
                raise ForeignFileError(f"{path}: has no second moments; restore the file")
            if len(clean):
                self._shadow = clean.mean(0)
                return

    def _arrays_of_noise(self, collected: Sequence[ClientEvidence]) -> dict[str, NDArray[Any]]:
        """What lies between clipped sums before and after noise, by client and query [S, Q, …]."""
        size, blocks = _queries(collected), len(self._setup.blocks.names)
        sampled = (*size, len(self._chosen))
        noise = [one.noise_sum_squares for one in collected]
        clean = [one.clean_sum_squares for one in collected]
        return {
            "divisor": _array([one.divisors for one in collected], size),
            "noise_sum_squares": _array(noise, (*size, blocks)),
            "noise_sample": _array([one.noise_sample for one in collected], sampled, np.float32),
            "noise_silent": _array([one.silent for one in collected], size, np.int64),
            "noise_largest": _array([one.largest for one in collected], size, np.float32),
            "clean_sum_squares": _array(clean, (*size, blocks)),
        }

    def _shadows_after(self, squares: NDArray[np.float64], beta2: float) -> NDArray[np.float64]:
        """The shadow after the queries of each client, [S, B], of block sums [S, Q, B]."""
        means = squares / self._setup.blocks.sizes.cpu().numpy()
        shadows = np.tile(self._shadow, (len(squares), 1))
        for query in range(squares.shape[1]):
            shadows = beta2 * shadows + (1.0 - beta2) * means[:, query]
        return shadows


@dataclass(frozen=True, kw_only=True)
class MomentRecord:
    """Block means of a rule's second moment after its last local step.

    Attributes:
        noisy: Of the moment that noised gradients left, [B].
        corrected: Of the same with the noise's share taken off, [B].
        subtracted: What was taken off.
        steps: Steps that the moment has gone through.
        floored: Coordinates that were raised to the floor, in each block.
    """

    noisy: NDArray[np.float64]
    corrected: NDArray[np.float64]
    subtracted: float
    steps: int
    floored: NDArray[np.int64]


@dataclass
class ClientEvidence:
    """Collects the queries of one client in one round.

    Its oracle calls `batch`, `of_people` and `query`, its rule `second_moment`, and its worker
    `finish` once no query follows.

    Attributes:
        blocks: The measuring partition.
        clipping_norm: C, the unit in which sampled noise is kept.
        sample: Coordinates whose noise is kept, int64 [m].
        exchange: What passes between the rule and its oracle.
        commitment: Binds the trainer to all of it, whether it is kept or not.
        squares: Where squared noise is added up coordinate by coordinate, [d]; None for nowhere.
        gathering: Gathers the clipped sums of a short model; None where each is looked at at once.
        batch_sizes: Records, or people, of each query's batch.
        norm_counts: How many norms each query has.
        raw_norms: Norms before clipping, of one query after another.
        clipped_norms: The same after clipping.
        nonfinite: Gradients of each query that were not finite.
        divisors: What each noisy sum is divided by.
        noise_sum_squares: Block sums of squared noise, [B] a query.
        noise_sample: Noise at the sampled coordinates over C, [m] a query.
        silent: Coordinates of each query without noise.
        largest: The largest noise of each query, over C.
        clean_sum_squares: Block sums of squares of the clean mean gradient, [B] a query.
        moment: The rule's second moment; None for rules without one.
        inclusions: In how many batches each of the client's records, or people, was.
        upload_sha256: Of what was sent, 32 bytes; empty before.
        rows: Rows of the data set in each batch; None where these are not known.
        seen: What a witness saw of its batches; empty without one.
        rows_used: In how many batches each of the client's records was, where people are drawn.
    """

    blocks: Blocks
    clipping_norm: float
    sample: Tensor
    exchange: Exchange
    commitment: Commitment
    squares: Tensor | None = None
    gathering: Gathering | None = None
    batch_sizes: list[int] = field(default_factory=list)
    norm_counts: list[int] = field(default_factory=list)
    raw_norms: list[NDArray[np.float32]] = field(default_factory=list)
    clipped_norms: list[NDArray[np.float32]] = field(default_factory=list)
    nonfinite: list[int] = field(default_factory=list)
    divisors: list[float] = field(default_factory=list)
    noise_sum_squares: list[NDArray[np.float64]] = field(default_factory=list)
    noise_sample: list[NDArray[np.float32]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    clean_sum_squares: list[NDArray[np.float64]] = field(default_factory=list)
    moment: MomentRecord | None = None
    inclusions: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    upload_sha256: bytes = b""
    rows: list[NDArray[np.int64] | None] = field(default_factory=list)
    seen: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    rows_used: NDArray[np.int64] | None = None
    _records: int = 0
    _batches: list[NDArray[np.int64]] = field(default_factory=list)
    _norms: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @part("evidence")
    def batch(
        self,
        indices: NDArray[np.int64],
        records: int,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Take note of which of the client's records a step's batch holds.

        Args:
            indices: Their places among the client's, [b].
            records: How many it has.
            rows: Their rows in the data set, [b]; None where these are not known.
        """
        self.rows.append(rows)
        self._records = records
        self._batches.append(indices)
        self.commitment.batch(indices)

    def of_people(self, rows: NDArray[np.int64], records: int) -> None:
        """Take note of which of the client's records stand for the people of a step's batch.

        Args:
            rows: Their places among the client's, [k].
            records: How many it has.
        """
        if self.rows_used is None:
            self.rows_used = np.zeros(records, np.int64)
        np.add.at(self.rows_used, rows, 1)
        self.commitment.batch(rows)

    def norms(self) -> list[NDArray[np.float32]]:
        """Norms before clipping, [b] for each query."""
        return np.split(joined(self.raw_norms), np.cumsum(self.norm_counts)[:-1])

    def rows_digest(self, salt: bytes) -> bytes | None:
        """A keyed digest of all rows that were used; None where some are not known."""
        known = [one for one in self.rows if one is not None]
        if len(known) < len(self.rows):
            return None
        return rows_digest(salt, np.concatenate([np.zeros(0, np.int64), *known]))

    @part("evidence")
    def query(self, query: Query) -> None:
        """Take note of one query."""
        self.batch_sizes.append(query.batch_size)
        self.nonfinite.append(query.nonfinite)
        self.divisors.append(query.divisor)
        self._norms.append((query.raw_norms, query.clipped_norms))
        if self.gathering is not None:
            self.gathering.add(self, query)
            return
        # The noise is what really lies between the two sums, whatever was drawn.
        look = look_by_block(
            self.blocks, query.noisy_sum, query.clean_sum, self.sample, self.squares
        )
        self.exchange.clean.append(look.clean_sample.astype(np.float32))
        self.noise_sample.append((look.noise_sample / self.clipping_norm).astype(np.float32))
        self.silent.append(look.seen.silent)
        self.largest.append(look.seen.largest / self.clipping_norm)
        self.noise_sum_squares.append(look.noise_squares)
        self.clean_sum_squares.append(look.clean_squares / query.divisor**2)

    @part("evidence")
    def finish(self) -> None:
        """Put together what was noted of single batches and queries; none follows."""
        if self.gathering is not None:
            self.gathering.look()
        if self._batches:
            self.inclusions = np.zeros(self._records, np.int64)
            # Counts a record twice that is in a batch twice.
            np.add.at(self.inclusions, np.concatenate(self._batches), 1)
        if self._norms:
            raw, clipped = zip(*self._norms, strict=True)
            self.norm_counts.extend(len(one) for one in raw)
            # One that float32 cannot hold is infinite there, as it was for the sum.
            with np.errstate(over="ignore"):
                self.raw_norms.append(_single(torch.cat(raw)))
            self.clipped_norms.append(_single(torch.cat(clipped)))

    def second_moment(self, look: Callable[[], Any]) -> None:
        """Take note of the rule's second moment (an ``algorithms.base.SecondMoment``)."""
        moment = look()
        vectors = [moment.moment, moment.corrected, moment.floored]
        if self.gathering is not None:
            sums = self.blocks.sums(np.stack([one.numpy() for one in vectors]).astype(np.float64))
        else:
            sums = np.stack([self.blocks.sum(one).cpu().numpy() for one in vectors])
        sizes = self.blocks.sizes.cpu().numpy()
        self.moment = MomentRecord(
            noisy=sums[0] / sizes,
            corrected=sums[1] / sizes,
            subtracted=moment.subtracted,
            steps=moment.steps,
            floored=sums[2].astype(np.int64),
        )


class Gathering:
    """Looks at the clipped sums of many queries at once.

    Args:
        sums: Where they are gathered.
        clipping_norm: C.
    """

    def __init__(self, sums: ShortSums, clipping_norm: float) -> None:
        self._sums = sums
        self._clipping_norm = clipping_norm
        self._waiting: list[tuple[ClientEvidence, float]] = []

    def add(self, evidence: ClientEvidence, query: Query) -> None:
        """Take note of a query, whose noise is looked at later."""
        clean = self._sums.add(query.clean_sum, query.noisy_sum)
        evidence.exchange.clean.append(clean.astype(np.float32))
        self._waiting.append((evidence, query.divisor))
        if self._sums.full:
            self.look()

    def look(self) -> None:
        """Look at all that wait, and give each client its own."""
        if not self._waiting:
            return
        seen = self._sums.look()
        clients, divisors = zip(*self._waiting, strict=True)
        self._waiting.clear()
        sample = (seen.noise_sample / self._clipping_norm).astype(np.float32)
        largest = (seen.largest / self._clipping_norm).tolist()
        clean = seen.clean_squares / np.asarray(divisors)[:, None] ** 2
        for row, client in enumerate(clients):
            client.noise_sample.append(sample[row])
            client.silent.append(seen.silent[row])
            client.largest.append(largest[row])
            client.noise_sum_squares.append(seen.noise_squares[row])
            client.clean_sum_squares.append(clean[row])


class Unobserved:
    """Takes note of nothing: for runs without privacy, which leave no private evidence."""

    def second_moment(self, look: Callable[[], object]) -> None:
        """Ignore the second moment."""


def _queries(collected: Sequence[ClientEvidence]) -> tuple[int, int]:
    """How many clients there are, and queries of each; a round without clients has neither."""
    return len(collected), len(collected[0].batch_sizes) if collected else 0


def _arrays_of_records(collected: Sequence[ClientEvidence]) -> dict[str, NDArray[Any]]:
    """How many records each batch has, which ones, and the norms of their gradients."""
    size = _queries(collected)
    counts = [count for client in collected for count in client.norm_counts]
    used = [one.rows_used for one in collected if one.rows_used is not None]
    return {
        "batch_size": _array([one.batch_sizes for one in collected], size, np.int64),
        "record_offsets": np.cumsum([0, *counts], dtype=np.int64),
        "raw_norms": joined([one for client in collected for one in client.raw_norms]),
        "clipped_norms": joined([one for client in collected for one in client.clipped_norms]),
        "inclusions": _counts([one.inclusions for one in collected]),
        # Where people are drawn, of the records that stand for them too.
        **({"rows_used": _counts(used)} if used else {}),
        "nonfinite": _array([one.nonfinite for one in collected], size, np.int64),
    }


def _arrays_of_moments(
    moments: Sequence[MomentRecord], shadows: NDArray[np.float64]
) -> dict[str, NDArray[Any]]:
    """The second moments with which the clients' rules ended, and their shadows, [S, B]."""
    shape = shadows.shape
    return {
        "v_noisy": _array([moment.noisy for moment in moments], shape),
        "v_clean": shadows,
        "v_corrected": _array([moment.corrected for moment in moments], shape),
        "subtracted": np.asarray([moment.subtracted for moment in moments], np.float64),
        "tau": np.asarray([moment.steps for moment in moments], np.int64),
        "floored": _array([moment.floored for moment in moments], shape, np.int64),
    }


def _array(
    rows: Sequence[Any], shape: tuple[int, ...], kind: type[np.generic] = np.float64
) -> NDArray[Any]:
    """Rows as one array of this shape, also where there are none."""
    return np.asarray(rows, dtype=kind).reshape(shape)


def _counts(parts: Sequence[NDArray[np.int64]]) -> NDArray[Any]:
    """How many batches each record, or person, of the round's clients was in, one by one."""
    counts = np.concatenate([np.zeros(0, np.int64), *parts])
    return counts.astype(np.uint16 if counts.max(initial=0) < 2**16 else np.uint32)


def _single(values: Tensor) -> NDArray[np.float32]:
    # Two calls where the values are in this machine's memory, which they are for each query.
    array: NDArray[np.float32] = values.detach().numpy(force=True).astype(np.float32)
    return array


def joined(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Norms of several queries, one after another; also of none."""
    return np.concatenate([np.zeros(0, np.float32), *parts])
