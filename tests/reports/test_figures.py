"""What figures share: their numbers as a table, and axes that end where the numbers do."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from reports import figures
from reports.figures import FigureData


def test_numbers_of_a_figure_are_a_table_that_is_empty_where_nothing_is_known() -> None:
    found = FigureData(("round", "ε"), ((1, 0.1 + 0.2), (2, None), ("=x", 3.0)))
    assert figures.as_csv(found) == "round,ε\n1,0.30000000000000004\n2,\n'=x,3.0\n".encode()


def test_only_pairs_of_which_both_are_known_are_drawn() -> None:
    pairs = [(1.0, 2.0), (None, 3.0), (4.0, None), (0.0, 0.0)]
    assert figures.known_pairs(pairs) == ([1.0, 0.0], [2.0, 0.0])


@pytest.mark.parametrize(
    ("first", "last", "most", "ticks"),
    [
        (0, 0, 8, [0]),
        (0, 1, 8, [0, 1]),
        (0, 8, 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 9, 8, [0, 2, 4, 6, 8, 9]),
        (0, 16, 8, [0, 2, 4, 6, 8, 10, 12, 14, 16]),
        (0, 17, 8, [0, 5, 10, 15, 17]),
        (0, 41, 8, [0, 10, 20, 30, 41]),
        (0, 100, 4, [0, 50, 100]),
        # The last is always there, and the first unless a round number touches it.
        (1, 10, 8, [1, 2, 4, 6, 8, 10]),
        (1, 301, 8, [1, 50, 100, 150, 200, 250, 301]),
        (19, 300, 8, [19, 50, 100, 150, 200, 250, 300]),
        (49, 301, 8, [50, 100, 150, 200, 250, 301]),
        # No run has as many rounds, but a file may.
        (0, 2**62, 8, [0, 1e18, 2e18, 3e18, 4e18, 2**62]),
    ],
)
def test_an_axis_has_round_numbers_and_its_last_which_no_other_touches(
    first: float, last: float, most: int, ticks: list[float]
) -> None:
    assert figures.whole_ticks(first, last, most) == ticks


@pytest.mark.parametrize(
    ("place", "count", "points", "every"),
    [
        (0, 1, 40, (0, 5)),
        (0, 2, 40, (0, 5)),
        (1, 2, 40, (2, 5)),
        (2, 3, 7, (0, 1)),
        (1, 4, 80, (2, 10)),
        (3, 4, 80, (7, 10)),
        (0, 1, 0, (0, 1)),
    ],
)
def test_each_line_marks_points_of_its_own(
    place: int, count: int, points: int, every: tuple[int, int]
) -> None:
    assert figures.tell_apart(place, count, points)["markevery"] == every


def test_earlier_lines_are_wider_so_that_later_ones_do_not_hide_them() -> None:
    looks = [figures.tell_apart(place, 3, 10) for place in range(3)]
    for key in ("linewidth", "markersize"):
        sizes = [look[key] for look in looks]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == 3


def labels_of(axis: Any) -> list[str]:
    return [one.get_text() for one in axis.get_ticklabels()]


def test_axes_are_labelled_with_rounds_powers_of_ten_and_counts_alone() -> None:
    canvas = Figure()
    over, powers, counts, whole = canvas.subplots(4)
    figures.over_rounds(over, 21)
    powers.set_yscale("log")
    powers.set_ylim(1e-4, 20)
    figures.powers_of_ten(powers.yaxis, range(-3, 2))
    counts.set_xscale("log")
    counts.set_xlim(500, 2_000_000)
    figures.counts(counts.xaxis)
    whole.set_xlim(0, 3)
    figures.whole_numbers(whole.xaxis)
    canvas.draw_without_rendering()
    assert over.get_xlim() == (0, 21)
    assert labels_of(over.xaxis) == ["0", "5", "10", "15", "21"]
    assert labels_of(powers.yaxis) == ["10⁻³", "10⁻²", "10⁻¹", "1", "10¹"]
    assert "10,000" in labels_of(counts.xaxis)
    assert list(powers.yaxis.get_minorticklocs()) == []
    assert list(counts.xaxis.get_minorticklocs()) == []
    assert [float(tick) for tick in whole.get_xticks()] == [0.0, 1.0, 2.0, 3.0]


def test_a_drawing_is_the_same_bytes_each_time_and_says_neither_when_nor_by_what() -> None:
    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], label="$a$")
        axes.set_xlabel("$x$ of it")

    drawn = figures.render(draw, 2.0)
    assert drawn == figures.render(draw, 2.0)
    text = drawn.decode()
    # A name with dollar signs is a name.
    assert ">$x$ of it</text>" in text
    assert "Libertinus Serif" in text
    assert "STIXGeneral" not in text
    assert "<dc:date>" not in text
    assert "Matplotlib v" not in text
    assert 'height="144pt"' in text
