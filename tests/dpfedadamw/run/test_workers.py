"""Clients of a round side by side in processes: the same bits, and clean ends."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedadamw.experiment import prepare
from dpfedadamw.run import training as engine_run
from dpfedadamw.run import workers
from dpfedadamw.run.workers import WorkerError, WorkerProcesses, workers_of
from tests import runs
from tests.dpfedadamw.cli.test_text import folder as texts  # noqa: F401  # a fixture

CPU = torch.device("cpu")
# What differs between any two runs of the same spec: their names, times and digests of these.
OF_ONE_RUN = {"digest", "previous", "created", "run", "spec_sha256"}


@pytest.fixture(autouse=True)
def one_salt(monkeypatch):
    """Keyed digests of evidence can be compared between runs that have the same key."""
    monkeypatch.setattr(engine_run.secrets, "token_bytes", lambda size: b"\x07" * size)


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
        return engine_run.specs.load(folder / "texts.yaml", changes)
    changes = ()
    if kind == "client":
        changes = ("privacy.noise_added_by=clients", "federation.client_sampling=poisson")
    algorithm = {"record": "dp-fedadamw", "memory": "dp-scaffold", "client": "blur"}[kind]
    return runs.small_spec(algorithm, rounds=2, overrides=changes)


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


def test_a_worker_that_dies_ends_the_run_in_one_sentence_and_the_run_can_be_resumed(tmp_path):
    spec = runs.small_spec("dp-scaffold", rounds=3)
    whole = trained(spec, tmp_path / "whole", 1)
    training = runs.begin(with_workers(spec, 2), tmp_path / "cut")

    def kill(done, of):
        if training.completed == 1:
            for process in multiprocessing.active_children():
                process.kill()

    told = r"worker process \d of 2 ended \(by signal 9\).*round ([12])"
    with pytest.raises(WorkerError, match=told) as ended:
        engine_run.train(training, on_client=kill)
    # Where both had answered for all of round 1 before they were killed, it is round 2 that fails.
    cut = int(re.search(told, str(ended.value))[1])
    assert not multiprocessing.active_children()
    again = engine_run.resume(training.run, CPU)
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

    def interrupt(_done, _of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine_run.train(training, on_client=interrupt)
    assert not multiprocessing.active_children()


def test_auto_takes_as_many_workers_as_there_is_something_to_do_for(monkeypatch):
    monkeypatch.setattr(workers, "processors", lambda: 6)
    monkeypatch.setattr(workers.torch, "get_num_threads", lambda: 2)
    experiment = prepare(with_workers(runs.small_spec(), "auto"), CPU)
    assert workers_of(experiment, 1_000) == 4  # clients of a round
    assert workers_of(experiment, 1_000_000) == 3
    assert workers_of(dataclasses.replace(experiment, device=torch.device("cuda")), 1_000) == 1
    given = dataclasses.replace(experiment, spec=with_workers(experiment.spec, 3))
    assert workers_of(given, 1_000_000) == 3


def test_closed_workers_take_no_further_part_and_leave_no_thread_behind():
    flat = SimpleNamespace(vector=torch.zeros(3))
    worker = SimpleNamespace(flat=flat, performance=SimpleNamespace(engine="auto"), unit=None)
    closed = WorkerProcesses(SimpleNamespace(path=Path.cwd()), worker, "blake3", 2)
    threads = closed._threads = ThreadPoolExecutor(1)
    ended = []
    closed._processes = [
        SimpleNamespace(
            kill=lambda: ended.append("killed"), forget=lambda: ended.append("forgotten")
        )
    ]
    waiting = threading.Event()
    first = threads.submit(waiting.wait, 5.0)
    second = threads.submit(ended.append, "never")
    waiting.set()
    first.result()
    closed.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(print)
    assert [one for one in ended if one != "never"] == ["killed", "forgotten"]
    assert second.done()
    assert (closed._threads, closed._processes) == (None, [])
    closed.close()
