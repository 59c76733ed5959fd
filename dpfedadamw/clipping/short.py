"""Short per-record gradients of all layers together: biases, scales of norms, small weights.

A transformer has dozens of them, and to measure or add up one alone takes longer to ask for than to
compute. Side by side they are one matrix with a row a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpfedadamw.clipping.forms import select
from dpfedadamw.privacy.clipped_sum import exact_squared_norms

# Entries of one such matrix: it is squared in float64 while it lies in the processor's cache.
_JOINED_ENTRIES = 2**19


@dataclass
class ShortGradients:
    """Gathers the short gradients of one backward pass.

    Attributes:
        parts: Parameters' full names and their per-record gradients, [b, n] each.
    """

    parts: list[tuple[str, Tensor]] = field(default_factory=list)
    _joined: list[tuple[list[str], list[int], Tensor]] = field(default_factory=list)

    def add(self, name: str, gradients: Tensor) -> None:
        """Take the gradients [b, n] of a parameter."""
        self.parts.append((name, gradients))

    def squared_norms(self) -> Tensor | None:
        """Squared norms of the records' gradients over all of them, float64 [b]; None for none."""
        self._join()
        result: Tensor | None = None
        for _, _, matrix in self._joined:
            part = exact_squared_norms(matrix)
            result = part if result is None else result.add_(part)
        return result

    def weighted_sum(self, factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]) -> None:
        """Write Σ_j c_j g_j, and let go of the gradients.

        Args:
            factors: c_j of the records in ``rows``, [n].
            rows: The records to add up, [n]; None for all.
            out: Where to write, by parameter's full name, each a flat view into the total.
        """
        self._join()
        while self._joined:
            names, lengths, matrix = self._joined.pop()
            chosen = select(matrix, rows)
            if len(names) == 1:
                torch.mm(factors[None], chosen, out=out[names[0]][None])
                continue
            sums = torch.mm(factors[None], chosen)[0]
            for name, part in zip(names, torch.split(sums, lengths), strict=True):
                out[name].copy_(part)

    def _join(self) -> None:
        """Lay what was gathered side by side."""
        for group in self._groups():
            matrices = [one for _, one in group]
            joined = matrices[0] if len(group) == 1 else torch.cat(matrices, 1)
            lengths = [one.shape[1] for one in matrices]
            self._joined.append(([name for name, _ in group], lengths, joined))
        self.parts.clear()

    def _groups(self) -> Iterator[list[tuple[str, Tensor]]]:
        group: list[tuple[str, Tensor]] = []
        entries = 0
        for name, one in self.parts:
            if group and entries + one.numel() > _JOINED_ENTRIES:
                yield group
                group, entries = [], 0
            group.append((name, one))
            entries += one.numel()
        if group:
            yield group
