"""One shard's socket: the question goes out, and exactly the model's numbers come back."""

from __future__ import annotations

import contextlib
import socket
import threading

import numpy as np
import pytest

from dpfedadamw.extensions.gate.exchange import Question, read_question
from dpfedadamw.extensions.gate.settings import Form
from dpfedadamw.extensions.gate.shards import Shard

MODEL = {"weight": Form((3, 2), "float32"), "bias": Form((2,), "float64")}
ARRAYS = {
    "weight": np.arange(6, dtype=np.float32).reshape(3, 2),
    "bias": np.array([0.5, -0.5]),
}
QUESTION = Question({"task": "train", "headers": {"round": 1}}, [b"these", b"", b"parts"])
ANSWER = b"".join(one.tobytes() for one in ARRAYS.values())


@pytest.fixture
def shard(tmp_path):
    complete = threading.Event()
    one = Shard(tmp_path / "socket", MODEL, complete.set, QUESTION.to_bytes())
    one.place, one.complete = tmp_path / "socket", complete
    yield one
    one.close()


def connected(shard):
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(5)
    line.connect(str(shard.place))
    return line


def answered(shard):
    return b"".join(one.tobytes() for one in shard.answered().values())


def is_served(line):
    try:
        return line.recv(4, socket.MSG_WAITALL) != b""
    except ConnectionResetError:
        return False


def test_a_question_arrives_whole_and_its_answer_is_read_bit_for_bit(shard):
    with connected(shard) as line:
        assert shard.has_joined(5)
        assert read_question(line) == QUESTION
        line.sendall(ANSWER)
        assert shard.complete.wait(5)
    found = shard.answered()
    assert list(found) == list(MODEL)
    for name, one in ARRAYS.items():
        assert type(found[name]) is np.ndarray
        np.testing.assert_array_equal(found[name], one)


def test_fewer_numbers_are_no_answer_and_more_are_not_read(shard):
    with connected(shard) as short:
        read_question(short)
        short.sendall(ANSWER[:-1])
        short.shutdown(socket.SHUT_WR)
        assert short.recv(1) == b""
    assert shard.answered() is None
    with connected(shard) as long:
        read_question(long)
        long.sendall(ANSWER + b"these are the records")
        assert shard.complete.wait(5)
    assert answered(shard) == ANSWER


def test_the_first_answer_counts(shard):
    with connected(shard) as first, connected(shard) as second:
        read_question(first)
        read_question(second)
        first.sendall(ANSWER)
        assert first.recv(1) == b""
        second.sendall(bytes(len(ANSWER)))
        assert second.recv(1) == b""
    assert answered(shard) == ANSWER


def test_an_answer_that_arrives_after_the_window_is_none(shard):
    with connected(shard) as late:
        read_question(late)
        late.sendall(ANSWER[:-1])
        shard.close()
        late.sendall(ANSWER[-1:])
        assert late.recv(1) == b""
    assert shard.answered() is None


def test_a_program_that_is_asked_nothing_is_seen_to_join(tmp_path):
    one = Shard(tmp_path / "other", MODEL)
    one.place = tmp_path / "other"
    with connected(one) as line:
        assert one.has_joined(5)
        assert line.recv(1) == b""
    one.close()
    assert not one.place.exists()


def test_a_job_that_connects_without_end_holds_eight_connections(shard):
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connected(shard)) for _ in range(12)]
        assert sum(map(is_served, lines)) == 8


def test_a_question_with_more_than_a_tasks_description_is_refused():
    with pytest.raises(ValueError, match="more than a task's description"):
        Question({"meta": "x" * (1 << 20)}, []).to_bytes()


def test_a_job_that_says_nothing_does_not_keep_the_gate_from_ending(tmp_path):
    def lasting():
        """The threads that a program waits for before it ends."""
        return {one for one in threading.enumerate() if not one.daemon}

    before = lasting()
    one = Shard(tmp_path / "socket", MODEL, question=QUESTION.to_bytes())
    one.place = tmp_path / "socket"
    with connected(one) as line:
        assert read_question(line) == QUESTION
        assert lasting() == before
    one.close()
