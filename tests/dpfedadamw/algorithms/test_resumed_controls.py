"""What SCAFFOLD's clients keep between their participations survives a crash."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dpfedadamw.evidence.states import state_file
from dpfedadamw.federation import rounds
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import open_existing
from tests.runs import begin, small_spec, train


class PowerCutError(Exception):
    """The power goes."""


SPEC = small_spec("dp-scaffold", clients_per_round=2, rounds=5)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The model of a run that was not cut off."""
    whole, _ = train(SPEC, tmp_path_factory.mktemp("whole"))
    return whole.run.weights.read_bytes()


# Within a round, and between two.
@pytest.mark.sampled(2)
@pytest.mark.parametrize("after", [5, 4])
def test_a_dp_scaffold_run_cut_off_and_resumed_equals_one_that_was_not(
    after, weights, tmp_path, monkeypatch
):
    cut = begin(SPEC, tmp_path)
    answered = 0
    answer = rounds.Worker.take_part

    def failing(self, part):
        nonlocal answered
        if answered == after:
            raise PowerCutError
        answered += 1
        return answer(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(rounds.Worker, "take_part", failing)
        with pytest.raises(PowerCutError):
            engine_run.train(cut)
    kept = load_file(cut.run.evidence / state_file(1))
    assert 1 < sum(name.startswith("client.") for name in kept) < 5, "some took part, some did not"
    resumed = engine_setup.resume(open_existing(cut.run.path), torch.device("cpu"))
    engine_run.train(resumed)
    assert resumed.run.weights.read_bytes() == weights


def test_without_its_controls_a_resumed_run_would_end_elsewhere(weights, tmp_path, monkeypatch):
    """So the test above can fail."""
    forgetful, answer = begin(SPEC, tmp_path), rounds.Worker.take_part

    def forgetting(self, part):
        return answer(self, replace(part, memory={}))

    monkeypatch.setattr(rounds.Worker, "take_part", forgetting)
    engine_run.train(forgetful)
    assert forgetful.run.weights.read_bytes() != weights


def test_what_clients_keep_is_not_broadcast(tmp_path):
    _, plain = train(small_spec("dp-fedavg", rounds=3), tmp_path)
    _, scaffold = train(small_spec("dp-scaffold", rounds=3), tmp_path)
    sizes = []
    for outcome in (plain, scaffold):
        line = outcome.run.metrics.read_text().splitlines()[-1]
        sizes.append(json.loads(line))
    # Parameters and one control variate, down and up; safetensors' headers add some bytes.
    for direction in ("bytes_up", "bytes_down"):
        assert sizes[1][direction] == pytest.approx(2 * sizes[0][direction], rel=0.05)
