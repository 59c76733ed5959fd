"""How the rounds of a run that protects records choose their engine and close."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.clipping.engines import PerformanceOptions
from dpfedadamw.evidence.commitments import digest_of_commitments
from dpfedadamw.evidence.exchanges import digest_of_all
from dpfedadamw.federation import record
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.profiling import profiled


def plan(expected, each=None):
    return SimpleNamespace(
        divisor=lambda client: {0: expected}[client], records_per_person=each, clipping_norm=0.5
    )


@pytest.mark.parametrize(
    ("expected", "each", "physical", "batch"),
    [
        # Two deviations above what is expected, rounded up; never more than is asked for.
        (16.0, None, 512, 24),
        (17.0, None, 512, 26),
        (16.0, None, 20, 20),
        # A person's records are never cut.
        (4.0, 5, 512, 40),
        (4.0, 5, 3, 5),
    ],
)
def test_as_many_records_are_clipped_at_once_as_most_batches_have(
    expected, each, physical, batch, monkeypatch
):
    asked = []
    monkeypatch.setattr(record, "choose", lambda *given, **options: asked.append((given, options)))
    model = MultiLayerPerceptron((3,), [], 2)
    performance = PerformanceOptions(engine="vmap", physical_batch_size=physical)
    RecordLevel.engine(SimpleNamespace(model=model, plan=plan(expected, each)), performance)
    (((given, _, norm), options),) = asked
    assert (given, norm) == (model, 0.5)
    assert options == {"engine": "vmap", "precision": "float32", "batch": batch}


def test_gradients_are_compared_with_the_plain_form_unless_they_are_planted():
    model = MultiLayerPerceptron((3,), [], 2)
    unit = RecordLevel(evidence=None)
    assert isinstance(unit.spot_check(model, plan(4.0), "float32"), SpotCheck)

    class Observer:
        def observed(self, oracle, client, round_index):
            return oracle, client, round_index

    planted = RecordLevel(evidence=None, observer=Observer())
    assert planted.spot_check(model, plan(4.0), "float32") is None
    part = SimpleNamespace(client=3, current=SimpleNamespace(index=7))
    assert planted.observed("oracle", part) == ("oracle", 3, 7)
    assert unit.observed("oracle", part) == "oracle"


def test_squares_of_a_client_in_another_process_are_handed_over_under_one_name():
    given = []
    evidence = SimpleNamespace(take_squares=lambda: torch.ones(2).numpy(), add_squares=given.append)
    unit = RecordLevel(evidence=evidence)
    shared = unit.take_shared()
    unit.add_shared(shared)
    assert list(shared) == ["squares"]
    assert given[0].tolist() == [1.0, 1.0]


class Notes:
    """Stands in for what one client noted, or for the writer of a round's evidence."""

    def __init__(self, digest=b"", servers=None):
        self.upload_sha256, self.seen, self.written = digest, None, []
        self.commitment = SimpleNamespace(digest=lambda: b"c" * 32)
        self.exchange = SimpleNamespace(forget=lambda: self.written.append("forgotten"))
        self.uploads, self.servers = self, servers

    def participation(self, **given):
        self.written.append(given)

    def write_round(self, **given):
        self.written.append(given)

    def add_squares(self):
        self.written.append("squares")

    def combined(self, *given, **more):
        return {"pieces": [*given, more]}


def answer(message, evidence):
    upload = SimpleNamespace(memory={"own": 2})
    result = SimpleNamespace(evidence=evidence, seen={"seen_rows": 1}, upload=upload)
    return SimpleNamespace(message=message, result=result)


def test_what_a_client_did_is_written_before_its_vectors_are_let_go_of():
    notes, evidence = Notes(), Notes()
    current = SimpleNamespace(index=4, chosen=(7, 2, 9), message=b"down")
    part = SimpleNamespace(current=current, place=1, client=2, memory={"own": 1})
    with profiled() as profile:
        RecordLevel(evidence=evidence).took_part(part, answer(b"up", notes))
    assert set(profile.seconds) == {"other", "evidence"}
    assert notes.upload_sha256 == sha256(b"up").digest()
    assert notes.seen == {"seen_rows": 1}
    squares, given = evidence.written
    assert squares == "squares"
    assert given == {
        "round_index": 4, "place": (1, 3), "client": 2, "messages": (b"down", b"up"),
        "memory": ({"own": 1}, {"own": 2}), "digest": sha256(b"up").digest(),
        "exchange": notes.exchange,
    }  # fmt: skip
    assert notes.written == ["forgotten"]


@pytest.mark.parametrize("pieces", [False, True])
def test_a_round_closes_with_digests_of_what_travelled(pieces):
    notes = [Notes(b"k" * 32), Notes()]
    evidence = Notes(servers=Notes() if pieces else None)
    current = SimpleNamespace(
        index=4, attempt=2, chosen=(7, 2), message=b"down", following=b"next", last=True,
        answers=[answer(b"one", notes[0]), answer(b"two", notes[1])],
        plan=SimpleNamespace(noise_multiplier=3.0),
    )  # fmt: skip
    with profiled() as profile:
        told = RecordLevel(evidence=evidence).close(current)
    assert set(profile.seconds) == {"other", "evidence"}
    # What is known is not made again.
    digests = [b"k" * 32, sha256(b"two").digest()]
    assert [one.upload_sha256 for one in notes] == digests
    due = {
        "broadcast_sha256": sha256(b"down").hexdigest(),
        "uploads_sha256": digest_of_all(digests),
        "participations_sha256": digest_of_commitments([b"c" * 32] * 2),
    }
    if pieces:
        due["pieces"] = [4, (b"down", b"next"), [b"one", b"two"], {"last": True}]
    assert told == due
    assert evidence.written == [
        {"index": 4, "attempt": 2, "clients": (7, 2), "collected": notes, "noise_multiplier": 3.0}
    ]
