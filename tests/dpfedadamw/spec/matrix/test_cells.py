"""Every combination is a spec of its own, found by what is run."""

from __future__ import annotations

import hashlib
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.spec.matrix import cells, load_sweep
from tests.sweeps import BASE, METHODS, problems_of, swept, with_own_seeds


def test_every_combination_is_a_cell_and_lists_of_one_axis_are_taken_together(tmp_path):
    sweep = swept(tmp_path, METHODS)
    assert [tuple(cell.values.values()) for cell in sweep.cells] == [
        ("1.0", "SGD"), ("1.0", "Adam"), ("2.0", "SGD"), ("2.0", "Adam"),
    ]  # fmt: skip
    assert [
        (
            cell.spec.privacy.noise_multiplier,
            cell.spec.algorithm.name,
            cell.spec.federation.local_steps,
        )
        for cell in sweep.cells
    ] == [
        (1.0, "dp-fedavg", 3),
        (1.0, "dp-fedadamw", 2),
        (2.0, "dp-fedavg", 3),
        (2.0, "dp-fedadamw", 2),
    ]
    assert len({cell.digest for cell in sweep.cells}) == 4


def test_cells_keep_the_digests_under_which_results_were_filed(tmp_path):
    """As commit e1726fb computed them: with others, each sweep would begin anew."""
    assert [cell.digest[:16] for cell in swept(tmp_path, METHODS).cells] == [
        "48b4666268786445",
        "31668b4c52765be3",
        "93a815d023e490f3",
        "7c7225f09f4d2bea",
    ]


def test_a_cell_is_the_spec_that_the_same_overrides_make(tmp_path):
    for cell in swept(tmp_path, METHODS).cells:
        noise, method = cell.values.values()
        algorithm = {
            "SGD": "{name: dp-fedavg, learning_rate: 0.1}",
            "Adam": "{name: dp-fedadamw, learning_rate: 0.02}",
        }[method]
        steps = {"SGD": 3, "Adam": 2}[method]
        assert cell.spec == specs.loads(
            BASE,
            overrides=[
                f"privacy.noise_multiplier={noise}",
                f"algorithm={algorithm}",
                f"federation.local_steps={steps}",
            ],
        )


def test_a_target_replaces_the_noise_that_was_solved_for_another(tmp_path):
    sweep = swept(tmp_path, "matrix: {privacy.target_epsilon: [4, 8]}\n")
    assert [cell.spec.privacy.target_epsilon for cell in sweep.cells] == [4, 8]
    assert {cell.spec.privacy.noise_multiplier for cell in sweep.cells} == {None}


def test_in_release_mode_a_repetition_is_a_cell_of_its_own_without_any_seed_in_its_spec(tmp_path):
    cells = swept(
        tmp_path, "seeds: {numbers: 2, vary: [run]}\n", ["randomness={mode: release}"]
    ).cells
    assert cells[0].spec == cells[1].spec
    assert cells[0].digest != cells[1].digest


def test_a_name_and_texts_make_no_other_cell(tmp_path):
    one = swept(tmp_path, METHODS).cells
    texts = ["name=another", "description=Says more.", "report.purpose=Reading digits."]
    other = swept(tmp_path, METHODS, texts).cells
    assert [cell.digest for cell in one] == [cell.digest for cell in other]


def test_cells_whose_servers_publish_other_averages_of_models_are_other_cells(tmp_path):
    averaged = "algorithm={{name: dp-fedavg, server: {{averaging: {}}}}}"
    digests = {
        swept(tmp_path, "seeds: 1\n", [averaged.format(power)]).cells[0].digest
        for power in ("null", 4, 8)
    }
    assert len(digests) == 3
    # A rule that knows no average has a digest too.
    other = ["algorithm={name: ali-dpfl}", "privacy.target_epsilon=8"]
    (cell,) = swept(tmp_path, "seeds: 1\n", other).cells
    assert cell.digest not in digests


@settings(max_examples=12)
@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3), seeds=st.integers(1, 3))
def test_there_are_as_many_cells_as_combinations(lengths, seeds, tmp_path_factory):
    fields = ("federation.rounds", "federation.local_steps", "evaluation.every")
    axes = {name: list(range(1, length + 1)) for name, length in zip(fields, lengths, strict=False)}
    text = "matrix:\n" + "".join(f"  {name}: {values}\n" for name, values in axes.items())
    sweep = swept(tmp_path_factory.mktemp("sweep"), f"{text}seeds: {seeds}\n")
    labels = [tuple(map(int, cell.values.values())) for cell in sweep.cells]
    assert labels == [values for values in itertools.product(*axes.values()) for _ in range(seeds)]


def test_more_runs_than_anybody_means_are_refused_before_any_is_made(tmp_path):
    numbers = list(range(1, 102))
    text = f"matrix: {{federation.rounds: {numbers}, federation.local_steps: {numbers}}}\n"
    assert "10201 runs, but a sweep has at most 10,000" in problems_of(tmp_path, text)


def test_a_trial_keeps_the_digest_that_it_had_before_searches_had_seeds_of_their_own(tmp_path):
    path = tmp_path / "search.yaml"
    spec = specs.loads(BASE, overrides=["name=cell", "evaluation.every=1"])
    text = specs.dump(spec).replace(
        "selection: none", "selection: unaccounted\n  score: test_accuracy"
    )
    path.write_text(
        text.replace(
            "score: test_accuracy", "score: test_accuracy\n  grid: {evaluation.every: [1]}"
        )
    )
    (cell,) = load_sweep(path).cells
    # What came later, and is nothing of what is run, changes no digest.
    earlier, count = re.subn(
        r"^  engine: inline\n  workers: 1\n  drop_outs: 0\n"
        r"|^  governance:\n(    .*\n)*  paper: a4\n  language: en\n"
        r"|^task:\n(  .*\n)*"
        r"|^  clients_per_person: 1\n"
        r"|^  public_test: null\n  metrics: \[\]\n"
        r"|^    averaging: null\n",
        "",
        text,
        flags=re.MULTILINE,
    )
    assert count == 6
    assert cell.digest == hashlib.sha256(earlier.encode()).hexdigest()


def test_the_cells_of_a_search_count_with_what_its_best_is_run_as(tmp_path, monkeypatch):
    with_own_seeds(tmp_path)
    monkeypatch.setattr(cells, "MOST_CELLS", 6)
    with pytest.raises(SpecError, match="7 runs, but a sweep"):
        with_own_seeds(tmp_path)
