"""Texts are cut to the longest of their batch, and no gradient can tell."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpfedadamw.clipping.engines import choose
from dpfedadamw.models.networks.dropout import RecordDropout, dropping
from dpfedadamw.models.transformers import classifier
from dpfedadamw.models.transformers.classifier import TransformerClassifier
from dpfedadamw.models.transformers.keys import (
    FineTuningSpec,
    LoraSpec,
    PlainTuningSpec,
    TransformerSpec,
)
from dpfedadamw.models.transformers.padding import (
    BLIND_TO_PADDING,
    groups_of_like_length,
    places_in_use,
)
from dpfedadamw.privacy.oracle import clipped_sum
from dpfedadamw.vectors.flat import FlatParameters
from tests.dpfedadamw.clipping.clipping_harness import assert_same, cross_entropy, engine_of

pytest.importorskip("transformers")
pytest.importorskip("peft")

SMALL = {
    "vocab_size": 60,
    "hidden_size": 24,
    "embedding_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 32}
TUNINGS = {
    "pairs": LoraSpec(rank=2, alpha=4.0, dropout=0.0),
    "pairs with dropout": LoraSpec(rank=2, alpha=4.0, dropout=0.3),
    "all": PlainTuningSpec(kind="all"),
}
LENGTH, CLASSES, PADDING = 20, 3, 1


def small(kind: str, tuning: FineTuningSpec, folder: Path) -> TransformerClassifier:
    """A small model of an architecture, in float64, with every trained parameter off zero."""
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SMALL, **DISTILBERT}))
    spec = TransformerSpec(
        name="transformers",
        weights="random",
        source=str(folder),
        revision=None,
        fine_tuning=tuning,
        length=LENGTH,
    )
    torch.manual_seed(0)
    model = classifier.build(spec, (2, LENGTH), CLASSES).double().train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def texts(*places: int) -> Tensor:
    """Records [b, 2, length] of so many tokens each, padded at the end."""
    torch.manual_seed(1)
    records = torch.randint(3, 60, (len(places), 2, LENGTH), dtype=torch.int32)
    records[:, 1] = 0
    for record, count in zip(records, places, strict=True):
        record[0, count:] = PADDING
    return records


@pytest.mark.sampled(7)
@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("kind", sorted(BLIND_TO_PADDING))
def test_every_records_gradient_is_the_same_with_and_without_padding(kind, tuning, tmp_path):
    model = small(kind, TUNINGS[tuning], tmp_path)
    records, targets = texts(9, 2, 5, 7), torch.tensor([0, 1, 2, 0])
    assert model.cuts_padding
    loop = engine_of("loop", model, cross_entropy, float("inf"))
    together = engine_of("book-keeping", model, cross_entropy, 0.5)
    for part in [slice(one, one + 1) for one in range(4)]:
        cut = loop(records[part], targets[part])
        assert float(cut.total.norm()) > 1e-3
        model.cuts_padding = False
        # Masks of dropout are drawn for a record's own places; made for all, they begin alike.
        assert_same(cut, loop(records[part], targets[part]))
        model.cuts_padding = True
    cut = together(records, targets)
    model.cuts_padding = False
    assert_same(cut, together(records, targets))


def test_a_record_has_its_gradient_whoever_shares_the_batch(tmp_path):
    """A long neighbour makes room for padding, and must not move what is drawn for the others."""
    model = small("bert", TUNINGS["pairs with dropout"], tmp_path)
    records, targets = texts(4, 20), torch.tensor([0, 1])
    engine = choose(model, cross_entropy, 0.3)
    both = engine(records, targets).total
    each = [engine(records[one : one + 1], targets[one : one + 1]).total for one in range(2)]
    torch.testing.assert_close(both, each[0] + each[1], rtol=0, atol=1e-13)


def test_the_encoder_sees_no_more_places_than_the_longest_record_has(tmp_path):
    model = small("bert", TUNINGS["all"], tmp_path)
    seen: list[tuple[int, ...]] = []
    body = model.network.base_model.encoder
    body.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    model(texts(3, 6))
    model(texts(20))
    assert [shape[1] for shape in seen] == [6, 20]


def test_places_end_with_the_last_token_and_a_record_of_padding_alone_has_all_of_them():
    tokens = torch.tensor([[5, 1, 6, 1], [1, 1, 1, 1], [5, 5, 5, 5], [1, 5, 1, 1]])
    assert places_in_use(tokens, 1).tolist() == [3, 4, 4, 2]


def test_a_record_of_padding_alone_keeps_its_gradient_beside_others(tmp_path):
    model = small("bert", TUNINGS["pairs"], tmp_path)
    records, targets = texts(0, 4), torch.tensor([0, 1])
    engine = choose(model, cross_entropy, 0.3)
    alone = engine(records[:1], targets[:1]).total
    beside = engine(records, targets).total - engine(records[1:], targets[1:]).total
    torch.testing.assert_close(alone, beside, rtol=0, atol=1e-13)


def test_an_architecture_that_padding_may_reach_is_not_cut(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "fnet", **SMALL}))
    tuning = PlainTuningSpec(kind="head")
    spec = TransformerSpec(
        name="transformers",
        weights="random",
        source=str(tmp_path),
        revision=None,
        fine_tuning=tuning,
        length=LENGTH,
    )
    assert not classifier.build(spec, (2, LENGTH), CLASSES).cuts_padding


def test_masks_are_drawn_for_a_records_own_places_alone():
    layer = RecordDropout(0.5).train()
    records = torch.arange(3)[:, None]
    with dropping(layer, records, torch.zeros(1), [2, 5, 3]):
        short = layer(torch.ones(3, 5, 40)) == 0
        flat = layer(torch.ones(3, 40)) == 0
    with dropping(layer, records, torch.zeros(1), [2, 9, 3]):
        long = layer(torch.ones(3, 9, 40)) == 0
    assert torch.equal(short[0, :2], long[0, :2])
    assert torch.equal(short[2, :3], long[2, :3])
    assert not short[0, 2:].any()
    assert short[1].float().mean() > 0.3
    # What has no places, as a pooled output, is drawn whole.
    assert flat.float().mean(1).min() > 0.2


def _cost(groups: list[list[int]], places: list[int], overhead: float) -> float:
    return sum(overhead + len(group) * max(places[one] for one in group) for group in groups)


@pytest.mark.parametrize("overhead", [0.0, 3.0, 10.0, 1e9])
def test_groups_hold_each_record_once_and_no_other_division_is_cheaper(overhead: float):
    places = [3, 9, 3, 4, 20, 8]
    found = groups_of_like_length(places, overhead)
    assert sorted(itertools.chain(*found)) == list(range(6))
    # All ways to cut the records, sorted by length, into runs.
    order = sorted(range(6), key=places.__getitem__)
    cheapest = min(
        _cost([order[a:b] for a, b in itertools.pairwise([0, *cuts, 6])], places, overhead)
        for count in range(6)
        for cuts in itertools.combinations(range(1, 6), count)
    )
    assert _cost(found, places, overhead) == cheapest
    assert len(found) == {0.0: 5, 1e9: 1}.get(overhead, len(found))


def test_a_steps_sum_and_the_order_of_its_norms_do_not_show_the_groups(tmp_path):
    model = small("bert", TUNINGS["pairs with dropout"], tmp_path)
    batch = texts(9, 2, 20, 5, 7, 2, 18), torch.arange(7) % CLASSES
    engine, flat = choose(model, cross_entropy, 0.3), FlatParameters(model)
    expected = engine(*batch)
    for overhead, physical in [(0.0, 512), (5.0, 512), (5.0, 3), (1e9, 3)]:
        model._overhead = overhead
        assert overhead > 100 or len(model.record_groups(batch[0])) > 1
        found = clipped_sum(engine, flat, flat.vector.clone(), batch, physical)
        assert_same(found, expected)
