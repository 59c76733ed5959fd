"""What is told of an edited spec: each changed value, but no more than a line holds."""

from __future__ import annotations

import pytest

from dpfedadamw.run.journal import _MOST_CHANGES_SHOWN, _changes

MOST = _MOST_CHANGES_SHOWN


def spec(values: int, value: int) -> bytes:
    return b"".join(b"key%02d: %d\n" % (index, value) for index in range(values))


@pytest.mark.parametrize("further", [0, 1, 3])
def test_changes_beyond_a_few_are_counted(further):
    told = _changes(spec(MOST + further, 1), spec(MOST + further, 2))
    named = "; ".join(f"key{index:02d}: 1 became 2" for index in range(MOST))
    assert told == named + (f"; and {further} more" if further else "")


def test_values_are_named_by_their_path_and_those_that_came_or_went_too():
    before, after = b"a: {b: 1, c: 2}\nd: 3\n", b"a: {b: 1, c: 4}\ne: [5]\n"
    assert _changes(before, after) == (
        "a.c: 2 became 4; d: 3 became not given; e: not given became [5]"
    )
    assert _changes(b"d: 3\n", b"text") == "d: 3 became not given; the whole: not given became text"
