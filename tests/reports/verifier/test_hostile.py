"""What a hostile folder holds is read to its end: each gets its lines, soon, and none a crash."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from reports.signatures import signing
from reports.signatures.dsse import PAYLOAD_TYPE
from reports.signatures.verification import verify
from tests.audit.synthetic_run import chain
from tests.conformance.test_conformance import second
from tests.reports.signing_keys import fresh
from tests.runs import PRIVATE, SMALL

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None, reason="the second verifier needs Node"
)
DIGEST = "ab" * 32


@pytest.fixture
def run(run_builder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A signed run."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "a stranger's keys"))
    path: Path = run_builder(tmp_path / "run", rounds=2, clients=2)
    signing.sign(path, trainer=fresh("trainer"), auditor=fresh("auditor"))
    return path


def _lines(folder: Path) -> list[dict[str, Any]]:
    told = second("folders", [str(folder)])[str(folder)]
    assert (told["outcome"], told["level"]) == ("NOT VALID", None)
    lines: list[dict[str, Any]] = told["lines"]
    return lines


def test_a_header_of_more_clients_than_a_call_has_arguments_is_held_to_its_spec() -> None:
    records = [40] * 130_000
    header = {
        "kind": "header", "format": 1, "run": "a-run", "spec_sha256": DIGEST, "unit": "record",
        "clients": len(records), "clients_per_round": 4, "records": records, "parameters": 7,
        "randomness": "release", "client_sampling": "fixed-size", "sampling": "poisson",
        "adjacency": "add-remove", "delta": 0.5, "clipping_norm": 1.0, "noise_multiplier": 2.0,
        "expected_batch_size": 20.0, "rounds": 1, "local_steps": 4,
    }  # fmt: skip
    ledger = chain([header, {"kind": "claim", "delta": 0.5}])
    spec = SMALL.format(
        algorithm="dp-fedavg", rounds=1, clients_per_round=4, privacy=PRIVATE, mode="release",
        seed="",
    )  # fmt: skip
    (faults,) = second("promises", [[spec, ledger.decode()]])
    assert any("records of a client" in fault for fault in faults)


@pytest.mark.thorough
def test_a_long_text_is_json_and_too_many_values_are_not() -> None:
    long = json.dumps(["a" * 20_000_000])
    assert second("canonical", [long]) == [long]
    (found,) = second("canonical", ["[" + "1," * (1 << 22) + "1]"])
    assert "has more than 4194304 values" in found["refused"]


@pytest.mark.thorough
def test_an_envelope_of_many_megabytes_is_told_from_one_that_holds(run: Path) -> None:
    payload = base64.b64encode(bytes(8_000_000)).decode()
    (run / "attestation.json").write_text(
        f'{{\n"payloadType": "{PAYLOAD_TYPE}",\n"payload": "{payload}",\n"signatures": [{{\n'
        '"keyid": "x",\n"sig": "MAYCAQECAQE="\n}]\n}\n'
    )
    (why,) = [one["what"] for one in _lines(run) if one["file"] == "attestation.json"]
    assert "the signature is not by the key" in why


def test_of_a_ledger_that_was_not_signed_no_epsilon_is_computed(run: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"noise_multiplier":', b'"noise_multiplier" :'))
    told = [one["what"] for one in _lines(run) if one["state"] == "unseen"]
    assert any(
        "ε was not recomputed: the ledger is not the one that was signed" in one for one in told
    )


def test_charges_of_very_many_kinds_are_not_composed() -> None:
    history = [{"rate": 0.1, "sigma": 1 + number / 999, "steps": 1} for number in range(402)]
    assert second("epsilons", [{"history": history, "delta": 1e-5}]) == [{"refused": ""}]


def test_a_file_larger_than_any_evidence_is_not_hashed_by_either(run: Path) -> None:
    with (run / "evidence" / "x").open("wb") as file:
        os.truncate(file.fileno(), 9 << 30)
    whys = [one["what"] for one in _lines(run) if one["file"] == "evidence/x"]
    assert any("is larger than the accepted" in why for why in whys)
    assert any("larger than the accepted" in str(one) for one in verify(run).problems)
