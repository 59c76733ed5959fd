"""The audit of runs that protect whole clients: correct ones pass, and each fault has its check."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit import UpdateProbe, record_probe
from audit.accounting.budget import Steps, budget
from audit.checks import checks_for, checks_of
from audit.checks.client.accounting import composed_multiplier
from audit.checks.client.views import TRUSTED_SERVER
from audit.checks.participation import dispersion_p_value, rounds_to_see_constant_counts
from audit.checks.reexecution import WORD
from audit.probe.updates import CLIENT_KINDS, UPDATE_KINDS, run_update_probe
from audit.reading.bundle import open_bundle
from audit.reading.units import CLIENT
from audit.verdict import Findings, Verdict
from tests.audit import synthetic_client_run
from tests.audit.corruptions import attest, finding_of
from tests.audit.corruptions import audit_attested as audit_run
from tests.audit.synthetic_client_run import ClientSettings, SumProbe, build_client_run
from tests.audit.synthetic_run import (
    Settings,
    SoftmaxProbe,
    build_run,
    read_entries,
    rewrite_ledger,
    rewrite_round,
    rewrite_spec,
)

GOOD = ClientSettings()
BY_CLIENTS = replace(GOOD, noise_added_by="clients")


def failing(findings: Findings) -> set[str]:
    return {f.name for f in findings.findings if f.verdict is Verdict.FAIL}


def unverified(findings: Findings) -> set[str]:
    # That nothing was computed again is said of every run here, for nobody asked for it.
    found = {f.name for f in findings.findings if f.verdict is Verdict.NOT_VERIFIED}
    return found - {"reexecution"}


def fails(run: Path, name: str) -> bool:
    """Whether one check, and so the audit, fails a run that its trainer signed just now."""
    return finding_of(attest(run), name).verdict is Verdict.FAIL


@pytest.fixture(scope="module")
def _built_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attest(build_client_run(tmp_path_factory.mktemp("good") / "run", GOOD))


@pytest.fixture
def good_client_run(_built_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_built_run, tmp_path / "run"))


@pytest.fixture(scope="module")
def noisy_uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients add the noise, which no test changes."""
    settings = replace(BY_CLIENTS, seed=4)
    return build_client_run(tmp_path_factory.mktemp("by-clients") / "run", settings)


@pytest.mark.parametrize(
    "settings",
    [
        GOOD,
        BY_CLIENTS,
        replace(GOOD, empty_round=2),
        replace(BY_CLIENTS, empty_round=2),
        replace(GOOD, resumed_round=5),
        replace(BY_CLIENTS, resumed_round=5, empty_round=6),
        replace(GOOD, rounds=1),
        replace(GOOD, clients_per_round=12),
        replace(GOOD, sizes=(3, 2, 2)),
        replace(GOOD, sparsification="random"),
        replace(GOOD, sparsification="released-top", kept=1, sample=1),
        replace(BY_CLIENTS, sparsification="released-top", empty_round=3),
        replace(BY_CLIENTS, sparsification="local-top"),
    ],
    ids=lambda settings: ",".join(
        f"{key}={value}" for key, value in vars(settings).items() if value != getattr(GOOD, key)
    ),
)
def test_a_correct_run_passes(tmp_path: Path, settings: ClientSettings) -> None:
    run = build_client_run(tmp_path / "run", settings)
    findings = audit_run(run)
    assert findings.verdict is Verdict.PASS, [f.measurement for f in findings.findings]
    asked = checks_for(open_bundle(run).header)
    assert [f.name for f in findings.findings] == [check.name for check in asked]
    assert findings.named("second-moment").verdict is Verdict.NOT_APPLICABLE
    trusted = settings.noise_added_by == "server"
    assert findings.qualifications == ((WORD, TRUSTED_SERVER) if trusted else (WORD,))


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        ({"noise_scale": 0.5}, {"noise-scale"}),
        ({"noise_scale": 2 / 3}, {"noise-scale"}),
        ({"noise_scale": 1.5}, {"noise-scale"}),
        ({"noise_added_by": "clients", "upload_noise_scale": 0.5}, {"noise-scale"}),
        ({"ledger_sigma_extra": 0.5}, {"noise-scale", "promise"}),
        ({"realised_divisor": True}, {"promise"}),
        ({"unclipped_update": True}, {"sensitivity"}),
        ({"silent_empty_round": True, "empty_round": 3}, {"noise-scale"}),
        ({"reuse_between_rounds": True}, {"noise-scale"}),
        ({"fixed_cohort": True}, {"participation"}),
        ({"fixed_number": True}, {"participation"}),
        ({"rota": True}, {"participation"}),
        ({"claim_scale": 0.97}, {"accounting"}),
        ({"claim_scale": 1.2}, {"accounting"}),
        ({"server_epsilon": 3.0}, {"views"}),
        ({"noise_added_by": "clients", "amplified_server": True}, {"accounting"}),
        ({"delta": 0.09}, {"promise"}),
        ({"realised_traffic": True}, {"publication"}),
        ({"sparsification": "random", "dense_noise": True}, {"noise-scale"}),
        ({"sparsification": "random", "noise_scale": 0.5}, {"noise-scale"}),
        ({"sparsification": "random", "own_coordinates": True}, {"coordinates"}),
        ({"sparsification": "released-top", "other_coordinates": True}, {"coordinates"}),
        ({"sparsification": "random", "released_elsewhere": 1e-12}, {"coordinates"}),
        ({"sparsification": "random", "ledger_kept_extra": 1}, {"promise"}),
        (
            {"sparsification": "random", "ledger_hides_sparsification": True},
            {"promise", "coordinates", "noise-scale"},
        ),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_each_fault_is_caught_by_its_check(
    tmp_path: Path, fault: dict[str, Any], caught_by: set[str]
) -> None:
    findings = audit_run(build_client_run(tmp_path / "run", replace(GOOD, **fault)))
    assert findings.verdict is Verdict.FAIL
    assert caught_by == failing(findings)


def test_noise_missing_on_single_uploads_is_caught(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", BY_CLIENTS)

    def silence(arrays: dict[str, Any]) -> None:
        arrays["upload_noise_sum_squares"][0] = 0.0

    index = next(
        entry["round"]
        for entry in map(json.loads, (run / "ledger.jsonl").read_text().splitlines())
        if entry["kind"] == "spend" and len(entry["clients"]) > 1
    )
    rewrite_round(run, index, silence)
    findings = audit_run(run)
    assert failing(findings) == {"noise-scale"}
    assert f"round {index}: an upload carries no noise" in findings.named("noise-scale").measurement


@pytest.mark.parametrize(
    ("change", "caught_by"),
    [
        (lambda e: e.pop(1), "integrity"),
        (lambda e: e.insert(2, dict(e[1])), "integrity"),
        (lambda e: e[1]["clients"].append(11), "integrity"),
        (lambda e: e[1].update(attempt=2), "integrity"),
        (lambda e: e.insert(1, e.pop(3)), "integrity"),
        (lambda e: e[1].update(unit="nobody"), "integrity"),
        (lambda e: e[0].update(participation=0.5), "promise"),
        (lambda e: e[1].update(sampling_rate=0.2), "promise"),
        (lambda e: e[1].update(expected_clients=2), "promise"),
        (lambda e: e[1].update(clipping_norm=0.4), "promise"),
        (lambda e: e[1].update(noise_added_by="clients"), "promise"),
        (lambda e: e[1].update(upload_noise_multiplier=9.0), "promise"),
        (lambda e: e[0].update(client_sampling="fixed-size"), "promise"),
        (lambda e: e[-1].update(view_headline="server"), "views"),
        (lambda e: e[-1].update(closed_forms={}), "views"),
        (lambda e: e[-1]["third_party"].update(participation=0.1), "views"),
        (lambda e: e[-1]["third_party"].update(rounds=3), "accounting"),
        (lambda e: e[-1]["third_party"]["epsilon"].update(rdp=0.1), "accounting"),
        (lambda e: e[-1]["third_party"].update(delta_clients=0.5), "accounting"),
        (lambda e: e[-1]["profile"][3].__setitem__(1, 1e-9), "accounting"),
        (lambda e: e[-1]["gaussian_dp"].update(mu=0.9 * e[-1]["gaussian_dp"]["mu"]), "accounting"),
        (lambda e: e[0].update(seed=3), "randomness"),
    ],
)
def test_a_consistently_rewritten_ledger_is_caught(
    good_client_run: Path, change: Callable[[list[dict[str, Any]]], object], caught_by: str
) -> None:
    rewrite_ledger(good_client_run, lambda entries: (change(entries), None)[1])
    assert fails(good_client_run, caught_by)


@pytest.mark.parametrize(
    ("change", "caught_by"),
    [
        (lambda e: e[-1]["server"].update(epsilon=0.5), "accounting"),
        (lambda e: e[-1]["server"]["clients"].pop(0), "accounting"),
        (lambda e: e[-1]["server"]["clients"][0].update(participations=99), "accounting"),
        (lambda e: e[-1]["server"].update(epsilon=None), "accounting"),
        (lambda e: e[1].update(upload_noise_multiplier=1.5), "promise"),
    ],
)
def test_a_rewritten_claim_towards_the_server_is_caught(
    noisy_uploads: Path,
    tmp_path: Path,
    change: Callable[[list[dict[str, Any]]], object],
    caught_by: str,
) -> None:
    run = Path(shutil.copytree(noisy_uploads, tmp_path / "run"))
    rewrite_ledger(run, lambda entries: (change(entries), None)[1])
    assert fails(run, caught_by)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["privacy"].update(noise_multiplier=2.0),
        lambda spec: spec["privacy"].update(unit="record"),
        lambda spec: spec["privacy"].update(noise_added_by="clients"),
        lambda spec: spec["privacy"].update(target_epsilon=0.5),
        lambda spec: spec["privacy"]["sampling"].update(kind="shuffled"),
        lambda spec: spec["federation"].update(clients_per_round=4),
        lambda spec: spec["privacy"].pop("noise_added_by"),
    ],
)
def test_a_broken_promise_is_caught(
    good_client_run: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite_spec(good_client_run, lambda spec: (change(spec), None)[1])
    assert fails(good_client_run, "promise")


@pytest.mark.parametrize(
    ("name", "change", "caught_by"),
    [
        ("noise_sample", lambda a: a * 2.0, "noise-scale"),
        ("noise_sample", lambda a: np.abs(a), "noise-scale"),
        ("noise_sum_squares", lambda a: a * 2.0, "noise-scale"),
        ("attempt", lambda a: a + 1, "integrity"),
        ("divisor", lambda a: a * 1.01, "promise"),
        ("clipped_norms", lambda a: a * 0.9, "sensitivity"),
        ("nonfinite", lambda a: a + 1, "sensitivity"),
        ("clients", lambda a: (a + 1) % 12, "integrity"),
    ],
)
def test_changed_evidence_is_caught(
    good_client_run: Path, name: str, change: Callable[[np.ndarray], np.ndarray], caught_by: str
) -> None:
    for index in range(GOOD.rounds):

        def apply(arrays: dict[str, Any]) -> None:
            arrays[name] = np.asarray(change(arrays[name])).astype(arrays[name].dtype)

        rewrite_round(good_client_run, index, apply)
    assert fails(good_client_run, caught_by)


@pytest.mark.parametrize("name", ["round-00001.npz", "layout.json", "partition.npz", "probe.npz"])
def test_missing_evidence_is_not_verified(good_client_run: Path, name: str) -> None:
    (good_client_run / "evidence" / name).unlink()
    findings = audit_run(good_client_run)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert not failing(findings)


def test_a_run_without_evidence_is_not_verified(good_client_run: Path) -> None:
    shutil.rmtree(good_client_run / "evidence")
    findings = audit_run(good_client_run)
    evidence = {"integrity", "promise", "sensitivity", "coordinates", "noise-scale", "uploads"}
    evidence |= {"partition", "disclosure", "outside-budget", "weights", "randomness"}
    assert unverified(findings) == evidence
    assert findings.named("accounting").verdict is Verdict.PASS


def test_unrecorded_noise_of_uploads_is_not_verified(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", BY_CLIENTS)
    for index in range(BY_CLIENTS.rounds):
        rewrite_round(run, index, lambda arrays: arrays.pop("upload_noise_sum_squares", None))
    assert unverified(audit_run(run)) == {"integrity", "noise-scale", "randomness"}


def test_the_probe_passes_only_a_sum_that_clips_whole_updates(good_client_run: Path) -> None:
    assert isinstance(SumProbe(0.5), UpdateProbe)
    assert not isinstance(SoftmaxProbe(0.5), UpdateProbe)
    assert audit_run(good_client_run, SumProbe(0.5)).verdict is Verdict.PASS
    wrongs = ("tensor", "nothing", "mean", "nonfinite", "all", "onward", "divisor", "stale")
    for wrong in wrongs:
        assert failing(audit_run(good_client_run, SumProbe(0.5, wrong))) == {"sensitivity"}, wrong
    assert failing(audit_run(good_client_run, SumProbe(0.6))) == {"sensitivity"}
    # A probe of the step on records says nothing about updates.
    assert unverified(audit_run(good_client_run, SoftmaxProbe(0.5))) == {"sensitivity"}


def test_the_probe_of_updates_leaves_the_arrays_of_a_probe_of_records(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    with np.load(record_probe(tmp_path, SoftmaxProbe(0.5))) as file:
        names = set(file)
    arrays = run_update_probe(SumProbe(0.5))
    assert set(arrays) == names
    assert set(UPDATE_KINDS) < set(arrays["kind"].tolist())
    # The probe must not be idle: honest clipping lets an ordinary client move the sum.
    added = np.isin(arrays["kind"], (*UPDATE_KINDS, *CLIENT_KINDS))
    assert arrays["difference_norm"][added].max() == pytest.approx(0.5, rel=1e-6)


def test_another_units_charges_are_refused(good_client_run: Path, tmp_path: Path) -> None:
    records = build_run(tmp_path / "records", Settings())
    of_round, of_client = read_entries(good_client_run)[1], read_entries(records)[1]
    for run, foreign in ((records, of_round), (good_client_run, of_client)):
        rewrite_ledger(run, lambda entries, line=foreign: entries.insert(1, line))
        found = finding_of(attest(run), "integrity")
        assert "ledger.jsonl:2: charges a" in found.measurement
        assert found.verdict is Verdict.FAIL


def test_gaussian_uploads_compose_exactly() -> None:
    multipliers = [1.5, 0.8, 2.0, 2.0]
    history = [Steps(1.0, sigma, 1) for sigma in multipliers]
    one = [Steps(1.0, composed_multiplier(multipliers), 1)]
    # Both are PLD bounds with a discretisation error below 0.1 %.
    assert budget(one, 1e-4).headline == pytest.approx(budget(history, 1e-4).headline, rel=2e-3)


def test_losses_over_rounds_grow_to_the_final_ones(tmp_path: Path) -> None:
    for settings in (GOOD, BY_CLIENTS):
        run = build_client_run(tmp_path / settings.noise_added_by, settings)
        details = finding_of(run, "accounting").details
        rows = details["over_rounds"]
        third = [row["third_party"] for row in rows]
        assert third == sorted(third)
        assert third[-1] == pytest.approx(details["epsilon"], rel=1e-3)
        if settings.noise_added_by == "server":
            assert {row["server"] for row in rows} == {None}
        else:
            largest = max(row["epsilon"]["pld"] for row in details["clients"])
            assert rows[-1]["server"] == pytest.approx(largest)


@pytest.mark.parametrize(
    ("count", "trials", "rate"), [(1, 12, 0.25), (6, 12, 0.25), (40, 8, 0.5), (200, 1000, 0.1)]
)
def test_p_values_of_the_scatter_are_honest(count: int, trials: int, rate: float) -> None:
    rng = np.random.default_rng(count)
    values = np.array(
        [dispersion_p_value(rng.binomial(trials, rate, count), trials, rate) for _ in range(600)]
    )
    # 600 draws: a rate of 5 % is seen as at most 8.2 % but with probability 1e-3.
    assert np.mean(values <= 0.05) <= 0.082


def test_the_scatter_sees_counts_that_are_too_even_or_too_wild() -> None:
    even = np.full(20, 25)
    wild = np.array([0, 50] * 10)
    assert dispersion_p_value(even, 100, 0.25) < 1e-6
    assert dispersion_p_value(wild, 100, 0.25) < 1e-6


def test_the_stated_power_is_the_real_one(tmp_path: Path) -> None:
    least = rounds_to_see_constant_counts(12, 0.25, 3e-4)
    assert dispersion_p_value(np.full(least, 3), 12, 0.25) < 3e-4
    assert dispersion_p_value(np.full(least - 1, 3), 12, 0.25) >= 3e-4
    for rounds, caught in ((least - 1, False), (least, True)):
        settings = replace(GOOD, rounds=rounds, fixed_number=True, seed=3)
        run = build_client_run(tmp_path / str(rounds), settings)
        found = finding_of(run, "participation")
        assert (found.verdict is Verdict.FAIL) is caught
        assert ("not in this run" in found.power.split(";")[0]) is not caught


# At most 1/1000 for each check: more has a probability below 2e-4.
@pytest.mark.parametrize(("runs", "most"), [(100, 2), pytest.param(250, 3, marks=pytest.mark.slow)])
def test_false_alarms_are_as_rare_as_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int, most: int
) -> None:
    # These checks do not read the claim, which takes most of the time of a run.
    monkeypatch.setattr(
        synthetic_client_run,
        "client_claim",
        lambda *_: {"kind": "claim", "view_headline": "third-party"},
    )
    statistical = {"noise-scale", "participation"}
    alarms: Counter[str] = Counter()
    for seed in range(runs):
        settings = replace(BY_CLIENTS, seed=500 + seed, rounds=6, with_probe=False)
        bundle = open_bundle(build_client_run(tmp_path / str(seed), settings))
        for check in checks_of(CLIENT):
            if check.name in statistical:
                alarms[check.name] += check.judge(bundle).verdict is Verdict.FAIL
        shutil.rmtree(tmp_path / str(seed))
    assert max(alarms.values()) <= most, alarms


def test_the_public_part_hides_private_numbers(tmp_path: Path) -> None:
    findings = audit_run(build_client_run(tmp_path / "run", BY_CLIENTS))
    text = json.dumps(findings.to_json(), sort_keys=True)
    private = json.dumps(findings.private_json())
    for name in ("variance_ratios", "share_clipped", "p_value"):
        assert name in private
        assert name not in text


def test_a_public_count_of_participants_is_caught_under_any_name(good_client_run: Path) -> None:
    rounds = [entry for entry in read_entries(good_client_run) if entry["kind"] == "round"]
    lines = [
        json.dumps({"round": entry["round"] + 1, "people": len(entry["clients"]) / 12})
        for entry in rounds
    ]
    (good_client_run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    # That the name is none of a public metric's is found as well.
    assert failing(audit_run(good_client_run)) == {"publication", "disclosure"}
    (good_client_run / "metrics.jsonl").write_text("{")
    assert unverified(audit_run(good_client_run)) == {"publication", "disclosure"}


@pytest.mark.parametrize("name", ["test_accuracy", "learning_rate"])
@pytest.mark.parametrize(("different", "verdict"), [(3, Verdict.PASS), (4, Verdict.FAIL)])
def test_a_number_that_is_a_multiple_of_the_participants_may_be_chance_over_few_counts(
    different: int, verdict: Verdict, name: str, good_client_run: Path
) -> None:
    # An honest run of 3, 4 and 6 clients had 33, 44 and 66 of its test records right; of a cosine
    # over two rounds the second rate is half of the first, as participants may be.
    entries = [entry for entry in read_entries(good_client_run) if entry["kind"] == "round"]
    chosen: dict[int, int] = {}
    for entry in entries:
        chosen.setdefault(len(entry["clients"]), entry["round"] + 1)
    lines = [
        json.dumps({"round": number, name: 11 * count / 359})
        for count, number in list(chosen.items())[:different]
    ]
    assert len(lines) == different
    (good_client_run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert finding_of(good_client_run, "publication").verdict is verdict


@pytest.mark.parametrize(
    "missing", ["kept_digest", "upload_kept_digests", "elsewhere_sum_squares", "released"]
)
def test_public_coordinates_without_their_evidence_are_not_verified(
    tmp_path: Path, missing: str
) -> None:
    run = build_client_run(tmp_path / "run", replace(GOOD, sparsification="released-top"))
    rewrite_round(run, 4, lambda arrays: arrays.pop(missing))
    findings = audit_run(run)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert "coordinates" in unverified(findings)


def test_more_coordinates_than_fit_into_memory_are_not_verified(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", replace(GOOD, sparsification="random"))

    def enlarge(entries: list[dict[str, Any]]) -> None:
        entries[0]["parameters"] = entries[0]["sparsification"]["size"] = 10**11

    rewrite_ledger(run, enlarge)
    findings = audit_run(run)
    assert findings.verdict is not Verdict.PASS
    assert {"coordinates", "noise-scale"} <= unverified(findings)


def test_a_release_of_the_wrong_length_is_not_verified(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", replace(GOOD, sparsification="released-top"))

    def shorten(arrays: dict[str, Any]) -> None:
        arrays["released"] = arrays["released"][:-1]

    rewrite_round(run, 4, shorten)
    findings = audit_run(run)
    assert "coordinates" in unverified(findings)
    assert findings.named("coordinates").measurement.startswith("round 4: released")
