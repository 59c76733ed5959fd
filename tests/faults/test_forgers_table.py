"""Twenty forgers: the page says what their participations, played and judged, come to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.faults.fault import LARGE
from tests.faults.forgers_table import (
    BEGIN,
    DRAWS,
    END,
    FORGERS,
    SMALL,
    Forger,
    Outcome,
    chance,
    declared,
    played,
    simulated,
    table,
)

PAGES = Path(__file__).resolve().parents[2] / "docs"
LEVELS = (1, 2, 3, 4)


def test_the_page_s_table_is_that_of_the_forgers():
    told = (
        (PAGES / "reexecution.md")
        .read_text(encoding="utf-8")
        .partition(BEGIN)[2]
        .partition(END)[0]
        .strip()
    )
    due = table({forger.name: declared(forger) for forger in FORGERS})
    assert told == due, "python -m tests.faults.forgers_table docs/reexecution.md"
    assert len({forger.name for forger in FORGERS}) == len(FORGERS) == 20


def test_the_ladder_s_chances_are_those_of_the_forgers():
    page = (PAGES / "detection.md").read_text(encoding="utf-8")
    ladder = page.partition("| level |")[2].partition("\n\n")[0]
    rows = {int(line[2]): line for line in ladder.splitlines() if line[2:3].isdigit()}
    named = {forger.name: forger for forger in FORGERS}
    one, five = named["half-the-noise-once"], named["half-the-noise-five-times"]
    for level in (2, 3):
        passes = [f"{1.0 - chance(forger, level):.1%}".replace("%", " %") for forger in (one, five)]
        assert f"in {passes[0]} of cases, five in {passes[1]}, all in 0 %" in rows[level]
    assert chance(named["half-the-noise-everywhere"], 3) == 1.0
    assert chance(named["half-the-noise-everywhere"], 1) == 0.0
    assert chance(named["best-of-ten"], 3) == chance(named["two-keys-in-one-hand"], 3) == 0.0


def test_draws_catch_as_many_forgers_as_the_closed_form_says():
    """The draws are fixed, so that this cannot fail by chance; 4 deviations are allowed."""
    for forger in FORGERS:
        for level in LEVELS:
            expected = DRAWS * chance(forger, level)
            room = 4.0 * math.sqrt(max(0.0, expected * (1.0 - expected / DRAWS)))
            times = simulated(forger, declared(forger), level)
            assert abs(times - expected) <= room, (forger.name, level)


def test_a_forger_of_whom_less_is_found_out_is_caught_less_often():
    (forger,) = (one for one in FORGERS if one.name == "half-the-noise-five-times")
    due = declared(forger)
    four = frozenset(sorted(due.opened)[:4])
    less = simulated(forger, Outcome("PASS", False, due.whole, four), 3)
    assert less < simulated(forger, due, 3)
    assert simulated(forger, Outcome("FAIL", False, due.whole, due.opened), 1) == DRAWS


@pytest.mark.slow
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["650", "19210"])
@pytest.mark.parametrize("forger", FORGERS, ids=lambda forger: forger.name)
def test_a_forger_is_found_out_where_it_is_said_to_be(forger: Forger, model: str, tmp_path: Path):
    assert played(forger, model, tmp_path / "run") == declared(forger)
