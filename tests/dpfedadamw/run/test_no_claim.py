"""A run without privacy claims none in any of its artefacts, and says so in each."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
from pathlib import Path

import pytest

import dpfedadamw
from dpfedadamw.cli import terminal
from tests.runs import NOT_PRIVATE, SMALL, call

SAID = "no differential privacy"
# Comparing is an extension, which may have been removed.
COMPARES = all(
    (Path(dpfedadamw.__file__).parents[1] / package / "extensions" / "comparison").is_dir()
    for package in ("dpfedadamw", "reports")
)
CLAIM = re.compile(
    r"epsilon|differentially private|(?<!no )differential privacy|ε =", re.IGNORECASE
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[Path, str]:
    """A finished run without privacy, both its reports written, and what was printed."""
    parent = tmp_path_factory.mktemp("plain")
    spec = parent / "plain.yaml"
    spec.write_text(
        SMALL.format(
            algorithm="fedadamw",
            rounds=2,
            clients_per_round=4,
            privacy=NOT_PRIVATE,
            mode="reproducible",
            seed=", seed: 1",
        )
    )
    run = parent / "runs" / "latest"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(terminal.out, "_file", printed)
        assert call("run", str(spec), "--out", str(parent / "runs")) == 0
        assert call("report", str(run), "--audience", "public") == 0
        for command in ("audit", "verify", *(["compare"] if COMPARES else [])):
            assert call(command, str(run)) == 0
    return run.resolve(), printed.getvalue()


def text_of(run: Path, name: str) -> str:
    """An artefact's text; of a signed envelope, what was signed."""
    text = (run / name).read_text("utf-8")
    if name.endswith("attestation.json"):
        return base64.b64decode(json.loads(text)["payload"]).decode()
    return text


def without_empty(value):
    """The JSON value without fields that hold nothing: "epsilon": null is no claim."""
    if isinstance(value, dict):
        kept = {key: without_empty(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in (None, [], {}, "")}
    if isinstance(value, list):
        return [without_empty(inner) for inner in value]
    return value


@pytest.mark.parametrize(
    "name",
    [
        "ledger.jsonl",
        "model.json",
        "audit.json",
        "report.json",
        "report-public.json",
        "training.attestation.json",
        "attestation.json",
    ],
)
def test_every_artefact_says_that_there_is_no_privacy(plain, name):
    assert SAID in text_of(plain[0], name).lower()


@pytest.mark.parametrize("stem", ["report", "report-public"])
def test_the_reports_guarantee_nothing(plain, stem):
    report = json.loads((plain[0] / f"{stem}.json").read_text())
    assert SAID in report["guarantee"]["statement"]
    assert report["guarantee"]["epsilon"] is report["guarantee"]["delta"] is None
    assert report["accounting"]["views"] == report["accounting"]["closed_forms"] == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.json", "ledger.jsonl"])
def test_no_line_of_the_run_names_a_loss(plain, name):
    for line in text_of(plain[0], name).replace("\n  ", " ").splitlines():
        assert not CLAIM.search(line)


@pytest.mark.parametrize("name", ["training.attestation.json", "attestation.json"])
def test_nothing_signed_claims_anything(plain, name):
    claims = json.loads(text_of(plain[0], name))["predicate"]["claims"]
    assert claims == {"unit": "none", "statement": SAID, "views": []}


@pytest.mark.parametrize("name", ["report.json", "report-public.json"])
def test_no_report_states_a_number_for_privacy(plain, name):
    """Settings of the optimiser may be called epsilon: those of the algorithm are left out."""
    report = json.loads(text_of(plain[0], name))
    report["mechanism"].pop("settings")
    for section in ("guarantee", "accounting", "mechanism", "clients", "randomness", "figures"):
        assert not CLAIM.search(json.dumps(without_empty(report[section]), ensure_ascii=False))


def test_a_known_seed_is_not_said_to_void_a_guarantee_that_is_not_there(plain):
    for name in ("model.json", "ledger.jsonl", "audit.json"):
        assert "seed" not in json.dumps(_qualifications(plain[0], name))


def _qualifications(run: Path, name: str) -> list[str]:
    return json.loads(text_of(run, name).splitlines()[0] if name.endswith("l") else text_of(
        run, name
    ))["qualifications"]  # fmt: skip


def test_what_is_printed_says_it_and_names_no_loss(plain):
    printed = " ".join(plain[1].split())
    # run, audit, verify and compare each.
    assert printed.lower().count(SAID) >= (4 if COMPARES else 3)
    without_legend = re.sub(r"ε agrees within 1 % in a group and is rounded up\.", "", printed)
    assert "ε" not in without_legend
