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
    assert not inputs(tmp_path)["numbers"].any()
    monkeypatch.setattr(record_evidence, "_MOST_NUMBERS", 100)
    write_inputs(tmp_path, held())
    assert inputs(tmp_path)["numbers"].shape == (3,)
    assert not inputs(tmp_path)["numbers"].any()


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
