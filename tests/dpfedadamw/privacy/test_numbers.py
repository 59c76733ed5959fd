"""Numbers and names that a claim of privacy rests on.

A domain of a hash, a margin or a bound that is changed gives other keys, other sums or a smaller
epsilon without an error anywhere, so each stands here a second time, with where it is from.
"""

from __future__ import annotations

import math
import struct
from types import ModuleType
from typing import Any

import pytest
from scipy.stats import norm

from dpfedadamw.privacy import composition, ledger, performance, updates
from dpfedadamw.privacy.accounting import (
    calibration,
    divergences,
    epsilon_limit,
    fixed_size,
    losses,
    pld,
    poisson,
    registry,
    search,
    selection,
)
from dpfedadamw.privacy.budget import database
from dpfedadamw.privacy.clipping import (
    chain,
    clipped_sum,
    engines,
    forms,
    grad_sample,
    low_rank,
    precision,
    rehearsal,
)
from dpfedadamw.privacy.noise import key_tree, noise, on_device, rounded_alike, streams

TABLE: list[tuple[ModuleType, str, Any]] = [
    # Keys and streams: other bytes give other noise, and runs of before could not be opened.
    (key_tree, "KEY_BYTES", 32),
    (key_tree, "SERVER", -1),
    (key_tree, "NO_HISTORY", 32 * b"\0"),
    (key_tree, "MOST_LEAVES", 1_000_000),
    (key_tree, "DERIVATION", "hkdf leaf keys 1"),
    (key_tree, "_COMMITMENT", b"dpfedadamw release key commitment 1\0"),
    (key_tree, "_LEAF", b"dpfedadamw leaf key 1\0"),
    (key_tree, "_COMMITTED", b"dpfedadamw leaf commitment 1\0"),
    (key_tree, "_STREAM", b"dpfedadamw release stream 1\0"),
    (key_tree, "_SALT", b"dpfedadamw data salt 1\0"),
    (key_tree, "_DATA", b"dpfedadamw data commitment 1\0"),
    (streams, "_KEY_BYTES", 32),
    (streams, "_CIPHER_BLOCK", 16),
    (streams, "_PAIRS", 32_768),
    (streams, "_ZEROS", bytes(16 * 32_768)),
    # ChaCha20 (RFC 8439, section 2.3): its constant is a sentence, its block 16 words.
    (on_device, "_CONSTANTS", (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)),
    (on_device, "_DOMAIN", b"dpfedadamw chacha20 1\0"),
    (on_device, "_BLOCK_BYTES", 64),
    (on_device, "_BLOCK_WORDS", 16),
    (on_device, "_MOST_BLOCKS", 2**32),
    (on_device, "_PAIRS_A_BLOCK", 4),
    (noise, "_ON_DEVICE", "on-device"),
    (noise, "_DRAWS", {"box-muller": 1, "four-draw": 4}),
    # Where float64 would show the sum below the noise (Mironov 2012).
    (noise, "_GRID_BITS", 20),
    (noise, "_LARGEST_RATIO", 2.0**32),
    # Float64: 52 bits of fraction, one, and the root of two to its last bit.
    (rounded_alike, "_FRACTION", 2**52 - 1),
    (rounded_alike, "_ONE", 0x3FF << 52),
    # A clipped update or sum stays below the norm whatever float32 rounds.
    (clipped_sum, "_MARGIN", 1.0 - 2.0**-22),
    (updates, "_SAFETY", 1.0 - 2.0**-22),
    (precision, "_TOLERANCE", 1e-5),
    (rehearsal, "_BATCH_SIZES", (3, 2)),
    (forms, "_TRUSTED_TRACE", 2.0**64),
    (forms, "_GRAM_ROUNDING", 8),
    # Bounds of the accountants: what is cut off, and how exact a curve must be.
    (divergences, "_FEW", 64),
    (divergences, "_MOST", 1000),
    (divergences, "_SMALL", 30.0),
    (epsilon_limit, "_CERTAIN", 0.9),
    (fixed_size, "_TAIL", 1e-27),
    (poisson, "_TAIL", 1e-27),
    (pld, "_RELATIVE_ERROR", 2e-4),
    (pld, "_SMALLEST_INTERVAL", 1e-9),
    (pld, "_TAIL", 1e-10 * 1e-4),
    (pld, "_CELLS_OF_A_STEP", 2.0**18),
    (pld, "_CELLS", 2.0**20),
    (registry, "LARGEST_EPSILON", 1e6),
    (composition, "SMALLEST_DELTA", 1e-10),
    (search, "_LARGEST_COUNT", 1_000_000),
    (search, "_SLACK", 0.005),
    (calibration, "_LARGEST_NOISE", 1e4),
    (calibration, "_SMALLEST_NOISE", 0.05),
    (calibration, "_SMALLEST_RATE", 1e-6),
    (calibration, "_SMALLEST_BATCH", 1e-3),
    (selection, "ACCOUNTANT", "rdp"),
    (selection, "SECRET_BYTES", 32),
    (selection, "_MOST_TRIALS", 10_000_000),
    # Words of a ledger, a claim, a spec and a shared budget.
    (composition, "SAMPLINGS", ("poisson", "full", "fixed-size", "shuffled")),
    (composition, "_REPLACE_ONE", ("fixed-size", "shuffled")),
    (ledger, "GENESIS", 64 * "0"),
    (ledger, "_CHAIN", frozenset({"previous", "digest"})),
    (
        ledger,
        "_EXCHANGED",
        (
            "round",
            "clients",
            "steps",
            "queries",
            "broadcast_sha256",
            "uploads_sha256",
            "released_sha256",
        ),
    ),
    (database, "VERSION", 1),
    # "dpFB" in ASCII, by which SQLite and `file` know a budget from another database.
    (database, "APPLICATION", int.from_bytes(b"dpFB", "big")),
    (database, "PATIENCE_SECONDS", 180.0),
    (database, "_STATES", ("starting", "running", "settled")),
    (engines, "ENGINES", ("auto", "book-keeping", "opacus", "vmap", "loop")),
    (chain, "METHOD", "in closed form"),
    (grad_sample, "_CELLS", "cells"),
    (grad_sample, "_BY_LAYER", "by layer"),
    (grad_sample, "_BY_FUNCTORCH", "vmap"),
    (low_rank, "_PEFT", "peft.tuners.lora.layer"),
    (precision, "PRECISIONS", ("float32", "bfloat16")),
]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    TABLE,
    ids=[f"{one.__name__.removeprefix('dpfedadamw.privacy.')}.{name}" for one, name, _ in TABLE],
)
def test_what_a_claim_rests_on_is_what_this_table_says(module, name, value):
    found = getattr(module, name)
    assert type(found) is type(value)
    assert found == value


def test_the_orders_of_renyi_go_by_tenths_to_eleven_by_ones_to_63_and_double_to_1024():
    tenths = [1.0 + tenth / 10.0 for tenth in range(1, 100)]
    assert tenths[0] == 1.1
    assert tenths[-1] == pytest.approx(10.9)
    wholes = [float(order) for order in range(11, 64)]
    assert list(divergences.ORDERS) == [*tenths, *wholes, 128.0, 256.0, 512.0, 1024.0]


def test_tilts_are_the_powers_of_two_between_their_24th_and_its_inverse():
    assert losses.TILTS.tolist() == [2.0**power for power in range(-24, 25)]


def test_the_reach_of_a_poisson_sum_leaves_out_its_tail_on_each_side():
    """P(Z > reach) is the tail, for a standard normal Z."""
    assert norm.sf(poisson._REACH) == pytest.approx(poisson._TAIL, rel=0.01)


def test_the_series_of_the_noise_are_those_of_taylor_as_far_as_float64_sees_them():
    """Sine and cosine of at most a quarter turn, and artanh(z)/z of ln, in z².

    The first term that is left out is below the last bit of the sum, and the last one that is kept
    is not far below it.
    """
    sine, cosine = rounded_alike._SINE, rounded_alike._COSINE
    assert sine == tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(len(sine)))
    assert cosine == tuple((-1) ** k / math.factorial(2 * k) for k in range(len(cosine)))
    logarithm = rounded_alike._LOGARITHM
    assert logarithm == tuple(1 / (2 * k + 1) for k in range(len(logarithm)))
    assert (len(sine), len(cosine), len(logarithm)) == (9, 10, 12)


def test_the_root_of_two_is_that_of_float64():
    assert struct.pack(">Q", rounded_alike._ROOT_OF_TWO) == struct.pack(">d", math.sqrt(2.0))


def test_a_run_computes_by_512_records_in_float32_with_the_fastest_engine_unless_told():
    assert performance.PerformanceOptions() == performance.PerformanceOptions(
        engine="auto", physical_batch_size=512, precision="float32"
    )
