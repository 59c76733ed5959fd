"""Per-record gradients of a weight that is an embedding table and an output layer at once.

Language models use one matrix for both. A record's gradient is the sum of both uses, and the norm
of a sum is no sum of norms: ‖R + P‖² = ‖R‖² + ‖P‖² + 2⟨R, P⟩, with R the rows that the record looks
up and P = Σ_s g_s ⊗ a_s the product of the output layer. ⟨R, P⟩ needs those rows of P alone: no
gradient of the table's size is formed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfedadamw.clipping.embeddings import TableRows
from dpfedadamw.clipping.forms import GRAM_ROUNDING, Factored, GradientForm, Kept
from dpfedadamw.clipping.products import LinearProducts
from dpfedadamw.vectors.precision import wide


@dataclass(frozen=True)
class Tied:
    """The sum of a lookup's gradients and of a linear layer's, of one weight [rows, width].

    Attributes:
        rows: Those of the lookup.
        product: Those of the linear layer.
        method: "tied".
    """

    rows: TableRows
    product: Factored
    method: str = "tied"

    def squared_norms(self) -> Tensor:
        """Squared norm of every record's gradient, float64 [b]."""
        of_rows, of_product = self.rows.squared_norms(), self.product.squared_norms()
        total = of_rows + of_product + 2.0 * self._products_of_both()
        # Where the two cancel, rounding of either could hide what is left. As in `forms`, what it
        # may hide is added: a norm is overestimated by a little, never underestimated.
        most = (of_rows.sqrt() + of_product.sqrt()).square()
        rounding = GRAM_ROUNDING * torch.finfo(self.rows.gradients.dtype).eps
        return total.clamp(min=0.0) + rounding * most

    def _products_of_both(self) -> Tensor:
        """⟨R, P⟩ of every record, float64 [b]."""
        result = torch.zeros(
            self.rows.batch, dtype=torch.float64, device=self.rows.gradients.device
        )
        for record in range(self.rows.batch):
            own = self.rows.records == record
            looked_up = self.rows.gradients[own].double()
            inputs = wide(self.product.inputs[record]).double().flatten(0, -2)
            outputs = wide(self.product.outputs[record]).flatten(0, -2)
            chosen = outputs[:, self.rows.table_rows[own]].double()
            result[record] = ((inputs @ looked_up.t()) * chosen).sum()
        return result

    def exact_squared_norms(self, rows: Tensor) -> Tensor:
        """The same of a few records [n], from gradients formed in full."""
        return torch.cat([self._of(row).exact_squared_norms(_FIRST) for row in rows])

    def _of(self, row: Tensor) -> Kept:
        """The gradients of one record in full."""
        chosen = self.rows.records == row
        alone = replace(
            self.rows,
            gradients=self.rows.gradients[chosen],
            records=torch.zeros_like(self.rows.records[chosen]),
            table_rows=self.rows.table_rows[chosen],
            batch=1,
        )
        bias = self.product.bias
        product = replace(
            self.product,
            inputs=self.product.inputs[row][None],
            outputs=self.product.outputs[row][None],
            bias=None if bias is None else bias[row][None],
        )
        return alone.kept().plus(product.kept())

    def weighted_sum(self, factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]) -> None:
        """Write Σ_j c_j g_j: see `GradientForm`."""
        self.product.weighted_sum(factors, rows, out)
        looked_up = torch.empty_like(out["weight"])
        self.rows.weighted_sum(factors, rows, {"weight": looked_up})
        out["weight"].add_(looked_up)

    def kept(self) -> Kept:
        """The same gradients in full."""
        return self.rows.kept().plus(self.product.kept())

    def split_short(self) -> tuple[Mapping[str, Tensor], GradientForm | None]:
        """The output layer's bias, where it has a short one, and the rest."""
        short, rest = self.product.split_short()
        assert isinstance(rest, Factored)
        return short, replace(self, product=rest)


_FIRST = torch.zeros(1, dtype=torch.int64)


def tied(first: GradientForm, second: GradientForm) -> Tied | None:
    """The sum of a lookup's gradients and a linear layer's; None where they are something else."""
    rows, product = (first, second) if isinstance(first, TableRows) else (second, first)
    if not isinstance(rows, TableRows) or not isinstance(product, Factored):
        return None
    # Of a transposed layer the weight has its rows for columns.
    return Tied(rows, product) if type(product.layer) is LinearProducts else None
