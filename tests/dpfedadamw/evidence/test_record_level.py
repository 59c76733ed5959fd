"""What is written down of a round that protects records, and what the auditor reads in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from audit.reading.evidence import read_layout, read_round
from dpfedadamw.evidence.record_level import ClientEvidence, MomentRecord, RecordEvidence
from dpfedadamw.evidence.records import Witness
from dpfedadamw.evidence.round_files import EvidenceSetup, round_file
from dpfedadamw.storage.foreign import read_json
from dpfedadamw.vectors.flat import blocks_of

PARAMETERS, BLOCKS = 8, 2
INTEGERS = {
    "clients", "attempt", "batch_size", "record_offsets", "nonfinite", "noise_silent", "tau",
    "floored", "seen_clients", "seen_rows",
}  # fmt: skip
# Of each record one number: what a large run has most of.
SINGLE = {"raw_norms", "clipped_norms", "noise_sample", "noise_largest"}
DOUBLE = {
    "divisor", "noise_sum_squares", "clean_sum_squares", "v_noisy", "v_clean", "v_corrected",
    "subtracted",
}  # fmt: skip
BYTES = {"upload_sha256", "commitment", "rows_sha256", "seen_batches", "seen_contents"}


@pytest.fixture
def evidence(tmp_path: Path) -> RecordEvidence:
    (tmp_path / "salt").write_bytes(bytes(32))
    setup = EvidenceSetup(
        directory=tmp_path, blocks=blocks_of(torch.nn.Linear(3, 2), "tensor"), unit="record",
        clipping_norm=0.5, rounds=2, per_round=2, queries=2, released=PARAMETERS, beta2=0.75,
        commitments="blake3",
    )  # fmt: skip
    return RecordEvidence(setup, aggregated=True)


def noted(evidence: RecordEvidence, first: int) -> ClientEvidence:
    """What two queries of a client leave, who has four records."""
    one = evidence.client()
    one.batch_sizes += [first, 1]
    one.norm_counts += [2, 1]
    one.raw_norms.append(np.array([3.0, np.inf, 0.25], np.float32))
    one.clipped_norms.append(np.array([0.5, 0.0, 0.25], np.float32))
    one.nonfinite += [1, 0]
    one.divisors += [4.0, 4.5]
    one.silent += [0, 1]
    one.largest += [2.5, 3.25]
    for query in range(2):
        one.noise_sum_squares.append(np.array([first + query, 0.5]))
        one.clean_sum_squares.append(np.array([6.0 * first, 2.0 * query]))
        one.noise_sample.append(np.full(PARAMETERS, 0.125 * query, np.float32))
    one.inclusions = np.array([0, 1, 2, 0])
    one.upload_sha256 = bytes(range(32))
    one.seen = Witness(bytes(32)).arrays()
    one.moment = MomentRecord(
        noisy=np.array([0.5, 0.25]), corrected=np.array([0.25, 0.0]), subtracted=0.125, steps=2,
        floored=np.array([0, 2]),
    )  # fmt: skip
    return one


def written(evidence: RecordEvidence, index: int, collected: list[ClientEvidence]) -> Any:
    clients = range(len(collected))
    evidence.write_round(
        index=index, attempt=1, clients=clients, collected=collected, noise_multiplier=2.0
    )
    folder = evidence._setup.directory
    with np.load(folder / round_file(index)) as arrays:
        return dict(arrays), read_round(
            dict(arrays), read_layout(read_json(folder / "layout.json"))
        )


def test_a_round_in_which_nobody_took_part_has_the_kinds_of_numbers_of_any_other(
    evidence: RecordEvidence,
) -> None:
    some, _ = written(evidence, 0, [noted(evidence, 2), noted(evidence, 3)])
    none, found = written(evidence, 1, [])
    for arrays in (some, none):
        kinds = {name: one.dtype for name, one in arrays.items()}
        assert kinds == {
            **dict.fromkeys(INTEGERS, np.int64),
            **dict.fromkeys(SINGLE, np.float32),
            **dict.fromkeys(DOUBLE, np.float64),
            **dict.fromkeys(BYTES, np.uint8),
            "inclusions": np.uint16,
        }
    # The auditor refuses a count that is no whole number, also where there is none.
    assert (len(found.clients), found.batch_size.shape) == (0, (0, 0))
    assert found.noise_sum_squares.shape == (0, 0, BLOCKS)
    assert found.noise_sample.shape == (0, 0, PARAMETERS)
    assert found.record_offsets.tolist() == [0]


def test_what_two_clients_noted_stands_client_after_client(evidence: RecordEvidence) -> None:
    _, found = written(evidence, 0, [noted(evidence, 2), noted(evidence, 3)])
    assert (found.clients.tolist(), found.attempt) == ([0, 1], 1)
    assert found.batch_size.tolist() == [[2, 1], [3, 1]]
    assert found.record_offsets.tolist() == [0, 2, 3, 5, 6]
    assert found.raw_norms.tolist() == [3.0, np.inf, 0.25] * 2
    assert found.clipped_norms.tolist() == [0.5, 0.0, 0.25] * 2
    assert found.inclusions.tolist() == [0, 1, 2, 0] * 2
    assert found.nonfinite.tolist() == [[1, 0]] * 2
    assert found.divisor.tolist() == [[4.0, 4.5]] * 2
    assert found.noise_silent is not None
    assert found.noise_silent.tolist() == [[0, 1]] * 2
    assert found.noise_largest is not None
    assert found.noise_largest.tolist() == [[2.5, 3.25]] * 2
    assert found.noise_sum_squares.tolist() == [[[2.0, 0.5], [3.0, 0.5]], [[3.0, 0.5], [4.0, 0.5]]]
    assert found.noise_sample[0].tolist() == [[0.0] * PARAMETERS, [0.125] * PARAMETERS]
    assert found.upload_sha256.tolist() == [list(range(32))] * 2
    moment = found.second_moment
    assert moment is not None
    assert moment.noisy.tolist() == [[0.5, 0.25]] * 2
    assert moment.corrected.tolist() == [[0.25, 0.0]] * 2
    assert (moment.subtracted.tolist(), moment.steps.tolist()) == ([0.125] * 2, [2] * 2)
    assert moment.floored.tolist() == [[0, 2]] * 2
    # v ← 0.75 v + 0.25 mean(g²) from 0, by the blocks' sizes 6 and 2: 2 then 2, and 0 then 1.
    assert moment.clean[0].tolist() == pytest.approx([0.75 * 0.5 + 0.5, 0.25])
    assert moment.clean[1].tolist() == pytest.approx([0.75 * 0.75 + 0.75, 0.25])
