"""Low-rank pairs added to frozen layers (LoRA, Hu et al. 2022), with the library peft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import nn

from dpfedadamw.errors import ModelError
from dpfedadamw.models.networks.dropout import RecordDropout
from dpfedadamw.models.transformers.attention_roles import FUSED, QUERIES, VALUES
from dpfedadamw.models.transformers.keys import LoraSpec

ADAPTER = "default"


def add_pairs(
    network: nn.Module, spec: LoraSpec, heads: Sequence[str], *, task: str | None, revision: str
) -> nn.Module:
    """Freeze a published model, and train low-rank pairs added to its layers and a fresh head.

    Args:
        network: A model of transformers; changed in place.
        spec: Rank, scale, dropout, which factors, and which layers; none named means queries and
            values.
        heads: Names of its modules that are trained in full.
        task: What peft calls what it is for; None for images.
        revision: The hub's commit that it comes from; "" for none.

    Returns:
        The model wrapped by peft. Its dropout makes masks record by record.

    Raises:
        ModelError: If a layer that the spec names is not there.
    """
    from peft import LoraConfig, get_peft_model

    names = _linear_names(network)
    targets = list(spec.target_modules) or [
        name for name in (*QUERIES, *VALUES, *FUSED) if name in names
    ]
    unknown = [name for name in targets if name not in names]
    if unknown or not targets:
        named = ", ".join(unknown) or "no query and value layers with a known name"
        raise ModelError(
            f"model.fine_tuning.target_modules: found {named}; the model has {', '.join(names)}"
        )
    configuration = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=targets,
        modules_to_save=list(heads) or None,
        bias="none",
        task_type=task,
        revision=revision or None,
        # Said here, peft need not find it out with a warning.
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in network.modules()),
    )
    wrapped: nn.Module = get_peft_model(network, configuration)
    for module in list(wrapped.modules()):
        layers = getattr(module, "lora_dropout", None)
        if isinstance(layers, nn.ModuleDict) and isinstance(layers[ADAPTER], nn.Dropout):
            layers[ADAPTER] = RecordDropout(spec.dropout)
    if spec.factors == "b":
        for name, parameter in wrapped.named_parameters():
            if ".lora_A." in name:
                parameter.requires_grad_(False)
    return wrapped


def _linear_names(network: nn.Module) -> list[str]:
    """Last parts of the names of all layers that a pair can be added to."""
    found: Iterable[str] = (
        name.rpartition(".")[2]
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    )
    return list(dict.fromkeys(found))
