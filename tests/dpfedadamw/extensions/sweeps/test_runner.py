"""What a sweep starts, finishes, leaves alone and stops; its runs are scripts that pretend."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.extensions.sweeps.folder import SweepError, SweepFolder
from dpfedadamw.extensions.sweeps.runner import Job, Runner, expected_seconds
from dpfedadamw.spec.matrix import load_sweep
from dpfedadamw.storage.lock import RunLock
from tests.sweeps import BASE, with_own_seeds

# Makes a run directory as `run` does; says something and ends as it is told.
SCRIPT = """
import pathlib, sys, time
runs, code, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
if "--resume" in sys.argv:
    runs = runs.parent
else:
    run = runs / "small-20260101T000000Z-00000000"
    run.mkdir()
    (run / "spec.yaml").touch()
(runs.parent / "started").open("a").write(" ".join(sys.argv[4:]) + "\\n")
print("a line before", "\\x1b[31merror:\\x1b[0m what was wrong", "", sep="\\n", file=sys.stderr)
time.sleep(seconds)
sys.exit(code)
"""


class Script(subprocess.Popen):
    """A process that is asked as those of a sweep are."""

    def wait(self, seconds: float | None = None) -> int | None:
        try:
            return super().wait(seconds)
        except subprocess.TimeoutExpired:
            return None


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"{BASE}seeds: 3\n")
    return load_sweep(path)


@pytest.fixture
def folder(tmp_path, sweep) -> SweepFolder:
    found = SweepFolder(tmp_path / "sweep")
    found.begin(sweep.text)
    return found


def jobs_of(sweep, folder) -> list[Job]:
    return [Job(cell, folder.cell(cell)) for cell in sweep.cells]


def runner_of(folder, codes=(0,), seconds=0.0, processes=2) -> Runner:
    left = list(codes)

    def start(arguments, told) -> Script:
        code = left.pop(0) if len(left) > 1 else left[0]
        place = arguments[arguments.index("--out" if "--out" in arguments else "--resume") + 1]
        command = [sys.executable, "-c", SCRIPT, place, str(code), str(seconds), *arguments]
        with open(told, "wb") as errors:
            return Script(command, stderr=errors)

    def keep(job: Job) -> None:
        job.folder.write_result({"run": job.cell.digest})

    return Runner(folder, processes, start, keep)


def test_all_are_run_and_what_they_say_is_kept(sweep, folder):
    jobs = jobs_of(sweep, folder)
    ended = [job for job in runner_of(folder).run(jobs) if job is not None]
    assert sorted(job.cell.seed for job in ended) == [0, 1, 2]
    assert [job.folder.result() for job in jobs] == [{"run": job.cell.digest} for job in jobs]
    started = (jobs[0].folder.path / "started").read_text().split()
    assert started[:2] == ["run", str(jobs[0].folder.spec)]
    assert "--resume" not in started


def test_a_trial_that_no_table_shows_recomputes_nothing_and_a_reported_run_does(tmp_path, sweep):
    searched = with_own_seeds(tmp_path)
    trial = searched.cells[0]
    for cell, asked in ((trial, True), (trial.released[0], False), (sweep.cells[0], False)):
        found = SweepFolder(tmp_path / f"folder-{cell.digest[:8]}")
        found.begin(searched.text)
        job = Job(cell, found.cell(cell))
        list(runner_of(found).run([job]))
        said = (job.folder.path / "started").read_text()
        assert ("--replay 0" in said) is asked


def test_a_failure_stops_nothing_and_is_tried_again(sweep, folder):
    jobs = jobs_of(sweep, folder)
    list(runner_of(folder, codes=(0, 2, 1), processes=1).run(jobs))
    # An audit that does not pass is a result too.
    assert [job.state for job in jobs] == ["done", "failed", "done"]
    assert jobs[1].folder.failed() == jobs[1].said == "error: what was wrong"
    again = jobs_of(sweep, folder)
    list(runner_of(folder).run([again[1]]))
    assert again[1].state == "done"
    assert again[1].folder.failed() is None


def test_a_finished_run_that_cannot_be_read_is_a_failure_of_its_cell_alone(sweep, folder):
    jobs = jobs_of(sweep, folder)
    runner = runner_of(folder)
    keep = runner._finished

    def finished(job: Job) -> None:
        if job.cell.seed == 1:
            raise SweepError("metrics.jsonl: is empty")
        keep(job)

    runner._finished = finished
    list(runner.run(jobs))
    assert [job.state for job in jobs] == ["done", "failed", "done"]
    assert jobs[1].folder.failed() == "metrics.jsonl: is empty"


def test_a_run_that_was_begun_is_finished_and_no_other_is_begun(sweep, folder):
    (job, *_) = jobs_of(sweep, folder)
    list(runner_of(folder, codes=(70,)).run([job]))
    list(runner_of(folder).run([job]))
    lines = (job.folder.path / "started").read_text().splitlines()
    begun = job.folder.newest_run()
    assert lines[-1].split()[:3] == ["run", "--resume", str(begun.path)]
    assert job.state == "done"


def with_budget(job: Job, epsilon: float) -> Job:
    budget = job.cell.spec.budget.replace(file="budget.sqlite", epsilon=epsilon, delta=1e-5)
    return Job(replace(job.cell, spec=job.cell.spec.replace(budget=budget)), job.folder)


def test_a_run_that_was_not_begun_is_charged_to_the_budget_that_is_stated_now(sweep, folder):
    """The spec of the first attempt was kept, and a budget that came later charged nothing."""
    (job, *_) = jobs_of(sweep, folder)
    folder.begin_cell(job.cell)
    later = with_budget(job, 8)
    list(runner_of(folder).run([later]))
    assert later.state == "done"
    assert specs.load_filed(job.folder.spec).budget.epsilon == 8


def test_a_run_that_was_begun_under_another_budget_is_not_continued_under_this_one(sweep, folder):
    (job, *_) = jobs_of(sweep, folder)
    first = with_budget(job, 8)
    list(runner_of(folder, codes=(70,)).run([first]))
    first.folder.newest_run().spec.write_text(specs.dump(first.cell.spec))
    for other in (job, with_budget(job, 4)):
        list(runner_of(folder).run([other]))
        assert (other.state, other.folder.failed()) == ("failed", other.said)
        assert "its run was begun under another budget; state that budget again" in other.said
    assert len((job.folder.path / "started").read_text().splitlines()) == 1
    list(runner_of(folder).run([first]))
    assert (first.state, first.folder.failed()) == ("done", None)


@pytest.mark.parametrize("finished", [True, False])
def test_what_another_sweep_runs_is_waited_for_and_taken_over_unless_it_is_finished(
    finished, sweep, folder
):
    jobs = jobs_of(sweep, folder)
    folder.begin_cell(jobs[1].cell)
    told = []
    with RunLock(jobs[1].folder.path) as theirs:
        for job in runner_of(folder).run(jobs):
            told += [(job.cell.seed, job.state)] if job is not None else []
            if {job.state for job in jobs} == {"done", "elsewhere"} and theirs.held:
                if finished:
                    jobs[1].folder.write_result({"run": "theirs"})
                theirs.release()
    assert sorted(told) == [(0, "done"), (1, "done"), (1, "elsewhere"), (2, "done")]
    assert (jobs[1].folder.result() == {"run": "theirs"}) is finished
    assert (jobs[1].folder.path / "started").exists() is not finished


def test_a_cell_whose_folder_cannot_be_locked_has_failed_and_is_not_waited_for(sweep, folder):
    (job, *_) = jobs_of(sweep, folder)
    folder.begin_cell(job.cell)
    (job.folder.path / "link").symlink_to(folder.path)
    list(runner_of(folder).run([job]))
    assert job.state == "failed"
    assert "is a link" in job.said


def test_what_another_sweep_finished_meanwhile_is_not_run_again(sweep, folder):
    (job, *_) = jobs_of(sweep, folder)
    folder.begin_cell(job.cell)
    job.folder.write_result({"run": "theirs"})
    assert list(runner_of(folder).run([job])) == [job]
    assert job.state == "done"
    assert job.folder.result() == {"run": "theirs"}


def test_whoever_leaves_early_leaves_no_process_behind(sweep, folder):
    runner = runner_of(folder, seconds=600)
    jobs = jobs_of(sweep, folder)
    began = time.monotonic()
    running = runner.run(jobs)
    while any(next(running) for _ in range(3)):
        pass
    processes = [one.process for one in runner._running]
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt())
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)
    assert [job.state for job in jobs] == ["waiting"] * 3
    assert time.monotonic() - began < 60
    # The cells are free for whoever comes next.
    RunLock(jobs[0].folder.path).release()


def test_no_more_run_at_a_time_than_asked_for(sweep, folder):
    runner = runner_of(folder, seconds=0.3, processes=2)
    most = max(len(runner._running) for _ in runner.run(jobs_of(sweep, folder)))
    assert most == 2


def test_a_result_that_is_damaged_is_said_and_not_taken(sweep, folder):
    (job, *_) = jobs_of(sweep, folder)
    folder.begin_cell(job.cell)
    for content in ("", "{}", "[]", '{"format": 2, "row": {}}', "\x00"):
        (job.folder.path / "result.json").write_text(content)
        with pytest.raises(SweepError, match="is not a result of a sweep; remove it"):
            job.folder.result()


def test_a_folder_that_cannot_be_made_is_said(sweep, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SweepError, match=r"--out .*file/sweep: cannot be written"):
        SweepFolder(tmp_path / "file" / "sweep").begin(sweep.text)


def test_time_is_expected_by_rounds_clients_and_steps_of_like_cells(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"{BASE}matrix: {{federation.rounds: [2, 4, 20]}}\n")
    two, four, twenty = load_sweep(path).cells
    assert expected_seconds([], twenty) is None
    assert expected_seconds([(two, 3.0), (four, 6.0)], twenty) == pytest.approx(30.0)


class Ended:
    """A process that was asked to end, and does so after some questions or only when killed."""

    def __init__(self, code: int | None, deaf: bool = False) -> None:
        self.code, self.deaf, self.asked = code, deaf, []

    def poll(self) -> int | None:
        return self.code

    def wait(self, seconds: float | None = None) -> int | None:
        self.asked.append("wait" if seconds is not None else "wait for it")
        if not self.deaf:
            self.code = -15
        return self.code

    def terminate(self) -> None:
        self.asked.append("terminate")

    def kill(self) -> None:
        self.asked.append("kill")
        self.deaf = False


def begun_run(folder) -> None:
    """A run that was begun, as `run` leaves it."""
    run = folder.runs / "small-20260101T000000Z-00000000"
    run.mkdir(exist_ok=True)
    (run / "spec.yaml").touch()


def test_a_run_gets_its_spec_its_place_and_the_sweeps_options_and_a_trial_its_number(sweep, folder):
    asked = []

    def start(arguments, told):
        asked.append(list(arguments))
        return Ended(2)

    first, trial, begun = jobs_of(sweep, folder)
    for job in (trial, begun):
        folder.begin_cell(job.cell)
        job.folder.trial.touch()
    begun_run(begun.folder)
    options = ["--device", "cpu"]
    list(Runner(folder, 1, start, lambda job: None, options).run([first, trial, begun]))
    place, trials = first.folder, trial.folder
    run = begun.folder.runs / "small-20260101T000000Z-00000000"
    assert asked == [
        ["run", str(place.spec), "--out", str(place.runs), "--json", *options],
        [
            "run", str(trials.spec), "--out", str(trials.runs), "--trial", str(trials.trial),
            "--json", *options,
        ],
        ["run", "--resume", str(run), "--json", *options],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (b"", "ended with 70"),
        (b"\n \n", "ended with 70"),
        (b"one\n\x1b[31m two \x1b[0m\n\n \n", "two"),
        (b"caf\xff", "caf\ufffd"),
        # A line is as long as what is looked at.
        (b"x" * 5000, "x" * 4000),
        (b"before\n" + b"y" * 100, "y" * 100),
    ],
)
def test_of_a_failure_the_last_line_that_says_something_is_kept(told, said, sweep, folder):
    def start(_arguments, file):
        file.write_bytes(told)
        return Ended(70)

    (job, *_) = jobs_of(sweep, folder)
    list(Runner(folder, 1, start, lambda job: None).run([job]))
    assert (job.state, job.said) == ("failed", said)
    assert job.folder.failure.read_text("utf-8") == f"{said}\n"


@pytest.mark.parametrize(
    ("code", "left", "state"),
    [(0, True, "done"), (1, True, "done"), (2, True, "failed"), (0, False, "failed")],
)
def test_a_run_is_done_where_it_ended_by_a_verdict_and_left_a_run(code, left, state, sweep, folder):
    def start(_arguments, _file):
        if left:
            begun_run(job.folder)
        return Ended(code)

    kept = []
    (job, *_) = jobs_of(sweep, folder)
    list(Runner(folder, 1, start, kept.append).run([job]))
    assert (job.state, kept) == (state, [job] if state == "done" else [])
    assert job.said == ("" if state == "done" else f"ended with {code}")
    assert job.seconds > 0


def test_cells_run_in_their_order_and_a_run_that_does_not_stop_is_ended(sweep, folder):
    processes = [Ended(None), Ended(None, deaf=True)]
    started = []

    def start(arguments, _file):
        started.append(arguments[1])
        return processes[len(started) - 1]

    jobs = jobs_of(sweep, folder)
    running = Runner(folder, 2, start, lambda job: None).run(jobs)
    assert next(running) is None
    assert [job.state for job in jobs] == ["running", "running", "waiting"]
    assert jobs[0].seconds > 0
    running.close()
    assert started == [str(job.folder.spec) for job in jobs[:2]]
    assert processes[0].asked == ["terminate", "wait"]
    assert processes[1].asked == ["terminate", "wait", "kill", "wait for it"]
    assert [job.state for job in jobs] == ["waiting"] * 3


def test_a_run_that_cannot_be_started_leaves_its_cell_free(sweep, folder):
    def start(_arguments, _file):
        raise OSError("no processes left")

    (job, *_) = jobs_of(sweep, folder)
    with pytest.raises(OSError, match="no processes left"):
        list(Runner(folder, 1, start, lambda job: None).run([job]))
    RunLock(job.folder.path).release()


def test_only_cells_of_the_same_model_and_data_tell_a_time_each_by_its_size(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"{BASE}matrix: {{federation.rounds: [2, 4], model.hidden: [[], [8]], "
        "federation.clients_per_round: [2, 4], federation.local_steps: [1, 3]}\n"
    )
    cells = {
        (one.spec.federation.rounds, one.spec.federation.clients_per_round,
         one.spec.federation.local_steps): one
        for one in load_sweep(path).cells if one.spec.model.hidden == ()
    }  # fmt: skip
    of_digits = cells[2, 2, 1].spec
    # 2·2·1 in 1 s and 4·4·3 in 24 s: 0.25 s and 0.5 s a client's step.
    done = [(cells[2, 2, 1], 1.0), (cells[4, 4, 3], 24.0)]
    assert expected_seconds(done, cells[4, 2, 3]) == pytest.approx(0.375 * 24)
    convolutional = specs.load("digits-cnn")
    assert convolutional.data.dataset == of_digits.data.dataset
    assert expected_seconds(done, replace(cells[2, 2, 1], spec=convolutional)) is None
    elsewhere = specs.loads(
        specs.dump(of_digits), overrides=("data={dataset: mnist, path: none, clients: 5}",)
    )
    assert expected_seconds(done, replace(cells[2, 2, 1], spec=elsewhere)) is None
