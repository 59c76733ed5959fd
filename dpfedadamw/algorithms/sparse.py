"""What algorithms share whose updates are averaged, perhaps after most coordinates are dropped."""

from __future__ import annotations

from typing import Any

from dpfedadamw.algorithms.base import Algorithm, LocalRule, ServerRule
from dpfedadamw.algorithms.keys import SparsificationSpec
from dpfedadamw.algorithms.registry import AlgorithmSetup
from dpfedadamw.algorithms.server import Averaging


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
