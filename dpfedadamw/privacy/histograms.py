"""One record moves the histogram of a column by 1, and none is seen before it has noise.

The bounds of a column may be learnt before the first round. Each client then counts its records in
cells that are public, adds Gaussian noise to each number, and sends nothing else of them. A record
is in exactly one cell of each of k columns: added or removed, it moves every histogram by 1 in L2,
so that what is sent costs a record k queries of all records, which no sampling amplifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition

if TYPE_CHECKING:
    from dpfedadamw.privacy.noise.noise import Method, Stream

__all__ = ["SENSITIVITY", "ColumnQueries", "counted", "noised"]

# How far one record moves the histogram of one column, in L2.
SENSITIVITY = 1.0


@dataclass(frozen=True)
class ColumnQueries:
    """The histograms that every client sends before the first round.

    Attributes:
        columns: Names of the columns, each once; at least one.
        bins: How many cells each of their histograms has, at least 1.
        noise_multiplier: σ: the standard deviation of the noise on each count, above 0.
    """

    columns: tuple[str, ...]
    bins: tuple[int, ...]
    noise_multiplier: float

    @property
    def event(self) -> Composition:
        """What they cost one record: a plain Gaussian query for each column."""
        return Composition(self.noise_multiplier, 1.0, len(self.columns), 1, "full")

    @property
    def cells(self) -> int:
        """How many counts a client sends."""
        return sum(self.bins)


def counted(values: NDArray[np.float32], bins: Sequence[int]) -> NDArray[np.int64]:
    """Count records in cells of equal width; each record once in each column.

    Args:
        values: A number from -1 to 1 of each column of each record, [n, k]; what lies outside
            counts in the outermost cell.
        bins: Cells of each column, [k].

    Returns:
        The counts of all columns after one another, [sum of bins].

    Raises:
        PrivacyError: If a number is not finite: it would be in no cell.
    """
    if not np.isfinite(values).all():
        raise PrivacyError("a column whose bounds are learnt holds a number that is not finite")
    found = []
    for column, many in enumerate(bins):
        at = np.floor((values[:, column].astype(np.float64) + 1.0) * (many / 2.0))
        cells = np.clip(at, 0, many - 1).astype(np.int64)
        found.append(np.bincount(cells, minlength=many))
    return np.concatenate(found)


def noised(
    counts: NDArray[np.int64], queries: ColumnQueries, stream: Stream, method: Method
) -> NDArray[np.float64]:
    """The counts with noise: what may leave a client.

    Args:
        counts: As `counted` returns them.
        queries: The plan's.
        stream: This client's, for nothing else.
        method: How normal numbers are drawn.
    """
    # What a spec costs is known without torch.
    import torch

    from dpfedadamw.privacy.noise.noise import add_gaussian_noise

    clean = torch.from_numpy(counts.astype(np.float64))
    deviation = queries.noise_multiplier * SENSITIVITY
    return add_gaussian_noise(clean, deviation, stream, method).cpu().numpy().copy()
