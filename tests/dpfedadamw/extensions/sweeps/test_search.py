"""Which candidate of a search is best, and when its grid was too narrow."""

from __future__ import annotations

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.extensions.sweeps.search import best_of
from dpfedadamw.spec.document import Place
from dpfedadamw.spec.matrix import Axis, Cell, load_sweep
from dpfedadamw.spec.overrides import Change
from tests.sweeps import UNTUNED

SEARCH = """
tune:
  selection: unaccounted
  score: test_accuracy
  grid:
    algorithm.learning_rate: [0.1, 0.01, 0.5]
    algorithm.schedule: [constant, cosine]
seeds: 2
"""


def searched(tmp_path, score):
    (tmp_path / "search.yaml").write_text(UNTUNED + SEARCH)
    sweep = load_sweep(tmp_path / "search.yaml")
    scores = {
        cell.digest: score(
            cell.spec.algorithm.learning_rate, cell.spec.algorithm.schedule, cell.seed
        )
        for cell in sweep.cells
    }
    return sweep, scores


def test_the_best_is_reported_as_its_trials_or_as_what_is_run_anew(tmp_path):
    sweep, scores = searched(tmp_path, lambda rate, *_: rate)
    best = best_of(sweep.cells, sweep.grids[()], scores)
    assert [cell.seed for cell in best.reported] == [0, 1]
    assert {cell.digest for cell in best.reported} <= scores.keys()

    path = tmp_path / "search.yaml"
    path.write_text(path.read_text().replace("tune:\n", "tune:\n  seeds: [7]\n"))
    sweep = load_sweep(path)
    best = best_of(sweep.cells, sweep.grids[()], {cell.digest: 0.5 for cell in sweep.cells})
    assert [cell.seed for cell in best.reported] == [0, 1]
    assert not {cell.digest for cell in best.reported} & {cell.digest for cell in sweep.cells}


def test_the_best_mean_over_the_seeds_wins_not_the_best_run(tmp_path):
    sweep, scores = searched(
        tmp_path,
        lambda rate, schedule, seed: 0.9 if (rate, seed) == (0.5, 0) else 0.6 * (rate == 0.1),
    )
    best = best_of(sweep.cells, sweep.grids[()], scores)
    assert best.cells[0].candidate == {
        "algorithm.learning_rate": "0.1", "algorithm.schedule": "constant",
    }  # fmt: skip
    assert (best.score, best.candidates, len(best.cells), best.edges) == (0.6, 6, 2, ())


def test_a_best_value_at_the_end_of_an_axis_of_numbers_is_told(tmp_path):
    for end in (0.01, 0.5):
        sweep, scores = searched(tmp_path, lambda rate, *_, end=end: float(rate == end))
        assert best_of(sweep.cells, sweep.grids[()], scores).edges == ("algorithm.learning_rate",)


def test_there_is_no_best_before_every_trial_has_its_score(tmp_path):
    sweep, scores = searched(tmp_path, lambda *_: 0.5)
    del scores[sweep.cells[3].digest]
    assert best_of(sweep.cells, sweep.grids[()], scores) is None


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([0.1], ()),
        ([0.1, 0.2], (0, 1)),
        ([3, 1, 2], (0, 1)),
        ([1, 2, 2.5, 0.5], (2, 3)),
        ([2, 1, "all"], ()),
        (["all", 1, 2], ()),
        ([False, True], ()),
        ([0, 1, True], ()),
        (["a", "b"], ()),
    ],
)
def test_only_the_ends_of_two_or_more_numbers_are_edges(values, ends):
    labels = tuple(str(place) for place in range(len(values)))
    changes = tuple((Change(("a",), value, Place("s.yaml")),) for value in values)
    axes = (Axis("first", labels, changes), Axis("second", labels, changes))
    spec = specs.load("quickstart")
    for best in range(len(values)):
        cells = [
            Cell({}, None, spec, label, {"first": label, "second": labels[0]}) for label in labels
        ]
        scores = {label: float(label == labels[best]) for label in labels}
        edges = best_of(cells, axes, scores).edges
        assert edges == tuple(name for name, at in (("first", best), ("second", 0)) if at in ends)
