"""A question of the gate as a cell reads it, and how the cell's process ends by its answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from dpfedadamw.extensions.gate.exchange import Question, exactly, read_question

CELL = """
import sys, threading, time
from dpfedadamw.extensions.gate.exchange import answer

def trained(question):
    # What a job leaves running.
    threading.Thread(target=time.sleep, args=(600,)).start()
    if question.told["task"] == "fail":
        raise ValueError("the job failed")
    return b"".join(question.parts)

answer(sys.argv[1], trained)
"""


def asked(told, parts):
    """What a question is once it has gone over a socket."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(Question(told, parts).to_bytes())
        return read_question(there)


def test_a_question_arrives_as_it_was_asked():
    told, parts = {"task": "train", "rate": 0.5}, [b"", b"\x00\x01", bytes(3)]
    assert asked(told, parts) == Question(told, parts)


def test_a_question_is_a_length_a_head_and_its_parts():
    raw = Question({"task": "train"}, [b"ab", b"c"]).to_bytes()
    size = int.from_bytes(raw[:4], "big")
    assert json.loads(raw[4 : 4 + size]) == {"told": {"task": "train"}, "parts": [2, 1]}
    assert raw[4 + size :] == b"abc"


def test_a_task_has_a_mebibyte_of_description_and_no_more():
    empty = len(Question({"task": ""}, []).to_bytes()) - 4
    most = "a" * (2**20 - empty)
    assert len(Question({"task": most}, []).to_bytes()) == 4 + 2**20
    with pytest.raises(ValueError, match="more than a task's description"):
        Question({"task": most + "a"}, []).to_bytes()


def test_what_ends_early_is_never_taken_for_whole():
    here, there = socket.socketpair()
    with there:
        with here:
            here.sendall(b"abc")
        assert exactly(there, 2) == b"ab"
        with pytest.raises(EOFError):
            exactly(there, 2)


@pytest.mark.parametrize(("task", "code", "answered"), [("train", 0, b"abc"), ("fail", 1, b"")])
def test_a_cells_process_ends_by_its_answer_with_all_that_its_job_left_running(
    task, code, answered, tmp_path
):
    place = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as gate:
        gate.bind(place)
        gate.listen()
        gate.settimeout(60.0)
        command = [sys.executable, "-c", CELL, place]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as cell:
            line, _ = gate.accept()
            with line:
                line.settimeout(60.0)
                line.sendall(Question({"task": task}, [b"ab", b"c"]).to_bytes())
                found = line.recv(3, socket.MSG_WAITALL)
            _, errors = cell.communicate(timeout=60)
    assert (found, cell.returncode) == (answered, code)
    assert (b"the job failed" in errors) == (task == "fail")
