"""The numbers of a seed are the same in every release: keys are derived as they always were."""

from __future__ import annotations

import hashlib
import hmac
import struct

import numpy as np
import pytest

from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.noise.streams import Stream


def key(seed: int, purpose: bytes, round: int, client: int, attempt: int) -> bytes:
    """HMAC-SHA-256 over the length of the name, the name, and three signed 64-bit numbers."""
    root = hashlib.sha256(b"dpfedadamw reproducible seed 1\0" + str(seed).encode()).digest()
    numbers = struct.pack(">qqq", round, client, attempt)
    name = struct.pack(">I", len(purpose)) + purpose
    return hmac.new(root, b"dpfedadamw stream 1\0" + name + numbers, "sha256").digest()


@pytest.mark.parametrize("seed", [0, 1, -7, 2**70])
@pytest.mark.parametrize(("round", "client"), [(0, 0), (-1, -1), (3, 1000)])
def test_a_stream_of_a_seed_has_the_key_that_it_always_had(seed, round, client):
    found = ReproducibleRandomness(seed).stream("noïse", round, client)
    expected = Stream(key(seed, "noïse".encode(), round, client, 1))
    assert np.array_equal(found.words(8), expected.words(8))


def test_a_round_that_is_run_again_draws_the_same_and_everything_else_draws_something_else():
    source = ReproducibleRandomness(4)
    first = source.stream("noise", 2, 3).words(4)
    assert np.array_equal(first, source.stream("noise", 2, 3, attempt=2).words(4))
    others = [("batches", 2, 3), ("noise", 1, 3), ("noise", 2, 4), ("noise", 3, 2)]
    for other in others:
        assert not np.array_equal(first, source.stream(*other).words(4))
