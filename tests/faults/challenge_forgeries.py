"""What a trainer would do to have its way with the noise of a run that an auditor challenged.

Each is a patch to the real engine. Nothing in the run directory tells them from an honest run: they
are seen where participations are opened, and their streams computed again.
"""

from __future__ import annotations

import pytest

from dpfedadamw.privacy.noise import randomness
from dpfedadamw.privacy.noise.key_tree import NO_COIN, NO_HISTORY, leaf_key
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from tests.runs import key_of_a_test


def key_ground_for_its_noise(patch: pytest.MonkeyPatch) -> None:
    """Noise comes from a key that was chosen once the nonce was known, out of many."""
    ground = key_of_a_test(2)
    patch.setattr(
        ReleaseRandomness, "leaf", lambda _, round, client: leaf_key(ground, round, client)
    )


def nonce_ignored(patch: pytest.MonkeyPatch) -> None:
    """Noise comes from the announced key alone: it was known before the auditor's nonce."""
    honest = randomness.stream_key
    patch.setattr(randomness, "stream_key", lambda leaf, coin, *rest: honest(leaf, NO_COIN, *rest))


def streams_swapped_between_clients(patch: pytest.MonkeyPatch) -> None:
    """Clients 2k and 2k + 1 draw each other's noise and batches."""
    honest = ReleaseRandomness.leaf
    patch.setattr(
        ReleaseRandomness,
        "leaf",
        lambda self, round, client: honest(self, round, client ^ 1 if client >= 0 else client),
    )


def noise_made_before_its_charge(patch: pytest.MonkeyPatch) -> None:
    """Noise is bound to nothing that the ledger charged: all of it existed before the run."""
    honest = randomness.stream_key
    patch.setattr(randomness, "stream_key", lambda *all: honest(*all[:-1], NO_HISTORY))


FORGERIES = (
    key_ground_for_its_noise,
    nonce_ignored,
    streams_swapped_between_clients,
    noise_made_before_its_charge,
)
