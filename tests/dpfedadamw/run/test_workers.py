"""Clients of a round side by side in processes: the same bits, and clean ends."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedadamw.experiment import prepare
from dpfedadamw.run import computing, workers
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.workers import WorkerError, WorkerProcesses
from tests import runs
from tests.dpfedadamw.cli.texts import folder as texts  # noqa: F401  # a fixture

CPU = torch.device("cpu")
# What differs between any two runs of the same spec: their names, times and digests of these.
OF_ONE_RUN = {"digest", "previous", "created", "run", "spec_sha256"}


@pytest.fixture(autouse=True)
def one_salt(monkeypatch):
    """Keyed digests of evidence can be compared between runs that have the same key."""
    monkeypatch.setattr(engine_setup.secrets, "token_bytes", lambda size: b"\x07" * size)


def with_workers(spec, number):
    return spec.replace(federation=spec.federation.replace(workers=number))


def trained(spec, folder, number, on_client=None):
    training = runs.begin(with_workers(spec, number), folder)
    with training.lock:
        engine_run.train(training, on_client=on_client, before_claim=runs.probed)
    runs.filing.attest_training(training.run, runs.filing.load_signers(None, None))
    return training.run


def left(run):
    """The model, all that the ledger says but of which run it is, and all evidence."""
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    entries = [{k: v for k, v in line.items() if k not in OF_ONE_RUN} for line in lines]
    evidence = {}
    for path in sorted(run.evidence.rglob("*")):
        if path.suffix == ".npz":
            with np.load(path) as file:
                evidence[path.name] = {name: file[name].tobytes() for name in file.files}
        elif path.is_file() and not path.name.startswith("environment"):
            evidence[path.name] = path.read_bytes()
    evidence.pop("attestation.json", None)
    return run.weights.read_bytes(), entries, evidence


def spec_of(kind, request):
    if kind == "lora":
        folder = request.getfixturevalue("texts")
        changes = ("federation.rounds=2", "randomness={mode: reproducible}")
        return engine_setup.specs.load(folder / "texts.yaml", changes)
    changes = ()
    if kind == "client":
        changes = ("privacy.noise_added_by=clients", "federation.client_sampling=poisson")
    algorithm = {"record": "dp-fedadamw", "memory": "dp-scaffold", "client": "blur"}[kind]
    return runs.small_spec(algorithm, rounds=2, overrides=changes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["record", "memory", "client", "lora"])
def test_two_workers_leave_the_same_model_ledger_and_evidence_as_none(kind, request, tmp_path):
    spec = spec_of(kind, request)
    alone, pair = (trained(spec, tmp_path / str(number), number) for number in (1, 2))
    for one, other in zip(left(alone), left(pair), strict=True):
        assert one == other


def test_noise_of_a_release_is_drawn_from_the_keys_of_the_run_in_every_worker(tmp_path):
    spec = runs.small_spec(
        "blur",
        rounds=2,
        mode="release",
        overrides=("privacy.noise_added_by=clients", "federation.client_sampling=poisson"),
    )
    first, second = (trained(spec, tmp_path / name, 2) for name in ("first", "second"))
    assert first.weights.read_bytes() != second.weights.read_bytes()
    found = runs.filing.audit(first).to_json()
    assert found["verdict"] == "PASS", runs.failing(found)


@pytest.mark.thorough
def test_a_worker_that_dies_ends_the_run_in_one_sentence_and_the_run_can_be_resumed(tmp_path):
    spec = runs.small_spec("dp-scaffold", rounds=3)
    whole = trained(spec, tmp_path / "whole", 1)
    training = runs.begin(with_workers(spec, 2), tmp_path / "cut")
    others = {process.pid for process in multiprocessing.active_children()}

    def children():
        """Processes of this run; other tests may have left some of theirs to be used again."""
        return [one for one in multiprocessing.active_children() if one.pid not in others]

    def kill(done, of):
        if training.completed == 1:
            for process in children():
                process.kill()

    told = r"worker process \d of 2 ended \(by signal 9\).*round ([12])"
    with pytest.raises(WorkerError, match=told) as ended:
        engine_run.train(training, on_client=kill)
    # Where both had answered for all of round 1 before they were killed, it is round 2 that fails.
    cut = int(re.search(told, str(ended.value))[1])
    assert not children()
    again = engine_setup.resume(training.run, CPU)
    with again.lock:
        engine_run.train(again)
    assert again.run.weights.read_bytes() == whole.weights.read_bytes()
    charged = again.ledger.of_kind("spend")
    assert [line["attempt"] for line in charged if line["round"] == cut] == [1] * 4 + [2] * 4


def test_what_a_worker_cannot_read_is_said_as_in_a_run_of_one_process(tmp_path, monkeypatch):
    training = runs.begin(with_workers(runs.small_spec(), 2), tmp_path)
    content = training.run.spec.read_text()
    training.run.spec.write_text(content.replace("rounds:", "runden:"))
    with pytest.raises(WorkerError, match="runden"):
        engine_run.train(training)


def test_an_interrupted_run_leaves_no_process(tmp_path):
    training = runs.begin(with_workers(runs.small_spec(), 2), tmp_path)
    others = {process.pid for process in multiprocessing.active_children()}

    def interrupt(_done, _of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine_run.train(training, on_client=interrupt)
    assert not {process.pid for process in multiprocessing.active_children()} - others


def test_auto_takes_as_many_workers_as_there_is_something_to_do_for(monkeypatch):
    monkeypatch.setattr(computing, "processors", lambda: 6)
    monkeypatch.setattr(computing.torch, "get_num_threads", lambda: 2)
    experiment = prepare(with_workers(runs.small_spec(), "auto"), CPU)
    assert computing.workers_of(experiment, 1_000) == 4  # clients of a round
    assert computing.workers_of(experiment, 1_000_000) == 3
    assert (
        computing.workers_of(dataclasses.replace(experiment, device=torch.device("cuda")), 1_000)
        == 1
    )
    given = dataclasses.replace(experiment, spec=with_workers(experiment.spec, 3))
    assert computing.workers_of(given, 1_000_000) == 3


def test_closed_workers_are_killed_and_let_go_of():
    flat = SimpleNamespace(vector=torch.zeros(3))
    worker = SimpleNamespace(flat=flat, performance=SimpleNamespace(engine="auto"), unit=None)
    closed = WorkerProcesses(SimpleNamespace(path=Path.cwd()), worker, "blake3", 2)
    ended = []
    closed._processes = [
        SimpleNamespace(
            kill=lambda: ended.append("killed"), forget=lambda: ended.append("forgotten")
        )
    ] * 2
    closed.close()
    assert ended == ["killed", "killed", "forgotten", "forgotten"]
    closed.close()
    assert len(ended) == 4


# A worker process as the leading one sees it, over a connection that is made up.


class Pipe:
    """What was sent, and what is answered: a value, bytes or an error in turn."""

    def __init__(self, *answers, broken=None):
        self.sent, self.answers, self.broken, self.closed = [], list(answers), broken, False

    def send(self, value):
        if self.broken is not None:
            raise self.broken
        self.sent.append(value)

    def send_bytes(self, content):
        self.sent.append(bytes(content))

    def recv(self):
        found = self.answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    recv_bytes = recv

    def close(self):
        self.closed = True


class Ended:
    """A process that ended, or did not."""

    def __init__(self, exitcode):
        self.exitcode, self.joined, self.killed = exitcode, [], False

    def join(self, seconds):
        self.joined.append(seconds)

    def kill(self):
        self.killed = True


def process_over(pipe, exitcode=0):
    found = workers._Process.__new__(workers._Process)
    found._number, found.connection, found._process = (2, 3), pipe, Ended(exitcode)
    found._round, found._doing = None, "was starting"
    return found


def task(index, attempt):
    return workers._Task(SimpleNamespace(round=index, attempt=attempt), b"kept", {})


GIVEN = workers._Given({"a": np.ones(1)}, {})


def test_a_broadcast_is_sent_once_a_round_and_attempt():
    pipe = Pipe(GIVEN, b"one", GIVEN, b"two", GIVEN, b"three", GIVEN, b"four")
    process = process_over(pipe)
    asked = [task(3, 1), task(3, 1), task(3, 2), task(4, 2)]
    found = []
    for one in asked:
        process.ask(one, b"broadcast %d" % one.asked.round)
        found.append(process.answer())
    assert found == [(name, GIVEN) for name in (b"one", b"two", b"three", b"four")]
    assert pipe.sent == [
        None, b"broadcast 3", asked[0],
        asked[1],
        None, b"broadcast 3", asked[2],
        None, b"broadcast 4", asked[3],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("exitcode", "how"),
    [(None, "its connection"), (0, "with exit code 0"), (1, "with exit code 1"),
     (-9, "by signal 9"), (-1, "by signal 1")],
)  # fmt: skip
@pytest.mark.parametrize(
    "pipe",
    [lambda: Pipe(broken=BrokenPipeError()), lambda: Pipe(EOFError()), lambda: Pipe(OSError()),
     lambda: Pipe(GIVEN, EOFError()), lambda: Pipe(GIVEN, OSError())],
)  # fmt: skip
def test_a_process_that_ends_is_told_by_number_how_and_while_doing_what(pipe, exitcode, how):
    process = process_over(pipe(), exitcode)

    def asked_and_answered():
        process.ask(task(7, 1), b"")
        process.answer()

    with pytest.raises(WorkerError) as caught:
        asked_and_answered()
    assert str(caught.value) == (
        f"federation.workers: worker process 2 of 3 ended ({how}) while it computed a client of "
        "round 7; its charges remain. If memory ran out, use fewer workers"
    )
    assert process._process.joined == [5.0]


def test_a_process_is_waited_for_until_it_is_ready_and_says_why_it_is_not():
    process_over(Pipe("ready")).wait_until_ready()
    with pytest.raises(WorkerError, match="while it was starting; its charges remain"):
        process_over(Pipe(EOFError())).wait_until_ready()
    wrong = process_over(Pipe(workers._Failed("spec.yaml: rounds is missing", True)))
    with pytest.raises(WorkerError, match=r"^spec.yaml: rounds is missing$"):
        wrong.wait_until_ready()
    with pytest.raises(RuntimeError, match=r"^in a worker process: KeyError"):
        process_over(Pipe(workers._Failed("KeyError", False))).wait_until_ready()


def test_a_process_that_is_let_go_of_is_killed_waited_for_and_hung_up_on():
    process = process_over(Pipe())
    process.kill()
    process.forget()
    assert (process._process.killed, process._process.joined) == (True, [5.0])
    assert process.connection.closed


def served(monkeypatch, pipe, answer, opened=None):
    """What a worker process sends over a connection, in this process."""

    def open_station(opening, folder):
        assert opening == "opening"
        assert folder.is_dir()
        assert folder.name.startswith("dpfedadamw-worker-")
        if opened is not None:
            raise opened
        return "station", "spec"

    monkeypatch.setattr(workers, "open_station", open_station)
    monkeypatch.setattr(workers, "_computed", lambda *asked: answer(*asked))
    # Of the main thread alone, whose signals stay those of the tests.
    monkeypatch.setattr(workers.threading, "main_thread", lambda: None)
    workers._serve(pipe, "opening")
    return pipe.sent


def test_a_worker_answers_until_nobody_asks_any_more(monkeypatch):
    asked = []

    def answer(station, spec, one, broadcast):
        asked.append((station, spec, one, broadcast))
        return f"message {one}".encode(), f"noted {one}"

    sent = served(
        monkeypatch, Pipe(None, b"first", "a", "b", None, b"second", "c", EOFError()), answer
    )
    assert sent == [
        "ready",
        *(x for one in "abc" for x in (f"noted {one}", b"message " + one.encode())),
    ]
    assert asked == [
        ("station", "spec", "a", b"first"),
        ("station", "spec", "b", b"first"),
        ("station", "spec", "c", b"second"),
    ]


def test_a_worker_tells_wrong_input_in_its_words_and_anything_else_by_kind_and_place(monkeypatch):
    def wrong(*_):
        raise WorkerError("data.path: is gone")

    _, failed = served(monkeypatch, Pipe(None, b"", "a"), wrong)
    assert failed == workers._Failed("data.path: is gone", True)

    def secret(*_):
        raise KeyError("".join(("a private ", "value")))

    _, failed = served(monkeypatch, Pipe(None, b"", "a"), secret)
    assert not failed.wrong_input
    assert failed.reason.startswith("KeyError\n")
    assert "in secret" in failed.reason
    assert "a private value" not in failed.reason
    (failed,) = served(monkeypatch, Pipe(), wrong, opened=WorkerError("spec.yaml: no"))
    assert failed == workers._Failed("spec.yaml: no", True)
    # Whoever led is gone: there is nobody to tell.
    for error in (BrokenPipeError(), ConnectionResetError()):
        assert served(monkeypatch, Pipe(broken=error), wrong) == []


def test_a_worker_leaves_an_interruption_to_the_process_that_leads(monkeypatch):
    set_to = []
    monkeypatch.setattr(workers.signal, "signal", lambda *what: set_to.append(what))
    monkeypatch.setattr(workers, "open_station", lambda *_: ("station", "spec"))
    workers._serve(Pipe(EOFError()), "opening")
    assert set_to == [(workers.signal.SIGINT, workers.signal.SIG_IGN)]


@pytest.mark.parametrize(
    ("methods", "wanted"), [(["fork", "forkserver", "spawn"], "forkserver"), (["spawn"], "spawn")]
)
def test_processes_are_forked_off_a_server_where_there_is_one_and_else_spawned(
    methods, wanted, monkeypatch
):
    made, contexts = [], []

    class Context:
        def __init__(self, method):
            self.method, self.loaded = method, None
            contexts.append(self)

        def set_forkserver_preload(self, names):
            self.loaded = names

    class Process:
        def __init__(self, context, opening, number):
            made.append((context.method, opening, number))
            self.ready = False

        def wait_until_ready(self):
            self.ready = True

        def kill(self):
            pass

        def forget(self):
            pass

    monkeypatch.setattr(workers.multiprocessing, "get_all_start_methods", lambda: methods)
    monkeypatch.setattr(workers.multiprocessing, "get_context", Context)
    monkeypatch.setattr(workers, "_Process", Process)
    flat = SimpleNamespace(vector=torch.zeros(3))
    worker = SimpleNamespace(flat=flat, performance=SimpleNamespace(engine="loop"), unit=None)
    here = WorkerProcesses(SimpleNamespace(path=Path("there")), worker, "blake3", 3)
    assert made == []
    assert list(here.answers([])) == []
    assert made == []
    started = here._started()
    assert [(method, number) for method, _, number in made] == [
        (wanted, (number, 3)) for number in (1, 2, 3)
    ]
    assert contexts[0].loaded == (["dpfedadamw.run.workers"] if wanted == "forkserver" else None)
    opening = made[0][1]
    assert opening == workers.Opening(
        run=str(Path("there").resolve()),
        place=str(Path.cwd()),
        device="cpu",
        engine="loop",
        threads=torch.get_num_threads(),
        commitments="blake3",
    )
    assert [one.ready for one in started] == [True] * 3
    # They are started once.
    assert here._started() is started
    assert len(made) == 3
    here.close()


class Working:
    """A worker process that answers when it is told to; its own connection."""

    def __init__(self, asked):
        self.connection, self.asked, self.part = self, asked, None

    def ask(self, part, broadcast):
        assert self.part is None
        self.asked.append(part)
        self.part = part

    def answer(self):
        part, self.part = self.part, None
        return f"message {part}", workers._Given({}, {part: 1})


def side_by_side(monkeypatch, number, answering):
    """Workers of which those answer that a function picks of the busy ones, and what is asked."""
    unit = SimpleNamespace(evidence_of_client=lambda: "evidence", shared=[])
    unit.add_shared = unit.shared.append
    worker = SimpleNamespace(
        flat=SimpleNamespace(vector=torch.zeros(3)),
        performance=SimpleNamespace(engine="loop"),
        unit=unit,
    )
    here = WorkerProcesses(SimpleNamespace(path=Path("there")), worker, "blake3", number)
    asked = []
    processes = [Working(asked) for _ in range(number)]
    monkeypatch.setattr(here, "_started", lambda: processes)
    monkeypatch.setattr(here, "_task", lambda part: part.name)
    monkeypatch.setattr(workers, "answered", lambda message, *_: message)
    monkeypatch.setattr(workers, "wait", lambda busy, timeout: answering(list(busy), timeout))
    return here, asked, unit.shared


def parts(names):
    return [SimpleNamespace(name=one, current=SimpleNamespace(message=b"")) for one in names]


def test_a_process_that_has_answered_is_asked_for_more_before_its_answer_is_used(monkeypatch):
    here, asked, shared = side_by_side(monkeypatch, 2, lambda busy, _timeout: busy)
    given = here.answers(parts("abcdefg"))
    # No more are ahead of their turn than twice as many as there are processes.
    found = [(next(given), len(asked)) for _ in range(7)]
    assert found == [
        (f"message {part}", ahead)
        for part, ahead in zip("abcdefg", (4, 5, 6, 7, 7, 7, 7), strict=True)
    ]
    assert asked == list("abcdefg")
    assert shared == [{part: 1} for part in "abcdefg"]


def test_answers_come_in_the_order_of_their_parts_whoever_is_slow(monkeypatch):
    def last_alone(busy, timeout):
        if timeout is None:
            return busy[:1]
        return [one for one in busy if one.part != "a"]

    here, asked, _ = side_by_side(monkeypatch, 2, last_alone)
    assert list(here.answers(parts("abcde"))) == [f"message {part}" for part in "abcde"]
    assert asked == list("abcde")


def test_processes_that_still_compute_when_a_round_is_given_up_are_ended(monkeypatch):
    here, _, _ = side_by_side(monkeypatch, 2, lambda busy, timeout: busy[: timeout is None])
    closed = []
    monkeypatch.setattr(here, "close", lambda: closed.append(True))
    given = here.answers(parts("abc"))
    next(given)
    given.close()
    assert closed == [True]
    done = here.answers(parts("a"))
    for one in here._started():
        one.part = None
    assert list(done) == ["message a"]
    assert closed == [True]


def test_as_many_processors_count_as_this_process_may_use(monkeypatch):
    monkeypatch.setattr(computing.os, "sched_getaffinity", lambda who: {1, 4} if who == 0 else {1})
    monkeypatch.setattr(computing.os, "cpu_count", lambda: 7)
    assert computing.processors() == 2
    monkeypatch.delattr(computing.os, "sched_getaffinity")
    assert computing.processors() == 7
    monkeypatch.setattr(computing.os, "cpu_count", lambda: None)
    assert computing.processors() == 1
