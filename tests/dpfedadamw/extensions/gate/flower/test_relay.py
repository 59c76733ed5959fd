"""Messages through the gate, with Flower's own objects on both sides and no process in between."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from flwr.app import ConfigRecord

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import windows
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.flower import relay
from dpfedadamw.extensions.gate.windows import Windows
from tests.dpfedadamw.extensions.gate.flower.messages import (
    MODEL,
    VALUES,
    asked,
    honest,
)
from tests.dpfedadamw.extensions.gate.threads import CellThread

pytestmark = pytest.mark.flower


class Gate:
    """Notes what it is given, and releases the same arrays always, or what it is told to raise."""

    model = MODEL

    def __init__(self, spent=None, fails=None):
        self.spent, self.fails, self.given = spent, fails, []

    def check(self):
        if self.spent:
            raise self.spent

    def alone(self):
        return contextlib.nullcontext()

    def release(self, *, job, request, broadcast, shards):
        self.given.append((job, request, broadcast, shards))
        if self.fails:
            raise self.fails
        return {name: value + 1 for name, value in VALUES.items()}


@pytest.fixture
def site(tmp_path):
    """Makes a site whose shards answer as functions of the question."""
    opened = []

    def make(*answers, at_once=4):
        nodes = [CellThread(tmp_path / f"{place}", one) for place, one in enumerate(answers)]
        one = Windows(nodes, MODEL, at_once, 1.0)
        opened.append(one.__enter__())
        return one, nodes

    yield make
    for one in opened:
        one.__exit__()


def trained(_):
    return VALUES["weights"].tobytes() + np.ones(10, np.float32).tobytes()


def ends(_):
    raise EOFError


def silent(_):
    return None


def answered(gate, one, message=None, seconds=8.0):
    message = message or asked()
    found = relay.answer(gate, one, message, seconds)
    return found, relay.reply_to(message, found)


def test_what_leaves_is_the_released_arrays_and_one_constant(site):
    one, _ = site(trained, silent)
    gate, message = Gate(), asked(update=honest(), config=ConfigRecord({"lr": 0.1}))
    _, reply = answered(gate, one, message, 3.0)
    ((job, request, broadcast, shards),) = gate.given
    assert (job, request) == ("flower-7", message.name)
    np.testing.assert_array_equal(broadcast["bias"], VALUES["bias"])
    np.testing.assert_array_equal(shards[0]["bias"], np.ones(10))
    assert shards[1] is None
    assert set(reply.content) == {"update", "metrics"}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert list(reply.content["update"]) == list(MODEL)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reply.content["update"][name].numpy(), value + 1)
    about = reply.metadata
    assert (about.group_id, about.reply_to_message_id) == ("1", message.name)


@pytest.mark.parametrize("way", [ends, silent])
def test_a_shard_that_does_not_answer_counts_as_none_and_the_reply_is_the_same(way, site):
    one, nodes = site(way, trained)
    gate = Gate()
    found, reply = answered(gate, one, seconds=3.0)
    ((*_, shards),) = gate.given
    assert shards[0] is None
    np.testing.assert_array_equal(shards[1]["bias"], np.ones(10))
    assert not isinstance(found, str)
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert not any(node.runs for node in nodes)


@pytest.mark.parametrize("kind", ["query", "evaluate", "train.more", "query.records", "reconnect"])
def test_no_shard_hears_of_a_message_of_another_type(kind, site):
    heard = []
    one, _ = site(heard.append)
    found, reply = answered(Gate(), one, asked(kind))
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
    assert answered(gate, one, asked(**records))[0] == relay.NOT_MODEL
    time.sleep(0.3)
    assert (heard, gate.given) == ([], [])


def test_a_spent_budget_is_refused_before_any_shard_hears_in_words_that_are_fixed(site):
    heard, told = [], []
    one, _ = site(heard.append)
    gate = Gate(spent=Refused("0.1 is left, a release costs 0.5", "budget"))
    found = relay.answer(gate, one, asked(), 8.0, told.append)
    assert found == REFUSAL
    assert told == ["run 7: 0.1 is left, a release costs 0.5"]
    assert heard == []


def test_what_is_wrong_at_the_site_is_said_to_its_operator_alone(site):
    told = []
    one, _ = site(trained)
    failed = DpfedadamwError("/site/ledger.jsonl: cannot be written to")
    found = relay.answer(Gate(fails=failed), one, asked(), 3.0, told.append)
    assert found == windows.FAILED
    assert told == ["run 7: /site/ledger.jsonl: cannot be written to"]
