"""A run's durable course: what reaches the disk, in which order, and where a cut-off run goes on.

The order is what makes a crash harmless, whenever it comes:

1. A round's spends are on the disk, and `checkpoint/paid` says up to where, before its first noise
   is drawn.
2. Its evidence and the state after it are on the disk before the ledger says that it is over. That
   line names the state's digest, so the state to go on from cannot be an older one, another run's
   or a torn one. Where the evidence keeps the state, it is not written a second time.
3. Its line of metrics follows. Should it be missing, it is made again from the state.
4. Model and evidence are on the disk before the claim is. Then the checkpoint is deleted: what
   follows, the audit, the report and the signatures, can be made any number of times.

A round waits for the disk twice before its noise, and then once for each file of its evidence, for
their names, for the ledger and for the metrics. None of these can be left out:

* Without the ledger's wait in 1, noise could exist that nothing was charged for. Without that for
  `paid`, a ledger that loses its end later would be taken for one that a crash tore.
* Without a wait in 2, a crash could take evidence of a round that the ledger says is over. The
  round's noise cannot be drawn again, so that the run could not be audited.
* The ledger's line in 2 could wait for the next charge. A crash in between, while the model is
  evaluated or the run is probed, would then have a finished round run and charged again.
* Only the last line of metrics can be made again, because no more than two states are kept.

Nothing here knows what a state is, or trains anything; tests drive it on disks that lose writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpfedadamw.evidence.states import state_file
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.profiling import part
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from dpfedadamw.storage.disk import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    append,
    json_line,
    settle,
    write_atomically,
)

# States that are kept: should the last be lost, its round can be run again.
_KEPT_STATES = 2
_MOST_CHANGES_SHOWN = 3
_ROUND_EVIDENCE = re.compile(r"(?:round|upload|state)-(\d{5})(?:-\d{5})?\.(?:npz|safetensors)")
_STATE = re.compile(r"state-(\d{5,})\.safetensors")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a finished run tells.

    Attributes:
        run: Its directory.
        claim: The ledger's last entry: the privacy claim by view.
        accuracy: Test accuracy of the final model, in [0, 1]; None of a regression.
        loss: Its test loss.
        measures: Further measures of its task, by their keys in metrics.jsonl.
        own: Metrics of the user's own, by name.
        engine: How clipped sums were computed, one line; None where the process that knew it is
            gone.
    """

    run: RunDirectory
    claim: dict[str, Any]
    accuracy: float | None
    loss: float | None
    measures: Mapping[str, float]
    own: Mapping[str, float]
    engine: str | None = None


@dataclass(frozen=True)
class Recovery:
    """Where a run that was cut off goes on.

    Attributes:
        completed: Rounds completed.
        state: The serialised state after them; None at the beginning.
        note: What the user should know: that a round is run, and charged, again.
    """

    completed: int
    state: bytes | None
    note: str | None = None


class Journal:
    """Writes one run's ledger, states and metrics, in the order that survives a crash.

    Args:
        run: A directory whose first files `begin` wrote.

    Raises:
        RunDirectoryError: If spec or metrics are not those that the run wrote.
        PrivacyError: If the ledger was changed after it was written.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run, self._disk = run, run.disk
        self._paid_size = 0
        self._metrics_size: int | None = None
        self._require(run.ledger)
        self.ledger = Ledger(run.ledger, run.disk, self._synced())
        if not self.ledger.of_kind("header"):
            raise RunDirectoryError(f"{run.path}: the ledger has no header; start a new run")

    @property
    def header(self) -> Mapping[str, Any]:
        """What the run promised when it began."""
        return self.ledger.of_kind("header")[0]

    @property
    def claim(self) -> dict[str, Any] | None:
        """The run's claim; None while it trains."""
        claims = self.ledger.of_kind("claim")
        return dict(claims[-1]) if claims else None

    @property
    def completed(self) -> int:
        """Rounds that the ledger says are over."""
        over = self.ledger.of_kind("round")
        return int(over[-1]["round"]) + 1 if over else 0

    @part("ledger")
    def charge(self, spends: Iterable[Mapping[str, Any]], kind: str = "spend") -> None:
        """Pay for a round, or for a query outside the rounds, before its noise is drawn."""
        spends = list(spends)
        if not spends:
            return
        self.ledger.append_all(kind, spends)
        record = _record(self.ledger.size)
        append(_paid(self._run), record, self._paid_size, self._disk)
        self._paid_size += len(record)

    @part("checkpoints")
    def complete(self, entry: Mapping[str, Any], state: bytes, kept: bool = False) -> None:
        """Say that a round is over, once all of it is on the disk.

        Args:
            entry: Its line of the ledger, without the state's digest.
            state: What is carried into the next round, serialised.
            kept: Whether the evidence has the state, as `evidence.states` writes it.
        """
        completed = int(entry["round"]) + 1
        # The names of the round's evidence; its content is synced file by file.
        if self._disk.is_folder(self._run.evidence):
            self._disk.sync_folder(self._run.evidence)
        if not kept:
            write_atomically(self._state(completed), state, PRIVATE_MODE, self._disk)
        digest = hashlib.sha256(state).hexdigest()
        self.ledger.append("round", {**entry, "state_sha256": digest})
        for number in self._states():
            if not completed - _KEPT_STATES < number <= completed:
                self._disk.remove(self._state(number))

    def measure(self, line: Mapping[str, Any]) -> None:
        """Append a line of public metrics."""
        if self._metrics_size is None:
            self._metrics_size = self._disk.size(self._run.metrics)
        content = json_line(line)
        append(self._run.metrics, content, self._metrics_size, self._disk)
        self._metrics_size += len(content)

    def close(self, claim: Mapping[str, Any]) -> None:
        """Append the claim, once model and evidence are on the disk; the checkpoint goes."""
        self._disk.sync_folder(self._run.evidence)
        self.ledger.append("claim", claim)
        self.tidy()

    def tidy(self) -> None:
        """Delete the checkpoint of a run that has its claim: it holds clients' memories.

        Also what clients in other processes noted, where the run was killed before it was removed:
        no evidence has such files.
        """
        if self._disk.is_folder(self._run.stations):
            self._disk.remove_tree(self._run.stations)
        folder = self._run.checkpoint
        if not self._disk.is_folder(folder):
            return
        for name in self._disk.names(folder):
            self._disk.remove(folder / name)
        self._disk.remove_folder(folder)
        self._disk.sync_folder(self._run.path)

    def recover(self) -> Recovery:
        """Find the state to go on from, and forget what was written after it.

        Raises:
            RunDirectoryError: If the metrics were changed, a file that the run wrote is missing, or
                neither of the last two states is there as the ledger names it.
        """
        self._require(self._run.metrics)
        self._require(_paid(self._run))
        self._settle()
        found = self._last_good_state()
        self._forget_evidence(found.completed)
        self._forget_metrics(found.completed)
        for number in self._states():
            if number > found.completed:
                self._disk.remove(self._state(number))
        return found

    def lacks_metrics(self, completed: int) -> bool:
        """Whether the last completed round has no line of metrics yet, after `recover`."""
        lines = self._disk.read(self._run.metrics).splitlines()
        return not lines or _round_of(lines[-1]) != completed

    def last_metrics(self) -> dict[str, Any]:
        """The last line of metrics; empty where there is none that can be read."""
        try:
            line: dict[str, Any] = json.loads(self._disk.read(self._run.metrics).splitlines()[-1])
        except (ValueError, IndexError):
            return {}
        return line

    def check_spec(self) -> None:
        """Refuse a spec that is not the one the run began with.

        Raises:
            RunDirectoryError: With what was changed, where the run's own copy tells.
        """
        self._require(self._run.spec)
        found = self._disk.read(self._run.spec)
        wanted = self.header.get("spec_sha256")
        if hashlib.sha256(found).hexdigest() == wanted:
            return
        copy = self._run.checkpoint / "spec.yaml"
        kept = self._disk.read(copy) if self._disk.is_file(copy) else b""
        if hashlib.sha256(kept).hexdigest() != wanted:
            raise RunDirectoryError(
                f"{self._run.spec}: was edited since the run began; restore it, or start a new run"
            )
        raise RunDirectoryError(
            f"{self._run.spec}: was edited since the run began ({_changes(kept, found)}); restore "
            f"it with: cp {copy} {self._run.spec}; to run the changed spec, start a new run"
        )

    def _require(self, path: Path) -> None:
        """Refuse a run that lost a file which it wrote before anything was spent."""
        if not self._disk.is_file(path):
            raise RunDirectoryError(
                f"{path}: is missing, and without it this run cannot be continued; restore it, or "
                "start a new run"
            )

    def _settle(self) -> None:
        """What a writer that was killed left in memory alone, a crash to come must not take back.

        The run's own name is part of it: a start may have been killed before that was on the disk.
        """
        # Where the folder above cannot be read, the run was not started there.
        with contextlib.suppress(PermissionError):
            self._disk.sync_folder(self._run.path.parent)
        for folder in (self._run.path, self._run.checkpoint):
            self._disk.sync_folder(folder)
        settle(self._run.metrics, self._disk)

    def _last_good_state(self) -> Recovery:
        over = self.completed
        digests = {
            int(entry["round"]) + 1: entry.get("state_sha256")
            for entry in self.ledger.of_kind("round")
        }
        for completed in range(over, over - _KEPT_STATES, -1):
            if completed == 0:
                return Recovery(0, None, _repeated(over, 0))
            for path in (self._state(completed), self._run.evidence / state_file(completed - 1)):
                if not self._disk.is_file(path):
                    continue
                state = self._disk.read(path)
                if hashlib.sha256(state).hexdigest() == digests.get(completed):
                    return Recovery(completed, state, _repeated(over, completed))
        raise RunDirectoryError(
            f"{self._run.checkpoint}: the states after round {over} and the round before do not "
            "match the ledger (lost, damaged, or from another run). Restore the folder, because "
            "training those rounds again would spend their budget twice"
        )

    def _forget_evidence(self, completed: int) -> None:
        for name in self._disk.names(self._run.evidence):
            found = _ROUND_EVIDENCE.fullmatch(name)
            if found and int(found[1]) >= completed:
                self._disk.remove(self._run.evidence / name)

    def _forget_metrics(self, completed: int) -> None:
        """Drop metrics of rounds after the state, which will be run again, and what a crash tore.

        A crash may leave anything behind the lines that were synced, other files' bytes included.
        """
        path = self._run.metrics
        content = self._disk.read(path)
        kept: list[bytes] = []
        for line in content.splitlines(keepends=True)[: completed + 1]:
            if not line.endswith(b"\n") or _round_of(line) != len(kept):
                break
            kept.append(line)
        # The line of the last round may not have been written yet, and is made again.
        if len(kept) < completed:
            raise RunDirectoryError(
                f"{path}, line {len(kept) + 1}: is not the metrics line of round {len(kept)}; the "
                "file was damaged after it was written; restore it"
            )
        if b"".join(kept) != content:
            write_atomically(path, b"".join(kept), PUBLIC_MODE, self._disk)
        self._metrics_size = len(b"".join(kept))

    def _states(self) -> list[int]:
        """Rounds after which a state is kept."""
        found = map(_STATE.fullmatch, self._disk.names(self._run.checkpoint))
        return [int(match[1]) for match in found if match]

    def _state(self, completed: int) -> Path:
        return self._run.checkpoint / f"state-{completed:05d}.safetensors"

    def _synced(self) -> int | None:
        """Bytes of the ledger that noise was drawn upon; None if that cannot be told."""
        path = _paid(self._run)
        if not self._disk.is_file(path):
            return None
        content = self._disk.read(path)
        synced = None
        for record in content.splitlines(keepends=True):
            number = record.partition(b" ")[0]
            if number.isdigit() and record == _record(int(number)):
                synced = int(number)
                self._paid_size = content.index(record) + len(record)
        return synced


@part("ledger")
def begin(
    run: RunDirectory, spec: bytes, header: Mapping[str, Any], first: Mapping[str, Any]
) -> None:
    """Write the first files of a run that does not appear under its name yet (`rundir.starting`).

    Args:
        run: Its folder.
        spec: The resolved spec.
        header: The ledger's first entry.
        first: The metrics of the untrained model.
    """
    disk = run.disk
    for path in (run.spec, run.checkpoint / "spec.yaml"):
        write_atomically(path, spec, PUBLIC_MODE, disk)
    ledger = Ledger(run.ledger, disk)
    ledger.append("header", header)
    write_atomically(run.metrics, json_line(first), PUBLIC_MODE, disk)
    write_atomically(_paid(run), _record(ledger.size), PRIVATE_MODE, disk)


def _paid(run: RunDirectory) -> Path:
    return run.checkpoint / "paid"


def _record(size: int) -> bytes:
    """A line that says how much of the ledger is paid; torn, it does not match its own digest."""
    number = b"%d" % size
    return number + b" " + hashlib.sha256(number).hexdigest().encode() + b"\n"


def _repeated(over: int, completed: int) -> str | None:
    if over == completed:
        return None
    return (
        f"the state after round {over} is lost or damaged; the run continues after round "
        f"{completed}, and round {over} is run and charged again"
    )


def _round_of(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return None


def _changes(before: bytes, after: bytes) -> str:
    """Which values of a spec were changed, in a few words."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(after)):
            # A value that repeats itself may be written out at any length.
            return "it has aliases, which no spec may have"
        old, new = _leaves(yaml.safe_load(before)), _leaves(yaml.safe_load(after))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return "it is no longer valid YAML"
    changed = [
        f"{key}: {old.get(key, 'not given')} became {new.get(key, 'not given')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if not changed:
        return "its text, but no value"
    more = len(changed) - _MOST_CHANGES_SHOWN
    return "; ".join(changed[:_MOST_CHANGES_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix or "the whole": value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    return found
