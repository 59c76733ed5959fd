"""Messages through the gate, with Flower's own objects on both sides and no process in between."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord
from flwr.proto import fleet_pb2, message_pb2

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import windows
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.flower import relay
from dpfedadamw.extensions.gate.flower.shards import Shard
from tests.dpfedadamw.extensions.gate.flower.messages import (
    MODEL,
    VALUES,
    Node,
    cut,
    honest,
    message,
    question,
)

pytestmark = pytest.mark.flower

TEXT, NUMBER = "these are the records", 31337.25


class Gate:
    """Notes what it is given, and releases the same arrays always, or what it is told to raise."""

    def __init__(self, spent=None, fails=None):
        self.spent, self.fails, self.given = spent, fails, []

    def check(self):
        if self.spent:
            raise self.spent

    def release(self, *, job, request, broadcast, shards):
        self.given.append((job, request, broadcast, shards))
        if self.fails:
            raise self.fails
        return {name: value + 1 for name, value in VALUES.items()}


@pytest.fixture
def site(tmp_path):
    """Makes a site whose shards answer as functions of the message's name."""
    opened = []

    def make(*answers, at_once=4):
        nodes = [Node(tmp_path / f"{place}", one) for place, one in enumerate(answers)]
        one = relay.Site(nodes, MODEL, at_once)
        for node, shard in zip(nodes, one._shards, strict=True):
            node.shard = shard
        opened.append(one.__enter__())
        return one, nodes

    yield make
    for one in opened:
        for node in one._cells:
            node.end()
        for shard in one._shards:
            shard.ask(None)
            shard.close()


def trained(name):
    return message(
        reply_to=name, arrays=honest(bias=np.ones(10, np.float32)),
        metrics=MetricRecord({"num-examples": 718}),
    )  # fmt: skip


def leaks(name):
    return message(
        reply_to=name,
        arrays=honest(),
        metrics=MetricRecord({"num-examples": 31337, "leak": [NUMBER]}),
        config=ConfigRecord({"leak": TEXT}),
    )


def other_names(name):
    record = ArrayRecord({TEXT: Array(VALUES["weights"]), "bias": Array(VALUES["bias"])})
    return message(reply_to=name, arrays=record)


def fails(name):
    return message(reply_to=name, error=Error(2, TEXT))


def too_long(name):
    return message(reply_to=name, arrays=honest(), more=ArrayRecord([np.ones(1_000_000)]))


def silent(_):
    return None


def answered(gate, one, asked=None, seconds=8.0):
    asked = asked or question()
    found = relay.answer(gate, one, asked, seconds)
    return found, relay.reply_to(asked, found)


def test_what_leaves_is_the_released_arrays_and_one_constant(site):
    one, _ = site(trained, leaks)
    gate, asked = Gate(), question(update=honest(), config=ConfigRecord({"lr": 0.1}))
    _, reply = answered(gate, one, asked, 3.0)
    ((job, request, broadcast, shards),) = gate.given
    assert (job, request) == ("flower-7", asked.name)
    np.testing.assert_array_equal(broadcast["bias"], VALUES["bias"])
    np.testing.assert_array_equal(shards[0]["bias"], np.ones(10))
    np.testing.assert_array_equal(shards[1]["bias"], VALUES["bias"])
    assert set(reply.content) == {"update", "metrics"}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert list(reply.content["update"]) == list(MODEL)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reply.content["update"][name].numpy(), value + 1)
    about = reply.metadata
    assert (about.group_id, about.reply_to_message_id) == ("1", asked.name)
    raw = b"".join(cut(reply)[1].values())
    for word in (TEXT, "31337", "718", "leak"):
        assert word.encode() not in raw


@pytest.mark.parametrize("way", [other_names, fails, too_long, silent])
def test_a_shard_that_answers_anything_else_counts_as_none_and_the_reply_is_the_same(way, site):
    one, nodes = site(way, trained)
    gate = Gate()
    found, reply = answered(gate, one, seconds=3.0)
    ((*_, shards),) = gate.given
    assert shards[0] is None
    np.testing.assert_array_equal(shards[1]["bias"], np.ones(10))
    assert not isinstance(found, str)
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert not any(node.runs for node in nodes)


@pytest.mark.parametrize("first", [trained, silent])
def test_each_shard_has_a_window_of_its_own_whatever_the_shards_before_it_do(first, site):
    begun = {}

    def begins(place, answer):
        def works(name):
            begun[place] = time.monotonic()
            return answer(name)

        return works

    ways = [begins(place, trained) for place in range(1, 4)]
    one, nodes = site(begins(0, first), *ways, at_once=2)
    before = time.monotonic()
    found = one.ask(question(), 4.0)
    assert begun[1] - before < 1.0
    assert begun[2] - before == pytest.approx(2.0, abs=0.8)
    late = [place for place, arrays in enumerate(found) if arrays is None]
    assert late == ([0] if first is silent else [])
    assert not any(node.runs for node in nodes)


@pytest.mark.parametrize("ways", [(trained, trained), (silent, trained), (fails, fails)])
def test_a_reply_leaves_after_the_same_time_whatever_the_shards_do(ways, site):
    one, _ = site(*ways)
    started = time.monotonic()
    answered(Gate(), one, seconds=3.0)
    assert time.monotonic() - started == pytest.approx(3.0, abs=0.5)


def test_a_refusal_after_the_shards_have_worked_leaves_at_that_time_too(site):
    one, _ = site(trained)
    started = time.monotonic()
    found, reply = answered(Gate(fails=Refused("the budget is spent", "budget")), one, seconds=3.0)
    assert time.monotonic() - started == pytest.approx(3.0, abs=0.5)
    assert found == REFUSAL == reply.error.reason


@pytest.mark.parametrize("kind", ["query", "evaluate", "train.more", "query.records", "reconnect"])
def test_no_shard_hears_of_a_message_of_another_type(kind, site):
    heard = []
    one, _ = site(heard.append)
    found, reply = answered(Gate(), one, question(kind))
    assert found == relay.NOT_TRAIN
    assert not reply.has_content()
    assert reply.error.reason == relay.NOT_TRAIN
    time.sleep(0.3)
    assert heard == []


@pytest.mark.parametrize(
    "records",
    [
        {"arrays": honest(leak=np.ones(3, np.float32))},
        {"arrays": honest(bias=np.ones(11, np.float32))},
        {"arrays": honest(), "more": honest(bias=np.ones(10, np.float32))},
        {"config": ConfigRecord({"lr": 0.1})},
    ],
    ids=["an array more", "another shape", "two records", "no arrays"],
)
def test_a_message_without_exactly_the_models_arrays_is_refused_before_any_shard_hears(
    records, site
):
    heard = []
    one, _ = site(heard.append)
    gate = Gate()
    assert answered(gate, one, question(**records))[0] == relay.NOT_MODEL
    time.sleep(0.3)
    assert (heard, gate.given) == ([], [])


def test_a_spent_budget_is_refused_before_any_shard_hears_in_words_that_are_fixed(site):
    heard, told = [], []
    one, _ = site(heard.append)
    gate = Gate(spent=Refused("0.1 is left, a release costs 0.5", "budget"))
    found = relay.answer(gate, one, question(), 8.0, told.append)
    assert found == REFUSAL
    assert told == ["run 7: 0.1 is left, a release costs 0.5"]
    assert heard == []


def test_what_is_wrong_at_the_site_is_said_to_its_operator_alone(site):
    told = []
    one, _ = site(trained)
    failed = DpfedadamwError("/site/ledger.jsonl: cannot be written to")
    found = relay.answer(Gate(fails=failed), one, question(), 3.0, told.append)
    assert found == windows.FAILED
    assert told == ["run 7: /site/ledger.jsonl: cannot be written to"]


def test_no_more_shards_compute_at_once_than_the_operator_allows(site):
    running, most, lock = [0], [0], threading.Lock()

    def works(name):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.2)
        with lock:
            running[0] -= 1
        return trained(name)

    one, _ = site(*[works] * 6, at_once=2)
    gate = Gate()
    answered(gate, one, seconds=6.0)
    assert most[0] == 2
    assert all(found is not None for found in gate.given[0][3])


def test_an_answer_to_an_earlier_message_is_not_taken_for_one_to_this(tmp_path):
    node = Node(tmp_path / "socket", silent)
    node.shard = Shard(node.socket, 100_000, lambda: None)
    asked, earlier = question(), question(arrays=honest(bias=np.zeros(10, np.float32)))
    node.shard.ask(asked)
    with pytest.raises(ValueError, match="answers something else"):
        node.answer(trained(earlier.name))
    assert node.shard.answered() is None
    node.answer(trained(asked.name))
    assert node.shard.answered().name == trained(asked.name).object_id
    with pytest.raises(ValueError, match="a second time"):
        node.answer(trained(asked.name))
    node.shard.ask(None)
    with pytest.raises(ValueError, match="nothing was asked"):
        node.answer(trained(asked.name))
    node.shard.close()


def test_a_question_is_not_given_to_a_request_of_a_cell_that_has_ended(tmp_path):
    shard = Shard(tmp_path / "socket", 1000, lambda: None)
    asked, found = question(), []

    def pulls():
        body = shard.respond("/v1/fleet/pull-messages", b"")
        found.append(len(fleet_pb2.PullMessagesResponse.FromString(body).messages_list))

    earlier = threading.Thread(target=pulls)
    earlier.start()
    time.sleep(0.3)
    shard.ask(asked)
    earlier.join(5)
    pulls()
    assert found == [0, 1]
    shard.close()


def test_an_object_under_a_name_that_its_content_does_not_give_it_is_refused(tmp_path):
    shard = Shard(tmp_path / "socket", 1000, lambda: None)
    pushed = message_pb2.PushObjectRequest(object_id="0" * 64, object_content=b"something")
    with pytest.raises(ValueError, match="another name"):
        shard.respond("/v1/fleet/push-object", pushed.SerializeToString())
    shard.close()


def test_flowers_own_client_speaks_to_a_shards_socket_and_nothing_else_gets_an_answer(tmp_path):
    import httpx

    shard = Shard(tmp_path / "socket", 1000, lambda: None)
    transport = httpx.HTTPTransport(uds=str(tmp_path / "socket"))
    with httpx.Client(transport=transport, base_url="http://gate") as client:
        asked = fleet_pb2.RegisterNodeFleetRequest(public_key=b"key").SerializeToString()
        found = client.post("/v1/fleet/register-node", content=asked)
        assert fleet_pb2.RegisterNodeFleetResponse.FromString(found.content).node_id == 1
        for path in ("/v1/control/start-run", "/v1/runtime/pull-task-input", "/docs", "/"):
            assert client.post(path, content=b"").status_code == 404
        assert client.get("/v1/fleet/get-run").status_code == 501
        # Nothing was asked, so there is no run, no app and no object.
        assert client.post("/v1/fleet/get-fab", content=b"").status_code == 404
        assert client.post("/v1/fleet/push-object", content=b"\xff" * 50).status_code == 404
    head = f"POST /v1/fleet/push-object HTTP/1.1\r\nContent-Length: {1 << 30}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as long:
        long.connect(str(tmp_path / "socket"))
        long.sendall(head.encode())
        # It answers without waiting for the gigabyte, and ends the connection.
        assert long.makefile("rb").read().startswith(b"HTTP/1.1 404")
    shard.close()
