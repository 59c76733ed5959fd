"""What each figure draws, and the numbers of its table, from given measurements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpfedadamw.extensions.figures.charts import Drawing, Level, Line, Panel, Stairs
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.mechanism.bias_shift import BiasShift
from dpfedadamw.extensions.figures.mechanism.drift import Drift, DriftObserver
from dpfedadamw.extensions.figures.mechanism.hessian import Spectrum
from dpfedadamw.extensions.figures.mechanism.iterations import Iterations
from dpfedadamw.extensions.figures.mechanism.loss_landscape import Landscape
from dpfedadamw.extensions.figures.mechanism.moments import Moments
from dpfedadamw.extensions.figures.mechanism.second_moment_variance import (
    VarianceObserver,
    Variances,
)
from dpfedadamw.extensions.figures.mechanism.update_norms import NormObserver, UpdateNorms
from dpfedadamw.extensions.figures.registry import FIGURES, Measured

NAN = float("nan")


def composed(name: str, *numbers: Any) -> Drawing:
    """A figure of runs that are called a, b, …"""
    runs = [Measured(label="ab"[place], numbers=one) for place, one in enumerate(numbers)]
    return FIGURES[name].compose(runs)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def lines(panel: Panel) -> list[tuple[Any, ...]]:
    """Label, series, variant and points of each line of a panel."""
    return [
        (one.label, one.series, one.variant, one.x.tolist(), one.y.tolist())
        for one in panel.marks
        if isinstance(one, Line)
    ]


def axes(drawing: Drawing) -> list[tuple[bool, bool]]:
    """Of each panel whether it counts across, and whether it is logarithmic."""
    return [(panel.whole_x, panel.log_y) for panel in drawing.chart.panels]


def test_the_variance_of_each_run_is_a_line_and_a_row_a_round():
    one = Variances(floats(1, 2), floats(0.5, 0.25), floats(3, 2))
    drawing = composed("second-moment-variance", one, Variances(*(floats(v) for v in (2, 4, 5))))
    (panel,) = drawing.chart.panels
    assert lines(panel) == [("a", 0, 0, [1, 2], [0.5, 0.25]), ("b", 1, 0, [2], [4])]
    assert axes(drawing) == [(True, True)]
    assert drawing.table.rows == [("a", 1, 3, 0.5), ("a", 2, 2, 0.25), ("b", 2, 5, 4.0)]


def test_the_variance_across_clients_is_that_of_each_round_by_itself():
    observer = VarianceObserver()
    three, two = [(1.0, 4.0), (3.0, 4.0), (5.0, 7.0)], [(0.0, 0.0), (2.0, 0.0)]
    for index, moments in enumerate((three, [(2.0, 2.0)], [], two)):
        for moment in moments:
            observer.moments(SimpleNamespace(moment=torch.tensor(moment)))
        observer.closes(SimpleNamespace(index=index))
    found = observer.found()
    # Of 1, 3, 5 it is 4, of 4, 4, 7 it is 3; and a single client has none.
    assert found.rounds.tolist() == [1, 4]
    assert found.variances == pytest.approx([3.5, 1.0])
    assert found.clients.tolist() == [3, 2]
    with pytest.raises(FigureError, match="no round has two clients"):
        VarianceObserver().found()


def test_drift_is_of_each_round_by_itself_and_a_client_that_did_not_move_has_no_direction():
    observer = DriftObserver()
    updates = [
        [(3.0, 4.0), (0.0, 2.0), (0.0, 0.0)],
        [],
        [(1.0, 0.0)],
        [(float("inf"), 0.0), (0.0, 0.5), (0.0, -2.0)],
    ]
    for index, of_clients in enumerate(updates):
        for update in of_clients:
            observer.trained(SimpleNamespace(update=torch.tensor(update)))
        observer.closes(SimpleNamespace(index=index))
    found = observer.found()
    assert found.rounds.tolist() == [1, 3, 4]
    assert found.clients.tolist() == [3, 1, 3]
    assert found.mean_distance == pytest.approx([7 / 3, 1, np.inf])
    assert found.least_distance.tolist() == [0, 1, 0.5]
    assert found.greatest_distance.tolist() == [5, 1, np.inf]
    assert found.cosine == pytest.approx([0.8, NAN, -1.0], nan_ok=True)
    with pytest.raises(FigureError, match="no client took part"):
        DriftObserver().found()


def test_distances_are_shaded_and_cosines_drawn_where_there_are_pairs():
    one = Drift(*(floats(*v) for v in ((1, 2), (3, 1), (2, 4), (1, 4), (3, 4), (0.5, NAN))))
    drawing = composed("drift", one)
    distance, cosine = drawing.chart.panels
    (line,) = distance.marks
    assert lines(distance) == [("a", 0, 0, [1, 2], [2, 4])]
    assert (line.low.tolist(), line.high.tolist()) == ([1, 4], [3, 4])
    assert cosine.marks[0].y == pytest.approx([0.5, NAN], nan_ok=True)
    assert axes(drawing) == [(True, True), (True, False)]
    assert drawing.table.rows == [
        ("a", 1, 3, 2.0, 1.0, 3.0, 0.5), ("a", 2, 1, 4.0, 4.0, 4.0, None),
    ]  # fmt: skip
    assert "agreement between clients" in drawing.chart.title
    alone = Drift(*(floats(v) for v in (1, 1, 2, 2, 2, NAN)))
    drawing = composed("drift", alone)
    assert len(drawing.chart.panels) == 1
    assert "agreement" not in drawing.chart.title
    both = composed("drift", alone, one)
    assert [mark.series for mark in both.chart.panels[1].marks] == [0, 1]


BIAS = BiasShift(
    rounds=floats(1, 2),
    noise_variance=floats(2, 4),
    noised=floats(4, 12),
    debiased=floats(2, 8),
    clean=floats(1, 6),
    floored=floats(25, 50),
)


def test_second_moments_are_drawn_in_multiples_of_the_noise_and_written_as_they_are():
    drawing = composed("bias-shift", BIAS)
    moments, floors = drawing.chart.panels
    assert [line[1:] for line in lines(moments)] == [
        (0, 0, [1, 2], [2, 3]), (1, 0, [1, 2], [1, 2]), (2, 0, [1, 2], [0.5, 1.5]),
    ]  # fmt: skip
    assert [line[1:] for line in lines(floors)] == [(3, 0, [1, 2], [25, 50])]
    assert axes(drawing) == [(True, False)] * 2
    assert drawing.table.rows == [
        ("a", 1, 2.0, 4.0, 2.0, 1.0, 25.0), ("a", 2, 4.0, 12.0, 8.0, 6.0, 50.0),
    ]  # fmt: skip
    assert not any(label.startswith("a: ") for label, *_ in lines(moments))


def test_of_several_runs_a_colour_is_a_run_and_what_a_rule_has_not_is_not_drawn():
    plain = BiasShift(*(floats(v) for v in (1, 2, 4, NAN, 1, NAN)))
    drawing = composed("bias-shift", plain, BIAS)
    moments, floors = drawing.chart.panels
    assert [line[:3] for line in lines(moments)] == [
        ("a: v̂ with noise", 0, 0),
        ("a: v̂ of the same gradients without noise", 0, 2),
        ("b: v̂ with noise", 1, 0),
        ("b: v̂ − Φ, debiased", 1, 1),
        ("b: v̂ of the same gradients without noise", 1, 2),
    ]
    assert [line[:3] for line in lines(floors)] == [("b: share on the floor", 1, 3)]
    assert drawing.table.rows[0] == ("a", 1, 2.0, 4.0, None, 1.0, None)


def test_norms_have_bins_from_0_for_all_runs_and_a_level_for_each_clipping_norm():
    plain = UpdateNorms(floats(1, 1, 2), floats(1, 3, NAN), None, None)
    clipped = UpdateNorms(floats(1, 2), floats(4, 8), floats(2, 0.5), 2.0, sparsified=True)
    drawing = composed("update-norms", plain, clipped)
    whole, by_round = drawing.chart.panels
    outlines = [mark for mark in whole.marks if isinstance(mark, Stairs)]
    assert [(one.label, one.series, one.variant) for one in outlines] == [
        ("a", 0, 0), ("b", 1, 0), ("b: after sparsification and clipping", 1, 1),
    ]  # fmt: skip
    for one in outlines:
        assert one.edges.tolist() == pytest.approx(np.arange(41) * 0.2)
    # Of three updates the one without a finite norm is in no bin.
    assert outlines[0].heights.sum() == pytest.approx(200 / 3)
    assert [one.heights.sum() for one in outlines[1:]] == [100.0, 100.0]
    levels = [
        [(mark.label, mark.value, mark.upright) for mark in panel.marks if isinstance(mark, Level)]
        for panel in (whole, by_round)
    ]
    assert levels == [[("clipping norm C = 2", 2.0, up)] for up in (True, False)]
    assert [line[3:] for line in lines(by_round)] == [
        ([1, 2], pytest.approx([2.0, NAN], nan_ok=True)), ([1, 2], [4, 8]), ([1, 2], [2, 0.5]),
    ]  # fmt: skip
    assert axes(drawing) == [(False, False), (True, False)]
    assert drawing.table.rows == [
        ("a", 1, 1.0, None, None), ("a", 1, 3.0, None, None), ("a", 2, None, None, None),
        ("b", 1, 4.0, 2.0, 2.0), ("b", 2, 8.0, 0.5, 2.0),
    ]  # fmt: skip
    assert "before and after clipping" in drawing.chart.title
    assert "clipping" not in composed("update-norms", plain).chart.title


def test_each_update_is_measured_before_and_after_it_is_clipped():
    observer = NormObserver(1.5)
    parts = [(0, (3.0, 4.0), 1.5), (2, (0.0, 1.0), None)]
    for index, update, clipped in parts:
        observer.trained(SimpleNamespace(update=torch.tensor(update)))
        left = None if clipped is None else SimpleNamespace(clipped_norm=clipped)
        observer.took_part(
            SimpleNamespace(current=SimpleNamespace(index=index)), SimpleNamespace(clipped=left)
        )
    found = observer.found()
    assert (found.rounds.tolist(), found.before.tolist()) == ([1, 3], [5, 1])
    assert found.after == pytest.approx([1.5, NAN], nan_ok=True)
    assert (found.clipping_norm, found.sparsified) == (1.5, True)
    with pytest.raises(FigureError, match="no client took part"):
        NormObserver(None).found()


def test_local_steps_are_drawn_and_written_by_round():
    drawing = composed(
        "iterations", Iterations(np.array([1, 3]), np.array([4, 2])),
        Iterations(np.array([1]), np.array([7])),
    )  # fmt: skip
    (panel,) = drawing.chart.panels
    assert lines(panel) == [("a", 0, 0, [1.0, 3.0], [4.0, 2.0]), ("b", 1, 0, [1.0], [7.0])]
    assert axes(drawing) == [(True, False)]
    assert drawing.table.rows == [("a", 1, 4), ("a", 3, 2), ("b", 1, 7)]
    assert all(type(cell) is int for row in drawing.table.rows for cell in row[1:])


def test_landscapes_share_their_colours_and_their_table_goes_over_the_plane_row_by_row():
    offsets = floats(-1, 1)
    first = Landscape(offsets, np.array([[1.0, 2.0], [np.inf, 0.5]]), seed=3, records=9)
    second = Landscape(offsets, np.array([[8.0, 0.0], [NAN, 4.0]]), seed=3, records=1200)
    drawing = composed("loss-landscape", first, second)
    marks = [panel.marks[0] for panel in drawing.chart.panels]
    assert [panel.title for panel in drawing.chart.panels] == ["a", "b"]
    # Between them: a loss of 0 or without a number has no colour.
    assert [(one.low, one.high, one.label) for one in marks] == [(0.5, 8.0, "test loss, nats")] * 2
    assert marks[0].values.tolist() == [[1.0, 2.0], [np.inf, 0.5]]
    assert (marks[0].x.tolist(), marks[0].y.tolist()) == ([-1, 1], [-1, 1])
    assert drawing.table.rows == [
        ("a", 3, 9, -1.0, -1.0, 1.0), ("a", 3, 9, 1.0, -1.0, 2.0), ("a", 3, 9, -1.0, 1.0, None),
        ("a", 3, 9, 1.0, 1.0, 0.5), ("b", 3, 1200, -1.0, -1.0, 8.0),
        ("b", 3, 1200, 1.0, -1.0, 0.0), ("b", 3, 1200, -1.0, 1.0, None),
        ("b", 3, 1200, 1.0, 1.0, 4.0),
    ]  # fmt: skip
    assert "on 9 and 1,200 test records" in drawing.chart.title
    assert "seed 3)" in drawing.chart.title


@pytest.mark.parametrize(
    ("losses", "low", "high"),
    [
        ([[0.25, 0.5]], 0.25, 0.5),
        ([[2.0, 2.0]], 1.0, 4.0),
        ([[0.0, 0.0]], 0.5, 2.0),
        ([[np.nan, np.inf]], 0.5, 2.0),
    ],
)
def test_colours_reach_over_the_losses_and_around_one_that_is_the_same_everywhere(
    losses, low, high
):
    found = Landscape(floats(0, 1), np.array(losses * 2), seed=0, records=9)
    (mark,) = composed("loss-landscape", found).chart.panels[0].marks
    assert (mark.low, mark.high) == (low, high)


def test_histograms_of_moments_have_open_ends_and_no_bars_where_nothing_lies():
    # 81 bins over the central 99 %; of 200 numbers the outermost lie beyond.
    first = np.concatenate([floats(-100.0), np.linspace(0.0, 81.0, 198), floats(200.0)])
    root = np.concatenate([np.linspace(0.0, 81.0, 199), floats(400.0)])
    plain = Moments(2, 3, first, root, None, None)
    drawing = composed("moments", plain)
    m, v = drawing.chart.panels
    ((m_mark,), (v_mark,)) = m.marks, v.marks
    assert (m_mark.label, m_mark.series, m_mark.variant) == ("a", 0, 0)
    low, high = np.quantile(first, [0.005, 0.995])
    assert m_mark.edges == pytest.approx(np.linspace(low, high, 82))
    assert v_mark.edges[0] == 0.0
    assert axes(drawing) == [(False, True)] * 2
    assert not (m_mark.heights <= 0).any()
    rows = [row for row in drawing.table.rows if row[1] == "m"]
    assert {row[:4] for row in rows} == {("a", "m", "none", 2)}
    assert len(rows) == 83
    assert rows[0][4:] == (None, pytest.approx(low), pytest.approx(0.5))
    assert rows[-1][4:] == (pytest.approx(high), None, pytest.approx(0.5))
    assert [row[5] for row in rows[:-1]] == [row[4] for row in rows[1:]]
    assert {row[1] for row in drawing.table.rows} == {"m", "sqrt_v"}
    assert "(2 of 3 shown)" in drawing.chart.title
    both = composed("moments", plain, Moments(3, 3, first, root, first, root))
    assert [(one.label, one.series, one.variant) for one in both.chart.panels[0].marks] == [
        ("a", 0, 0), ("b: with noise", 1, 0), ("b: the same gradients without noise", 1, 1),
    ]  # fmt: skip
    assert [row[2] for row in both.table.rows[: 3 * 83 : 83]] == ["none", "yes", "taken out"]
    assert "(2 of 3, 3 of 3 shown)" in both.chart.title


def test_curvature_is_in_nats_only_where_every_loss_is():
    one = Spectrum(floats(1), floats(0), floats(0, 1), floats(1, 0), 0.1, 1000, 5, nats=True)
    other = Spectrum(floats(1), floats(0), floats(0, 1), floats(1, 0), 0.1, 20, 5, nats=False)
    assert "curvature_nats_per_weight_squared" in composed("hessian", one).table.head
    drawing = composed("hessian", one, other)
    assert "curvature_loss_per_weight_squared" in drawing.table.head
    assert "on 20 and 1,000 test records" in drawing.chart.title
    largest, density = drawing.chart.panels
    assert [(mark.series, mark.form) for mark in largest.marks] == [(0, "points"), (1, "points")]
    assert [(mark.series, mark.form) for mark in density.marks] == [(0, "plain"), (1, "plain")]
    assert axes(drawing) == [(True, False), (False, True)]
