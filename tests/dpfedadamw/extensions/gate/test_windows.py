"""Shards are asked each in a window of its own, and what one of them does changes no other's."""

from __future__ import annotations

import time

import pytest

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import windows
from dpfedadamw.extensions.gate.cells import CellError
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.windows import FAILED, Windows, refuse_short


class Shard:
    """A cell and the gate's side of its socket in one: answers at once, or never."""

    def __init__(self, answer):
        self.socket, self._answer = answer, answer
        self.runs, self.begun, self.asked, self.wake = False, None, None, None

    def start(self):
        self.runs, self.begun = True, time.monotonic()

    def end(self):
        self.runs = False

    def ask(self, question):
        self.asked = question

    def answered(self):
        return self._answer if self.runs and self.asked is not None else None

    def has_joined(self, _):
        return self._answer is not None

    def close(self):
        self.runs = False


def of(*answers, at_once=4):
    shards = [Shard(one) for one in answers]
    waiting = iter(shards)

    def read(answer):
        if answer == b"wrong":
            raise ValueError
        return {"value": answer}

    return Windows(shards, lambda place, wake: next(waiting), read, at_once), shards


class Gate:
    """Releases how many shards answered, or raises what it is told to."""

    def __init__(self, spent=None, fails=None):
        self._spent, self._fails, self.given = spent, fails, []

    def check(self):
        if self._spent:
            raise self._spent

    def release(self, *, job, request, broadcast, shards):
        self.given.append((job, request, broadcast, shards))
        if self._fails:
            raise self._fails
        return {"released": len(shards)}


def test_late_and_wrong_answers_count_as_none_and_no_cell_outlives_its_window():
    one, shards = of(b"a", None, b"wrong", b"b", at_once=2)
    begin = time.monotonic()
    assert one.ask("question", 0.2) == [{"value": b"a"}, None, None, {"value": b"b"}]
    # The first window lasts to its end, although one of its shards has answered.
    assert [shard.begun - begin >= 0.1 for shard in shards] == [False, False, True, True]
    assert not any(shard.runs or shard.asked for shard in shards)


@pytest.mark.parametrize("answers", [(b"a", b"b"), (None, b"b"), (b"wrong", b"wrong")])
def test_a_reply_leaves_after_the_same_time_whatever_the_shards_do(answers, monkeypatch):
    monkeypatch.setattr(windows, "RELEASE_SECONDS", 0.1)
    one, _ = of(*answers)
    gate, begin = Gate(), time.monotonic()
    found = one.released(gate, "question", "sent", ("job", "request"), 0.2, [].append)
    assert 0.2 <= time.monotonic() - begin < 1.2
    assert found == {"released": 2}
    assert gate.given[0][:3] == ("job", "request", "sent")


def test_a_spent_budget_is_refused_at_once_in_fixed_words_and_no_shard_hears_of_it():
    one, shards = of(b"a")
    told, gate = [], Gate(spent=Refused("0.1 is left, a release costs 0.5", "budget"))
    begin = time.monotonic()
    assert one.released(gate, "question", "sent", ("job", "request"), 5.0, told.append) == REFUSAL
    assert time.monotonic() - begin < 1.0
    assert told == ["0.1 is left, a release costs 0.5"]
    assert shards[0].begun is None


def test_what_is_wrong_at_the_site_is_said_to_its_operator_alone(monkeypatch):
    monkeypatch.setattr(windows, "RELEASE_SECONDS", 0.01)
    one, _ = of(b"a")
    told, gate = [], Gate(fails=DpfedadamwError("/site/ledger.jsonl: cannot be written to"))
    assert one.released(gate, "question", "sent", ("job", "request"), 0.03, told.append) == FAILED
    assert told == ["/site/ledger.jsonl: cannot be written to"]


def test_a_cell_that_does_not_start_is_found_before_any_question():
    one, shards = of(None)
    with pytest.raises(CellError, match="does not start"), one:
        raise AssertionError
    assert not shards[0].runs


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_a_time_in_which_no_shard_could_train_is_refused(seconds):
    with pytest.raises(CellError, match=f"--reply-after: found {seconds:g}; must be more than 1"):
        refuse_short(seconds)
