"""Communication is what was really sent: bytes up and down are the lengths of the messages."""

from __future__ import annotations

import json

import pytest

from dpfedadamw.federation import unprotected, worker
from tests.runs import small_spec, train

# Softmax regression on 8 x 8 digits: one weight and one bias tensor, 64·10 + 10 parameters.
PARAMETERS, TENSORS, FLOAT = 650, 2, 4
ROUNDS, CLIENTS = 2, 4


def floats(message: bytes) -> int:
    """Numbers in a message, by the published format: an 8-byte length, a JSON header, the data."""
    header = int.from_bytes(message[:8], "little")
    json.loads(message[8 : 8 + header])
    payload = len(message) - 8 - header
    assert payload % FLOAT == 0
    return payload // FLOAT


@pytest.fixture
def sent(monkeypatch) -> dict[str, list[bytes]]:
    """Every message, where it is read: by clients (down) and by the server (up)."""
    messages: dict[str, list[bytes]] = {"up": [], "down": []}

    def listen(module, name, way):
        read = getattr(module, name)

        def noting(message, like):
            messages[way].append(message)
            return read(message, like)

        monkeypatch.setattr(module, name, noting)

    listen(worker, "view", "down")
    listen(unprotected, "view", "up")
    return messages


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("algorithm", "change", "up", "down"),
    [
        ("dp-fedavg", (), PARAMETERS, PARAMETERS),
        ("fedavg", (), PARAMETERS, PARAMETERS),
        ("dp-localadamw", (), PARAMETERS, PARAMETERS),
        # One mean a block goes up; down goes that mean and the last global update.
        (
            "dp-fedadamw",
            ("algorithm.second_moment.aggregation=tensor",),
            PARAMETERS + TENSORS,
            2 * PARAMETERS + TENSORS,
        ),
        (
            "dp-fedadamw",
            ("algorithm.second_moment.aggregation=full",),
            2 * PARAMETERS,
            3 * PARAMETERS,
        ),
        (
            "dp-fedadamw",
            ("algorithm.second_moment.aggregation=full", "algorithm.first_moment.aggregation=full"),
            3 * PARAMETERS,
            4 * PARAMETERS,
        ),
        (
            "dp-fedadamw",
            ("algorithm.second_moment.aggregation=none",),
            PARAMETERS,
            2 * PARAMETERS,
        ),
        ("dp-scaffold", (), 2 * PARAMETERS, 2 * PARAMETERS),
        ("scaffold", (), 2 * PARAMETERS, 2 * PARAMETERS),
    ],
)
def test_bytes_are_those_of_the_messages_and_hold_what_the_algorithm_sends(
    algorithm, change, up, down, sent, tmp_path
):
    spec = small_spec(algorithm, rounds=ROUNDS, clients_per_round=CLIENTS, overrides=change)
    training, _ = train(spec, tmp_path)
    lines = [json.loads(line) for line in training.run.metrics.read_text().splitlines()][1:]
    assert len(lines) == ROUNDS
    for way, count in (("up", up), ("down", down)):
        assert [floats(message) for message in sent[way]] == [count] * (ROUNDS * CLIENTS)
        by_round = [
            sum(len(message) for message in sent[way][t * CLIENTS : (t + 1) * CLIENTS])
            for t in range(ROUNDS)
        ]
        assert [line[f"bytes_{way}"] for line in lines] == by_round
