"""The command line as a user meets it: exit codes, one-line errors, JSON, files."""

from __future__ import annotations

import contextlib
import filecmp
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dpfedadamw.accounting import registry
from dpfedadamw.accounting.trade_off import f_dp
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.cli import terminal
from dpfedadamw.filing.after_training import load_signers
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from reports.errors import SourceError
from reports.signatures import pades, signing
from reports.signatures.copies import files_for
from tests.audit.corruptions import corrupt
from tests.limits import MOST_BYTES, MOST_SECONDS, address_space, measured
from tests.runs import PRIVATE, SMALL, call, key_of_a_test
from tests.specs.strategies import Broken, broken_specs


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """One finished run, to be copied by tests that change it, and what the command printed.

    Its key is fixed, because the audit's statistical checks have a false-alarm rate, which a test
    that must pass cannot have.
    """
    parent = tmp_path_factory.mktemp("finished")
    spec = parent / "small.yaml"
    spec.write_text(
        SMALL.format(
            algorithm="dp-fedadamw",
            rounds=3,
            clients_per_round=4,
            privacy=PRIVATE,
            mode="release",
            seed="",
        )
    )
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(told):
        patch.setattr(engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test()))
        assert call("run", str(spec), "--out", str(parent / "runs"), "--json") == 0
    return (parent / "runs" / "latest").resolve(), json.loads(told.getvalue())


@pytest.fixture(scope="module")
def run_dir(finished) -> Path:
    """The finished run's folder."""
    return finished[0]


@pytest.fixture
def changed(run_dir, tmp_path, monkeypatch) -> Path:
    """A copy of the finished run, and of the keys, beside which `verify` remembers its state."""
    shutil.copytree(os.environ["DPFEDADAMW_KEYS"], tmp_path / "keys")
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    copy = tmp_path / run_dir.name
    shutil.copytree(run_dir, copy, symlinks=True)
    return copy


def test_a_run_leaves_every_file_of_the_run_directory(run_dir):
    names = {entry.name for entry in run_dir.iterdir()}
    assert names == {
        "spec.yaml",
        "ledger.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "model.json",
        "evidence",
        "audit.json",
        "report.json",
        "report.pdf",
        "report.html",
        "attestation.json",
        "training.attestation.json",
        "VERIFY.md",
        "trainer.pub",
        "auditor.pub",
    }
    assert json.loads((run_dir / "audit.json").read_text())["verdict"] == "PASS"


def test_audit_and_verify_accept_it(run_dir):
    assert call("audit", str(run_dir)) == 0
    assert call("verify", str(run_dir)) == 0


def test_a_run_that_nobody_computed_again_is_of_level_1_and_no_more_is_required(run_dir, capsys):
    assert call("verify", str(run_dir), "--require-level", "1") == 0
    assert "level 1 of 4, consistent" in capsys.readouterr().out
    assert call("verify", str(run_dir), "--require-level", "2") == 1
    assert "level 1 of 4 is established, and 2 is required" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_that_computes_participations_again_is_of_level_2(tmp_path, capsys):
    spec = tmp_path / "small.yaml"
    fields = {"algorithm": "dp-fedadamw", "rounds": 2, "clients_per_round": 2}
    spec.write_text(SMALL.format(**fields, privacy=PRIVATE, mode="release", seed=""))
    assert call("run", str(spec), "--out", str(tmp_path), "--replay", "3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["level"] == 2
    assert told["qualifications"][0].startswith("3 of 4 participations were recomputed")
    # Of a release whose key is kept nowhere, which nobody could compute again now.
    assert call("verify", told["directory"], "--require-level", "2") == 0
    report = json.loads((Path(told["directory"]) / "report.json").read_text())
    assert report["assurance"]["level"] == 2


def test_audit_takes_the_newest_run_by_itself(run_dir, capsys):
    assert call("audit", "--out", str(run_dir.parent), "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"] == run_dir.name


def test_verify_takes_the_newest_run_by_itself(run_dir, capsys):
    assert call("verify", "--out", str(run_dir.parent)) == 0
    assert f"run {run_dir.name}\n" in capsys.readouterr().out


def test_a_run_that_was_renamed_verifies_and_where_none_is_found_by_its_name_that_is_told(
    run_dir, tmp_path, capsys
):
    shutil.copytree(run_dir, tmp_path / "renamed", symlinks=True)
    (tmp_path / "latest").symlink_to(run_dir.name)
    assert call("verify", str(tmp_path / "renamed"), "--no-memory") == 0
    capsys.readouterr()
    assert call("verify", "--out", str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert "runs in it were renamed, so the newest cannot be found by the time in its name" in told
    assert told.endswith(f"give a run's folder, such as {tmp_path / 'renamed'}\n")
    assert call("audit", str(tmp_path / "latest")) == 2
    assert f"latest: points to {run_dir.name}, which was renamed, moved" in capsys.readouterr().err


def test_in_a_pipe_no_path_is_broken(run_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    target = tmp_path / ("long" * 30) / "copy"
    assert call("bundle", str(run_dir), "--audience", "archive", "-o", str(target)) == 0
    told = capsys.readouterr().out
    assert told.count(f" {target} ") == 2
    # Prose is still told in lines that a terminal takes.
    assert call("verify", str(run_dir), "--no-memory") == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        "evidence/round-00001.npz",
        "spec.yaml",
        "ledger.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "model.json",
        "audit.json",
        "report.json",
        "report.pdf",
        "VERIFY.md",
        "trainer.pub",
        "auditor.pub",
        "training.attestation.json",
        "attestation.json",
    ],
)
def test_one_changed_byte_of_a_signed_file_is_found_and_named(name, changed, capsys):
    content = bytearray((changed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (changed / name).write_bytes(content)
    assert call("verify", str(changed)) == 1
    # Evidence is signed by one salted digest, so that it can be named as a whole only.
    assert name.partition("/")[0] in capsys.readouterr().out


def test_one_changed_number_of_the_ledger_is_found_by_the_audit(changed, capsys):
    ledger = changed / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"steps":3', b'"steps":2', 1))
    assert call("audit", str(changed), "--json") == 1
    findings = json.loads(capsys.readouterr().out)
    assert findings["verdict"] == "FAIL"
    assert "ledger.jsonl" in json.dumps(findings["checks"])


def test_without_evidence_nothing_is_verified(changed, capsys):
    shutil.rmtree(changed / "evidence")
    assert call("audit", str(changed), "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "NOT VERIFIED"


def test_an_audit_does_not_touch_the_run(changed):
    before = {p: p.read_bytes() for p in changed.rglob("*") if p.is_file()}
    call("audit", str(changed))
    assert {p: p.read_bytes() for p in changed.rglob("*") if p.is_file()} == before


def test_the_report_can_be_written_again_and_stays_the_same(changed):
    def content() -> tuple[bytes, bytes]:
        pages = (changed / "report.pdf").read_bytes()
        return (changed / "report.json").read_bytes(), pades.unsigned(pages, "report.pdf")

    before = content()
    assert call("report", str(changed)) == 0
    assert content() == before
    assert call("verify", str(changed)) == 0


def test_a_public_report_is_signed_with_the_rest(changed):
    assert call("report", str(changed), "--audience", "public") == 0
    assert call("verify", str(changed)) == 0
    assert (changed / "report-public.pdf").exists()


def test_the_public_files_are_checked_where_they_lie_alone(changed, tmp_path, capsys):
    assert call("report", str(changed), "--audience", "public") == 0
    folder = tmp_path / "for everybody"
    folder.mkdir()
    for name in files_for(changed, "public"):
        shutil.copy(changed / name, folder / name)
    assert not any((folder / name).exists() for name in ("ledger.jsonl", "spec.yaml", "audit.json"))
    capsys.readouterr()
    assert call("verify", str(folder)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("public files in for everybody")
    assert shown.rstrip().endswith("ALL HOLD")
    (folder / "model.safetensors").write_bytes(b"another model")
    assert call("verify", str(folder)) == 1
    assert "model.safetensors" in capsys.readouterr().out


def test_what_a_run_prints_tells_nobody_who_took_part(finished):
    _, printed = finished
    assert printed["privacy"]["server"]["epsilon"]["pld"] > 0
    assert "participations" not in json.dumps(printed)
    assert "clients" not in printed["privacy"]["server"]


@pytest.mark.thorough
def test_a_printed_claim_is_judged_without_a_run_in_any_width(capsys, monkeypatch):
    for width, code, name in (
        (80, 1, "dp-fedadamw-table-2-fedsam"),
        (120, 1, "review-cifar-epsilon-1"),
    ):
        monkeypatch.setattr(terminal.out, "_width", width)
        assert call("audit", "--paper-claim", name) == code
        printed = capsys.readouterr().out
        assert "expected-rounds/rdp-classic" in printed
        assert max(len(line) for line in printed.splitlines()) <= width
    assert call("audit", "--paper-claim", "review-cifar-epsilon-1", "--json") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "NOT DETERMINABLE"


def test_epsilon_says_what_a_test_for_membership_detects_at_most(capsys):
    assert call("epsilon", "quickstart", "--json") == 0
    found = json.loads(capsys.readouterr().out)["f_dp"]
    assert (found["view"], found["exact"]) == ("server_worst_case", False)
    # The client of 100 records: B = 40, σ = 2.8, 20 rounds of five steps.
    expected = f_dp(Composition(2.8, 0.4, 100))
    assert found["mu"] == pytest.approx(expected["mu"], rel=1e-9)
    assert found["trade_off"] == expected["trade_off"]
    assert call("epsilon", "quickstart") == 0
    text = " ".join(capsys.readouterr().out.split())
    printed = re.search(r"at most ([\d.]+)-GDP.* at most ([\d.]+) %, .* at most ([\d.]+) %", text)
    misses = dict(expected["trade_off"])
    exact = expected["mu"], 100 * (1 - misses[0.01]), 100 * (1 - misses[0.1])
    # Rounded, and upwards.
    for number, bound, digit in zip(printed.groups(), exact, (1e-3, 0.1, 0.1), strict=True):
        assert bound <= float(number) < bound + digit


def test_epsilon_says_what_a_spec_costs_before_it_is_trained(capsys):
    assert call("epsilon", "quickstart", "--json") == 0
    claim = json.loads(capsys.readouterr().out)
    assert 0 < claim["server"]["epsilon"]["pld"] <= 8
    assert len(claim["server"]["clients"]) == 10


def test_epsilon_is_checked_by_dp_accounting_where_that_is_asked_for(capsys):
    assert call("epsilon", "quickstart", "--check", "--json") == 0
    claim = json.loads(capsys.readouterr().out)
    ours = claim["server_worst_case"]["epsilon"]["pld"]
    # Both are exact to 0.01 % here.
    assert claim["dp_accounting"]["epsilon"] == pytest.approx(ours, rel=2e-4)
    assert call("epsilon", "quickstart", "--check") == 0
    assert "agrees to" in capsys.readouterr().out
    assert call("epsilon", "quickstart") == 0
    assert "dp-accounting" not in capsys.readouterr().out


@pytest.mark.slow
def test_epsilon_says_what_a_person_with_several_records_has(capsys):
    assert call("epsilon", "quickstart", "--records-per-person", "1,3,2", "--json") == 0
    claim = json.loads(capsys.readouterr().out)
    by_records = claim["epsilon_by_records_of_a_person"]
    assert by_records["1"] == claim["server_worst_case"]["epsilon"]["pld"]
    assert by_records["2"] == pytest.approx(16.766, abs=2e-3)
    assert by_records["3"] == pytest.approx(28.780, abs=3e-3)
    assert call("epsilon", "quickstart", "--records-per-person", "2") == 0
    assert "ε of a person with 2 records" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spec", "counts", "told"),
    [
        ("quickstart", "0", "give whole numbers from 1 to 1,000"),
        ("quickstart", "2,,3", "give whole numbers from 1 to 1,000"),
        ("digits-fixed-size", "2", "use privacy.sampling.kind: poisson"),
        ("digits-client-level", "2", "only for privacy.unit record"),
    ],
)
def test_records_of_a_person_that_nothing_covers_are_refused(spec, counts, told, capsys):
    assert call("epsilon", spec, "--records-per-person", counts) == 2
    assert told in capsys.readouterr().err


def test_an_epsilon_below_dp_accountings_ends_with_a_line_and_exit_code_1(capsys, monkeypatch):
    true = registry.ACCOUNTANTS["pld"]
    low = replace(true, epsilon=lambda parts, delta: 0.997 * true.epsilon(parts, delta))
    monkeypatch.setitem(registry.ACCOUNTANTS._entries, "pld", low)
    assert call("epsilon", "quickstart", "--check") == 1
    shown = capsys.readouterr()
    assert "DISAGREES" in shown.out
    assert shown.err.startswith("error: dp-accounting computes a larger epsilon")
    assert call("epsilon", "quickstart") == 0


def test_calibrate_writes_a_spec_that_runs_within_the_target_and_overwrites_nothing(
    tmp_path, capsys
):
    path = tmp_path / "calm.yaml"
    command = ("calibrate", "quickstart", "--target-epsilon", "3", "-o", str(path))
    assert call(*command) == 0
    capsys.readouterr()
    assert call("epsilon", str(path), "--json") == 0
    assert 2.98 <= json.loads(capsys.readouterr().out)["server"]["epsilon"]["pld"] <= 3
    before = path.read_bytes()
    assert call(*command) == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["algorithms", "models", "datasets", "specs"])
def test_everything_a_spec_can_name_is_listed(kind, capsys):
    assert call("list", kind, "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert all(entry["name"] for entry in listed)


@pytest.mark.parametrize("width", [80, 120])
def test_every_algorithm_is_listed_with_unit_and_source_in_any_width(width, monkeypatch, capsys):
    monkeypatch.setattr(terminal.out, "width", width)
    assert call("list", "algorithms") == 0
    shown = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
    words = " ".join(shown.split())
    for name, entry in ALGORITHMS.items():
        assert f"{name} {entry.unit}" in words
        assert entry.source in words
    assert "dp-fedsam record, client" in words


def test_specs_are_validated_shown_and_explained(capsys):
    assert call("spec", "validate", "quickstart") == 0
    assert call("spec", "show", "quickstart") == 0
    assert "second_moment:" in capsys.readouterr().out
    assert call("spec", "schema", "--json") == 0
    assert json.loads(capsys.readouterr().out)["$schema"].endswith("2020-12/schema")


def test_a_new_key_is_made_and_never_overwritten(tmp_path, capsys):
    assert call("keys", "new", "--role", "auditor", "--directory", str(tmp_path)) == 0
    before = (tmp_path / "auditor.key").read_bytes()
    assert call("keys", "new", "--role", "auditor", "--directory", str(tmp_path)) == 2
    assert (tmp_path / "auditor.key").read_bytes() == before
    assert "never overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "no-such-spec"), "no-such-spec"),
        (("run",), "give either a SPEC or --resume"),
        (("run", "quickstart", "--device", "tpu"), "--device tpu"),
        (("run", "quickstart", "--set", "federation.rounds=0"), "federation.rounds"),
        (("run", "quickstart", "--set", "federation.round=3"), "rounds"),
        (("run", "quickstart", "--engine", "magic"), "magic"),
        (("run", "quickstart", "--set", "data.partition.minimum_records=900"), "use at most 143"),
        (("run", "--resume", "nowhere"), "nowhere"),
        (("audit", "nowhere"), "nowhere"),
        (("audit", "--paper-claim", "no-such-claim"), "or a shipped claim's name"),
        (("audit", "run", "--paper-claim", "review-fedsam-twice"), "leave out RUN_DIR"),
        (("run", "digits-baseline-fedadamw", "--replay", "2"), "claims no privacy"),
        (("run", "quickstart", "--resume", "run"), "--resume"),
        (("run", "--resume", "run", "--set", "federation.rounds=2"), "--set: a resumed run"),
        (("run", "--resume", "run", "--challenge", "file"), "--challenge: a resumed run"),
        (
            ("run", "--resume", "run", "--challenge", "file", "--escrow", "key"),
            "--challenge: a resumed run",
        ),
        (("run", "--resume", "run", "--engine", "inline"), "--engine inline: a resumed run"),
        (("run", "quickstart", "--challenge", "file"), "--escrow FILE"),
        (("run", "--resume", "run", "--replay", "2"), "finish the run first"),
        (
            (
                "epsilon",
                "quickstart",
                "--set",
                "model={name: vit-base, fine_tuning: {rank: 1}}",
            ),
            "model.fine_tuning.kind: missing; must be",
        ),
        (("verify", "nowhere"), "nowhere"),
        (("epsilon", "digits-baseline-fedadamw"), "claims no privacy"),
    ],
)
def test_wrong_input_gives_exit_code_2_one_line_and_no_run(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    # The first run of all makes keys, and says so.
    load_signers(None, None)
    assert call(*arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def same(run: Path, other: Path) -> bool:
    """Whether two folders hold the same plain files, and nothing else."""
    names = [
        {path.relative_to(one) for path in one.rglob("*") if path.is_symlink() or not path.is_dir()}
        for one in (run, other)
    ]
    return names[0] == names[1] and all(
        (run / name).is_file() and filecmp.cmp(run / name, other / name, shallow=False)
        for name in names[0]
    )


def spoil(run_dir: Path, folder: Path, seeds: range, capsys) -> None:
    """Spoil copies of a finished run; audit and verify must notice, and end in order."""
    for seed in seeds:
        rng = random.Random(seed)
        run = folder / run_dir.name
        shutil.copytree(run_dir, run, symlinks=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # two members of one name, on purpose
            done = [corrupt(run, run_dir, rng) for _ in range(rng.choice((1, 1, 1, 2)))]
        codes = []
        for command in ("audit", "verify"):
            capsys.readouterr()
            with measured() as spent:
                codes.append(call(command, str(run), "--json"))
            printed = capsys.readouterr()
            assert codes[-1] in (0, 1, 2), (seed, done, printed.err)
            assert "Traceback" not in printed.out + printed.err, (seed, done)
            assert json.loads(printed.out), (seed, done)
            assert spent.seconds < MOST_SECONDS, (seed, done, command, spent)
            assert spent.bytes < MOST_BYTES, (seed, done, command, spent)
        # Of two changes, the second may have undone the first.
        assert any(codes) or same(run, run_dir), (seed, done)
        shutil.rmtree(run)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(16))
def test_a_spoilt_bundle_is_noticed_readably(seed, run_dir, tmp_path, capsys):
    with address_space(4 * 2**30):
        spoil(run_dir, tmp_path, range(seed, seed + 1), capsys)


@pytest.mark.slow
def test_two_thousand_spoilt_bundles_are_noticed_readably(run_dir, tmp_path, capsys):
    with address_space(4 * 2**30):
        spoil(run_dir, tmp_path, range(10_000, 12_000), capsys)


def refused(broken: Broken, tmp_path: Path, capsys) -> None:
    """Hand a broken spec to `run`, which must say so and leave nothing."""
    spec = tmp_path / "broken.yaml"
    spec.write_bytes(broken.content)
    capsys.readouterr()
    assert call("run", str(spec), "--out", str(tmp_path / "runs")) == 2
    error = capsys.readouterr().err
    assert "broken.yaml" in error
    assert "Traceback" not in error
    assert "internal error" not in error
    assert not (tmp_path / "runs").exists()


_IN_ONE_FOLDER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(broken=broken_specs())
@settings(max_examples=8, suppress_health_check=_IN_ONE_FOLDER)
def test_a_few_broken_specs_are_refused_readably_and_leave_nothing(broken, tmp_path, capsys):
    refused(broken, tmp_path, capsys)


@pytest.mark.thorough
@given(broken=broken_specs())
@settings(max_examples=100, suppress_health_check=_IN_ONE_FOLDER)
def test_a_hundred_broken_specs_are_refused_readably_and_leave_nothing(broken, tmp_path, capsys):
    refused(broken, tmp_path, capsys)


@pytest.mark.thorough
def test_a_report_whose_signing_fails_is_finished_by_resume(changed, monkeypatch, capsys):
    def full(*_arguments, **_more):
        raise SourceError("attestation.json: cannot be written (No space left on device)")

    with monkeypatch.context() as patch:
        patch.setattr(signing, "sign", full)
        assert call("report", str(changed), "--audience", "public") == 2
    (changed / "report-public.pdf").unlink()
    assert call("verify", str(changed)) == 1
    assert call("run", "--resume", str(changed)) == 0
    capsys.readouterr()
    assert call("verify", str(changed)) == 0
    assert (changed / "report-public.pdf").is_file()
    assert call("run", "--resume", str(changed)) == 0
    assert "this run is already finished" in capsys.readouterr().err


def test_resume_signs_nothing_that_was_changed_since_training(changed, capsys):
    with open(changed / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("\n")
    before = {path: path.read_bytes() for path in changed.glob("*.*")}
    assert call("run", "--resume", str(changed)) == 1
    assert capsys.readouterr().err == (
        "error: metrics.jsonl: changed since training.attestation.json was signed; nothing was "
        "signed again\n"
    )
    assert {path: path.read_bytes() for path in changed.glob("*.*")} == before


def test_a_new_signature_of_the_trainer_is_followed_by_the_auditors(changed):
    assert call("sign", str(changed), "--role", "trainer") == 0
    assert call("verify", str(changed)) == 1
    assert call("run", "--resume", str(changed)) == 0
    assert call("verify", str(changed)) == 0


_HEAVY = (
    "torch", "sklearn", "matplotlib", "typst", "fontTools", "dp_accounting", "scipy.stats",
    "scipy", "jsonschema", "cryptography", "numpy", "scipy.optimize", "scipy.signal", "aiohttp",
)  # fmt: skip
_STARTED = """
import json, sys
from dpfedadamw.cli import main
found = {}
for line in json.loads(sys.argv[1]):
    try:
        main(line)
    except SystemExit as end:
        loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
        found[line[0]] = [end.code, loaded]
print("\\n" + json.dumps(found))
"""


@pytest.mark.thorough
def test_commands_that_compute_little_load_little(run_dir, tmp_path):
    # In one process, so each command's list holds what those before it loaded.
    lines = [
        ["--help"],
        ["list", "algorithms"],
        ["spec", "validate", "quickstart"],
        ["epsilon", "quickstart"],
        ["verify", str(run_dir)],
        ["compare", str(run_dir)],
    ]
    done = subprocess.run(
        [sys.executable, "-c", _STARTED, json.dumps(lines), json.dumps(_HEAVY)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["--help"] == [0, []]
    assert found["list"] == [0, []]
    numbers = {"scipy", "jsonschema", "numpy"}
    for command in ("spec", "epsilon"):
        code, loaded = found[command]
        assert code == 0
        assert set(loaded) <= numbers
    for command in ("verify", "compare"):
        code, loaded = found[command]
        assert code == 0
        assert set(loaded) <= numbers | {"cryptography"}


_RUN = """
import sys
from dpfedadamw.cli import main
try:
    main(["run", "quickstart", "--set", "federation.rounds=2", "--out", sys.argv[1]])
except SystemExit as end:
    assert end.code == 0
ours = [name for name in sys.modules if name.split(".")[0] in ("dpfedadamw", "audit", "reports")]
print(len([name for name in ours if getattr(sys.modules[name], "__file__", None)]))
"""


@pytest.mark.slow
def test_a_run_its_audit_and_its_report_are_300_files_at_most(tmp_path):
    """A reader of the quickstart has no more to read than what it loads."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) <= 300
