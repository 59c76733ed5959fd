"""A client's process, and what anyone may throw at its socket."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from io import BytesIO
from multiprocessing import connection as connections
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from dpfedadamw.experiment import prepare
from dpfedadamw.extensions.deployment import listening
from dpfedadamw.extensions.deployment.client import Client
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.listening import answer
from dpfedadamw.extensions.deployment.project import Project
from dpfedadamw.extensions.deployment.refusals import (
    REASONS,
    RefusalError,
    Refusals,
    read_counts,
)
from dpfedadamw.extensions.deployment.site import Site
from dpfedadamw.federation.flower.arrays import wires_of
from dpfedadamw.federation.flower.frames import Frame, receive, send
from dpfedadamw.federation.messages import pack
from dpfedadamw.vectors.flat import FlatParameters
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.dpfedadamw.extensions.deployment.test_client import asked

# A client's process, in which an import of Flower fails.
WITHOUT_FLOWER = """
import runpy, sys
sys.modules["flwr"] = None
runpy.run_module("tests.dpfedadamw.extensions.deployment.served", run_name="__main__")
"""
PATIENCE = 1.0
MIB = 1 << 20


def first_broadcast():
    experiment = prepare(SPEC, torch.device("cpu"))
    state = experiment.algorithm.server.start(FlatParameters(experiment.model).vector)
    return pack(state.parameters, state.state)


def question(**changes):
    """What an honest server asks in the first round."""
    return {**asdict(asked()), "run": "a-run", "remembered": "", **changes}


class Process:
    """A client's own process, and its folder in a place with a short name."""

    def __init__(self, project):
        self.place = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
        shutil.copytree(project.path, self.place / "p")
        self.site = Project(self.place / "p", project.clients).site(0)
        self.log = self.place / "log"
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WITHOUT_FLOWER, self.site.path],
                stderr=log,
            )
        last = time.monotonic() + 120.0
        while True:
            with contextlib.suppress(OSError):
                self.ask(Frame({"hello": "0" * 32}))
                return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < last
            time.sleep(0.05)

    def ask(self, frame):
        with connections.Client(str(self.site.socket), family="AF_UNIX") as connection:
            send(connection, frame)
            return receive(connection)

    def throw(self, *parts):
        """Send raw bytes, tell that nothing follows, and read until the other end is gone."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(20.0)
            one.connect(str(self.site.socket))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for part in parts:
                    one.sendall(part)
                one.shutdown(socket.SHUT_WR)
            answered = b""
            with contextlib.suppress(ConnectionResetError):
                while more := one.recv(1 << 16):
                    answered += more
            return answered

    @property
    def most_memory(self):
        """Bytes that it has ever held at once."""
        (line,) = (
            one
            for one in Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
            if one.startswith("VmHWM")
        )
        return int(line.split()[1]) * 1024

    def end(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.place)


@pytest.fixture(scope="module")
def process(unused):
    one = Process(unused)
    yield one
    one.end()


@pytest.fixture
def answered(process):
    """One that has answered the first message of a run, and so knows the run."""
    assert "steps" in process.ask(Frame(question(), wires_of(first_broadcast()))).values
    return process


def framed(content):
    """A message of a connection."""
    if len(content) > 0x7FFFFFFF:
        return struct.pack("!iQ", -1, len(content)) + content
    return struct.pack("!i", len(content)) + content


def head(values, arrays=()):
    return framed(json.dumps({"values": values, "arrays": list(arrays)}).encode())


def plain(values):
    return {k: {"hex": v.hex()} if isinstance(v, bytes) else v for k, v in values.items()}


def npy(text, content=b""):
    """NumPy's format with a head of one's own."""
    raw = text.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + content


def with_array(name, data, form="numpy.ndarray", values=None):
    described = [name, "float32", [1], form, len(data)]
    return head(plain(values or question()), [described]) + framed(data)


ODD = (
    None, [], {}, "x", "", True, -1, 2**31, 2**63, 2**70, -(2**70), 1.5, 1e308, "\ud800", "é" * 9,
    "a" * 60_000, "\x1b[2J\x1b]0;owned\x07", "../../../etc/passwd", "0-1 ", "²-1", "99999999-1",
    {"hex": "zz"}, {"hex": 5}, {"hex": "00", "more": 1}, {"hex": ""}, [[[[[]]]]], [1, {}], "0\n-1",
)  # fmt: skip
RAW_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-0", "1" + "0" * 400)


def corpus():
    """Hostile messages as (what it is, parts of raw bytes)."""
    good = plain(question())
    for one in ([], None, 5, "x", True, 1.5, {}, [1], {"values": 5}, {"arrays": []}, [[]] * 9):
        yield f"head {one!r}", [framed(json.dumps(one).encode())]
    for values in ([], None, 5, "x", [["a", 1]], {"hello": {}}, {"hello": []}, {"hello": "x"}):
        yield f"values {values!r}", [head(values)]
    yield "a nonce and more", [head({"hello": "0" * 32, "run": "r"})]
    yield "a nonce that is a statement", [head({"hello": json.dumps(good)})]
    yield "a long nonce", [head({"hello": "0" * 60_000})]
    for arrays in (5, None, {}, "x", [5], [[]], [["a"]], [None], [["a", "b", [], "d"]]):
        content = json.dumps({"values": good, "arrays": arrays}).encode()
        yield f"arrays {arrays!r}", [framed(content)]
    for size in (-1, -(2**63), 2**31, 2**40, 2**63, 2**70, 1.5, True, None, "5", [], MIB):
        yield f"array of {size!r} bytes", [head(good, [["a", "float32", [1], "numpy", size]])]
    for shape in (5, None, [-1], [2**64], [1.5], [True], [[1]], [1] * 100, "x", {}):
        yield f"array of shape {shape!r}", [head(good, [["a", "float32", shape, "x", 0]])]
    for name in (5, None, [], {}, True):
        yield f"array named {name!r}", [head(good, [[name, "float32", [1], "x", 0]])]
    yield "thousands of arrays", [head(good, [[str(i), "", [], "", 1] for i in range(2000)])]
    yield "two arrays of one name", [head(good, [["a", "", [], "", 1]] * 2)]
    for name in good:
        for value in ODD:
            yield f"{name} = {str(value)[:20]!r}", [head({**good, name: value})]
        for raw in RAW_NUMBERS:
            content = json.dumps({"values": {**good, name: "@"}, "arrays": []}).replace('"@"', raw)
            yield f"{name} = {raw[:12]}", [framed(content.encode())]
        yield f"without {name}", [head({k: v for k, v in good.items() if k != name})]
    yield "a value that nobody knows", [head({**good, "seed": 1})]
    yield "bytes that are no UTF-8", [framed(b'{"values": {"hello": "\xff\xfe"}, "arrays": []}')]
    yield "UTF-16", [framed(json.dumps({"values": good, "arrays": []}).encode("utf-16"))]
    yield "deep lists", [framed(b"[" * 60_000)]
    yield "deep objects", [framed(b'{"a":' * 10_000)]
    yield "deep values", [framed(b'{"arrays": [], "values": {"a": ' + b"[" * 50_000)]
    yield "a pickle", [framed(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.")]
    yield "nothing", []
    yield "an empty message", [framed(b"")]
    yield "half a length", [b"\x00\x00"]
    yield "half a head", [struct.pack("!i", 1000) + b'{"values"']
    yield "a head without its arrays", [head(good, [["a", "float32", [1], "x", 64]])]
    short = head(good, [["a", "float32", [1], "x", 64]])
    yield "half an array", [short + struct.pack("!i", 64) + b"x" * 10]
    yield "an array shorter than said", [short + framed(b"x" * 10)]
    yield "an array longer than said", [short + framed(b"x" * 100)]
    for length in (-2, -(2**31), 2**31 - 1, 100 * MIB):
        yield f"a head that says {length} bytes", [struct.pack("!i", length) + b"{" * 10]
    for length in (0, 2**40, 2**63, 2**64 - 1):
        yield f"a long head that says {length}", [struct.pack("!iQ", -1, length) + b"{" * 10]
    yield "100 MB of a head", [struct.pack("!i", 100 * MIB), *[b" " * MIB] * 100]
    one = np.zeros(1, np.float32)
    for form in ("", "pickle", "torch", "numpy.ndarray"):
        yield f"an array in format {form!r}", [with_array("parameters", b"\x80\x04.", form)]
    for text in (
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**70},)}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, 4)}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**63}, 0)}}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}",
        "__import__('os').system('true')",
        "(" * 5000,
        "{" * 5000,
        "",
    ):
        yield f"NumPy head {text[:60]!r}", [with_array("parameters", npy(text, bytes(4)))]
    for kind in ("f2", "f8", "i8", "u1", "u2", "f16", "?"):
        file = BytesIO()
        np.save(file, one.astype(kind))
        yield f"parameters of {kind}", [with_array("parameters", file.getvalue())]
    names = ("__metadata__", "", "\ud800", "a" * 50_000, "../x", "parameters\x00", "state.x")
    file = BytesIO()
    np.save(file, one)
    for name in names:
        yield f"an array named {name[:20]!r}", [with_array(name, file.getvalue())]


def test_no_bytes_on_the_socket_end_the_process_fill_its_memory_or_its_ledger(process):
    hostile = list(corpus())
    assert len(hostile) >= 300
    ledger, memory = process.site.ledger.read_bytes(), process.most_memory
    for what, parts in hostile:
        process.throw(*parts)
        assert process.process.poll() is None, what
    # An array that is within the limits is read, and no other byte is kept.
    assert process.most_memory - memory < 48 * MIB
    assert process.site.ledger.read_bytes() == ledger
    # It is still who it was.
    assert process.ask(Frame({"hello": "0" * 32})).values["client"] == 0


def test_what_was_refused_is_counted_and_logged_without_what_was_sent(process):
    # Counts are on the disk a second later at most.
    time.sleep(1.5)
    before = read_counts(process.site.refusals)
    for _ in range(50):
        process.throw(head({**plain(question()), "run": "\x1b[2Jprivate"}))
    time.sleep(1.5)
    refused = read_counts(process.site.refusals)
    assert refused == {**before, "message": before.get("message", 0) + 50}
    log = process.log.read_text()
    # Hundreds were refused, and a line a message would fill the disk.
    assert len(log.splitlines()) < 40
    assert "private" not in log
    assert "\x1b" not in log
    assert process.site.refusals.stat().st_size < 4096


def test_a_silent_connection_blocks_the_client_for_its_patience_and_no_longer(process):
    for begun in (b"", b"\x00", head(plain(question()), [["parameters", "", [], "", 64]])):
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(process.site.socket))
            silent.sendall(begun)
            started = time.monotonic()
            assert process.ask(Frame({"hello": "0" * 32})).values["client"] == 0
            assert PATIENCE / 2 < time.monotonic() - started < 10 * PATIENCE


def test_a_connection_that_drips_is_no_better_than_a_silent_one(process):
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(process.site.socket))
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for byte in struct.pack("!i", 60_000) + b" " * 100:
                slow.sendall(bytes([byte]))
                sent += 1
                time.sleep(PATIENCE / 10)
    assert 5 < sent < 100


def test_a_connection_that_never_reads_its_answer_blocks_nobody(process):
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        deaf.connect(str(process.site.socket))
        deaf.sendall(head({"hello": "0" * 32}))
        assert process.ask(Frame({"hello": "0" * 32})).values["client"] == 0


def test_an_honest_message_is_answered_after_all_that_and_the_answer_is_signed(process):
    message = first_broadcast()
    found = process.ask(Frame(question(), wires_of(message)))
    assert found.values["steps"] == SPEC.federation.local_steps
    assert set(found.arrays) == {"parameters", "state.second_moment"}
    kinds = [json.loads(line)["kind"] for line in process.site.ledger.read_text().splitlines()]
    assert kinds == ["pin", "spend", "upload"]
    # Killed and started again, it sends the same bytes again for nothing.
    process.process.kill()
    process.process.wait()
    process.start()
    assert process.ask(Frame(question(), wires_of(message))) == found
    assert len(process.site.ledger.read_text().splitlines()) == 3


def test_what_the_server_is_told_of_a_refusal_is_one_of_a_few_words(answered):
    lies = [
        (question(attempt=2, noise_multiplier=0.02), "noise"),
        (question(round=1, local_steps=900), "noise"),
        (question(round=1, learning_rate=1e9), "noise"),
        (question(run="another-run"), "run"),
        (question(client=2), "client"),
        (question(round=7), "round"),
        (question(round=1, learning_rate=0.05, remembered="1-1"), "memory"),
    ]
    for values, reason in lies:
        found = answered.ask(Frame(values, wires_of(first_broadcast())))
        assert found == Frame({"refused": reason})


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), -float("inf"), 1e38, 2e3])
def test_a_broadcast_that_is_not_finite_or_far_too_large_is_refused_and_not_paid_for(
    worth, answered
):
    ledger = answered.site.ledger.read_bytes()
    tensors = load(first_broadcast())
    tensors["parameters"][3] = worth
    state = {k.removeprefix("state."): v for k, v in tensors.items() if k != "parameters"}
    message = pack(tensors["parameters"], state)
    values = question(attempt=2)
    assert answered.ask(Frame(values, wires_of(message))).values == {"refused": "broadcast"}
    assert answered.site.ledger.read_bytes() == ledger


def test_many_small_arrays_are_limited_by_their_sum_and_number(process):
    size = len(first_broadcast())
    most = [[f"state.{i}", "float32", [1], "numpy.ndarray", size // 2] for i in range(400)]
    answered = process.throw(head(plain(question()), most), b"x" * MIB)
    assert b'"refused": "message"' in answered
    assert process.process.poll() is None


@pytest.fixture(scope="module")
def client(unused, tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzzed") / "project"
    shutil.copytree(unused.path, place)
    one = Client(Project(place, unused.clients).site(0))
    yield one
    one.close()


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=40), st.binary()
    .map(lambda raw: {"hex": raw.hex()}),
)  # fmt: skip
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = st.sampled_from([*question(), "hello", "other"])
HEADS = st.one_of(
    ANYTHING,
    st.fixed_dictionaries({"values": ANYTHING, "arrays": ANYTHING}),
    st.fixed_dictionaries(
        {
            "values": st.dictionaries(NAMES, ANYTHING, max_size=4).map(
                lambda some: {**plain(question()), **some}
            ),
            "arrays": st.lists(
                st.tuples(st.text(max_size=5), ANYTHING, ANYTHING, ANYTHING, ANYTHING), max_size=3
            ),
        }
    ),
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=HEADS, rest=st.binary(max_size=64))
def test_whatever_a_message_says_is_refused_and_charges_nothing(head, rest, client):
    ledger, refusals = client.ledger.size, Refusals(client._site.refusals)
    here, there = connections.Pipe()
    with here, there:
        there.send_bytes(json.dumps(head).encode())
        there.send_bytes(rest)
        if len(rest) > 32:
            there.close()
        answer(client, refusals, here, 0.2)
    assert client.ledger.size == ledger
    assert sum(refusals.counts.values()) >= 1


class Failing:
    """A client whose part fails."""

    def __init__(self, error):
        self.error, self.opened = error, 0

    def introduce(self, nonce):
        raise self.error

    def reopen(self):
        self.opened += 1


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (DeploymentError("the disk is full"), "the disk is full"),
        (ValueError("the record 31337 is odd"), "ValueError"),
        (MemoryError("31337 bytes"), "MemoryError"),
        (RuntimeError("31337"), "RuntimeError"),
        (RecursionError(), "RecursionError"),
    ],
)
def test_of_a_failure_the_log_has_this_packages_own_words_and_of_others_the_kind(
    error, logged, tmp_path
):
    lines, client = [], Failing(error)
    refusals = Refusals(tmp_path / "refusals.json", lines.append)
    assert answered_by(client, refusals) == Frame({"refused": "failed"})
    assert lines == [f"refused (failed): {logged}"]
    assert refusals.counts == {"failed": 1}
    # The ledger may have been what failed.
    assert client.opened == 1


@pytest.mark.parametrize("reason", REASONS)
def test_a_refusal_tells_the_server_its_one_word_and_the_owner_the_rest(reason, tmp_path):
    lines, client = [], Failing(RefusalError(reason, "charged 31337 times"))
    refusals = Refusals(tmp_path / "refusals.json", lines.append)
    assert answered_by(client, refusals) == Frame({"refused": reason})
    assert lines == [f"refused ({reason}): charged 31337 times"]
    assert (refusals.counts, client.opened) == ({reason: 1}, 0)


def answered_by(client, refusals):
    return listening.answered(client, refusals, Frame({"hello": "0" * 32}))


INTEGERS = (
    "round", "attempt", "client", "place", "cohort", "local_steps", "earlier_steps",
)  # fmt: skip
FLOATS = ("learning_rate", "noise_multiplier")


def test_every_value_of_a_message_has_a_limit_of_its_kind():
    assert asdict(asked()).keys() == {*INTEGERS, *FLOATS, "history"}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_of_a_message_is_taken_below_its_limit_and_no_further(name):
    for good in (0, 2**31 - 1):
        taken = listening._asked(question(**{name: good}))[2]
        assert getattr(taken, name) == good
    for bad in (-1, 2**31, True, 1.0):
        with pytest.raises(RefusalError, match=f"its {name} is no such value"):
            listening._asked(question(**{name: bad}))


@pytest.mark.parametrize("name", FLOATS)
def test_a_number_of_a_message_is_finite(name):
    for good in (0.5, 1, -1e308):
        assert getattr(listening._asked(question(**{name: good}))[2], name) == good
    for bad in (float("inf"), -float("inf"), float("nan"), "1", None, True):
        with pytest.raises(RefusalError, match=f"its {name} is no such value"):
            listening._asked(question(**{name: bad}))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("run", "a" * 200, "a" * 201),
        ("run", "0._-", ".a"),
        ("run", "a", ""),
        ("remembered", "1" * 32, "1" * 33),
        ("remembered", "", None),
        ("history", bytes(32), bytes(31)),
        ("history", b"\xff" * 32, bytes(33)),
    ],
)
def test_a_text_of_a_message_is_taken_up_to_its_limit(name, good, bad):
    run, remembered, found = listening._asked(question(**{name: good}))
    taken = {"run": run, "remembered": remembered, **asdict(found)}
    assert taken[name] == good
    with pytest.raises(RefusalError):
        listening._asked(question(**{name: bad}))


def test_the_clients_process_loads_no_flower(answered):
    """It answers a server, and takes part in a round, where an import of Flower would fail."""
    assert answered.process.args[:3] == [sys.executable, "-c", WITHOUT_FLOWER]
    assert answered.process.poll() is None


class OverError(Exception):
    """Ends what has no end."""


@pytest.fixture
def door(monkeypatch):
    """A folder with a short name whose client is made up; what was done, and what to serve."""
    place, done = Path(tempfile.mkdtemp(prefix="d-", dir="/tmp")), []

    class MadeUp:
        def __init__(self, site, most_charges):
            done.append((site.path, most_charges))

        def close(self):
            done.append("closed")

    monkeypatch.setattr(listening, "Client", MadeUp)

    def made(length=60):
        """A site whose socket's path has so many bytes."""
        site = Site(place / ("x" * (length - len(f"{place}//door/socket"))))
        (site.path / "door").mkdir(parents=True)
        assert len(str(site.socket)) == length
        return site

    yield SimpleNamespace(made=made, done=done)
    shutil.rmtree(place)


def test_a_client_listens_at_a_door_of_its_own_and_lets_go_of_its_folder(door):
    site, seen = door.made(), []
    # Of a process that was killed.
    site.socket.write_text("stale")

    def ready(client):
        mode = site.socket.stat().st_mode
        seen.append((stat.S_ISSOCK(mode), stat.S_IMODE(mode)))
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(site.socket))
        raise OverError

    with pytest.raises(OverError):
        listening.serve(site, ready, most_charges=7)
    # Its group, which is the SuperNode's user, may come in.
    assert seen == [(True, 0o660)]
    assert door.done == [(site.path, 7), "closed"]


def test_while_no_connection_can_be_taken_it_tries_once_a_second(door, monkeypatch):
    """Where no file can be opened, say: without a pause it would take a whole core."""
    tries, pauses = [], []

    class Full(socket.socket):
        def accept(self):
            tries.append(self)
            if len(tries) == 3:
                raise OverError
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(listening.socket, "socket", Full)
    monkeypatch.setattr(listening.time, "sleep", pauses.append)
    site = door.made()

    def ready(client):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(site.socket))

    with pytest.raises(OverError):
        listening.serve(site, ready)
    assert pauses == [1.0, 1.0]


def test_a_path_that_is_too_long_for_a_socket_is_refused_before_the_folder_is_held(door):
    def ready(client):
        raise OverError

    with pytest.raises(OverError):
        listening.serve(door.made(103), ready)
    done = [*door.done]
    with pytest.raises(DeploymentError, match=r"is too long for a socket \(104 bytes, 103 at most"):
        listening.serve(door.made(104), ready)
    assert door.done == done


def test_a_door_that_cannot_be_listened_at_is_one_line_and_lets_go(door):
    site = door.made()
    (site.path / "door").rmdir()
    with pytest.raises(DeploymentError, match=r"socket: cannot be listened on \(No such file"):
        listening.serve(site)
    assert door.done == [(site.path, None), "closed"]


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ({"hello": "0123456789abcdef" * 2}, True),
        ({"hello": "f" * 128}, True),
        ({"hello": "f" * 31}, False),
        ({"hello": "f" * 129}, False),
        ({"hello": "F" * 32}, False),
        ({"hello": "g" * 32}, False),
        ({"hello": "f" * 32 + "\n"}, False),
        ({"hello": None}, False),
        ({"hello": "f" * 32, "more": 1}, False),
    ],
)
def test_who_it_is_is_said_over_a_nonce_alone(values, good, tmp_path):
    client = SimpleNamespace(introduce=lambda nonce: {"signed": nonce})
    refusals = Refusals(tmp_path / "refusals.json")
    found = listening.answered(client, refusals, Frame(values))
    due = {"signed": values["hello"]} if good else {"refused": "message"}
    assert found == Frame(due)
    frame = Frame(values, {"a": ("float32", (1,), "numpy.ndarray", b"0000")})
    assert listening.answered(client, refusals, frame) == Frame({"refused": "message"})
