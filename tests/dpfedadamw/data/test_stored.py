"""Stored records: what a batch is, how images are finished, and random views of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from dpfedadamw.data import images
from dpfedadamw.data.datasets import load
from dpfedadamw.data.stored import StoredRecords, Views, check_shape
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.spec import ValidationSpec
from tests.dpfedadamw.data import published
from tests.dpfedadamw.data.published import data_spec

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28)).astype(np.uint8)


def stored(**form) -> StoredRecords:
    return StoredRecords(PIXELS, None, ImagePreprocessing(**form))


def test_grey_levels_are_scaled_repeated_and_normalised_by_published_constants():
    records = stored(channels=3, mean=(0.5, 0.25, 0.0), deviation=(0.5, 0.5, 2.0))
    assert records.shape == (3, 28, 28)
    batch = records[torch.tensor([4, 1])][0:2].numpy()
    grey = PIXELS[[4, 1], 0] / 255
    expected = np.stack([(grey - 0.5) / 0.5, (grey - 0.25) / 0.5, grey / 2], 1)
    assert batch.dtype == np.float32
    # Float32 rounding of numbers below 2.
    np.testing.assert_allclose(batch, expected, atol=1e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [28, 32])
def test_enlarging_in_a_batch_agrees_with_pillow(interpolation, side):
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (2, 3, side, side)).astype(np.uint8)
    form = ImagePreprocessing(size=224, interpolation=interpolation)
    batch = StoredRecords(pixels, None, form)[0:2].numpy()
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    picture = Image.fromarray(np.moveaxis(pixels[1], 0, 2))
    expected = np.asarray(picture.resize((224, 224), filters[interpolation])) / 255
    # Pillow rounds to whole grey levels after each of two passes.
    assert np.abs(np.moveaxis(batch[1], 0, 2) - expected).max() < 2.0 / 255


def test_larger_images_are_shrunk_once_by_pillow_with_antialiasing(tmp_path):
    published.write_mnist(tmp_path)
    data = load(data_spec("mnist", tmp_path), ImagePreprocessing(size=14))
    whole = load(data_spec("mnist", tmp_path))
    assert data.train.inputs.values.shape == (12, 1, 14, 14)
    # With antialiasing each output pixel averages its neighbourhood: halving a checkerboard
    # gives grey.
    board = (np.indices((28, 28)).sum(0) % 2 * 255).astype(np.uint8)[None, None]
    assert np.abs(images.shrink(board, 14, "bilinear")[0, 0, 2:-2, 2:-2] - 127.5).max() < 3
    expected = images.shrink(np.asarray(whole.train.inputs.values), 14, "bilinear")
    assert (data.train.inputs.values == expected).all()


def test_colour_becomes_grey_by_the_published_luma():
    colour = np.zeros((1, 3, 2, 2), np.uint8)
    colour[0, 1] = 255
    batch = StoredRecords(colour, None, ImagePreprocessing(channels=1))[0:1]
    assert batch.shape == (1, 1, 2, 2)
    assert batch.flatten().tolist() == pytest.approx([0.587] * 4)


def test_other_channels_and_flat_records_do_not_fit_a_model_of_images(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x_train=np.zeros((4, 3)),
        y_train=np.arange(4),
        x_test=np.zeros((4, 3)),
        y_test=np.arange(4),
    )
    with pytest.raises(DataError, match=r"records have shape \(3,\)"):
        load(data_spec("arrays", tmp_path / "a.npz"), ImagePreprocessing(size=8))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("read", [None, 1, 2, 3, 4])
def test_images_have_the_channels_that_are_read_or_become_grey_or_coloured(channels, read):
    form, shape = ImagePreprocessing(channels=read), (channels, 8, 8)
    if read in (None, channels) or {channels, read} == {1, 3}:
        check_shape(shape, form, "photos")
    else:
        with pytest.raises(DataError, match=f"have {channels} channels, the model reads {read};"):
            check_shape(shape, form, "photos")


def test_selections_of_selections_and_empty_batches_keep_their_shape():
    records = stored(size=56).select(np.array([5, 3, 1]))
    assert len(records[torch.tensor([2, 0])]) == 2
    one = records[torch.tensor([2])]
    assert torch.equal(one[0:1], stored(size=56)[1:2])
    empty = records[torch.tensor([], dtype=torch.long)]
    assert empty[0:5].shape == (0, 1, 56, 56)


def test_a_step_sees_one_view_of_each_record_and_the_next_step_another():
    stream = ReproducibleRandomness(3).stream("views", 0, 0)
    records = dataclasses.replace(stored(), augmentation=("flip", "crop"), stream=stream)
    chosen = torch.arange(6)
    step = records[chosen]
    assert torch.equal(step[0:6], step[0:6])
    assert torch.equal(step[2:4], step[0:6][2:4])
    assert not torch.equal(step[0:6], records[chosen][0:6])
    again = dataclasses.replace(records, stream=ReproducibleRandomness(3).stream("views", 0, 0))
    assert torch.equal(again[chosen][0:6], step[0:6])


def test_views_flip_and_move_each_record_by_itself():
    batch = torch.arange(32.0).view(2, 1, 4, 4) + 1
    views = Views(np.array([False, True]), np.array([[1, 0], [0, -1]]), 1)
    seen = views.apply(batch)
    assert torch.equal(seen[0, 0, :3], batch[0, 0, 1:])
    assert seen[0, 0, 3].tolist() == [0, 0, 0, 0]
    # The second one is moved, then mirrored.
    assert torch.equal(seen[1, 0, :, 0], batch[1, 0, :, 2])
    assert seen[1, 0, :, 3].tolist() == [0, 0, 0, 0]


def test_augmentation_needs_images(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        x_train=np.zeros((4, 3)),
        y_train=np.arange(4),
        x_test=np.zeros((4, 3)),
        y_test=np.arange(4),
    )
    with pytest.raises(DataError, match="are for images"):
        load(data_spec("arrays", tmp_path / "a.npz", augmentation=("flip",)))


def test_test_and_validation_records_are_disjoint_and_never_augmented(tmp_path):
    published.write_mnist(tmp_path)
    spec = data_spec(
        "mnist",
        tmp_path,
        validation=ValidationSpec(fraction=0.5, public=True),
        augmentation=("flip",),
    )
    data, whole = load(spec), load(data_spec("mnist", tmp_path))
    assert data.validation is not None
    assert (len(data.test), len(data.validation), len(data.train)) == (3, 3, 12)
    rows = np.concatenate([data.test.inputs.rows, data.validation.inputs.rows])
    assert sorted(rows) == list(range(len(whole.test)))
    assert data.test.inputs.augmentation == data.validation.inputs.augmentation == ()
    with pytest.raises(DataError, match="leaves none"):
        load(spec.replace(validation=ValidationSpec(fraction=0.01, public=True)))
