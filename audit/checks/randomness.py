"""Check "randomness": is it disclosed whether anyone could redraw the noise?

A run whose noise follows from a seed is private only against readers who do not know the seed. The
check does not forbid that; it makes sure that it is disclosed. Where an auditor's nonce went into a
run, its keys, its spec and its data must have been fixed before (`public_coin_faults`): digests and
fields alone are compared; that trainer and auditor signed intent and challenge is for `verify` to
say, with keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.shared.noise_table import of_queries, of_rounds
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.files import read_bytes
from audit.reading.ledger import INTENTS, Header, PublicCoin
from audit.statistics.seeded import SEEDS, find_seed
from audit.untrusted import UntrustedError, fields
from audit.untrusted.documents import parse_json
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

INTENT, CHALLENGE = "intent.json", "challenge.json"
_MOST_BYTES = 1 << 24
_HEX = r"[0-9a-f]{64}"
# By how much the clocks of trainer and auditor may differ.
_CLOCKS = timedelta(minutes=5)


def coin_faults(bundle: Bundle, reasons: list[str], unreadable: list[str]) -> None:
    """Compare the ledger's header with the intent and the challenge that lie in the run.

    Args:
        bundle: the run.
        reasons: gets a sentence for whatever does not fit.
        unreadable: gets a sentence for what cannot be read.
    """
    header = bundle.header
    found: dict[str, Mapping[str, Any]] = {}
    for name in (INTENT, CHALLENGE):
        try:
            raw = read_bytes(bundle.root, name, _MOST_BYTES)
        except UntrustedFileError as error:
            if header.public_coin is not None or not error.missing:
                unreadable.append(str(error))
            continue
        if header.public_coin is None:
            reasons.append(f"{name}: is in the run, but the ledger names no challenge")
            continue
        coin = header.public_coin
        named = coin.intent_sha256 if name == INTENT else coin.challenge_sha256
        if hashlib.sha256(raw).hexdigest() != named:
            reasons.append(f"{name}: is not the one that the ledger names")
        try:
            found[name] = _statement(raw)
        except UntrustedError as error:
            unreadable.append(f"{name}: {error}")
    if header.public_coin is None or len(found) < 2:
        return
    try:
        _compare(header, header.public_coin, found[INTENT], found[CHALLENGE], reasons)
    except (UntrustedError, ValueError) as error:
        unreadable.append(f"{INTENT} or {CHALLENGE}: {error}")


def _compare(
    header: Header,
    coin: PublicCoin,
    intent: Mapping[str, Any],
    challenge: Mapping[str, Any],
    reasons: list[str],
) -> None:
    promised, answered = fields.mapping(intent, "predicate"), fields.mapping(challenge, "predicate")
    keys, data = fields.mapping(promised, "keys"), fields.mapping(promised, "data")
    if _subject(intent, "spec.yaml") != header.spec_sha256:
        reasons.append(f"{INTENT}: announces a spec that is not the run's")
    if len({header.run, coin.run, promised.get("run"), answered.get("run")}) > 1:
        reasons.append(f"{INTENT}, {CHALLENGE} and the ledger are of different runs")
    shape = fields.integer(keys, "rounds"), fields.integer(keys, "clients")
    if shape != (header.rounds, header.clients):
        reasons.append(f"{INTENT}: commits to keys of rounds and clients that are not the run's")
    if len(fields.sequence(data, "clients")) != header.clients:
        reasons.append(f"{INTENT}: commits to the data of a different number of clients")
    if fields.text(keys, "root") != coin.root:
        reasons.append(f"{INTENT}: commits to keys that are not the ledger's")
    if _subject(challenge, INTENT) != coin.intent_sha256:
        reasons.append(f"{CHALLENGE}: answers another intent")
    if fields.text(answered, "nonce") != coin.nonce.hex():
        reasons.append("the ledger's nonce is not the challenge's")
    counts = fields.mapping(answered, "intents")
    if {name: fields.integer(counts, name) for name in INTENTS} != coin.intents:
        reasons.append("the ledger's count of intents is not the challenge's")
    announced, drawn = _time(promised), _time(answered)
    if announced > drawn + _CLOCKS:
        reasons.append(f"{INTENT}: is dated after the challenge that answers it")


def _statement(raw: bytes) -> Mapping[str, Any]:
    """The in-toto statement in an envelope, whose signature is not looked at."""
    encoded = fields.text(parse_json(raw), "payload", pattern=r"[A-Za-z0-9+/=]{1,16777216}")
    try:
        statement = parse_json(base64.b64decode(encoded, validate=True))
    except binascii.Error as error:
        raise FieldError("payload is not base64") from error
    if not isinstance(statement, dict):
        raise FieldError("payload is not a statement")
    return statement


def _subject(statement: Mapping[str, Any], name: str) -> str:
    for entry in fields.sequence(statement, "subject", most=64):
        if fields.text(entry, "name") == name:
            return fields.text(fields.mapping(entry, "digest"), "sha256", pattern=_HEX)
    raise FieldError(f"does not name {name}")


def _time(said: Mapping[str, Any]) -> datetime:
    text = fields.text(said, "created", pattern=r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
    return datetime.fromisoformat(text)


# What a release key is hashed behind, as the ledger's format has it.
_DOMAIN = b"dpfedadamw release key commitment 1\x00"
_KEY_BYTES, _SEEDS = 32, 4096

SEEDED = (
    "release mode, but the noise is that of a generator seeded with a number that anyone would try "
    "first"
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
        f"the trainer had announced {seen} runs to the auditor, including this one; {dropped} of "
        "the earlier ones led to no run that was opened, recomputed and found to pass"
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
        raise UnverifiedError("the noise is recorded at no coordinate")
    # The first two of all, the first of another round, and the last.
    picked = dict.fromkeys(
        (0, min(1, len(rows) - 1), int(np.argmax(rounds > rounds[0])), len(rows) - 1)
    )
    sizes = [size for _, size in layout.tensors]
    largest = int(np.argmax(sizes))
    starts = (0, sum(sizes[:largest]))
    return find_seed([rows[index] for index in picked], layout.sample_coordinates, starts)


def _release_faults(
    bundle: Bundle, seed: object, reasons: list[str], unreadable: list[str]
) -> None:
    """In release mode every key is committed to and used once, none is obvious, no seed is kept.

    Args:
        bundle: the run.
        seed: of the spec.
        reasons: gets what is wrong.
        unreadable: gets why something could not be judged.
    """
    header = bundle.header
    if header.commitment is None or not re.fullmatch(r"[0-9a-f]{64}", header.commitment):
        reasons.append("release mode without a commitment to the key in the ledger's header")
    resumed = [one.commitment or "" for one in bundle.readable_ledger.resumes]
    if not all(re.fullmatch(r"[0-9a-f]{64}", one) for one in resumed):
        reasons.append("release mode, but the run continued without a commitment to its new key")
    if header.public_coin is not None:
        if set(resumed) - {header.commitment}:
            reasons.append("the run continued with a key that its intent did not commit to")
    elif len({header.commitment, *resumed}) != 1 + len(resumed):
        reasons.append("the run continued with a key that was used before: noise may repeat")
    if obvious_commitments() & {header.commitment, *resumed}:
        reasons.append("release mode, but the key is a fixed one that anyone would try first")
    if seed is not None or header.seed is not None:
        reasons.append("release mode, but a seed is stored")
    if header.noise_multiplier is not None:
        try:
            if drawn_again(bundle) is not None:
                # Naming the seed would reveal the noise to the finding's readers.
                reasons.append(SEEDED)
        except (UnverifiedError, UntrustedFileError) as error:
            unreadable.append(f"could not test whether the noise is that of a usual seed: {error}")


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
        _release_faults(bundle, seed, reasons, unreadable)
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
    title="Is it disclosed whether the noise can be reproduced?",
    place=120,
    meaning="If it fails, somebody may be able to reproduce the noise and remove it.",
    claim="In release mode noise and sampling come from a key of which only a commitment is "
    "published; in reproducible mode the seed and its consequence are stated.",
    tolerance="none: fields are compared exactly",
    power="a stored seed in release mode, a missing commitment, modes that disagree. A key that "
    "is one byte repeated or made of a seed below 4096 in one of six usual ways. Noise drawn in "
    f"release mode by torch on a CPU, NumPy or Python's random from one of {len(SEEDS)} usual "
    "seeds. In a run that an auditor challenged: an intent or a challenge of another spec or other "
    "keys, with another nonce, dated after its answer, or not the ledger's",
    limits="A fixed key that is not among these looks like any other in one run; the same "
    "commitment in two runs would give it away. The same holds for noise of another generator or "
    "another seed. A run directory cannot show that the key was drawn from the operating system's "
    "entropy and then destroyed. That the streams follow from the announced keys and the nonce is "
    "shown where participations are opened and recomputed. Who signed intent and challenge is "
    "shown by verify.",
    rule=_judge,
)
register(RANDOMNESS)
