"""Every algorithm by name: what it is, where it comes from, and how to build it from a spec.

One table. What it says of a name's unit, keys and queries is what the spec's schema, the privacy
plan and the evidence go by; tests keep them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dpfedadamw.algorithms import assembly
from dpfedadamw.algorithms.assembly import Setting
from dpfedadamw.algorithms.base import Algorithm
from dpfedadamw.spec import AlgorithmSpec
from dpfedadamw.vectors.flat import Blocks, blocks_of


@dataclass(frozen=True)
class Entry:
    """One line of ``dpfedadamw list algorithms``.

    Attributes:
        unit: The privacy unit it runs under: "record", "client" or "none".
        summary: One line.
        source: Paper and place.
        keys: What the spec may say of it beside its name.
        assemble: Puts its rules together.
        queries_per_step: Gradients asked for on one batch.
        shows_second_moment: Whether its local rule shows a second moment whose noise has a known
            mean, which evidence then records.
        client_level: Whether a system of unit "record" also runs under the unit "client".
    """

    unit: str
    summary: str
    source: str
    keys: tuple[str, ...]
    assemble: Callable[[Setting], Algorithm]
    queries_per_step: int = 1
    shows_second_moment: bool = False
    client_level: bool = False

    @property
    def units(self) -> tuple[str, ...]:
        """Every privacy unit it runs under."""
        return (self.unit, "client") if self.client_level else (self.unit,)


_DP_FEDADAMW, _FEDADAMW, _TABLE = "DP-FedAdamW", "FedAdamW", "DP-FedAdamW, Table 9"
_SGD = ("learning_rate", "schedule", "weight_decay")
_ADAM = ("learning_rate", "schedule", "beta1", "beta2", "epsilon", "weight_decay")
_SHARED = (*_ADAM, "decay", "alignment", "first_moment", "second_moment")

ALGORITHMS = {
    "dp-fedadamw": Entry(
        "record",
        "local AdamW: block-mean second moment, noise debiasing, global alignment",
        f"{_DP_FEDADAMW}, Algorithm 1, corrected as ERRATA.md says",
        _SHARED,
        assembly.shared_adamw,
        shows_second_moment=True,
    ),
    "dp-localadamw": Entry(
        "record",
        "local AdamW whose moments restart every round",
        f"{_DP_FEDADAMW}, Algorithm 2",
        (*_ADAM, "decay"),
        assembly.local_adamw,
        shows_second_moment=True,
    ),
    "dp-fedavg": Entry(
        "record",
        "local DP-SGD, averaged; at client level plain SGD, whole updates noised",
        "Noble et al. 2022; McMahan et al. 2017",
        _SGD,
        assembly.averaged_descent,
        client_level=True,
    ),
    "dp-scaffold": Entry(
        "record",
        "local DP-SGD with control variates made of noised gradients",
        "Noble et al. 2022; Karimireddy et al. 2020",
        (*_SGD, "server"),
        assembly.scaffold,
    ),
    "dp-fedavg-ls": Entry(
        "record",
        "local DP-SGD, each noised gradient smoothed by a discrete Laplacian",
        "Liang et al. 2024; Osher et al. 2022",
        (*_SGD, "smoothing"),
        assembly.smoothed_descent,
    ),
    "dp-fedsam": Entry(
        "record",
        "local sharpness-aware steps of two queries, each noised at record level",
        "DP-FedSAM, Algorithm 1 (at record level eq. (6)); Foret et al. 2021",
        (*_SGD, "sam"),
        assembly.sharpness_aware,
        queries_per_step=2,
        client_level=True,
    ),
    "dp-fedopt": Entry(
        "record",
        "local DP-SGD, Adam or Yogi on the server",
        f"Reddi et al. 2021, Algorithm 2; {_TABLE}",
        (*_SGD, "server"),
        assembly.adaptive_server,
    ),
    "dp-fafed": Entry(
        "record",
        "variance-reduced local momentum under a shared denominator, two noised queries a step",
        f"Wu et al. 2022, Algorithm 2; {_TABLE}",
        _ADAM,
        assembly.variance_reduced,
        queries_per_step=2,
    ),
    "dp-fedlada": Entry(
        "record",
        "local AMSGrad amended by the last global update",
        f"Sun et al. 2023, section 3; {_TABLE}",
        (*_ADAM, "local_weight"),
        assembly.amended_adaptive,
    ),
    "fed-smp": Entry(
        "client",
        "dp-fedavg, updates cut to public coordinates before clipping",
        "Hu et al. 2022 (Fed-SMP), rand-k and top-k as ERRATA.md says",
        (*_SGD, "sparsification"),
        assembly.averaged_descent,
    ),
    "dp-fedsam-randk": Entry(
        "client",
        "dp-fedsam, updates cut to public random coordinates before clipping",
        "DP-FedSAM, section 6.1; Hu et al. 2022 (Fed-SMP)",
        (*_SGD, "sam", "sparsification"),
        assembly.sharpness_aware,
        queries_per_step=2,
    ),
    "dp-fedsam-topk": Entry(
        "client",
        "dp-fedsam, updates cut to their largest coordinates before clipping",
        "DP-FedSAM, section 6.1",
        (*_SGD, "sam", "sparsification"),
        assembly.sharpness_aware,
        queries_per_step=2,
    ),
    "blur": Entry(
        "client",
        "dp-fedavg, local steps held back beyond a distance from their start",
        "Cheng et al. 2022 (BLUR), as ERRATA.md says",
        (*_SGD, "blur"),
        assembly.bounded_descent,
    ),
    "blurs": Entry(
        "client",
        "blur, updates cut to their largest coordinates before clipping",
        "Cheng et al. 2022 (BLUR and LUS), as ERRATA.md says",
        (*_SGD, "blur", "sparsification"),
        assembly.bounded_descent,
    ),
    "pe-dpfl": Entry(
        "record",
        "local DP-SGD held near the broadcast model by a proximal term",
        "Shen, Liu & Zhang 2022, as in ALI-DPFL, section V",
        (*_SGD, "proximal_weight"),
        assembly.proximal_descent,
    ),
    "adap-dpfl": Entry(
        "record",
        "local DP-SGD whose noise multiplier falls while the released loss estimate does",
        "Fu, Chen & Han 2022, as in ALI-DPFL, section V",
        (*_SGD, "noise_decay"),
        assembly.adaptive_noise,
    ),
    "ali-dpfl": Entry(
        "record",
        "local DP-SGD with as many local steps a round as its convergence bound and budget ask for",
        "ALI-DPFL, Algorithms 2 and 3, corrected as ERRATA.md says",
        (*_SGD, "local_iterations"),
        assembly.adaptive_iterations,
    ),
    "fedadamw": Entry(
        "none",
        "dp-fedadamw without clipping, noise and debiasing",
        f"{_FEDADAMW}, Algorithm 2",
        _SHARED,
        assembly.shared_adamw,
        shows_second_moment=True,
    ),
    "fedadamw-theory": Entry(
        "none",
        "fedadamw as its convergence proof has it: no first moment, no decay, a convex mix",
        f"{_FEDADAMW}, Algorithm 3",
        (
            "learning_rate",
            "schedule",
            "beta2",
            "epsilon",
            "local_weight",
            "second_moment",
            "server",
        ),
        assembly.theory_adamw,
        shows_second_moment=True,
    ),
    "local-adamw": Entry(
        "none",
        "local AdamW, averaged",
        f"{_FEDADAMW}, Algorithm 1",
        (*_ADAM, "decay"),
        assembly.local_adamw,
        shows_second_moment=True,
    ),
    "local-adam": Entry(
        "none",
        "local Adam with plain L2 decay, averaged",
        f"{_FEDADAMW}, section 6; Kingma & Ba 2015",
        _ADAM,
        assembly.local_adamw,
    ),
    "fedavg": Entry(
        "none",
        "local SGD, averaged",
        "McMahan et al. 2017",
        _SGD,
        assembly.averaged_descent,
    ),
    "scaffold": Entry(
        "none",
        "local SGD with control variates",
        "Karimireddy et al. 2020",
        (*_SGD, "server"),
        assembly.scaffold,
    ),
    "fedcm": Entry(
        "none",
        "local SGD mixed with the last global update",
        "Xu et al. 2021",
        (*_SGD, "local_weight"),
        assembly.client_momentum,
    ),
    "fedadam": Entry(
        "none",
        "local SGD, Adam on the server",
        "Reddi et al. 2021, Algorithm 2",
        (*_SGD, "server"),
        assembly.adaptive_server,
    ),
    "fedlada": Entry(
        "none",
        "local AMSGrad amended by the last global update",
        "Sun et al. 2023, section 3",
        (*_ADAM, "local_weight"),
        assembly.amended_adaptive,
    ),
}


def build(
    spec: AlgorithmSpec,
    model: nn.Module,
    clients: int,
    seed: int = 0,
    clipping_norm: float | None = None,
) -> Algorithm:
    """Build the algorithm that a spec names.

    Args:
        spec: The spec's section, complete.
        model: The model whose trainable parameters it moves.
        clients: N, clients of the federation.
        seed: The public seed of coordinates that are drawn at random.
        clipping_norm: C of whole updates; None where there is none.
    """
    return ALGORITHMS[spec.name].assemble(Setting(spec, model, clients, seed, clipping_norm))


def measured_beta2(spec: AlgorithmSpec) -> float | None:
    """The decay of the second moment that evidence follows, or None where there is none to follow.

    Plain L2 decay puts λθ into v, which evidence of gradients alone cannot follow.
    """
    if ALGORITHMS[spec.name].shows_second_moment and spec.decay != "coupled":
        return spec.beta2
    return None


def measuring_blocks(spec: AlgorithmSpec, model: nn.Module) -> Blocks:
    """The partition by which the second moment is measured for the audit.

    The spec's own where it has blocks; one block a tensor otherwise.
    """
    kind = spec.second_moment.aggregation if spec.second_moment else "tensor"
    return blocks_of(model, "tensor" if kind in ("full", "none") else kind)
