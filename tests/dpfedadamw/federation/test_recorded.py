"""A client's answer comes back from another process as it was there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.evidence.commitments import SealedCommitment
from dpfedadamw.evidence.exchanges import Exchange
from dpfedadamw.evidence.record_level import ClientEvidence, MomentRecord
from dpfedadamw.federation.participation import Answer, LocalResult
from dpfedadamw.federation.recorded import answered, recorded
from dpfedadamw.privacy.updates import ClippedUpdate

CPU = torch.device("cpu")
# As arrays: rows of one query after another, which the collector of the other process joins.
JOINED = {"raw_norms", "clipped_norms", "rows"}
OF_THE_RUN = {"blocks", "clipping_norm", "sample", "squares", "gathering", "upload_sha256", "seen"}


def collector(digest: bytes) -> ClientEvidence:
    nothing: Any = None
    exchange = Exchange(nothing, None)
    return ClientEvidence(nothing, 1.0, torch.zeros(0), exchange, SealedCommitment(digest))


def noted(queries: int, *, moment: bool, rows: bool) -> ClientEvidence:
    """What a client of three records noted; no two numbers of it are the same."""
    counter = iter(range(1, 10_000))

    def vector(size: int, kind: Any = np.float32) -> Any:
        return np.array([next(counter) for _ in range(size)], kind)

    one = collector(b"d" * 32)
    for _ in range(queries):
        for name in ("batch_sizes", "norm_counts", "nonfinite", "silent"):
            getattr(one, name).append(next(counter))
        one.divisors.append(next(counter) + 0.5)
        one.largest.append(next(counter) + 0.25)
        one.noise_sum_squares.append(vector(2, np.float64))
        one.clean_sum_squares.append(vector(2, np.float64))
        one.noise_sample.append(vector(3))
        one.raw_norms.append(vector(2))
        one.clipped_norms.append(vector(2))
        one.rows.append(vector(2, np.int64) if rows else None)
        one.exchange.points.append(vector(4))
        one.exchange.gradients.append(vector(4))
        one.exchange.square_sums.append(vector(2, np.float64))
        one.exchange.clean.append(vector(3))
    one.inclusions = vector(3, np.int64)
    if rows:
        one.rows_used = vector(5, np.int64)
    if moment:
        one.moment = MomentRecord(
            noisy=vector(2, np.float64),
            corrected=vector(2, np.float64),
            subtracted=next(counter) + 0.125,
            steps=next(counter),
            floored=vector(2, np.int64),
        )
    return one


def same(one: Any, other: Any) -> bool:
    """Whether two are alike in all numbers, their kinds included."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("queries", [0, 1, 3])
@pytest.mark.parametrize(("moment", "rows"), [(True, False), (False, True)])
def test_what_was_noted_of_a_client_is_what_is_written_down_elsewhere(queries, moment, rows):
    one = noted(queries, moment=moment, rows=rows)
    upload = Upload(
        torch.ones(4), {"b": torch.ones(1), "a": torch.zeros(2)}, {"mine": torch.tensor([3.5])}
    )
    seen = {"seen_batches": np.array([1]), "seen_rows": np.array([2, 3])}
    result = LocalResult(
        upload=upload, state={"x": torch.ones(9)}, steps=7, queries=11, evidence=one,
        rows=np.array([5, 8]), seen=seen,
    )  # fmt: skip
    found = answered(
        b"message", recorded(Answer(message=b"other", result=result)), collector(b""), CPU
    )
    assert (found.message, found.commitment, found.clipped, found.kept) == (
        b"message", b"", None, None,
    )  # fmt: skip
    back = found.result
    assert (back.steps, back.queries, dict(back.state)) == (7, 11, {})
    # Vectors that nobody reads again are left out; names, and what it keeps for itself, are not.
    assert list(back.upload.state) == ["a", "b"]
    assert len(back.upload.update) == len(back.upload.state["a"]) == 0
    assert back.upload.memory["mine"].tolist() == [3.5]
    back.upload.memory["mine"].zero_()
    assert back.rows is not None
    assert back.rows.tolist() == [5, 8]
    assert {name: array.tolist() for name, array in back.seen.items()} == {
        "seen_batches": [1], "seen_rows": [2, 3],
    }  # fmt: skip
    again = back.evidence
    assert again is not None
    assert again.commitment.digest() == b"d" * 32
    for field in fields(ClientEvidence):
        if field.name in OF_THE_RUN | {"exchange", "commitment", "moment"} or field.name[0] == "_":
            continue
        mine, theirs = getattr(one, field.name), getattr(again, field.name)
        if field.name in JOINED:
            known = [part for part in mine if part is not None]
            mine = [np.concatenate(known)] if known else [None] if mine else theirs
        assert same(mine, theirs), field.name
    for field in fields(Exchange)[2:]:
        assert same(getattr(one.exchange, field.name), getattr(again.exchange, field.name))
    assert (again.moment is None) == (not moment)
    if one.moment is not None and again.moment is not None:
        for field in fields(MomentRecord):
            assert same(getattr(one.moment, field.name), getattr(again.moment, field.name))


@pytest.mark.parametrize("kept", [None, [2, 5]])
def test_a_clipped_update_comes_back_with_its_norms_and_its_commitment(kept):
    result = LocalResult(upload=Upload(torch.ones(4)), state={}, steps=1, queries=2, evidence=None)
    answer = Answer(
        message=b"m", result=result, commitment=b"c" * 32,
        clipped=ClippedUpdate(torch.tensor([0.25, -0.5]), 3.0, 0.75),
        kept=None if kept is None else torch.tensor(kept),
    )  # fmt: skip
    found = answered(b"m", recorded(answer), None, CPU)
    assert found.clipped is not None
    assert found.clipped.update.tolist() == [0.25, -0.5]
    assert (found.clipped.raw_norm, found.clipped.clipped_norm) == (3.0, 0.75)
    assert found.commitment == b"c" * 32
    assert (found.kept if found.kept is None else found.kept.tolist()) == kept
    assert (found.result.evidence, found.result.rows, found.result.seen) == (None, None, {})
