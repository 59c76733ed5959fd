"""On what a run was computed: what is told of it, what replaces what, and what differs here."""

from __future__ import annotations

import hashlib
import json
import platform
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dpfedadamw
from dpfedadamw.run.environment import (
    differences,
    environment,
    read_environments,
    recorded_device,
    sources,
    write_environment,
)
from dpfedadamw.rundir import RunDirectory, RunDirectoryError

CPU = torch.device("cpu")


def test_everything_that_changes_rounding_is_named():
    found = environment(CPU, "vmap")
    assert found == {
        "package": dpfedadamw.__version__,
        "sources": sources(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": platform.system(),
        "processor": found["processor"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
        "accelerator": None,
        "engine": "vmap",
    }


def test_an_accelerator_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a card ({device})")
    found = environment(torch.device("cuda:0"), "auto")
    assert (found["device"], found["accelerator"]) == ("cuda", "a card (cuda:0)")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two modules in the place of this one."""
    root = tmp_path / "package"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_bytes(b"one = 1\n")
    (root / "inner" / "b.py").write_bytes(b"two\n")
    (root / "inner" / "data.txt").write_bytes(b"no module")
    monkeypatch.setattr(dpfedadamw, "__file__", str(root / "__init__.py"))
    sources.cache_clear()
    yield root
    monkeypatch.undo()
    sources.cache_clear()


def test_sources_are_digested_by_name_length_and_content(package):
    content = b"__init__.py 8\0one = 1\ninner/b.py 4\0two\n"
    assert sources() == hashlib.sha256(content).hexdigest()[:16]
    # A process's own sources are read once.
    (package / "inner" / "b.py").write_bytes(b"changed\n")
    assert sources() == hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("vendor: A\nmodel name\t: A fast: one \nmodel name\t: another\n", "A fast: one"),
        ("vendor: A\n", "what Python says"),
        (None, "what Python says"),
    ],
)
def test_the_processor_is_named_as_the_system_tells_it(told, expected, monkeypatch):
    def read(path, encoding=None):
        assert str(path) == "/proc/cpuinfo"
        if told is None:
            raise FileNotFoundError
        return told

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(platform, "processor", lambda: "what Python says")
    assert environment(CPU, "auto")["processor"] == expected


def test_where_python_knows_no_processor_its_machine_is_told(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "z80")
    assert environment(CPU, "auto")["processor"] == "z80"


def test_what_a_process_wrote_that_finished_no_round_goes(tmp_path):
    run = RunDirectory(tmp_path)
    run.evidence.mkdir()
    later = ["environment-00004.json", "environment-123456.json"]
    kept = ["environment-00000.json", "environment-0009.json", "environment-00009.json.old"]
    for name in later + kept:
        (run.evidence / name).write_bytes(b"{}\n")
    one = SimpleNamespace(device=CPU)
    write_environment(run, 3, one, "loop")
    assert {path.name for path in run.evidence.iterdir()} == {*kept, "environment-00003.json"}
    path = run.evidence / "environment-00003.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_bytes()) == environment(CPU, "loop")
    # The same process of the same round takes its own place.
    write_environment(run, 3, one, "vmap")
    assert json.loads(path.read_bytes())["engine"] == "vmap"
    assert read_environments(run.evidence) == {0: {}, 3: environment(CPU, "vmap")}
    write_environment(run, 3, one, "vmap", "ab")
    assert json.loads(path.read_bytes()) == environment(CPU, "vmap") | {"commitment": "ab"}


@pytest.mark.parametrize("content", [b"torn", b"7", b"[1]", b"null", b"\xff"])
def test_an_environment_that_cannot_be_read_is_refused_by_name(content, tmp_path):
    (tmp_path / "environment-00000.json").write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"environment-00000\.json: cannot be read"):
        read_environments(tmp_path)


def recorded(folder: Path, **devices: str) -> Path:
    for name, device in devices.items():
        path = folder / f"environment-{name.removeprefix('after')}.json"
        path.write_text(json.dumps({"device": device}))
    return folder


@pytest.mark.parametrize(
    ("kind", "cuda", "mps", "expected"),
    [
        ("cpu", False, False, "cpu"),
        ("cpu", True, True, "cpu"),
        ("cuda", True, False, "cuda"),
        ("cuda", False, True, "auto"),
        ("mps", False, True, "mps"),
        ("mps", True, False, "auto"),
        ("xpu", False, False, "xpu"),
    ],
)
def test_a_run_goes_on_where_it_began_if_that_is_here(
    kind, cuda, mps, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    recorded(tmp_path, after00003="cpu" if kind != "cpu" else "cuda", after00000=kind)
    assert recorded_device(tmp_path) == expected


def test_without_a_record_the_device_is_chosen(tmp_path):
    assert recorded_device(tmp_path) == "auto"
    assert recorded_device(tmp_path / "none") == "auto"


def test_differences_are_told_by_name_then_and_now():
    then = {"numpy": "1", "threads": 2, "gone": 1}
    now = {"numpy": "2", "threads": 2, "device": "cpu"}
    assert differences(then, now) == ["numpy: 1 then, 2 here", "device: None then, cpu here"]
    assert differences(now, now) == []
