"""How the rounds of a run that protects records choose their engine and close."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.clipping.engines import PerformanceOptions
from dpfedadamw.federation import record
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.privacy.spot_check import SpotCheck


def plan(expected, each=None):
    return SimpleNamespace(
        divisor=lambda client: expected, records_per_person=each, clipping_norm=0.5
    )


@pytest.mark.parametrize(
    ("expected", "each", "physical", "batch"),
    [
        # Two deviations above what is expected, rounded up; never more than is asked for.
        (16.0, None, 512, 24),
        (17.0, None, 512, 26),
        (16.0, None, 20, 20),
        # A person's records are never cut.
        (4.0, 5, 512, 40),
        (4.0, 5, 3, 5),
    ],
)
def test_as_many_records_are_clipped_at_once_as_most_batches_have(
    expected, each, physical, batch, monkeypatch
):
    asked = []
    monkeypatch.setattr(record, "choose", lambda *given, **options: asked.append((given, options)))
    model = MultiLayerPerceptron((3,), [], 2)
    performance = PerformanceOptions(engine="vmap", physical_batch_size=physical)
    RecordLevel.engine(SimpleNamespace(model=model, plan=plan(expected, each)), performance)
    (((given, _, norm), options),) = asked
    assert (given, norm) == (model, 0.5)
    assert options == {"engine": "vmap", "precision": "float32", "batch": batch}


def test_gradients_are_compared_with_the_plain_form_unless_they_are_planted():
    model = MultiLayerPerceptron((3,), [], 2)
    unit = RecordLevel(evidence=None)
    assert isinstance(unit.spot_check(model, plan(4.0), "float32"), SpotCheck)

    class Observer:
        def observed(self, oracle, client, round_index):
            return oracle, client, round_index

    planted = RecordLevel(evidence=None, observer=Observer())
    assert planted.spot_check(model, plan(4.0), "float32") is None
    part = SimpleNamespace(client=3, current=SimpleNamespace(index=7))
    assert planted.observed("oracle", part) == ("oracle", 3, 7)
    assert unit.observed("oracle", part) == "oracle"


def test_squares_of_a_client_in_another_process_are_handed_over_under_one_name():
    given = []
    evidence = SimpleNamespace(take_squares=lambda: torch.ones(2).numpy(), add_squares=given.append)
    unit = RecordLevel(evidence=evidence)
    shared = unit.take_shared()
    unit.add_shared(shared)
    assert list(shared) == ["squares"]
    assert given[0].tolist() == [1.0, 1.0]
