"""The AdamW family: DP-FedAdamW, FedAdamW in both its forms, and local AdamW and Adam.

All are one local rule (``rules.adamw``) with parts switched on and off, averaged.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from dpfedadamw.algorithms.base import FIRST_MOMENT, SECOND_MOMENT, Algorithm
from dpfedadamw.algorithms.keys import (
    Beta2,
    CoupledDecay,
    Epsilon,
    FloorSpec,
    LocalWeight,
    MomentKeys,
    SecondMomentSpec,
    ServerSpec,
    WeightDecay,
)
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.spec.algorithm_section import AlgorithmSpec
from dpfedadamw.spec.section import AbsentText, Contradictions, Section, Values, key

Decay = Annotated[
    Literal["decoupled", "coupled"],
    key(
        "decoupled",
        "decoupled: weights shrink separately from the step; coupled: plain L2, where the decay is "
        "added to the gradient and passes through the moments.",
        examples=("decoupled", "coupled"),
    ),
]


class FirstMomentSpec(Section, title="First moment"):
    """What the server does with the first moment."""

    aggregation: Literal["none", "full"] = key(
        "none",
        "none: restarts at 0 every round; full: averaged coordinate by coordinate, which "
        "doubles the upload.",
    )


class PlainSecondMoment(SecondMomentSpec, title="Second moment"):
    """How the second moment is shared, corrected and bounded."""

    debias: Literal[False] = key(
        False,
        "Subtract Φ, the noise's part, from the second moment.",
        why="without noise there is nothing to subtract",
    )


class LocalAdamKeys(MomentKeys, title="Local Adam"):
    """Local Adam with plain L2 decay, whose moments restart every round."""

    weight_decay: CoupledDecay = 0.01
    decay: AbsentText = None


class LocalAdamWKeys(LocalAdamKeys, title="Local AdamW"):
    """Local AdamW whose moments restart every round."""

    weight_decay: WeightDecay = 0.01
    decay: Decay = "decoupled"


class SharedAdamWKeys(LocalAdamWKeys, title="DP-FedAdamW"):
    """Local AdamW with block-mean second moment, noise debiasing and global alignment."""

    alignment: float = key(
        0.5,
        "Weight γ of the last global update in each local step; 0 switches the alignment off.",
        ge=0,
        le=1000,
        examples=(0.5, 0),
    )
    first_moment: FirstMomentSpec = FirstMomentSpec()
    second_moment: SecondMomentSpec = SecondMomentSpec()


class PlainSharedKeys(SharedAdamWKeys, title="FedAdamW"):
    """DP-FedAdamW without clipping, noise and debiasing."""

    second_moment: PlainSecondMoment = PlainSecondMoment()


class TheoryAdamWKeys(AlgorithmSpec, title="FedAdamW, theory form"):
    """FedAdamW as its convergence proof has it.

    No first moment, no decay, a convex mix with the last global update.
    """

    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    local_weight: LocalWeight = 0.5
    second_moment: PlainSecondMoment = PlainSecondMoment()
    server: ServerSpec = ServerSpec()


def _check_second_moment(get: Values) -> Contradictions:
    """Blocks are asked for only where there are some, a local counter only where it differs."""
    section = ("algorithm", "second_moment")
    aggregation = get(*section, "aggregation")
    if aggregation in ("full", "none") and get(*section, "denominator") == "block":
        message = (
            f"found block, but aggregation {aggregation} has no blocks; use coordinate, or an "
            "aggregation with blocks (heads, hessian, tensor, layer)"
        )
        yield (*section, "denominator"), message
    if aggregation == "none" and get(*section, "counter") == "local":
        message = (
            "found local, but aggregation none restarts the second moment every round, so both "
            "counters are the same; leave it at global"
        )
        yield (*section, "counter"), message


def _measured_beta2(keys: LocalAdamWKeys | SharedAdamWKeys) -> float | None:
    """Plain L2 decay puts λθ into v, which evidence of gradients alone cannot follow."""
    return None if keys.decay == "coupled" else keys.beta2


def _shared_blocks(keys: SharedAdamWKeys | TheoryAdamWKeys) -> str:
    return keys.second_moment.aggregation


def _restarting(setup: AlgorithmSetup[LocalAdamKeys]) -> Algorithm:
    """Local Adam or AdamW whose moments restart every round, averaged."""
    keys = setup.spec
    return _sharing(
        setup,
        SecondMomentSpec(aggregation="none", debias=False, counter="local", floor=FloorSpec()),
        beta1=keys.beta1,
        beta2=keys.beta2,
        epsilon=keys.epsilon,
        weight_decay=keys.weight_decay,
        alignment=0.0,
        aggregate_first=False,
        decay=keys.decay or "coupled",
    )


def _shared_adamw(setup: AlgorithmSetup[SharedAdamWKeys]) -> Algorithm:
    """Local AdamW with whatever of moments and alignment the spec shares."""
    keys = setup.spec
    return _sharing(
        setup,
        keys.second_moment,
        beta1=keys.beta1,
        beta2=keys.beta2,
        epsilon=keys.epsilon,
        weight_decay=keys.weight_decay,
        alignment=keys.alignment,
        aggregate_first=keys.first_moment.aggregation == "full",
        decay=keys.decay,
    )


def _theory_adamw(setup: AlgorithmSetup[TheoryAdamWKeys]) -> Algorithm:
    """FedAdamW's Algorithm 3: β1 = λ = 0 and a convex mix with the last global update.

    Its server step γ is the server's learning rate times K·η, so that 1 is the plain average.
    """
    keys = setup.spec
    return _sharing(
        setup,
        keys.second_moment,
        beta1=0.0,
        beta2=keys.beta2,
        epsilon=keys.epsilon,
        weight_decay=0.0,
        alignment=1.0 - keys.local_weight,
        aggregate_first=False,
        decay="decoupled",
        local_weight=keys.local_weight,
    )


def _sharing(setup: AlgorithmSetup[Any], moment: SecondMomentSpec, **rule: Any) -> Algorithm:
    """The rule with the second moment that the spec shares, and the server that averages it."""
    from dpfedadamw.algorithms.rules.adamw import AdamW
    from dpfedadamw.vectors.flat import blocks_of

    aggregation = moment.aggregation
    blocks = None if aggregation in ("full", "none") else blocks_of(setup.model, aggregation)
    local = AdamW(
        **rule,
        blocks=blocks,
        aggregate_second=aggregation != "none",
        debias=moment.debias,
        counter=moment.counter,
        relative_floor=moment.floor.relative,
        absolute_floor=moment.floor.absolute,
        block_denominator=moment.denominator == "block",
    )
    sizes: dict[str, int] = {}
    if local.aggregate_first:
        sizes[FIRST_MOMENT] = setup.size
    if aggregation != "none":
        sizes[SECOND_MOMENT] = len(blocks.names) if blocks else setup.size
    return Algorithm(local, Averaging(sizes, local.alignment != 0.0, setup.server_rate))


register(
    AlgorithmEntry(
        name="dp-fedadamw",
        keys=SharedAdamWKeys,
        units=("record",),
        summary="local AdamW: block-mean second moment, noise debiasing, global alignment",
        source="DP-FedAdamW, Algorithm 1, corrected as ERRATA.md says",
        assemble=_shared_adamw,
        relatives={"none": "fedadamw"},
        measured_beta2=_measured_beta2,
        blocks=_shared_blocks,
        check=_check_second_moment,
    ),
    AlgorithmEntry(
        name="dp-localadamw",
        keys=LocalAdamWKeys,
        units=("record",),
        summary="local AdamW whose moments restart every round",
        source="DP-FedAdamW, Algorithm 2",
        assemble=_restarting,
        relatives={"none": "local-adamw"},
        measured_beta2=_measured_beta2,
    ),
    AlgorithmEntry(
        name="fedadamw",
        keys=PlainSharedKeys,
        units=("none",),
        summary="dp-fedadamw without clipping, noise and debiasing",
        source="FedAdamW, Algorithm 2",
        assemble=_shared_adamw,
        relatives={"record": "dp-fedadamw", "client": "dp-fedadamw"},
        measured_beta2=_measured_beta2,
        blocks=_shared_blocks,
        check=_check_second_moment,
    ),
    AlgorithmEntry(
        name="fedadamw-theory",
        keys=TheoryAdamWKeys,
        units=("none",),
        summary="fedadamw as its convergence proof has it: no first moment, no decay, a convex mix",
        source="FedAdamW, Algorithm 3",
        assemble=_theory_adamw,
        relatives={"record": "dp-fedadamw", "client": "dp-fedadamw"},
        measured_beta2=lambda keys: keys.beta2,
        blocks=_shared_blocks,
        check=_check_second_moment,
    ),
    AlgorithmEntry(
        name="local-adamw",
        keys=LocalAdamWKeys,
        units=("none",),
        summary="local AdamW, averaged",
        source="FedAdamW, Algorithm 1",
        assemble=_restarting,
        relatives={"record": "dp-localadamw", "client": "dp-localadamw"},
        measured_beta2=_measured_beta2,
    ),
    AlgorithmEntry(
        name="local-adam",
        keys=LocalAdamKeys,
        units=("none",),
        summary="local Adam with plain L2 decay, averaged",
        source="FedAdamW, section 6; Kingma & Ba 2015",
        assemble=_restarting,
        relatives={"record": "dp-localadamw", "client": "dp-localadamw"},
    ),
)
