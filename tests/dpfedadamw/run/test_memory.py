"""Memory over a run's rounds: what is kept of each is small, whatever is trained in it."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

from dpfedadamw.accounting import losses
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.run.setup import start
from dpfedadamw.run.training import train
from tests.runs import small_spec

# Memory is traced from the end of one round on and compared from a later one: where a round
# replaces what was there before, only the new is counted, so the first two seem to leave more.
CLIENTS, ROUNDS, TRACED, SETTLED = 30, 11, 4, 7
# A participation leaves a line of the ledger (about 270 bytes), the names of its streams (a bit
# each) and three numbers in its round's line; a round a few lines besides. Together 400 to 500.
MOST_BYTES = 700


def test_what_a_client_asked_and_got_is_let_go_of_before_the_next_one_works(tmp_path, monkeypatch):
    held, close = [], RecordLevel.close

    def closing(self, current):
        for answer in current.answers:
            exchange = answer.result.evidence.exchange
            held.extend([*exchange.points, *exchange.gradients])
        return close(self, current)

    monkeypatch.setattr(RecordLevel, "close", closing)
    training = start(prepare(small_spec(rounds=2), torch.device("cpu")), tmp_path)
    with training.lock:
        train(training)
    assert held == []
    # They were there: the files that are kept for replay have them.
    with np.load(next(training.run.evidence.glob("upload-*.npz"))) as file:
        assert file["points"].size
        assert file["gradients"].size


def test_what_a_run_starts_with_is_not_held_beside_the_message_of_its_first_round(tmp_path):
    training = start(prepare(small_spec(rounds=1), torch.device("cpu")), tmp_path)
    found, gone = weakref.ref(training.state.parameters), []
    assert found() is not None
    with training.lock:
        train(training, on_client=lambda *_: gone.append(found() is None))
    assert gone == [True] * 4


@pytest.mark.slow
def test_a_participation_leaves_less_than_seven_hundred_bytes_in_memory(tmp_path):
    spec = small_spec(
        rounds=ROUNDS,
        clients_per_round=CLIENTS,
        mode="release",
        overrides=(
            f"data.clients={CLIENTS}",
            "data.partition={kind: iid}",
            "federation.local_steps=1",
            "evaluation.every=100",
        ),
    )
    training = start(prepare(spec, torch.device("cpu")), tmp_path)
    held: dict[int, int] = {}

    def look(result, _evaluation):
        if result.completed not in (TRACED, SETTLED, ROUNDS - 1):
            return
        # Four entries however long a run is, whose size changes with the number of its steps.
        losses._powers.cache_clear()
        gc.collect()
        if result.completed == TRACED:
            # From here on, because whatever is traced takes several times as long.
            tracemalloc.start()
        held[result.completed] = tracemalloc.get_traced_memory()[0]

    try:
        with training.lock:
            train(training, on_round=look)
    finally:
        tracemalloc.stop()
    last = ROUNDS - 1
    grown = (held[last] - held[SETTLED]) / (last - SETTLED) / CLIENTS
    assert grown < MOST_BYTES
