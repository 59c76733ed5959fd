"""A run that is run again as a whole has the same public files, and what was changed is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.privacy.noise import on_device
from dpfedadamw.reexecution.whole import same_config, same_spec
from dpfedadamw.rundir import RunDirectory
from tests.runs import call, small_spec, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    spec = small_spec("dp-fedadamw", rounds=2, clients_per_round=2)
    return train(spec, tmp_path_factory.mktemp("run"))[0].run


def replayed(run: RunDirectory, capsys) -> tuple[int, dict[str, object]]:
    """Exit code of the command, and what it says of each file."""
    code = call("replay", str(run.path), "--json")
    told = json.loads(capsys.readouterr().out)
    return code, {one["file"]: one["same"] for one in told["files"]}


def test_an_honest_run_comes_out_the_same(finished: RunDirectory, capsys) -> None:
    code, same = replayed(finished, capsys)
    files = "spec.yaml model.safetensors model.json metrics.jsonl ledger.jsonl"
    assert same == dict.fromkeys(files.split(), True)
    assert code == 0


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (lambda text: text, True),
        # As a version wrote it that did not know the key.
        (lambda text: text.replace("  paper: a4\n", ""), True),
        (lambda text: text.replace("  paper: a4\n", "  paper: a5\n"), False),
        (lambda text: text + "further: 1\n", False),
    ],
)
def test_a_spec_is_held_to_the_keys_that_it_has(changed, same: bool, tmp_path: Path) -> None:
    stated = specs.load("quickstart")
    written = specs.dump(stated)
    path = tmp_path / "spec.yaml"
    path.write_text(changed(written), "utf-8")
    assert "  paper: a4\n" in written
    assert same_spec(path, stated).same == same


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ({"classes": 2, "labels": ["a", "b"], "inputs": {}}, True),
        # As a version wrote it that named neither classes nor columns.
        ({"classes": 2}, True),
        ({"classes": 3}, False),
        ({"classes": 2, "labels": ["a", "c"]}, False),
        ({"classes": 2, "further": 1}, False),
    ],
)
def test_a_model_is_described_by_the_keys_that_its_version_wrote(found, same, tmp_path) -> None:
    due = {"classes": 2, "labels": ["a", "b"], "inputs": {}}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(found), "utf-8")
    assert same_config(path, json.dumps(due).encode()).same == same


def test_measures_that_an_earlier_version_did_not_tell_are_not_missed(
    finished: RunDirectory, tmp_path: Path, capsys
) -> None:
    earlier = tmp_path / finished.path.name
    shutil.copytree(finished.path, earlier)
    lines = [json.loads(line) for line in (earlier / "metrics.jsonl").read_text().splitlines()]
    told = {"test_accuracy", "test_loss", "test_classes"}
    kept = [
        {key: line[key] for key in line if not key.startswith("test_") or key in told}
        for line in lines
    ]
    (earlier / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert replayed(RunDirectory(earlier), capsys)[1]["metrics.jsonl"] is True
    kept[-1]["test_auc"] = 0.5
    (earlier / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert replayed(RunDirectory(earlier), capsys)[1]["metrics.jsonl"] is False


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", ["fedavg", "dp-fedsam"])
def test_a_run_of_any_unit_is_run_again(unit: str, tmp_path: Path, capsys) -> None:
    run = train(small_spec(unit, rounds=1, clients_per_round=3), tmp_path)[0].run
    assert replayed(run, capsys)[0] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["dp-fedavg", "fed-smp"])
def test_noise_that_was_drawn_on_the_device_is_drawn_again(name: str, tmp_path, capsys) -> None:
    overrides = ("privacy.gaussian_sampler=on-device",)
    run = train(small_spec(name, rounds=2, overrides=overrides), tmp_path)[0].run
    assert replayed(run, capsys)[0] == 0


@pytest.mark.parametrize(("off", "code"), [(2.0**-50, 0), (2.0**-12, 1)])
def test_noise_that_differs_in_its_last_bits_is_the_same_and_coarser_noise_is_not(
    off: float, code: int, tmp_path, capsys, monkeypatch
) -> None:
    drawn = on_device.normals
    monkeypatch.setattr(on_device, "normals", lambda *given: drawn(*given) * (1.0 + off))
    overrides = ("privacy.gaussian_sampler=on-device",)
    run = train(small_spec("dp-fedavg", rounds=1, overrides=overrides), tmp_path)[0].run
    monkeypatch.undo()
    assert replayed(run, capsys)[0] == code


def changed(path: Path, before: bytes, after: bytes) -> bytes:
    """Change a file once; its old content."""
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, 1))
    return content


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("metrics.jsonl", b'"test_accuracy":0.', b'"test_accuracy":1.'),
        ("model.json", b'"classes": 10', b'"classes": 11'),
        ("ledger.jsonl", b'"uploads_sha256":"', b'"uploads_sha256":"0'),
        ("ledger.jsonl", b'"sampling_rate":0.', b'"sampling_rate":0.0'),
    ],
)
def test_a_file_that_was_changed_is_named(
    finished: RunDirectory, name: str, before: bytes, after: bytes, capsys
) -> None:
    content = changed(finished.path / name, before, after)
    try:
        code, same = replayed(finished, capsys)
        # Streams of a release hang on the ledger; a published seed's do not.
        assert [file for file, unchanged in same.items() if not unchanged] == [name]
        assert code == 1
    finally:
        (finished.path / name).write_bytes(content)


def test_a_weight_that_was_changed_is_named(finished: RunDirectory, capsys) -> None:
    content = finished.weights.read_bytes()
    finished.weights.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    try:
        assert call("replay", str(finished.path)) == 1
        told = " ".join(capsys.readouterr().out.split())
        assert "model.safetensors DIFFERS differs from byte" in told
        assert "machine and versions are the same as in training" in told
    finally:
        finished.weights.write_bytes(content)


def test_a_run_that_is_not_finished_is_refused(finished: RunDirectory, capsys) -> None:
    content = finished.ledger.read_bytes()
    finished.ledger.write_bytes(b"\n".join(content.splitlines()[:-1]) + b"\n")
    try:
        assert call("replay", str(finished.path)) == 2
        assert "is not finished" in " ".join(capsys.readouterr().err.split())
    finally:
        finished.ledger.write_bytes(content)
