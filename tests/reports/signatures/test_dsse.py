"""Envelopes and statements: what is none is refused, with the part that is wrong."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from reports.errors import EnvelopeError
from reports.signatures import challenges, dsse, statements
from reports.signatures.dsse import (
    PAYLOAD_TYPE,
    RUN_TYPE,
    SALTED,
    SHA256,
    STATEMENT_TYPE,
    Envelope,
    Statement,
    check_signature,
    parse_document,
    parse_envelope,
    parse_signed,
    parse_statement,
    pre_authentication_encoding,
    seal,
    write_envelope,
    write_statement,
)
from reports.signatures.keys import fingerprint

KEY = ec.generate_private_key(ec.SECP256R1())
SEALED = seal(b"payload", KEY)


def envelope(**changes: Any) -> dict[str, Any]:
    return {**json.loads(SEALED), **changes}


def test_what_is_signed_has_type_and_payload_with_their_lengths() -> None:
    # The example of the DSSE specification, v1.0.0.
    encoded = pre_authentication_encoding(b"hello world", "http://example.com/HelloWorld")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    kind = len(PAYLOAD_TYPE)
    assert pre_authentication_encoding(b"x") == f"DSSEv1 {kind} {PAYLOAD_TYPE} 1 x".encode()


def test_an_envelope_is_read_as_it_was_sealed() -> None:
    found = parse_envelope(SEALED, "file")
    assert (found.payload, found.keyid) == (b"payload", fingerprint(KEY.public_key()))
    check_signature(found, KEY.public_key(), "file")
    other = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(EnvelopeError, match=r"^file: "):
        check_signature(found, other.public_key(), "file")


ONE = envelope()["signatures"][0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"payloadType": "text/plain"}, f"file: payloadType must be {PAYLOAD_TYPE}"),
        ({"signatures": []}, "file: exactly one signature is needed, found 0"),
        ({"signatures": [ONE, ONE]}, "file: exactly one signature is needed, found 2"),
        ({"signatures": [{**ONE, "sig": None}]}, "file: sig must be base64 text"),
        ({"signatures": [{**ONE, "sig": ""}]}, "file: sig must be base64 text"),
        ({"signatures": [{**ONE, "sig": "AAA"}]}, "file: sig is not valid base64"),
        ({"payload": 3}, "file: payload must be base64 text"),
        ({"payload": "§§§§"}, "file: payload is not valid base64"),
        ({"payload": "A A="}, "file: payload is not valid base64"),
        # A reader that is less strict stops at the first sign of an end.
        ({"payload": "AA==AA=="}, "file: payload is not valid base64"),
    ],
)
def test_what_is_no_envelope_is_refused_with_what_is_wrong(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(EnvelopeError) as caught:
        parse_signed(envelope(**changes), "file")
    assert str(caught.value) == said


def test_an_envelope_is_laid_out_in_one_way_alone() -> None:
    with pytest.raises(EnvelopeError, match="file: is not laid out as envelopes are"):
        parse_envelope(json.dumps(envelope()).encode(), "file")
    with pytest.raises(EnvelopeError, match="file: is not laid out as envelopes are"):
        parse_envelope(SEALED + b"\n", "file")


def test_what_is_no_json_or_no_object_is_no_document() -> None:
    assert parse_document(b"[1]", "file") == {}
    with pytest.raises(EnvelopeError, match="file"):
        parse_document(b"{", "file")


def test_a_signature_in_the_other_form_is_refused_where_it_is_checked() -> None:
    whole = base64.b64decode(ONE["sig"])
    changed = whole[:-1] + bytes([whole[-1] ^ 1])
    document = envelope(signatures=[{**ONE, "sig": base64.b64encode(changed).decode()}])
    with pytest.raises(EnvelopeError, match="file"):
        check_signature(parse_signed(document, "file"), KEY.public_key(), "file")


SAID = Statement(
    {"b.json": (SHA256, "ab" * 32), "evidence": (SALTED, "cd" * 32)},
    RUN_TYPE,
    {"run": "a-run", "claims": {"of": "Zürich"}},
)


def test_a_statement_is_laid_out_as_the_commands_of_verify_md_read_it() -> None:
    assert write_statement(SAID).decode() == (
        '{\n"_type": "https://in-toto.io/Statement/v1",\n"subject": [\n'
        '{"name": "b.json", "digest": {"sha256": "' + "ab" * 32 + '"}},\n'
        '{"name": "evidence", "digest": {"hmacSha256": "' + "cd" * 32 + '"}}\n],\n'
        f'"predicateType": "{RUN_TYPE}",\n"predicate": {{\n'
        '  "claims": {\n    "of": "Zürich"\n  },\n  "run": "a-run"\n}\n}\n'
    )
    assert parse_statement(write_statement(SAID), RUN_TYPE, "file") == SAID
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_statement(Statement(SAID.subjects, RUN_TYPE, {"epsilon": float("nan")}))


ONE_SUBJECT = {"name": "b.json", "digest": {"sha256": "ab" * 32}}
LACKS = "file: a subject lacks a name or one known digest"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_type": "another"}, f"file: _type must be {STATEMENT_TYPE}"),
        ({"predicateType": "another"}, f"file: predicateType must be {RUN_TYPE}"),
        ({"predicateType": None}, f"file: predicateType must be {RUN_TYPE}"),
        ({"subject": []}, "file: it covers no file"),
        ({"subject": None}, "file: it covers no file"),
        ({"subject": [ONE_SUBJECT, ONE_SUBJECT]}, "file: the subject b.json appears twice"),
        ({"subject": [{**ONE_SUBJECT, "name": 7}]}, LACKS),
        ({"subject": [{"name": "b.json"}]}, LACKS),
        ({"subject": [{"name": "b.json", "digest": {"md5": "ab" * 32}}]}, LACKS),
        ({"subject": [{"name": "b.json", "digest": {"sha256": 7}}]}, LACKS),
        ({"subject": [{"name": "b.json", "digest": {"sha256": "AB" * 32}}]}, LACKS),
        ({"subject": [{"name": "b.json", "digest": {"sha256": "ab" * 31}}]}, LACKS),
        (
            {"subject": [{"name": "b", "digest": {"sha256": "ab" * 32, "hmacSha256": "ab" * 32}}]},
            LACKS,
        ),
    ],
)
def test_what_is_no_statement_is_refused_with_what_is_wrong(
    changes: dict[str, Any], said: str
) -> None:
    document = {**json.loads(write_statement(SAID)), **changes}
    with pytest.raises(EnvelopeError) as caught:
        parse_statement(json.dumps(document).encode(), RUN_TYPE, "file")
    assert str(caught.value) == said


def test_a_statement_names_no_more_files_than_a_reader_looks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dsse, "MOST_SUBJECTS", 2)
    names = ("a", "b", "c")
    fits, many = (
        write_statement(Statement(dict.fromkeys(names[:count], (SHA256, "0" * 64)), RUN_TYPE, {}))
        for count in (2, 3)
    )
    assert list(parse_statement(fits, RUN_TYPE, "file").subjects) == ["a", "b"]
    with pytest.raises(EnvelopeError, match="file: names more than 2 files"):
        parse_statement(many, RUN_TYPE, "file")


def test_a_statement_of_the_form_before_numbers_is_read_and_has_none() -> None:
    earlier = "https://dpfedadamw.org/attestation/run/v1"
    data = write_statement(Statement(SAID.subjects, earlier, SAID.predicate))
    assert SAID.is_numbered
    assert not parse_statement(data, RUN_TYPE, "file").is_numbered
    trained = "https://dpfedadamw.org/attestation/training/v1"
    data = write_statement(Statement(SAID.subjects, trained, SAID.predicate))
    assert not parse_statement(data, dsse.TRAINING_TYPE, "file").is_numbered
    # Of the others there was none before.
    with pytest.raises(EnvelopeError, match="predicateType must be"):
        parse_statement(data, dsse.PUBLIC_TYPE, "file")


@pytest.mark.parametrize(
    "kind",
    [
        "training:v2", "run:v2", "public:v1", "comparison:v1", "key-rotation:v1",
        "key-revocation:v1", "intent:v1", "challenge:v1", "draw:v1",
    ],
)  # fmt: skip
def test_each_type_is_read_under_the_address_that_was_its_name(kind: str) -> None:
    today = f"urn:dpfedadamw:attestation:{kind}"
    before = f"https://dpfedadamw.org/attestation/{kind.replace(':', '/')}"
    for name in (today, before):
        data = write_statement(Statement(SAID.subjects, name, SAID.predicate))
        found = parse_statement(data, today, "file")
        assert found.predicate_type == name
        assert found.is_numbered
    # No number of a version is made up for either.
    for name in (f"{today[:-1]}9", f"{before[:-1]}9", today.replace("dpfedadamw", "another")):
        data = write_statement(Statement(SAID.subjects, name, SAID.predicate))
        with pytest.raises(EnvelopeError, match=f"predicateType must be {today}"):
            parse_statement(data, today, "file")


def test_what_an_earlier_version_signed_is_still_read() -> None:
    """Written and signed by the version before URNs, not by this one."""
    text = (Path(__file__).parent / "earlier_names.json").read_text("utf-8")
    signed = {name: one.encode() for name, one in json.loads(text).items()}
    for data in signed.values():
        assert b"https://dpfedadamw.org/attestation/" in parse_envelope(data, "it").payload
    assert challenges.read_challenge(signed["challenge"], "it").intent.promised.run == "a-run"
    assert challenges.read_draw(signed["draw"], "it").participations == 3
    assert statements.read_revocation(signed["revocation"], "it").reason == "superseded"


def test_the_names_of_the_two_standards_are_theirs() -> None:
    assert PAYLOAD_TYPE == "application/vnd.in-toto+json"
    assert STATEMENT_TYPE == "https://in-toto.io/Statement/v1"


def test_only_the_lower_form_of_a_signature_is_taken() -> None:
    found = parse_envelope(SEALED, "file")
    dsse.refuse_high_s(found, "file")
    r, s = decode_dss_signature(found.signature)
    high = encode_dss_signature(r, ec.SECP256R1().group_order - s)
    with pytest.raises(EnvelopeError, match="file: the signature was rewritten"):
        dsse.refuse_high_s(dataclasses.replace(found, signature=high), "file")


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (dsse.TRAINING_TYPE, "training-attestation"),
        (dsse.RUN_TYPE, "run-attestation"),
        (dsse.PUBLIC_TYPE, "public-attestation"),
        (dsse.COMPARISON_TYPE, "comparison-attestation"),
        (statements.ROTATION_TYPE, "key-rotation"),
        (statements.REVOCATION_TYPE, "key-revocation"),
        (challenges.INTENT_TYPE, "intent"),
        (challenges.CHALLENGE_TYPE, "challenge"),
        (challenges.DRAW_TYPE, "draw"),
    ],
)
def test_each_type_of_statement_has_the_name_under_which_its_schema_was_published(
    kind: str, schema: str
) -> None:
    folder = resources.files("reports") / "schema"
    assert json.loads((folder / f"{schema}.schema.json").read_bytes())["$id"] == kind


NAME, KIND = "audit.attestation.json", "https://example.org/kind/v2"
MOST = 2**53 - 1


def statement(**predicate: Any) -> dict[str, Any]:
    return {
        "_type": STATEMENT_TYPE,
        "predicateType": KIND,
        "subject": [{"name": "spec.yaml", "digest": {"sha256": "ab" * 32}}],
        "predicate": {"run": "a-run", **predicate},
    }


def write(run: Path, content: dict[str, Any]) -> bytes:
    """Lay an envelope into the run; whether its signature holds is not asked here."""
    raw = write_envelope(Envelope(json.dumps(content).encode(), "ab" * 32, bytes(70)))
    (run / NAME).write_bytes(raw)
    return raw


def test_the_first_signature_is_number_one_and_supersedes_none(tmp_path: Path) -> None:
    first = {"sequence": 1, "supersedes": None}
    assert dsse.numbered_entry(tmp_path, NAME, KIND, "a-run") == first
    # One that was copied from another run is none of this run's.
    write(tmp_path, statement(sequence=5))
    assert dsse.numbered_entry(tmp_path, NAME, KIND, "another-run") == first


@pytest.mark.parametrize(("before", "after"), [(1, 2), (5, 6), (MOST - 1, MOST)])
def test_a_further_signature_counts_on_and_names_what_it_supersedes(
    tmp_path: Path, before: int, after: int
) -> None:
    raw = write(tmp_path, statement(sequence=before))
    assert dsse.numbered_entry(tmp_path, NAME, KIND, "a-run") == {
        "sequence": after,
        "supersedes": hashlib.sha256(raw).hexdigest(),
    }


def test_after_the_last_number_there_is_none(tmp_path: Path) -> None:
    write(tmp_path, statement(sequence=MOST))
    with pytest.raises(EnvelopeError, match="no number is left for another signature"):
        dsse.numbered_entry(tmp_path, NAME, KIND, "a-run")


@pytest.mark.parametrize("number", [0, -1, MOST + 1, "1", None, True, 1.0])
def test_a_number_out_of_range_leaves_what_follows_unknown(tmp_path: Path, number: Any) -> None:
    write(tmp_path, statement(sequence=number))
    with pytest.raises(EnvelopeError, match="its sequence number must be from 1 to") as refused:
        dsse.numbered_entry(tmp_path, NAME, KIND, "a-run")
    assert "what a new signature supersedes is unknown" in str(refused.value)


def test_a_signature_after_one_of_the_form_before_numbers_is_the_second(tmp_path: Path) -> None:
    earlier = "https://dpfedadamw.org/attestation/run/v1"
    raw = write(tmp_path, statement() | {"predicateType": earlier})
    assert dsse.sequence_number(Statement({}, earlier, {}), "it") == 0
    assert dsse.numbered_entry(tmp_path, NAME, RUN_TYPE, "a-run") == {
        "sequence": 2,
        "supersedes": hashlib.sha256(raw).hexdigest(),
    }
