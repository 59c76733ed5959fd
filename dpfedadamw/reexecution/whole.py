"""A finished run repeated from its first round to its model, and how the repetition differs."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpfedadamw import measures
from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.federation.rounds import divergence
from dpfedadamw.reexecution.history import ReexecutionError, plain
from dpfedadamw.reexecution.rounds import Rerun, packed_state, round_numbers
from dpfedadamw.run import checkpoints
from dpfedadamw.run.evaluation import Evaluation, is_due
from dpfedadamw.run.header import metrics_line, write_model_config
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec import Spec, yamltext
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import parse, read_json_lines


@dataclass(frozen=True)
class Compared:
    """One file, as the run has it and as it came out again.

    Attributes:
        file: Its name.
        same: Whether both are the same.
        note: What was compared, or what differs.
    """

    file: str
    same: bool
    note: str


@dataclass(frozen=True)
class Replayed:
    """A run that was run again.

    Attributes:
        compared: What was compared.
        differences: How machine and versions differ from the run's, which may explain differences.
        rounds: How many rounds were run.
    """

    compared: tuple[Compared, ...]
    differences: tuple[str, ...]
    rounds: int

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return all(one.same for one in self.compared)


def replay(
    rerun: Rerun, run: RunDirectory, on_round: Callable[[int, int], None] = lambda *_: None
) -> Replayed:
    """Run a finished run again, and compare what is public of it.

    Args:
        rerun: The run, with its keys.
        run: Its directory.
        on_round: Called with rounds done and rounds in all.

    Raises:
        DpfedadamwError: If a round cannot be run: its key is not at hand, or the ledger lacks it.
    """
    past, experiment = rerun.ledger, rerun.experiment
    total = len(past.rounds)
    if sorted(past.rounds) != list(range(total)) or not past.claims:
        raise ReexecutionError(f"{run.path}: is not finished, so there is nothing to compare")
    measures.given(experiment.spec.evaluation.metrics)
    state: ServerState = rerun.initial_state()
    plan = experiment.plan
    first = rerun.evaluate(state)
    lines = [metrics_line(0, first, None, None, epsilon=plan.epsilon_after(0))]
    wrong: list[int] = []
    different: dict[str, None] = {}
    for index in range(total):
        result, again = rerun.run_round(index, state)
        state = result.state
        entry = past.rounds[index].entry
        numbers = round_numbers(result)
        told = {**result.entry, "state_sha256": hashlib.sha256(packed_state(result)).hexdigest()}
        charges = [plain(charge) for charge in past.rounds[index].charges]
        if _decoded(told) != plain(entry) or _decoded(list(again.charges)) != charges:
            wrong.append(index)
        different |= dict.fromkeys(again.differences)
        measured = Evaluation(None, None)
        if is_due(experiment, result.completed, numbers.last):
            measured = rerun.evaluate(state, numbers.last)
        spent = plan.epsilon_of_round(past.entries, result.completed)
        lines.append(metrics_line(result.completed, measured, numbers, None, epsilon=spent))
        on_round(index + 1, total)
    compared = (
        same_spec(run.spec, rerun.filed_spec),
        *_written(rerun, run, state),
        _metrics(run, lines),
        _ledger(rerun, wrong, divergence(state, total)),
    )
    return Replayed(compared, tuple(different), total)


def _written(rerun: Rerun, run: RunDirectory, state: ServerState) -> tuple[Compared, ...]:
    """The model's files, written again somewhere else."""
    with tempfile.TemporaryDirectory(prefix="dpfedadamw-replay-") as folder:
        copy = RunDirectory(Path(folder))
        rerun.assign(state)
        checkpoints.write_weights(copy.weights, rerun.experiment.model)
        write_model_config(rerun.experiment, copy)
        return (
            _same_bytes(run.weights, copy.weights.read_bytes()),
            same_config(run.model_config, copy.model_config.read_bytes()),
        )


def same_config(path: Path, again: bytes) -> Compared:
    """model.json, written again; of a run from before a key was there it is not missed."""
    compared = _same_bytes(path, again)
    if compared.same or not path.is_file():
        return compared
    try:
        found, due = parse(DISK.read(path), path.name), json.loads(again)
    except ValueError:
        return compared
    later = {key: due[key] for key in ("labels", "inputs") if key in due and key not in found}
    if not later or {**found, **later} != due:
        return compared
    return Compared(path.name, True, "every key that it has; there are more since")


def same_spec(path: Path, stated: Spec) -> Compared:
    """The resolved spec, written again.

    A run from before a key was there has none of it, and it is not held against it.

    Args:
        path: The run's spec.yaml.
        stated: What was read of it.
    """
    again = specs.dump(stated)
    compared = _same_bytes(path, again.encode())
    if compared.same or not path.is_file():
        return compared
    found = yamltext.parse(yamltext.decode(DISK.read(path), path.name), path.name).value
    if not _is_part(found, yaml.safe_load(again)):
        return compared
    return Compared(path.name, True, "every key that it has; there are more since")


def _is_part(found: Any, whole: Any) -> bool:
    """Whether mappings in mappings hold nothing that the other does not, with the same values."""
    if isinstance(found, dict) and isinstance(whole, dict):
        return all(key in whole and _is_part(inner, whole[key]) for key, inner in found.items())
    return bool(found == whole)


def _same_bytes(path: Path, again: bytes) -> Compared:
    try:
        found = DISK.read(path)
    except OSError as error:
        return Compared(path.name, False, f"cannot be read ({error.strerror})")
    if found == again:
        return Compared(path.name, True, "byte for byte")
    first = next(
        (at for at, (one, other) in enumerate(zip(found, again, strict=False)) if one != other),
        min(len(found), len(again)),
    )
    return Compared(path.name, False, f"differs from byte {first} on")


def _metrics(run: RunDirectory, lines: list[dict[str, Any]]) -> Compared:
    """Public metrics but for the time that rounds took."""
    name = run.metrics.name
    try:
        found = read_json_lines(run.metrics)
    except (OSError, ValueError):
        return Compared(name, False, "cannot be read")
    due = [_timeless(_decoded(line)) for line in lines]
    if not any("epsilon" in line for line in found):
        # As a version wrote it that did not tell it.
        due = [{key: value for key, value in line.items() if key != "epsilon"} for line in due]
    if not any("test_majority_rate" in line for line in found):
        # Likewise, of what a finished model is measured by.
        later = (*(f"test_{one}" for one in measures.FINAL), "test_confusion")
        due = [{key: value for key, value in line.items() if key not in later} for line in due]
    if [_timeless(line) for line in found] == due:
        return Compared(name, True, "every number but seconds")
    if len(found) != len(due):
        return Compared(name, False, f"has {len(found)} lines; run again, there are {len(due)}")
    first = next(n for n, (a, b) in enumerate(zip(found, due, strict=True)) if _timeless(a) != b)
    keys = [key for key in due[first] if found[first].get(key) != due[first][key]]
    return Compared(name, False, f"differs from round {first} on ({', '.join(keys)})")


def _ledger(rerun: Rerun, wrong: list[int], diverged: Mapping[str, Any]) -> Compared:
    """Charges, rounds with their digests, and the claim, with what it says of a divergence."""
    name = "ledger.jsonl"
    if wrong:
        text = f"charges or digests differ in {len(wrong)} rounds, the first of them {wrong[0]}"
        return Compared(name, False, text)
    entries = rerun.ledger.entries
    claim = plain(rerun.ledger.claims[-1])
    for beside in ("budget", "dp_accounting"):
        # Of other runs, and of a library that may have changed; the audit judges both.
        claim.pop(beside, None)
    due = rerun.experiment.plan.unit.realised_claim(
        rerun.experiment.plan, [entry for entry in entries if entry["kind"] != "claim"]
    )
    if _decoded({**due, **diverged}) != claim:
        return Compared(name, False, "the claim is not what its charges come to")
    return Compared(name, True, "every charge, every round's digests, and the claim")


def _timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "seconds"}


def _decoded(value: Any) -> Any:
    """A value as it is once it was written and read."""
    return json.loads(json.dumps(value))
