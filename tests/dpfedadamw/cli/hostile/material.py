"""Good files for every command, made once: what hostile ones are made of."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfedadamw import spec as specs
from dpfedadamw.extensions.gate.door import Gate, Refused
from dpfedadamw.filing import after_training
from dpfedadamw.run.training import train
from reports import run_rows
from reports.content import parts
from reports.signatures import signing
from tests.challenged import challenged
from tests.dpfedadamw.extensions.deployment.loops import led, made, opened
from tests.dpfedadamw.extensions.recorders import loops
from tests.runs import PICTURE, begin, call, small_spec

_TABLE = """
version: 1
name: table
data: {{dataset: table, path: {path}, label: label, numbers: [a, b], clients: 3}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: dp-fedadamw, learning_rate: 0.1}}
federation: {{rounds: 1, clients_per_round: 3, local_steps: 1}}
privacy: {{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5,
  sampling: {{kind: poisson, expected_batch_size: 4}}}}
"""
_MATRIX = "matrix:\n  privacy.noise_multiplier: [1.0, 2.0]\n"
_STATEMENTS = """
purpose: To test.
governance: {controller: Nobody, region: Nowhere, publication_date: 2026-11-22,
  registry_authors: Nobody}
"""
_CLAIM = Path("audit/extensions/claims/papers/ali-dpfl-epsilon-2-5.yaml")


def make(folder: Path) -> None:
    """Fill a folder with good files."""
    with pytest.MonkeyPatch.context() as patch:
        # No test looks at the reports' pictures, which take half of the time.
        patch.setattr(parts, "draw", lambda *_: PICTURE)
        _make(folder)


def _make(folder: Path) -> None:
    parties = challenged(folder)
    assert parties.draw(2) == parties.open() == 0
    run = parties.run
    assert parties.trainer("report", str(run), "--audience", "public") == 0
    (folder / "runs" / "latest").unlink()
    keys = (folder / "trainer-keys").rename(folder / "keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(keys))
        patch.chdir(folder)
        _runs(folder, run)
        _interrupted(folder)
        _others(folder)


def _runs(folder: Path, run: Path) -> None:
    (folder / "spec.yaml").write_text(specs.dump(small_spec(rounds=2)))
    assert call("run", "spec.yaml", "--out", "second") == 0
    second = (folder / "second" / "latest").resolve()
    second.rename(folder / "runs" / "second-20261122T120000Z-00000002")
    shutil.rmtree(folder / "second")
    assert call("report", "--compare", *map(str, sorted((folder / "runs").iterdir())),
                "--output", "comparison") == 0  # fmt: skip
    assert call("bundle", str(run), "--audience", "public", "--output", "public") == 0
    assert call("sign-off", str(run), "--output", "annex.pdf", "--decision", "Yes.",
                "--name", "A. Officer", "--key", "keys/auditor.key") == 0  # fmt: skip
    begun = folder / "begun-20261122T120000Z-00000003"
    shutil.copytree(folder / "runs" / "second-20261122T120000Z-00000002", begun)
    _cut_off(begun)


def _cut_off(run: Path) -> None:
    """Leave of a run what a trainer leaves that is killed before the report."""
    for name in ("attestation.json", "report.json", "report.pdf", "report.html", "VERIFY.md"):
        (run / name).unlink(missing_ok=True)


def _interrupted(folder: Path) -> None:
    """A run that was cut off after its first round, with its checkpoint."""

    def stop(*_round: object) -> None:
        raise KeyboardInterrupt

    training = begin(small_spec(rounds=2), folder / "interrupted")
    with training.lock, contextlib.suppress(KeyboardInterrupt):
        train(training, on_round=stop)
    training.run.path.rename(folder / "cut")
    shutil.rmtree(folder / "interrupted")


def _others(folder: Path) -> None:
    """What is no run: specs, results, budgets, tables, recordings, federations and keys."""
    (folder / "matrix.yaml").write_text(specs.dump(small_spec(rounds=1)) + _MATRIX)
    row = dict.fromkeys(run_rows.COLUMNS) | {
        "audit": "PASS", "signatures": "holds", "algorithm": "dp-fedadamw", "unit": "record",
        "delta": 1e-5, "epsilon_server_worst_case": 2.0, "epsilon_third_party": 1.0,
        "test_accuracy": 0.5, "test_loss": 1.0, "rounds": 2,
    }  # fmt: skip
    for name in ("one", "two"):
        (folder / "sweeps" / name).mkdir(parents=True)
        rows = [
            {"cell": f"{method}-{seed}", "axis.method": method, "seed": seed, **row,
             "run": f"{name}-{method}-{seed}", "test_accuracy": 0.5 + 0.01 * seed}
            for method in ("a", "b") for seed in range(3)
        ]  # fmt: skip
        (folder / "sweeps" / name / "results.csv").write_text(run_rows.as_csv(rows))
    budget = "budget={file: budget.sqlite, epsilon: 40.0, delta: 1.0e-5}"
    budget = small_spec(overrides=(budget,), rounds=1)
    (folder / "budget.yaml").write_text(specs.dump(budget))
    assert call("run", "budget.yaml", "--out", "budgeted") == 0
    shutil.rmtree(folder / "budgeted")
    shutil.copy(_REPOSITORY / _CLAIM, folder / "claim.yaml")
    (folder / "statements.yaml").write_text(_STATEMENTS)
    loops.federated_client(
        folder / "recorded", keeps_its_accountant=True, knows_its_last_round=False
    )
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'ab'[int(a > b)]}" for a, b in rng.normal(size=(240, 2))]
    (folder / "table.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    np.savez(
        folder / "records.npz", inputs=rng.normal(size=(240, 2)), labels=rng.integers(0, 2, 240)
    )
    np.savez(
        folder / "rows.npz", x=np.linspace(0.0, 1.0, 192, dtype=np.float32).reshape(3, 1, 8, 8)
    )
    (folder / "table.yaml").write_text(_TABLE.format(path="table.csv"))
    project = made(
        small_spec(rounds=1, clients_per_round=3, overrides=("data.clients=3",)), folder / "project"
    )
    clients = opened(project)
    led(project, clients)
    for client in clients.values():
        client.close()
    _gate(folder)
    for name in ("list", "others"):
        assert call("keys", "new", "--role", "trainer", "--directory", name) == 0
    assert call("keys", "rotate", "--role", "trainer", "--directory", "others") == 0
    assert call("keys", "revoke", "--role", "trainer", "--reason", "superseded", "--directory",
                "list", "--yes") == 0  # fmt: skip


def _gate(folder: Path) -> None:
    """A gate that released once, its shards, and the arrays that it lets out."""
    arrays = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    save_file(arrays, folder / "gate.safetensors")
    assert call("gate", "init", "gate", "--unit", "record", "--shards", "3", "--clip", "1",
                "--epsilon", "2", "--delta", "1e-5", "--releases", "5", "--model",
                "gate.safetensors", "--anchor", "gate-anchor.json") == 0  # fmt: skip
    update = np.linspace(-1, 1, 60, dtype="f4")
    noise = np.random.default_rng(0).normal(size=60).astype("f4")
    save_file({"w": update}, folder / "before.safetensors")
    save_file({"w": update + noise}, folder / "after.safetensors")
    settings = folder / "gate" / "gate.yaml"
    # A copy of the folder has an anchor of its own.
    settings.write_text(
        settings.read_text().replace(str(folder / "gate-anchor.json"), "../gate-anchor.json")
    )
    assert call("gate", "shards", str(settings), "table.csv", "shards") == 0
    gate = Gate.open(settings)
    gate.release(job="job", request="one", broadcast=arrays, shards=[arrays, arrays, None])
    with contextlib.suppress(Refused):
        gate.release(job="a job", request="two", broadcast=arrays, shards=[None, None, None])


def sign_again(run: Path, keys: Path) -> None:
    """The last step of an attacker who has keys, so that signatures hold over what is spoilt."""
    os.environ["DPFEDADAMW_KEYS"] = str(keys)
    for role in (("trainer", "auditor"), ("trainer",)):
        named = [after_training.load_key(one, keys / f"{one}.key", []) for one in role]
        signing.sign(run, *[*named, None][:2])


_REPOSITORY = Path(__file__).parents[4]
