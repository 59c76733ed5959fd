"""Intent, challenge and draw: each holds as it was signed, and in no other form."""

from __future__ import annotations

import base64
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

import reports
from reports.errors import EnvelopeError
from reports.signatures import challenges, inventory
from reports.signatures.challenges import (
    CLOCKS,
    Promised,
    Seen,
    read_challenge,
    read_draw,
    read_intent,
    write_challenge,
    write_draw,
    write_intent,
)
from reports.signatures.dsse import parse_envelope, seal, write_envelope
from reports.signatures.keyring import SigningKey
from tests.reports.signing_keys import fresh

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
PROMISED = Promised(
    run="small-20261122T120000Z-0a1b2c3d",
    spec_sha256="ab" * 32,
    root="cd" * 32,
    rounds=3,
    clients=2,
    data=("01" * 32, "02" * 32),
    handle="ef" * 32,
)
SEEN = Seen(of_trainer=4, for_data=3, dropped=2, dropped_of_trainer=2)
NONCE, SCHEMAS = bytes(range(32)), Path(reports.__file__).parent / "schema"


@pytest.fixture(scope="module")
def trainer() -> SigningKey:
    return fresh("trainer")


@pytest.fixture(scope="module")
def auditor() -> SigningKey:
    return fresh("auditor")


@pytest.fixture(scope="module")
def intent(trainer) -> bytes:
    return write_intent(PROMISED, trainer, "0.1.0", NOON)


@pytest.fixture(scope="module")
def challenge(intent, auditor) -> bytes:
    read = read_intent(intent, "intent.json")
    return write_challenge(read, NONCE, SEEN, auditor, NOON, b"a stamp", b"a proof")


@pytest.fixture(scope="module")
def drawn(auditor) -> bytes:
    return write_draw(PROMISED.run, NONCE, 7, "12" * 32, "34" * 32, auditor, NOON)


def again(envelope: bytes, key: SigningKey, change) -> bytes:
    """The same statement, changed and signed anew."""
    statement = json.loads(parse_envelope(envelope, "it").payload)
    change(statement)
    return seal((json.dumps(statement) + "\n").encode(), key.private)


def test_what_was_signed_is_read(intent, challenge, drawn, trainer, auditor):
    announced = read_intent(intent, "intent.json")
    assert announced.promised == PROMISED
    assert announced.fingerprint == trainer.fingerprint
    assert announced.created == NOON
    answered = read_challenge(challenge, "challenge.json")
    assert answered.intent == announced
    assert (answered.nonce, answered.seen) == (NONCE, SEEN)
    assert (answered.intent_timestamp, answered.intent_inclusion) == (b"a stamp", b"a proof")
    assert answered.fingerprint == auditor.fingerprint
    chosen = read_draw(drawn, "draw.json")
    assert (chosen.run, chosen.nonce, chosen.participations) == (PROMISED.run, NONCE, 7)
    assert (chosen.ledger_sha256, chosen.attestation_sha256) == ("12" * 32, "34" * 32)


def test_an_intent_tells_neither_key_nor_data(intent):
    said = json.loads(parse_envelope(intent, "it").payload)["predicate"]
    assert set(said) == {"run", "package", "keys", "data", "role", "created", "public_key"}
    assert set(said["keys"]) == {"root", "rounds", "clients"}
    assert set(said["data"]) == {"handle", "clients"}


@pytest.mark.parametrize("name", ["intent", "challenge", "drawn"])
def test_each_is_as_its_schema_says(name, request):
    said = json.loads(parse_envelope(request.getfixturevalue(name), "it").payload)
    kind = said["predicateType"].split(":")[-2]
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_bytes())
    assert schema["$id"] == said["predicateType"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(said, schema)
    del said["predicate"]["run"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(said, schema)


def test_none_is_read_as_another(intent, challenge, drawn):
    for data, read in (
        (intent, read_challenge), (intent, read_draw), (challenge, read_intent),
        (challenge, read_draw), (drawn, read_intent), (drawn, read_challenge),
    ):  # fmt: skip
        with pytest.raises(EnvelopeError, match="predicateType"):
            read(data, "it")


@pytest.mark.parametrize("name", ["intent", "challenge", "drawn"])
def test_a_changed_byte_is_noticed(name, request):
    data = request.getfixturevalue(name)
    read = {"intent": read_intent, "challenge": read_challenge, "drawn": read_draw}[name]
    for place in range(0, len(data), 97):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(EnvelopeError):
            read(changed, "it")


def test_another_signer_than_it_names_is_refused(intent, challenge, drawn):
    other = fresh("auditor")
    for data, read in ((intent, read_intent), (challenge, read_challenge), (drawn, read_draw)):
        with pytest.raises(EnvelopeError, match="signature is not by the key"):
            read(again(data, other, lambda _: None), "it")


def test_each_is_signed_in_the_role_that_it_needs(intent, auditor, trainer):
    wrong = dataclasses.replace(trainer, role="auditor")
    with pytest.raises(EnvelopeError, match="in the role of the trainer"):
        read_intent(write_intent(PROMISED, wrong, "0.1.0", NOON), "it")
    read = read_intent(intent, "it")
    with pytest.raises(EnvelopeError, match="in the role of the auditor"):
        read_challenge(write_challenge(read, NONCE, SEEN, trainer, NOON), "it")


@pytest.mark.parametrize("name", ["rounds", "clients"])
def test_an_intent_is_of_a_million_rounds_and_clients_at_most(intent, trainer, name):
    def of(number):
        def change(statement):
            statement["predicate"]["keys"][name] = number

        return again(intent, trainer, change)

    if name == "rounds":
        assert read_intent(of(1_000_000), "it").promised.rounds == 1_000_000
    for number in (0, 1_000_001):
        with pytest.raises(
            EnvelopeError, match=f"it: {name} is not a whole number from 1 to 1000000"
        ):
            read_intent(of(number), "it")


def test_an_intent_has_one_commitment_a_client(intent, trainer):
    def fewer(statement):
        statement["predicate"]["data"]["clients"].pop()

    with pytest.raises(EnvelopeError, match="it: data does not have one commitment a client"):
        read_intent(again(intent, trainer, fewer), "it")


def test_an_intent_dated_after_the_challenge_is_refused(trainer, auditor):
    assert timedelta(minutes=5) == CLOCKS
    for late, fits in ((CLOCKS, True), (CLOCKS + timedelta(seconds=1), False)):
        intent = read_intent(write_intent(PROMISED, trainer, "0.1.0", NOON + late), "it")
        data = write_challenge(intent, NONCE, SEEN, auditor, NOON)
        if fits:
            assert read_challenge(data, "it").intent == intent
        else:
            with pytest.raises(EnvelopeError, match="an intent comes before the nonce"):
                read_challenge(data, "it")


def test_a_challenge_carries_the_intent_that_it_answers(challenge, auditor, trainer):
    other = write_intent(dataclasses.replace(PROMISED, root="00" * 32), trainer, "0.1.0", NOON)

    def exchanged(statement):
        statement["predicate"]["intent"] = base64.b64encode(other).decode()

    with pytest.raises(EnvelopeError, match="answers another intent"):
        read_challenge(again(challenge, auditor, exchanged), "it")


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("intent", ("run",), "../elsewhere"),
        ("intent", ("keys", "root"), "AB" * 32),
        ("intent", ("keys", "clients"), 3),
        ("intent", ("keys", "rounds"), 0),
        ("intent", ("data", "clients"), ["01" * 32, 5]),
        ("intent", ("data", "clients"), ["01" * 32, "a client's name"]),
        ("intent", ("data", "handle"), "a hospital's name"),
        ("intent", ("created",), "yesterday"),
        ("intent", ("public_key",), "none"),
        ("challenge", ("nonce",), "00"),
        ("challenge", ("intents", "dropped"), -1),
        ("challenge", ("intent",), "!"),
        ("challenge", ("trainer",), "SHA256:other"),
        ("drawn", ("participations",), 0),
        ("drawn", ("nonce",), None),
        ("drawn", ("nonce",), "00"),
        ("drawn", ("run",), "../elsewhere"),
    ],
)
def test_a_field_that_makes_no_sense_is_one_sentence(name, path, value, request):
    data = request.getfixturevalue(name)
    key = request.getfixturevalue("trainer" if name == "intent" else "auditor")
    read = {"intent": read_intent, "challenge": read_challenge, "drawn": read_draw}[name]

    def change(statement):
        place = statement["predicate"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    with pytest.raises(EnvelopeError, match=r"^it: ") as error:
        read(again(data, key, change), "it")
    assert "\n" not in str(error.value)


def test_a_challenge_says_nothing_of_a_timestamp_that_there_was_not(intent, auditor):
    data = write_challenge(read_intent(intent, "it"), NONCE, SEEN, auditor, NOON)
    read = read_challenge(data, "it")
    assert (read.intent_timestamp, read.intent_inclusion) == (None, None)


def test_the_intent_of_a_large_federation_fits_into_a_challenge(trainer, auditor):
    many = dataclasses.replace(PROMISED, clients=300, data=("01" * 32,) * 300)
    intent = read_intent(write_intent(many, trainer, "0.1.0", NOON), "it")
    data = write_challenge(intent, NONCE, SEEN, auditor, NOON)
    assert read_challenge(data, "it").intent == intent


@pytest.mark.parametrize("value", ["AAA", "AA==AA=="])
@pytest.mark.parametrize("name", ["intent", "intent_timestamp", "intent_inclusion"])
def test_what_a_challenge_carries_is_written_in_one_way_alone(name, value, challenge, auditor):
    def change(statement):
        statement["predicate"][name] = value

    with pytest.raises(EnvelopeError, match=f"it: {name} is not valid base64"):
        read_challenge(again(challenge, auditor, change), "it")


def test_a_draw_of_one_participation_is_one(auditor):
    data = write_draw(PROMISED.run, NONCE, 1, "12" * 32, "34" * 32, auditor, NOON)
    assert read_draw(data, "it").participations == 1


@pytest.mark.parametrize(
    ("name", "subject"),
    [("intent", "spec.yaml"), ("challenge", "intent.json"), ("drawn", "ledger.jsonl"),
     ("drawn", "training.attestation.json")],
)  # fmt: skip
@pytest.mark.parametrize("change", ["another name", "a salted digest"])
def test_each_names_by_its_digest_what_it_is_about(name, subject, change, request):
    key = request.getfixturevalue("trainer" if name == "intent" else "auditor")
    read = {"intent": read_intent, "challenge": read_challenge, "drawn": read_draw}[name]

    def apply(statement):
        (entry,) = [one for one in statement["subject"] if one["name"] == subject]
        if change == "another name":
            entry["name"] = "elsewhere"
        else:
            entry["digest"] = {"hmacSha256": entry["digest"]["sha256"]}

    with pytest.raises(EnvelopeError, match=f"it: does not name {subject}"):
        read(again(request.getfixturevalue(name), key, apply), "it")


@pytest.mark.parametrize("name", ["intent", "challenge", "drawn"])
def test_a_signature_in_its_other_form_is_refused(name, request):
    order = ec.SECP256R1().group_order
    envelope = parse_envelope(request.getfixturevalue(name), "it")
    r, s = decode_dss_signature(envelope.signature)
    other = dataclasses.replace(envelope, signature=encode_dss_signature(r, order - s))
    read = {"intent": read_intent, "challenge": read_challenge, "drawn": read_draw}[name]
    with pytest.raises(EnvelopeError, match="it: the signature was rewritten"):
        read(write_envelope(other), "it")


def test_the_header_of_a_ledger_names_intent_and_challenge(challenge):
    read = read_challenge(challenge, "it")
    assert read.header() == {
        "run": PROMISED.run,
        "intent_sha256": read.intent.sha256,
        "challenge_sha256": read.sha256,
        "nonce": NONCE.hex(),
        "root": PROMISED.root,
        "challenger": read.fingerprint,
        "intents": dataclasses.asdict(SEEN),
    }
    assert challenges.now().tzinfo is UTC


def test_files_sizes_and_times_are_as_the_documents_say():
    assert (inventory.INTENT, inventory.CHALLENGE, inventory.DRAW) == (
        "intent.json", "challenge.json", "draw.json",
    )  # fmt: skip
    assert challenges.NONCE_BYTES == 32
    assert challenges.MOST_BYTES == 16_777_216
    assert challenges.now().microsecond == 0
