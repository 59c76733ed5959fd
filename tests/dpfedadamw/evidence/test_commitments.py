"""A participation's commitment changes with every value of its story, and with their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dpfedadamw.evidence.commitments import Commitment, commitment_rows, digest_of_commitments

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


def test_a_round_names_the_commitments_of_its_clients_in_their_order() -> None:
    first, second = told(batch([1])), told(batch([2]))
    assert digest_of_commitments([first, second]) != digest_of_commitments([second, first])
    rows = commitment_rows([first, second])
    assert rows.shape == (2, 32)
    assert rows[1].tobytes() == second
    assert commitment_rows([]).shape == (0, 32)
