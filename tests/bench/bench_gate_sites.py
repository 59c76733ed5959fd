"""Processor time of a site with the gate, and of the same shards without it; by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_gate_sites flower [BLOCKS]
    OMP_NUM_THREADS=1 python -m tests.bench.bench_gate_sites nvflare [BLOCKS]

In the environment of `tox run -e flower` or `-e nvflare`. Real servers and sites: one gated site of
two shards, and two ordinary nodes with a shard each. The job trains for one second of processor
time. Blocks of five rounds alternate between the two, and the first round of each block is left
out. Rounds of both last about as long. A control group counts all that a site starts (as root).
Printed is the median, for a shard and round, of what is spent besides that second.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

SHARDS, ROUNDS, SECONDS = 2, 5, 1.0
REPLY_AFTER = 20.0
# An ordinary node waits, so that its rounds last about as long: what frameworks take while they
# wait is then in both.
STEPS = {
    "gated": [f"train burn-{SECONDS}"] * ROUNDS,
    "plain": [f"train burn-{SECONDS}-{REPLY_AFTER - 2}"] * ROUNDS,
}
GROUPS = Path("/sys/fs/cgroup")


class Account:
    """Processor time of processes and all that they start, in a control group (as root).

    Args:
        name: Of the group.
        machines: Whose processes are counted.
        names: Of the processes.
    """

    def __init__(self, name: str, machines: Any, names: list[str]) -> None:
        first = GROUPS / "cpuacct"
        self._folder = (first if first.is_dir() else GROUPS) / f"gate-{name}-{os.getpid()}"
        self._folder.mkdir()
        start = machines.start
        join = ("sh", "-c", f'echo $$ > {self._folder}/cgroup.procs; exec "$@"', "sh")
        machines.start = lambda one, *command: start(one, *(join if one in names else ()), *command)

    def seconds(self) -> float:
        """All until now."""
        usage = self._folder / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        return int((self._folder / "cpu.stat").read_text().split()[1]) / 1e6


def rounds(account: Account, place: Path) -> list[float]:
    """Seconds besides training for each round of a job that was submitted, but its first."""
    found = []
    for number in range(1, ROUNDS + 1):
        while not place.exists() or len(json.loads(place.read_text())["steps"]) < number:
            time.sleep(0.02)
        found.append(account.seconds())
    return [after - before - SHARDS * SECONDS for before, after in itertools.pairwise(found)]


def flower(place: Path, blocks: int) -> dict[str, list[float]]:
    """Both sites on Flower."""
    from tests.dpfedadamw.extensions.gate.flower.superlink import machines
    from tests.dpfedadamw.extensions.gate.processes import free_port, shards_of

    found = defaultdict(list)
    nodes = [f"node-{shard}" for shard in range(SHARDS)]
    shards_of(place / "data", np.zeros((40, 64)), np.zeros(40, int), SHARDS)
    with machines(place / "gated") as gated, machines(place / "plain") as plain:
        accounts = {
            "gated": Account("gated", gated, ["gate"]), "plain": Account("plain", plain, nodes),
        }  # fmt: skip
        gated.supernode(
            "gate", gated.begin(place, 1000, SHARDS), place / "data", "--reply-after",
            REPLY_AFTER, "--at-once", SHARDS, "--logs", place / "logs",
        )  # fmt: skip
        for shard, node in enumerate(nodes):
            plain.start(
                node, "flower-supernode", "--insecure", "--superlink", plain.address, "--port",
                str(free_port()), "--node-config", f'data="{place / "data" / f"{shard:04d}"}"',
            )  # fmt: skip
        for block in range(blocks):
            for way, one, sites in (("gated", gated, 1), ("plain", plain, SHARDS)):
                one.run(f"job-{block}", STEPS[way], sites)
                found[way] += rounds(accounts[way], one.place / f"job-{block}.json")
    return found


def nvflare(place: Path, blocks: int) -> dict[str, list[float]]:
    """Both sites on NVFlare."""
    from tests.dpfedadamw.extensions.gate.nvflare.poc import APP, machines
    from tests.dpfedadamw.extensions.gate.processes import shards_of

    found = defaultdict(list)
    shards_of(place / "data", np.zeros((40, 64)), np.zeros(40, int), SHARDS)
    client = json.loads((APP / "config" / "config_fed_client.json").read_text())
    client["executors"][0]["executor"]["args"]["data"] = str(place / "data" / "0000")
    with machines(place / "m", 1 + SHARDS) as m:
        gated, *plain = m.sites
        m.gate(
            "nvflare", m.begin(place, 1000, SHARDS), m.kits / gated, "--data", place / "data",
            "--reply-after", REPLY_AFTER, "--at-once", SHARDS, "--logs", place / "logs",
        )  # fmt: skip
        ways = {"gated": ([gated], None), "plain": (plain, client)}
        accounts = {way: Account(way, m, sites) for way, (sites, _) in ways.items()}
        m.up()
        for block in range(blocks):
            for way, (sites, more) in ways.items():
                told = {"deploy_map": {"app": ["server", *sites]}, "min_clients": len(sites)}
                m.submit(f"{way}-{block}", STEPS[way], client=more, **told)
                found[way] += rounds(accounts[way], m.place / f"{way}-{block}.json")
    return found


def main() -> None:
    """Measure, and print a line for each way."""
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as folder:
        found = {"flower": flower, "nvflare": nvflare}[sys.argv[1]](Path(folder), blocks)
        logs = "".join(one.read_text() for one in Path(folder, "logs").glob("*.log"))
    late = SHARDS * ROUNDS * blocks - logs.count("burnt")
    if late:
        print(f"{late} answers came late and took less: the machine is too busy")
    for way, seconds in found.items():
        each = [one / SHARDS for one in seconds]
        print(
            f"{way}: median {statistics.median(each):.2f} s a shard and round besides training "
            f"({min(each):.2f} to {max(each):.2f}, {len(each)} rounds)"
        )
    for group in GROUPS.rglob(f"gate-*-{os.getpid()}"):
        # What NVFlare's processes left behind may take a moment to end.
        with contextlib.suppress(OSError):
            group.rmdir()


if __name__ == "__main__":
    main()
