"""Shards are asked each in a window of its own, and what one of them does changes no other's."""

from __future__ import annotations

import contextlib
import os
import time

import numpy as np
import pytest

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import windows
from dpfedadamw.extensions.gate.cells import CellError
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.exchange import Question
from dpfedadamw.extensions.gate.settings import Form
from dpfedadamw.extensions.gate.windows import FAILED, Windows, refuse_short
from tests.dpfedadamw.extensions.gate.threads import CellThread

MODEL = {"value": Form((1,), "float32")}
QUESTION = Question({}, []).to_bytes()
# What is left out of one number.
WRONG = bytes(3)


@pytest.fixture
def of(tmp_path):
    """Makes windows over shards with these answers; None never answers."""
    opened = []

    def make(*answers, at_once=4, release=0.1):
        cells = [
            CellThread(tmp_path / f"{place}", lambda _, one=one: one)
            for place, one in enumerate(answers)
        ]
        opened.append(Windows(cells, MODEL, at_once, release))
        return opened[-1], cells

    yield make
    for one in opened:
        one.__exit__()


def number(value):
    return np.float32(value).tobytes()


def values(found):
    return [None if one is None else float(one["value"][0]) for one in found]


class Gate:
    """Releases how many shards answered, or raises what it is told to."""

    def __init__(self, spent=None, fails=None, takes=0.0):
        self._spent, self._fails, self._takes, self.given = spent, fails, takes, []

    def check(self):
        if self._spent:
            raise self._spent

    def alone(self):
        return contextlib.nullcontext()

    def release(self, *, job, request, broadcast, shards):
        self.given.append((job, request, broadcast, shards))
        time.sleep(self._takes)
        if self._fails:
            raise self._fails
        return {"released": len(shards)}


def test_late_and_wrong_answers_count_as_none_and_no_cell_outlives_its_window(of):
    one, cells = of(number(1), None, WRONG, number(2), at_once=2)
    begin = time.monotonic()
    assert values(one.ask(QUESTION, 0.4)) == [1.0, None, None, 2.0]
    # The first window lasts to its end, although one of its shards has answered.
    assert [cell.begun - begin >= 0.2 for cell in cells] == [False, False, True, True]
    assert not any(cell.runs for cell in cells)


@pytest.mark.parametrize("answers", [(number(1), number(2)), (None, number(2)), (WRONG, WRONG)])
def test_a_reply_leaves_after_the_same_time_whatever_the_shards_do(answers, of):
    one, _ = of(*answers)
    gate, begin = Gate(), time.monotonic()
    found = one.released(gate, QUESTION, "sent", ("job", "request"), 0.3, [].append)
    assert 0.3 <= time.monotonic() - begin < 1.3
    assert found == {"released": 2}
    assert gate.given[0][:3] == ("job", "request", "sent")


@pytest.mark.parametrize(("takes", "leaves"), [(0.15, 0.4), (0.25, 0.5)])
def test_a_release_that_takes_long_leaves_a_whole_number_of_its_times_later(of, takes, leaves):
    one, _ = of(None)
    begin = time.monotonic()
    one.released(Gate(takes=takes), QUESTION, "sent", ("job", "request"), 0.3, [].append)
    assert time.monotonic() - begin >= leaves


def test_a_cell_that_takes_long_to_die_makes_no_other_late(of, monkeypatch):
    one, cells = of(None, number(1), at_once=1)
    given = []

    def dies_slowly(seconds):
        # As `Cell.end` does: not a moment longer than it is told.
        given.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(cells[0], "end", dies_slowly)
    begin = time.monotonic()
    assert values(one.ask(QUESTION, 1.0)) == [None, 1.0]
    # It was killed at 0.45 s, so that 0.05 s of its window were left to die in.
    assert 0.5 <= cells[1].begun - begin < 1.4
    assert 0.0 < given[0] <= 0.05


def test_shards_take_no_files_of_the_process_but_in_their_window(of):
    before = len(os.listdir("/proc/self/fd"))
    one, _ = of(*[number(1)] * 50, at_once=1)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    one.ask(QUESTION, 0.5)
    assert not list(one._cells[0].socket.parent.iterdir())


def test_a_disk_that_is_full_when_a_cell_starts_is_said_to_the_operator_alone(of, monkeypatch):
    one, (cell,) = of(number(1))

    def fails():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cell, "start", fails)
    told, begin = [], time.monotonic()
    assert one.released(Gate(), QUESTION, "sent", ("job", "request"), 0.3, told.append) == FAILED
    assert time.monotonic() - begin >= 0.3
    assert told == ["[Errno 28] No space left on device"]


def test_a_refusal_after_the_shards_have_worked_leaves_at_that_time_too(of):
    one, _ = of(number(1))
    gate, begin = Gate(fails=Refused("the budget is spent", "budget")), time.monotonic()
    assert one.released(gate, QUESTION, "sent", ("job", "request"), 0.3, [].append) == REFUSAL
    assert 0.3 <= time.monotonic() - begin < 1.3


def test_a_spent_budget_is_refused_at_once_in_fixed_words_and_no_shard_hears_of_it(of):
    one, cells = of(number(1))
    told, gate = [], Gate(spent=Refused("0.1 is left, a release costs 0.5", "budget"))
    begin = time.monotonic()
    assert one.released(gate, QUESTION, "sent", ("job", "request"), 5.0, told.append) == REFUSAL
    assert time.monotonic() - begin < 1.0
    assert told == ["0.1 is left, a release costs 0.5"]
    assert cells[0].begun is None


def test_what_is_wrong_at_the_site_is_said_to_its_operator_alone(of):
    one, _ = of(number(1), release=0.01)
    told, gate = [], Gate(fails=DpfedadamwError("/site/ledger.jsonl: cannot be written to"))
    assert one.released(gate, QUESTION, "sent", ("job", "request"), 0.03, told.append) == FAILED
    assert told == ["/site/ledger.jsonl: cannot be written to"]


def test_a_cell_that_does_not_start_is_found_before_any_question(of, monkeypatch):
    monkeypatch.setattr(windows, "_START_SECONDS", 0.05)
    one, (cell,) = of(None)
    monkeypatch.setattr(cell, "start", lambda: None)
    with pytest.raises(CellError, match="does not start"), one:
        raise AssertionError


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_a_time_in_which_no_shard_could_train_is_refused(seconds):
    said = f"--reply-after: found {seconds:g}; must be more than the 1 seconds that a release may"
    with pytest.raises(CellError, match=said):
        refuse_short(seconds, 1.0)
