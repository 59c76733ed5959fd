"""Secret texts: written as the data are, known without noise and unknown with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

from dpfedadamw.canaries import secrets
from dpfedadamw.canaries.engine import CanaryOrder, draw_canaries
from dpfedadamw.canaries.record import RecordCanaries
from dpfedadamw.canaries.secrets import CANDIDATES
from dpfedadamw.cli.canaries import _secret_rows
from dpfedadamw.experiment import RunError, prepare
from dpfedadamw.preprocessing import next_tokens
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from tests.bench.bench_secrets import WRITTEN, judged, secret_spec
from tests.dpfedadamw.models.small_language_models import SPECIAL, folder_of
from tests.runs import small_spec

STEPS = "federation.local_steps=20"
PEOPLE = (
    "data.person=author",
    "privacy={unit: person, records_per_person: 2, clipping_norm: 1.0, noise_multiplier: 2.0, "
    "delta: 1.0e-5, sampling: {kind: poisson, expected_batch_size: 4}}",
)


def drawn(spec, count=6, kind="secret"):
    """Canaries of an audit run of this spec, not yet planted."""
    coins = ReproducibleRandomness(1).stream("canary coins", -1, -1)
    experiment = prepare(spec, torch.device("cpu"))
    return RecordCanaries.draw(experiment, CanaryOrder(count, kind), coins), experiment


@pytest.fixture(scope="module")
def plain():
    """The canaries and the experiment of the plain spec, which no test changes."""
    return drawn(secret_spec())


def written(tokens):
    return "".join([*SPECIAL, *WRITTEN][token] for token in tokens)


@pytest.mark.thorough
def test_a_private_model_knows_planted_secrets_no_better_than_those_it_never_saw():
    found = judged(secret_spec((STEPS,)), 10)
    assert found.verdict.value == "PASS", found.measurement
    told, scores = found.details["secrets"], found.details["scores"]
    # Every rank is equally likely: 1.42 bits, with a standard deviation of 0.6 of six secrets.
    assert told["there"]["exposure"] < told["unseen_exposure"] + 3 * 0.6
    assert told["there"]["repeated"] == 0
    assert 0.5 < scores["epsilon_these_steps"] < scores["claimed_epsilon"] <= 2.0
    assert "exposure" in found.measurement


@pytest.mark.slow
def test_without_noise_secrets_are_known_and_contradict_the_claim():
    found = judged(secret_spec((STEPS,)), 10, noise=0.0)
    assert found.verdict.value == "FAIL", found.measurement
    told, scores = found.details["secrets"], found.details["scores"]
    assert told["there"]["exposure"] > 6.0
    # Of four unseen secrets the standard deviation is 0.7.
    assert told["not_there"]["exposure"] < told["unseen_exposure"] + 3 * 0.7
    assert told["there"]["chance"] > 1e4 * told["not_there"]["chance"]
    assert scores["epsilon_these_steps"] > 10 * scores["claimed_epsilon"]


def test_the_command_line_tells_both_kinds_of_secrets_apart():
    there = {"secrets": 6, "exposure": 7.5, "repeated": 2, "interval": [0.04, 0.78], "chance": 0.1}
    told = {"candidates": 256, "unseen_exposure": 1.42, "there": there, "not_there": None}
    rows = dict(_secret_rows(told))
    assert list(rows) == ["secrets there"]
    said = "exposure 7.50 bits (1.42 of an unseen one); 2 of 6 repeated by greedy decoding; "
    assert rows["secrets there"].startswith(said)
    other = dict(_secret_rows({**told, "not_there": {**there, "repeated": 0}}))
    assert "0 of 6 repeated" in other["secrets not there"]


class _Sure(torch.nn.Module):
    """Scores each right next token of one record higher than all others."""

    vocabulary = len(SPECIAL) + len(WRITTEN)

    def __init__(self, record, height):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._right = torch.from_numpy(next_tokens(record[None], 0))[0]
        self._height = height

    def forward(self, records):
        shape = (len(records), records.shape[2], self.vocabulary)
        scores = torch.zeros(shape)
        scores[:, torch.arange(shape[1]), self._right] = self._height
        return scores


@pytest.mark.parametrize("height", [0.0, 5.0, math.nan, -5.0])
def test_rank_greedy_decoding_and_chance_follow_from_the_scores_of_the_code(plain, height):
    setup, _ = plain
    made = replace(setup.secrets, prompts=setup.secrets.prompts[:1])
    canaries = replace(setup.canaries, client=np.zeros(1, np.int64))
    model = _Sure(made.records(0)[0], height)
    found = made.known(canaries, model)
    best = height == 5.0
    assert int(found["candidates"]) == CANDIDATES == len(set(made.codes[0]))
    assert found["rank"].tolist() == [1 if best else CANDIDATES]
    assert found["repeated"].tolist() == [best]
    if math.isnan(height):
        assert np.isnan(found["nats"][0])
        return
    # Eight digits and the hyphen between them.
    others = (model.vocabulary - 1) * math.exp(-height)
    assert found["nats"][0] == pytest.approx(9 * math.log1p(others), rel=1e-5)


def test_secrets_are_the_same_for_the_same_spec_and_each_has_a_prompt_of_its_own(plain):
    (first, _), (again, _) = plain, drawn(secret_spec())
    assert first.secrets.prompts == again.secrets.prompts
    assert first.secrets.codes == again.secrets.codes
    assert len(set(first.secrets.prompts)) == 6
    records, targets = first.secrets.planted(first.canaries)
    text = written(records[0, 0][records[0, 1] > 0])
    prompt, code = first.secrets.prompts[0], first.secrets.codes[0][0]
    assert text == f"<s>{prompt}\n{code}</s>".replace("<s>", "", 1)
    # Of an answer alone the code and the end are to be foretold.
    assert (targets[0] >= 0).sum() == len(code) + 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("data.text=[question]", "task.loss_on=text"), "{prompt} {code}</s>"),
        (("task.format=chat",), "<user>{prompt}</s><assistant>{code}</s>"),
    ],
)
def test_secrets_are_written_in_the_datas_own_form(changes, says):
    setup, _ = drawn(secret_spec(("model.length=64", *changes)))
    records, _ = setup.secrets.planted(setup.canaries)
    prompt, code = setup.secrets.prompts[2], setup.secrets.codes[2][0]
    assert written(records[2, 0][records[2, 1] > 0]) == says.format(prompt=prompt, code=code)


def test_a_list_of_messages_holds_the_code_in_its_answer():
    assert json.loads(secrets._chat("The code is", "12")) == [
        {"role": "user", "content": "The code is"},
        {"role": "assistant", "content": "12"},
    ]


def test_all_texts_of_a_person_hold_one_secret():
    people = (*PEOPLE, "federation.clients_per_person=2")
    setup, experiment = drawn(secret_spec(people), 4)
    records, _ = setup.secrets.planted(setup.canaries)
    assert len(setup.secrets.prompts) == 4
    person = setup.canaries.person
    for one in range(4):
        assert len(np.unique(records[person == one], axis=0)) == 1
    # As many rows as the person has texts.
    rows, _ = setup.canaries.rows(setup.canaries.of_client(0))
    assert len(rows) > len(np.unique(setup.canaries.person[setup.canaries.client == 0]))
    assert experiment.people is not None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lambda tmp_path: small_spec(), "task.kind is classification; use gradient or input"),
        (
            lambda tmp_path: secret_spec(("model.length=24",)),
            "a sequence of 24 tokens is too short for a secret text; set model.length higher",
        ),
        (
            lambda tmp_path: secret_spec((f"model.source={folder_of('llama', tmp_path)}",)),
            "writes different codes of digits alike",
        ),
        (
            lambda tmp_path: secret_spec(
                ("model.fine_tuning={kind: lora, rank: 2, alpha: 4, dropout: 0.1}",)
            ),
            "has dropout",
        ),
    ],
)
def test_what_cannot_hold_a_secret_is_refused_in_one_line(spec, message, tmp_path):
    with pytest.raises(RunError, match=message) as error:
        drawn(spec(tmp_path))
    assert str(error.value).startswith("--canary-kind secret: ")
    assert "\n" not in str(error.value)


def test_secrets_of_more_clients_than_one_are_drawn_as_other_canaries_are(plain):
    setup, experiment = plain
    sizes = np.bincount(experiment.owner).tolist()
    order = CanaryOrder(6, "secret")
    coins = ReproducibleRandomness(1).stream("canary coins", -1, -1)
    parameters = sum(one.numel() for one in experiment.model.parameters())
    expected = draw_canaries(order, sizes, parameters, False, coins)
    np.testing.assert_array_equal(setup.canaries.included, expected.included)
    np.testing.assert_array_equal(setup.canaries.row, expected.row)


def test_a_model_that_is_asked_in_pieces_knows_what_it_knows_as_a_whole():
    pairs = "model.fine_tuning={kind: lora, rank: 2, alpha: 4, dropout: 0.0}"
    setup, experiment = drawn(secret_spec((pairs,)), 2)
    model = experiment.model.eval()
    assert model.in_pieces
    found = setup.secrets.known(setup.canaries, model)
    model.answer_with_scores()
    whole = setup.secrets.known(setup.canaries, model)
    assert found["rank"].tolist() == whole["rank"].tolist()
    np.testing.assert_allclose(found["nats"], whole["nats"], rtol=1e-5)


def test_secrets_of_people_are_judged_by_the_persons_claim():
    found = judged(secret_spec((*PEOPLE, "federation.local_steps=3")), 8)
    assert found.verdict.value != "FAIL", found.measurement
    assert found.details["unit"] == "person"
    assert sum(found.details["secrets"][name]["secrets"] for name in ("there", "not_there")) == 8
    assert "scores" in found.details
