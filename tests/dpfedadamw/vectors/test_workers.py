"""Work shared out among threads: every task once, failures told, torch's setting left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from dpfedadamw.vectors import workers as workers_of_vectors
from dpfedadamw.vectors.flat import in_pieces
from dpfedadamw.vectors.workers import share_out


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("set_before", [None, "7"])
def test_torchs_idle_threads_sleep_soon_unless_the_user_has_said_otherwise(
    set_before: str | None,
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    if set_before is not None:
        environment["GOMP_SPINCOUNT"] = set_before
    seen = subprocess.run(
        # In the main module of the command nothing may load torch before the package is there.
        [
            sys.executable,
            "-c",
            "import sys, dpfedadamw, os; assert 'torch' not in sys.modules; import dpfedadamw.cli; "
            "print(os.environ['GOMP_SPINCOUNT'])",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip() == (set_before or "20000")


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("tasks", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("threads", [None, 1, 2])
def test_every_task_is_done_once(tasks: int, threads: int | None) -> None:
    done: list[int] = []
    share_out(tasks, lambda own: done.extend(own), threads)
    assert sorted(done) == list(range(tasks))


def test_no_more_threads_work_than_were_asked_for() -> None:
    seen: list[range] = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        share_out(9, seen.append, threads=1)
    finally:
        torch.set_num_threads(before)
    assert seen == [range(9)]


@pytest.mark.parametrize(("wanted", "tasks"), [(1, 1), (1, 9), (3, 1)])
def test_work_for_one_thread_is_done_by_the_one_that_asks(wanted: int, tasks: int) -> None:
    seen: list[tuple[range, int]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        share_out(tasks, lambda own: seen.append((own, threading.get_ident())))
    finally:
        torch.set_num_threads(before)
    assert seen == [(range(tasks), threading.get_ident())]


@pytest.mark.parametrize(("wanted", "tasks", "workers"), [(3, 9, 3), (2, 9, 2), (3, 2, 2)])
def test_tasks_run_on_several_threads_that_start_none_of_their_own(wanted, tasks, workers) -> None:
    seen: dict[int, int] = {}
    together = threading.Barrier(workers, timeout=60)

    def work(_: range) -> None:
        together.wait()
        seen[threading.get_ident()] = torch.get_num_threads()

    # Threads that no other test has started.
    workers_of_vectors._started.cache_clear()
    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        share_out(tasks, work)
        assert torch.get_num_threads() == wanted
        later: list[int] = []
        other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert later == [wanted]
    finally:
        torch.set_num_threads(before)
    assert len(seen) == workers
    assert set(seen.values()) == {1}


@pytest.mark.usefixtures("three_threads")
def test_an_error_in_a_worker_is_raised() -> None:
    def work(own: range) -> None:
        if 4 in own:
            raise ValueError("task four")

    with pytest.raises(ValueError, match="task four"):
        share_out(9, work)


@pytest.mark.usefixtures("three_threads")
def test_after_an_error_no_worker_is_left_at_work() -> None:
    failed = threading.Event()
    finished: list[int] = []

    def work(own: range) -> None:
        if 0 in own:
            failed.set()
            raise ValueError("the first fails at once")
        failed.wait(60)
        time.sleep(0.1)
        finished.append(own.start)

    with pytest.raises(ValueError, match="the first"):
        share_out(9, work)
    assert sorted(finished) == [1, 2]


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("size", [1, 32_768, 32_769, 100_003, 600_000])
def test_pieces_cover_every_coordinate_once(size: int) -> None:
    counts = torch.zeros(size)

    def count(part: slice, memory: torch.Tensor) -> None:
        assert memory.shape == counts[part].shape
        counts[part] += 1

    in_pieces(counts, count)
    assert bool((counts == 1).all())
