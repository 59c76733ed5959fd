"""Overrides: `--set` values are YAML, are checked like the file, and are named where they fail."""

from __future__ import annotations

import pytest

from dpfedadamw import spec
from dpfedadamw.errors import SpecError
from dpfedadamw.models.mlp import MLPSpec

TEXT = """\
name: example
data: {dataset: digits}
model: {name: mlp, hidden: [32]}
algorithm: {name: dp-fedadamw, second_moment: {floor: {relative: 1.0}}}
privacy:
  unit: record
  clipping_norm: 1.0
  noise_multiplier: 2.5
  delta: 1e-5
  sampling: {kind: poisson, expected_batch_size: 32}
randomness: release
"""


def load(*overrides: str) -> spec.Spec:
    return spec.loads(TEXT, "a.yaml", overrides)


def refused(*overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(*overrides)
    return [str(problem) for problem in caught.value.problems]


def test_a_value_is_replaced_and_nothing_else():
    expected = spec.loads(TEXT).to_mapping()
    expected["algorithm"]["learning_rate"] = 0.1
    assert load("algorithm.learning_rate=0.1").to_mapping() == expected


@pytest.mark.parametrize(
    "override", ["model.hidden[0]=64", "model.hidden.0=64", "model.hidden=[64]"]
)
def test_an_item_of_a_list_is_replaced_by_its_index(override):
    assert load(override).model == MLPSpec(hidden=(64,))


def test_values_are_yaml():
    loaded = load("description='a = b: c'", "evaluation={every: 2}", "report.risks=none known")
    assert loaded.description == "a = b: c"
    assert loaded.evaluation.every == 2
    assert loaded.report.risks == "none known"


def test_the_last_of_several_overrides_wins():
    assert load("federation.rounds=3", "federation.rounds=4").federation.rounds == 4


def test_a_section_is_replaced_as_a_whole():
    loaded = load("algorithm={name: dp-fedavg, learning_rate: 0.5}")
    assert loaded.algorithm.name == "dp-fedavg"
    assert "alignment" not in loaded.algorithm.to_mapping()


def test_a_short_form_opens_for_its_keys():
    loaded = load("randomness.mode=reproducible", "randomness.seed=3")
    assert loaded.randomness == spec.ReproducibleRandomnessSpec(seed=3)


def test_a_target_epsilon_leaves_the_noise_multiplier_where_the_algorithm_needs_both():
    for change in ("privacy.target_epsilon=4", "privacy.noise_multiplier=3"):
        privacy = spec.load("digits-ali-dpfl", [change]).privacy
        assert privacy.target_epsilon is not None
        assert privacy.noise_multiplier is not None


def test_a_target_epsilon_clears_the_noise_multiplier_and_the_other_way_round():
    privacy = load("privacy.target_epsilon=4").privacy
    assert (privacy.target_epsilon, privacy.noise_multiplier) == (4.0, None)
    text = spec.dump(spec.replace_noise_multiplier(load("privacy.target_epsilon=4"), 1.5))
    privacy = spec.loads(text, overrides=["privacy.noise_multiplier=3"]).privacy
    assert (privacy.target_epsilon, privacy.noise_multiplier) == (None, 3.0)
    privacy = load("privacy.target_epsilon=4", "privacy.noise_multiplier=3").privacy
    assert (privacy.target_epsilon, privacy.noise_multiplier) == (4.0, 3.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "federation.rounds=0",
            "federation.rounds: found 0; must be an integer from 1 to 1000000",
        ),
        ("federation.round=3", "federation.round: unknown key; did you mean rounds?"),
        ("a.b.c=3", None),
        (
            "model.hidden[0]=x",
            'model.hidden[0]: found the text "x"; must be an integer from 1 to 65536',
        ),
        (
            "model.hidden[3]=8",
            "model.hidden: the list has no item 3; replace it whole: model.hidden=[…]",
        ),
        ("name.first=3", "name: this is a single value without keys; set name itself"),
        ("name=.nan", "name: .nan is not a finite number; give a finite one"),
        ("name=*a", "name: aliases (*a) are not allowed; write the value out"),
        ("name=[1", "name: this is not YAML: expected ',' or ']', but got '<stream end>'"),
        (
            "algorithm.second_moment.floor.absolute=1e-8",
            "algorithm.second_moment.floor.absolute: given together with relative; give exactly "
            "one of "
            "relative and absolute",
        ),
        (
            "algorithm.name=fedadamw",
            None,
        ),
        ("rounds", "not an override; write --set path.to.key=value"),
        ("=3", "not an override; write --set path.to.key=value"),
        ("a..b=3", "not an override; write --set path.to.key=value"),
        (".".join("a" * 21) + "=1", "nested deeper than 20 levels"),
    ],
)
def test_a_bad_override_is_named(override, message):
    lines = refused(override)
    assert any(line.startswith(f"--set {override}: ") for line in lines)
    if message is not None:
        assert lines == [f"--set {override}: {message}"]


def test_a_path_of_twenty_keys_is_refused_for_its_first_and_not_for_its_depth():
    (line,) = refused(".".join("a" * 20) + "=1")
    assert "a: unknown key" in line


def test_problems_of_the_file_keep_their_place_and_come_first():
    text = "version: 2\ndata: {dataset: digits}\nmodel: {name: mlp}\n"
    text += "algorithm: {name: fedavg}\nprivacy: {unit: none}\n"
    with pytest.raises(SpecError) as caught:
        spec.loads(text, "a.yaml", ["federation.rounds=0"])
    assert [str(problem).partition(" ")[0] for problem in caught.value.problems] == [
        "a.yaml:1:10:",
        "--set",
    ]


def test_an_override_mends_what_is_wrong_in_the_file():
    text = "data: {dataset: digits, clients: 0}\nmodel: {name: mlp}\n"
    text += "algorithm: {name: fedavg}\nprivacy: {unit: none}\nfederation: {rounds: 0}\n"
    assert spec.loads(text, overrides=["federation={}", "data.clients=10"])
