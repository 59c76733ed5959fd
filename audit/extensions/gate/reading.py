"""A gate's ledger as the auditor reads it: lines, signed heads and kept replies, none trusted."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.files import refusals_of
from audit.reading.ledger import GENESIS, Fault, read_entry
from audit.untrusted import fields
from audit.untrusted.archives import Floats, read_stored
from audit.untrusted.documents import parse_json
from audit.untrusted.fields import FieldError

LEDGER, HEAD, KEY = "ledger.jsonl", "head.json", "gate.pub"
UNITS = ("record", "person", "site")
# How many of the newest replies a gate keeps.
KEPT = 16
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_TYPE = "urn:dpfedadamw:attestation:gate:v1"
_LAYOUT = (
    f'{{\n"payloadType": "{_PAYLOAD_TYPE}",\n"payload": "%s",\n'
    '"signatures": [{\n"keyid": "%s",\n"sig": "%s"\n}]\n}\n'
)
# Half of the order of P-256: of the two forms of a signature one is accepted.
_HALF_ORDER = 0x7FFFFFFF800000007FFFFFFFFFFFFFFFDE737D56D38BCF4279DCE5617E3192A8
_TYPES = {"F32": "<f4", "F64": "<f8"}
_HEX = r"[0-9a-f]{64}"
_NAME = r"[A-Za-z0-9._:-]{1,128}"
# A fingerprint. A stranger writes it, and it is printed in one line.
_KEY = r"[!-~]{1,128}"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


class ForgedError(UntrustedFileError):
    """A signature that is not by the key, or is over something else."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line: what the budget protects, and how much there is of it."""

    unit: str
    epsilon: float
    delta: float
    key: str


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One release, as it was charged before its noise existed.

    Attributes:
        release: Its number, from 1.
        time: When, in UTC as ISO 8601.
        framework: Whose job it was, as the gate's proxy called it.
        shards: K.
        clip: C.
        sensitivity: How far one unit's data move the sum, as stated.
        noise_multiplier: The noise's standard deviation over the sensitivity.
        broadcast: sha256 (hex) of what the server had sent, in float64.
        line: Where it stands.
    """

    release: int
    time: str
    framework: str
    job: str
    request: str
    shards: int
    clip: float
    sensitivity: float
    noise_multiplier: float
    broadcast: str
    line: int


@dataclass(frozen=True)
class GateLedger:
    """The ledger, as far as it could be read.

    Attributes:
        raw: Its bytes.
        header: The first line; None if it is none.
        charges: In order.
        replies: sha256 (hex) of stored replies, by release.
        ends: How many bytes the file has up to the end of each whole line.
        faults: What is wrong with form, chain and order.
    """

    raw: bytes
    header: Header | None
    charges: tuple[Charge, ...]
    replies: Mapping[int, str]
    ends: tuple[int, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Head:
    """How far a ledger was written: bytes, their sha256 (hex), and charges among them."""

    size: int
    digest: str
    charges: int


def read_ledger(raw: bytes) -> GateLedger:
    """Read a ledger; never raises, faults are listed."""
    faults: list[Fault] = []
    header, charges, replies = None, list[Charge](), dict[int, str]()
    previous, ends = GENESIS, [0]
    # A crash can tear the last line, which then paid for nothing.
    for position, line in enumerate(raw.split(b"\n")[:-1], start=1):
        entry = read_entry(line, position, previous, faults)
        previous = hashlib.sha256(line).hexdigest()
        ends.append(ends[-1] + len(line) + 1)
        if entry is None:
            continue
        kind = entry.get("kind")
        try:
            if (kind == "gate") != (position == 1):
                raise FieldError("the header is not the one first line")
            if kind == "gate":
                header = _header(entry)
            elif kind == "spend":
                charges.append(_charge(entry, position, len(charges) + 1))
            elif kind == "reply":
                release = fields.integer(entry, "release", least=1, most=len(charges))
                if release in replies:
                    raise FieldError(f"release {release} has two replies")
                replies[release] = fields.text(entry, "sha256", pattern=_HEX)
            else:
                raise FieldError("is of an unknown kind")
        except FieldError as error:
            faults.append(Fault(position, str(error)))
    return GateLedger(raw, header, tuple(charges), replies, tuple(ends[1:]), tuple(faults))


def _header(entry: Mapping[str, Any]) -> Header:
    fields.integer(entry, "format", least=1, most=1)
    return Header(
        unit=fields.choice(entry, "unit", UNITS),
        epsilon=fields.positive(entry, "epsilon"),
        delta=fields.positive(entry, "delta", most=0.5),
        key=fields.text(entry, "key", pattern=_KEY),
    )


def _charge(entry: Mapping[str, Any], position: int, number: int) -> Charge:
    if fields.integer(entry, "release") != number:
        raise FieldError(f"is not release {number}, which is next")
    time = fields.text(entry, "time", pattern=_TIME)
    try:
        datetime.fromisoformat(time)
    except ValueError as error:
        raise FieldError(f"time is no time ({error})") from error
    return Charge(
        release=number,
        time=time,
        framework=fields.text(entry, "framework", pattern=_NAME),
        job=fields.text(entry, "job", pattern=_NAME),
        request=fields.text(entry, "request", pattern=_NAME),
        shards=fields.integer(entry, "shards", least=1, most=4096),
        clip=fields.positive(entry, "clip"),
        sensitivity=fields.positive(entry, "sensitivity"),
        noise_multiplier=fields.positive(entry, "noise_multiplier"),
        broadcast=fields.text(entry, "broadcast_sha256", pattern=_HEX),
        line=position,
    )


def read_head(raw: bytes, key: bytes, where: str) -> tuple[Head, str]:
    """A signed head and the fingerprint of the key that signed it.

    Args:
        raw: The envelope (DSSE v1 around an in-toto statement).
        key: The public key, PEM.
        where: What errors call the head.

    Raises:
        ForgedError: The signature is not by this key over this content.
        UntrustedFileError: It is no such envelope, or the key is none.
        UnverifiedError: The package `cryptography` is not installed.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, utils
    except ModuleNotFoundError as error:
        raise UnverifiedError("signatures need the package cryptography") from error
    try:
        public = serialization.load_pem_public_key(key)
    except ValueError as error:
        raise UntrustedFileError(KEY, "is no PEM of a public key") from error
    if not (isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == "secp256r1"):
        raise UntrustedFileError(KEY, "is no key of ECDSA on P-256")
    with refusals_of(where):
        document = parse_json(raw)
        signed = fields.sequence(document, "signatures", most=1)
        payload = _base64(document, "payload")
        signature = _base64(signed[0] if signed else {}, "sig")
        statement = parse_json(payload)
        subject = fields.sequence(statement, "subject", most=1)
        if fields.text(statement, "predicateType") != _TYPE or not subject:
            raise FieldError("is no head of a gate's ledger")
        fields.choice(subject[0], "name", (LEDGER,))
        predicate = fields.mapping(statement, "predicate")
        head = Head(
            fields.integer(predicate, "bytes"),
            fields.text(fields.mapping(subject[0], "digest"), "sha256", pattern=_HEX),
            fields.integer(predicate, "charges"),
        )
    encoded = b"DSSEv1 %d %s %d %s" % (
        len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload,
    )  # fmt: skip
    try:
        public.verify(signature, encoded, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise ForgedError(where, "the signature is not by the key, or it was changed") from error
    if utils.decode_dss_signature(signature)[1] > _HALF_ORDER:
        raise ForgedError(where, "the signature was rewritten: only its lower form is accepted")
    content = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    printed = base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    # Only the payload is signed, so the rest has one layout.
    named = document["payload"], f"SHA256:{printed}", signed[0]["sig"]
    if raw != (_LAYOUT % named).encode():
        raise ForgedError(where, "is not laid out as envelopes are: it was changed")
    return head, f"SHA256:{printed}"


def _base64(source: Any, name: str) -> bytes:
    try:
        text = fields.text(source, name, pattern=r"[A-Za-z0-9+/=]{1,8192}")
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise FieldError(f"{name} is not base64") from error


@dataclass(frozen=True)
class Reply:
    """What went in and what came out of one release, coordinate by coordinate.

    Attributes:
        broadcast_sha256: Of the bytes of what the server had sent, in the order of the names.
        moved: What left the site minus what the server had sent, in float64.
        rounding: The most that narrowing can have moved each coordinate of it.
    """

    broadcast_sha256: str
    moved: Floats
    rounding: Floats


def read_reply(raw: bytes, where: str) -> Reply:
    """A stored reply: arrays `broadcast.NAME` and `released.NAME` for each NAME of the model.

    Raises:
        UntrustedFileError: It is none.
    """
    with refusals_of(where):
        stored = read_stored(raw)
        names = sorted(name for name in stored if name.startswith("broadcast."))
        digest, moved, rounding = hashlib.sha256(), [], []
        for name in names:
            sent, left = stored[name], stored.get(name.replace("broadcast", "released", 1))
            if left is None or (sent.dtype, sent.shape) != (left.dtype, left.shape):
                raise FieldError(f"{name} did not come back in its form")
            kind = np.dtype(_TYPES[fields.choice({"dtype": sent.dtype}, "dtype", tuple(_TYPES))])
            before, after = (np.frombuffer(one.content, kind) for one in (sent, left))
            digest.update(sent.content)
            with np.errstate(all="ignore"):
                moved.append(after.astype(np.float64) - before)
                rounding.append(np.spacing(np.abs(after)).astype(np.float64))
        if not names or len(stored) != 2 * len(names):
            raise FieldError("holds other arrays than what was sent and what left")
    return Reply(digest.hexdigest(), np.concatenate(moved), np.concatenate(rounding))
