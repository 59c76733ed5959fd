"""What a trainer opens after a run: leaf keys of the participations that an auditor's nonce drew.

Everything is computed here a second time, with `hashlib` alone: what streams are bound to, and
whether a key is one that the trainer committed to before the first nonce; which participations are
drawn is `audit.reexecution`. `dpfedadamw.privacy.noise.key_tree` has the trainer's side; that
intent, challenge and draw are signed, and by whom, is for the caller (`dpfedadamw audit`) to check.

Sources: HKDF is RFC 5869 with SHA-256; the tree and its paths are RFC 9162, section 2.1.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.reading.ledger import Ledger
from audit.reading.ledger_lines import last_round_spends, last_spends
from audit.reexecution import Participation, numbers
from audit.untrusted import fields
from audit.untrusted.documents import canonical_json, parse_json
from audit.untrusted.fields import FieldError
from audit.untrusted.merkle import leaf_digest, path_length, root_above

SERVER = -1
MAXIMUM_BYTES = 1 << 28
NO_HISTORY = bytes(32)

_LEAF = b"dpfedadamw leaf commitment 1\x00"
_STREAM = b"dpfedadamw release stream 1\x00"
_DATA = b"dpfedadamw data commitment 1\x00"
_HEX = r"[0-9a-f]{64}"
# The parts of a line that the streams are bound to: all of a charge, and of a round what it
# exchanged.
_EXCHANGED = (
    "round", "clients", "steps", "queries", "broadcast_sha256", "uploads_sha256", "released_sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Coin:
    """What streams are bound to in addition to their keys.

    Attributes:
        nonce: the auditor's 32 bytes; empty where there was no auditor.
        run: identifier that the intent gave the run; empty without an intent.
    """

    nonce: bytes = b""
    run: str = ""


@dataclass(frozen=True)
class Tree:
    """The keys that a trainer committed to.

    Attributes:
        root: sha256 hex.
        rounds: T.
        clients: K; each round has one key more, the server's.
    """

    root: str
    rounds: int
    clients: int


@dataclass(frozen=True)
class Opening:
    """A leaf key that was shown: the streams of one round and client follow from it.

    Attributes:
        round: from 0.
        client: from 0; -1 for the server, whose streams draw the cohort and the release's noise.
        attempt: the attempt that counts, from 1.
        key: 32 bytes.
    """

    round: int
    client: int
    attempt: int
    key: bytes


def participations(ledger: Ledger) -> tuple[Participation, ...]:
    """Every client's part in every finished round, by round and client; also one without charge."""
    last = {round.round: round for round in ledger.rounds}
    of_client, of_round = last_spends(ledger.spends), last_round_spends(ledger.round_spends)
    found = []
    for index, finished in sorted(last.items()):
        for client in sorted(finished.clients):
            charge = of_round.get(index) or of_client.get((index, client))
            found.append(Participation(index, client, 1 if charge is None else charge.attempt))
    return tuple(found)


def opened_places(drawn: Sequence[Participation]) -> tuple[Participation, ...]:
    """The keys to open for what was drawn: each client's, and the server's of the same rounds."""
    servers = {one.round: one.attempt for one in drawn}
    of_server = (Participation(index, SERVER, attempt) for index, attempt in servers.items())
    return tuple(sorted((*drawn, *of_server)))


def read_openings(
    raw: bytes, tree: Tree | None, drawn: Sequence[Participation]
) -> tuple[Opening, ...]:
    """The leaf keys of an openings file, each one checked against the trainer's commitment.

    Args:
        raw: the file's bytes.
        tree: what the intent committed to; None where there was no intent, and nothing is checked
            but the file's form.
        drawn: the participations that must be opened, and no others.

    Returns:
        The keys of the drawn participations and of the server in their rounds, by round and client.

    Raises:
        UntrustedError: the file is malformed, a key is missing or was not drawn, or it is not one
            that was committed to.
    """
    document = parse_json(raw)
    if fields.integer(document, "format") != 1:
        raise FieldError("format is not 1")
    wanted = {(one.round, one.client): one for one in opened_places(drawn)}
    found: dict[tuple[int, int], Opening] = {}
    for entry in fields.sequence(document, "leaves", most=len(wanted) + 1):
        place = fields.integer(entry, "round"), fields.integer(entry, "client", least=SERVER)
        if place not in wanted:
            raise FieldError(f"the key of {_named(place)} is opened, but was not drawn")
        if place in found:
            raise FieldError(f"the key of {_named(place)} is opened twice")
        key = bytes.fromhex(fields.text(entry, "key", pattern=_HEX))
        if tree is not None:
            path = [bytes.fromhex(_digest(one)) for one in fields.sequence(entry, "path", most=64)]
            _check(tree, place, key, path)
        found[place] = Opening(*place, wanted[place].attempt, key)
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise FieldError(f"the key of {_named(missing[0])} was drawn, but is not opened")
    return tuple(found[place] for place in sorted(found))


def read_salts(raw: bytes, drawn: Sequence[Participation]) -> dict[int, bytes]:
    """What hides each drawn client's data in its commitment, 32 bytes, by client.

    Raises:
        UntrustedError: the file is malformed, or lacks one.
    """
    wanted = {one.client for one in drawn}
    found = {}
    for entry in fields.sequence(parse_json(raw), "salts", most=len(wanted) + 1):
        client = fields.integer(entry, "client")
        if client not in wanted or client in found:
            raise FieldError(
                f"the data salt of client {client} was not requested, or is given twice"
            )
        found[client] = bytes.fromhex(fields.text(entry, "salt", pattern=_HEX))
    if wanted - found.keys():
        raise FieldError(f"the data salt of client {min(wanted - found.keys())} is not opened")
    return found


def data_commitment(salt: bytes, client: int, digest: bytes) -> str:
    """The commitment (sha256 hex) to a client's records, of which `digest` is the digest."""
    return hashlib.sha256(_DATA + salt + numbers(client) + digest).hexdigest()


def stream_key(opening: Opening, coin: Coin, purpose: str, history: bytes) -> bytes:
    """The AES-256 key of one stream of an opened participation, 32 bytes.

    Args:
        opening: the leaf key, with its round, client and attempt.
        coin: nonce and identifier of the run.
        purpose: "noise", "batches", "views", "upload noise"; of the server "clients" and "release
            noise".
        history: what the ledger had charged when the stream was opened (`histories`).
    """
    texts = [text.encode() for text in (coin.run, purpose)]
    named = b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    place = numbers(opening.round, opening.client, opening.attempt)
    extracted = hmac.digest(coin.nonce or bytes(32), opening.key, "sha256")
    return hmac.digest(extracted, _STREAM + named + place + history + b"\x01", "sha256")


@dataclass(frozen=True)
class Histories:
    """What the ledger had charged before and after each round's charge, by (round, attempt).

    Attributes:
        before: what the draw of the cohort is bound to.
        after: what the noise, the batches and the views of the round are bound to.
    """

    before: Mapping[tuple[int, int], bytes]
    after: Mapping[tuple[int, int], bytes]


def histories(raw: bytes) -> Histories:
    """Follow a ledger's charges and exchanges from its first line to its last.

    Args:
        raw: the ledger's bytes, of which `read_ledger` found no fault.

    Raises:
        UntrustedError: a line is malformed.
    """
    history, whole_rounds = NO_HISTORY, False
    before: dict[tuple[int, int], bytes] = {}
    after: dict[tuple[int, int], bytes] = {}
    attempts: dict[int, int] = {}
    for line in raw.splitlines():
        entry: dict[str, Any] = parse_json(line)
        kind = fields.text(entry, "kind")
        if kind not in ("spend", "round"):
            continue
        index = fields.integer(entry, "round")
        earlier = history
        history = _extended(history, kind, entry)
        if kind == "spend":
            whole_rounds = whole_rounds or entry.get("unit") == "client"
            attempts[index] = fields.integer(entry, "attempt")
            before.setdefault((index, attempts[index]), earlier)
            after[index, attempts[index]] = history
        elif not whole_rounds and not fields.integers(entry, "clients"):
            # Nobody was drawn for it, and so nobody was charged.
            place = index, 1 + attempts.get(index, 0)
            before[place] = after[place] = earlier
    return Histories(before, after)


def _extended(history: bytes, kind: str, entry: Mapping[str, Any]) -> bytes:
    names = entry.keys() - {"previous", "digest"} if kind == "spend" else _EXCHANGED
    counted = {name: entry[name] for name in names if name in entry}
    return hashlib.sha256(history + canonical_json(counted)).digest()


def _check(tree: Tree, place: tuple[int, int], key: bytes, path: Sequence[bytes]) -> None:
    """Follow a leaf's path to the root."""
    round, client = place
    leaves = tree.rounds * (tree.clients + 1)
    if round >= tree.rounds or client >= tree.clients:
        raise FieldError(f"{_named(place)}: the intent has no such key")
    number = round * (tree.clients + 1) + client + 1
    leaf = leaf_digest(_LEAF + numbers(round, client) + key)
    fits = len(path) == path_length(number, leaves)
    if not fits or root_above(leaf, number, leaves, path).hex() != tree.root:
        raise FieldError(
            f"the key opened for {_named(place)} is not the one that the intent committed to"
        )


def _named(place: tuple[int, int]) -> str:
    round, client = place
    who = "the server" if client == SERVER else f"client {client}"
    return f"round {round}, {who}"


def _digest(value: Any) -> str:
    return fields.text({"an entry of path": value}, "an entry of path", pattern=_HEX)
