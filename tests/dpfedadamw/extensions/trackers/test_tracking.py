"""Trackers are told what is public of a run and nothing else, and never end one."""

from __future__ import annotations

import json
import sqlite3

import pytest

from dpfedadamw import api, cli
from dpfedadamw import spec as specs
from dpfedadamw.extensions.trackers import tracking
from dpfedadamw.extensions.trackers.tracking import TRACKERS, TrackerEntry
from dpfedadamw.measures import FINAL
from tests.runs import small_spec

SMALL = small_spec(rounds=2)
CURVES = {"learning_rate", "test_accuracy", "test_loss", "bytes_up", "bytes_down", "seconds"} | {
    "epsilon"
}


class Heard:
    """A tracker that keeps what it is told."""

    def __init__(self, folder, run):
        self.folder, self.run, self.rounds, self.end = folder, run, [], None

    def settings(self, values):
        self.values = values

    def round(self, completed, values):
        self.rounds.append((completed, values))

    def finish(self, values):
        self.end = values


@pytest.fixture
def heard(monkeypatch):
    """The trackers of a test, one by one, as they are opened."""
    made = []
    len(TRACKERS)

    def register(name, kind):
        def begin(folder, run):
            made.append(kind(folder, run))
            return made[-1]

        entry = TrackerEntry(name=name, summary="", open=begin, install="pip install it")
        monkeypatch.setitem(TRACKERS._entries, name, entry)

    register("heard", Heard)
    made.append(register)
    return made


def test_a_tracker_hears_the_public_metrics_and_what_the_run_came_to(heard, tmp_path):
    run = api.run(SMALL, out=tmp_path, trackers=["heard"])
    one = heard[1]
    assert [completed for completed, _ in one.rounds] == [0, 1, 2]
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    for (_, values), line in zip(one.rounds, lines, strict=True):
        assert set(values) <= (CURVES | {f"test_{name}" for name in FINAL})
        assert values["test_accuracy"] == line["test_accuracy"]
    assert one.rounds[-1][1]["test_auc"] == run.measures["test_auc"]
    assert one.end["epsilon"] == run.epsilon
    assert (one.end["audit"], one.end["delta"]) == (run.verdict, run.delta)
    assert (one.folder, one.run) == (tmp_path / "tracking", run.name)
    assert one.values["privacy.clipping_norm"] == 1.0
    private = {"data.path", "data.sha256", "randomness.seed", "description", "budget.file"}
    assert not private & set(one.values)
    assert run.verify().outcome.value == "ALL HOLD"


def test_where_who_takes_part_is_hidden_all_is_told_at_the_end(heard, tmp_path):
    when = []

    class Late(Heard):
        def round(self, completed, values):
            when.append(completed)
            super().round(completed, values)

    heard[0]("late", Late)
    spec = small_spec("dp-fedavg", rounds=2, overrides=("federation.client_sampling=poisson",))
    api.run(
        spec,
        out=tmp_path,
        trackers=["late"],
        callbacks=[lambda done: when.append(f"after {done.completed}")],
    )
    assert when == ["after 1", "after 2", 0, 1, 2]
    assert all("seconds" not in values for _, values in heard[1].rounds)


@pytest.mark.slow
def test_a_tracker_that_fails_is_left_behind_and_the_run_goes_on(heard, tmp_path):
    class Broken(Heard):
        def round(self, completed, values):
            raise OSError("server gone\nwith more lines")

    heard[0]("broken", Broken)
    with pytest.warns(
        UserWarning, match=r"^tracker broken: failed and gets no further data.*\(server gone\)$"
    ):
        run = api.run(SMALL, out=tmp_path, trackers=["broken", "heard"])
    assert run.verdict == "PASS"
    assert len(heard[2].rounds) == 3


@pytest.mark.slow
def test_a_run_that_is_taken_up_tells_the_rounds_that_are_left(heard, tmp_path):
    def stop(_done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.run(SMALL, out=tmp_path, trackers=["heard"], callbacks=[stop])
    first = heard[1]
    assert (first.end, [completed for completed, _ in first.rounds]) == ({}, [0, 1])
    (path,) = tmp_path.glob("small-*")
    api.resume(path, trackers=["heard"])
    assert [completed for completed, _ in heard[2].rounds] == [2]
    assert heard[2].end["audit"] == "PASS"


def test_an_unknown_tracker_or_one_without_its_library_is_refused_at_once(
    tmp_path, capsys, monkeypatch
):
    with pytest.raises(api.DpfedadamwError, match="--tracker diary: unknown; there are"):
        api.run(SMALL, out=tmp_path / "runs", trackers=["diary"])
    assert not (tmp_path / "runs").exists()

    missing = TrackerEntry(
        name="missing", summary="", open=Heard, install="pip install it", needs=("no_such_library",)
    )
    monkeypatch.setitem(TRACKERS._entries, "missing", missing)
    with pytest.raises(api.DpfedadamwError, match="its library is not installed here: pip install"):
        api.run(SMALL, out=tmp_path / "runs", trackers=["missing"])
    assert not (tmp_path / "runs").exists()
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "quickstart", "--tracker", "diary"])
    assert ended.value.code == 2
    assert "--tracker diary: unknown" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_tells_trackers_as_well(heard, tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(specs.dump(SMALL))
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(path), "--out", str(tmp_path / "runs"), "--tracker", "heard"])
    assert ended.value.code == 0
    assert [completed for completed, _ in heard[1].rounds] == [0, 1, 2]
    assert heard[1].end["audit"] == "PASS"
    # What trackers write is no run.
    (tmp_path / "runs" / "tracking").mkdir()
    with pytest.raises(SystemExit):
        cli.main(["compare", str(tmp_path / "runs" / "latest")])


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A tracker of a real library that was told of a run by itself."""

    def tell(name):
        one = tracking._opened(TRACKERS[name], tmp_path, "small-1")
        one.settings({"privacy.clipping_norm": 1.0, "algorithm.name": "dp-fedadamw"})
        for completed in range(3):
            one.round(completed, {"test_accuracy": 0.25 * completed})
        one.finish({"epsilon": 2.5, "audit": "PASS"})
        return tmp_path / name

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tell


def test_tensorboard_reads_what_it_was_told(told):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(told("tensorboard") / "small-1")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("test_accuracy")] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.5),
    ]
    assert events.Scalars("epsilon")[0].value == 2.5


def test_mlflow_reads_what_it_was_told(told):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    place = told("mlflow") / "mlflow.db"
    with sqlite3.connect(place) as database:
        points = database.execute(
            "select step, value from metrics where key = 'test_accuracy' order by step"
        ).fetchall()
        tags = dict(database.execute("select key, value from tags").fetchall())
        params = dict(database.execute("select key, value from params").fetchall())
    assert points == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert tags["audit"] == "PASS"
    assert params["algorithm.name"] == "dp-fedadamw"


def test_wandb_keeps_an_offline_run_without_the_machine(told):
    pytest.importorskip("wandb")
    (run,) = told("wandb").glob("wandb/offline-run-*")
    (log,) = run.glob("*.wandb")
    content = log.read_bytes()
    assert b"test_accuracy" in content
    assert b"epsilon" in content
    assert b"cpu_count" not in content
