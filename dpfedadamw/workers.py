"""Work on long vectors, shared out among threads that each keep to their own cache.

torch's own threads start and wait for each other at every operation, which on vectors of a few
hundred kilobytes costs more than it saves. Here each worker takes whole pieces through a chain of
operations instead; torch and numpy let go of the interpreter while they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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

    def alone(first: int) -> None:
        # Within a worker torch must not start threads of its own: they would mostly wait for each
        # other. The setting is the worker's, once torch has been asked for it; the last call puts
        # back what threads that start later inherit.
        torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            work(range(first, tasks, workers))
        finally:
            torch.set_num_threads(wanted)

    with ThreadPoolExecutor(workers) as pool:
        for task in [pool.submit(alone, first) for first in range(workers)]:
            task.result()
