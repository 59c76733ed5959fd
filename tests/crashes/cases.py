"""Small runs of each kind, and what must hold once one that was cut off is finished."""

from __future__ import annotations

import atexit
import collections
import functools
import json
import os
import random
import re
import shutil
import signal
import stat
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crashes.branching import Ended, Process, begin, end, run

SPEC = """
version: 1
name: small
data:
  dataset: digits
  clients: 3
  partition: {{kind: dirichlet, alpha: 1.0, minimum_records: 100}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: {algorithm}, learning_rate: 0.1, schedule: constant}}
federation: {{rounds: 2, clients_per_round: 2, local_steps: 2}}
privacy: {privacy}
randomness: {randomness}
"""
_RECORD = (
    "{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5, "
    "sampling: {kind: poisson, expected_batch_size: 24}}"
)
_CLIENT = "{unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}"
_RANDOMNESS = {"release": "release", "reproducible": "{mode: reproducible, seed: 1}"}
# Evidence of one participation, of which a run has one for each client of a round.
_ENVIRONMENT = re.compile(r"evidence/environment-\d{5}\.json")
_UPLOAD = re.compile(r"(evidence/upload-\d{5})-\d{5}\.npz")
# What a run tells before it ends: of keys that it made, and where it is.
_TOLD_BEFORE = ("made a signing key: ", "run: ")
_UNITS = {"record": ("dp-fedadamw", _RECORD), "client": ("dp-fedavg", _CLIENT)}
KINDS = tuple(f"{mode}-{unit}" for mode in _RANDOMNESS for unit in _UNITS)


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbed, to compare with.

    Attributes:
        spec: Its spec.
        files: Permission bits by name of all that it left, folders among them.
        model: Its weights, where they are the same each time; None in release mode.
        seconds: How long it took.
    """

    spec: Path
    files: dict[str, int]
    model: bytes | None
    seconds: float

    def with_files(self, more: dict[str, int]) -> Whole:
        """The same with more files."""
        return replace(self, files={**self.files, **more})


def write_spec(kind: str, folder: Path) -> Path:
    """Write the spec of a kind."""
    mode, unit = kind.split("-")
    algorithm, privacy = _UNITS[unit]
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(algorithm=algorithm, privacy=privacy, randomness=_RANDOMNESS[mode]))
    return path


@functools.cache
def whole(kind: str) -> Whole:
    """Run the spec of a kind, with nothing in its way, once."""
    folder = Path(tempfile.mkdtemp(prefix="whole-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spec = write_spec(kind, folder)
    case = folder / "whole"
    began = time.monotonic()
    ended = run(first(spec, case))
    seconds = time.monotonic() - began
    assert ended.code == 0, ended
    found = only_run(case)
    model = (found / "model.safetensors").read_bytes() if kind.startswith("reproducible") else None
    return Whole(spec, permissions(found), model, seconds)


def first(spec: Path, case: Path, umask: int = 0o000) -> Process:
    """The process that begins a run.

    It computes nothing again at its end: draws of noise are counted, and those would be among them.
    """
    arguments = ("run", str(spec), "--out", str(case / "runs"), "--replay", "0")
    return Process(arguments, case, umask=umask)


def resumed(case: Path, key: int = 2) -> Process:
    """The process that finishes it, under another umask."""
    return Process(("run", "--resume", str(only_run(case))), case, key, umask=0o077)


def appeared(case: Path) -> list[Path]:
    """The runs that lie in a case under their own names."""
    runs = case / "runs"
    if not runs.is_dir():
        return []
    return [one for one in runs.iterdir() if not one.name.startswith(".") and one.name != "latest"]


def only_run(case: Path) -> Path:
    """The one run in a case."""
    (found,) = appeared(case)
    return found


def finish(case: Path, reference: Whole, key: int = 2) -> list[str]:
    """Finish a run that was cut off as a user would, and say what does not hold then.

    By ``--resume`` where the run is there under its name, else by the spec, as nothing was spent.
    """
    if appeared(case):
        process = resumed(case, key)
    else:
        if (case / "draws").exists():
            return ["noise was drawn before the run was there under its name"]
        process = first(reference.spec, case)
    ended = run(process)
    if ended.code != 0:
        return [f"{' '.join(process.arguments)}: {ended}"]
    return faults(case, reference)


def faults(case: Path, reference: Whole) -> list[str]:
    """What does not hold of a case whose run is finished."""
    found = []
    names = sorted(os.listdir(case / "runs"))
    # The link is a convenience that a run goes on without.
    if len([name for name in names if name != "latest"]) != 1:
        found.append(f"besides run and link there are {names}")
    folder = only_run(case)
    verdict = json.loads((folder / "audit.json").read_bytes())["verdict"]
    if verdict != "PASS":
        found.append(f"the verdict is {verdict}")
    held = permissions(folder)
    found += [
        f"{name}: permissions {held.get(name, 0):o} and not {reference.files.get(name, 0):o}"
        for name in sorted(held.keys() | reference.files.keys())
        if held.get(name) != reference.files.get(name)
    ]
    if reference.model not in (None, (folder / "model.safetensors").read_bytes()):
        found.append("the model is not that of a run that was not cut off")
    found += unpaid(case)
    ended = run(Process(("verify", str(folder)), case))
    if ended.code != 0:
        found.append(f"verify: {ended}")
    return found


def harass(reference: Whole, case: Path, seed: int) -> tuple[list[str], list[str]]:
    """Start a run and stop it, by kills and signals at random times, four times at most.

    Returns:
        What does not hold once it is finished, and what befell it.
    """
    chance = random.Random(seed)
    befell, faults = [], []
    for attempt in range(1, 5):
        process = resumed(case, attempt) if appeared(case) else first(reference.spec, case)
        name = chance.choice(("SIGKILL", "SIGKILL", "SIGKILL", "SIGINT", "SIGTERM", "SIGHUP"))
        after = chance.uniform(0, reference.seconds)
        number = begin(process)
        time.sleep(after)
        os.kill(number, getattr(signal, name))
        ended = end(number, process)
        befell.append(f"{name} after {after:.3f} s of {' '.join(process.arguments)}")
        if ended.code == 0:
            break
        runs = appeared(case)
        signalled = getattr(signal, name)
        told = told_of_an_end(ended)
        one_line = len(told) == 1 and all(f"run --resume {run}" in told[0] for run in runs)
        # A process that is killed tells nothing, nor does one that had not begun or had ended.
        told_nothing = ended.code == -signalled or not told
        in_order = ended.code == 128 + signalled and (one_line or told_nothing)
        if not (in_order or ended.code == -signalled):
            faults.append(f"{befell[-1]}: {ended}")
    return faults + finish(case, reference, key=5), befell


def told_of_an_end(ended: Ended) -> list[str]:
    """What a process told when it ended."""
    return [line for line in ended.told.splitlines() if not line.startswith(_TOLD_BEFORE)]


def unpaid(case: Path) -> list[str]:
    """Draws of noise, by round, client and attempt, that the ledger does not have paid for."""
    paid: collections.Counter[tuple[int, int, int]] = collections.Counter()
    for line in (only_run(case) / "ledger.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "spend":
            name = entry["round"], entry.get("client", -1), entry["attempt"]
            paid[name] += entry["steps"] * entry["queries_per_step"] if "client" in entry else 1
    log = case / "draws"
    lines = log.read_text().splitlines() if log.exists() else []
    drawn = collections.Counter(tuple(map(int, line.split())) for line in lines)
    return [
        f"round, client and attempt {name}: {count} draws, {paid[name]} paid"
        for name, count in drawn.items()
        if count > paid[name]
    ]


def permissions(folder: Path) -> dict[str, int]:
    """Permission bits by name of everything in a run, and of itself.

    A round that is run again in release mode draws other clients: their files of the round are
    told apart by their order alone. Each process that went on wrote on what it computes.
    """
    names = {path: str(path.relative_to(folder)) for path in sorted(folder.rglob("*"))}
    by_round: collections.Counter[str] = collections.Counter()
    for path, name in names.items():
        if found := _UPLOAD.fullmatch(name):
            by_round[found[1]] += 1
            names[path] = f"{found[1]}-client {by_round[found[1]]}.npz"
        elif _ENVIRONMENT.fullmatch(name):
            names[path] = "evidence/environment.json"
    held = {name: stat.S_IMODE(path.lstat().st_mode) for path, name in names.items()}
    return {**held, ".": stat.S_IMODE(folder.stat().st_mode)}
