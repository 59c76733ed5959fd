"""Finds queries, keys, values and tables in a published model, so that blocks can follow them.

Goes by the names and attributes that the models of transformers and timm have. What it does not
recognise stays one block a layer; `dpfedadamw spec show --blocks SPEC` shows what came of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from dpfedadamw.vectors.parameter_roles import FusedHeads, ParameterRoles

QUERIES = ("query", "q_proj", "q_lin")
KEYS = ("key", "k_proj", "k_lin")
VALUES = ("value", "v_proj", "v_lin")
# Layers that hold all three, and whether head by head.
FUSED = {"qkv": False, "c_attn": False, "qkv_proj": False, "Wqkv": False, "query_key_value": True}
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
_SHARED_HEADS = ("num_key_value_heads", "num_kv_heads")
_TABLES = ("position_embedding", "cls_token", "relative_position_bias_table", "distillation_token")


def roles_of(model: nn.Module, output_layers: Iterable[str]) -> ParameterRoles:
    """What a published model's parameters are for.

    Args:
        model: With or without low-rank pairs.
        output_layers: Names of the modules that hold class scores' layers.
    """
    heads: dict[str, int] = {}
    values: set[str] = set()
    fused: dict[str, FusedHeads] = {}
    columns: set[str] = set()
    whole: set[str] = set()
    rows: set[str] = set()
    for name, module in model.named_modules():
        if type(module).__name__ == "Conv1D":
            columns.add(f"{name}.weight")
        if isinstance(module, nn.Embedding):
            rows.add(f"{name}.weight")
        prefix = f"{name}." if name else ""
        for key in module._parameters:
            if key.startswith(_TABLES):
                rows.add(prefix + key)
        for child, layer in module.named_children():
            if child not in (*QUERIES, *KEYS, *VALUES, *FUSED):
                continue
            for path in _of_outputs(layer):
                count = _heads(module, shared=child in (*KEYS, *VALUES))
                full = f"{prefix}{child}.{path}"
                size = layer.get_parameter(path).shape[0]
                if full in columns or type(layer.get_submodule(_parent(path))).__name__ == "Conv1D":
                    size = layer.get_parameter(path).shape[-1]
                pieces = count * (3 if child in FUSED else 1)
                if not count or size % pieces:
                    continue
                if child in FUSED:
                    fused[full] = FusedHeads(count, FUSED[child])
                else:
                    heads[full] = count
                if child in VALUES:
                    values.add(full)
    for name, _ in model.named_parameters():
        if ".lora_A." in name:
            whole.add(name)
    for name in output_layers:
        rows |= {f"{name}.weight", f"{name}.bias"}
    return ParameterRoles(
        heads, frozenset(values), frozenset(rows), fused, frozenset(columns), frozenset(whole)
    )


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _of_outputs(layer: nn.Module) -> Iterator[str]:
    """Names of a layer's parameters whose output axis is the layer's own."""
    for path, _ in layer.named_parameters():
        if path in ("weight", "bias", "base_layer.weight", "base_layer.bias") or path.startswith(
            "lora_B."
        ):
            yield path


def _heads(attention: nn.Module, *, shared: bool) -> int:
    """Number of heads of an attention module; 0 where it does not say."""
    places = (attention, getattr(attention, "config", None))
    for name in (*(_SHARED_HEADS if shared else ()), *_HEADS):
        for place in places:
            count = getattr(place, name, None)
            if isinstance(count, int):
                return count
    return 0
