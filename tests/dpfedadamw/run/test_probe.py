"""The step that the auditor pokes at, and the same step where it is computed in float64."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from audit.probe.probing import run_probe
from audit.probe.updates import ADDED_PRECISELY, UNEQUAL
from dpfedadamw import spec as specs
from dpfedadamw.models.own import fitting
from dpfedadamw.models.own.permission import allowing
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.run.training import probe_of
from tests.runs import begin, small_spec

GROUP_NORMS = (
    "model={name: cnn, channels: [4, 8], groups: 2}",
    "data.dataset=digits",
)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    training = begin(small_spec(overrides=GROUP_NORMS), tmp_path_factory.mktemp("runs"))
    with training.lock:
        yield training


def asked(training, size=3, seed=0):
    """Records of two clients, of whom the first draws all."""
    generator = np.random.default_rng(seed)
    shape = probe_of(training).input_shape
    inputs = generator.standard_normal((size + 2, *shape)).astype(np.float32)
    labels = generator.integers(0, 10, size + 2)
    clients = np.repeat([0, 1], [size, 2])
    return inputs, labels, clients, np.arange(size)


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_in_float64_the_step_gives_the_same_sum_but_for_rounding(training):
    probe = probe_of(training)
    single, double = (
        step(*asked(training)) for step in (probe.sum_of_step, probe.precise_sum_of_step)
    )
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    apart = np.linalg.norm(single - double)
    assert 0.0 < apart < 1e-5 * np.linalg.norm(double)


def test_afterwards_the_model_is_what_it_was_to_the_last_bit(training):
    module = training.federation.worker.flat.module
    vector = training.federation.worker.flat.vector
    before, first = state_of(module), probe_of(training).sum_of_step(*asked(training))
    probe_of(training).precise_sum_of_step(*asked(training))
    after = state_of(module)
    assert all(after[name].dtype == value.dtype for name, value in before.items())
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert training.federation.worker.flat.vector is vector
    again = probe_of(training).sum_of_step(*asked(training))
    assert np.array_equal(first, again)


def test_in_float64_records_add_up_a_hundred_million_times_more_exactly(training):
    inputs, labels, clients, drawn = asked(training)
    probe, blank = probe_of(training), np.zeros_like(inputs)
    inputs[0] = blank[0]

    def moved(step):
        """How much more the blank record adds to the two others than it is alone."""
        together = step(inputs, labels, clients, drawn)
        without = step(inputs, labels, clients, drawn[1:])
        alone = step(inputs, labels, clients, drawn[:1])
        return np.linalg.norm(together.astype(float) - without - alone)

    assert moved(probe.precise_sum_of_step) < 1e-12
    assert moved(probe.sum_of_step) > 1e-9


def test_a_step_that_mixes_records_mixes_them_in_float64_too(training, monkeypatch):
    """The second opinion is of the run's own engine, whatever that does."""
    engine = type(training.federation.worker.engine)
    correct = engine.__call__

    def mixing(self, inputs, targets):
        found = correct(self, inputs, targets)
        if len(targets) > 1:
            found.total[0] += 0.005 * len(targets)
        return found

    # It would stop such an engine before the probe is through.
    monkeypatch.setattr(SpotCheck, "due", lambda self, seconds: False)
    monkeypatch.setattr(engine, "__call__", mixing)
    found = run_probe(probe_of(training))
    precise = found["difference_norm"][found["kind"] == ADDED_PRECISELY]
    assert len(precise)
    assert precise.max() > 1e-3


def test_a_model_that_is_interrupted_in_float64_is_put_back(training):
    flat = training.federation.worker.flat
    before = state_of(flat.module)
    with contextlib.suppress(ZeroDivisionError), flat.in_float64():
        assert all(value.dtype == torch.float64 for value in flat.module.parameters())
        raise ZeroDivisionError
    assert all(torch.equal(flat.module.state_dict()[name], value) for name, value in before.items())


def test_far_off_the_step_is_taken_at_other_parameters_and_leaves_the_models_own(training):
    probe, vector = probe_of(training), training.state.parameters.clone()
    near = probe.sum_of_step(*asked(training))
    assert not np.array_equal(near, probe.sum_of_step_far_off(*asked(training)))
    assert torch.equal(training.state.parameters, vector)
    assert np.array_equal(near, probe.sum_of_step(*asked(training)))


WORDS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self, classes, masked=True):
        super().__init__()
        self.masked = masked
        self.words, self.head = nn.Embedding(60, 9), nn.Linear(9, classes)

    def forward(self, tokens):
        used = tokens != 0
        tokens = tokens[:, : 1 + int((used * torch.arange(tokens.shape[1])).amax())]
        counted = (tokens != 0) if self.masked else torch.ones_like(tokens, dtype=torch.bool)
        counted = counted.unsqueeze(2).float()
        return self.head((self.words(tokens) * counted).sum(1) / counted.sum(1).clamp(min=1))
"""


@pytest.mark.parametrize("masked", [True, False])
def test_a_model_of_texts_that_attends_the_padding_of_its_batch_is_seen(
    masked, tmp_path, monkeypatch
):
    (tmp_path / "texts_with_padding.py").write_text(WORDS)
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    tokens = generator.integers(1, 60, (600, 2, 12)).astype(np.int32)
    tokens[:, 1] = 0
    labels = generator.integers(0, 4, 600)
    np.savez("texts.npz", x_train=tokens, y_train=labels, x_test=tokens, y_test=labels)
    mapping = small_spec().to_mapping()
    data = {"dataset": "arrays", "path": "texts.npz", "cache": str(tmp_path / "cache")}
    mapping["data"] = data | {"clients": 5, "partition": {"kind": "iid"}}
    own = {"name": "python", "target": "texts_with_padding:Words", "vocabulary": 60, "length": 12}
    mapping["model"] = own | {"arguments": {"masked": masked}}
    # Such a module is refused before it is trained; here the auditor is tried.
    monkeypatch.setattr(fitting, "_refuse_mixing", lambda *_: None)
    with allowing(["texts_with_padding"]):
        training = begin(specs.from_mapping(mapping), tmp_path / "runs")
        with training.lock:
            found = run_probe(probe_of(training))
    moved = found["difference_norm"][found["kind"] == UNEQUAL] / found["clipping_norm"]
    assert (moved[0] < 1e-5) if masked else (moved[0] > 0.005)
    rest = found["kind"] != UNEQUAL
    assert np.isfinite(found["difference_norm"][rest]).all()
