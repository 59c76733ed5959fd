"""Puts local and server rules together from a spec: one short function a system.

``registry`` says which function belongs to which name. Reading two functions side by side shows in
what two systems differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from dpfedadamw.algorithms.adamw import AdamW
from dpfedadamw.algorithms.adaptive_iterations import (
    ConvexityServer,
    IterationSchedule,
    SecantDescent,
)
from dpfedadamw.algorithms.adaptive_noise import FallingServer, NoiseSchedule, WatchedDescent
from dpfedadamw.algorithms.base import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    Algorithm,
    LocalRule,
    ServerRule,
)
from dpfedadamw.algorithms.blur import BoundedDescent
from dpfedadamw.algorithms.fafed import FasterAdaptive, FasterAdaptiveServer
from dpfedadamw.algorithms.fedopt import Adaptive
from dpfedadamw.algorithms.lada import LocalAdaptiveAmended
from dpfedadamw.algorithms.proximal import ProximalDescent
from dpfedadamw.algorithms.renewal import RenewedCoordinates
from dpfedadamw.algorithms.sam import SharpnessAware
from dpfedadamw.algorithms.scaffold import Scaffold, ScaffoldServer
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import ClientMomentum, GradientDescent
from dpfedadamw.algorithms.smoothing import LaplacianSmoothing
from dpfedadamw.spec import AlgorithmSpec
from dpfedadamw.vectors.flat import blocks_of, layout_of
from dpfedadamw.vectors.sparsification import sparsification

_Value = TypeVar("_Value")
_AVERAGE = Averaging({}, False)


@dataclass(frozen=True)
class Setting:
    """What a system is built for.

    Attributes:
        spec: Its section of the spec, complete.
        model: The model whose trainable parameters it moves.
        clients: N, clients of the federation.
        seed: The public seed of coordinates that are drawn at random.
        clipping_norm: C of whole updates; None where there is none.
    """

    spec: AlgorithmSpec
    model: nn.Module
    clients: int
    seed: int = 0
    clipping_norm: float | None = None

    @property
    def size(self) -> int:
        """Trainable coordinates, d."""
        return layout_of(self.model).size

    @property
    def decay_rate(self) -> float:
        """Weight decay λ, 0 for a rule that has none."""
        return self.spec.weight_decay or 0.0


def given(value: _Value | None) -> _Value:
    """A value that a resolved spec of this system always has."""
    assert value is not None
    return value


def averaged_descent(setting: Setting) -> Algorithm:
    """Local gradient descent, averaged."""
    return _averaged(setting, GradientDescent(setting.decay_rate))


def bounded_descent(setting: Setting) -> Algorithm:
    """Local gradient descent that is held back beyond a bound, averaged."""
    blur = given(setting.spec.blur)
    bound = blur.bound if blur.bound is not None else setting.clipping_norm
    # Without a clipping norm nothing says where an update is too long.
    bound = bound if bound is not None else math.inf
    return _averaged(setting, BoundedDescent(setting.decay_rate, blur.weight, bound))


def _averaged(setting: Setting, local: LocalRule) -> Algorithm:
    """A local rule whose updates are averaged, after sparsification where the spec has one."""
    chosen = setting.spec.sparsification
    if chosen is None:
        return Algorithm(local, _AVERAGE)
    sparse = sparsification(chosen.kind, chosen.fraction, setting.size, setting.seed)
    server: ServerRule = _AVERAGE
    if chosen.kind == "released-top":
        server = RenewedCoordinates(_AVERAGE, sparse)
    return Algorithm(local, server, sparse)


def scaffold(setting: Setting) -> Algorithm:
    """Local gradient descent with control variates."""
    server = ScaffoldServer(setting.clients, given(setting.spec.server).learning_rate)
    return Algorithm(Scaffold(setting.decay_rate), server)


def sharpness_aware(setting: Setting) -> Algorithm:
    """Local descent by the gradient at a perturbed point, averaged."""
    return _averaged(setting, SharpnessAware(setting.decay_rate, given(setting.spec.sam).radius))


def smoothed_descent(setting: Setting) -> Algorithm:
    """Local descent by the smoothed gradient, averaged."""
    smoothing, layout = given(setting.spec.smoothing), layout_of(setting.model)
    segments: tuple[int, ...] = (layout.size,)
    if smoothing.scope == "tensor":
        segments = tuple(part.stop - part.start for part in layout.slices)
    local = LaplacianSmoothing(setting.decay_rate, smoothing.strength, segments)
    return Algorithm(local, _AVERAGE)


def proximal_descent(setting: Setting) -> Algorithm:
    """Local descent held near the broadcast model, averaged."""
    local = ProximalDescent(setting.decay_rate, given(setting.spec.proximal_weight))
    return Algorithm(local, _AVERAGE)


def adaptive_iterations(setting: Setting) -> Algorithm:
    """Local gradient descent, averaged, for as many steps a round as theory asks for."""
    section = given(setting.spec.local_iterations)
    first = section.strong_convexity
    round_schedule = IterationSchedule(
        section.minimum, section.maximum, section.heterogeneity, first
    )
    if not section.estimate:
        return Algorithm(
            GradientDescent(setting.decay_rate), _AVERAGE, round_schedule=round_schedule
        )
    return Algorithm(
        SecantDescent(setting.decay_rate), ConvexityServer(first), round_schedule=round_schedule
    )


def adaptive_noise(setting: Setting) -> Algorithm:
    """Local gradient descent, averaged, under noise that falls while the model learns."""
    section = given(setting.spec.noise_decay)
    return Algorithm(
        WatchedDescent(setting.decay_rate),
        FallingServer(section.patience),
        round_schedule=NoiseSchedule(section.factor, section.floor),
    )


def adaptive_server(setting: Setting) -> Algorithm:
    """Local gradient descent, an adaptive step on the server."""
    server = given(setting.spec.server)
    return Algorithm(
        GradientDescent(setting.decay_rate),
        Adaptive(
            server.rule or "adam",
            server.learning_rate,
            given(server.beta1),
            given(server.beta2),
            given(server.epsilon),
        ),
    )


def client_momentum(setting: Setting) -> Algorithm:
    """Local descent mixed with the last global update, averaged."""
    local = ClientMomentum(setting.decay_rate, given(setting.spec.local_weight))
    return Algorithm(local, Averaging({}, True))


def amended_adaptive(setting: Setting) -> Algorithm:
    """Local AMSGrad mixed with the last global update; update and v averaged."""
    spec = setting.spec
    local = LocalAdaptiveAmended(
        given(spec.beta1),
        given(spec.beta2),
        given(spec.epsilon),
        setting.decay_rate,
        given(spec.local_weight),
    )
    return Algorithm(local, Averaging({SECOND_MOMENT: setting.size}, True))


def variance_reduced(setting: Setting) -> Algorithm:
    """Variance-reduced local momentum; iterates and both moments averaged."""
    spec = setting.spec
    epsilon = given(spec.epsilon)
    local = FasterAdaptive(given(spec.beta1), given(spec.beta2), epsilon, setting.decay_rate)
    return Algorithm(local, FasterAdaptiveServer(epsilon))


def local_adamw(setting: Setting) -> Algorithm:
    """Local AdamW whose moments restart every round, averaged."""
    return _adamw(setting, decay=setting.spec.decay or "coupled")


def shared_adamw(setting: Setting) -> Algorithm:
    """Local AdamW with whatever of moments and alignment the spec shares."""
    return _adamw(setting, decay=given(setting.spec.decay))


def theory_adamw(setting: Setting) -> Algorithm:
    """FedAdamW's Algorithm 3: β1 = λ = 0 and a convex mix with the last global update.

    Its server step γ is the server's learning rate times K·η, so that 1 is the plain average.
    """
    spec = setting.spec
    return _adamw(
        setting,
        decay="decoupled",
        local_weight=given(spec.local_weight),
        alignment=1.0 - given(spec.local_weight),
        server_rate=given(spec.server).learning_rate,
    )


def _adamw(
    setting: Setting,
    decay: str,
    local_weight: float = 1.0,
    alignment: float | None = None,
    server_rate: float = 1.0,
) -> Algorithm:
    spec, moment = setting.spec, setting.spec.second_moment
    aggregation = moment.aggregation if moment else "none"
    blocks = None if aggregation in ("full", "none") else blocks_of(setting.model, aggregation)
    aggregate_first = bool(spec.first_moment and spec.first_moment.aggregation == "full")
    alignment = (spec.alignment or 0.0) if alignment is None else alignment
    floor = moment.floor if moment else None
    local = AdamW(
        beta1=spec.beta1 or 0.0,
        beta2=given(spec.beta2),
        epsilon=given(spec.epsilon),
        weight_decay=setting.decay_rate,
        alignment=alignment,
        blocks=blocks,
        aggregate_first=aggregate_first,
        aggregate_second=aggregation != "none",
        debias=bool(moment and moment.debias),
        counter=moment.counter if moment else "local",
        relative_floor=floor.relative if floor else None,
        absolute_floor=floor.absolute if floor else None,
        block_denominator=bool(moment and moment.denominator == "block"),
        decay=decay,
        local_weight=local_weight,
    )
    sizes: dict[str, int] = {}
    if aggregate_first:
        sizes[FIRST_MOMENT] = setting.size
    if aggregation != "none":
        sizes[SECOND_MOMENT] = len(blocks.names) if blocks else setting.size
    return Algorithm(local, Averaging(sizes, alignment != 0.0, server_rate))
