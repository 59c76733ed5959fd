"""Evidence of the records: which rows each client works on, and the moments of what models read."""

from __future__ import annotations

import numpy as np
import pytest

from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence import inputs as record_evidence
from dpfedadamw.evidence.inputs import write_inputs, write_partition
from dpfedadamw.preprocessing import ImagePreprocessing

RNG = np.random.default_rng(11)
PIXELS = RNG.integers(0, 256, (40, 1, 6, 6)).astype(np.uint8)
PIXELS[:, :, 0] = 0
FORM = ImagePreprocessing(size=12, channels=3, mean=(0.5, 0.4, 0.3), deviation=(0.2, 0.25, 0.5))
ROWS = (np.arange(0, 15), np.arange(15, 40))


def held(values=PIXELS, form=FORM, **more):
    return [StoredRecords(values, rows, form, **more) for rows in ROWS]


def inputs(folder):
    with np.load(folder / "inputs.npz") as file:
        return dict(file)


def test_moments_are_those_of_what_the_model_reads_before_resizing(tmp_path):
    write_inputs(tmp_path, held())
    found = inputs(tmp_path)
    grey = PIXELS.astype(np.float64) / 255
    read = (np.repeat(grey, 3, axis=1) - np.reshape(FORM.mean, (3, 1, 1))) / np.reshape(
        FORM.deviation, (3, 1, 1)
    )
    for row, part in enumerate([*ROWS, np.arange(40)]):
        assert found["numbers"][row] == read[part].size
        assert found["mean"][row] == pytest.approx(read[part].mean(), abs=1e-6)
        assert found["deviation"][row] == pytest.approx(read[part].std(), abs=1e-6)
        # A row of six pixels of three channels is black in all records.
        assert found["varying"][row] == len(part) * 3 * 30


def test_moments_do_not_depend_on_how_many_are_finished_at_once(tmp_path, monkeypatch):
    write_inputs(tmp_path, held())
    whole = inputs(tmp_path)
    monkeypatch.setattr("dpfedadamw.data.stored._AT_ONCE", 500)
    write_inputs(tmp_path, held())
    for name, values in inputs(tmp_path).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12)


def test_random_views_play_no_part(tmp_path):
    write_inputs(tmp_path, held())
    plain = inputs(tmp_path)
    write_inputs(tmp_path, held(augmentation=("flip", "crop")))
    assert all(np.array_equal(values, plain[name]) for name, values in inputs(tmp_path).items())


def test_tokens_and_what_is_too_much_to_go_through_have_no_moments(tmp_path, monkeypatch):
    tokens = RNG.integers(0, 99, (40, 2, 8)).astype(np.int32)
    write_inputs(tmp_path, held(tokens, None))
    assert not any(one.any() for one in inputs(tmp_path).values())
    monkeypatch.setattr(record_evidence, "_MOST_NUMBERS", 100)
    write_inputs(tmp_path, held())
    assert {one.shape for one in inputs(tmp_path).values()} == {(3,)}
    assert not any(one.any() for one in inputs(tmp_path).values())


def test_of_each_client_and_of_all_it_is_told_how_far_numbers_reach_and_of_none_nothing(tmp_path):
    """Continuous from 0 to 1, from -1 to 1 and as it comes, and of two values alone."""
    spread = np.linspace(0.01, 0.99, 40, dtype=np.float32)
    values = np.stack([spread, 2 * spread - 1, 3 * spread, np.arange(40) % 2], axis=1)
    values = values.astype(np.float32)
    # The ends of the scales lie with the first client, and a third has no records.
    values[0, :2], values[1, :2] = (0.0, -1.0), (1.0, 1.0)
    rows = (*ROWS, np.arange(0))
    write_inputs(tmp_path, [StoredRecords(values, one, ImagePreprocessing()) for one in rows])
    found = inputs(tmp_path)
    columns = {"continuous": [3, 3, 0, 3], "spanning": [2, 0, 0, 2]}
    assert {name: found[name].tolist() for name in columns} == columns
    for place, part in enumerate([*ROWS, np.arange(0), np.arange(40)]):
        here = values[part]
        ends = (here.min(), here.max()) if len(here) else (0.0, 0.0)
        assert (found["least"][place], found["greatest"][place]) == ends
        reached = [np.count_nonzero(here == end) for end in ends]
        assert [found["lowest"][place], found["highest"][place]] == reached
    assert {name: one[2].item() for name, one in found.items()} == dict.fromkeys(found, 0)


def test_the_partition_says_what_was_given_and_what_is_held(tmp_path):
    owner = np.repeat([0, 1], [15, 25])
    write_partition(tmp_path, owner, held())
    with np.load(tmp_path / "partition.npz") as file:
        assert np.array_equal(file["client_of_record"], owner)
        assert np.array_equal(file["held"], np.arange(40))
        assert file["held_offsets"].tolist() == [0, 15, 40]


def test_records_without_rows_are_all_of_them(tmp_path):
    write_partition(tmp_path, np.zeros(40, np.int64), [StoredRecords(PIXELS, None, FORM)])
    with np.load(tmp_path / "partition.npz") as file:
        assert np.array_equal(file["held"], np.arange(40))


def test_a_number_whose_square_float32_does_not_hold_has_finite_moments(tmp_path):
    values = RNG.normal(size=(40, 6)).astype(np.float32)
    values[3, 1] = 3e38
    write_inputs(tmp_path, held(values, ImagePreprocessing()))
    exact = values.astype(np.float64)
    assert inputs(tmp_path)["deviation"][-1] == pytest.approx(exact.std(), rel=1e-6)
