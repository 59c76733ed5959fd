"""A client's records and its results, as they are handed from place to place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.federation.participation import (
    Answer,
    ClientData,
    LocalResult,
    Participation,
    Round,
)
from dpfedadamw.privacy.noise.randomness import Stream

ROUND = Round(
    index=3, attempt=2, history=b"h" * 32, plan=None, chosen=(4,), broadcast=None, message=b"",
    state=None,
)  # fmt: skip


def test_stored_records_are_seen_with_the_stream_of_their_views():
    stored = StoredRecords(values=np.zeros((2, 3), np.float32))
    views = Stream(bytes(32))
    data = ClientData(stored, torch.zeros(2, dtype=torch.int64))
    seen = data.seen_with(views)
    assert seen == replace(stored, stream=views) or seen.stream is views
    assert seen.stream is views
    plain = torch.ones(2, 3)
    assert replace(data, inputs=plain).seen_with(views) is plain


def test_a_result_without_its_vectors_keeps_all_that_is_short():
    upload = Upload(torch.ones(5), {"m": torch.ones(4)}, {"own": torch.ones(3)})
    seen = {"seen_rows": np.array([1])}
    result = LocalResult(
        upload=upload, state={"s": torch.ones(5)}, steps=2, queries=3, evidence=None,
        rows=np.array([1, 2]), seen=seen,
    )  # fmt: skip
    bare = result.without_vectors()
    assert (bare.steps, bare.queries, bare.state, bare.seen) == (2, 3, {}, seen)
    assert bare.rows is result.rows
    sizes = {name: len(value) for name, value in bare.upload.state.items()}
    assert (len(bare.upload.update), sizes) == (0, {"m": 0})
    assert {name: len(value) for name, value in bare.upload.memory.items()} == {"own": 0}
    # What was as long as the model is let go of.
    assert bare.upload.update.untyped_storage().size() == 0
    assert upload.update.tolist() == [1.0] * 5
    assert Answer(message=b"", result=bare).commitment == b""


def test_a_part_keeps_its_place_where_the_records_are():
    part = Participation(current=ROUND, place=1, client=4, memory={"own": torch.ones(1)})
    data = ClientData(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))
    there = part.of(data)
    assert (there.current, there.place, there.client, there.data) == (ROUND, 1, 4, data)
    assert there.memory is part.memory


@dataclass
class Asked:
    given: tuple = ()

    def stream(self, *given):
        self.given = given


def test_a_stream_is_that_of_the_round_its_attempt_and_what_was_charged():
    asked = Asked()
    ROUND.stream(asked, "noise", -1)
    assert asked.given == ("noise", 3, -1, 2, b"h" * 32)
