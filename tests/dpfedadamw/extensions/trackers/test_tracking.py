"""Trackers are told what is public of a run and nothing else, and never end one."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from types import SimpleNamespace

import pytest

from dpfedadamw import api, cli
from dpfedadamw import spec as specs
from dpfedadamw.extensions.trackers import tracking
from dpfedadamw.extensions.trackers.tracking import (
    TRACKERS,
    TrackerEntry,
    TrackerError,
    Tracking,
    curves_of,
    outcome_of,
    settings_of,
)
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


@pytest.mark.parametrize(
    ("name", "libraries"),
    [
        ("tensorboard", {"tensorboard"}),
        ("mlflow", {"mlflow", "sqlalchemy"}),
        ("wandb", {"wandb"}),
    ],
)
def test_a_tracker_can_be_asked_for_once_all_its_libraries_are_there(name, libraries, monkeypatch):
    there = set()
    monkeypatch.setattr(tracking, "find_spec", lambda module: module if module in there else None)
    for missing in libraries:
        there = libraries - {missing}
        with pytest.raises(TrackerError, match=rf"^--tracker {name}: its library is not installed"):
            tracking.check([name])
    there = libraries
    tracking.check([name])


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

    folder = told("tensorboard") / "small-1"
    # Which machine trained is private, and the library's own writers put it into the name.
    (file,) = folder.iterdir()
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10,}\.[0-9a-f]{8}\.dpfedadamw", file.name)
    events = EventAccumulator(str(folder)).Reload()
    assert [(one.step, one.value) for one in events.Scalars("test_accuracy")] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.5),
    ]
    assert events.Scalars("epsilon")[0].value == 2.5
    texts = {
        name: events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("spec", "audit")
    }
    assert texts["audit"] == "PASS"
    assert texts["spec"].splitlines()[1:] == [
        "|---|---|", "| privacy.clipping_norm | 1.0 |", "| algorithm.name | dp-fedadamw |",
    ]  # fmt: skip


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


@pytest.fixture
def kept(tmp_path):
    """A run's directory, as far as trackers read it, and what adds rounds to its metrics."""
    run = SimpleNamespace(identifier="small-1", metrics=tmp_path / "metrics.jsonl")
    run.metrics.touch()

    def add(*rounds):
        with run.metrics.open("a") as file:
            file.writelines(
                json.dumps({"round": number, "test_loss": number / 4}) + "\n" for number in rounds
            )

    return run, add


def test_each_round_is_told_once_and_a_run_that_goes_on_tells_only_what_is_new(
    heard, kept, tmp_path
):
    run, add = kept
    add(0, 1)
    tracking = Tracking(["heard"], tmp_path, SMALL, run, completed=0, hidden=False)
    one = heard[1]
    assert one.rounds == [(0, {"test_loss": 0.0}), (1, {"test_loss": 0.25})]
    add(2)
    for _ in range(2):
        tracking.round_is_over()
    assert one.rounds[2:] == [(2, {"test_loss": 0.5})]
    again = Tracking(["heard"], tmp_path, SMALL, run, completed=1, hidden=False)
    assert [completed for completed, _ in heard[2].rounds] == [2]
    add(3)
    for each in (tracking, again):
        each.finish({"epsilon": 2.0})
    for told in heard[1:]:
        assert (told.rounds[-1], told.end) == ((3, {"test_loss": 0.75}), {"epsilon": 2.0})
    # Who was told how it ended is told nothing more.
    one.end = None
    add(4)
    tracking.round_is_over()
    tracking.close()
    assert (one.rounds[-1][0], one.end) == (3, None)


def test_of_a_run_that_was_cut_off_trackers_are_closed_without_an_end(heard, kept, tmp_path):
    run, add = kept
    add(0)
    tracking = Tracking(["heard"], tmp_path, SMALL, run, completed=0, hidden=True)
    tracking.round_is_over()
    tracking.close()
    one = heard[1]
    # Who took part stays hidden: nothing was told of any round.
    assert (one.rounds, one.end, tracking.problems) == ([], {}, [])


def test_a_tracker_that_fails_is_told_nothing_more_and_the_others_are(heard, kept, tmp_path):
    class Broken(Heard):
        def round(self, completed, values):
            self.rounds.append(completed)
            raise OSError("server gone\nwith more lines" if self.run == "small-1" else "")

    heard[0]("broken", Broken)
    run, add = kept
    add(0, 1)
    tracking = Tracking(["broken", "heard"], tmp_path, SMALL, run, completed=0, hidden=False)
    tracking.finish({})
    broken, other = heard[1:]
    assert (broken.rounds, broken.end) == ([0], None)
    assert ([completed for completed, _ in other.rounds], other.end) == ([0, 1], {})
    (problem,) = tracking.problems
    assert problem.startswith("tracker broken: ")
    assert problem.endswith("(server gone)")
    run.identifier = "small-2"
    unnamed = Tracking(["broken"], tmp_path, SMALL, run, completed=0, hidden=False)
    assert unnamed.problems[0].endswith("(OSError)")


@pytest.mark.parametrize(("error", "said"), [("no\nspace", "no"), ("", "OSError")])
def test_a_tracker_that_cannot_begin_stops_the_run_before_it_starts(
    error, said, heard, kept, tmp_path
):
    class Closed(Heard):
        def __init__(self, folder, run):
            raise OSError(error)

    heard[0]("closed", Closed)
    with pytest.raises(TrackerError, match=rf"^--tracker closed: cannot start \({said}\)$"):
        Tracking(["closed"], tmp_path, SMALL, kept[0], completed=0, hidden=False)


def view(epsilon):
    return {"epsilon": {"pld": epsilon}, "accountant": "pld"}


@pytest.mark.parametrize(
    ("claim", "accuracy", "found"),
    [
        (
            {"server_worst_case": view(8.0), "third_party": view(2.0), "delta": 1e-5},
            0.75,
            {"epsilon": 8.0, "delta": 1e-5, "final_test_accuracy": 0.75, "audit": "PASS"},
        ),
        (
            {"view_headline": "third-party", "third_party": view(2.0), "delta": 1e-5},
            None,
            {"epsilon": 2.0, "delta": 1e-5, "audit": "PASS"},
        ),
        ({"view_headline": "none"}, 0.0, {"final_test_accuracy": 0.0, "audit": "PASS"}),
        (
            {"server_worst_case": view(21.0), "third_party": view(2.0), "delta": 1e-5},
            None,
            {
                "epsilon": 21.0, "delta": 1e-5,
                "audit": "NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS",
            },
        ),
    ],
)  # fmt: skip
def test_the_end_of_a_run_is_its_claim_its_accuracy_and_its_verdict(claim, accuracy, found):
    summary = {"privacy": claim, "test_accuracy": accuracy, "verdict": "PASS"}
    assert outcome_of(summary) == found


def test_of_a_line_of_metrics_the_numbers_of_the_final_model_are_told_and_no_lists():
    line = {
        "round": 3, "test_accuracy": 0.5, "test_loss": 1, "bytes_up": 7, "test_classes": [1, 2],
        "canaries": 0.25, "train_accuracy": 0.75, "train_loss": 0.5, "validation_loss": None,
        "note": "words",
    }  # fmt: skip
    found = curves_of(line)
    assert found == {"test_accuracy": 0.5, "test_loss": 1.0, "bytes_up": 7.0}
    assert all(type(value) is float for value in found.values())


def test_settings_are_those_of_the_public_sections_by_dotted_name():
    found = settings_of(small_spec(overrides=("description=words",)))
    assert {name.partition(".")[0] for name in found} == {
        "algorithm", "federation", "privacy", "randomness", "evaluation", "compute", "name",
        "data", "model",
    }  # fmt: skip
    assert {name for name in found if name.startswith(("data.", "model.", "name"))} == {
        "name", "data.dataset", "data.clients", "data.partition.kind", "model.name",
    }  # fmt: skip
    expected = {
        "name": "small", "data.dataset": "digits", "data.clients": 5, "model.name": "mlp",
        "data.partition.kind": "dirichlet", "algorithm.name": "dp-fedadamw",
        "algorithm.learning_rate": 0.1, "federation.rounds": 4, "federation.local_steps": 3,
        "privacy.unit": "record", "privacy.sampling.expected_batch_size": 24,
        "randomness.mode": "reproducible",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert "randomness.seed" not in found
    # What is not set is not told, and what is neither text nor number is told as text.
    assert "privacy.target_epsilon" not in found
    assert all(isinstance(value, (str, int, float)) for value in found.values())
    assert found["evaluation.metrics"] == "[]"


class Noted:
    """Stands in for a library's client: keeps what it is asked to do."""

    def __init__(self, **answers):
        self.asked, self._answers = [], answers

    def __getattr__(self, name):
        def asked(*words, **more):
            self.asked.append((name, *words, *more.items()))
            return self._answers.get(name)

        return asked


def tell(one):
    """All that a tracker is told of a short run."""
    one.settings({"algorithm.name": "dp-fedadamw"})
    one.round(0, {"test_loss": 0.5})
    one.round(1, {"test_loss": 0.25})
    one.finish({"epsilon": 2, "audit": "PASS"})


@pytest.fixture
def mlflow(monkeypatch):
    """MLflow, as far as it is asked anything; what was asked of it, and where it was opened."""
    known = {}
    run = SimpleNamespace(info=SimpleNamespace(run_id="id"))

    class Client(Noted):
        def __init__(self, tracking_uri):
            super().__init__(create_run=run, create_experiment="new", **known)
            opened.append((tracking_uri, self.asked))

    opened = []
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=Client))
    # What is set here is taken back.
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return known, opened


def test_mlflow_is_told_of_a_run_in_an_experiment_and_how_it_ended(mlflow, tmp_path, monkeypatch):
    known, opened = mlflow
    tell(tracking._opened(TRACKERS["mlflow"], tmp_path, "small-1"))
    address, asked = opened[0]
    assert address == f"sqlite:///{tmp_path.resolve()}/mlflow/mlflow.db"
    assert (tmp_path / "mlflow").is_dir()
    assert asked == [
        ("get_experiment_by_name", "dpfedadamw"),
        ("create_experiment", "dpfedadamw"),
        ("create_run", "new", ("run_name", "small-1")),
        ("log_param", "id", "algorithm.name", "dp-fedadamw"),
        ("log_metric", "id", "test_loss", 0.5, ("step", 0)),
        ("log_metric", "id", "test_loss", 0.25, ("step", 1)),
        ("log_metric", "id", "epsilon", 2.0),
        ("set_tag", "id", "audit", "PASS"),
        ("set_terminated", "id", "FINISHED"),
    ]
    # A second run joins the experiment that is there; one that was cut off did not finish.
    known["get_experiment_by_name"] = SimpleNamespace(experiment_id="old")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    tracking._opened(TRACKERS["mlflow"], tmp_path / "other", "small-2").finish({})
    assert opened[1] == (
        "http://server",
        [
            ("get_experiment_by_name", "ours"),
            ("create_run", "old", ("run_name", "small-2")),
            ("set_terminated", "id", "KILLED"),
        ],
    )
    assert not (tmp_path / "other").exists()


def test_wandb_is_told_of_an_offline_run_and_nothing_of_the_machine(tmp_path, monkeypatch):
    run = Noted()
    run.config, run.summary = Noted(), Noted()
    library = Noted(init=run, Settings="private")
    monkeypatch.setitem(sys.modules, "wandb", library)
    one = tracking._opened(TRACKERS["wandb"], tmp_path, "small-1")
    tell(one)
    settings, begun = library.asked
    assert dict(settings[1:]) == {
        "console": "off", "silent": True, "disable_git": True, "disable_code": True,
        "save_code": False, "x_disable_stats": True, "x_disable_meta": True,
        "x_disable_machine_info": True,
    }  # fmt: skip
    assert (begun[0], dict(begun[1:])) == (
        "init",
        {
            "mode": "offline", "project": "dpfedadamw", "name": "small-1",
            "dir": str(tmp_path / "wandb"), "settings": "private",
        },
    )  # fmt: skip
    assert (tmp_path / "wandb").is_dir()
    assert run.config.asked == [("update", {"algorithm.name": "dp-fedadamw"})]
    assert run.summary.asked == [("update", {"epsilon": 2, "audit": "PASS"})]
    assert run.asked == [
        ("log", {"test_loss": 0.5}, ("step", 0)),
        ("log", {"test_loss": 0.25}, ("step", 1)),
        ("finish", ("exit_code", 0)),
    ]
    one.finish({})
    assert run.asked[-1] == ("finish", ("exit_code", 1))


def test_trackers_stand_in_their_order_and_each_names_what_it_needs():
    ours = [entry for entry in TRACKERS.values() if entry.install.endswith("]'")]
    assert [(entry.name, entry.needs, entry.install) for entry in ours] == [
        ("tensorboard", ("tensorboard",), "pip install 'dpfedadamw[tensorboard]'"),
        ("mlflow", ("mlflow", "sqlalchemy"), "pip install 'dpfedadamw[mlflow]'"),
        ("wandb", ("wandb",), "pip install 'dpfedadamw[wandb]'"),
    ]
