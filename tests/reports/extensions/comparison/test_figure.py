"""What is drawn of a comparison is its numbers, at places that lie on the page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from reports.errors import ReportError
from reports.extensions.comparison import figure
from tests.reports.extensions.comparison.several import several
from tests.reports.extensions.comparison.test_comparison import compared, run_of, three


@pytest.fixture
def found(monkeypatch):
    return several(monkeypatch)


def test_a_point_has_the_mean_accuracy_and_the_mean_loss_spent_of_its_round(found):
    alone, family, plain = figure.rows(found)
    (label,) = {point[0] for point in figure.points(alone)}
    assert label == "dp-a (1 run)"
    assert [point[1:] for point in figure.points(alone)] == [
        (0, 10.0, 0.0), (1, pytest.approx(35.0), 1.25), (2, 70.0, 2.5),
    ]  # fmt: skip
    assert [group.name for group in family.family] == ["B", "C"]
    b, c = found.groups[1].privacy, found.groups[2].privacy
    labels = [f"dp-a, {b} (1 run)", f"dp-a, {c} (3 runs)", f"dp-b, {c} (3 runs)"]
    assert [what for what, _ in family.curves] == labels
    points = figure.points(family)
    assert [point[0] for point in points] == [label for label in labels for _ in range(3)]
    assert [point[1:] for point in points[3:6]] == [
        (0, pytest.approx(10.0), 0.0), (1, pytest.approx(42.0), 4.0), (2, pytest.approx(84.0), 7.0),
    ]  # fmt: skip
    # Without privacy nothing is spent; what has no rank is not drawn.
    assert [point[2:] for point in figure.points(plain)] == [
        (10.0, None), (45.0, None), (90.0, None),
    ]  # fmt: skip
    assert (alone.private, plain.private) == (True, False)


def test_a_round_counts_that_every_repetition_measured_and_that_all_paid_for():
    one, two = three("a", 0.8, 0.6)
    two = replace(two, accuracies=((0, 0.2), (2, 0.6)), spent=((1, 4.0),))
    (row,) = figure.rows(compared(one, two))
    assert [point[1:] for point in figure.points(row)] == [
        (0, pytest.approx(15.0), 0.0), (2, pytest.approx(70.0), None),
    ]  # fmt: skip
    (_, entry), *_ = row.curves
    spread = [deviation for _, _, deviation in figure._measured(entry)]
    assert spread == pytest.approx([np.std([10, 20], ddof=1), np.std([80, 60], ddof=1)])


class Kept(Figure):
    """A canvas that can be looked at after it was drawn."""

    last: Figure

    def savefig(self, *given, **options):
        Kept.last = self
        super().savefig(*given, **options)


@pytest.fixture(scope="module")
def drawn():
    with pytest.MonkeyPatch.context() as patch:
        found = several(patch)
        patch.setattr(figure, "Canvas", Kept)
        assert figure.draw(found, "svg")
    return found, Kept.last


def test_the_lines_go_through_the_points_and_end_at_the_final_models(drawn):
    found, canvas = drawn
    rows, axes = figure.rows(found), canvas.axes
    assert len(axes) == 5
    panels = [axes[0:2], axes[2:4], axes[4:5]]
    for row, (accuracy, *loss) in zip(rows, panels, strict=True):
        points = figure.points(row)
        for (label, _), line in zip(row.curves, accuracy.get_lines(), strict=True):
            mine = [point for point in points if point[0] == label]
            assert line.get_label() == label
            assert list(line.get_xdata()) == [point[1] for point in mine]
            assert list(line.get_ydata()) == [point[2] for point in mine]
        assert len(loss) == row.private
        # A band where there are repetitions.
        repeated = [entry for _, entry in row.curves if len(entry.runs) > 1]
        assert len(accuracy.collections) == len(repeated)
    band = axes[2].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(88.0)
    # All began alike.
    assert band[band[:, 0] == 0, 1] == pytest.approx(10.0)
    at_two = band[band[:, 0] == 2, 1]
    assert (at_two.min(), at_two.max()) == (pytest.approx(80.0), pytest.approx(88.0))
    # Against the loss, a curve ends at what its runs claim; the rounds before cost less.
    ends = [
        [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for line in axes[3].get_lines()
        if len(line.get_xdata()) > 1
    ]
    assert np.array(ends[0]) == pytest.approx(np.array([[0, 10], [2.5, 30], [5, 60]]))
    assert np.array(ends[1]) == pytest.approx(np.array([[0, 10], [4, 42], [5, 84]]))
    assert axes[3].get_xlim()[0] == 0.0
    assert [axes[place].get_xlim() for place in (0, 2, 4)] == [(0, 2)] * 3
    bar = axes[3].containers[1].lines[2][0].get_segments()[0]
    assert bar[:, 1] == pytest.approx([80.0, 88.0])
    said = "test accuracy, %"
    assert [one.get_ylabel() for one in axes] == [said, "", said, "", said]
    assert axes[1].get_xlabel() == "ε spent against a third party"


def test_panels_and_texts_lie_on_the_page_and_do_not_cover_each_other(drawn):
    _, canvas = drawn
    boxes = [one.get_position() for one in canvas.axes]
    for box in boxes:
        assert 0.05 < box.x0 < box.x1 < 0.99
        assert 0.05 < box.y0 < box.y1 < 0.97
    for place, box in enumerate(boxes):
        for other in boxes[place + 1 :]:
            apart = box.x1 < other.x0 or other.x1 < box.x0
            assert apart or box.y1 < other.y0 or other.y1 < box.y0
    # The rows are one below the other, each as tall, and both panels of one at one height.
    heights = [box.height for box in boxes]
    assert heights == pytest.approx([heights[0]] * 5)
    assert boxes[0].y0 == boxes[1].y0 > boxes[2].y0 == boxes[3].y0 > boxes[4].y0
    assert boxes[0].width == pytest.approx(boxes[1].width)
    assert boxes[1].width < boxes[4].width
    assert boxes[4].x1 == pytest.approx(boxes[1].x1)
    assert boxes[4].x1 > 0.97
    tops = [text.get_position()[1] for text in canvas.texts]
    assert all(top > boxes[place].y1 for top, place in zip(tops, (0, 2, 4), strict=True))
    renderer = canvas._get_renderer()
    inside = canvas.transFigure.inverted()
    legends = [legend.get_window_extent(renderer).transformed(inside) for legend in canvas.legends]
    for legend, place, below in zip(legends, (0, 2, 4), (tops[1], tops[2], 0.0), strict=True):
        assert below - 0.005 < legend.y0 < legend.y1 < boxes[place].y0


@pytest.mark.parametrize("repetitions", [1, 2, 3])
def test_a_curve_says_of_how_many_runs_it_is(repetitions):
    (row,) = figure.rows(compared(*three("a", *[0.8] * repetitions)))
    ((label, entry),) = row.curves
    assert len(entry.runs) == repetitions
    assert label == {1: "a (1 run)", 2: "a (2 runs)", 3: "a (3 runs)"}[repetitions]


def test_more_curves_than_can_be_told_apart_take_another_row():
    found = compared(*(run_of(0.5 + 0.01 * n, algorithm=f"rule-{n:02}") for n in range(20)))
    rows = figure.rows(found)
    most = 2 * len(figure.LOOKS)
    assert [len(row.curves) for row in rows] == [most, 20 - most]
    assert [label for row in rows for label, _ in row.curves] == [
        f"rule-{n:02} (1 run)" for n in reversed(range(20))
    ]
    looks = [figure._look(index, rows[0]) for index in range(most)]
    drawn = {(look["color"], str(look["linestyle"]), look["markerfacecolor"]) for look in looks}
    assert len(drawn) == most


def test_ten_rows_fit_a_figure_and_eleven_are_refused(monkeypatch):
    monkeypatch.setattr(figure, "_draw", lambda rows, kind: (len(rows), kind))
    runs = [run_of(data_settings={"seed": seed}) for seed in range(11)]
    assert figure.draw(compared(*runs[:10]), "svg") == (10, "svg")
    with pytest.raises(ReportError, match="11 rows are too many for one figure, the most is 10"):
        figure.draw(compared(*runs), "svg")
