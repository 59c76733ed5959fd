"""Every check passes a correct run and catches the fault that is its own."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.checks import checks_for, checks_of
from audit.checks.randomness import REPRODUCIBLE
from audit.checks.reexecution import WORD
from audit.probe.probing import PATH_KINDS
from audit.reading.bundle import open_bundle
from audit.reading.units import RECORD
from audit.verdict import Findings, Verdict
from tests.audit import synthetic_run
from tests.audit.corruptions import attest, finding_of
from tests.audit.corruptions import audit_attested as audit_run
from tests.audit.synthetic_run import (
    Settings,
    SoftmaxProbe,
    build_run,
    chain,
    read_entries,
    rewrite_ledger,
    rewrite_round,
    rewrite_spec,
    save,
)

GOOD = Settings()


def failing(findings: Findings) -> set[str]:
    return {f.name for f in findings.findings if f.verdict is Verdict.FAIL}


def unverified(findings: Findings) -> set[str]:
    # That nothing was computed again is said of every run here, for nobody asked for it.
    found = {f.name for f in findings.findings if f.verdict is Verdict.NOT_VERIFIED}
    return found - {"reexecution"}


def fails(run: Path, name: str) -> bool:
    """Whether one check, and so the audit, fails a run that its trainer signed just now."""
    return finding_of(attest(run), name).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "settings",
    [
        GOOD,
        replace(GOOD, debias=False),
        replace(GOOD, aggregation="none"),
        replace(GOOD, algorithm="dp-localadamw"),
        replace(GOOD, algorithm="dp-fedavg"),
        replace(GOOD, clients_per_round=5),
        replace(GOOD, rounds=1),
        replace(GOOD, beta2=0.0),
        replace(GOOD, second_attempt_of=1),
        # Charged for more rounds than there are: the worst case is then what happened.
        replace(GOOD, rounds=1, second_attempt_of=0),
        replace(GOOD, algorithm="dp-fedavg", sizes=(3, 2, 2)),
        replace(GOOD, expected_batch_size=60.0),
    ],
    ids=lambda settings: ",".join(
        f"{key}={value}" for key, value in vars(settings).items() if value != getattr(GOOD, key)
    ),
)
def test_a_correct_run_passes(tmp_path: Path, settings: Settings) -> None:
    run = build_run(tmp_path / "run", settings)
    findings = audit_run(run)
    assert findings.verdict is Verdict.PASS, [f.measurement for f in findings.findings]
    asked = checks_for(open_bundle(run).header)
    assert [f.name for f in findings.findings] == [check.name for check in asked]


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ({"noise_scale": 0.5}, {"noise-scale", "second-moment"}),
        ({"noise_scale": 2 / 3}, {"noise-scale", "second-moment"}),
        ({"noise_scale": 1.5}, {"noise-scale", "second-moment"}),
        ({"counter": "local"}, {"second-moment"}),
        ({"subtracted_scale": 0.5}, {"second-moment"}),
        ({"ledger_sigma_extra": 0.5}, {"noise-scale", "promise", "second-moment"}),
        ({"realised_divisor": True}, {"promise"}),
        ({"reuse_between_clients": True}, {"noise-scale"}),
        ({"reuse_between_rounds": True}, {"noise-scale"}),
        ({"silent_query": True}, {"noise-scale"}),
        ({"drawn_as": "fixed-size"}, {"sensitivity"}),
        ({"skip_clipping_of_one": True}, {"sensitivity"}),
        ({"claim_scale": 0.97}, {"accounting"}),
        ({"claim_scale": 1.2}, {"accounting"}),
        ({"delta": 0.02}, {"promise"}),
    ],
    # A set has no order of its own, and test workers must agree on the names.
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_each_fault_is_caught_by_its_check(
    tmp_path: Path, fault: dict[str, Any], caught_by: set[str]
) -> None:
    run = build_run(tmp_path / "run", replace(GOOD, **fault))
    assert [name for name in sorted(caught_by) if not fails(run, name)] == []


def test_the_local_counters_factor_is_named(tmp_path: Path) -> None:
    found = finding_of(build_run(tmp_path / "run", replace(GOOD, counter="local")), "second-moment")
    factor = (1 - 0.99**6) / (1 - 0.99**3)
    assert f"{factor:.4g} times the unbiased value" in found.measurement


@pytest.mark.parametrize(
    ("change", "caught_by"),
    [
        (lambda e: e.pop(2), "integrity"),
        (lambda e: e.pop(-1), "integrity"),
        (lambda e: e.insert(1, dict(e[0])), "integrity"),
        (lambda e: e.insert(3, dict(e[1])), "integrity"),
        (lambda e: e[0].update(rounds=5), "integrity"),
        (lambda e: e[4]["clients"].reverse() or e[4]["clients"].__setitem__(0, 99), "integrity"),
        (lambda e: e[1].update(noise_multiplier=3.0), "promise"),
        (lambda e: e[1].update(sampling_rate=0.01), "promise"),
        (lambda e: e[1].update(records=61), "promise"),
        (lambda e: e[4]["queries"].__setitem__(0, 9), "promise"),
        (lambda e: e[0].update(delta=1e-6), "promise"),
        (lambda e: e[-1]["server"]["epsilon"].update(pld=0.5), "accounting"),
        (lambda e: e[-1]["server"]["clients"][0].update(steps=1), "accounting"),
        (lambda e: e[-1]["server"]["clients"].pop(0), "accounting"),
        (lambda e: e[-1]["profile"][3].__setitem__(1, 1e-9), "accounting"),
        (lambda e: e[-1]["gaussian_dp"].update(mu=0.9 * e[-1]["gaussian_dp"]["mu"]), "accounting"),
        (lambda e: e[-1]["server_worst_case"]["epsilon"].update(pld=0.5), "views"),
        (lambda e: e[-1]["third_party"]["epsilon"].update(pld=0.5), "views"),
        (lambda e: e[-1]["third_party"].update(participation=0.1), "views"),
        (lambda e: e[-1]["closed_forms"].update(equation_14=1.0), "views"),
        (lambda e: e[-1].update(view_headline="third_party"), "views"),
        (lambda e: e[0].update(commitment=None), "randomness"),
        (lambda e: e[0].update(seed=3), "randomness"),
    ],
)
def test_a_consistently_rewritten_ledger_is_caught(
    good_run: Path, change: Callable[[list[dict[str, Any]]], object], caught_by: str
) -> None:
    def apply(entries: list[dict[str, Any]]) -> None:
        change(entries)

    rewrite_ledger(good_run, apply)
    assert fails(good_run, caught_by)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["privacy"].update(noise_multiplier=2.0),
        lambda spec: spec["privacy"].update(clipping_norm=1.0),
        lambda spec: spec["privacy"].update(delta=1e-6),
        lambda spec: spec["privacy"].update(target_epsilon=1.0),
        lambda spec: spec["privacy"]["sampling"].update(kind="shuffled"),
        lambda spec: spec["privacy"].update(unit="none"),
        lambda spec: spec["federation"].update(local_steps=2),
        lambda spec: spec.pop("privacy"),
    ],
)
def test_a_broken_promise_is_caught(
    good_run: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite_spec(good_run, lambda spec: (change(spec), None)[1])
    assert fails(good_run, "promise")


def test_another_spec_than_the_headers_is_caught(good_run: Path) -> None:
    with (good_run / "spec.yaml").open("a") as file:
        file.write("# harmless\n")
    assert failing(audit_run(good_run)) == {"integrity"}


def test_one_changed_number_names_file_and_line(good_run: Path) -> None:
    raw = (good_run / "ledger.jsonl").read_bytes()
    lines = raw.split(b"\n")
    lines[2] = lines[2].replace(b'"steps":3', b'"steps":2')
    (good_run / "ledger.jsonl").write_bytes(b"\n".join(lines))
    found = finding_of(attest(good_run), "integrity")
    assert found.verdict is Verdict.FAIL
    assert "ledger.jsonl:3" in found.measurement


def test_a_removed_charge_breaks_the_chain(good_run: Path) -> None:
    lines = (good_run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (good_run / "ledger.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]))
    findings = audit_run(good_run)
    assert findings.verdict is Verdict.FAIL
    assert "broken chain" in findings.named("integrity").measurement


# Every third has each file and each damage.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["round-00001.npz", "layout.json", "partition.npz", "probe.npz", "round-00003.npz"]
)
@pytest.mark.parametrize("how", ["delete", "truncate", "flip", "link"])
def test_damaged_evidence_is_not_verified(good_run: Path, name: str, how: str) -> None:
    path = good_run / "evidence" / name
    raw = path.read_bytes()
    path.unlink()
    if how == "truncate":
        path.write_bytes(raw[: len(raw) // 2])
    elif how == "flip":
        position = raw.index(b'"parameters"') + 2 if name == "layout.json" else len(raw) // 2
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
    elif how == "link":
        outside = good_run.parent / "elsewhere"
        outside.write_bytes(raw)
        path.symlink_to(outside)
    findings = audit_run(good_run)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert not failing(findings)


def test_a_run_without_evidence_is_not_verified(good_run: Path) -> None:
    shutil.rmtree(good_run / "evidence")
    findings = audit_run(good_run)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert unverified(findings) >= {"integrity", "sensitivity", "noise-scale", "second-moment"}
    assert findings.named("accounting").verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "change", "caught_by"),
    [
        ("noise_sample", lambda a: a * 2.0, "noise-scale"),
        ("noise_sample", lambda a: np.abs(a), "noise-scale"),
        ("noise_sum_squares", lambda a: a * 2.0, "noise-scale"),
        ("noise_sum_squares", lambda a: np.zeros_like(a), "noise-scale"),
        ("clients", lambda a: (a + 1) % 5, "integrity"),
        ("attempt", lambda a: a + 1, "integrity"),
        ("divisor", lambda a: a * 1.01, "promise"),
        ("clipped_norms", lambda a: np.zeros_like(a), "sensitivity"),
        ("nonfinite", lambda a: a + 1, "sensitivity"),
        ("tau", lambda a: a + 1, "second-moment"),
        ("v_corrected", lambda a: a * 1.01, "second-moment"),
        ("v_noisy", lambda a: a * 1.5, "second-moment"),
        ("v_clean", lambda a: a * 0 + 1.0, "second-moment"),
    ],
)
def test_changed_evidence_is_caught(
    good_run: Path, name: str, change: Callable[[np.ndarray], np.ndarray], caught_by: str
) -> None:
    def apply(arrays: dict[str, Any]) -> None:
        arrays[name] = change(arrays[name]).astype(arrays[name].dtype)

    rewrite_round(good_run, 2, apply)
    assert fails(good_run, caught_by)


def test_noise_that_cancels_between_clients_is_caught(good_run: Path) -> None:
    for index in range(4):

        def cancel(arrays: dict[str, Any]) -> None:
            arrays["noise_sample"] -= 0.9 * arrays["noise_sample"].mean(axis=0)

        rewrite_round(good_run, index, cancel)
    assert fails(good_run, "noise-scale")


def test_a_record_in_the_wrong_client_is_caught(good_run: Path) -> None:
    path = good_run / "evidence" / "partition.npz"
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    arrays["client_of_record"][0] = (arrays["client_of_record"][0] + 1) % 5
    save(path, arrays)
    assert failing(audit_run(good_run)) == {"partition"}


def test_reproducible_mode_is_disclosed(tmp_path: Path) -> None:
    findings = audit_run(build_run(tmp_path / "run", replace(GOOD, randomness="reproducible")))
    assert findings.verdict is Verdict.PASS
    assert findings.qualifications == (WORD, REPRODUCIBLE)


def test_closed_forms_are_read_as_theory_says(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(GOOD, clients=10, clients_per_round=1))
    rows = {row["name"]: row for row in finding_of(run, "views").details["closed_forms"]}
    assert rows["equation_14"]["reading"] == "double-counts"
    assert rows["equation_13"]["value"] == rows["server_noble"]["value"]
    assert rows["third_party_noble"]["reading"] == "understates"
    assert rows["third_party_noble"]["compared_with"] > rows["third_party_noble"]["value"]


def test_the_probe_passes_only_a_step_in_which_records_count_for_themselves(
    good_run: Path,
) -> None:
    assert audit_run(good_run, SoftmaxProbe(0.5)).verdict is Verdict.PASS
    for wrong in ("batch", "nonfinite", "collated", "client", "all", "divisor", "stale"):
        assert failing(audit_run(good_run, SoftmaxProbe(0.5, wrong))) == {"sensitivity"}, wrong
    assert failing(audit_run(good_run, SoftmaxProbe(0.6))) == {"sensitivity"}


def test_a_probe_that_fails_or_does_nothing_is_not_verified(good_run: Path) -> None:
    class Broken(SoftmaxProbe):
        def sum_of_step(self, *_: object, **__: object) -> np.ndarray:
            raise RuntimeError("out of memory")

    class Idle(SoftmaxProbe):
        def sum_of_step(self, *_: object, **__: object) -> np.ndarray:
            return np.zeros(24)

    class Misshapen(SoftmaxProbe):
        def sum_of_step(self, *_: object, **__: object) -> np.ndarray:
            return np.zeros(3)

    for kind in (Broken, Idle, Misshapen):
        findings = audit_run(good_run, kind(0.5))
        assert unverified(findings) == {"sensitivity"}
        assert findings.verdict is Verdict.NOT_VERIFIED


def test_a_probe_of_the_clipped_sum_alone_does_not_pass(good_run: Path) -> None:
    path = good_run / "evidence" / "probe.npz"
    with np.load(path) as file:
        arrays = dict(file)
    for kind in PATH_KINDS:
        kept = arrays["kind"] != kind
        save(path, {name: one[kept] if one.ndim else one for name, one in arrays.items()})
        findings = audit_run(good_run)
        assert unverified(findings) == {"sensitivity"}
        assert "not exercised" in findings.named("sensitivity").measurement


def test_a_run_without_privacy_makes_no_claim(good_run: Path) -> None:
    def strip(entries: list[dict[str, Any]]) -> None:
        spec = entries[0]["spec_sha256"]
        entries[:] = [e for e in entries if e["kind"] != "spend"]
        entries[0].update(unit="none", spec_sha256=spec, noise_multiplier=None, delta=None)
        entries[-1] = {"kind": "claim", "view_headline": "none"}

    for path in (good_run / "evidence").iterdir():
        if path.name != "salt":
            path.unlink()
    rewrite_ledger(good_run, strip)
    rewrite_spec(
        good_run,
        lambda spec: spec.update(privacy={"unit": "none", "sampling": {"kind": "full"}}),
    )
    findings = audit_run(good_run)
    assert findings.verdict is Verdict.NO_CLAIM
    rewrite_ledger(good_run, lambda e: e[-1].update(view_headline="server"))
    assert audit_run(good_run).verdict is Verdict.FAIL


# At most 1/1000 for each check: more has a probability below 2e-4.
@pytest.mark.parametrize(("runs", "most"), [(100, 2), pytest.param(250, 3, marks=pytest.mark.slow)])
def test_false_alarms_are_as_rare_as_stated(
    tmp_path: Path, monkeypatch: Any, runs: int, most: int
) -> None:
    monkeypatch.setattr(
        synthetic_run, "_claim", lambda *_: {"kind": "claim", "view_headline": "server"}
    )
    statistical = {"noise-scale", "second-moment", "sensitivity"}
    alarms: Counter[str] = Counter()
    for seed in range(runs):
        settings = replace(GOOD, seed=1000 + seed, rounds=2, with_probe=False)
        bundle = open_bundle(build_run(tmp_path / str(seed), settings))
        for check in checks_of(RECORD):
            if check.name in statistical:
                verdict = check.judge(bundle).verdict
                alarms[check.name] += verdict is Verdict.FAIL
        shutil.rmtree(tmp_path / str(seed))
    assert max(alarms.values()) <= most, alarms


def test_the_audit_is_deterministic_and_public_part_hides_private_numbers(good_run: Path) -> None:
    first, second = audit_run(good_run), audit_run(good_run)
    text = json.dumps(first.to_json(), sort_keys=True)
    assert text == json.dumps(second.to_json(), sort_keys=True)
    digest = hashlib.sha256((good_run / "spec.yaml").read_bytes()).hexdigest()
    assert first.to_json()["inputs"]["spec.yaml"] == digest

    def numbers(value: Any) -> set[float]:
        if isinstance(value, dict):
            return {n for item in value.values() for n in numbers(item)}
        if isinstance(value, list):
            return {n for item in value for n in numbers(item)}
        return {value} if isinstance(value, float) and value not in (0.0, 1.0) else set()

    private = numbers(first.private_json())
    assert len(private) > 10
    assert not private & numbers(first.to_json())
    assert not any(f"{number:.4g}" in text for number in private)


def test_chain_helper_matches_the_builder(good_run: Path) -> None:
    assert chain(read_entries(good_run)) == (good_run / "ledger.jsonl").read_bytes()
