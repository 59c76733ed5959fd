"""Were a run's keys, its spec and its data fixed before an auditor's nonce, as its files say?

The check "randomness" calls this. Digests and fields alone are compared; that trainer and auditor
signed intent and challenge is for `verify` to say, with keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.files import read_bytes
from audit.reading.ledger import INTENTS, Header, PublicCoin
from audit.untrusted import UntrustedError, fields
from audit.untrusted.documents import parse_json
from audit.untrusted.fields import FieldError

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
            reasons.append(f"{name}: lies in the run, but the ledger names no challenge")
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
        reasons.append(f"{INTENT}: announces another spec than the run's")
    if len({header.run, coin.run, promised.get("run"), answered.get("run")}) > 1:
        reasons.append(f"{INTENT}, {CHALLENGE} and the ledger are of different runs")
    shape = fields.integer(keys, "rounds"), fields.integer(keys, "clients")
    if shape != (header.rounds, header.clients):
        reasons.append(f"{INTENT}: commits to keys of other rounds and clients than the run's")
    if len(fields.sequence(data, "clients")) != header.clients:
        reasons.append(f"{INTENT}: commits to the data of another number of clients")
    if fields.text(keys, "root") != coin.root:
        reasons.append(f"{INTENT}: commits to other keys than the ledger says")
    if _subject(challenge, INTENT) != coin.intent_sha256:
        reasons.append(f"{CHALLENGE}: answers another intent")
    if fields.text(answered, "nonce") != coin.nonce.hex():
        reasons.append("the ledger names another nonce than the challenge")
    counts = fields.mapping(answered, "intents")
    if {name: fields.integer(counts, name) for name in INTENTS} != coin.intents:
        reasons.append("the ledger counts other intents than the challenge")
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
