"""The report as data: what it says, to whom, and what it does when files are missing or hostile."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import reports
from dpfedadamw.accounting.trade_off import FALSE_ALARMS, least_misses
from reports import ReportError, formatting
from reports.content import accounting, clients, tuning, wording
from reports.content.build import build, serialise
from reports.content.findings import for_audience
from reports.content.parts import AUDIENCES
from reports.files import clean
from tests.reports.data import data_of, hold_against_schema, report_of

MakeRun = Any  # the builder that conftest gives


def rewrite(run: Path, name: str, change: Any) -> None:
    data = json.loads((run / name).read_text("utf-8"))
    change(data)
    (run / name).write_text(json.dumps(data), "utf-8")


def rewrite_header(run: Path, **values: Any) -> None:
    first, rest = (run / "ledger.jsonl").read_text("utf-8").split("\n", 1)
    changed = json.dumps({**json.loads(first), **values})
    (run / "ledger.jsonl").write_text(f"{changed}\n{rest}", "utf-8")
    rewrite(run, "audit.json", lambda audit: audit["inputs"].pop("ledger.jsonl"))


def test_the_internal_guarantee_is_one_sentence_with_everything_in_it(make_run: MakeRun) -> None:
    report = data_of(make_run())
    sentence = report["guarantee"]["statement"]
    for part in (
        f"ε = {formatting.epsilon(report['guarantee']['epsilon'])}",
        "δ = 10⁻⁵",
        "δ·n = ",
        "one record",
        "add-or-remove-one-record",
        "the server",
        "assuming",
        "privacy loss distribution (dp-accounting 0.6.0)",
    ):
        assert part in sentence
    assert sentence.endswith(".")
    assert report["guarantee"]["view"] == "server"


def test_the_mechanism_says_when_layers_multiply_in_bfloat16(make_run: MakeRun) -> None:
    run = make_run()
    assert "bfloat16" not in data_of(run)["mechanism"]["statement"]
    rewrite_header(run, precision="bfloat16")
    statement = data_of(run)["mechanism"]["statement"]
    assert "multiply in bfloat16; gradients are clipped, summed and noised in float32" in statement


def test_delta_times_records_uses_every_training_record(make_run: MakeRun) -> None:
    report = data_of(make_run())
    total = report["clients"]["records_total"]
    assert report["guarantee"]["delta_times_records"] == pytest.approx(1e-5 * total, rel=1e-12)


def test_every_audience_gets_a_report_that_fits_the_schema(make_run: MakeRun) -> None:
    run = make_run()
    for audience in AUDIENCES:
        hold_against_schema(data_of(run, audience))


def test_where_people_are_protected_each_clients_people_are_called_people(
    make_run: MakeRun,
) -> None:
    report = data_of(make_run())
    for unit, counted, other in (("record", "Records", "People"), ("person", "People", "Records")):
        report["guarantee"]["unit"] = unit
        blocks = list(clients._blocks(report_of(report)))
        (table,) = (block for block in blocks if block["kind"] == "table")
        assert counted in table["head"]
        assert other not in table["head"]
        chart, *_ = clients._points(report_of(report))
        assert counted.lower() in chart.axis


def test_the_schema_refuses_an_unknown_field_and_a_loss_without_privacy(make_run: MakeRun) -> None:
    report = data_of(make_run(private=False))
    with pytest.raises(ReportError):
        hold_against_schema({**report, "extra": 1})
    report["guarantee"]["epsilon"] = 1.0
    with pytest.raises(ReportError, match="guarantee/epsilon"):
        hold_against_schema(report)


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_the_schema_describes_every_field(name: str) -> None:
    folder = Path(reports.__file__).parent / "schema"
    schema = json.loads((folder / f"{name}.schema.json").read_text("utf-8"))

    def walk(node: Any, path: str) -> None:
        if not isinstance(node, dict):
            return
        for name, inner in node.get("properties", {}).items():
            if path.startswith("allOf"):
                continue
            assert inner.get("description"), f"{path}/{name}"
            walk(inner, f"{path}/{name}")
        if "properties" in node and not path.startswith("allOf"):
            assert node["additionalProperties"] is False, path
        walk(node.get("items"), f"{path}/items")

    walk(schema, "")
    for definition, node in schema.get("$defs", {}).items():
        walk(node, definition)


def test_an_unknown_audience_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(ReportError, match="must be one of internal, public"):
        data_of(make_run(), "press")


def test_same_run_same_bytes(make_run: MakeRun) -> None:
    run = make_run()
    assert serialise(build(run)) == serialise(build(run))


def test_evidence_is_never_read(make_run: MakeRun) -> None:
    run = make_run()
    before = serialise(build(run))
    shutil.rmtree(run / "evidence")
    assert serialise(build(run)) == before


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in strings(inner)]
    return [value] if isinstance(value, str) else []


def numbers(value: Any) -> set[float]:
    if isinstance(value, dict):
        return {found for inner in value.values() for found in numbers(inner)}
    if isinstance(value, list):
        return {found for inner in value for found in numbers(inner)}
    return (
        {float(value)} if isinstance(value, int | float) and not isinstance(value, bool) else set()
    )


def test_the_public_report_tells_nothing_of_participation(make_run: MakeRun) -> None:
    run = make_run(clients=9, rounds=31)
    claim = json.loads((run / "ledger.jsonl").read_text().strip().split("\n")[-1])
    header = json.loads((run / "ledger.jsonl").read_text().split("\n")[0])
    report = data_of(run, "public")
    shown, values = "\n".join(strings(report)), numbers(report)
    secrets = {claim["server"]["epsilon"]["pld"]}
    for row in claim["server"]["clients"]:
        secrets |= set(row["epsilon"].values())
    assert not secrets & values
    for secret in secrets:
        assert f"{secret:.4f}" not in shown
        assert formatting.epsilon(secret) not in re.findall(r"ε = ([\d.]+)", shown)
    assert not re.search(r"client\s*\d|took part \d|particip\w* \d+ times", shown, re.IGNORECASE)
    assert report["clients"]["rows"] == []
    assert report["accounting"]["profile"] == []
    assert report["accounting"]["trade_off"] == []
    assert report["accounting"]["gaussian_dp"] is None
    assert all(row["server"] is None for row in report["accounting"]["over_rounds"])
    assert header["commitment"] not in shown
    assert report["guarantee"]["view"] == "third_party"
    assert not {entry["file"] for entry in report["identity"]["hashes"]} & {
        "ledger.jsonl",
        "audit.json",
    }


def test_the_internal_report_does_tell_it(make_run: MakeRun) -> None:
    report = data_of(make_run(clients=9))
    assert len(report["clients"]["rows"]) == 9
    profile, curve = (report["accounting"][key] for key in ("profile", "trade_off"))
    assert profile
    # The engine's own lines from the same points: what is not missed is detected.
    for false_alarms, detected in curve:
        assert detected == pytest.approx(1 - least_misses(profile, false_alarms), rel=1e-12)
    assert [rate for rate, _ in curve] == list(FALSE_ALARMS)
    assert any("took part" in (check["measurement"] or "") for check in report["audit"]["checks"])


@pytest.mark.parametrize(("exact", "said"), [(True, "μ is 0.936:"), (False, "μ is at most 0.936,")])
def test_mu_is_the_claims_and_rounded_up(make_run: MakeRun, exact: bool, said: str) -> None:
    report = data_of(make_run())
    assert report["accounting"]["gaussian_dp"] == {"mu": 0.9351, "exact": False}
    report["accounting"]["gaussian_dp"]["exact"] = exact
    blocks = list(accounting._blocks(report_of(report)))
    assert [said in str(block) for block in blocks].count(True) == 1


def test_a_mu_of_any_size_is_told(make_run: MakeRun) -> None:
    report = data_of(make_run())
    report["accounting"]["gaussian_dp"]["mu"] = 1e306
    assert "μ is at most 1e+306," in str(list(accounting._blocks(report_of(report))))


def test_two_runs_that_differ_in_participation_alone_have_one_public_report(
    make_run: MakeRun,
) -> None:
    first, second = make_run("a"), make_run("b")
    lines = (second / "ledger.jsonl").read_text("utf-8").strip().split("\n")
    claim = json.loads(lines[-1])
    for row in claim["server"]["clients"]:
        row["participations"] += 1
        row["epsilon"]["pld"] *= 1.25
    claim["server"]["epsilon"]["pld"] *= 1.25
    claim["profile"] = [[2 * e, d] for e, d in claim["profile"]]
    lines[-1] = json.dumps(claim)
    (second / "ledger.jsonl").write_text("\n".join(lines) + "\n", "utf-8")

    def change(audit: Any) -> None:
        audit["inputs"].pop("ledger.jsonl")
        for check in audit["checks"]:
            check["measurement"] += " Client 2 took part 11 times."
            for row in check["details"].get("over_rounds", []):
                row["server"] *= 1.25

    rewrite(second, "audit.json", change)
    assert serialise(build(first, "public")) == serialise(build(second, "public"))
    assert data_of(first) != data_of(second)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Client sizes are public metadata.", True),
        ("The third party does not learn who took part.", True),
        ("reproducible mode: not a privacy guarantee to anyone who knows the seed", True),
        ("Client 3 took part 7 times.", False),
        ("client_12 exceeds the rest", False),
        ("participations: 4, 5 and 6", False),
        ("The server's ε is 7.1.", False),
        ("Round 3 was charged on a second attempt.", False),
    ],
)
def test_free_text_is_withheld_from_the_public_only_if_it_could_tell(text: str, kept: bool) -> None:
    assert for_audience([text], "internal") == [text]
    assert (for_audience([text], "public") == [text]) is kept


def test_a_run_without_privacy_says_so_and_carries_no_loss(make_run: MakeRun) -> None:
    for audience in AUDIENCES:
        report = data_of(make_run(f"run-{audience}", private=False), audience)
        assert "no differential privacy" in report["guarantee"]["statement"]
        assert "no differential privacy" in report["mechanism"]["statement"]
        assert "claims no differential privacy" in report["verdict"]["statement"]
        assert report["verdict"]["value"] == "NO CLAIM"
        assert not re.search(r"ε\s*=", "\n".join(strings(report)))
        assert report["accounting"]["views"] == report["accounting"]["closed_forms"] == []


@pytest.mark.parametrize("private", [True, False])
def test_a_missing_audit_is_said_first(make_run: MakeRun, private: bool) -> None:
    report = data_of(make_run(private=private, audit=False))
    assert report["verdict"]["value"] == "NOT AUDITED"
    assert any("audit.json" in note for note in report["verdict"]["notes"])
    if private:
        assert report["guarantee"]["statement"].startswith("Claimed, but not audited")


@pytest.mark.parametrize("verdict", ["FAIL", "NOT VERIFIED"])
def test_a_bad_verdict_leads_the_sentence(make_run: MakeRun, verdict: str) -> None:
    report = data_of(make_run(verdict=verdict))
    assert report["verdict"]["value"] == verdict
    assert report["guarantee"]["statement"].startswith("Claimed, but")
    key = "failed" if verdict == "FAIL" else "not_verified"
    assert [entry["title"] for entry in report["verdict"][key]] == ["Noise has the claimed scale"]


def test_a_verdict_is_lowered_but_never_raised(make_run: MakeRun) -> None:
    run = make_run("lower", verdict="FAIL")
    rewrite(run, "audit.json", lambda audit: audit.update(verdict="PASS"))
    assert data_of(run)["verdict"]["value"] == "FAIL"
    run = make_run("raise")
    rewrite(run, "audit.json", lambda audit: audit.update(verdict="NOT VERIFIED"))
    assert data_of(run)["verdict"]["value"] == "NOT VERIFIED"
    rewrite(run, "audit.json", lambda audit: audit.update(verdict="EXCELLENT"))
    assert data_of(run)["verdict"]["value"] == "NOT VERIFIED"
    rewrite(run, "audit.json", lambda audit: audit.update(verdict="PASS", checks=[]))
    assert data_of(run)["verdict"]["value"] == "NOT VERIFIED"


def test_an_audit_of_another_run_or_another_model_is_not_used(make_run: MakeRun) -> None:
    run = make_run("model")
    (run / "model.safetensors").write_bytes(b"another")
    assert data_of(run)["verdict"]["value"] == "NOT AUDITED"
    run = make_run("run")
    rewrite(run, "audit.json", lambda audit: audit.update(run="other"))
    assert data_of(run)["verdict"]["value"] == "NOT AUDITED"


def test_an_unfinished_run_makes_no_statement(make_run: MakeRun) -> None:
    run = make_run(audit=False)
    lines = (run / "ledger.jsonl").read_text("utf-8").strip().split("\n")
    (run / "ledger.jsonl").write_text("\n".join(lines[:-1]) + "\n", "utf-8")
    report = data_of(run)
    assert "makes no statement" in report["guarantee"]["statement"]
    assert report["guarantee"]["epsilon"] is None
    assert report["accounting"]["views"] == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.json", "model.safetensors", "audit.json"])
def test_missing_parts_are_said_and_do_not_stop_the_report(make_run: MakeRun, name: str) -> None:
    run = make_run()
    (run / name).unlink()
    notes = data_of(run)["verdict"]["notes"]
    assert any(name in note for note in notes)
    assert not any(str(run) in note for note in notes)


@pytest.mark.parametrize("name", ["spec.yaml", "ledger.jsonl"])
def test_without_spec_or_ledger_there_is_one_clear_line(make_run: MakeRun, name: str) -> None:
    run = make_run()
    (run / name).unlink()
    with pytest.raises(ReportError, match=rf"^{re.escape(name)}: missing") as caught:
        data_of(run)
    assert "\n" not in str(caught.value)


def test_a_partial_audit_gives_a_partial_report(make_run: MakeRun) -> None:
    run = make_run()

    def strip(audit: Any) -> None:
        audit.pop("auditor")
        audit.pop("qualifications")
        for check in audit["checks"]:
            for key in ("claim", "power", "limits", "details", "severity"):
                check.pop(key)

    rewrite(run, "audit.json", strip)
    report = data_of(run)
    assert report["verdict"]["value"] == "PASS"
    assert report["audit"]["second_moment"] is None
    assert report["accounting"]["over_rounds"] == []
    assert {form["reading"] for form in report["accounting"]["closed_forms"]} == {"not audited"}


@pytest.mark.parametrize(
    "audit",
    [b"", b"[]", b"null", b"{", b"\xff", b'{"a":NaN}', b"[" * 100_000, b'{"run":1,"run":2}'],
)
def test_a_broken_audit_is_a_missing_audit(make_run: MakeRun, audit: bytes) -> None:
    run = make_run()
    (run / "audit.json").write_bytes(audit)
    assert data_of(run)["verdict"]["value"] == "NOT AUDITED"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("junk", [None, 7, [1, None], {"checks": 3}])
def test_junk_in_any_field_of_the_audit_never_crashes(make_run: MakeRun, junk: Any) -> None:
    run = make_run()
    original = json.loads((run / "audit.json").read_text("utf-8"))
    for key in original:
        if key in ("run", "inputs"):
            continue
        (run / "audit.json").write_text(json.dumps({**original, key: junk}), "utf-8")
        data_of(run)
        data_of(run, "public")
    # Checks are read one like the other, but for the details, which a few of them are asked for.
    for key in original["checks"][0]:
        changed = [{**check, key: junk} for check in original["checks"]]
        (run / "audit.json").write_text(json.dumps({**original, "checks": changed}), "utf-8")
        data_of(run)


Place = tuple[str | int, ...]


def inner_places(value: Any) -> Iterator[Place]:
    """The place of everything inside a value; of a list, its first stands for all."""
    if isinstance(value, dict):
        inner: list[tuple[str | int, Any]] = list(value.items())
    else:
        inner = [(0, value[0])] if isinstance(value, list) and value else []
    for key, each in inner:
        yield (key,)
        yield from ((key, *place) for place in inner_places(each))


def put(value: Any, place: Place, junk: Any) -> None:
    *way, last = place
    for key in way:
        value = value[key]
    value[last] = junk


def files_of(run: Path) -> dict[str, Any]:
    """What a run's files hold, as data that a test may change."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text("utf-8").splitlines()]
    lines[0].pop("spec_sha256")
    base = {"source": "somebody/vit", "revision": "a" * 40, "weights_sha256": "b" * 64}
    return {
        "ledger": {line["kind"]: line for line in lines},
        "metrics": json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1]),
        "spec": yaml.safe_load((run / "spec.yaml").read_text("utf-8")),
        "model": {**json.loads((run / "model.json").read_text("utf-8")), "base": base},
        "audit": {**json.loads((run / "audit.json").read_text("utf-8")), "inputs": {}},
    }


def write_files(run: Path, files: dict[str, Any]) -> None:
    ledger = "".join(f"{json.dumps(line)}\n" for line in files["ledger"].values())
    (run / "ledger.jsonl").write_text(ledger, "utf-8")
    # Two lines, which a report adds up.
    (run / "metrics.jsonl").write_text(2 * (json.dumps(files["metrics"]) + "\n"), "utf-8")
    (run / "spec.yaml").write_text(yaml.safe_dump(files["spec"]), "utf-8")
    for name in ("model", "audit"):
        (run / f"{name}.json").write_text(json.dumps(files[name]), "utf-8")


ENDLESS = "a\u202eb\x00" * 5_000
JUNK: dict[str, Any] = {
    "negative": -1,
    "huge": 1e300,
    "empty": [],
    "mapping": {"a": 3},
    "null": None,
    "list": [1, None],
    "text": "x",
    "endless": ENDLESS,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", JUNK)
def test_junk_in_any_field_of_a_runs_files_is_told_or_refused(make_run: MakeRun, kind: str) -> None:
    """A few fields at a time, far from each other; a refusal is one clear error.

    What is told can be shown: no text of the files reverses a page, hides in it or has no end.
    """
    run, junk = make_run(rounds=2, clients=3), JUNK[kind]
    files = files_of(run)
    places = [place for place in inner_places(files) if len(place) > 1 + (place[0] == "ledger")]
    assert len(places) > 150
    groups = len(places) // 6
    for first in range(groups):
        changed = copy.deepcopy(files)
        for place in sorted(places[first::groups], key=len, reverse=True):
            put(changed, place, junk)
        write_files(run, changed)
        with contextlib.suppress(ReportError):
            for text in strings(data_of(run)):
                assert len(text) < len(ENDLESS) / 2
                assert not set("\u202e\x00") & set(text)


def test_the_seed_caveat_stands_even_if_the_auditor_forgot_it(make_run: MakeRun) -> None:
    run = make_run(randomness="reproducible")
    rewrite(run, "audit.json", lambda audit: audit.update(qualifications=[]))
    for audience in AUDIENCES:
        report = data_of(run, audience)
        assert wording.SEED_CAVEAT in report["qualifications"][0]
        assert report["randomness"]["caveat"] == wording.SEED_CAVEAT
        assert "not hold against anyone who knows the seed" in report["guarantee"]["statement"]
    assert data_of(run)["randomness"]["seed"] == 0
    assert data_of(run, "public")["randomness"]["seed"] is None


def with_numbers(value: Any, number: float) -> Any:
    """The same data with this in place of every number."""
    if isinstance(value, dict):
        return {key: with_numbers(each, number) for key, each in value.items()}
    if isinstance(value, list):
        return [with_numbers(each, number) for each in value]
    return number if isinstance(value, int | float) and not isinstance(value, bool) else value


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
@pytest.mark.parametrize("number", [1e308, -1e308, 5e-324, 2**62, 0])
def test_numbers_that_together_are_none_are_told_or_refused(
    make_run: MakeRun, number: float, sampling: str
) -> None:
    """Sums, products and quotients of what a file states need not be what a float holds."""
    run = make_run(rounds=2, clients=3)
    files = files_of(run)
    for line in (files["ledger"]["header"], files["ledger"]["spend"]):
        line["sampling"] = sampling
    for part, inner in (
        ("ledger", "header"), ("ledger", "spend"), ("ledger", "claim"), ("metrics", None),
        ("audit", None), ("spec", None),
    ):  # fmt: skip
        changed = copy.deepcopy(files)
        if inner is None:
            changed[part] = with_numbers(changed[part], number)
        else:
            changed[part][inner] = with_numbers(changed[part][inner], number)
        write_files(run, changed)
        with contextlib.suppress(ReportError):
            assert serialise(build(run))


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (
            ["reproducible mode: not a privacy guarantee to anyone who knows the seed"],
            ["reproducible mode: not a privacy guarantee to anyone who knows the seed"],
        ),
        (
            ["Training diverged.", "Not a privacy guarantee to anyone who knows the seed."],
            ["Training diverged.", "Not a privacy guarantee to anyone who knows the seed."],
        ),
        (
            ["Not a privacy guarantee to anyone who knows the weights."],
            [
                "Reproducible mode: not a privacy guarantee to anyone who knows the seed.",
                "Not a privacy guarantee to anyone who knows the weights.",
            ],
        ),
    ],
)
def test_the_seed_caveat_is_said_once_and_before_all_others(
    make_run: MakeRun, stated: list[str], said: list[str]
) -> None:
    run = make_run(randomness="reproducible")
    rewrite(run, "audit.json", lambda audit: audit.update(qualifications=stated))
    assert data_of(run)["qualifications"] == said


def test_release_mode_has_no_caveat(make_run: MakeRun) -> None:
    report = data_of(make_run())
    assert report["qualifications"] == []
    assert report["randomness"]["caveat"] is None


def test_governance_is_blank_unless_the_spec_fills_it(make_run: MakeRun) -> None:
    given = {"report": {"purpose": "Recognise digits.", "risks": None}}
    fields = {
        entry["field"]: entry["text"] for entry in data_of(make_run(spec_extra=given))["governance"]
    }
    assert fields.pop("purpose") == "Recognise digits."
    assert len(fields) == 15
    assert set(fields.values()) == {None}


def test_numbers_that_are_no_numbers_become_unknown(make_run: MakeRun) -> None:
    run = make_run()
    rewrite_header(run, rounds="many", clients=None, records=["x", None, True], parameters=2**63)
    report = data_of(run)
    assert report["mechanism"]["rounds"] is None
    assert report["guarantee"]["delta_times_records"] is None


def test_control_and_bidirectional_characters_do_not_reach_the_report(make_run: MakeRun) -> None:
    name = "safe\u202egnp.exe\x00\x1b[31m \ud800 end"
    run = make_run(name="plain")
    text = (
        (run / "spec.yaml").read_text("utf-8").replace("name: plain", f"name: {json.dumps(name)}")
    )
    (run / "spec.yaml").write_text(text, "utf-8")
    shown = data_of(run)["identity"]["name"]
    assert not set("\u202e\x00\x1b\ud800") & set(shown)
    assert "end" in shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\tb", "a b"),
        ("a\r\nb", "a\nb"),
        ("a \u00a0\u2003 b", "a b"),
        ("a\u2028b", "a b"),
        ("a\x07b\x1bc", "a\ufffdb\ufffdc"),
        ("a\u200bb", "ab"),
        ("a\ue000b", "a\ufffdb"),
        ("  a  b \n c  ", "a b\nc"),
        ("e\u0301", "é"),
        (None, ""),
        (3, "3"),
        ("abcdef", "abcd…"),
        ("abcde", "abcde"),
    ],
)
def test_a_text_is_shown_with_its_words_and_without_what_steers_a_page(given, shown) -> None:
    assert clean(given, 5 if str(given).startswith("abc") else 100) == shown


def test_a_spec_with_aliases_is_refused(make_run: MakeRun) -> None:
    run = make_run()
    (run / "spec.yaml").write_text("a: &x [1, 2]\nb: *x\n")
    with pytest.raises(ReportError, match="aliases are not accepted"):
        data_of(run)


def test_links_are_not_followed(make_run: MakeRun) -> None:
    run = make_run()
    (run / "spec.yaml").rename(run.parent / "elsewhere.yaml")
    (run / "spec.yaml").symlink_to(run.parent / "elsewhere.yaml")
    with pytest.raises(ReportError, match=r"spec\.yaml: is a link"):
        data_of(run)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (7.041, "7.05"),
        (7.1, "7.10"),
        (7.10000001, "7.11"),
        (0.04321, "0.0433"),
        (0.0, "0"),
        (1234.2, "1,235"),
        (227.001, "227.01"),
        (None, "∞"),
    ],
)
def test_losses_are_never_rounded_down(value: float | None, shown: str) -> None:
    assert formatting.epsilon(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e-5, "10⁻⁵"), (2.5e-6, "2.5·10⁻⁶"), (0.0144, "0.0144"), (0.0, "0"), (1e300, "10³⁰⁰")],
)
def test_small_numbers_are_printed_as_powers_of_ten(value: float, shown: str) -> None:
    assert formatting.power(value) == shown


@pytest.mark.parametrize(
    ("stopped", "limit", "said"),
    [
        (None, None, ""),
        (None, 4.0, "4 (max_epsilon). That did not end this run early."),
        (
            {"rounds": 19, "max_epsilon": 4.0},
            4.0,
            "4 (max_epsilon). The run therefore ended after 19 of 20 rounds.",
        ),
        (
            {"rounds": 19, "target_epsilon": 4.0},
            None,
            "4 (target_epsilon). The run was cut off, and a round was charged again. It therefore "
            "ended after 19 of 20 rounds.",
        ),
        (
            {"rounds": 19, "target_epsilon": 4.0},
            5.0,
            "4 (target_epsilon). The run was cut off, and a round was charged again. It therefore "
            "ended after 19 of 20 rounds.",
        ),
    ],
)
def test_the_report_says_which_limit_ended_a_run_and_when(stopped, limit, said):
    header = {"rounds": 20, **({"max_epsilon": limit} if limit else {})}
    begins = " No round begins that could take ε beyond "
    assert tuning.early_end({"stopped": stopped}, header) == (said and begins + said)


STEPS = (
    " The number of local steps changes from round to round; all rounds together take at most "
    "1,234, the most that the budget affords a client in every round."
)
DECAY = (
    " σ is that of the first round; it may fall by the factor 0.8 once every 3 rounds, and never "
    "below 0.5."
)
HEEDED = (
    " The choice depends on values that were released earlier, so every ε here is that of the most "
    "that could have been spent."
)


@pytest.mark.parametrize(
    ("adaptation", "said"),
    [
        (None, ""),
        ({}, ""),
        ({"step_limit": 1234}, STEPS),
        ({"decay": {"factor": 0.8, "patience": 3, "floor": 0.25}}, DECAY),
        ({"step_limit": 1234, "follows_releases": False}, STEPS),
        ({"follows_releases": True}, HEEDED),
        (
            {
                "follows_releases": True,
                "decay": {"factor": 0.8, "patience": 3, "floor": 0.25},
                "step_limit": 1234,
            },
            STEPS + DECAY + HEEDED,
        ),
    ],
)
def test_what_adapts_is_told_and_whether_it_heeds_what_was_released(adaptation, said):
    assert tuning.adaptation_in_words({"noise_multiplier": 2.0, "adaptation": adaptation}) == said
