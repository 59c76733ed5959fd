"""A participation's commitment changes with every value of its story, and with their order."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import numpy as np
import pytest
import torch
from blake3 import blake3

from dpfedadamw.errors import PrivacyError
from dpfedadamw.evidence.commitments import (
    BLAKE3,
    HMAC,
    Commitment,
    commitment_rows,
    commitments_of,
    digest_of_commitments,
)

SALT = bytes(range(32))
POINT, GRADIENT = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -0.5])
BATCH = np.array([3, 7])


def told(*parts: Callable[[Commitment], None], salt: bytes = SALT) -> bytes:
    """The digest of a story."""
    commitment = Commitment(salt)
    for part in parts:
        part(commitment)
    return commitment.digest()


def batch(records: list[int]) -> Callable[[Commitment], None]:
    return lambda to: to.batch(np.array(records))


def point(vector: torch.Tensor) -> Callable[[Commitment], None]:
    return lambda to: to.point(vector)


def gradient(vector: torch.Tensor) -> Callable[[Commitment], None]:
    return lambda to: to.gradient(vector)


def test_the_same_story_has_the_same_commitment() -> None:
    story = (batch([3, 7]), point(POINT), gradient(GRADIENT))
    assert told(*story) == told(*story)


def test_every_other_story_has_another_commitment() -> None:
    last_bit = torch.nextafter(GRADIENT, torch.tensor(1.0))
    stories = [
        told(batch([3, 7]), point(POINT), gradient(GRADIENT)),
        told(batch([3, 8]), point(POINT), gradient(GRADIENT)),
        told(batch([3]), point(POINT), gradient(GRADIENT)),
        told(batch([3, 7]), point(POINT + 1), gradient(GRADIENT)),
        told(batch([3, 7]), point(POINT), gradient(last_bit)),
        told(batch([3, 7]), gradient(GRADIENT), point(POINT)),
        told(batch([3, 7]), point(torch.cat([POINT, GRADIENT]))),
        told(batch([]), batch([3, 7]), point(POINT), gradient(GRADIENT)),
        told(batch([3, 7]), point(POINT), gradient(GRADIENT), salt=bytes(32)),
    ]
    assert len(set(stories)) == len(stories)


@pytest.mark.parametrize("length", [3, 40_000, 200_000])
def test_a_story_is_hashed_as_it_was_told_however_long_its_vectors(length: int) -> None:
    vector = torch.arange(length, dtype=torch.float32)
    commitment, content = Commitment(SALT), vector.numpy().tobytes()
    expected = blake3(b"dpfedadamw participation 1\x00", key=SALT)
    for _ in range(5):
        commitment.point(vector)
        expected.update(b"point %d\x00" % (4 * length) + content)
        # The rule goes on in its vector.
        vector.add_(1.0)
        content = vector.numpy().tobytes()
        assert commitment.digest() == expected.digest()


def test_a_round_names_the_commitments_of_its_clients_in_their_order() -> None:
    first, second = told(batch([1])), told(batch([2]))
    assert digest_of_commitments([first, second]) != digest_of_commitments([second, first])
    rows = commitment_rows([first, second])
    assert rows.shape == (2, 32)
    assert rows[1].tobytes() == second
    assert commitment_rows([]).shape == (0, 32)


def test_a_run_that_names_no_digest_is_computed_again_with_that_of_its_version() -> None:
    commitment = Commitment(SALT, commitments_of({}))
    commitment.batch(BATCH)
    story = b"dpfedadamw participation 1\x00batch 16\x00" + BATCH.astype("<i8").tobytes()
    assert commitment.digest() == hmac.digest(SALT, story, hashlib.sha256)
    assert commitments_of({}) == HMAC
    assert commitments_of({"commitments": BLAKE3}) == BLAKE3


def test_a_digest_that_this_version_does_not_know_is_named() -> None:
    with pytest.raises(PrivacyError, match="'md5', which this version does not support"):
        Commitment(SALT, "md5")
