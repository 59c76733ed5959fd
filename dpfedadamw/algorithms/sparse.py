"""What algorithms share whose updates are averaged, perhaps after most coordinates are dropped."""

from __future__ import annotations

from typing import Any, Literal

from dpfedadamw.algorithms.base import Algorithm, LocalRule, ServerRule
from dpfedadamw.algorithms.registry import AlgorithmSetup
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.spec.section import Section, key


class SparsificationSpec(Section, title="Sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: str
    fraction: float = key(
        0.4,
        "Share k/d of the coordinates that survives, the same in every round; 1 keeps all.",
        gt=0,
        le=1,
        examples=(0.4, 1),
    )


class TopSparsification(SparsificationSpec, title="Top-k sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["local-top", "released-top"] = key(
        "local-top",
        "local-top: each client's own largest, which stay private: noise on every "
        "coordinate. released-top: public coordinates too, half of them those that the last "
        "release moved most, the rest drawn.",
    )


def averaged(setup: AlgorithmSetup[Any], local: LocalRule) -> Algorithm:
    """A local rule whose updates are averaged, after sparsification where the spec has one."""
    average = Averaging({}, False, setup.server_rate)
    chosen = setup.spec.part(SparsificationSpec)
    if chosen is None:
        return Algorithm(local, average)
    from dpfedadamw.algorithms.rules.renewal import RenewedCoordinates
    from dpfedadamw.vectors.sparsification import sparsification

    sparse = sparsification(chosen.kind, chosen.fraction, setup.size, setup.seed)
    server: ServerRule = average
    if chosen.kind == "released-top":
        server = RenewedCoordinates(average, sparse)
    return Algorithm(local, server, sparse)
