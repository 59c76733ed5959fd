"""The registry of algorithms: what is known of each name, and how one is built from a spec.

Each family's file registers its names with all that is known of them; other packages do the same
under the entry points' group ``dpfedadamw.algorithms``. A file is read together with the first
spec that names its algorithm, whose vocabulary is made of its keys; so it imports torch where it
uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.registration import Registry
from dpfedadamw.spec.algorithm_section import AlgorithmSpec, RegisteredAlgorithm

if TYPE_CHECKING:
    from torch import nn

    from dpfedadamw.algorithms.base import Algorithm
    from dpfedadamw.vectors.flat import Blocks

_Keys = TypeVar("_Keys", bound=AlgorithmSpec)


@dataclass(frozen=True)
class AlgorithmSetup(Generic[_Keys]):
    """What a system is built for.

    Attributes:
        spec: Its section of the spec, complete.
        model: The model whose trainable parameters it moves.
        clients: N, clients of the federation.
        seed: The public seed of coordinates that are drawn at random.
        clipping_norm: C of whole updates; None where there is none.
    """

    spec: _Keys
    model: nn.Module
    clients: int
    seed: int = 0
    clipping_norm: float | None = None

    @property
    def size(self) -> int:
        """Trainable coordinates, d."""
        from dpfedadamw.vectors.flat import layout_of

        return layout_of(self.model).size

    @property
    def server_rate(self) -> float:
        """η_s, what the server multiplies the mean update by; 1 where the spec has no such key."""
        return float(getattr(getattr(self.spec, "server", None), "learning_rate", 1.0))

    @property
    def averaging(self) -> float | None:
        """The power by which rounds count in the average that is published; None for none."""
        power = getattr(getattr(self.spec, "server", None), "averaging", None)
        return None if power is None else float(power)


def _tensors(keys: AlgorithmSpec) -> str:
    """One block a tensor, for rules that have no blocks of their own."""
    del keys
    return "tensor"


@dataclass(frozen=True, kw_only=True)
class AlgorithmEntry(RegisteredAlgorithm[_Keys]):
    """What is known about an algorithm, in addition to what a spec uses.

    Attributes:
        source: Paper and place.
        assemble: Puts its rules together.
        queries_per_step: Gradients asked for on one batch.
        measured_beta2: Returns the decay of the second moment that its local rule shows and whose
            noise has a known mean, so that evidence can follow it, or None under some keys; None
            where it shows none.
        blocks: Returns the kind of blocks by which it shares its second moment.
    """

    source: str
    assemble: Callable[[AlgorithmSetup[_Keys]], Algorithm]
    queries_per_step: int = 1
    measured_beta2: Callable[[_Keys], float | None] | None = None
    blocks: Callable[[_Keys], str] = _tensors

    @property
    def unit(self) -> str:
        """The privacy unit it was made for."""
        return self.units[0]


# What each file registers, in the order of lists: a spec loads the file of its algorithm alone.
_FILES = {
    "adamw": (
        "dp-fedadamw",
        "dp-localadamw",
        "fedadamw",
        "fedadamw-theory",
        "local-adamw",
        "local-adam",
    ),
    "sgd": ("dp-fedavg", "fedavg", "fed-smp", "fedcm"),
    "adaptive_iterations": ("ali-dpfl",),
    "adaptive_noise": ("adap-dpfl",),
    "blur": ("blur", "blurs"),
    "fafed": ("dp-fafed",),
    "fedopt": ("dp-fedopt", "fedadam"),
    "lada": ("dp-fedlada", "fedlada"),
    "proximal": ("pe-dpfl",),
    "sam": ("dp-fedsam", "dp-fedsam-randk", "dp-fedsam-topk"),
    "scaffold": ("dp-scaffold", "scaffold"),
    "smoothing": ("dp-fedavg-ls",),
}
ALGORITHMS: Registry[AlgorithmEntry[Any]] = Registry(
    "algorithm", "dpfedadamw.algorithms", AlgorithmEntry, files=_FILES
)
register = ALGORITHMS.register


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

    Raises:
        DpfedadamwError: If its server would not do what the spec says.
    """
    setup = AlgorithmSetup(spec, model, clients, seed, clipping_norm)
    built = ALGORITHMS[spec.name].assemble(setup)
    server = getattr(built.server, "inner", built.server)
    if getattr(server, "learning_rate", 1.0) != setup.server_rate:
        raise DpfedadamwError(
            f"algorithm.server.learning_rate: the server of {spec.name} takes no rate of its own; "
            "leave it at 1"
        )
    if setup.averaging is None:
        return built
    if built.round_schedule is not None:
        raise DpfedadamwError(
            f"algorithm.server.averaging: {spec.name} chooses each round's steps or "
            "noise by itself, and its models are not averaged; leave it out"
        )
    from dpfedadamw.algorithms.averaging import AveragedModel

    return replace(built, server=AveragedModel(built.server, setup.averaging))


def measured_beta2(spec: AlgorithmSpec) -> float | None:
    """The decay of the second moment that evidence follows, or None where there is none to follow.

    Plain L2 decay puts λθ into v, which evidence of gradients alone cannot follow.
    """
    measured = ALGORITHMS[spec.name].measured_beta2
    return None if measured is None else measured(spec)


def measuring_blocks(spec: AlgorithmSpec, model: nn.Module) -> Blocks:
    """The partition by which the second moment is measured for the audit.

    The spec's own where it has blocks; one block a tensor otherwise.
    """
    from dpfedadamw.vectors.flat import blocks_of

    kind = ALGORITHMS[spec.name].blocks(spec)
    return blocks_of(model, "tensor" if kind in ("full", "none") else kind)
