"""A spec with a matrix: its cells, their seeds, and what is said where one cannot be."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.spec import matrix
from dpfedadamw.spec.matrix import load_sweep
from tests.runs import small_spec

BASE = specs.dump(small_spec())
UNTUNED = BASE.replace("tune:\n  selection: none\n", "")
METHODS = """
matrix:
  privacy.noise_multiplier: [1.0, 2.0]
  method:
    label: [SGD, Adam]
    algorithm:
      - {name: dp-fedavg, learning_rate: 0.1}
      - {name: dp-fedadamw, learning_rate: 0.02}
    federation.local_steps: [3, 2]
"""


def swept(tmp_path, text, changes=(), base=BASE):
    path = tmp_path / "sweep.yaml"
    path.write_text(base + text)
    return load_sweep(path, changes)


def problems_of(tmp_path, text) -> str:
    with pytest.raises(SpecError) as caught:
        swept(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


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


@pytest.mark.parametrize(
    ("seeds", "changed"),
    [
        ("3", {"model", "randomness"}),
        ("[0, 1, 2]", {"model", "randomness"}),
        ("{numbers: 3, vary: [run]}", {"randomness"}),
        ("{numbers: 3, vary: [data]}", {"data"}),
        ("{numbers: 3, vary: [partition, weights]}", {"data", "model"}),
    ],
)
def test_seeds_vary_what_they_are_asked_to(seeds, changed, tmp_path):
    cells = swept(tmp_path, f"seeds: {seeds}\n").cells
    assert [cell.seed for cell in cells] == [0, 1, 2]
    one, other = (cell.spec.to_mapping() for cell in cells[1:])
    assert {key for key in one if one[key] != other[key]} == changed


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


def test_a_plain_spec_is_a_sweep_of_one_cell(tmp_path):
    sweep = swept(tmp_path, "")
    assert [cell.spec for cell in sweep.cells] == [small_spec()]
    assert sweep.cells[0].label == "only"


@settings(deadline=None, max_examples=12)
@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3), seeds=st.integers(1, 3))
def test_there_are_as_many_cells_as_combinations(lengths, seeds, tmp_path_factory):
    fields = ("federation.rounds", "federation.local_steps", "evaluation.every")
    axes = {name: list(range(1, length + 1)) for name, length in zip(fields, lengths, strict=False)}
    text = "matrix:\n" + "".join(f"  {name}: {values}\n" for name, values in axes.items())
    sweep = swept(tmp_path_factory.mktemp("sweep"), f"{text}seeds: {seeds}\n")
    labels = [tuple(map(int, cell.values.values())) for cell in sweep.cells]
    assert labels == [values for values in itertools.product(*axes.values()) for _ in range(seeds)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "matrix: 3\n",
            "matrix: a section of axes is due, such as algorithm.learning_rate: [0.02, 0.05]",
        ),
        (
            "matrix: {federation.rounds: 3}\n",
            "matrix.federation.rounds: a list of values, or a section of fields "
            "with a list each, is due",
        ),
        (
            "matrix: {federation.rounds: []}\n",
            "matrix.federation.rounds: a list of at least one value is due",
        ),
        (
            "matrix: {federation.rounds: [2, 2]}\n",
            "matrix.federation.rounds: 2 stands there twice; every value once, and every label",
        ),
        (
            "matrix: {federation.rounds: [2, 0]}\n",
            "federation.rounds: found 0; must be an integer from 1 to 1000000",
        ),
        (
            "matrix: {federation.turns: [2]}\n",
            "federation.turns: unknown key",
        ),
        (
            "matrix: {size: {federation.rounds: [2, 3], federation.local_steps: [1]}}\n",
            "lists that are taken together have one length; federation.rounds has "
            "2, federation.local_steps has 1",
        ),
        (
            "matrix: {size: {federation.rounds: [2, 3], label: [a, 7]}}\n",
            "a label is a text of 1 to 100 characters",
        ),
        (
            "matrix: {algorithm: [{name: dp-fedavg}], algorithm.learning_rate: [1.0]}\n",
            "algorithm.learning_rate is set by algorithm too; one axis sets a field",
        ),
        (
            "seeds: 0\n",
            "seeds: how many seeds, 1 to 1,000, or a list of their numbers",
        ),
        (
            "seeds: [1, 1]\n",
            "seeds: every seed once",
        ),
        (
            "seeds: {vary: [run]}\n",
            "seeds: the keys are numbers and vary, not vary alone",
        ),
        (
            "seeds: {numbers: 2, vary: [noise]}\n",
            "seeds.vary: what the seeds vary: a list of some of data, partition, weights, run",
        ),
    ],
)
def test_what_cannot_be_swept_is_said_with_its_place(text, message, tmp_path):
    said = problems_of(tmp_path, text)
    assert message in said
    assert said.startswith("sweep.yaml:")


def test_more_runs_than_anybody_means_are_refused_before_any_is_made(tmp_path):
    numbers = list(range(1, 102))
    text = f"matrix: {{federation.rounds: {numbers}, federation.local_steps: {numbers}}}\n"
    assert "these are 10201 runs, and at most 10,000 are one sweep" in problems_of(tmp_path, text)


def test_a_command_for_one_run_refuses_a_sweep(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(BASE + METHODS)
    with pytest.raises(
        SpecError, match="this spec means several runs; start them with: dpfedadamw"
    ):
        specs.load(path)


SEARCH = """
tune:
  selection: {selection}
  grid: {{algorithm.learning_rate: [0.1, 0.5]}}
"""


def searched_for(tmp_path, text, base=None):
    (tmp_path / "search.yaml").write_text((base or UNTUNED) + text)
    return load_sweep(tmp_path / "search.yaml")


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
            "missing; say by what the search is accounted for: private, public or unaccounted",
        ),
        (SEARCH.format(selection="public"), "give the section data of the public records"),
        (
            SEARCH.format(selection="unaccounted") + "  data: {dataset: digits}\n",
            "is searched on where selection is public",
        ),
        (SEARCH.format(selection="unaccounted"), "0, and candidates are scored on public"),
        (SEARCH.format(selection="private"), "0, and candidates are scored on public"),
        (
            SEARCH.format(selection="private") + "  score: test_accuracy\n",
            "not used when selection is private",
        ),
        ("tune: {selection: public, data: {dataset: digits}}", "tune.grid, which is missing"),
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


OWN_SEEDS = """
seeds: [0, 1, 2]
tune:
  selection: {selection}
  score: test_accuracy
  seeds: {seeds}
  grid: {{algorithm.learning_rate: [0.1, 0.5]}}
"""


def with_own_seeds(tmp_path, seeds="[100, 101]", selection="unaccounted"):
    return searched_for(tmp_path, OWN_SEEDS.format(seeds=seeds, selection=selection))


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
    assert cell.digest == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("seeds", "numbers"),
    [("2", [1000, 1001]), ("{numbers: [7], vary: [weights]}", [7])],
)
def test_seeds_of_a_search_are_written_like_seeds_and_a_count_meets_none_of_these(
    seeds, numbers, tmp_path
):
    cells = with_own_seeds(tmp_path, seeds).cells
    assert [cell.seed for cell in cells] == numbers * 2
    varied = {cell.spec.randomness.seed for cell in cells}
    assert varied == ({small_spec().randomness.seed} if "vary" in seeds else set(numbers))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            OWN_SEEDS.format(selection="unaccounted", seeds="[2, 3]"),
            "tune.seeds: 2 stands in seeds too, and the search would be reported on a seed that it",
        ),
        (
            OWN_SEEDS.format(selection="unaccounted", seeds="2").replace("seeds: [0, 1, 2]", ""),
            "the best candidate is run anew with each number of seeds, which is missing",
        ),
        (
            OWN_SEEDS.format(selection="private", seeds="2").replace(
                "  score: test_accuracy\n", ""
            ),
            "tune.seeds: the ε of a private selection is that of publishing the winning trial",
        ),
        (
            "seeds: 2\ntune: {selection: unaccounted, score: test_accuracy, seeds: 2}",
            "tune.seeds: belongs to a search over tune.grid, which is missing",
        ),
        (
            OWN_SEEDS.format(selection="unaccounted", seeds="[5, 5]"),
            "tune.seeds: every seed once",
        ),
        (
            "matrix: {tune.seeds: [[7], [8]]}\n" + OWN_SEEDS.format(selection="public", seeds="2"),
            "every search has the same seeds; give tune.seeds outside the matrix",
        ),
    ],
)
def test_seeds_of_a_search_that_would_decide_what_is_reported_are_refused(text, message, tmp_path):
    with pytest.raises(SpecError) as caught:
        searched_for(tmp_path, text)
    said = [str(problem) for problem in caught.value.problems]
    assert any(message in one for one in said)
    assert not any("\n" in one for one in said)


def test_the_cells_of_a_search_count_with_what_its_best_is_run_as(tmp_path, monkeypatch):
    with_own_seeds(tmp_path)
    monkeypatch.setattr(matrix, "MOST_CELLS", 6)
    with pytest.raises(SpecError, match="these are 7 runs"):
        with_own_seeds(tmp_path)


def test_a_private_selection_is_of_one_spec(tmp_path):
    base = BASE.replace("fraction: 0.0\n    public: false", "fraction: 0.5\n    public: true")
    base = base.replace("tune:\n  selection: none\n", "")
    for key in ("seeds: 2\n", "matrix: {algorithm.schedule: [constant, cosine]}\n"):
        with pytest.raises(SpecError, match="a private selection is of one spec"):
            searched_for(tmp_path, SEARCH.format(selection="private") + key, base)
