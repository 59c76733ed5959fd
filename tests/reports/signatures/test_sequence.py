"""The number of a signature: what is there already is superseded, and counted on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from reports.errors import EnvelopeError
from reports.signatures import dsse
from reports.signatures.dsse import RUN_TYPE, STATEMENT_TYPE, Envelope, Statement, write_envelope

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
