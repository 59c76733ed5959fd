"""The engine's trees and the auditor's paths: RFC 9162's example, and one against the other."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from audit.untrusted.merkle import leaf_digest, path_length, root_above, root_of
from dpfedadamw.storage.merkle import DIGEST_BYTES, LEAF, MerkleTree

# The inputs and roots of the tests of Certificate Transparency's reference implementation.
INPUTS = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def tree_of(pieces: list[bytes]) -> MerkleTree:
    return MerkleTree(b"".join(hashlib.sha256(LEAF + piece).digest() for piece in pieces))


@pytest.mark.parametrize("count", ROOTS)
def test_roots_are_those_of_the_reference_implementation(count):
    pieces = [bytes.fromhex(text) for text in INPUTS[:count]]
    assert tree_of(pieces).root.hex() == ROOTS[count]
    assert root_of([leaf_digest(piece) for piece in pieces]).hex() == ROOTS[count]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 21, 64, 100])
def test_each_path_leads_to_the_root_and_from_no_other_piece_or_place(count):
    pieces = [bytes([index]) for index in range(count)]
    tree = tree_of(pieces)
    for place, piece in enumerate(pieces):
        joined = tree.path(place)
        path = [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)]
        assert len(path) == path_length(place, count)
        assert root_above(leaf_digest(piece), place, count, path) == tree.root
        assert root_above(leaf_digest(piece + b"x"), place, count, path) != tree.root
        other = (place + 1) % count
        if count > 1 and path_length(other, count) == len(path):
            assert root_above(leaf_digest(piece), other, count, path) != tree.root


@pytest.mark.parametrize("count", [1, 5, 8, 13])
def test_paths_of_several_leaves_stand_one_behind_the_other(count):
    tree = tree_of([bytes([index]) for index in range(count)])
    places = [count - 1, 0, count // 2, count - 1]
    assert tree.paths(places) == b"".join(tree.path(place) for place in places)
    assert tree.paths(np.array(places)) == tree.paths(places)
    assert tree.paths([]) == b""
