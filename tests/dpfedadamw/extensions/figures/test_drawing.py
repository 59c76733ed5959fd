"""What figures look like: the same bytes for the same data, and who may see them said in each."""

from __future__ import annotations

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
from dpfedadamw.extensions.figures.drawing import _power, _told_apart, draw
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
    return found


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


def test_nothing_of_pyplot_is_touched():
    import matplotlib

    before = dict(matplotlib.rcParams)
    picture("png")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.05, "0.05"), (1e-9, "10⁻⁹"), (5e-10, "5·10⁻¹⁰"), (2e12, "2·10¹²")],
)
def test_numbers_on_a_logarithmic_axis_need_no_formulas(value, text):
    assert _power(value) == text


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
