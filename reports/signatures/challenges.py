"""Intent, challenge and draw: what trainer and auditor sign so that neither can choose the noise.

1. The trainer signs an *intent* before training: the spec, salted commitments to each client's
   data, the root of a tree of keys.
2. Only then the auditor signs a *challenge*: a nonce, bound to that intent. All noise follows from
   keys and nonce together. The challenge carries the intent, and counts how many the auditor has
   seen that came to nothing: a trainer who starts again until a nonce suits it is told of.
3. When the ledger is signed, the auditor signs a *draw*: a second nonce, bound to that ledger, from
   which it follows which participations are opened.

Each is an in-toto Statement in a DSSE envelope, with its signer's public key in it, so that it can
be sent by itself. Whose key that is, the reader must know another way. Their schemas are
intent.schema.json, challenge.schema.json and draw.schema.json.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from reports.errors import EnvelopeError, KeyFileError
from reports.signatures.dsse import (
    SHA256,
    Statement,
    check_signature,
    parse_envelope,
    parse_statement,
    refuse_high_s,
    seal,
    write_statement,
)
from reports.signatures.inventory import INTENT
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import Role, fingerprint, parse_public, public_pem
from reports.signatures.statements import read_time, written_time

INTENT_TYPE = "urn:dpfedadamw:attestation:intent:v1"
CHALLENGE_TYPE = "urn:dpfedadamw:attestation:challenge:v1"
DRAW_TYPE = "urn:dpfedadamw:attestation:draw:v1"
# By how much the clocks of trainer and auditor may differ.
CLOCKS = timedelta(minutes=5)
NONCE_BYTES = 32
MOST_BYTES = 1 << 24
_HEX = r"[0-9a-f]{64}"
_RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_SPEC, _LEDGER, _TRAINING = "spec.yaml", "ledger.jsonl", "training.attestation.json"


@dataclass(frozen=True, kw_only=True)
class Promised:
    """What an intent says of the run that is to come.

    Attributes:
        run: Its identifier.
        spec_sha256: Digest of its resolved spec.
        root: Root (sha256 hex) of the tree over its keys.
        rounds: T, of the tree.
        clients: K, of the tree.
        data: Salted commitment (hex) to each client's records, by client.
        handle: The same for all intents of this trainer on the same data, and tells nothing else.
    """

    run: str
    spec_sha256: str
    root: str
    rounds: int
    clients: int
    data: tuple[str, ...]
    handle: str


@dataclass(frozen=True, kw_only=True)
class Signed:
    """What every one of the three has.

    Attributes:
        key: The signer's, as the file states it.
        created: When, as it says itself, UTC.
        envelope: Its bytes.
    """

    key: ec.EllipticCurvePublicKey
    created: datetime
    envelope: bytes

    @property
    def fingerprint(self) -> str:
        """Of the key."""
        return fingerprint(self.key)

    @property
    def sha256(self) -> str:
        """Digest (hex) of the envelope."""
        return hashlib.sha256(self.envelope).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Intent(Signed):
    """A trainer's announcement of a run.

    Attributes:
        promised: What it says.
    """

    promised: Promised


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How many intents an auditor has seen, this one included.

    Attributes:
        of_trainer: Of the same trainer's key.
        for_data: Of these, for the same data.
        dropped: Of those for the same data, the earlier ones that came to nothing: to no run that
            the auditor had opened, computed again and found to pass.
        dropped_of_trainer: The same of all the trainer's.
    """

    of_trainer: int
    for_data: int
    dropped: int
    dropped_of_trainer: int


@dataclass(frozen=True, kw_only=True)
class Challenge(Signed):
    """An auditor's answer to an intent.

    Attributes:
        nonce: 32 bytes.
        seen: What the auditor had seen of the trainer by then.
        intent: What it answers.
        intent_timestamp: The intent's timestamp, if there was one.
        intent_inclusion: The proof that a log holds the intent, if there was one.
    """

    nonce: bytes
    seen: Seen
    intent: Intent
    intent_timestamp: bytes | None
    intent_inclusion: bytes | None

    def header(self) -> dict[str, Any]:
        """What the ledger's header says of intent and challenge."""
        promised = self.intent.promised
        return {
            "run": promised.run,
            "intent_sha256": self.intent.sha256,
            "challenge_sha256": self.sha256,
            "nonce": self.nonce.hex(),
            "root": promised.root,
            "challenger": self.fingerprint,
            "intents": asdict(self.seen),
        }


@dataclass(frozen=True, kw_only=True)
class Draw(Signed):
    """An auditor's choice of what is opened.

    Attributes:
        run: Identifier of the run.
        nonce: 32 bytes, from which the choice follows.
        participations: How many are drawn.
        ledger_sha256: Digest of the ledger that it is bound to.
        attestation_sha256: Digest of the trainer's attestation of that ledger.
    """

    run: str
    nonce: bytes
    participations: int
    ledger_sha256: str
    attestation_sha256: str


def write_intent(promised: Promised, key: SigningKey, package: str, created: datetime) -> bytes:
    """Return an intent, signed by the trainer.

    Args:
        promised: What it says.
        key: The trainer's.
        package: Version of the package that would train.
        created: Now, UTC.
    """
    predicate = {
        "run": promised.run,
        "package": package,
        "keys": {"root": promised.root, "rounds": promised.rounds, "clients": promised.clients},
        "data": {"handle": promised.handle, "clients": list(promised.data)},
    }
    return _write({_SPEC: promised.spec_sha256}, INTENT_TYPE, predicate, key, created)


def write_challenge(
    intent: Intent,
    nonce: bytes,
    seen: Seen,
    key: SigningKey,
    created: datetime,
    intent_timestamp: bytes | None = None,
    intent_inclusion: bytes | None = None,
) -> bytes:
    """Return a challenge to an intent, signed by the auditor."""
    predicate = {
        "run": intent.promised.run,
        "nonce": nonce.hex(),
        "trainer": intent.fingerprint,
        "intents": asdict(seen),
        "intent": base64.b64encode(intent.envelope).decode("ascii"),
        "intent_timestamp": _encoded(intent_timestamp),
        "intent_inclusion": _encoded(intent_inclusion),
    }
    return _write({INTENT: intent.sha256}, CHALLENGE_TYPE, predicate, key, created)


def write_draw(
    run: str,
    nonce: bytes,
    participations: int,
    ledger_sha256: str,
    attestation_sha256: str,
    key: SigningKey,
    created: datetime,
) -> bytes:
    """Return a draw for a signed run, signed by the auditor."""
    predicate = {"run": run, "nonce": nonce.hex(), "participations": participations}
    subjects = {_LEDGER: ledger_sha256, _TRAINING: attestation_sha256}
    return _write(subjects, DRAW_TYPE, predicate, key, created)


def read_intent(data: bytes, where: str) -> Intent:
    """Read an intent whose signature holds under the key that it names.

    Raises:
        EnvelopeError: It does not, or is no intent.
    """
    statement, signed = _read(data, INTENT_TYPE, "trainer", where)
    said = statement.predicate
    try:
        keys, records = fields.mapping(said, "keys"), fields.mapping(said, "data")
        clients = fields.integer(keys, "clients", least=1, most=1_000_000)
        commitments = tuple(
            fields.text({"data": one}, "data", pattern=_HEX)
            for one in fields.sequence(records, "clients")
        )
        promised = Promised(
            run=fields.text(said, "run", pattern=_RUN),
            spec_sha256=_subject(statement, _SPEC),
            root=fields.text(keys, "root", pattern=_HEX),
            rounds=fields.integer(keys, "rounds", least=1, most=1_000_000),
            clients=clients,
            data=commitments,
            handle=fields.text(records, "handle", pattern=_HEX),
        )
        if len(commitments) != clients:
            raise FieldError("data does not have one commitment a client")
    except FieldError as error:
        raise EnvelopeError(f"{where}: {error}") from error
    return Intent(promised=promised, **signed)


def read_challenge(data: bytes, where: str) -> Challenge:
    """Read a challenge whose signature holds, with the intent that it answers.

    Raises:
        EnvelopeError: It does not, is no challenge, or does not belong to the intent in it.
    """
    statement, signed = _read(data, CHALLENGE_TYPE, "auditor", where)
    said = statement.predicate
    try:
        nonce = bytes.fromhex(fields.text(said, "nonce", pattern=_HEX))
        counts = fields.mapping(said, "intents")
        seen = Seen(**{name: fields.integer(counts, name) for name in Seen.__annotations__})
        intent = read_intent(_decoded(said, "intent"), f"{where}: its intent")
        stamp, proof = (
            _decoded(said, name) if said.get(name) else None
            for name in ("intent_timestamp", "intent_inclusion")
        )
        if intent.sha256 != _subject(statement, INTENT) or said.get("run") != intent.promised.run:
            raise FieldError("it answers another intent than the one it carries")
        if said.get("trainer") != intent.fingerprint:
            raise FieldError("it names another trainer than the one who signed the intent")
    except FieldError as error:
        raise EnvelopeError(f"{where}: {error}") from error
    challenge = Challenge(
        nonce=nonce,
        seen=seen,
        intent=intent,
        intent_timestamp=stamp,
        intent_inclusion=proof,
        **signed,
    )
    if intent.created > challenge.created + CLOCKS:
        raise EnvelopeError(
            f"{where}: its intent is of {written_time(intent.created)}, after the challenge of "
            f"{written_time(challenge.created)}; an intent comes before the nonce that answers it"
        )
    return challenge


def read_draw(data: bytes, where: str) -> Draw:
    """Read a draw whose signature holds under the key that it names.

    Raises:
        EnvelopeError: It does not, or is no draw.
    """
    statement, signed = _read(data, DRAW_TYPE, "auditor", where)
    said = statement.predicate
    try:
        return Draw(
            run=fields.text(said, "run", pattern=_RUN),
            nonce=bytes.fromhex(fields.text(said, "nonce", pattern=_HEX)),
            participations=fields.integer(said, "participations", least=1),
            ledger_sha256=_subject(statement, _LEDGER),
            attestation_sha256=_subject(statement, _TRAINING),
            **signed,
        )
    except FieldError as error:
        raise EnvelopeError(f"{where}: {error}") from error


def now() -> datetime:
    """The time, UTC, to the second, as it is written into envelopes."""
    return datetime.now(UTC).replace(microsecond=0)


def _write(
    subjects: Mapping[str, str],
    kind: str,
    predicate: Mapping[str, Any],
    key: SigningKey,
    created: datetime,
) -> bytes:
    said = {
        **predicate,
        "role": key.role,
        "created": written_time(created),
        "public_key": public_pem(key.public).decode("ascii"),
    }
    named = {name: (SHA256, digest) for name, digest in subjects.items()}
    return seal(write_statement(Statement(named, kind, said)), key.private)


def _read(data: bytes, kind: str, role: Role, where: str) -> tuple[Statement, dict[str, Any]]:
    """Return a statement whose signature holds under its own key, and what all of them have."""
    envelope = parse_envelope(data, where)
    statement = parse_statement(envelope.payload, kind, where)
    said = statement.predicate
    try:
        key = parse_public(fields.text(said, "public_key").encode(), f"{where}: public_key")
        created = read_time(said.get("created"), where)
        if said.get("role") != role:
            raise FieldError(f"was not signed in the role of the {role}")
    except (FieldError, KeyFileError) as error:
        raise EnvelopeError(f"{where}: {error}") from error
    check_signature(envelope, key, where)
    if envelope.keyid != fingerprint(key):
        raise EnvelopeError(f"{where}: its keyid names another key than the one that signed")
    refuse_high_s(envelope, where)
    return statement, {"key": key, "created": created, "envelope": data}


def _encoded(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode("ascii")


def _subject(statement: Statement, name: str) -> str:
    kind, digest = statement.subjects.get(name, ("", ""))
    if kind != SHA256:
        raise FieldError(f"does not name {name}")
    return digest


def _decoded(said: Mapping[str, Any], name: str) -> bytes:
    text = fields.text(said, name, pattern=r"[A-Za-z0-9+/=]{1,16777216}")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise FieldError(f"{name} is not valid base64") from error
