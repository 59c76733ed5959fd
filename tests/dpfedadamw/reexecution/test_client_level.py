"""A whole client's part in a round, computed again, held against its equations in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from dpfedadamw.reexecution.client_level import RecomputedClientLevel
from dpfedadamw.reexecution.unprotected import Kept
from tests.dpfedadamw.federation.client_worlds import (
    CLIENTS,
    DECAY,
    RECORDS,
    SIZE,
    federated,
    gradient,
)
from tests.dpfedadamw.federation.test_client_level_references import System, clipped, local
from tests.runs import played

STEPS = 2


@dataclass(frozen=True)
class Plain:
    """Plain means of one client's gradients, by the equations of softmax regression."""

    client: int

    def mean(self, point: Tensor, records: Tensor, labels: Tensor, divisor: float) -> Tensor:
        assert len(records) == len(labels) == divisor == RECORDS
        found = gradient(self.client, point.double().numpy())
        return torch.from_numpy(found).to(point.dtype)


@pytest.mark.parametrize("by", ["server", "clients"])
def test_a_client_s_part_computed_again_is_what_its_equations_say(by: str, tmp_path: Path) -> None:
    section = f"{{name: dp-fedavg, weight_decay: {DECAY}}}"
    federation, state, recorder = federated(section, tmp_path, STEPS, by)
    worker = federation.worker
    kept = Kept(
        experiment=SimpleNamespace(algorithm=SimpleNamespace(local=worker.rule)),
        source=worker.randomness,
        drawn=frozenset(range(CLIENTS)),
    )
    unit = RecomputedClientLevel(evidence=recorder, randomness=worker.randomness, kept=kept)
    again = replace(federation, worker=replace(worker, unit=unit))
    # By how many they are, each client knows its share of the noise.
    kept.cohort, _ = again._choose(0)
    theta = state.parameters.numpy().copy()
    next(played(again, state))
    (cohort,) = recorder.cohorts
    assert len(cohort) > 1
    assert cohort == kept.cohort
    noise = np.zeros(SIZE)
    for client in cohort:
        part = unit.participation(client, again.clients[client], Plain(client))
        assert (part.client, part.records) == (client, RECORDS)
        assert [sorted(batch) for batch in part.batches] == [list(range(RECORDS))] * STEPS
        found = part.update()
        due = local(System(), client, theta, STEPS)
        np.testing.assert_allclose(found.reference, due, rtol=0, atol=1e-12)
        for one, expected in (
            (found.update, due),
            (found.taken, due),
            (found.clipped, clipped(due)),
        ):
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, expected, rtol=0, atol=1e-7)
        assert 0.0 < found.bound < 1e-5
        assert 0.0 < found.moved() < 1e-5
        assert found.bits == 52
        if by == "server":
            assert found.noise is None
            assert found.upload.tolist() == found.clipped.tolist()
        else:
            sent = found.clipped + found.noise
            np.testing.assert_allclose(found.upload, sent, rtol=0, atol=1e-6)
            noise += found.noise
    if by == "clients":
        # What all of them have added is the noise on the released sum.
        np.testing.assert_allclose(noise, recorder.noise(0), rtol=0, atol=1e-6)
        assert np.abs(noise).max() > 0.01
