"""How a run grows with clients, rounds and parameters: time by part, memory, evidence. By hand.

    OMP_NUM_THREADS=1 python tests/bench/bench_growth.py [--only clients rounds parameters]
        [--most N]

Each point is `dpfedadamw run SPEC --profile --json` in a process of its own, on records of noise,
of which one number grows and all others stay: what a user waits for, with evidence, audit, report
and signatures. Processor time is the whole command's. The slope of a column is the exponent e of
seconds ∝ nᵉ between its last two points: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

COLUMNS: Final = ("training", "evidence", "ledger", "probe", "audit", "report", "rest")
_OWN: Final = ("start", "data", "audit", "report", "signatures", "probe", "evidence", "ledger")


@dataclass(frozen=True)
class Axis:
    """One number that grows.

    Attributes:
        points: Its values.
        changes: The spec's fields at a value.
        records: How many records there are at a value.
    """

    points: Sequence[int]
    changes: Callable[[int], dict[str, Any]]
    records: Callable[[int], int] = lambda _: 2_000


_WIDTH: Final = 64
# Of one layer, as a spec may have it.
_WIDEST: Final = 65_536


def _hidden(parameters: int) -> list[int]:
    """One hidden layer for about so many parameters; two of one width where one is too wide."""
    both = _WIDTH + 11
    one = max(1, round((parameters - 10) / both))
    if one <= _WIDEST:
        return [one]
    return [round((math.sqrt((both + 1) ** 2 + 4 * (parameters - 10)) - both - 1) / 2)] * 2


AXES: Final = {
    "clients": Axis(
        (10, 100, 1_000, 10_000),
        lambda n: {"data.clients": n},
        lambda n: max(2_000, 20 * n),
    ),
    "rounds": Axis((20, 200, 2_000), lambda n: {"federation.rounds": n}),
    "parameters": Axis(
        (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        lambda n: {
            "model.hidden": str(_hidden(n)),
            "federation.rounds": 3,
            "federation.clients_per_round": 2,
        },
    ),
}
_TESTED: Final = 100


def spec_of(folder: Path, axis: Axis, value: int) -> list[str]:
    """Write records for a point; the changes of the spec that it needs, as options."""
    count, drawn = axis.records(value), np.random.default_rng(0)
    inputs = drawn.standard_normal((count + _TESTED, _WIDTH)).astype(np.float32)
    labels = np.arange(count + _TESTED) % 10
    train = {"x_train": inputs[:count], "y_train": labels[:count]}
    test = {"x_test": inputs[count:], "y_test": labels[count:]}
    np.savez(folder / "r.npz", **train, **test)
    fields = {
        "data": "{dataset: arrays, path: %s, clients: 10, partition: {kind: iid}}"
        % (folder / "r.npz"),
        "federation.rounds": 20,
        "federation.clients_per_round": 10,
        "federation.local_steps": 2,
        "privacy": "{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, "
        "sampling: {kind: poisson, expected_batch_size: 4}}",
        **axis.changes(value),
    }
    return [text for name, content in fields.items() for text in ("--set", f"{name}={content}")]


def measured(axis: Axis, value: int) -> dict[str, float]:
    """One run: seconds by part, processor time, megabytes of memory and of evidence."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        arguments = [*spec_of(folder, axis, value), "--out", str(folder / "runs")]
        environment = {**os.environ, "DPFEDADAMW_KEYS": str(folder / "keys")}
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
        command = [sys.executable, "-m", "dpfedadamw", "run", "digits-dp-fedavg", *arguments]
        child = subprocess.Popen(
            [*command, "--profile", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        assert child.stdout is not None
        printed = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {os.waitstatus_to_exitcode(status)}")
        parts: dict[str, float] = json.loads(printed)["profile"]["parts"]
        files = (folder / "runs" / "latest").resolve().glob("evidence/*")
        evidence = sum(path.stat().st_size for path in files)
    training = sum(seconds for name, seconds in parts.items() if name not in _OWN)
    found = {"training": training, **{name: parts.get(name, 0.0) for name in COLUMNS[1:-1]}}
    found["rest"] = sum(parts.values()) - sum(found.values())
    return {
        **found,
        "processor": _seconds(used),
        "memory": used.ru_maxrss / 1024,
        "on disk": evidence / 2**20,
    }


def _seconds(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure what was asked for and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--most", type=int, default=10**9, help="leave out points above this")
    asked = parser.parse_args()
    for name in asked.only:
        axis, rows = AXES[name], list[tuple[int, dict[str, float]]]()
        columns = (*COLUMNS, "processor", "memory", "on disk")
        timed = ", s | ".join((*COLUMNS, "processor"))
        print(f"\n| {name} | {timed}, s | memory, MB | evidence, MB |")
        print("|---" * (len(columns) + 1) + "|")
        for value in axis.points:
            if value > asked.most:
                continue
            rows.append((value, measured(axis, value)))
            cells = (f"{rows[-1][1][column]:.2f}" for column in columns[:-2])
            last = (f"{rows[-1][1][column]:.0f}" for column in columns[-2:])
            print(f"| {value:,} | {' | '.join((*cells, *last))} |", flush=True)
        if len(rows) > 1:
            (before, earlier), (after, later) = rows[-2:]
            steps = math.log(after / before)
            slopes = (
                f"{math.log(max(later[column], 1e-9) / max(earlier[column], 1e-9)) / steps:.2f}"
                if later[column] > 0.05
                else "–"
                for column in columns
            )
            print(f"| slope | {' | '.join(slopes)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
