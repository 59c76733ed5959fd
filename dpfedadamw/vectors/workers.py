"""Threads share out pieces of a long vector, each of which is computed by one of them, once.

torch's own threads start and wait for each other at every operation, which on vectors of a few
hundred kilobytes costs more than it saves. Here each worker takes whole pieces through a chain of
operations instead; torch and numpy let go of the interpreter while they compute.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch


def share_out(tasks: int, work: Callable[[range], None], threads: int | None = None) -> None:
    """Run tasks 0 … n-1 on several threads and wait for all of them.

    Args:
        tasks: How many there are, n.
        work: Called once a worker with the tasks that are its own. They may run in any order, so
            a task must not depend on another's.
        threads: Workers at most; None takes torch's setting.
    """
    wanted = torch.get_num_threads()
    workers = max(1, min(wanted if threads is None else threads, tasks))
    if wanted == 1 or tasks == 1:
        work(range(tasks))
        return
    pool = _pool(workers)
    shares = [pool.submit(work, range(first, tasks, workers)) for first in range(workers)]
    # Also after an error nobody may go on writing into memory that the caller takes back.
    wait(shares)
    for share in shares:
        share.result()


_STARTING = threading.Lock()


def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads that stay, and within which torch starts none of its own.

    They would mostly wait for each other. The setting is made once a thread: each time that it
    is, torch throws away what oneDNN has compiled for the layers of a model.
    """
    with _STARTING:
        return _started(workers)


@functools.cache
def _started(workers: int) -> ThreadPoolExecutor:
    wanted = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="share-out")
    all_there = threading.Barrier(workers)

    def start() -> None:
        # The setting is the thread's own only once torch has been asked for it.
        torch.get_num_threads()
        torch.set_num_threads(1)
        all_there.wait()

    for task in [pool.submit(start) for _ in range(workers)]:
        task.result()
    # What threads that start later inherit.
    torch.set_num_threads(wanted)
    return pool
