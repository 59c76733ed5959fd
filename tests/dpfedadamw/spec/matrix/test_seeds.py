"""Under which numbers cells are repeated, and what varies with them."""

from __future__ import annotations

import pytest

from dpfedadamw.errors import SpecError
from dpfedadamw.spec import load
from tests.runs import small_spec
from tests.sweeps import BASE, OWN_SEEDS, problems_of, searched_for, swept, with_own_seeds


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


@pytest.mark.parametrize("mode", ["reproducible", "release"])
def test_every_repetition_is_the_spec_that_its_numbers_make(mode, tmp_path):
    base = BASE if mode == "reproducible" else BASE.replace("seed: 1\n", "seed: null\n")
    base = base.replace("mode: reproducible", f"mode: {mode}")
    (tmp_path / "s.yaml").write_text(base)
    vary = "{numbers: [3, 0, 7], vary: [data, partition, weights, run]}"
    fields = ["data.seed", "data.partition.seed", "model.seed"]
    fields += ["randomness.seed"] if mode == "reproducible" else []
    for cell in swept(tmp_path, f"seeds: {vary}\n", base=base).cells:
        changes = [f"{field}={cell.seed}" for field in fields]
        assert cell.spec == load(tmp_path / "s.yaml", changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        ("seeds: {numbers: 2, vary: [[weights]]}\n", "seeds.vary: what the seeds vary: a list"),
        ("seeds: {numbers: 2, vary: [{a: b}]}\n", "seeds.vary: what the seeds vary: a list"),
    ],
)
def test_seeds_that_are_none_are_told_with_their_place(text, message, tmp_path):
    said = problems_of(tmp_path, text)
    assert message in said
    assert said.startswith("sweep.yaml:")


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
            "tune.seeds: has 2 in common with seeds, so the result would be reported on",
        ),
        (
            OWN_SEEDS.format(selection="unaccounted", seeds="2").replace("seeds: [0, 1, 2]", ""),
            "the best candidate is run again with each of seeds, which is missing",
        ),
        (
            OWN_SEEDS.format(selection="private", seeds="2").replace(
                "  score: test_accuracy\n", ""
            ),
            "tune.seeds: the ε of a private selection covers publishing the winning trial",
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
