"""Check "randomness": is it disclosed whether anyone could redraw the noise?

A run whose noise follows from a seed is private only towards those who do not know the seed. The
check does not forbid that, it makes sure that it is said.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.shared.noise_table import of_queries, of_rounds
from audit.checks.shared.public_coin import coin_faults
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.statistics.seeded import SEEDS, find_seed
from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

# What a release key is hashed behind, as the ledger's format has it.
_DOMAIN = b"dpfedadamw release key commitment 1\x00"
_KEY_BYTES, _SEEDS = 32, 4096

SEEDED = (
    "release mode, but the noise is that of a generator seeded with a number that anybody would "
    "try first"
)
REPRODUCIBLE = "reproducible mode: not a privacy guarantee to anyone who knows the seed"


def _obvious_keys() -> Iterator[bytes]:
    """Keys that somebody writes into a program: one byte repeated, or a small seed spread out."""
    for value in range(256):
        yield bytes([value]) * _KEY_BYTES
    for seed in range(_SEEDS):
        text = str(seed).encode()
        for short in (seed.to_bytes(8, "big"), seed.to_bytes(8, "little"), text):
            yield hashlib.sha256(short).digest()
        yield seed.to_bytes(_KEY_BYTES, "big")
        yield seed.to_bytes(_KEY_BYTES, "little")
        yield text.ljust(_KEY_BYTES, b"\x00")


@cache
def obvious_commitments() -> frozenset[str]:
    """Commitments (hex) to keys that anybody would try first."""
    return frozenset(hashlib.sha256(_DOMAIN + key).hexdigest() for key in _obvious_keys())


def intents_in_words(seen: int, dropped: int) -> str:
    """How often a trainer announced runs to the auditor, and how often nothing came of it."""
    return (
        f"the trainer had announced {seen} runs to the auditor, this one included; {dropped} of "
        "the earlier ones came to no run that was opened, computed again and passed"
    )


def drawn_again(bundle: Bundle) -> str | None:
    """Generator and seed that give some of the noise recorded; None where none does.

    Raises:
        UnverifiedError: the evidence cannot be read.
    """
    layout = bundle.layout()
    if bundle.header.unit.whole_clients:
        releases, _ = of_rounds(bundle, [])
    else:
        found = of_queries(bundle, [])
        if found is None:
            return None
        releases = found
    rows, rounds = releases.sample_rows(), releases.round
    if not rows.shape[1]:
        return None
    # The first two of all, the first of another round, and the last.
    picked = dict.fromkeys(
        (0, min(1, len(rows) - 1), int(np.argmax(rounds > rounds[0])), len(rows) - 1)
    )
    sizes = [size for _, size in layout.tensors]
    largest = int(np.argmax(sizes))
    starts = (0, sum(sizes[:largest]))
    return find_seed([rows[index] for index in picked], layout.sample_coordinates, starts)


def _judge(bundle: Bundle) -> Judgement:
    header = bundle.header
    reasons: list[str] = []
    unreadable: list[str] = []
    try:
        randomness = fields.mapping(bundle.readable_spec, "randomness")
        mode = fields.choice(randomness, "mode", ("release", "reproducible"))
        seed = randomness.get("seed")
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    if mode != header.randomness:
        reasons.append(f"the spec says {mode}, the ledger {header.randomness}")
    if "release" in (mode, header.randomness):
        if header.commitment is None or not re.fullmatch(r"[0-9a-f]{64}", header.commitment):
            reasons.append("release mode without a commitment to the key in the ledger's header")
        resumed = [one.commitment or "" for one in bundle.readable_ledger.resumes]
        if not all(re.fullmatch(r"[0-9a-f]{64}", one) for one in resumed):
            reasons.append("release mode, but the run went on without a commitment to its new key")
        if header.public_coin is not None:
            if set(resumed) - {header.commitment}:
                reasons.append("the run went on with a key that its intent did not commit to")
        elif len({header.commitment, *resumed}) != 1 + len(resumed):
            reasons.append("the run went on with a key that was used before: noise may repeat")
        if obvious_commitments() & {header.commitment, *resumed}:
            reasons.append("release mode, but the key is a fixed one that anybody would try first")
        if seed is not None or header.seed is not None:
            reasons.append("release mode, but a seed is stored")
        if header.noise_multiplier is not None:
            try:
                if drawn_again(bundle) is not None:
                    # Which seed it is would tell the noise to whoever reads the finding.
                    reasons.append(SEEDED)
            except (UnverifiedError, UntrustedFileError) as error:
                unreadable.append(f"whether the noise is that of a usual seed: {error}")
    elif seed is None or header.seed != seed:
        reasons.append("reproducible mode, but spec and ledger do not name the same seed")
    coin_faults(bundle, reasons, unreadable)
    qualifications: tuple[str, ...] = (
        (REPRODUCIBLE,) if "reproducible" in (mode, header.randomness) else ()
    )
    # The commitment also makes audit.json impossible to guess from its published digest.
    details: dict[str, Any] = {"mode": header.randomness, "commitment": header.commitment}
    passed = "release mode: the key is committed to and no seed is stored in spec or ledger"
    coin = header.public_coin
    if coin is not None:
        details["intents"] = dict(coin.intents)
        passed += "; spec, data and keys were announced before an auditor's nonce"
        if dropped := coin.intents["dropped_of_trainer"]:
            qualifications += (intents_in_words(coin.intents["of_trainer"], dropped),)
    return conclude(
        REPRODUCIBLE if REPRODUCIBLE in qualifications else passed,
        reasons,
        unreadable,
        details=details,
        qualifications=qualifications,
    )


RANDOMNESS = Check(
    name="randomness",
    title="Is it disclosed whether the noise can be drawn again?",
    place=120,
    meaning="If it fails, somebody may be able to draw the noise again and remove it.",
    claim="In release mode noise and sampling come from a key that only its commitment witnesses; "
    "in reproducible mode the seed is named and so is the consequence.",
    tolerance="none: fields are compared exactly",
    power="a stored seed in release mode, a missing commitment, modes that disagree, a key that is "
    "one byte repeated or made of a seed below 4096 in one of six usual ways; noise drawn in "
    f"release mode by torch on a CPU, NumPy or Python's random from one of {len(SEEDS)} usual "
    "seeds; in a run that an auditor challenged, an intent or a challenge that is not the "
    "ledger's, of another spec, of other keys, with another nonce, or dated after what answers it",
    limits="A fixed key that is not among these looks like any other in one run; the same "
    "commitment in two runs would give it away. Noise of another generator, or of another seed, "
    "likewise. That the key was drawn from the operating system's entropy and then destroyed "
    "cannot be seen from a run directory. That the streams follow from the announced keys and the "
    "nonce is seen where participations are opened and computed again; who signed intent and "
    "challenge, by verify.",
    rule=_judge,
)
register(RANDOMNESS)
