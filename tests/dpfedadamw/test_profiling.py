"""The profile of a run: parts add up, inner ones are taken out of outer ones, nothing when off."""

from __future__ import annotations

import json
import time

import pytest

from dpfedadamw import profiling
from dpfedadamw.profiling import part, profiled, within
from tests.runs import PRIVATE, SMALL, call


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def pass_seconds(seconds: float) -> None:
        now[0] += seconds

    return pass_seconds


def test_an_inner_part_is_taken_out_of_the_outer_one(clock):
    @part("noise")
    def noise(seconds: float) -> str:
        clock(seconds)
        return "drawn"

    with profiled() as found:
        clock(1.0)
        with within("local rule"):
            clock(2.0)
            assert noise(4.0) == "drawn"
            clock(8.0)
            noise(16.0)
        clock(32.0)
    assert found.seconds == {"other": 33.0, "local rule": 10.0, "noise": 20.0}
    assert found.total == 63.0
    assert found.to_json() == {
        "seconds": 63.0,
        "parts": {"other": 33.0, "noise": 20.0, "local rule": 10.0},
    }


@pytest.mark.parametrize("whole", ["evaluation", "probe", "audit", "report", "signatures"])
def test_what_the_probe_and_what_ends_a_run_call_is_theirs(clock, whole):
    with profiled() as found, within(whole):
        clock(1.0)
        with within("clipped sum"):
            clock(2.0)
        clock(4.0)
    assert {name: seconds for name, seconds in found.seconds.items() if seconds} == {whole: 7.0}


def test_parts_are_told_the_largest_first_to_a_millisecond_and_up_to_now(clock):
    with profiled() as found:
        clock(0.25)
        with within("noise"):
            clock(2.00049)
        with within("audit"):
            clock(1.0006)
        # What has passed since a part began counts, though nothing else has begun.
        clock(0.25)
        told = found.to_json()
    assert told == {"seconds": 3.501, "parts": {"noise": 2.0, "audit": 1.001, "other": 0.5}}
    assert list(told["parts"]) == ["noise", "audit", "other"]


def test_a_part_that_fails_is_counted_and_left(clock):
    @part("server")
    def broken() -> None:
        clock(1.0)
        raise ValueError("broken")

    with profiled() as found:
        with pytest.raises(ValueError, match="broken"):
            broken()
        clock(2.0)
    assert found.seconds == {"other": 2.0, "server": 1.0}


def test_nothing_is_measured_unless_asked_for(clock, monkeypatch):
    monkeypatch.delattr(time, "perf_counter")

    @part("noise")
    def noise() -> int:
        return 3

    with within("server"):
        assert noise() == 3
    assert profiling._profile is None


def test_a_run_tells_where_its_time_went_and_files_none_of_it(tmp_path, capsys):
    spec = tmp_path / "small.yaml"
    fields = {"algorithm": "dp-fedavg", "rounds": 1, "clients_per_round": 2, "privacy": PRIVATE}
    spec.write_text(SMALL.format(**fields, mode="reproducible", seed=", seed: 1"))
    capsys.readouterr()
    call("run", str(spec), "--out", str(tmp_path / "runs"), "--profile", "--json")
    told = json.loads(capsys.readouterr().out)["profile"]
    assert told["seconds"] == pytest.approx(sum(told["parts"].values()), abs=0.02)
    expected = {
        "data", "sampling", "clipped sum", "noise", "local rule", "evidence", "server", "ledger",
        "checkpoints", "evaluation", "probe", "audit", "report", "signatures", "other",
    }  # fmt: skip
    assert expected <= set(told["parts"])
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    public = [path for path in run.rglob("*") if path.suffix in (".json", ".jsonl", ".yaml")]
    assert not any(b'clipped sum"' in path.read_bytes() for path in public)
    assert not [path for path in run.rglob("*") if "profile" in path.name]


def test_times_that_would_tell_how_many_took_part_are_refused(capsys):
    change = "federation.client_sampling=poisson"
    assert call("run", "quickstart", "--set", change, "--profile") == 2
    assert "times would reveal how many took part" in capsys.readouterr().err
