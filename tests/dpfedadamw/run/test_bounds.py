"""What cannot be accounted is refused before anything is charged; what can be passes its audit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.experiment import check
from tests.runs import call, failing, judged, small_spec

ALL_ROUNDS = ("federation.rounds=1000000", "federation.local_steps=100000")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("privacy.delta=1.0e-300",), "privacy.delta: found 1e-300; must be a number at least"),
        (("privacy.noise_multiplier=1.0e-9",), "privacy.noise_multiplier: found 1e-09; must be"),
        (
            ("privacy.sampling.expected_batch_size=1.0e-300",),
            "privacy.sampling.expected_batch_size: found 1e-300; must be a number from 0.001",
        ),
        (("privacy.clipping_norm=1.0e-30",), "privacy.clipping_norm: found 1e-30; must be"),
        (("privacy.noise_multiplier=0.002",), "this run could spend an epsilon of"),
        (ALL_ROUNDS, "where 1,000,000 is the most that is accounted for"),
        (
            ("privacy.delta=0.02",),
            "a mechanism that publishes one record outright would satisfy this",
        ),
        (("privacy.sampling.expected_batch_size=500",), "whose sampling rate would exceed 1"),
    ],
)
def test_validate_refuses_in_the_words_of_run_and_nothing_is_begun(
    changes, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    sets = [word for change in changes for word in ("--set", change)]
    lines = []
    for command in (("spec", "validate"), ("epsilon",), ("run",)):
        assert call(*command, "quickstart", *sets) == 2
        lines.append(capsys.readouterr().err)
    assert said in lines[0].replace("\n", " ")
    assert lines[0] == lines[1] == lines[2]
    assert not list(tmp_path.iterdir())


def test_validate_reads_the_data_where_they_are_and_says_where_they_are_not(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(specs.dump(of_arrays(Path(), "dp-fedadamw", "")))
    assert call("spec", "validate", "a.yaml") == 0
    assert "Only its keys" not in capsys.readouterr().out
    Path("records.npz").unlink()
    assert call("spec", "validate", "a.yaml") == 0
    assert "Only its keys were checked" in capsys.readouterr().out
    assert call("spec", "validate", "a.yaml", "--json") == 0
    assert (
        json.loads(capsys.readouterr().out)["unchecked"] == "data.path: records.npz: is not there"
    )
    Path("records.npz").write_bytes(b"no archive")
    assert call("spec", "validate", "a.yaml") == 2
    assert "records.npz" in capsys.readouterr().err


def arrays(path: Path, change: str) -> None:
    """300 records of six numbers in three classes, perhaps all 0, or one number 3e38."""
    rng = np.random.default_rng(0)
    records, labels = rng.normal(size=(360, 6)).astype(np.float32), rng.integers(0, 3, 360)
    if change == "all 0":
        records[:] = 0.0
    if change == "one 3e38":
        records[5, 2] = 3e38
    np.savez(
        path, x_train=records[:300], y_train=labels[:300], x_test=records[300:], y_test=labels[300:]
    )


def of_arrays(folder: Path, algorithm: str, change: str) -> specs.Spec:
    arrays(folder / "records.npz", change)
    mapping = small_spec(algorithm).to_mapping()
    seed = mapping["data"]["seed"]
    mapping["data"] = {
        "dataset": "arrays",
        "path": str(folder / "records.npz"),
        "clients": 3,
        "partition": {"kind": "iid", "minimum_records": 60},
        "cache": str(folder / "cache"),
        "seed": seed,
    }
    mapping["federation"] |= {"rounds": 2, "clients_per_round": 2}
    return specs.loads(json.dumps(mapping))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", ["one 3e38", "all 0"])
@pytest.mark.parametrize(("algorithm", "unit"), [("dp-fedadamw", "record"), ("fed-smp", "client")])
def test_an_honest_run_on_odd_records_passes(algorithm, unit, change, tmp_path):
    spec = of_arrays(tmp_path, algorithm, change)
    assert spec.privacy.unit == unit
    findings = judged(spec, tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.thorough
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("dp-fedadamw", ("privacy.sampling.expected_batch_size=0.001",)),
        ("dp-fedadamw", ("privacy.sampling.expected_batch_size=0.05",)),
        ("dp-fedadamw", ("privacy.clipping_norm=1.0e-4",)),
        ("dp-fedavg", ("privacy.clipping_norm=1.0e-4",)),
        ("fed-smp", ("privacy.clipping_norm=1.0e-4",)),
    ],
)
def test_an_honest_run_at_the_bound_of_a_key_passes(algorithm, overrides, tmp_path):
    findings = judged(small_spec(algorithm, rounds=2, overrides=overrides), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.thorough
def test_an_honest_run_with_next_to_no_noise_does_not_fail(tmp_path):
    """Noise times gradient outweighs the squares of noise that the second moment should show."""
    spec = small_spec(rounds=2, overrides=("privacy.noise_multiplier=0.01",))
    findings = judged(spec, tmp_path)
    verdicts = {check["name"]: check["verdict"] for check in findings["checks"]}
    assert "FAIL" not in verdicts.values(), failing(findings)


def test_a_client_level_spec_is_refused_though_its_data_are_not_there(tmp_path):
    mapping = of_arrays(tmp_path, "fed-smp", "").to_mapping()
    (tmp_path / "records.npz").unlink()
    mapping["privacy"]["noise_multiplier"] = 0.001
    with pytest.raises(DpfedadamwError, match="could spend an epsilon"):
        check(specs.loads(json.dumps(mapping)))
