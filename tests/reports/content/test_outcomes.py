"""What came out: accuracy by class, traffic, time, participation; to whom each is told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reports.content import outcomes
from reports.content.outcomes import Utility
from reports.content.parts import INTERNAL, FigureText, Report
from reports.content.utility import _describe_accuracy
from reports.source import load
from tests.reports.data import data_of

MakeRun = Any  # the builder that conftest gives


def rewrite_last(run: Path, **values: Any) -> None:
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), **values})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    audit["inputs"].pop("metrics.jsonl", None)
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")


def rewrite_header(run: Path, **values: Any) -> None:
    first, rest = (run / "ledger.jsonl").read_text("utf-8").split("\n", 1)
    (run / "ledger.jsonl").write_text(
        json.dumps({**json.loads(first), **values}) + "\n" + rest, "utf-8"
    )
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    audit["inputs"].pop("ledger.jsonl", None)
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")


def test_accuracy_by_class_has_wilsons_interval(make_run: MakeRun) -> None:
    """The intervals of 8 of 10 and of 0 of 50, as scipy's binomtest gives them (method wilson)."""
    run = make_run()
    rewrite_last(run, test_classes=[[10, 8], [50, 0], [9, 9]])
    first, second, few = outcomes.by_class(load(run))
    assert (first.accuracy, first.records) == (0.8, 10)
    assert (first.low, first.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert (second.low, second.high) == pytest.approx((0.0, 0.0713476), abs=1e-6)
    assert (few.accuracy, few.low, few.high) == (None, None, None)


def test_classes_with_few_records_are_said_to_be_few(make_run: MakeRun) -> None:
    report = data_of(make_run())
    assert "1 of 10 class has fewer than 10 test records" in report["utility"]["classes_statement"]
    assert any(entry["identifier"] == "accuracy-by-class" for entry in report["figures"])


@pytest.mark.parametrize("junk", [None, 7, "x", [[1]], [[5, 6]], [[-1, 0]], [[1.5, 1]], [None]])
def test_counts_that_cannot_be_are_no_accuracy(make_run: MakeRun, junk: Any) -> None:
    run = make_run()
    rewrite_last(run, test_classes=junk)
    report = data_of(run)
    assert report["utility"]["classes"] == []
    assert report["utility"]["classes_statement"] == "Accuracy by class was not recorded."


def test_participations_are_counted_once_a_round_and_kept_inside(make_run: MakeRun) -> None:
    run = make_run(clients=10, rounds=20)
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["kind"] == "round"]
    counts = [sum(client in line["clients"] for line in rounds) for client in range(10)]
    internal, public = data_of(run), data_of(run, "public")
    assert internal["sampling"]["participations"] == counts
    assert internal["sampling"]["expected_participations"] == 10
    assert public["sampling"]["participations"] == []
    names = {entry["identifier"] for entry in public["figures"]}
    assert not names & {"client-sampling", "noise-quantiles", "epsilon-per-client"}


def test_a_round_that_was_written_twice_counts_once(make_run: MakeRun) -> None:
    run = make_run(clients=10, rounds=20)
    before = load(run).participations
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    again = next(line for line in lines if '"kind":"round"' in line)
    (run / "ledger.jsonl").write_text("\n".join([*lines[:-1], again, lines[-1]]) + "\n", "utf-8")
    assert load(run).participations == before


def test_where_everybody_is_in_every_round_that_is_no_secret(make_run: MakeRun) -> None:
    run = make_run(clients=1, rounds=3)
    assert data_of(run, "public")["sampling"]["participations"] == [3]
    rewrite_header(run, client_sampling="poisson")
    assert data_of(run, "public")["sampling"]["participations"] == []


def test_a_picture_of_the_accuracy_names_its_ends_and_its_peak_from_two_measurements_on() -> None:
    def described(*measured: float | None) -> FigureText | None:
        rows = [
            SimpleNamespace(round=10 * place, test_accuracy=one)
            for place, one in enumerate(measured)
        ]
        return _describe_accuracy(
            Report(INTERNAL, {Utility: Utility.model_construct(rounds=tuple(rows))})
        )

    assert described() is described(0.5) is described(0.5, None) is None
    assert described(0.125, 0.75, None, 0.5) == FigureText(
        identifier="accuracy-over-rounds",
        title="Test accuracy over the rounds",
        caption="Accuracy of the global model on the test records, released without noise.",
        alternative_text="Line chart: test accuracy goes from 12.5 % after round 0 to 50.0 % after "
        "round 30; its largest value is 75.0 %.",
    )
    two = described(None, 0.25, 0.5)
    assert two is not None
    assert "from 25.0 % after round 10 to 50.0 % after round 20" in two.alternative_text


def test_time_and_gradients_are_told(make_run: MakeRun, make_client_run: MakeRun) -> None:
    costs = data_of(make_run(clients=10, rounds=20))["communication"]
    assert costs["seconds"] == pytest.approx(20 * 0.25)
    assert costs["expected_gradients"] == 20 * 5 * 5 * 32
    public = data_of(make_client_run("clients"), "public")["communication"]
    assert (public["seconds"], public["bytes_up"], public["expected_gradients"]) == (None,) * 3


def test_traffic_is_kept_wherever_clients_are_drawn_by_chance(make_run: MakeRun) -> None:
    run = make_run()
    assert data_of(run, "public")["communication"]["bytes_up"] is not None
    rewrite_header(run, client_sampling="poisson")
    assert data_of(run, "public")["communication"]["bytes_up"] is None
    assert data_of(run)["communication"]["bytes_up"] is not None


def test_quantiles_of_the_noise_are_verdicts_and_stay_inside(make_run: MakeRun) -> None:
    run = make_run(verdict="FAIL")
    rows = data_of(run)["audit"]["noise_quantiles"]
    assert [row["verdict"] for row in rows].count("below") == 1
    assert set(rows[0]) == {"level", "expected", "low", "high", "verdict"}
    assert data_of(run, "public")["audit"]["noise_quantiles"] == []


def test_published_weights_are_named_and_their_records_left_out(make_run: MakeRun) -> None:
    run = make_run()
    base = {"source": "somebody/vit", "revision": "a" * 40, "weights_sha256": "b" * 64}
    model = json.loads((run / "model.json").read_text("utf-8"))
    (run / "model.json").write_text(json.dumps({**model, "base": base}), "utf-8")
    report = data_of(run)
    assert report["identity"]["pretrained"] == base
    said = {entry["title"]: entry["text"] for entry in report["outside_budget"]}["Pre-training"]
    assert "somebody/vit" in said
    assert "does not cover" in said
    (run / "model.json").write_text(json.dumps({**model, "base": None}), "utf-8")
    report = data_of(run)
    assert report["identity"]["pretrained"] is None
    assert any("random weights" in entry["text"] for entry in report["outside_budget"])


def test_each_conversion_has_the_headlines_loss(make_run: MakeRun) -> None:
    run = make_run()
    rows = {row["name"]: row for row in data_of(run)["accounting"]["conversions"]}
    claim = json.loads((run / "ledger.jsonl").read_text().splitlines()[-1])
    top = max(claim["server"]["clients"], key=lambda row: row["epsilon"]["pld"])
    assert rows["PLD"]["epsilon"] == top["epsilon"]["pld"]
    assert rows["RDP, improved"]["epsilon"] == top["epsilon"]["rdp"]
    assert rows["RDP, classic"]["epsilon"] == top["epsilon"]["rdp-classic"]
    public = {row["name"]: row for row in data_of(run, "public")["accounting"]["conversions"]}
    assert public["PLD"]["epsilon"] == claim["third_party"]["epsilon"]["pld"]
    assert public["RDP, improved"]["epsilon"] is None


def test_the_report_says_where_clients_kept_their_own_evidence(make_run: MakeRun) -> None:
    run = make_run()
    assert "handed in" not in data_of(run)["mechanism"]["statement"]
    rewrite_header(run, sites={"keys": ["a" * 64, "b" * 64], "drop_outs": 0})
    for audience in ("internal", "public"):
        statement = data_of(run, audience)["mechanism"]["statement"]
        assert "Each of the 2 clients ran as a process of its own" in statement
