"""Every algorithm by name: what it is, where it comes from, and how to build it from a spec."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpfedadamw.algorithms.adamw import FIRST_MOMENT, SECOND_MOMENT, AdamW
from dpfedadamw.algorithms.base import Algorithm
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import GradientDescent
from dpfedadamw.parameters import Blocks, blocks_of, layout_of
from dpfedadamw.spec import AlgorithmSpec


@dataclass(frozen=True)
class Entry:
    """One line of ``dpfedadamw list algorithms``.

    Attributes:
        unit: The privacy unit it runs under: "record" or "none".
        summary: One line.
        source: Paper and place.
    """

    unit: str
    summary: str
    source: str


_ADAMW_PAPER = "DP-FedAdamW"
ALGORITHMS = {
    "dp-fedadamw": Entry(
        "record",
        "local AdamW: block-mean second moment, noise debiasing, global alignment",
        f"{_ADAMW_PAPER}, Algorithm 1, corrected as ERRATA.md says",
    ),
    "dp-localadamw": Entry(
        "record",
        "local AdamW whose moments restart every round",
        f"{_ADAMW_PAPER}, Algorithm 2",
    ),
    "dp-fedavg": Entry(
        "record", "local DP-SGD, averaged", "Noble et al. 2022; McMahan et al. 2017"
    ),
    "fedadamw": Entry(
        "none", "dp-fedadamw without clipping, noise and debiasing", "FedAdamW, Algorithm 2"
    ),
    "local-adamw": Entry("none", "local AdamW, averaged", "FedAdamW, section 3"),
    "fedavg": Entry("none", "local SGD, averaged", "McMahan et al. 2017"),
}


def build(spec: AlgorithmSpec, model: nn.Module) -> Algorithm:
    """Build the algorithm that a spec names, for a model's parameters."""
    if spec.second_moment is None and spec.beta2 is None:
        return Algorithm(GradientDescent(spec.weight_decay), Averaging({}, False))
    assert spec.beta1 is not None
    assert spec.beta2 is not None
    assert spec.epsilon is not None
    moment = spec.second_moment
    aggregation = moment.aggregation if moment else "none"
    blocks = None if aggregation in ("full", "none") else blocks_of(model, aggregation)
    aggregate_first = bool(spec.first_moment and spec.first_moment.aggregation == "full")
    floor = moment.floor if moment else None
    local = AdamW(
        beta1=spec.beta1,
        beta2=spec.beta2,
        epsilon=spec.epsilon,
        weight_decay=spec.weight_decay,
        alignment=spec.alignment or 0.0,
        blocks=blocks,
        aggregate_first=aggregate_first,
        aggregate_second=aggregation != "none",
        debias=bool(moment and moment.debias),
        counter=moment.counter if moment else "local",
        relative_floor=floor.relative if floor else None,
        absolute_floor=floor.absolute if floor else None,
        block_denominator=bool(moment and moment.denominator == "block"),
    )
    size = layout_of(model).size
    sizes: dict[str, int] = {}
    if aggregate_first:
        sizes[FIRST_MOMENT] = size
    if aggregation != "none":
        sizes[SECOND_MOMENT] = len(blocks.names) if blocks else size
    return Algorithm(local, Averaging(sizes, bool(spec.alignment)))


def measuring_blocks(spec: AlgorithmSpec, model: nn.Module) -> Blocks:
    """The partition by which the second moment is measured for the audit.

    The spec's own where it has blocks; one block a tensor otherwise.
    """
    kind = spec.second_moment.aggregation if spec.second_moment else "tensor"
    return blocks_of(model, "tensor" if kind in ("full", "none") else kind)
