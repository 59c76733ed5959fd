"""What figures look like: the same bytes for the same data, and who may see them said in each."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from dpfedadamw.extensions.figures.charts import (
    Chart,
    Level,
    Line,
    Panel,
    Stairs,
    Surface,
    bins,
    histogram,
)
from dpfedadamw.extensions.figures.commands import _style
from dpfedadamw.extensions.figures.drawing import (
    _draw_panel,
    _legend,
    _look,
    _power,
    _powers,
    _told_apart,
    draw,
)
from dpfedadamw.extensions.figures.publication import PRIVATE, RELEASED, Exposure

AXIS = np.arange(3.0)


def chart(title: str = "It rises.") -> Chart:
    """One of each mark."""
    line = Line(label="a run with $names$", x=AXIS, y=AXIS, low=AXIS - 1, high=AXIS + 1)
    stairs = Stairs(label="b", edges=np.arange(4.0), heights=AXIS, series=1, variant=1)
    plane = Surface(x=AXIS, y=AXIS, values=np.outer(AXIS, AXIS) + 1, low=1, high=5, label="loss")
    panels = (
        Panel(x_label="round", y_label="y", marks=(line, Level(label="C", value=1.0))),
        Panel(x_label="x", y_label="%", marks=(stairs,), log_y=True),
        Panel(x_label="x", y_label="y", marks=(plane,), title="run"),
    )
    return Chart(title=title, panels=panels)


def picture(kind: str, exposure: Exposure = PRIVATE, title: str = "It rises.") -> bytes:
    return draw(chart(title), exposure, _style(), kind)


@pytest.fixture
def texts(monkeypatch) -> list[str]:
    """Every text that is put on a figure by itself."""
    from matplotlib.figure import Figure

    found, real = [], Figure.text

    def noted(self, x, y, text, **how):
        found.append((text, how.get("color")))
        return real(self, x, y, text, **how)

    monkeypatch.setattr(Figure, "text", noted)
    # Nothing is drawn of it: what is put there is known before.
    monkeypatch.setattr(Figure, "savefig", lambda *_args, **_how: None)
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_every_format_is_drawn(kind):
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert picture(kind).startswith(begins[kind])


def test_the_same_data_has_the_same_bytes():
    assert picture("svg") == picture("svg") != picture("svg", title="It falls.")


def test_a_figure_says_who_may_see_it_and_warns_in_another_colour(texts):
    picture("svg")
    picture("svg", RELEASED)
    assert texts == [
        ("It rises.", _style().ink),
        ("From private evidence; not for publication.", _style().warning),
        ("It rises.", _style().ink),
        ("From released values alone.", _style().muted),
    ]


@pytest.fixture
def places(monkeypatch):
    """Where everything on a figure lies, in points from its lower left corner, and its size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = []

    def measured(self, *_args, **_how):
        canvas = FigureCanvasAgg(self)
        canvas.draw()
        renderer = canvas.get_renderer()
        boxes = {f"panel {at}": one.get_tightbbox(renderer) for at, one in enumerate(self.axes)}
        boxes |= {one.get_text(): one.get_window_extent(renderer) for one in self.texts}
        boxes |= {f"legend {at}": one.get_window_extent() for at, one in enumerate(self.legends)}
        found.append((boxes, self.bbox))

    monkeypatch.setattr(Figure, "savefig", measured)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("panels", [3, 1])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("title", ["It rises.", "It rises, and then it falls again. " * 8])
def test_nothing_on_a_figure_covers_anything_else_or_leaves_it(places, panels, named, title):
    line = Line(label="a run", x=AXIS, y=1000.0 * AXIS, series=0)
    long = Line(label="a run with a long name: after clipping", x=AXIS, y=AXIS, series=1)
    plane = Surface(x=AXIS, y=AXIS, values=np.outer(AXIS, AXIS) + 1, low=1, high=5, label="loss")
    every = [(line, long), (plane,), (line, Level(label="C", value=1.0))]
    drawn = tuple(
        Panel(x_label="round", y_label="norm, L2", marks=marks, title="a title" if named else "")
        for marks in every[:panels]
    )
    draw(Chart(title=title, panels=drawn), PRIVATE, _style(), "svg")
    ((boxes, page),) = places
    assert len(boxes) == panels + 3
    for name, box in boxes.items():
        assert page.x0 <= box.x0 < box.x1 <= page.x1, name
        assert page.y0 <= box.y0 < box.y1 <= page.y1, name
    covered = [
        (one, other)
        for one, other in itertools.combinations(boxes, 2)
        if boxes[one].overlaps(boxes[other])
    ]
    assert covered == []


def drawn_on_axes(*marks):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    _draw_panel(axes, Panel(x_label="x", y_label="y", marks=marks), _style())
    return axes


def test_a_curve_is_a_line_points_are_markers_and_a_marked_curve_is_both():
    both = {}
    for form in ("plain", "points", "marked"):
        (line,) = drawn_on_axes(Line(label="v", x=AXIS, y=2 * AXIS, form=form)).get_lines()
        assert line.get_xydata().tolist() == [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]
        both[form] = line.get_linestyle() != "None", line.get_marker() not in ("None", "", None)
    assert both == {"plain": (True, False), "points": (False, True), "marked": (True, True)}


def test_a_band_lies_between_its_edges_and_a_level_where_it_was_put():
    line = Line(label="v", x=AXIS, y=AXIS, low=AXIS - 1, high=AXIS + 3)
    (band,) = drawn_on_axes(line).collections
    edges = {tuple(point) for path in band.get_paths() for point in path.vertices.tolist()}
    assert edges == {(x, x + by) for x in (0.0, 1.0, 2.0) for by in (-1.0, 3.0)}
    across, upright = drawn_on_axes(
        Level(label="C", value=3.0), Level(label="D", value=5.0, upright=True)
    ).get_lines()
    assert list(across.get_ydata()) == [3.0, 3.0]
    assert list(upright.get_xdata()) == [5.0, 5.0]


def test_a_cross_marks_the_origin_of_a_surface_which_is_the_trained_model():
    plane = Surface(x=AXIS, y=AXIS, values=np.outer(AXIS, AXIS) + 1, low=1, high=5, label="loss")
    (cross,) = drawn_on_axes(plane).get_lines()
    assert (cross.get_xydata().tolist(), cross.get_marker()) == ([[0.0, 0.0]], "+")


def test_nothing_of_pyplot_is_touched():
    import matplotlib

    before = dict(matplotlib.rcParams)
    picture("png")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"), (0.05, "0.05"), (1e-9, "10⁻⁹"), (5e-10, "5·10⁻¹⁰"), (2e12, "2·10¹²"),
        (0.0, "0"), (0.001, "10⁻³"), (0.0011, "0.0011"), (9999.0, "9999"), (1e4, "10⁴"),
        (2.5e-7, "2.5·10⁻⁷"), (1e6 - 1e-7, "10⁶"),
    ],
)  # fmt: skip
def test_numbers_on_a_logarithmic_axis_need_no_formulas(value, text):
    assert _power(value) == text


@pytest.mark.parametrize(
    "values", [[2e-10, 2.9e-10], [0.0021, 0.0039], [2.0, 2.71], [1.4e7, 1.6e7], [1e-9, 8e-9]]
)
def test_ticks_of_a_narrow_logarithmic_axis_differ(values):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    line = Line(label="v", x=np.array([1.0, 2.0]), y=np.array(values))
    _draw_panel(axes, Panel(x_label="round", y_label="y", marks=(line,), log_y=True), _style())
    axes.figure.canvas.draw()
    low, high = axes.get_ylim()
    names = [
        label.get_text()
        for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if low <= place <= high and label.get_text()
    ]
    assert len(names) == len(set(names)) > 1


@pytest.mark.parametrize(
    "values", [[2e-10, 2.9e-10], [0.0021, 0.0039], [2.0, 2.71], [1.4e7, 1.6e7], [1e-9, 3e-9]]
)
def test_ticks_of_a_narrow_logarithmic_axis_lie_where_name_and_unit_say_and_near_the_data(values):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    line = Line(label="v", x=np.array([1.0, 2.0]), y=np.array(values))
    panel = Panel(x_label="round", y_label="norm, L2", marks=(line,), log_y=True)
    _draw_panel(axes, panel, _style())
    axes.figure.canvas.draw()
    raised = re.fullmatch(r"norm, (?:10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+) )?L2", axes.get_ylabel())
    assert raised is not None
    power = (raised[1] or "0").translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    named = [float(f"{label.get_text()}e{power}") for label in axes.get_yticklabels()]
    assert named == pytest.approx(axes.get_yticks(), rel=1e-6)
    # An axis reaches a twentieth of what it spans beyond its data, and ticks do not widen it.
    room = 1.01 * (values[1] / values[0]) ** 0.05
    low, high = axes.get_ylim()
    assert values[0] / room <= low <= min(named) < max(named) <= high <= values[1] * room


def test_an_axis_of_rounds_ends_at_the_last_round():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    line = Line(label="v", x=np.arange(1.0, 20.0), y=np.ones(19))
    _draw_panel(axes, Panel(x_label="round", y_label="y", marks=(line,), whole_x=True), _style())
    assert axes.get_xlim() == (1.0, 19.0)
    assert axes.get_xticks().tolist() == [1.0, 5.0, 10.0, 15.0, 19.0]


def test_curves_that_coincide_can_be_told_apart():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    same = {"x": np.arange(1.0, 41.0), "y": np.ones(40)}
    lines = tuple(Line(label=str(place), series=place, **same) for place in range(3))
    _draw_panel(axes, Panel(x_label="round", y_label="y", marks=lines), _style())
    drawn = axes.get_lines()
    widths = [line.get_linewidth() for line in drawn]
    assert widths == sorted(widths, reverse=True)
    marked = [set(range(*slice(start, None, step).indices(40))) for start, step in
              (line.get_markevery() for line in drawn)]  # fmt: skip
    assert not marked[0] & marked[1]
    assert not marked[1] & marked[2]


def test_bins_hold_every_finite_value_and_shares_are_of_all_values():
    values = np.array([0.0, 1.0, 1.0, 4.0, np.inf])
    edges = bins([values], 4)
    assert edges.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert histogram(values, edges).tolist() == [20.0, 40.0, 0.0, 20.0]
    assert len(bins([np.full(3, 2.0)], 2)) == 3
    assert len(bins([np.zeros(0)], 2)) == 3


def test_levels_that_lie_close_have_as_many_digits_as_tell_them_apart():
    assert _told_apart([1.0, 2.0, 4.0]) == ["1", "2", "4"]
    assert _told_apart([4.601, 4.602, 4.603]) == ["4.601", "4.602", "4.603"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 2.0], ("", ["0.5", "2"])),
        ([2e-10, 2.5e-10], ("10⁻¹⁰ ", ["2", "2.5"])),
        ([1e-3, 2e-3], ("10⁻³ ", ["1", "2"])),
        ([0.002, 0.0025], ("", ["0.002", "0.0025"])),
        ([5000.0, 9999.0], ("", ["5000", "9999"])),
        ([5000.0, 1e4], ("10⁴ ", ["0.5", "1"])),
    ],
)
def test_close_numbers_share_a_power_of_ten_where_they_are_very_small_or_large(values, expected):
    assert _powers(values) == expected


@pytest.mark.parametrize(
    ("values", "named"),
    [([1.0, 20.0], {"1", "2", "5", "10", "20"}), ([1.0, 1000.0], {"1", "10", "100", "1000"})],
)
def test_a_logarithmic_axis_of_few_decades_names_2_and_5_too(values, named):
    axes = logarithmic(values)
    low, high = axes.get_ylim()
    names = {
        label.get_text()
        for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        if low <= place <= high
    }
    assert names == named
    assert axes.get_ylabel() == "norm, L2"


def logarithmic(values):
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    line = Line(label="v", x=np.array([1.0, 2.0]), y=np.array(values))
    panel = Panel(x_label="round", y_label="norm, L2", marks=(line,), log_y=True)
    _draw_panel(axes, panel, _style())
    axes.figure.canvas.draw()
    return axes


def test_a_panel_has_its_names_and_an_axis_of_a_single_round_has_some_room():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    line = Line(label="v", x=np.array([3.0]), y=np.array([1.0]))
    panel = Panel(x_label="round", y_label="loss", marks=(line,), whole_x=True, title="all")
    _draw_panel(axes, panel, _style())
    assert axes.get_xlim() == (3.0, 4.0)
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == (
        "round", "loss", "all",
    )  # fmt: skip
    # What does not count is not cut at its first and last place.
    (least, most) = drawn_on_axes(Line(label="v", x=AXIS, y=AXIS)).get_xlim()
    assert least < 0.0
    assert most > 2.0


def test_the_outline_of_a_histogram_is_that_of_its_bins():
    stairs = Stairs(label="b", edges=np.array([0.0, 1.0, 3.0]), heights=np.array([2.0, 5.0]))
    (patch,) = drawn_on_axes(stairs).patches
    values, edges, _ = patch.get_data()
    assert (values.tolist(), edges.tolist()) == ([2.0, 5.0], [0.0, 1.0, 3.0])


def test_a_surface_is_drawn_from_its_lowest_to_its_highest_colour_where_it_has_values():
    values = np.array([[1.0, 2.0, np.nan], [2.0, 4.0, 3.0], [1.5, 2.5, 9.0]])
    plane = Surface(x=AXIS, y=2 * AXIS, values=values, low=1.0, high=8.0, label="loss, nats")
    axes = drawn_on_axes(plane)
    filled, contours = axes.collections[:2]
    assert len(filled.levels) == 12
    assert (filled.levels[0], filled.levels[-1]) == (1.0, pytest.approx(8.0))
    assert list(contours.levels) == pytest.approx(list(filled.levels))
    ratios = np.diff(np.log(filled.levels))
    assert ratios == pytest.approx(np.full(11, ratios[0]))
    (bar,) = axes.child_axes
    assert bar.get_ylabel() == "loss, nats"
    names = [label.get_text() for label in bar.get_yticklabels()]
    assert names == [f"{8 ** (step / 11):.3g}" for step in (0, 3, 6, 9)]


def test_fourteen_runs_and_the_curves_of_each_can_be_told_apart():
    def look(series: int, variant: int) -> tuple[str, ...]:
        found = _look(Line(label="", x=AXIS, y=AXIS, series=series, variant=variant), _style())
        names = ("color", "linestyle", "marker", "markerfacecolor")
        return tuple(str(found[name]) for name in names)

    assert len({look(series, 0) for series in range(14)}) == 14
    assert len({look(series, variant) for series in range(7) for variant in range(4)}) == 28
    for series in range(14):
        # Of one run all curves have its colour, and no two the same dash or marker.
        of_one = [look(series, variant) for variant in range(4)]
        assert len({colour for colour, *_ in of_one}) == 1
        assert len({dash for _, dash, *_ in of_one}) == 4
        assert len({marker for *_, marker, _ in of_one}) == 4


def test_the_legend_names_each_curve_once_and_no_surface():
    stairs = Stairs(label="a", edges=np.arange(4.0), heights=AXIS)
    line = Line(label="a", x=AXIS, y=AXIS)
    plane = Surface(x=AXIS, y=AXIS, values=np.outer(AXIS, AXIS) + 1, low=1, high=5, label="loss")
    level = Level(label="C", value=1.0)
    panels = [
        Panel(x_label="", y_label="", marks=marks)
        for marks in ((stairs, level), (line, plane, level))
    ]
    found = _legend(panels, _style())
    assert list(found) == ["a", "C"]
    # The curve has a marker, which the histogram's outline has not.
    assert found["a"].get_marker() == "o"
    assert _legend(panels[:1], _style())["a"].get_marker() in ("None", None, "")


@pytest.mark.parametrize(
    ("values", "count", "start", "edges"),
    [
        ([[3.0, 3.0]], 2, None, [2.5, 3.0, 3.5]),
        ([[]], 2, None, [0.0, 0.5, 1.0]),
        ([[np.nan, np.inf]], 2, None, [0.0, 0.5, 1.0]),
        ([[np.nan]], 2, 0.0, [-0.5, 0.0, 0.5]),
        ([[3.0], [5.0, -np.inf]], 2, None, [3.0, 4.0, 5.0]),
        ([[3.0, 4.0]], 4, 0.0, [0.0, 1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_bins_reach_from_the_start_or_the_least_value_to_the_largest(values, count, start, edges):
    assert bins([np.array(one) for one in values], count, start).tolist() == edges


def test_of_no_values_nothing_lies_in_any_bin_and_of_one_all_lies_in_its_own():
    edges = np.array([0.0, 1.0, 2.0])
    assert histogram(np.zeros(0), edges).tolist() == [0.0, 0.0]
    assert histogram(np.array([1.5]), edges).tolist() == [0.0, 100.0]
