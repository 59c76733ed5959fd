"""The keys of a release run: leaves, the tree over them, and what streams are bound to."""

from __future__ import annotations

import hashlib
import hmac
import itertools

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise import key_tree
from dpfedadamw.privacy.noise.key_tree import (
    KeyTree,
    PublicCoin,
    data_commitment,
    data_salt,
    key_commitment,
    leaf_digest,
    leaf_key,
    stream_key,
)
from dpfedadamw.privacy.noise.randomness import OpenedRandomness, ReleaseRandomness

KEY, COIN = bytes(range(32)), PublicCoin(bytes(range(1, 33)), "a-run")


def hkdf(salt: bytes, key: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256 and 32 bytes, written down again."""
    extracted = hmac.new(salt, key, "sha256").digest()
    return hmac.new(extracted, info + b"\x01", "sha256").digest()


def node(*digests: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + b"".join(digests)).digest()


def test_a_stream_follows_from_leaf_nonce_run_purpose_attempt_and_history():
    leaf, history = leaf_key(KEY, 3, 2), b"h" * 32
    numbers = b"".join(value.to_bytes(8, "big") for value in (3, 2, 1))
    info = b"dpfedadamw release stream 1\0\0\0\0\x05a-run\0\0\0\x05noise" + numbers + history
    assert stream_key(leaf, COIN, "noise", 3, 2, 1, history) == hkdf(COIN.nonce, leaf, info)
    without = stream_key(leaf, PublicCoin(b"", "a-run"), "noise", 3, 2, 1, history)
    assert without == hkdf(bytes(32), leaf, info)


def test_whatever_changes_gives_another_stream():
    leaf, stream = leaf_key(KEY, 1, 1), ("noise", 1, 1, 1, bytes(32))
    found = {
        stream_key(leaf, COIN, *stream),
        stream_key(leaf_key(KEY, 1, 2), COIN, *stream),
        stream_key(leaf_key(KEY, 2, 1), COIN, *stream),
        stream_key(leaf_key(bytes(32), 1, 1), COIN, *stream),
        stream_key(leaf, PublicCoin(bytes(range(32)), "a-run"), *stream),
        stream_key(leaf, PublicCoin(COIN.nonce, "another-run"), *stream),
        stream_key(leaf, COIN, "batches", 1, 1, 1, bytes(32)),
        stream_key(leaf, COIN, "noise", 1, 1, 2, bytes(32)),
        stream_key(leaf, COIN, "noise", 1, 1, 1, b"h" * 32),
    }
    assert len(found) == 9


def test_the_root_is_that_of_the_tree_written_out():
    leaves = [
        leaf_digest(round, client, leaf_key(KEY, round, client))
        for round, client in itertools.product(range(1), range(-1, 2))
    ]
    tree = KeyTree(KEY, 1, 2)
    assert tree.root == node(node(*leaves[:2]), leaves[2]).hex()
    assert tree.path(0, 1) == [node(*leaves[:2]).hex()]
    assert tree.path(0, -1) == [leaves[1].hex(), leaves[2].hex()]
    leaf = leaf_key(KEY, 0, 1)
    named = b"\0dpfedadamw leaf commitment 1\0" + bytes(8) + (1).to_bytes(8, "big") + leaf
    assert leaves[2] == hashlib.sha256(named).digest()


def test_a_tree_has_no_keys_but_its_own_and_a_million_at_most():
    tree = KeyTree(KEY, 2, 2)
    for round, client in ((2, 0), (-1, 0), (0, 2), (0, -2)):
        with pytest.raises(PrivacyError, match="there is no key"):
            tree.path(round, client)
    with pytest.raises(PrivacyError, match="at most 1000000"):
        KeyTree(KEY, 1000, 1000)


def test_opened_keys_give_the_run_s_streams_and_no_others():
    run = ReleaseRandomness(KEY, COIN)
    opened = OpenedRandomness(lambda *place: {(1, 4): run.leaf(1, 4)}.get(place), COIN)
    drawn = run.stream("noise", 1, 4, 2, b"h" * 32).bytes(64)
    assert opened.stream("noise", 1, 4, 2, b"h" * 32).bytes(64) == drawn
    assert opened.stream("noise", 1, 4, 2, b"h" * 32).bytes(64) == drawn
    assert opened.stream("noise", 1, 4, 2).bytes(64) != drawn
    assert opened.stream("batches", 1, 4, 2, b"h" * 32).bytes(64) != drawn
    for round, client in ((1, 3), (0, 4), (1, -1)):
        with pytest.raises(PrivacyError, match=f"round {round}, client {client} was not opened"):
            opened.stream("noise", round, client)
    assert run.leaf(1, 4).hex() not in repr(opened)


def signed(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "big", signed=True) for value in values)


def expanded(info: bytes) -> bytes:
    """HKDF's first block (RFC 5869, section 2.3), of a key that is uniform already."""
    return hmac.new(KEY, info + b"\x01", "sha256").digest()


@pytest.mark.parametrize(("round", "client"), [(0, -1), (0, 0), (3, 2), (999, 4000)])
def test_a_leaf_key_follows_from_the_run_s_key_round_and_client(round, client):
    expected = expanded(b"dpfedadamw leaf key 1\0" + signed(round, client))
    assert leaf_key(KEY, round, client) == expected
    content = b"\0dpfedadamw leaf commitment 1\0" + signed(round, client) + expected
    assert leaf_digest(round, client, expected) == hashlib.sha256(content).digest()


def test_a_client_s_data_are_committed_to_under_a_salt_of_its_own():
    salt, digest = data_salt(KEY, 7), b"d" * 32
    assert salt == expanded(b"dpfedadamw data salt 1\0" + signed(7))
    content = b"dpfedadamw data commitment 1\0" + salt + signed(7) + digest
    assert data_commitment(salt, 7, digest) == hashlib.sha256(content).hexdigest()


def test_the_run_s_key_is_committed_to_behind_a_name():
    content = b"dpfedadamw release key commitment 1\0" + KEY
    assert key_commitment(KEY) == hashlib.sha256(content).hexdigest()
    assert key_tree.DERIVATION == "hkdf leaf keys 1"
    constants = (key_tree.KEY_BYTES, key_tree.SERVER, key_tree.NO_HISTORY)
    assert constants == (32, -1, bytes(32))
    assert (key_tree.NO_COIN.nonce, key_tree.NO_COIN.run) == (b"", "")


def test_leaves_stand_round_by_round_with_the_server_first():
    tree = KeyTree(KEY, 3, 2)
    places = [tree.place(round, client) for round in range(3) for client in (-1, 0, 1)]
    assert places == list(range(9))
    assert all(isinstance(place, int) for place in places)
    assert (tree.rounds, tree.clients, tree.leaves) == (3, 2, 9)
    for place, (round, client) in enumerate(itertools.product(range(3), (-1, 0, 1))):
        found, index = leaf_digest(round, client, leaf_key(KEY, round, client)), place
        last, path = 8, [bytes.fromhex(one) for one in tree.path(round, client)]
        # RFC 9162, section 2.1.3.2: up the tree, with what stands on the left first.
        for one in path:
            if index % 2 or index == last:
                found = node(one, found)
                while not index % 2 and index:
                    index, last = index // 2, last // 2
            else:
                found = node(found, one)
            index, last = index // 2, last // 2
        assert found.hex() == tree.root


def test_as_many_leaves_as_are_allowed_are_made(monkeypatch):
    monkeypatch.setattr(key_tree, "MOST_LEAVES", 6)
    assert KeyTree(KEY, 2, 2).leaves == 6
    for rounds, clients in ((7, 1), (1, 6)):
        with pytest.raises(PrivacyError, match="keys to commit to; use at most 6 in a run"):
            KeyTree(KEY, rounds, clients)
