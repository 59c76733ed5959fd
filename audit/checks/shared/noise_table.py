"""All noise that a run released, in one table, whatever the run protects.

A run on single records releases one noised sum a query, a client and a step; a run on whole clients
one a round, and where the clients add the noise one smaller one an upload. `of_queries` and
`of_rounds` read the evidence of the one and of the other into the same table, so that the check
"noise-scale" has one law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger_lines import (
    MOST_COORDINATES,
    Sparsification,
    kept_by_block,
    last_round_spends,
    last_spends,
    public_choices,
)
from audit.reading.units import LOOP
from audit.untrusted.archives import Floats, Integers
from audit.untrusted.fields import FieldError

if TYPE_CHECKING:
    from audit.reading.client_evidence import UpdateRound


@dataclass(frozen=True)
class Portion:
    """Some of the noise: what it is called, its sum of squares, and how many numbers it has.

    The sum is in units of the variance that was charged, so that it is near the count.
    """

    name: str
    total: float
    degrees: float


@dataclass(frozen=True, kw_only=True)
class NoiseTable:
    """Noised sums of one kind, one row each, in units of the standard deviation charged for them.

    Attributes:
        round: [n] number of the round.
        client: [n] whose query or upload it is; -1 for a sum over clients.
        noise_multiplier: [n] sigma of the row's round, the largest that was charged in it.
        squares: [n, B] sums of squared noise in each block.
        noised: [n, B] coordinates of each block that carry noise: all, or the public ones.
        samples: the noise itself at the sampled coordinates, [S, K, m] for the S clients and K
            steps of each round; empty where none is kept.
        step: [n] the row's place in its participation.
        clean: [n] at most the norm of the sum without noise, in the same units.
        silent: [n] coordinates on which the noise is exactly 0; None where it was not recorded.
        largest: [n] largest magnitude of the noise on any; None likewise.
        gridded: whether the noised sum was rounded to the public grid of uploads.
        narrow: whether it was rounded to float32.
    """

    round: Integers
    client: Integers
    noise_multiplier: Floats
    squares: Floats
    noised: Integers
    samples: tuple[Floats, ...] = ()
    step: Integers
    clean: Floats
    silent: Integers | None = None
    largest: Floats | None = None
    gridded: bool = False
    narrow: bool = False

    def __len__(self) -> int:
        """How many sums were released."""
        return len(self.squares)

    @property
    def coordinates(self) -> Floats:
        """How many coordinates of each row carry noise, [n]."""
        return np.asarray(self.noised.sum(axis=1), dtype=np.float64)

    def all_together(self, name: str) -> Portion:
        """All rows and blocks."""
        return Portion(name, float(self.squares.sum()), float(self.noised.sum()))

    def by_block(self, names: tuple[str, ...], name: str) -> Iterator[Portion]:
        """One portion a block that ever carries noise; `name` has a place for the block's."""
        totals, degrees = self.squares.sum(axis=0), self.noised.sum(axis=0)
        for block, of_block in enumerate(names):
            if degrees[block]:
                shown = name.format(of_block)
                yield Portion(shown, float(totals[block]), float(degrees[block]))

    def by(self, column: NDArray[Any], name: Callable[[Any], str]) -> Iterator[Portion]:
        """One portion for each value of a column [n], in its order."""
        values, place = np.unique(column, return_inverse=True)
        totals = np.bincount(place, weights=self.squares.sum(axis=1), minlength=len(values))
        degrees = np.bincount(place, weights=self.noised.sum(axis=1), minlength=len(values))
        for value, total, count in zip(values, totals, degrees, strict=True):
            yield Portion(name(value), float(total), float(count))

    def sample_rows(self) -> Floats:
        """The sampled noise as one matrix, one row a release, [n, m]."""
        return np.concatenate([_one_a_row(one) for one in self.samples])

    def samples_by_round(self) -> Iterator[tuple[int, Floats]]:
        """The same round by round, with the round's number."""
        for index, one in zip(dict.fromkeys(self.round.tolist()), self.samples, strict=True):
            yield index, _one_a_row(one)


def _one_a_row(samples: Floats) -> Floats:
    """Samples [S, K, m] as one row a release, [S·K, m]; m may be 0."""
    clients, steps, length = samples.shape
    return samples.reshape(clients * steps, length)


def of_queries(bundle: Bundle, reasons: list[str]) -> NoiseTable | None:
    """Every answer to a query on single records; None with a reason where one was not charged."""
    spends = last_spends(bundle.readable_ledger.spends)
    sizes = bundle.layout().sizes
    rounds, clients, scales, squares, samples = [], [], [], [], []
    steps, clean, silent, largest = [], [], [], []
    for index, evidence in bundle.all_rounds():
        keys = [(index, int(client)) for client in evidence.clients]
        unpaid = [client for _, client in keys if (index, client) not in spends]
        if unpaid:
            reasons.append(f"round {index}: client {unpaid[0]} was never charged")
            return None
        charges = [spends[key] for key in keys]
        scale = np.array([charge.noise_multiplier for charge in charges])
        norm = np.array([charge.clipping_norm for charge in charges])
        if np.any(evidence.noise_sum_squares < 0.0):
            reasons.append(f"round {index}: a sum of squares is negative")
        queries = evidence.noise_sum_squares.shape[1]
        rounds.append(np.full(len(charges) * queries, index))
        clients.append(np.repeat(evidence.clients, queries))
        scales.append(np.full(len(charges) * queries, scale.max()))
        variance = ((scale * norm) ** 2)[:, None, None]
        squares.append((evidence.noise_sum_squares / variance).reshape(-1, len(sizes)))
        samples.append(evidence.noise_sample / scale[:, None, None])
        steps.append(np.tile(np.arange(queries), len(charges)))
        norms = np.sqrt(evidence.clean_sum_squares.sum(axis=2)) * np.abs(evidence.divisor)
        clean.append((norms / (scale * norm)[:, None]).ravel())
        if evidence.noise_silent is not None and evidence.noise_largest is not None:
            silent.append(evidence.noise_silent.ravel())
            largest.append((evidence.noise_largest / scale[:, None]).ravel())
    joined = np.concatenate(squares)
    return NoiseTable(
        round=np.concatenate(rounds),
        client=np.concatenate(clients),
        noise_multiplier=np.concatenate(scales),
        squares=joined,
        noised=np.broadcast_to(sizes, joined.shape),
        samples=tuple(samples),
        step=np.concatenate(steps),
        narrow=True,
        clean=np.concatenate(clean),
        # Either every round has them or the run is from before there were any.
        silent=np.concatenate(silent) if len(silent) == len(rounds) else None,
        largest=np.concatenate(largest) if len(largest) == len(rounds) else None,
    )


def of_rounds(bundle: Bundle, reasons: list[str]) -> tuple[NoiseTable, NoiseTable]:
    """Every round's sum of updates, and every upload that carries noise of its own.

    Raises:
        UnverifiedError: a round was not charged, or its evidence leaves something out.
    """
    charges = last_round_spends(bundle.readable_ledger.round_spends)
    blocks = len(bundle.layout().sizes)
    sums: list[_Row] = []
    uploads: list[_Row] = []
    samples: list[Floats] = []
    for index, evidence, noised in _noised_coordinates(bundle):
        charge = charges.get(index)
        if charge is None:
            raise UnverifiedError(f"round {index}: was never charged")
        own = evidence.upload_noise_sum_squares
        if np.any(evidence.noise_sum_squares < 0.0) or (own is not None and (own < 0).any()):
            reasons.append(f"round {index}: a sum of squares is negative")
        sigma = charge.noise_multiplier
        variance = (sigma * charge.clipping_norm) ** 2
        clean = float(evidence.clipped_norms.sum()) / np.sqrt(variance)
        found = evidence.noise_silent, evidence.noise_largest
        largest = None if found[1] is None else found[1] / sigma
        squares = evidence.noise_sum_squares / variance
        sums.append(_Row(index, -1, sigma, squares, noised, clean, found[0], largest))
        samples.append((evidence.noise_sample / sigma)[None, None])
        if charge.noise_added_by == "clients" and len(evidence.clients):
            if own is None:
                raise UnverifiedError(f"round {index}: the noise of its uploads is not recorded")
            # A share of 1/m each, so that m shares make the whole variance.
            shares = own * len(evidence.clients) / variance
            root = np.sqrt(len(evidence.clients))
            for row, (client, share) in enumerate(zip(evidence.clients, shares, strict=True)):
                zeros, most = evidence.upload_noise_silent, evidence.upload_noise_largest
                uploads.append(
                    _Row(
                        index,
                        int(client),
                        sigma,
                        share,
                        noised,
                        float(evidence.clipped_norms[row]) * root / np.sqrt(variance),
                        None if zeros is None else int(zeros[row]),
                        None if most is None else float(most[row]) * root / sigma,
                    )
                )
    gridded = bundle.header.grid is not None
    return _table(sums, blocks, tuple(samples)), _table(uploads, blocks, gridded=gridded)


class _Row(NamedTuple):
    """One row of the table, as `NoiseTable` has its columns."""

    round: int
    client: int
    noise_multiplier: float
    squares: Floats
    noised: Integers
    clean: float
    silent: int | None
    largest: float | None


def _table(
    rows: list[_Row],
    blocks: int,
    samples: tuple[Floats, ...] = (),
    *,
    gridded: bool = False,
) -> NoiseTable:
    seen = all(row.silent is not None for row in rows)
    return NoiseTable(
        round=np.array([row.round for row in rows], dtype=np.int64),
        client=np.array([row.client for row in rows], dtype=np.int64),
        noise_multiplier=np.array([row.noise_multiplier for row in rows], dtype=np.float64),
        squares=np.array([row.squares for row in rows], dtype=np.float64).reshape(-1, blocks),
        noised=np.array([row.noised for row in rows], dtype=np.int64).reshape(-1, blocks),
        samples=samples,
        step=np.zeros(len(rows), dtype=np.int64),
        clean=np.array([row.clean for row in rows], dtype=np.float64),
        silent=np.array([row.silent for row in rows], dtype=np.int64) if seen else None,
        largest=np.array([row.largest for row in rows], dtype=np.float64) if seen else None,
        gridded=gridded,
    )


# Numbers sampled of each noised vector, and at most of all vectors of a run together.
_SAMPLED, _FEWEST_SAMPLED, _SAMPLED_IN_ALL = 256, 8, 400_000


def samples_due(bundle: Bundle) -> int:
    """At how many coordinates the noise of each vector must be recorded: all there are, or 256.

    Fewer are due of very many vectors. How many the engine planned for says the header.
    """
    header, parameters = bundle.header, bundle.layout().parameters
    if header.unit is LOOP:
        return min(parameters, _SAMPLED)
    vectors = header.rounds
    if header.unit.whole_clients:
        if header.sparsification is not None and header.sparsification.public:
            parameters = header.sparsification.kept
    else:
        charged = [spend.queries_per_step for spend in bundle.readable_ledger.spends]
        vectors *= header.clients_per_round * header.local_steps * max(charged, default=1)
    return min(parameters, max(_FEWEST_SAMPLED, min(_SAMPLED, _SAMPLED_IN_ALL // max(1, vectors))))


def coordinate_degrees(bundle: Bundle, queries: int) -> Integers:
    """How many noised vectors each coordinate was in, [d].

    Args:
        bundle: the run.
        queries: how many vectors were released; where public coordinates are chosen again in each
            round, only those that are chosen count.
    """
    sparsification, layout = bundle.header.sparsification, bundle.layout()
    if sparsification is None or not sparsification.public:
        return np.full(layout.parameters, queries, dtype=np.int64)
    degrees = np.zeros(layout.parameters, dtype=np.int64)
    for _, _, chosen in rounds_with_choices(bundle, sparsification):
        degrees[chosen] += 1
    return degrees


def _noised_coordinates(bundle: Bundle) -> Iterator[tuple[int, UpdateRound, Integers]]:
    """Every round with how many coordinates of each block must carry noise."""
    sparsification, layout = bundle.header.sparsification, bundle.layout()
    if sparsification is None or not sparsification.public:
        for index, evidence in bundle.all_update_rounds():
            yield index, evidence, layout.sizes
        return
    if layout.kind != "tensor":
        raise UnverifiedError("the blocks of the layout are not runs of coordinates")
    for index, evidence, chosen in rounds_with_choices(bundle, sparsification):
        yield index, evidence, kept_by_block(chosen, layout.sizes)


def rounds_with_choices(
    bundle: Bundle, sparsification: Sparsification
) -> Iterator[tuple[int, UpdateRound, Integers]]:
    """Every round's number and evidence, and its public coordinates found again, [k].

    Raises:
        UnverifiedError: a round's evidence cannot be read, or does not say what it released.
    """
    if sparsification.size > MOST_COORDINATES:
        raise UnverifiedError("there are too many coordinates to find the kept ones again")
    current: list[tuple[int, UpdateRound]] = []

    def released() -> Iterator[Floats | None]:
        for index, evidence in bundle.all_update_rounds():
            current[:] = [(index, evidence)]
            yield evidence.released

    try:
        for chosen in public_choices(sparsification, released()):
            yield (*current[0], chosen)
    except FieldError as error:
        raise UnverifiedError(f"round {current[0][0]}: {error}") from error
