"""Random sources: separate streams, a key that stays secret, a seed that repeats."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)

SOURCES: list[RandomSource] = [ReleaseRandomness(bytes(32)), ReproducibleRandomness(0)]


@pytest.mark.parametrize("source", SOURCES, ids=["release", "reproducible"])
def test_no_two_streams_overlap(source: RandomSource) -> None:
    # Names chosen so that any two would clash under a sloppy concatenation of their parts.
    names = itertools.product(["a", "ab", "noise", "noise1"], [0, 1, 11, -1], [0, 1, 11, -1])
    blocks: set[bytes] = set()
    count = 0
    for purpose, round, client in names:
        drawn = source.stream(purpose, round, client).bytes(160)
        blocks.update(drawn[start : start + 16] for start in range(0, 160, 16))
        count += 10
    assert len(blocks) == count


def test_streams_do_not_depend_on_the_order_of_clients() -> None:
    def draw(order: list[int]) -> dict[int, list[float]]:
        source = ReproducibleRandomness(7)
        return {client: list(source.stream("noise", 3, client).normal(5)) for client in order}

    assert draw([0, 1, 2]) == draw([2, 0, 1])


def test_a_seed_repeats_and_another_seed_does_not() -> None:
    def draw(seed: int) -> list[float]:
        return list(ReproducibleRandomness(seed).stream("noise", 0, 0).words(4))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != draw(-1)


def test_a_resumed_round_repeats_its_noise_in_reproducible_mode_only() -> None:
    seeded = ReproducibleRandomness(1)
    first, again = (seeded.stream("noise", 0, 0, attempt).normal(8) for attempt in (1, 2))
    assert np.array_equal(first, again)
    release = ReleaseRandomness()
    first, again = (release.stream("noise", 0, 0, attempt).normal(8) for attempt in (1, 2))
    assert not np.any(first == again)


def test_a_release_stream_cannot_be_opened_twice() -> None:
    source = ReleaseRandomness()
    source.stream("noise", 4, 2)
    source.stream("noise", 4, 2, attempt=2)
    with pytest.raises(PrivacyError, match=r"round 4, client 2, attempt 1 was already used"):
        source.stream("noise", 4, 2)


def test_two_release_runs_share_nothing() -> None:
    one, two = ReleaseRandomness(), ReleaseRandomness()
    assert one.commitment != two.commitment
    assert one.stream("noise", 0, 0).bytes(16) != two.stream("noise", 0, 0).bytes(16)


def test_the_key_is_never_shown() -> None:
    key = bytes(range(32))
    source = ReleaseRandomness(key)
    assert key.hex() not in repr(source) + str(source)
    assert len(source.commitment) == 64
    assert source.commitment != key.hex()
    assert source.commitment == ReleaseRandomness(key).commitment
    assert source.commitment in repr(source)


def test_only_the_release_mode_has_a_commitment() -> None:
    assert ReproducibleRandomness(3).commitment is None
    assert ReproducibleRandomness(3).mode == "reproducible"
    assert ReleaseRandomness().mode == "release"


def test_the_escrow_is_private_and_replays_the_run(tmp_path: Path) -> None:
    source = ReleaseRandomness()
    path = tmp_path / "escrow"
    source.write_escrow(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replay = ReleaseRandomness.from_escrow(path)
    assert replay.commitment == source.commitment
    assert replay.stream("noise", 0, 0).bytes(8) == source.stream("noise", 0, 0).bytes(8)


def test_the_escrow_overwrites_nothing_and_follows_no_link(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("precious")
    with pytest.raises(PrivacyError, match="cannot write the key escrow"):
        ReleaseRandomness().write_escrow(taken)
    assert taken.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivacyError, match="cannot write the key escrow"):
        ReleaseRandomness().write_escrow(link)
    with pytest.raises(PrivacyError, match="not a readable key escrow"):
        ReleaseRandomness.from_escrow(taken)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(PrivacyError, match="32 bytes"):
        ReleaseRandomness(b"short")
