"""Per-record gradients of an embedding table: only the rows that a record looks up.

The third form, in addition to the two of `forms`. A whole table per record would be far too large,
and a row that a record looks up twice must have its two gradients added before its norm is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.clipping.forms import GradientForm, Kept


@dataclass(frozen=True)
class TableRows:
    """Gradients of the rows of an embedding table, for the rows that each record looks up.

    Attributes:
        gradients: One row a pair of record and table row, [m, width].
        records: The record of each, int64 [m].
        table_rows: The table row of each, int64 [m].
        batch: Number of records b.
        rows: Rows of the table.
        method: "rows".
    """

    gradients: Tensor
    records: Tensor
    table_rows: Tensor
    batch: int
    rows: int
    method: str = "rows"

    def squared_norms(self) -> Tensor:
        """Squared norm of every record's gradient, float64 [b]."""
        result = torch.zeros(self.batch, dtype=torch.float64, device=self.gradients.device)
        return result.index_add_(0, self.records, self.gradients.double().square().sum(1))

    def exact_squared_norms(self, rows: Tensor) -> Tensor:
        """The same of a few records [n]."""
        return self.squared_norms()[rows]

    def weighted_sum(self, factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]) -> None:
        """Write Σ_j c_j g_j: see `GradientForm`."""
        gradients, records, table_rows = self.gradients, self.records, self.table_rows
        if rows is not None:
            position = torch.full((self.batch,), -1, device=rows.device)
            position[rows] = torch.arange(len(rows), device=rows.device)
            chosen = position[records] >= 0
            gradients, table_rows = gradients[chosen], table_rows[chosen]
            records = position[records[chosen]]
        table = out["weight"].zero_().view(self.rows, -1)
        table.index_add_(0, table_rows, gradients * factors[records, None])

    def kept(self) -> Kept:
        """The same gradients in full."""
        width = self.gradients.shape[1]
        full = self.gradients.new_zeros(self.batch * self.rows, width)
        full.index_add_(0, self.records * self.rows + self.table_rows, self.gradients)
        return Kept({"weight": full.view(self.batch, -1)})

    def split_short(self) -> tuple[Mapping[str, Tensor], GradientForm | None]:
        """No short gradients, and itself."""
        return {}, self

    def of_groups(self, group: Tensor, groups: int) -> TableRows:
        """The sums over groups of records.

        Args:
            group: The group of each record, int64 [b].
            groups: How many there are.
        """
        keys = group[self.records] * self.rows + self.table_rows
        return _added(keys, self.gradients, groups, self.rows)


def form_of_lookup(
    indices: Tensor, outputs: Tensor, rows: int, padding_index: int | None
) -> TableRows:
    """The gradients of an embedding table.

    Args:
        indices: Rows looked up, int64 [b, …].
        outputs: Output gradients, [b, …, width].
        rows: Rows of the table.
        padding_index: The row that is not trained, if any.
    """
    batch = len(indices)
    flat = indices.flatten(1)
    records = torch.arange(batch, device=indices.device)[:, None].expand_as(flat)
    keys, gradients = (records * rows + flat).flatten(), outputs.reshape(-1, outputs.shape[-1])
    if padding_index is not None:
        trained = flat.flatten() != padding_index
        keys, gradients = keys[trained], gradients[trained]
    return _added(keys, gradients, batch, rows)


def _added(keys: Tensor, gradients: Tensor, batch: int, rows: int) -> TableRows:
    """Gradients [m, width] of a record's table row, whose key is record · rows + table row."""
    unique, position = torch.unique(keys, return_inverse=True)
    summed = gradients.new_zeros(len(unique), gradients.shape[1]).index_add_(0, position, gradients)
    return TableRows(summed, unique // rows, unique % rows, batch, rows)
