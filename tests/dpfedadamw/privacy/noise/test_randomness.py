"""Random sources: separate streams, a key that stays secret, a seed that repeats."""

from __future__ import annotations

import errno
import hashlib
import inspect
import itertools
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise import randomness
from dpfedadamw.privacy.noise.key_tree import (
    NO_HISTORY,
    PublicCoin,
    data_salt,
    leaf_key,
    stream_key,
)
from dpfedadamw.privacy.noise.randomness import (
    OpenedRandomness,
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.storage.disk import Disk

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


KEYS = [bytes([number]) * 32 for number in (1, 2, 3)]
COIN = PublicCoin(bytes(range(1, 33)), "a-run")


def test_every_client_and_the_server_have_a_stream_of_their_own_in_a_round() -> None:
    source = ReleaseRandomness(KEYS[0])
    places = [-1, 0, 1, 2, 63, 64, 1000]
    for client in places:
        source.stream("noise", 0, client)
    for client in places:
        with pytest.raises(PrivacyError, match=f"client {client}, attempt 1 was already used"):
            source.stream("noise", 0, client)
    # What is used up is one purpose, round and attempt.
    source.stream("batches", 0, 1)
    source.stream("noise", 1, 1)
    source.stream("noise", 0, 1, attempt=2)


def test_a_release_stream_has_the_key_of_its_place_nonce_and_history() -> None:
    history = b"h" * 32
    for coin in (PublicCoin(), COIN):
        leaf = leaf_key(KEYS[0], 3, 2)
        named = Stream(stream_key(leaf, coin, "noise", 3, 2, 5, history)).bytes(32)
        usual = Stream(stream_key(leaf, coin, "noise", 3, 2, 1, NO_HISTORY)).bytes(32)
        opened = OpenedRandomness(lambda round, client: leaf_key(KEYS[0], round, client), coin)
        for source in (ReleaseRandomness(KEYS[0], coin), opened):
            assert source.mode == "release"
            assert source.stream("noise", 3, 2, 5, history).bytes(32) == named
            assert source.stream("noise", 3, 2).bytes(32) == usual
    assert OpenedRandomness(lambda *_: None, COIN).commitment is None


def test_leaves_salts_and_the_tree_are_those_of_the_key() -> None:
    source = ReleaseRandomness(KEYS[0])
    assert source.leaf(1, -1) == leaf_key(KEYS[0], 1, -1)
    assert source.data_salt(4) == data_salt(KEYS[0], 4)
    assert source.tree(2, 3).root == randomness.KeyTree(KEYS[0], 2, 3).root
    named = b"dpfedadamw release key commitment 1\0" + KEYS[0]
    assert source.commitment == hashlib.sha256(named).hexdigest()


def test_a_seed_tells_itself_and_a_fresh_key_has_256_bits() -> None:
    assert repr(ReproducibleRandomness(-3)) == "ReproducibleRandomness(seed=-3)"
    assert ReproducibleRandomness(-3).seed == -3
    assert len({ReleaseRandomness()._key for _ in range(3)}) == 3
    for size in (0, 31, 33):
        with pytest.raises(PrivacyError, match=f"has 32 bytes, not {size}"):
            ReleaseRandomness(bytes(size))


class Watched(Disk):
    """Notes the steps that reach the disk; one of them may fail."""

    def __init__(self, failing: str = "", error: BaseException | None = None) -> None:
        self.steps: list[tuple[str, str]] = []
        self.failing, self.error = failing, error

    def _step(self, step: str, path: Path) -> None:
        self.steps.append((step, path.name))
        if step == self.failing:
            raise self.error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path, mode):
        assert mode == 0o600
        self._step("create", path)
        return super().create(path, mode)

    def write(self, file, content, offset=0):
        self._step("write", file.path)
        super().write(file, content, offset)

    def sync(self, file):
        self._step("sync", file.path)
        super().sync(file)

    def close(self, file):
        super().close(file)
        self._step("close", file.path)

    def remove(self, path):
        self._step("remove", path)
        super().remove(path)

    def sync_folder(self, path):
        self._step("sync folder", path)
        super().sync_folder(path)


def test_the_escrow_is_on_the_disk_with_its_name_before_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Watched()
    monkeypatch.setattr(randomness, "DISK", disk)
    ReleaseRandomness(KEYS[0]).write_escrow(str(tmp_path / "escrow"))
    steps = ["create", "write", "sync", "close"]
    folder = ("sync folder", tmp_path.name)
    assert disk.steps == [*((step, "escrow") for step in steps), folder]
    assert (tmp_path / "escrow").read_bytes() == b"01" * 32 + b"\n"


@pytest.mark.parametrize("step", ["write", "sync"])
@pytest.mark.parametrize("stopped", [False, True])
def test_no_half_of_a_key_is_left_where_the_escrow_cannot_be_written(
    step: str, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Watched(step, KeyboardInterrupt() if stopped else None)
    monkeypatch.setattr(randomness, "DISK", disk)
    told = None if stopped else r"cannot write the key escrow .*escrow: No space left on device"
    with pytest.raises(KeyboardInterrupt if stopped else PrivacyError, match=told):
        ReleaseRandomness(KEYS[0]).write_escrow(tmp_path / "escrow")
    assert list(tmp_path.iterdir()) == []
    assert [step for step, _ in disk.steps][-2:] == ["remove", "close"]


def test_an_error_without_words_of_its_own_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise OSError

    path = tmp_path / "escrow"
    monkeypatch.setattr(randomness, "DISK", Watched("create", OSError()))
    with pytest.raises(PrivacyError, match=r"escrow: it cannot be created$"):
        ReleaseRandomness(KEYS[0]).write_escrow(path)
    monkeypatch.undo()
    ReleaseRandomness(KEYS[0]).write_escrow(path)
    monkeypatch.setattr(randomness, "write_atomically", failing)
    known = [ReleaseRandomness(KEYS[0]).commitment]
    with pytest.raises(PrivacyError, match=r"cannot write the key escrow .*: it cannot be written"):
        ReleaseRandomness(KEYS[1]).add_to_escrow(path, known)


def test_keys_are_added_behind_those_that_a_run_used_before(tmp_path: Path) -> None:
    first, second, third = (ReleaseRandomness(key) for key in KEYS)
    path = tmp_path / "escrow"
    # A file that is missing is made.
    first.add_to_escrow(str(path), [])
    assert path.read_text() == "01" * 32 + "\n"
    assert ReleaseRandomness.from_escrow(path, COIN).coin == COIN
    link = tmp_path / "link"
    link.symlink_to(path)
    second.add_to_escrow(link, [first.commitment])
    with pytest.raises(PrivacyError, match="holds 2 keys, from a run that was interrupted"):
        ReleaseRandomness.from_escrow(path)
    # One known key among several is enough.
    third.add_to_escrow(path, {second.commitment})
    assert link.is_symlink()
    assert path.read_text() == "".join(f"{key.hex()}\n" for key in KEYS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = ReleaseRandomness.all_from_escrow(str(path), COIN)
    assert [(one._key, one.coin) for one in found] == [(key, COIN) for key in KEYS]
    assert [one.coin for one in ReleaseRandomness.all_from_escrow(path)] == [PublicCoin()] * 3
    with pytest.raises(PrivacyError, match="holds 3 keys, from a run that was interrupted"):
        ReleaseRandomness.from_escrow(path)


def test_no_key_is_added_to_the_escrow_of_another_run(tmp_path: Path) -> None:
    path = tmp_path / "escrow"
    ReleaseRandomness(KEYS[0]).write_escrow(path)
    for known in ([], [ReleaseRandomness(KEYS[2]).commitment]):
        with pytest.raises(PrivacyError, match="holds no key of this run"):
            ReleaseRandomness(KEYS[1]).add_to_escrow(path, known)
    assert ReleaseRandomness.from_escrow(path).commitment == ReleaseRandomness(KEYS[0]).commitment


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"01" * 31,
        b"01" * 33,
        b"0" * 63,
        b"xy" * 32,
        b"01" * 32 + b"\xc2\xa0",
        b"01" * 32 + b" 2",
    ],
)
def test_a_file_that_holds_no_whole_keys_is_no_escrow(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "escrow"
    path.write_bytes(content)
    with pytest.raises(
        PrivacyError, match="is not a readable key escrow with 64 hex digits per line"
    ):
        ReleaseRandomness.all_from_escrow(path)


@pytest.mark.parametrize("source", [ReleaseRandomness, OpenedRandomness, ReproducibleRandomness])
def test_every_source_opens_the_first_attempt_without_history_unless_told(source: type) -> None:
    for stream in (RandomSource.stream, source.stream):
        defaults = inspect.signature(stream).parameters
        assert (defaults["attempt"].default, defaults["history"].default) == (1, bytes(32))
