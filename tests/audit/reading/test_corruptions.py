"""A run directory is hostile: whatever is done to it, the audit says so, in bounded time."""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
import warnings
from pathlib import Path

import pytest

from audit import audit_run
from audit.__main__ import main, render
from audit.checks.integrity import UNATTESTED
from audit.verdict import Verdict
from tests.audit.corruptions import ENVELOPE, attest, copy, corrupt, finding_of
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, read_entries, rewrite_ledger

BAD = (Verdict.FAIL, Verdict.NOT_VERIFIED)

# What the audit does not read, by design: whether the trainer signed is for `verify` to say.
UNREAD = ENVELOPE


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two correct runs of one spec, both attested to."""
    root = tmp_path_factory.mktemp("runs")
    return tuple(
        attest(build_run(root / str(seed), Settings(seed=seed, rounds=3))) for seed in (0, 1)
    )


def _spoil(runs: tuple[Path, Path], folder: Path, seeds: range) -> None:
    first, other = runs
    for seed in seeds:
        rng = random.Random(seed)
        run = copy(first, folder / f"copy-{seed}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # two members of one name, on purpose
            what = corrupt(run, other, rng)
        start = time.process_time()
        findings = audit_run(run)
        spent = time.process_time() - start
        if not what.endswith(UNREAD):
            assert findings.verdict in BAD, (seed, what)
        assert json.dumps(findings.to_json(), allow_nan=False)
        for finding in findings.findings:
            assert "\n" not in finding.measurement, (seed, what)
        # A sound run takes 0.1 s.
        assert spent < 10.0, (seed, what, spent)
        shutil.rmtree(run)
    # The interpreter with NumPy and SciPy, and the runs, are under 0.3 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20


def test_both_runs_pass_before_anything_is_done_to_them(runs: tuple[Path, Path]) -> None:
    for run in runs:
        findings = audit_run(run)
        assert findings.verdict is Verdict.PASS
        assert findings.named("integrity").details["attested"] is True


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [0, 20, 40])
def test_twenty_random_corruptions_never_pass(
    runs: tuple[Path, Path], tmp_path: Path, first: int
) -> None:
    _spoil(runs, tmp_path, range(first, first + 20))


@pytest.mark.slow
def test_a_thousand_random_corruptions_never_pass(runs: tuple[Path, Path], tmp_path: Path) -> None:
    _spoil(runs, tmp_path, range(1000, 2000))


def test_the_command_ends_with_one_line_or_a_table(
    runs: tuple[Path, Path], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for seed in range(5000, 5012):
        run = copy(runs[0], tmp_path / f"copy-{seed}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            what = corrupt(run, runs[1], random.Random(seed))
        code = main([str(run)])
        printed = capfdbinary.readouterr()
        assert code == 1 or what.endswith(UNREAD), what
        assert b"Traceback" not in printed.out + printed.err


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "evidence/layout.json"])
def test_what_has_no_redundancy_is_held_to_the_attestation(
    runs: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    run = copy(runs[0], tmp_path / "run")
    path = run / name
    path.write_bytes(path.read_bytes() + b" ")
    integrity = finding_of(run, "integrity")
    assert integrity.verdict is Verdict.FAIL
    assert f"is not what {ENVELOPE} names" in integrity.measurement


def test_an_attestation_that_went_missing_is_noticed(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = copy(runs[0], tmp_path / "run")
    (run / ENVELOPE).unlink()
    findings = audit_run(run)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert f"{ENVELOPE}: is missing" in findings.named("integrity").measurement


@pytest.mark.parametrize("left", ["trainer.pub", "auditor.pub", "attestation.json"])
def test_what_was_written_with_an_attestation_tells_that_there_was_one(
    runs: tuple[Path, Path], tmp_path: Path, left: str
) -> None:
    run = copy(runs[0], tmp_path / "run")
    for path in (run / ENVELOPE, run / "trainer.pub"):
        path.unlink(missing_ok=True)
    (run / left).write_text("")
    assert audit_run(run).verdict is Verdict.NOT_VERIFIED


def test_an_audit_without_any_attestation_says_so(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert UNATTESTED not in audit_run(runs[0]).qualifications
    run = copy(runs[0], tmp_path / "run")
    for path in (run / ENVELOPE, run / "trainer.pub"):
        path.unlink(missing_ok=True)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().replace(b'"test_accuracy":0.', b'"test_accuracy":0.9'))
    found = audit_run(run)
    assert found.verdict is Verdict.NOT_VERIFIED
    assert found.named("integrity").verdict is Verdict.NOT_VERIFIED
    assert UNATTESTED in found.to_json()["qualifications"]
    assert f"note     {UNATTESTED}" in render(found)


def test_files_added_to_the_evidence_are_noticed(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = copy(runs[0], tmp_path / "run")
    (run / "evidence" / "more.npz").write_bytes(b"")
    assert audit_run(run).verdict is Verdict.FAIL


def test_a_run_at_client_level_is_held_to_its_attestation(tmp_path: Path) -> None:
    run = attest(build_client_run(tmp_path / "run", ClientSettings()))
    assert audit_run(run).verdict is Verdict.PASS
    (run / "metrics.jsonl").write_bytes(b"{}\n")
    assert audit_run(run).verdict is Verdict.FAIL


# When and with what a run was made: nothing of the claim follows from these fields. The profile may
# overstate, and is not compared below 1e-9. Only the trainer's attestation holds them.
TELLS_NOTHING = {
    "package",
    "accountant",
    "created",
    "digest",
    "previous",
    "commitment",
    "assumptions",
    "profile",
}


def _numbers(value: object, place: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    if isinstance(value, dict):
        return [
            found
            for key, item in value.items()
            if key not in TELLS_NOTHING
            for found in _numbers(item, (*place, key))
        ]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in _numbers(item, (*place, i))]
    return [place] if isinstance(value, int | float) and not isinstance(value, bool) else []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(24))
def test_a_ledger_rewritten_around_one_number_never_passes(
    runs: tuple[Path, Path], tmp_path: Path, seed: int
) -> None:
    """The chain is made again and nothing is attested: only what the numbers mean can tell."""
    run = copy(runs[0], tmp_path / "run")
    (run / ENVELOPE).unlink()
    (run / "trainer.pub").unlink()
    rng = random.Random(seed)
    line = rng.choice([0, -1, rng.randrange(len(read_entries(run)))])
    place = rng.choice(_numbers(read_entries(run)[line]))

    def nudge(entries: list[dict[str, object]]) -> None:
        node: object = entries[line]
        for key in place[:-1]:
            node = node[key]
        old = node[place[-1]]
        new = rng.choice([-old, old + 1, old * 3 + 1]) if isinstance(old, int) else old * 0.5
        node[place[-1]] = new if new != old else old + 1

    rewrite_ledger(run, nudge)
    assert audit_run(run).verdict in BAD, (line, place)
