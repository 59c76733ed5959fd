"""Each parameter is cut into blocks by what the model says of it, and not by its values.

`flat` lays the pieces out on the flat vector; here is what a piece is called, which decides
what belongs together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FusedHeads:
    """How one tensor holds queries, keys and values of all heads along its output axis.

    Attributes:
        heads: Number of heads of each of the three.
        by_head: Query, key and value of the first head, then of the second; otherwise all queries,
            then all keys, then all values, head by head.
    """

    heads: int
    by_head: bool = False

    def order(self) -> list[tuple[str, int]]:
        """The pieces along the output axis, as (query, key or value; head)."""
        parts = ("query", "key", "value")
        if self.by_head:
            return [(part, head) for head in range(self.heads) for part in parts]
        return [(part, head) for part in parts for head in range(self.heads)]


@dataclass(frozen=True)
class ParameterRoles:
    """What a model says about its parameters, so that blocks can follow its architecture.

    A model attaches one to itself as ``parameter_roles``; a model without one has no heads, and its
    output layer is unknown.

    Attributes:
        attention_heads: Number of heads of every query, key and value weight or bias, by name.
        values: Names of the value projections (``hessian`` splits them by output neuron).
        row_wise: Embedding tables and output layers, whose rows are tokens, places or classes.
        fused: Weights and biases that hold queries, keys and values in one, by name.
        columns: Weights whose last axis, not the first, is that of the outputs.
        whole: Names that ``hessian`` does not split.
    """

    attention_heads: Mapping[str, int]
    values: frozenset[str] = frozenset()
    row_wise: frozenset[str] = frozenset()
    fused: Mapping[str, FusedHeads] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


NO_ROLES = ParameterRoles({})


def block_labels(
    name: str, shape: tuple[int, ...], kind: str, roles: ParameterRoles
) -> tuple[Sequence[str], int]:
    """Labels of the equal runs of coordinates into which one parameter is cut, in order.

    Args:
        name: The parameter's.
        shape: Its shape.
        kind: "heads", "hessian", "tensor", "layer", "full" or "none".
        roles: What its model says.

    Returns:
        The labels, and how often they follow one another: once for each input where the outputs are
        the last axis.
    """
    layer, _, leaf = name.rpartition(".")
    layer = layer or name
    in_columns = name in roles.columns and len(shape) == 2
    repeats = shape[0] if in_columns else 1
    outputs = shape[-1 if in_columns else 0] if shape else 1
    heads, fused = roles.attention_heads.get(name), roles.fused.get(name)
    by_neuron = kind == "hessian"
    if kind in ("heads", "hessian") and heads is not None:
        if not (by_neuron and name in roles.values):
            return [f"{layer}[head {head}]" for head in range(heads)], repeats
    elif kind in ("heads", "hessian") and fused is not None:
        return _fused_labels(layer, outputs, fused, by_neuron), repeats
    if by_neuron and shape and name not in roles.whole:
        # A bare parameter has no bias that goes with it.
        owner = layer if leaf in ("weight", "bias") else name
        if name in roles.row_wise:
            rows = shape[1] if shape[0] == 1 and len(shape) == 3 else shape[0]
            return [f"{owner}[row {row}]" for row in range(rows)], 1
        if len(shape) > 1:
            return [f"{owner}[neuron {neuron}]" for neuron in range(outputs)], repeats
    if kind in ("heads", "layer"):
        return [layer], 1
    return [name], 1


def _fused_labels(layer: str, outputs: int, fused: FusedHeads, by_neuron: bool) -> list[str]:
    order = fused.order()
    if not by_neuron:
        return [f"{layer}.{part}[head {head}]" for part, head in order]
    width = outputs // len(order)
    labels: list[str] = []
    for part, head in order:
        if part == "value":
            first = head * width
            labels += [f"{layer}.value[neuron {first + one}]" for one in range(width)]
        else:
            labels += [f"{layer}.{part}[head {head}]"] * width
    return labels
