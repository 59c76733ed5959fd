"""Do clients on machines of their own say what the server's ledger says? Part of "integrity".

Each client of a federation keeps a ledger of its own and signs each upload. What it hands in is
held against the server's ledger: a participation that the server notes was charged by the client
before it was sent, under the same noise, and the upload is the one that the client signed. What a
client charged that the server does not note contradicts it too: the server was sent more than the
run claims. A client that handed in nothing is named: for it the server's word stands alone.

A client's ledger begins with what it agreed to, its pin; ledgers from before there were pins have
none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.files import read_bytes, refusals_of
from audit.reading.ledger import GENESIS, Header, Ledger, Round
from audit.reading.ledger_lines import RoundSpend, Spend
from audit.untrusted import fields
from audit.untrusted.documents import canonical_json, parse_json
from audit.untrusted.fields import FieldError

_MOST_BYTES = 1 << 28
_HEX = r"[0-9a-f]{64}"
_DOMAIN = b"dpfedadamw client statement 1\x00"
_PIN_DOMAIN = b"dpfedadamw client pin 1\x00"
# The parts of a pin that the run's own header also states.
_PINNED = (
    "noise_multiplier", "clipping_norm", "rounds", "local_steps", "delta", "records_per_person",
    "clients_per_person",
)  # fmt: skip
_UNSIGNED = frozenset(("kind", "previous", "digest", "signature"))
_SIGNED = (
    "run", "client", "round", "attempt", "broadcast_sha256", "upload_sha256", "participation",
)  # fmt: skip

# Round and attempt.
Part = tuple[int, int]


@dataclass
class _Own:
    """What one client's ledger says.

    Attributes:
        charged: how often it paid for each attempt at a round, and under which noise and norm.
        sent: what it signed, by attempt.
        unpaid: attempts that it sent before it had paid.
        pins: what it agreed to, the last of which holds.
    """

    charged: dict[Part, list[Mapping[str, Any]]] = field(default_factory=dict)
    sent: dict[Part, Mapping[str, Any]] = field(default_factory=dict)
    unpaid: list[Part] = field(default_factory=list)
    pins: list[Mapping[str, Any]] = field(default_factory=list)


def sites_faults(
    bundle: Bundle, ledger: Ledger, header: Header, reasons: list[str], unreadable: list[str]
) -> None:
    """Hold the ledgers that clients handed in against the server's.

    Args:
        bundle: the run.
        ledger: the server's.
        header: of the server's ledger.
        reasons: gets what contradicts it.
        unreadable: gets which clients nothing is known of.
    """
    for item in ledger.rounds:
        if len(item.dropped) > header.drop_outs:
            reasons.append(
                f"round {item.round}: {len(item.dropped)} clients gave no answer, but the run "
                f"declares at most {header.drop_outs}"
            )
    if header.drop_outs:
        _declared(bundle, header, reasons)
    if not header.sites:
        return
    if len(header.sites) != header.clients:
        reasons.append("ledger.jsonl:1: sites does not name one key per client")
        return
    owns: dict[int, _Own] = {}
    # The auditor does without it elsewhere, and is installed without it.
    if find_spec("cryptography") is None:
        unreadable.append(
            "clients' signatures were not checked: the auditor needs the package cryptography"
        )
        return
    asked = {client for item in ledger.rounds for client in (*item.clients, *item.dropped)}
    for client in sorted(asked & set(range(header.clients))):
        name = f"evidence/client-{client:05d}.jsonl"
        try:
            raw = read_bytes(bundle.root, name, _MOST_BYTES)
            with refusals_of(name):
                owns[client] = _read(raw, header, client)
        except UntrustedFileError as error:
            if error.missing:
                unreadable.append(
                    f"client {client} handed in no ledger: nothing shows that it charged what the "
                    "server notes, and sent what the server has"
                )
            else:
                reasons.append(str(error))
    ended = _ended(ledger)
    charges: dict[tuple[int, int, int | None], Spend | RoundSpend] = {
        (one.round, one.attempt, one.client): one for one in ledger.spends
    }
    charges |= {(one.round, one.attempt, None): one for one in ledger.round_spends}
    for client, own in owns.items():
        _agreed(client, own, header, reasons)
        _unnoted(client, own, ledger, reasons)
        for index, attempt in own.unpaid:
            reasons.append(
                f"client {client}: it sent round {index}, attempt {attempt} before it had paid"
            )
        for item, attempt in ended:
            if client in item.clients:
                charge = charges.get((item.round, attempt, client)) or charges.get(
                    (item.round, attempt, None)
                )
                _participation(client, own, item.round, charge, reasons)
    _uploads(ended, owns, reasons)


def _ended(ledger: Ledger) -> list[tuple[Round, int]]:
    """Every end of a round, with the attempt that ended there: the last that was charged by then.

    A round whose state was lost stands there again, and clients signed something else each time.
    """
    charged: dict[int, list[tuple[int, int]]] = {}
    spends: list[Spend | RoundSpend] = [*ledger.spends, *ledger.round_spends]
    for spend in spends:
        charged.setdefault(spend.round, []).append((spend.line, spend.attempt))
    return [
        (
            item,
            max(
                (number for line, number in charged.get(item.round, ()) if line < item.line),
                default=1,
            ),
        )
        for item in ledger.rounds
    ]


def _declared(bundle: Bundle, header: Header, reasons: list[str]) -> None:
    """What the header declares of clients that drop out is the spec's, and takes no noise away."""
    federation = (bundle.spec or {}).get("federation")
    said = federation.get("drop_outs") if isinstance(federation, Mapping) else None
    if said != header.drop_outs:
        reasons.append(f"ledger.jsonl:1: lets {header.drop_outs} clients drop out, not the spec's")
    if header.noise_added_by == "clients":
        reasons.append(
            "ledger.jsonl:1: clients that add the noise may drop out, and a missing client's noise "
            "is lost"
        )


def _agreed(client: int, own: _Own, header: Header, reasons: list[str]) -> None:
    """What a client agreed to is the run's, and it was charged no more often than that."""
    for pin in own.pins:
        for name in _PINNED:
            said = getattr(header, name)
            if said is not None and name in pin and pin[name] != said:
                reasons.append(f"client {client}: agreed to a different {name}")
    if not own.pins:
        return
    most = max(fields.integer(pin, "most_charges") for pin in own.pins)
    paid = sum(len(lines) for lines in own.charged.values())
    if paid > most:
        reasons.append(
            f"client {client}: it was charged {paid} participations, but agreed to at most {most}"
        )


def _unnoted(client: int, own: _Own, ledger: Ledger, reasons: list[str]) -> None:
    """All that a client was charged, the server's ledger charges too: else its claim is too low."""
    noted = {(one.round, one.attempt) for one in ledger.spends if one.client == client}
    noted |= {(one.round, one.attempt) for one in ledger.round_spends if client in one.clients}
    # That the server notes a round which it never charged is for other checks.
    known = {index for index, _ in noted}
    uncharged = {one.round for one in ledger.rounds if client in one.clients} - known
    for index, attempt in sorted(own.charged.keys() - noted):
        if index not in uncharged:
            reasons.append(
                f"client {client}: it was charged for round {index}, attempt {attempt}, but the "
                "run's ledger does not say so"
            )


def _participation(
    client: int, own: _Own, index: int, charge: Spend | RoundSpend | None, reasons: list[str]
) -> None:
    """One participation that the server notes stands in the client's ledger, at the same cost."""
    where = f"client {client}, round {index}"
    if charge is None:
        return
    part = (index, charge.attempt)
    paid = own.charged.get(part, [])
    if not paid:
        reasons.append(f"{where}: its own ledger has no charge for it")
    for line in paid:
        given = (line.get("noise_multiplier"), line.get("clipping_norm"))
        if given != (charge.noise_multiplier, charge.clipping_norm):
            reasons.append(f"{where}: its own ledger charges a different noise or clipping norm")
    if part not in own.sent:
        reasons.append(f"{where}: its own ledger says that it sent nothing")


def _uploads(ended: list[tuple[Round, int]], owns: Mapping[int, _Own], reasons: list[str]) -> None:
    """What clients signed is what the server notes of a round, where all its clients are here."""
    for item, attempt in ended:
        part = (item.round, attempt)
        sent = [owns[client].sent.get(part) for client in item.clients if client in owns]
        signed = [one for one in sent if one is not None]
        if len(signed) != len(item.clients):
            continue
        if any(one["broadcast_sha256"] != item.broadcast for one in signed):
            reasons.append(f"round {item.round}: a client signed for a different broadcast")
        noted = item.digests.get("participations_sha256")
        if noted is not None and noted != _together(signed, "participation"):
            reasons.append(f"round {item.round}: clients signed for different participations")
        uploads = item.digests.get("uploads_sha256")
        if uploads is not None and uploads != _together(signed, "upload_sha256"):
            reasons.append(f"round {item.round}: clients signed for different uploads")


def _together(signed: list[Mapping[str, Any]], name: str) -> str:
    return hashlib.sha256(b"".join(bytes.fromhex(one[name]) for one in signed)).hexdigest()


def _read(raw: bytes, header: Header, client: int) -> _Own:
    """A client's ledger, every link of its chain followed and every signature checked.

    Raises:
        FieldError: it is none.
    """
    own, previous = _Own(), GENESIS
    if not raw.endswith(b"\n"):
        raise FieldError("does not end with a complete line")
    for number, line in enumerate(raw.split(b"\n")[:-1], start=1):
        entry = parse_json(line)
        if not isinstance(entry, dict):
            raise FieldError(f"line {number} is not a JSON object")
        unsigned = {key: value for key, value in entry.items() if key != "digest"}
        digest = hashlib.sha256(canonical_json(unsigned)).hexdigest()
        if entry.get("previous") != previous or entry.get("digest") != digest:
            raise FieldError(f"line {number} breaks the hash chain")
        previous = hashlib.sha256(line).hexdigest()
        if fields.choice(entry, "kind", ("pin", "spend", "upload")) == "pin":
            _check_pin(entry, header.sites[client], client, number)
            own.pins.append(entry)
            continue
        part = (fields.integer(entry, "round"), fields.integer(entry, "attempt", least=1))
        if fields.text(entry, "run") != header.run:
            raise FieldError(f"line {number} is of another run")
        if entry["kind"] == "spend":
            own.charged.setdefault(part, []).append(entry)
            continue
        if part in own.sent:
            raise FieldError(f"line {number} sends a second upload for one attempt")
        _check_signature(entry, header.sites[client], client, number)
        own.sent[part] = entry
        if part not in own.charged:
            own.unpaid.append(part)
    return own


def _check_signature(entry: Mapping[str, Any], key: str, client: int, number: int) -> None:
    for name in ("broadcast_sha256", "upload_sha256", "participation"):
        fields.text(entry, name, pattern=_HEX)
    shown = {name: entry[name] for name in _SIGNED}
    _check_signed(entry, _DOMAIN, shown, key, client, number)


def _check_pin(entry: Mapping[str, Any], key: str, client: int, number: int) -> None:
    fields.integer(entry, "most_charges")
    shown = {name: value for name, value in entry.items() if name not in _UNSIGNED}
    _check_signed(entry, _PIN_DOMAIN, shown, key, client, number)


def _check_signed(
    entry: Mapping[str, Any],
    domain: bytes,
    shown: Mapping[str, Any],
    key: str,
    client: int,
    number: int,
) -> None:
    if fields.integer(entry, "client") != client:
        raise FieldError(f"line {number} is of another client")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = fields.text(entry, "signature", pattern=r"[0-9a-f]{128}")
    content = domain + json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        raise FieldError(f"line {number} is not signed by the key of client {client}") from None
