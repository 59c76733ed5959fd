"""A run that protects nothing charges nothing and sends its uploads as they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.participation import LocalResult
from dpfedadamw.federation.unprotected import Unprotected, record_loss

UNIT = Unprotected()


def test_an_upload_is_sent_and_received_unchanged():
    upload = Upload(
        torch.tensor([1.0, -2.0]), {"moment": torch.tensor([0.5])}, {"own": torch.ones(3)}
    )
    result = LocalResult(upload=upload, state={}, steps=1, queries=1, evidence=None)
    answer = UNIT.answer(None, result)
    assert answer.result is result
    assert answer.message == UNIT.likeness(None, upload) == pack(upload.update, upload.state)
    current = SimpleNamespace(
        answers=[answer, answer], broadcast=SimpleNamespace(parameters=torch.zeros(2))
    )
    received = UNIT.receive(current)
    assert len(received) == 2
    for one in received:
        assert one.update.tolist() == [1.0, -2.0]
        assert {name: value.tolist() for name, value in one.state.items()} == {"moment": [0.5]}
        # What a client keeps for itself does not travel.
        assert one.memory == {}


def test_nothing_is_charged_noted_or_written():
    assert UNIT.charges(None) == []
    assert UNIT.close(None) == UNIT.take_shared() == {}
    assert (UNIT.evidence_of_client(), UNIT.witness(), UNIT.spot_check(None, None, "")) == (
        None,
    ) * 3
    oracle = object()
    assert UNIT.observed(oracle, None) is oracle
    assert UNIT.drawing_from(None) is UNIT.probed() is UNIT
    assert not UNIT.moved_by_empty_rounds


@pytest.mark.parametrize(
    ("hidden", "lengths", "sent"),
    [
        (False, [10, 10, 10], (30, 21)),
        (False, [10, 12], (22, 14)),
        (False, [], (0, 0)),
        # As of four clients, however many there were; of none nobody knows how long an upload is.
        (True, [10, 10, 10], (40, 28)),
        (True, [10], (40, 28)),
        (True, [], (None, 28)),
    ],
)
def test_traffic_is_that_of_all_clients_or_of_as_many_as_are_expected(hidden, lengths, sent):
    current = SimpleNamespace(
        plan=SimpleNamespace(participants_hidden=hidden, clients_per_round=4),
        answers=[SimpleNamespace(message=bytes(length)) for length in lengths],
        message=bytes(7),
    )
    assert UNIT.traffic(current) == sent


def test_each_record_has_a_loss_of_its_own():
    outputs = torch.tensor([[0.0, 0.0], [0.0, 30.0]])
    assert record_loss(outputs, torch.tensor([0, 1])).tolist() == pytest.approx([0.6931472, 0.0])
