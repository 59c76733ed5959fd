"""The verdict on replayed uploads, from what the replay found."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from audit.checks.record.uploads import _conclude
from audit.reading.exchanges import Extent
from audit.verdict import Severity, Verdict

WHOLE = Extent(1.0, None)
HEADER = SimpleNamespace(clipping_norm=0.5, parameters=24, grid=None)


def tally(**found):
    usual = {
        "participations": 6,
        "replayed": 6,
        "tensors": 30,
        "rounds": 2,
        "widths": [1e-6, 3e-6, 2e-6],
        "reasons": [],
        "unjudged": [],
        "uncertain": (0, 100),
    }
    return SimpleNamespace(**{**usual, **found})


def concluded(kept=WHOLE, header=HEADER, **found):
    return _conclude(tally(**found), kept, header, {})


def test_what_could_hide_is_twice_the_widest_rounding_in_clipping_norms():
    found = concluded(reasons=["an upload differs"])
    assert found.details["smallest_visible"] == pytest.approx(2 * 3e-6 / 0.5)
    bare = SimpleNamespace(clipping_norm=None, parameters=24, grid=None)
    unclipped = concluded(header=bare, reasons=["an upload differs"])
    assert unclipped.details["smallest_visible"] == pytest.approx(2 * 3e-6)
    assert concluded(widths=[], reasons=["one"]).details["smallest_visible"] == 0.0


def test_a_difference_fails_whatever_else_could_not_be_judged():
    found = concluded(reasons=["an upload differs"], unjudged=["round 1 is unreadable"])
    assert (found.verdict, found.measurement) == (Verdict.FAIL, "an upload differs")


def test_where_nothing_was_replayed_it_is_said_beside_the_verdict():
    found = concluded(replayed=0, unjudged=["the state is not kept"])
    assert found.verdict is Verdict.NOT_VERIFIED
    assert found.qualifications == ("uploads were not replayed: the state is not kept",)
    assert found.severity is Severity.THEORETICAL
    assert found.power == "none"


def test_where_some_were_replayed_what_was_not_is_the_verdict():
    found = concluded(replayed=3, unjudged=["round 1 is unreadable"])
    assert found.verdict is Verdict.NOT_VERIFIED
    assert found.measurement == "round 1 is unreadable"
    assert found.qualifications == ()
    assert found.severity is None


@pytest.mark.parametrize(
    "found",
    [{"uncertain": (0, 0)}, {"uncertain": (100, 100)}, {"widths": [0.25]}, {"widths": [9.0]}],
)
def test_where_rounding_hides_a_whole_gradient_nothing_was_shown(found):
    judged = concluded(**found)
    assert judged.verdict is Verdict.NOT_VERIFIED
    assert judged.measurement.startswith("rounding may move the uploads as far")
    assert judged.power == "none"


def test_coordinates_are_those_that_were_kept():
    assert concluded(reasons=["one"]).details["coordinates"] == 24
    kept = concluded(kept=Extent(0.5, 8), reasons=["one"])
    assert kept.details["coordinates"] == 8
