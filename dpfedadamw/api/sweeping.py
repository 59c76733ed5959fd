"""Sweeps: many runs of one spec."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dpfedadamw.api.tables import Table
from dpfedadamw.errors import DpfedadamwError

_NOT_PASSED = 1


def sweep(
    spec: str | Path,
    *,
    changes: Sequence[str] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    only: Sequence[str] = (),
    smoke: bool = False,
    allow_code: Sequence[str] = (),
) -> Table:
    """Run every combination of a spec's matrix under every seed, as ``dpfedadamw sweep``.

    What is done is left alone, so that the same call goes on where one was cut off. Each cell is a
    process of its own, started by the command.

    Args:
        spec: A YAML file, or a shipped sweep's name.
        changes: Fields to change, ``"federation.rounds=40"`` each.
        out: The sweep's folder; ``sweeps/NAME`` by default.
        jobs: Runs at a time.
        only: ``"AXIS=LABEL"`` each: cells of this label alone.
        smoke: Try each combination for two rounds, small, in a folder of its own.
        allow_code: Modules whose code the spec may name; as of `run`.

    Returns:
        The results, a row a cell that is done, also where others failed or did not pass: their
        ``audit`` says so.

    Raises:
        DpfedadamwError: If the spec is wrong, or no cell could be run; with what the command says.
    """
    options = [*(f"--set={one}" for one in changes), *(f"--only={one}" for one in only)]
    named = [allow_code] if isinstance(allow_code, str) else allow_code
    options += [f"--allow-code={one}" for one in named]
    if out is not None:
        options.append(f"--out={out}")
    if smoke:
        options.append("--smoke")
    command = [sys.executable, "-m", "dpfedadamw", "sweep", str(spec), f"--jobs={jobs}", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {}
    if done.returncode not in (0, _NOT_PASSED) or not found.get("results"):
        reasons = found.get("error", {}).get("messages") or list(found.get("failed", {}).values())
        raise DpfedadamwError("\n".join(reasons) or done.stderr.strip() or "the sweep failed")
    return Table(found["results"])
