"""Reports on runs that protect whole clients: what they promise, to whom, what they withhold."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import reports
from audit.protection import unprotected_by
from reports import build_report, formatting, run_rows
from reports.content import parts
from reports.content.parts import AUDIENCES
from reports.content.units.client import CLIENT
from reports.content.units.record import RECORD
from reports.signatures.signing import run_predicate, training_predicate
from reports.source import load
from tests.reports.client_run import TRUSTED
from tests.reports.data import data_of, report_of

MakeRun = Any  # the builder that conftest gives
BOTH = ("server", "clients")
POPPLER = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler is not installed")


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner)]
    return [value] if isinstance(value, str) else []


def pages(path: Path) -> str:
    done = subprocess.run(["pdftotext", "-layout", str(path), "-"], capture_output=True, check=True)
    return " ".join(done.stdout.decode("utf-8").split())


@pytest.mark.parametrize("noise", BOTH)
@pytest.mark.parametrize("audience", AUDIENCES)
def test_the_third_party_leads_for_every_audience(
    make_client_run: MakeRun, noise: str, audience: str
) -> None:
    report = data_of(make_client_run(noise_added_by=noise), audience)
    guarantee = report["guarantee"]
    assert guarantee["view"] == "third_party"
    assert guarantee["unit"] == "client"
    assert guarantee["epsilon"] == 4.9673
    assert guarantee["delta_times_clients"] == pytest.approx(0.01)
    assert guarantee["delta_times_records"] is None
    for part in (
        "Against a third party",
        "ε = 4.97, δ = 0.001",
        "one client with all its records",
        "add-or-remove-one-client neighbours",
        "δ·N = 0.01 for N = 10 clients",
        "every charged round",
    ):
        assert part in guarantee["statement"]
    assert guarantee["explanation"] == CLIENT.words.explanation


@pytest.mark.parametrize("audience", AUDIENCES)
def test_a_server_that_adds_the_noise_has_no_guarantee(
    make_client_run: MakeRun, audience: str
) -> None:
    run = make_client_run()
    report = data_of(run, audience)
    assert "no guarantee against the server" in report["guarantee"]["statement"]
    view = next(v for v in report["accounting"]["views"] if v["key"] == "trusted_server")
    assert (view["epsilon"], view["method"]) == (None, "no guarantee")
    assert not any(v["key"] == "server" for v in report["accounting"]["views"])
    assert report["qualifications"] == [TRUSTED]
    assert "The server adds Gaussian noise" in report["mechanism"]["statement"]
    assert "to every coordinate of the sum" in report["mechanism"]["statement"]
    assert report["mechanism"]["noise_added_by"] == "server"
    assert report["clients"]["rows"] == []


def test_noise_of_the_clients_gives_the_server_a_loss_for_the_internal_report_alone(
    make_client_run: MakeRun,
) -> None:
    run = make_client_run(noise_added_by="clients")
    internal, public = data_of(run), data_of(run, "public")
    keys = [view["key"] for view in internal["accounting"]["views"]]
    assert keys == ["third_party", "server"]
    assert [view["key"] for view in public["accounting"]["views"]] == ["third_party"]
    assert "σC/√m" in internal["mechanism"]["statement"]
    assert len(internal["clients"]["rows"]) == 10
    assert public["clients"]["rows"] == []
    assert all(row["server"] is None for row in public["accounting"]["over_rounds"])
    assert all(row["server"] is not None for row in internal["accounting"]["over_rounds"])
    assert internal["qualifications"] == []


def test_participation_alone_never_changes_the_public_report(make_client_run: MakeRun) -> None:
    options = {"noise_added_by": "clients", "identifier": "1a2b3c4d"}
    first = make_client_run("a", **options)
    second = make_client_run("b", often=3, **options)
    metrics = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        line["bytes_up"] *= 3
    (second / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in metrics))
    for run in (first, second):
        audit = json.loads((run / "audit.json").read_text())
        audit["inputs"] = {}
        (run / "audit.json").write_text(json.dumps(audit))

    def public(run: Path) -> dict[str, Any]:
        report = data_of(run, "public")
        # The metrics' own hash differs with the metrics, which this test made say too much.
        report["identity"]["hashes"] = []
        return report

    assert public(first) == public(second)
    assert public(first)["communication"]["bytes_up"] is None
    assert data_of(first) != data_of(second)
    shown = "\n".join(strings(public(first)))
    assert not re.search(r"client\s*\d|took part \d|particip\w* \d+ times", shown, re.IGNORECASE)


def test_sampling_and_profile_are_the_third_partys(make_client_run: MakeRun) -> None:
    run = make_client_run()
    for audience in AUDIENCES:
        report = data_of(run, audience)
        assert (
            "independently with probability l = 0.5, 5 on average"
            in (report["sampling"]["statement"])
        )
        assert report["sampling"]["participation"] == 0.5
        assert len(report["accounting"]["profile"]) == 40
        assert report["accounting"]["closed_forms"] == []
        names = {figure["identifier"]: figure for figure in report["figures"]}
        assert names["privacy-profile"]["title"] == "Privacy profile against a third party"
        assert "epsilon-per-client" not in names
        assert "against the server" not in names["epsilon-over-rounds"]["alternative_text"]
        for name in names:
            assert parts.draw(report_of(report), name).startswith(b"<?xml")


def test_the_clients_figure_is_over_rounds_taken_part_in(make_client_run: MakeRun) -> None:
    report = data_of(make_client_run(noise_added_by="clients"))
    figure = next(f for f in report["figures"] if f["identifier"] == "epsilon-per-client")
    assert "against the server" in figure["title"]
    assert b"rounds that the client took part in" in parts.draw(
        report_of(report), "epsilon-per-client"
    )


def test_each_unit_has_its_own_words(make_client_run: MakeRun) -> None:
    report = data_of(make_client_run())
    hazards = [entry["title"] for entry in report["hazards"]]
    assert "The unit is one client" in hazards
    assert "The unit is one record" not in hazards
    meanings = {check["name"]: check["meaning"] for check in report["audit"]["checks"]}
    assert meanings["participation"] == CLIENT.words.meanings["participation"]
    assert "one client" in meanings["sensitivity"]
    assert meanings["participation"] != RECORD.words.meanings["participation"]
    assert "coordinates" not in RECORD.words.meanings


@pytest.mark.parametrize("noise", BOTH)
def test_attestations_claim_the_third_partys_view_and_fit_their_schemas(
    make_client_run: MakeRun, noise: str
) -> None:
    run = make_client_run(noise_added_by=noise)
    folder = Path(reports.__file__).parent / "schema"
    source = load(run)
    for name, predicate in (
        ("training", training_predicate(source)),
        ("run", run_predicate(source)),
    ):
        # Which of the run's signatures it is, signing adds.
        predicate |= {"sequence": 1, "supersedes": None}
        schema = json.loads((folder / f"{name}-attestation.schema.json").read_text("utf-8"))
        claims = {"$defs": schema["$defs"], **schema["properties"]["predicate"]}
        jsonschema.validate(predicate, claims)
        views = {view["key"]: view for view in predicate["claims"]["views"]}
        assert views["third_party"]["epsilon"] == 4.9673
        assert set(views) == ({"third_party", "trusted_server"} if noise == "server" else
                              {"third_party"})  # fmt: skip
        said = "no guarantee against the server" in predicate["claims"]["statement"]
        assert said is (noise == "server")
        for loss in (source.claim["server"]["epsilon"] or {}).values():
            assert formatting.epsilon(loss) not in predicate["claims"]["statement"]


@POPPLER
@pytest.mark.parametrize("noise", BOTH)
def test_the_pages_say_the_same(make_client_run: MakeRun, noise: str) -> None:
    run = make_client_run(noise_added_by=noise)
    for audience in AUDIENCES:
        text = pages(build_report(run, audience=audience).pdf)
        assert "one client with all its records" in text
        assert "δ·N" in text
        assert "add-or-remove-one-record" not in text
        assert ("No guarantee against the server" in text) is (noise == "server")
        assert ("Rate q" in text) is False
        assert ("Uploaded by all clients" in text) is (audience == "internal")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("junk", [None, 7, [], "nobody"])
def test_junk_in_the_ledger_never_crashes(make_client_run: MakeRun, junk: Any) -> None:
    run = make_client_run(noise_added_by="clients")
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    for index, key in (
        (0, "noise_added_by"),
        (0, "participation"),
        (0, "clients"),
        (0, "sampling"),
        (-1, "third_party"),
        (-1, "server"),
        (-1, "profile"),
    ):
        changed = json.loads(json.dumps(lines))
        changed[index][key] = junk
        text = "".join(f"{json.dumps(line)}\n" for line in changed)
        (run / "ledger.jsonl").write_text(text, "utf-8")
        for audience in AUDIENCES:
            data_of(run, audience)


def test_an_epsilon_too_large_against_the_server_is_told_to_who_may_know_it(
    make_client_run: MakeRun,
) -> None:
    """As terminal and audit.json do, which are for insiders."""
    run = make_client_run(noise_added_by="clients")
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    lines[-1]["server"]["epsilon"] = dict.fromkeys(lines[-1]["server"]["epsilon"], 20.01)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (run / "ledger.jsonl").write_text(text, "utf-8")
    assert unprotected_by(lines[-1]) == "the server"
    told = {audience: data_of(run, audience)["verdict"] for audience in AUDIENCES}
    assert told["internal"]["unprotected_against"] == "the server"
    assert told["internal"]["statement"].startswith("No meaningful protection against the server")
    assert told["public"]["unprotected_against"] is None
    rows = {audience: run_rows.read(run, audience).unprotected for audience in AUDIENCES}
    assert rows == {"internal": "the server", "public": None}


def test_an_unfinished_run_makes_no_statement(make_client_run: MakeRun) -> None:
    run = make_client_run()
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    (run / "ledger.jsonl").write_text("\n".join(lines[:-1]) + "\n", "utf-8")
    report = data_of(run)
    assert "makes no statement" in report["guarantee"]["statement"]
    assert report["accounting"]["views"] == []


@pytest.mark.parametrize(
    ("kind", "said", "noised"),
    [
        ("random", "from a public seed", "to the kept coordinates of the sum"),
        ("released-top", "by the last release", "to the kept coordinates of the sum"),
        ("local-top", "its own largest", "to every coordinate, kept or not, of the sum"),
        ("secret", "does not state", "to every coordinate, kept or not, of the sum"),
    ],
)
def test_the_mechanism_says_what_is_cut_and_where_the_noise_lies(
    make_client_run: MakeRun, kind: str, said: str, noised: str
) -> None:
    source = load(make_client_run())
    sparse = {"kind": kind, "size": 2410, "kept": 964, "seed": 0}
    changed = replace(source, header={**source.header, "sparsification": sparse})
    statement = CLIENT.mechanism(changed)
    assert f"cut to {formatting.count(964)} of {formatting.count(2410)} coordinates" in statement
    assert said in statement
    assert noised in statement
