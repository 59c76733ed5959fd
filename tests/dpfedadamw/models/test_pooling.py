"""Scores from the mean over a text's tokens: clipped sums, padding, files, what a card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpfedadamw.errors import ModelError
from dpfedadamw.models.transformers import classifier, export
from dpfedadamw.models.transformers.classifier import TransformerClassifier
from dpfedadamw.models.transformers.keys import (
    FineTuningSpec,
    LoraSpec,
    PlainTuningSpec,
    TransformerSpec,
)
from reports.content.parts import Setting
from reports.render import model_card
from tests.dpfedadamw.clipping.clipping_harness import (
    assert_agrees,
    assert_same,
    cross_entropy,
    engine_of,
)

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SMALL = {
    "vocab_size": 60,
    "hidden_size": 24,
    "embedding_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "pad_token_id": 1,
}
TUNINGS = {
    "lora": LoraSpec(rank=2, alpha=4.0, dropout=0.2),
    "all": PlainTuningSpec(kind="all"),
    "head": PlainTuningSpec(kind="head"),
}
LENGTH, CLASSES = 12, 3


def spec_of(kind: str, tuning: FineTuningSpec, folder: Path) -> TransformerSpec:
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SMALL}))
    return TransformerSpec(
        name="transformers",
        weights="random",
        source=str(folder),
        revision=None,
        fine_tuning=tuning,
        length=LENGTH,
        pooling="mean",
    )


def built(kind: str, tuning: FineTuningSpec, folder: Path) -> TransformerClassifier:
    torch.manual_seed(0)
    model = classifier.build(spec_of(kind, tuning, folder), (2, LENGTH), CLASSES).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def texts(*places: int) -> Tensor:
    torch.manual_seed(1)
    records = torch.randint(3, 60, (len(places), 2, LENGTH), dtype=torch.int32)
    records[:, 1] = 0
    for record, count in zip(records, places, strict=True):
        record[0, count:] = 1
    return records


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_the_clipped_sum_is_the_loops_with_and_without_padding(kind, tuning, tmp_path):
    model = built(kind, TUNINGS[tuning], tmp_path)
    records, targets = texts(9, 2, 5), torch.tensor([0, 1, 2])
    cut = assert_agrees(model, records, targets, cross_entropy)
    model.cuts_padding = False
    whole = engine_of("book-keeping", model, cross_entropy, float("inf"))(records, targets)
    assert_same(cut, whole)


@pytest.mark.parametrize("count", [5, 1])
def test_scores_are_the_heads_of_the_mean_over_tokens(count, tmp_path):
    model = built("bert", TUNINGS["head"], tmp_path).eval()
    network = model.network
    tokens = texts(count)[:, 0, :count].long()
    hidden = network.bert(input_ids=tokens).last_hidden_state[0]
    torch.testing.assert_close(model(texts(count))[0], network.classifier(hidden.mean(0)))
    other = network(input_ids=tokens).logits[0]
    assert not torch.allclose(model(texts(count))[0], other, atol=1e-2)


def test_the_pooler_that_nothing_depends_on_is_not_trained(tmp_path):
    model = built("bert", TUNINGS["all"], tmp_path)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any("pooler" in name for name in trained)
    assert any("encoder" in name for name in trained)


@pytest.mark.parametrize("tuning", ["lora", "all"])
def test_an_exported_model_scores_alike_by_the_lines_on_its_card(tuning, tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    model = built("bert", TUNINGS[tuning], folder).eval()
    out = tmp_path / "out"
    out.mkdir()
    form, _ = export.write(spec_of("bert", TUNINGS[tuning], folder), model, out)
    kind = transformers.AutoModelForSequenceClassification
    loaded = kind.from_pretrained(out / "base" if form == "adapters" else out)
    if form == "adapters":
        loaded = peft.PeftModel.from_pretrained(loaded, out)
    records = texts(9, 2, 5)
    tokens = records[:, 0].long()
    names = {
        "model": loaded.eval(),
        "batch": {"input_ids": tokens, "attention_mask": (tokens != 1).long()},
    }
    settings = [
        Setting(name="name", value="transformers"),
        Setting(name="pooling", value="mean"),
    ]
    text = model_card._pooling(settings)
    exec(text.split("```python\n")[1].split("```")[0], names)
    torch.testing.assert_close(names["scores"], model(records), rtol=1e-5, atol=1e-6)
    assert model_card._pooling(settings[:1]) == ""


def test_an_architecture_whose_head_takes_no_vector_is_refused(tmp_path):
    with pytest.raises(ModelError, match="mean works for albert and bert, not for a distilbert"):
        classifier.build(spec_of("distilbert", TUNINGS["head"], tmp_path), (2, LENGTH), CLASSES)
