"""Modules that nobody here wrote, from the registry: looked through, run, and audited."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfedadamw import api
from tests.runs import small_spec

pytestmark = pytest.mark.slow

SMALL = {name: part for name, part in small_spec(rounds=2).to_mapping().items() if name != "model"}
GROUP_NORM = ["model.replace_batch_norm=group_norm"]


def residual_network(transformers) -> nn.Module:
    """A ResNet of transformers, which has BatchNorm in every block."""
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
    configuration = transformers.ResNetConfig(num_channels=1, num_labels=10, **sizes)
    return transformers.ResNetForImageClassification(configuration)


def convolutional_next(transformers) -> nn.Module:
    """A ConvNeXt of transformers: depthwise convolutions, LayerNorm, layer scales."""
    sizes = {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1], "patch_size": 2}
    configuration = transformers.ConvNextConfig(num_channels=1, num_labels=10, **sizes)
    return transformers.ConvNextForImageClassification(configuration)


# ConvNeXt multiplies places by a parameter of its own, which no engine but vmap follows.
@pytest.mark.parametrize(
    ("make", "normed", "engine"),
    [
        (residual_network, "BatchNorm2d", "book-keeping"),
        (convolutional_next, "ConvNextLayerNorm", "vmap"),
    ],
)
def test_an_image_classifier_of_transformers_is_run_and_passes(make, normed, engine, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    net = make(transformers)
    checked = api.check_model(SMALL, model=net, changes=GROUP_NORM)
    assert (checked.engine, checked.refused) == (engine, None)
    assert any(normed in row["kind"] for row in checked.layers)
    if normed == "BatchNorm2d":
        refused = api.check_model(SMALL, model=net)
        assert "model.replace_batch_norm: group_norm" in refused.refused
        assert "refused" in refused.layers.column("how")
    run = api.run(SMALL, model=net, changes=GROUP_NORM, out=tmp_path)
    assert run.verdict == "PASS"
    assert not any(isinstance(one, nn.BatchNorm2d) for one in run.model.modules())
    assert run.verify().outcome.value == "ALL HOLD"


def test_a_text_classifier_of_fedlab_with_an_lstm_is_run_by_opacus_and_passes(tmp_path):
    pytest.importorskip("fedlab")
    good, bad = ["what a fine film", "a joy to see"], ["a dull film", "no fun at all"]
    texts = [f"{word} {number}" for number in range(150) for word in (*good, *bad)]
    labels = [1, 1, 0, 0] * 150
    spec = SMALL | {
        "data": {"dataset": "given", "clients": 5, "text": ["text"], "partition": {"kind": "iid"}},
        "model": {
            "name": "python",
            "target": "fedlab.models.rnn:LSTMModel",
            "arguments": {
                "vocab_size": 500,
                "embedding_dim": 16,
                "hidden_size": 16,
                "num_layers": 2,
                "output_dim": 2,
                "bid": True,
            },
            "vocabulary": 500,
            "length": 12,
        },
    }
    data = _Frame(text=texts, label=labels)
    checked = api.check_model(spec, data=data, allow_code=["fedlab.models"])
    assert checked.engine == "opacus", checked.explanation
    assert "Opacus' cells" in checked.layers.column("how")
    run = api.run(spec, data=data, out=tmp_path, allow_code=["fedlab.models"])
    assert run.verdict == "PASS"
    kinds = {type(one).__name__ for one in run.model.modules()}
    assert "LSTM" in kinds


class _Frame(dict):
    """The least that a frame has."""

    @property
    def columns(self):
        return list(self)
