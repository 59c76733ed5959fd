"""Language models: a record's gradient is that of its sequences, whatever stands beside it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.engines import choose
from dpfedadamw.errors import DataError, ModelError
from dpfedadamw.models.registry import loss_of, synthetic_records
from dpfedadamw.models.transformers import language, pieces
from dpfedadamw.models.transformers.texts import preprocessing_of
from dpfedadamw.preprocessing import in_sequences, next_tokens
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.spec.task_section import LanguageTask
from dpfedadamw.tasks import IGNORED, Task
from tests.dpfedadamw.models.small_language_models import (
    ALL,
    CONFIGURATIONS,
    LENGTH,
    LETTERS,
    PADDING,
    PAIRS,
    SEQUENCES,
    SPECIAL,
    TASK,
    VOCABULARY,
    folder_of,
    records_of,
    small,
    spec_of,
)

pytest.importorskip("transformers")
pytest.importorskip("peft")

LONGEST = SEQUENCES * (LENGTH - 1) + 1
CASES = [(kind, name) for kind in CONFIGURATIONS for name in ("all", "pairs")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small models by kind and what is trained of them."""
    parent = tmp_path_factory.mktemp("models")
    return {
        (kind, name): small(kind, ALL if name == "all" else PAIRS, parent) for kind, name in CASES
    }


def by_sequences(model, record, targets):
    """The gradient of one record, [d]: the network's own on each of its sequences by itself.

    Nothing here knows masks, positions or padding: each sequence is a call of its own.
    """
    told = int((targets != IGNORED).sum())
    total, start = torch.zeros((), dtype=torch.float64), 0
    sequences = (record[1] + 1) // 2
    for number in range(1, int(sequences.max()) + 1):
        size = int((sequences == number).sum())
        tokens = record[0, start : start + size].long()
        scores = model.network(input_ids=tokens[None], use_cache=False).logits[0]
        right = targets[start : start + size]
        total = total + functional.cross_entropy(
            scores, right, ignore_index=IGNORED, reduction="sum"
        )
        start += size
    trained = [one for one in model.parameters() if one.requires_grad]
    if not told:
        return torch.zeros(sum(one.numel() for one in trained), dtype=torch.float64)
    found = torch.autograd.grad(total / told, trained)
    return torch.cat([one.reshape(-1) for one in found])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
@given(
    sizes=st.lists(st.integers(0, LONGEST), min_size=1, max_size=4),
    shares=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
    sides=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
    padding=st.integers(0, VOCABULARY - 1),
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
def test_clipped_sums_are_those_of_sequences_computed_one_by_one(
    models, case, sizes, shares, sides, padding
):
    model, limit = models[case], 0.5
    answers = [round(size * share) for size, share in zip(sizes, shares, strict=False)]
    records, targets = records_of(sizes, answers)
    each = [by_sequences(model, *pair) for pair in zip(records, targets, strict=True)]
    # So much of a record's padding stands before its text, whichever token it is.
    records[:, 0][records[:, 1] == 0] = padding
    for row, side in enumerate(sides[: len(sizes)]):
        before = round(side * int((records[row, 1] == 0).sum()))
        records[row], targets[row] = records[row].roll(before, 1), targets[row].roll(before, 0)
    found = choose(model, loss_of(model), limit, engine="book-keeping")(records, targets)
    norms = torch.stack([one.norm() for one in each])
    right = sum(one * min(1.0, limit / max(float(one.norm()), 1e-300)) for one in each)
    torch.testing.assert_close(found.raw_norms, norms, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.total, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_where_padding_stands_and_what_it_is_moves_no_gradient(models, kind):
    model = models[kind, "all"]
    records, targets = records_of([7, 13])
    loop = choose(model, TASK.loss, float("inf"), engine="loop")
    expected = loop(records, targets).total
    # Padding before the text: records and targets are moved to the right by so many places.
    moved, told = records.roll(4, 2), targets.roll(4, 1)
    assert int(moved[:, 1, :4].max()) == 0
    torch.testing.assert_close(loop(moved, told).total, expected, rtol=1e-9, atol=1e-12)
    other = records.clone()
    other[:, 0][records[:, 1] == 0] = 9
    torch.testing.assert_close(loop(other, targets).total, expected, rtol=1e-9, atol=1e-12)
    model.cuts_padding = False
    torch.testing.assert_close(loop(records, targets).total, expected, rtol=1e-9, atol=1e-12)
    model.cuts_padding = True


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_scores_in_pieces_have_the_losses_and_gradients_of_whole_ones(models, kind, monkeypatch):
    model = models[kind, "pairs"]
    records, targets = records_of([7, 23, 0, 13], [3, 23, 0, 13])
    trained = [one for one in model.parameters() if one.requires_grad]

    def found(limit):
        monkeypatch.setattr(pieces, "SCORES", limit)
        losses = loss_of(model)(model(records), targets)
        weighted = losses @ torch.tensor([1.0, -0.5, 2.0, 3.0], dtype=losses.dtype)
        return losses.detach(), torch.autograd.grad(weighted, trained)

    monkeypatch.setattr(model, "in_pieces", False)
    whole, of_whole = found(1)
    assert model(records).shape[2] == VOCABULARY
    monkeypatch.setattr(model, "in_pieces", True)
    assert model(records).shape[2] == 16
    for limit in (1, 3 * VOCABULARY, 10**6):
        losses, gradients = found(limit)
        torch.testing.assert_close(losses, whole, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(gradients, of_whole, rtol=1e-10, atol=1e-14)


def test_no_more_scores_are_formed_at_once_than_are_allowed(models, monkeypatch):
    model, (records, targets) = models["llama", "pairs"], records_of([23, 25])
    sizes = []

    def noted(*arguments):
        scores = linear(*arguments)
        sizes.append(scores.numel())
        return scores

    linear = functional.linear
    monkeypatch.setattr(pieces, "SCORES", 5 * VOCABULARY)
    hidden = model(records)
    monkeypatch.setattr(functional, "linear", noted)
    loss_of(model)(hidden, targets).sum().backward()
    of_all = int((targets != IGNORED).sum()) * VOCABULARY
    assert max(sizes) == 5 * VOCABULARY
    assert sum(sizes) == of_all


def test_trained_adapted_and_scaled_output_layers_are_scored_whole(models, tmp_path):
    assert all(models[case].in_pieces == (case[1] == "pairs") for case in CASES)
    adapted = PAIRS.replace(target_modules=("lm_head",))
    assert not small("llama", adapted, tmp_path).in_pieces
    scaled = {**CONFIGURATIONS["llama"], "model_type": "granite", "logits_scaling": 4.0}
    folder = folder_of("granite", tmp_path, configuration=scaled)
    assert not language.build(spec_of(folder, PAIRS), (2, LENGTH * SEQUENCES)).in_pieces


@pytest.mark.parametrize("engine", ["opacus", "vmap", "loop"])
def test_other_engines_have_the_clipped_sum_of_book_keeping(models, engine):
    model = models["llama", "pairs"]
    batch = records_of([7, 23], [7, 5])
    found, right = (choose(model, loss_of(model), 0.5, engine=one)(*batch)
                    for one in (engine, "book-keeping"))  # fmt: skip
    torch.testing.assert_close(found.total, right.total, rtol=1e-6, atol=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_layers_that_are_computed_again_give_the_same_sum_and_keep_less(models, case, tmp_path):
    kind, name = case
    again = small(kind, ALL if name == "all" else PAIRS, tmp_path, again=True)
    inputs, targets = records_of([5, 12, LONGEST, 9])
    kept = {}

    def summed(model):
        def keep(tensor):
            kept[model] = kept.get(model, 0) + tensor.numel()
            return tensor

        engine = BookKeepingEngine(model, loss_of(model), Clipping(1.0))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            return engine(inputs, targets)

    expected, found = summed(models[case]), summed(again)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found.raw_norms, expected.raw_norms, rtol=1e-12, atol=1e-14)
    # Two layers' inputs, and what lies outside of the layers.
    assert kept[again] < 0.5 * kept[models[case]]
    for engine in ("vmap", "loop"):
        other = choose(again, loss_of(again), 1.0, engine=engine)(inputs, targets)
        torch.testing.assert_close(other.total, expected.total, rtol=1e-9, atol=1e-11)


def test_an_architecture_whose_layers_cannot_be_computed_again_is_refused():
    with pytest.raises(ModelError, match=r"of this mamba a second time; leave it out"):
        language._check_point(torch.nn.Linear(1, 1), "mamba")


def test_a_token_sees_its_own_sequence_alone(models):
    model = models["llama", "all"]
    records, _ = records_of([LONGEST, LONGEST])
    records[1] = records[0]
    # The first sequence of the second record holds other tokens.
    records[1, 0, :LENGTH] = records[0, 0, :LENGTH].flip(0)
    first, second = model(records)
    torch.testing.assert_close(first[LENGTH:], second[LENGTH:], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(first[:LENGTH], second[:LENGTH])


def test_the_loss_is_the_mean_over_the_tokens_that_a_record_predicts(models):
    model = models["gpt2", "all"]
    records, targets = records_of([5, 20])
    scores = model(records)
    right = targets[:, : scores.shape[1]]
    told = [
        functional.cross_entropy(*one, ignore_index=IGNORED)
        for one in zip(scores, right, strict=True)
    ]
    torch.testing.assert_close(TASK.loss(scores, targets), torch.stack(told))
    alone = TASK.loss(model(records[:1]), targets[:1])
    torch.testing.assert_close(TASK.loss(scores, targets)[:1], alone, rtol=1e-12, atol=1e-12)


def test_perplexity_and_accuracy_are_over_all_tokens(models):
    model = models["llama", "all"]
    records, targets = records_of([4, 25, 1])
    tally, nats, right = TASK.tally(), [], []
    for row in range(3):
        scores = model(records[row : row + 1]).detach()
        tally.add(scores, targets[row : row + 1])
        for place, token in enumerate(targets[row].tolist()):
            if token != IGNORED:
                chances = scores[0, place].softmax(0)
                nats.append(-float(chances[token].log()))
                right.append(int(chances.argmax()) == token)
    score = tally.score()
    assert len(nats) == 3 + 24
    assert score.measures["perplexity"] == pytest.approx(float(np.exp(np.mean(nats))), rel=1e-5)
    assert score.accuracy == np.mean(right)


def test_a_text_is_divided_into_sequences_that_begin_with_the_token_before():
    record = in_sequences([5, 6, 7, 8, 9, 10], [False, True, True, True, True, True], 3, 3, 0)
    assert record[0].tolist() == [5, 6, 7, 7, 8, 9, 9, 10, 0]
    assert record[1].tolist() == [1, 2, 2, 4, 4, 4, 6, 6, 0]
    targets = next_tokens(record[None], IGNORED)[0].tolist()
    assert [one for one in targets if one != IGNORED] == [6, 7, 8, 9, 10]
    # What does not fit is cut, and a sequence of the repeated token alone is none.
    assert in_sequences([5, 6, 7, 8], [True] * 4, 3, 1, 0)[0].tolist() == [5, 6, 7]
    assert in_sequences([5, 6, 7], [True] * 3, 3, 2, 0)[1].tolist() == [2, 2, 2, 0, 0, 0]


def told(record):
    """The text of a record's predicted tokens."""
    letters = [*SPECIAL, *LETTERS]
    targets = next_tokens(record[None], IGNORED)[0]
    return "".join(letters[one] for one in targets if one != IGNORED)


def encoder(tmp_path, **keys):
    folder = folder_of("llama", tmp_path)
    return preprocessing_of(spec_of(folder), Task(LanguageTask(sequences=SEQUENCES, **keys)))


def test_texts_end_with_the_end_token_and_answers_may_be_told_alone(tmp_path):
    form = encoder(tmp_path)
    assert form.length == LENGTH * SEQUENCES
    (record,) = form.encode(["a cat."], None)
    assert told(record) == " cat.</s>"
    (record,) = form.encode(["who"], ["me"])
    assert told(record) == "ho\nme</s>"
    (record,) = encoder(tmp_path, loss_on="answer").encode(["who"], ["me"])
    assert told(record) == "me</s>"


def test_of_a_chat_what_the_assistant_says_may_be_told_alone(tmp_path):
    form = encoder(tmp_path, format="chat", loss_on="answer")
    messages = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
    ]  # fmt: skip
    long = preprocessing_of(
        spec_of(folder_of("llama", tmp_path)).replace(length=64),
        Task(LanguageTask(sequences=1, format="chat", loss_on="answer")),
    )
    (record,) = long.encode([json.dumps(messages)], None)
    assert told(record) == "b</s>d</s>"
    (of_two,) = form.encode(["a"], ["b"])
    assert told(of_two) == "b</s>"
    with pytest.raises(DataError, match="text 2 is no JSON list of messages"):
        form.encode(["plain text"], None)
    bare = spec_of(folder_of("gpt2", tmp_path, None))
    without = preprocessing_of(bare, Task(LanguageTask(format="chat")))
    with pytest.raises(DataError, match="has no chat template"):
        without.encode(["[]"], None)


def test_made_up_records_are_of_all_lengths_and_end_in_padding(models):
    model = models["llama", "all"]
    torch.manual_seed(3)
    records = synthetic_records(model, torch.randn(40, 2, LENGTH * SEQUENCES))
    used = (records[:, 1] > 0).sum(1)
    assert len(set(used.tolist())) > 10
    assert int(used.min()) >= 1
    assert bool(((records[:, 1] > 0).int().diff(dim=1) <= 0).all())
    assert int(records[:, 0].max()) < VOCABULARY
    alone = synthetic_records(model, torch.zeros(1, 2, LENGTH * SEQUENCES))
    assert int(alone[:, 1].max()) == 0


def test_other_architectures_are_refused_with_the_reason(tmp_path):
    def refused(**configuration):
        (tmp_path / "config.json").write_text(json.dumps(configuration))
        with pytest.raises(ModelError) as error:
            language.build(spec_of(tmp_path), (2, LENGTH * SEQUENCES))
        return str(error.value)

    assert "an encoder with a decoder (seq2seq)" in refused(model_type="t5")
    assert "no causal language model of type 'vit'" in refused(model_type="vit")
    small_bert = {
        "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "initializer_range": 0.5,
    }  # fmt: skip
    assert "does not keep the sequences" in refused(model_type="bert", **small_bert)
    window = {**CONFIGURATIONS["llama"], "model_type": "mistral", "sliding_window": 3}
    assert "does not keep the sequences" in refused(**window)
    state = {"vocab_size": 40, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1}
    assert "cannot be told which tokens see" in refused(model_type="mamba", **state)
    short = {**CONFIGURATIONS["llama"], "max_position_embeddings": 8}
    assert "reads at most 8 tokens" in refused(**short)


def test_the_padding_token_may_be_any_since_nobody_sees_it():
    class Configuration:
        vocab_size, pad_token_id, eos_token_id = 10, None, [12, 7]

    assert language.padding_of(Configuration()) == 7
    Configuration.eos_token_id = None
    assert language.padding_of(Configuration()) == PADDING
