"""How a combination is searched, and what the best candidate is run as."""

from __future__ import annotations

import pytest

from dpfedadamw.errors import SpecError
from tests.sweeps import BASE, OWN_SEEDS, SEARCH, searched_for, with_own_seeds


def test_each_combination_of_the_matrix_is_searched_by_itself_over_its_own_grid(tmp_path):
    sweep = searched_for(
        tmp_path,
        """
matrix:
  method:
    label: [SGD, Adam]
    algorithm: [{name: dp-fedavg, learning_rate: 1}, {name: dp-fedadamw, learning_rate: 1}]
    tune.grid: [{algorithm.learning_rate: [0.1, 0.5]}, {algorithm.learning_rate: [0.01, 0.05]}]
tune: {selection: unaccounted, score: test_accuracy}
""",
    )
    rates = {
        labels: [cell.spec.algorithm.learning_rate for cell in cells]
        for labels, cells in sweep.searches.items()
    }
    assert rates == {("SGD",): [0.1, 0.5], ("Adam",): [0.01, 0.05]}
    # Trials are marked, so none of them is the cell of a plain sweep.
    plain = searched_for(tmp_path, "matrix: {algorithm.learning_rate: [0.1, 0.5]}\n")
    assert not {cell.digest for cell in sweep.cells} & {cell.digest for cell in plain.cells}


def test_a_search_on_public_records_trains_the_best_on_the_private_ones_after_all(tmp_path):
    data = "  data: {dataset: digits, clients: 3, validation: {fraction: 0.5, public: true}}\n"
    base = BASE.replace("fraction: 0.0\n    public: false", "fraction: 0.5\n    public: true")
    base = base.replace("tune:\n  selection: none\n", "")
    text = SEARCH.format(selection="public").rstrip("\n") + "\n" + data
    cells = searched_for(tmp_path, text.replace("clients: 3,", "clients: 4,"), base).cells
    assert [cell.spec.data.clients for cell in cells] == [4, 4]
    released = [one.spec for cell in cells for one in cell.released]
    assert [spec.data.clients for spec in released] == [5, 5]
    assert {spec.tune.dataset for spec in released} == {"digits"}
    assert [spec.algorithm.learning_rate for spec in released] == [0.1, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tune: {grid: {algorithm.learning_rate: [0.1]}}",
            "missing; state how the search is accounted for: private, public or unaccounted",
        ),
        (SEARCH.format(selection="public"), "give a section data with the public records"),
        (
            SEARCH.format(selection="unaccounted") + "  data: {dataset: digits}\n",
            "is for selection public",
        ),
        (SEARCH.format(selection="unaccounted"), "0, and candidates are scored on public"),
        (SEARCH.format(selection="private"), "0, and candidates are scored on public"),
        (
            SEARCH.format(selection="private") + "  score: test_accuracy\n",
            "not used when selection is private",
        ),
        ("tune: {selection: public, data: {dataset: digits}}", "tune.grid, which is missing"),
        # Every trial of such a grid was the same, and one of them was called the best.
        (
            "tune: {selection: public, data: {dataset: digits, clients: 5}, "
            "grid: {data.clients: [5, 10]}}",
            "data.clients varies nothing: trials of a public search have tune.data in the place",
        ),
        (
            "tune: {selection: public, data: {dataset: digits, clients: 5}, "
            "grid: {both: {algorithm.learning_rate: [0.1, 0.5], data: [{}, {}]}}}",
            "data varies nothing",
        ),
        (
            "matrix: {tune.grid: [{algorithm.learning_rate: [1, 2]}, {algorithm.learning_rate: "
            "[3]}]}\ntune: {selection: unaccounted, score: test_accuracy}",
            "compare at equal effort",
        ),
    ],
)
def test_a_search_that_cannot_be_honest_is_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(SpecError) as caught:
        searched_for(tmp_path, text)
    said = [str(problem) for problem in caught.value.problems]
    assert any(message in one for one in said)
    assert not any("\n" in one for one in said)


def test_a_search_has_seeds_of_its_own_and_the_best_is_run_anew_with_each_that_is_reported(
    tmp_path,
):
    cells = with_own_seeds(tmp_path).cells
    assert [(cell.spec.algorithm.learning_rate, cell.seed) for cell in cells] == [
        (0.1, 100), (0.1, 101), (0.5, 100), (0.5, 101),
    ]  # fmt: skip
    assert [cell.spec.randomness.seed for cell in cells] == [100, 101] * 2
    for cell in cells:
        assert [one.seed for one in cell.released] == [0, 1, 2]
        assert [one.spec.model.seed for one in cell.released] == [0, 1, 2]
        assert {one.spec.algorithm for one in cell.released} == {cell.spec.algorithm}
        assert {one.labels["algorithm.learning_rate"] for one in cell.released} == {
            cell.candidate["algorithm.learning_rate"]
        }
    assert len({one.digest for cell in cells for one in (cell, *cell.released)}) == 4 + 6


def test_what_is_run_anew_says_which_seeds_it_was_chosen_by_and_a_trial_is_that_of_any_search(
    tmp_path,
):
    cells = with_own_seeds(tmp_path).cells
    assert {cell.spec.tune.search_seeds for cell in cells} == {()}
    assert {one.spec.tune.search_seeds for cell in cells for one in cell.released} == {(100, 101)}
    text = OWN_SEEDS.format(seeds="[100, 101]", selection="unaccounted")
    text = text.replace("seeds: [0, 1, 2]", "seeds: [100, 101]").replace(
        "  seeds: [100, 101]\n", ""
    )
    alone = searched_for(tmp_path, text).cells
    assert [cell.digest for cell in alone] == [cell.digest for cell in cells]
    assert not any(cell.released for cell in alone)
