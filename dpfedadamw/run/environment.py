"""On what a run was computed: versions, processor and threads, as far as they change rounding.

The same arithmetic gives the same numbers to the last bit where all of this agrees. It is private
evidence: which machine trained is nobody's business but the auditor's, who needs it to tell whether
a run that is computed again may differ.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dpfedadamw
from dpfedadamw import __version__
from dpfedadamw.experiment import Experiment, pick_device
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from dpfedadamw.storage.disk import PRIVATE_MODE, json_line, write_atomically
from dpfedadamw.storage.foreign import read_mapping

_NAME = re.compile(r"environment-(\d{5,})\.json")


def environment(device: torch.device, engine: str) -> dict[str, Any]:
    """This process's, by name.

    Args:
        device: Where tensors live.
        engine: The clipped-sum engine that was asked for.
    """
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "package": __version__,
        "sources": sources(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": platform.system(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "accelerator": accelerator,
        "engine": engine,
    }


@functools.cache
def sources() -> str:
    """A digest of this package's own modules: two states of one version may round differently."""
    root, found = Path(dpfedadamw.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)}\0".encode() + content)
    return found.hexdigest()[:16]


def write_environment(
    run: RunDirectory,
    completed: int,
    experiment: Experiment,
    engine: str,
    commitment: str | None = None,
) -> None:
    """Write on what the rounds from ``completed`` on are computed, and from which key.

    What a process wrote that was cut off before it finished one of them goes.
    """
    for name in run.disk.names(run.evidence):
        match = _NAME.fullmatch(name)
        if match and int(match[1]) > completed:
            run.disk.remove(run.evidence / name)
    path = run.evidence / f"environment-{completed:05d}.json"
    # The ledger names the same key; who leaves out that the run was cut off leaves out its name.
    named = {} if commitment is None else {"commitment": commitment}
    found = environment(experiment.device, engine) | named
    write_atomically(path, json_line(found), PRIVATE_MODE, run.disk)


def read_environments(directory: Path) -> dict[int, dict[str, Any]]:
    """What was written, by the first round that it holds for; empty for runs that wrote none.

    Raises:
        RunDirectoryError: If a file cannot be read.
    """
    found = {}
    for path in sorted(directory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            found[int(match[1])] = read_mapping(path)
        except (OSError, ValueError, TypeError) as error:
            raise RunDirectoryError(f"{path}: cannot be read ({error})") from None
    return found


def recorded_device(directory: Path) -> str:
    """The kind of device that a run was computed on, as ``--device`` names it; "auto" if unknown.

    Where the run began on one that is not here, what is here is used, and rounding differs.
    """
    found = read_environments(directory) if directory.is_dir() else {}
    kind = str(found[min(found)].get("device")) if found else "auto"
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return kind if here.get(kind, True) else "auto"


def device_of(evidence: Path, name: str) -> torch.device:
    """The device to compute a run on again: the one that is named, with "auto" the run's own kind.

    Raises:
        RunError: As `pick_device`.
    """
    return pick_device(recorded_device(evidence) if name == "auto" else name)


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The differences between two environments, one text each: name, then and now."""
    return [
        f"{name}: {recorded.get(name)} then, {here.get(name)} here"
        for name in here
        if recorded.get(name) != here.get(name)
    ]


def _processor() -> str:
    """The processor's name, as Linux tells it; elsewhere as Python does."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
