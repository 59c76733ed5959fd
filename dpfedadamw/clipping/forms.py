"""Forms in which a layer's per-record gradients are held between norm and weighted sum.

A backward pass leaves one form a layer. Each can tell every record's squared norm and add up the
records with given factors (`GradientForm`); they differ in what they keep. `Kept` has the gradients
themselves, `Factored` only a layer's inputs and output gradients (book-keeping, Bu et al. 2023;
ghost norms, Li et al. 2022); a third, for embedding tables, is in `embeddings`. For a layer whose
weight's gradient is a product (`Bilinear`), `form_of_product` takes the cheapest.

A norm is never too small: what rounding may take off is added, and a norm that a form's precision
cannot tell is not finite, so that it is taken exactly (`GradientForm.exact_squared_norms`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dpfedadamw.privacy.clipped_sum import exact_squared_norms
from dpfedadamw.vectors.precision import wide

# Largest number of per-record gradient entries that one layer may keep: 16 MiB in float32.
KEPT_ENTRIES = 2**22
# Keeping, measuring and adding up one entry of a record's gradient takes as long as this many
# multiplications inside a matrix product (measured on two CPU cores).
_COST_OF_KEEPING = 40
# Longest gradient of a record that counts as short: biases, scales, small weights.
_SHORT_ENTRIES = 4096
# Entries of temporary per-record products or Gram matrices formed at once.
_CHUNK_ENTRIES = 2**22
# A Gram form is trusted in float32 while its traces are below this: nothing overflows, and what
# underflows is too small to matter.
_TRUSTED_TRACE = 2.0**64
# Rounding error of a Gram form in units of eps · (Σ_t ‖a_t‖‖g_t‖)², bounded generously.
GRAM_ROUNDING = 8


class GradientForm(Protocol):
    """The per-record gradients of one layer's parameters, by parameter ("weight", "bias", …)."""

    @property
    def method(self) -> str:
        """How the norms are found: "direct", "gram", …."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared norm of every record's gradient over all these parameters, float64 [b].

        Not finite where the gradient's own precision cannot tell.
        """
        ...

    def exact_squared_norms(self, rows: Tensor) -> Tensor:
        """The same of a few records [n], from gradients formed in full and squared in float64."""
        ...

    def weighted_sum(self, factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]) -> None:
        """Write Σ_j c_j g_j.

        Args:
            factors: c_j of the records in ``rows``, [n].
            rows: The records to add up, [n]; None for all. Others are not touched, since 0 · NaN is
                NaN: a record that is not finite is left out, not multiplied by zero.
            out: Where to write, by parameter, each a flat view into the total.
        """
        ...

    def kept(self) -> Kept:
        """The same gradients in full."""
        ...

    def split_short(self) -> tuple[Mapping[str, Tensor], GradientForm | None]:
        """Its short gradients, [b, n] by parameter, and the form of the others; None for none.

        Short gradients of all layers are measured and added up at once (`short`).
        """
        ...


def form_of_product(
    layer: Bilinear, inputs: Tensor, outputs: Tensor, *, weight: bool, bias: bool
) -> GradientForm:
    """The cheapest form for a layer whose weight's gradient is a product.

    Gradients that are kept need one product, the plain one of every backward pass; a Gram form
    costs extra, and more with T², but nothing of a gradient's size.

    Args:
        layer: How inputs and output gradients are multiplied.
        inputs: A, records first.
        outputs: G, records first.
        weight: Whether the weight is trained.
        bias: Whether there is a trained bias.
    """
    bias_gradients = layer.bias(wide(outputs)) if bias else None
    if not weight:
        assert bias_gradients is not None
        return Kept({"bias": bias_gradients})
    costs = layer.costs(inputs, outputs)
    method = "gram" if costs.gram < costs.product else "direct, not kept"
    factored = Factored(layer, inputs, outputs, bias_gradients, method)
    fits = len(inputs) * costs.entries <= KEPT_ENTRIES
    if fits and costs.gram > min(_COST_OF_KEEPING * costs.entries, costs.product):
        return factored.kept()
    return factored


@dataclass(frozen=True)
class Costs:
    """What one record costs a layer.

    Attributes:
        places: T, the number of places that share the weight.
        entries: Entries of its weight gradient.
        product: Multiplications that form it.
        gram: Multiplications of its Gram form.
    """

    places: int
    entries: int
    product: int
    gram: int


class Bilinear(Protocol):
    """A layer whose weight's gradient is a product of its inputs A and output gradients G.

    A and G have the records first; T is the number of places (tokens, pixels) that share the
    weight, and a record's gradient is Σ_t g_t ⊗ a_t with a_t of length d and g_t of length p.
    """

    def costs(self, inputs: Tensor, outputs: Tensor) -> Costs:
        """What one record costs."""
        ...

    def products(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Every record's weight gradient, [n, …]."""
        ...

    def grams(self, inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """⟨a_s, a_t⟩ and ⟨g_s, g_t⟩ of every record, for one run of places s after another.

        Gram matrices are symmetric: places s of a run are paired with the places t from its first
        on.

        Yields:
            Both of a run of r places, [n, groups, r, T − s₀] each, s₀ its first.
        """
        ...

    def bias(self, outputs: Tensor) -> Tensor:
        """Every record's bias gradient Σ_t g_t, [n, p]."""
        ...

    def weighted(self, inputs: Tensor, outputs: Tensor, factors: Tensor, out: Tensor) -> None:
        """Write Σ_j c_j Σ_t g_t ⊗ a_t into a flat tensor, as ONE product."""
        ...


@dataclass(frozen=True)
class Kept:
    """Per-record gradients themselves.

    Attributes:
        gradients: By parameter, [b, …].
        method: How the norms are found.
    """

    gradients: Mapping[str, Tensor]
    method: str = "direct"

    def squared_norms(self) -> Tensor:
        """Squared norm of every record's gradient, float64 [b]."""
        return sum_of([squared_norms(gradient) for gradient in self.gradients.values()])

    def exact_squared_norms(self, rows: Tensor) -> Tensor:
        """The same of a few records [n], in float64 throughout."""
        return sum_of([exact_squared_norms(gradient[rows]) for gradient in self.gradients.values()])

    def weighted_sum(self, factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]) -> None:
        """Write Σ_j c_j g_j: see `GradientForm`."""
        for name, gradient in self.gradients.items():
            chosen = select(gradient, rows).flatten(1)
            torch.mm(factors[None], chosen, out=out[name][None])

    def kept(self) -> Kept:
        """Itself."""
        return self

    def split_short(self) -> tuple[Mapping[str, Tensor], GradientForm | None]:
        """Its short gradients and the form of the others: see `GradientForm`."""
        flat = {name: gradient.flatten(1) for name, gradient in self.gradients.items()}
        short = {name: one for name, one in flat.items() if one.shape[1] <= _SHORT_ENTRIES}
        if len(short) == len(flat):
            return short, None
        if not short:
            return short, self
        rest = {name: one for name, one in self.gradients.items() if name not in short}
        return short, Kept(rest, self.method)

    def plus(self, other: Kept) -> Kept:
        """The sum with the gradients of another use of the same parameters."""
        names = {**self.gradients, **other.gradients}
        both = {
            name: self.gradients[name].flatten(1) + other.gradients[name].flatten(1)
            for name in names
        }
        return Kept(both, self.method)


@dataclass(frozen=True)
class Factored:
    """A layer's inputs and output gradients, from which its weight's gradients follow.

    Attributes:
        layer: How they are multiplied.
        inputs: A, records first. Where it has 16 bits, all products are taken in float32.
        outputs: G, records first.
        bias: Per-record bias gradients [b, p], or None.
        method: "gram": ‖Σ_t g_t ⊗ a_t‖² = Σ_{s,t} ⟨a_s, a_t⟩⟨g_s, g_t⟩, no gradient is ever formed.
            "direct, not kept": gradients are formed for a few records at a time and dropped.
    """

    layer: Bilinear
    inputs: Tensor
    outputs: Tensor
    bias: Tensor | None
    method: str

    def squared_norms(self) -> Tensor:
        """Squared norm of every record's gradient, float64 [b]."""
        costs = self.layer.costs(self.inputs, self.outputs)
        if self.method == "gram":
            measure, entries = self._norms_by_grams, 2 * costs.places**2
        else:
            measure, entries = self._norms_of_products, costs.entries
        chunk = max(1, _CHUNK_ENTRIES // entries)
        inputs, outputs = torch.split(self.inputs, chunk), torch.split(self.outputs, chunk)
        parts = [measure(wide(a), wide(g)) for a, g in zip(inputs, outputs, strict=True)]
        result = torch.cat(parts)
        return result if self.bias is None else result + squared_norms(self.bias)

    def exact_squared_norms(self, rows: Tensor) -> Tensor:
        """The same of a few records [n], in float64 throughout."""
        parts = [
            exact_squared_norms(
                self.layer.products(wide(self.inputs[row]), wide(self.outputs[row]))
            )
            for row in rows[:, None]
        ]
        result = torch.cat(parts)
        return result if self.bias is None else result + exact_squared_norms(self.bias[rows])

    def _norms_of_products(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        return squared_norms(self.layer.products(inputs, outputs))

    def _norms_by_grams(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """‖Σ_t g_t ⊗ a_t‖² = Σ_{s,t} ⟨a_s, a_t⟩⟨g_s, g_t⟩ (Li et al. 2022), from above."""
        products: list[Tensor] = []
        of_inputs: list[Tensor] = []
        of_outputs: list[Tensor] = []
        for input_gram, output_gram in self.layer.grams(inputs, outputs):
            products.append(_both_halves(input_gram * output_gram))
            # ‖a_t‖² and ‖g_t‖² stand on the diagonals.
            of_inputs.append(input_gram.diagonal(dim1=-2, dim2=-1))
            of_outputs.append(output_gram.diagonal(dim1=-2, dim2=-1))
        result = sum_of(products)
        input_norms, output_norms = (
            torch.cat(parts, -1).double() for parts in (of_inputs, of_outputs)
        )
        # The sum over s and t can cancel to far less than its terms, and then their rounding could
        # hide a gradient longer than C. What rounding may hide is added: a norm is overestimated
        # by a little, never underestimated. By Cauchy and Schwarz the magnitudes of all terms add
        # up to (Σ_t ‖a_t‖‖g_t‖)² at most.
        if input_norms.shape[-1] > 1:
            both = input_norms.clamp(min=0) * output_norms.clamp(min=0)
            magnitudes = both.sqrt().sum((1, 2)).square()
            result += GRAM_ROUNDING * torch.finfo(inputs.dtype).eps * magnitudes
        largest = torch.maximum(input_norms.sum((1, 2)), output_norms.sum((1, 2)))
        return torch.where(largest < _TRUSTED_TRACE, result.clamp(min=0), torch.nan)

    def weighted_sum(self, factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]) -> None:
        """Write Σ_j c_j g_j: see `GradientForm`."""
        inputs, outputs = wide(select(self.inputs, rows)), wide(select(self.outputs, rows))
        self.layer.weighted(inputs, outputs, factors, out["weight"])
        if self.bias is not None:
            torch.mm(factors[None], select(self.bias, rows), out=out["bias"][None])

    def kept(self) -> Kept:
        """The same gradients in full."""
        gradients = {"weight": self.layer.products(wide(self.inputs), wide(self.outputs))}
        if self.bias is not None:
            gradients["bias"] = self.bias
        return Kept(gradients)

    def split_short(self) -> tuple[Mapping[str, Tensor], GradientForm | None]:
        """Its bias's gradients, where they are short, and the form of the weight's."""
        if self.bias is None or self.bias.shape[1] > _SHORT_ENTRIES:
            return {}, self
        return {"bias": self.bias}, replace(self, bias=None)


def squared_norms(gradients: Tensor) -> Tensor:
    """Squared norm of each record's gradient [b, …], accumulated in float64, [b].

    Short runs of entries are added up in the tensor's own precision, where a square may overflow.
    """
    flat = gradients.flatten(1)
    if flat.dtype == torch.float64 or flat.shape[1] <= _SHORT_ENTRIES:
        return flat.double().square().sum(1)
    whole = flat.shape[1] // 1024 * 1024
    runs = flat[:, :whole].reshape(len(flat), -1, 1024)
    result: Tensor = torch.linalg.vector_norm(runs, dim=2).double().square().sum(1)
    if whole < flat.shape[1]:
        result += flat[:, whole:].double().square().sum(1)
    return result


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape; at least one."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def select(values: Tensor, rows: Tensor | None) -> Tensor:
    """The given records of values [b, …]; all of them, uncopied, for None."""
    return values if rows is None else values[rows]


def _both_halves(products: Tensor) -> Tensor:
    """Sums over s and all t, float64 [n], of a symmetric matrix's [n, groups, r, T − s₀]."""
    run, places = products.shape[-2:]
    whole = products.sum((1, 2, 3), dtype=torch.float64)
    if places == run:
        return whole
    # Pairs within the run are there in both orders, the others in one.
    return 2.0 * whole - products[..., :run].sum((1, 2, 3), dtype=torch.float64)
