"""Packed tensors: the library's own bytes, and back without a copy."""

from __future__ import annotations

import warnings

import pytest
import torch
from safetensors.torch import load, save

from dpfedadamw.vectors.packing import packed, views

MIXED = {
    "zeta": torch.randn(5),
    "alpha": torch.randn(2, 3),
    "wide": torch.randn(4, dtype=torch.float64),
    "places": torch.arange(3),
    "short": torch.arange(3, dtype=torch.int32),
    "ünï": torch.randn(1),
    "none": torch.zeros(0, 4),
    "one": torch.tensor(2.5),
}
OTHERS = {"flags": torch.arange(4) > 1, "half": torch.randn(3, dtype=torch.bfloat16)}


@pytest.mark.parametrize("metadata", [None, {"round": '{"last": true, "word": "ä"}'}])
@pytest.mark.parametrize("tensors", [MIXED, OTHERS, {**MIXED, **OTHERS}, {}])
def test_the_bytes_are_those_of_the_library(tensors, metadata):
    assert packed(tensors, metadata) == save(tensors, metadata)


@pytest.mark.parametrize("tensors", [MIXED, OTHERS])
def test_what_was_packed_is_seen_again(tensors):
    content = packed(tensors, {"of": "a test"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = views(content)
    expected = load(content)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        assert value.shape == expected[name].shape
        assert torch.equal(value, expected[name])


def test_turned_tensors_are_packed_as_they_read():
    turned = {"turned": torch.arange(6.0).view(2, 3).t()}
    assert torch.equal(views(packed(turned))["turned"], turned["turned"])


def test_a_view_is_no_copy():
    content = packed(MIXED)
    assert views(content)["zeta"].data_ptr() == views(content)["zeta"].data_ptr()
