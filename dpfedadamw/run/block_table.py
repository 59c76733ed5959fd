"""Tells into which blocks a spec's second moment is averaged, before anything is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import nn

from dpfedadamw.algorithms import registry as algorithms
from dpfedadamw.experiment import read_data
from dpfedadamw.models import registry as models
from dpfedadamw.spec import Spec
from dpfedadamw.vectors.flat import Blocks, layout_of

_PIECE = re.compile(r"\[(head|row|neuron) (\d+)\]$")


@dataclass(frozen=True)
class BlockGroup:
    """Blocks of one layer that differ in their number alone.

    Attributes:
        name: The block's name; of several, with their numbers' range.
        blocks: How many they are.
        tensors: Names of the parameters that have coordinates in them.
        coordinates: Coordinates of all of them together.
    """

    name: str
    blocks: int
    tensors: tuple[str, ...]
    coordinates: int


@dataclass(frozen=True)
class BlockTable:
    """All blocks of a spec.

    Attributes:
        kind: "heads", "hessian", "tensor" or "layer".
        groups: In the flat vector's order.
        blocks: How many blocks there are.
        trained: Trained coordinates, d.
        frozen: Coordinates that are not trained.
    """

    kind: str
    groups: tuple[BlockGroup, ...]
    blocks: int
    trained: int
    frozen: int


def table_of(spec: Spec) -> BlockTable:
    """The blocks of a spec's model, whose data are read for their shape and classes.

    Published weights are not needed: their shapes follow from the configuration.

    Raises:
        DpfedadamwError: If the data or the model cannot be built.
    """
    dataset = read_data(spec)
    section = models.MODELS[spec.model.name].without_weights(spec.model)
    model = models.build(section, dataset.input_shape, dataset.classes, 0, dataset.task)
    return describe(model, algorithms.measuring_blocks(spec.algorithm, model))


def describe(model: nn.Module, blocks: Blocks) -> BlockTable:
    """A table of a model's blocks."""
    tensors: list[dict[str, None]] = [{} for _ in blocks.names]
    for part, run in zip(layout_of(model).slices, blocks.runs, strict=True):
        for block in torch.unique(run.blocks).tolist():
            tensors[block][part.name] = None
    groups: dict[tuple[str, str], list[int]] = {}
    for index, name in enumerate(blocks.names):
        found = _PIECE.search(name)
        key = (name[: found.start()], found.group(1)) if found else (name, "")
        groups.setdefault(key, []).append(index)
    return BlockTable(
        kind=blocks.kind,
        groups=tuple(
            BlockGroup(
                name=_range(key, [blocks.names[index] for index in members]),
                blocks=len(members),
                tensors=tuple(dict.fromkeys(name for one in members for name in tensors[one])),
                coordinates=int(sum(float(blocks.sizes[index]) for index in members)),
            )
            for key, members in groups.items()
        ),
        blocks=len(blocks.names),
        trained=blocks.parameters,
        frozen=sum(p.numel() for p in model.parameters() if not p.requires_grad),
    )


def _range(key: tuple[str, str], names: list[str]) -> str:
    """One name for several that differ in their number alone."""
    if len(names) == 1:
        return names[0]
    numbers = [int(found.group(2)) for name in names if (found := _PIECE.search(name))]
    return f"{key[0]}[{key[1]} {min(numbers)} … {max(numbers)}]"
