"""The writer: ledger and evidence on the disk, in the order in which they must be there."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.recorders.evidence.arrays import File, arrays_of
from dpfedadamw.extensions.recorders.evidence.declared import (
    Charge,
    EvidenceError,
    Loop,
    Stated,
    Step,
    check,
)
from dpfedadamw.extensions.recorders.evidence.documents import (
    adjacency_of,
    as_json,
    claim_of,
    header_of,
    size_of,
    spec_of,
    spend_of,
)
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.rundir import RunDirectory, new_identifier, write_arrays
from dpfedadamw.storage.disk import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    make_folders,
    write_atomically,
    write_json,
)
from dpfedadamw.storage.foreign import read_arrays, read_mapping
from dpfedadamw.storage.lock import RunLock

# Steps of one file of evidence: a crash loses what no file holds yet.
STEPS_A_FILE = 64
# Sampled coordinates, of which noise and parameters are kept value by value.
MOST_SAMPLED = 256
# Coordinates whose squared noise is added up over the run: 1 MiB of float32.
MOST_SUMMED = 1 << 18
# What a paused recording would state if nobody went on with it.
PAUSED = "paused.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")


class EvidenceWriter:
    """Writes a run directory of somebody else's loop.

    Args:
        run_dir: The directory, which must be new or empty; the run is named after it.
        loop: What the loop declares.
        continued: Whether to go on with a recording that was paused there, where there is one: a
            federated client's, whose rounds are processes of their own.

    Attributes:
        loop: What the loop declares.
        sample: Coordinates whose values are kept, int64 [m], rising.
        summed: Coordinates whose squared noise is added up over the run, int64 [k], rising.
        squares: Their sums so far, float32 [k]; zeros in a new recording.

    Raises:
        EvidenceError: If the directory cannot be used, or a declaration is out of range.
        LockedError: If another process writes to it.
    """

    def __init__(self, run_dir: Path | str, loop: Loop, *, continued: bool = False) -> None:
        check(loop)
        self.loop = loop
        path = Path(run_dir)
        goes_on = continued and (path / "ledger.jsonl").is_file()
        self._run = RunDirectory(path.resolve()) if goes_on else _fresh(path)
        self._lock = RunLock(self._run.path)
        self._ledger: Ledger | None = None
        self._file: File | None = None
        self._files = self._steps = 0
        self._attachment = 0
        self._left = (0, 0)
        self._fingerprint: int | None = None
        self._in_stretch = 0
        self._charged: Charge | None = None
        self._closed = False
        self._squares: NDArray[np.float32] | None = None
        # Drawn by the operating system, so that no loop can know which coordinates are looked at.
        generator = np.random.default_rng(secrets.randbits(128))
        size = loop.parameters
        self.sample = _chosen(generator, size, MOST_SAMPLED)
        self.summed = _chosen(generator, size, MOST_SUMMED)
        self.squares = np.zeros(len(self.summed), np.float32)
        self._group_of = np.zeros(len(self.sample), np.int64)
        if goes_on:
            try:
                self._go_on()
            except BaseException:
                self._lock.release()
                raise
        else:
            write_atomically(self._run.evidence / "salt", secrets.token_bytes(32), PRIVATE_MODE)

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return self._steps

    @property
    def in_stretch(self) -> int:
        """How many of them since the last `attach`."""
        return self._in_stretch

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    def attach(self, groups: NDArray[np.int64] | None = None) -> None:
        """Begin a stretch of steps; between two of them the parameters may be replaced.

        Args:
            groups: Parameter group of each sampled coordinate, [m]; None where there is one.
        """
        self._flush()
        self._attachment += 1
        self._in_stretch = 0
        if groups is not None:
            self._group_of = np.asarray(groups, np.int64)

    def charge(self, charge: Charge) -> None:
        """Take down what the next noised sum costs, and wait until it is on the disk.

        Raises:
            EvidenceError: If a number is out of range, or the loop is closed already.
        """
        if self._closed:
            raise EvidenceError(f"{self._run.path}: is closed; a new recording needs a new folder")
        for name in ("sampling_rate", "expected_batch_size", "clipping_norm", "noise_multiplier"):
            value = getattr(charge, name)
            if not 0.0 < value < 1e300 or (name == "sampling_rate" and value > 1.0):
                raise EvidenceError(
                    f"{name} is {value:g}, which cannot be charged; it must be above 0"
                    + (" and at most 1" if name == "sampling_rate" else "")
                )
        if self._ledger is None:
            self._ledger = self._begin(charge)
        full = self._file is not None and len(self._file.steps) >= STEPS_A_FILE
        if self._file is None or full or self._file.charge != charge:
            self._flush()
            self._file = File(self._files, charge, self._attachment)
            self._files += 1
        self._charged = charge
        self._ledger.append("spend", {**spend_of(charge, self.loop), "round": self._file.index})

    def step(self, step: Step, squares: NDArray[np.float32] | None = None) -> None:
        """Take down a step that was charged.

        Args:
            step: What it did.
            squares: Sums of squared noise so far at the coordinates `summed`, in units of the
                variance charged, [k]; kept with the next file. None where they are not added up.
        """
        if self._file is None or self._charged is None:
            raise EvidenceError("a step was made without a charge; call charge before noise")
        self._charged = None
        self._file.steps.append(step)
        self._steps += 1
        self._in_stretch += 1
        self._squares = squares

    def close(
        self,
        stated: Stated,
        parameters_sha256: str | None,
        *,
        fingerprint: int | None = None,
        unused: int = 0,
        skipped: int = 0,
    ) -> RunDirectory:
        """Write what is left, and the claim.

        Args:
            stated: What the loop prints.
            parameters_sha256: Sha256 (hex) of the trained parameters as one vector of float32.
            fingerprint: The checksum of all parameters now; None where it is not taken.
            unused: Batches put through the model since the last step, of which none was made.
            skipped: Batches that were passed over since the last step.

        Raises:
            EvidenceError: If no step was charged.
        """
        if self._ledger is None:
            raise EvidenceError(
                f"{self._run.path}: no step was recorded; attach the recorder before training"
            )
        self._fingerprint = fingerprint
        self._flush(parameters_sha256)
        self._write_end(unused, skipped)
        self._write_layout()
        self._end(stated)
        return self._run

    def pause(
        self,
        stated: Stated | None = None,
        parameters_sha256: str | None = None,
        *,
        fingerprint: int | None = None,
        unused: int = 0,
        skipped: int = 0,
    ) -> None:
        """Write what is left, and let another process go on; there is no claim until one closes it.

        With what `close` would be told, `close_paused` can end the recording where nobody goes on.
        A first stretch without a step leaves the folder as it was, empty.

        Args:
            stated: What the loop states of its privacy by now; None where it made no step since
                it went on, and what was said at the last pause holds.
            parameters_sha256: Sha256 (hex) of the trained parameters as one vector of float32.
            fingerprint: The checksum of all parameters now; None where it is not taken.
            unused: Batches put through the model since the last step, of which none was made.
            skipped: Batches that were passed over since the last step.
        """
        if self._ledger is None:
            (self._run.evidence / "salt").unlink()
            self._run.evidence.rmdir()
            self.release()
            return
        if stated is not None:
            self._fingerprint = fingerprint
        self._flush(parameters_sha256)
        self._write_end(unused, skipped)
        self._write_layout()
        if stated is not None:
            write_json(self._run.evidence / PAUSED, as_json(stated), PRIVATE_MODE)
        self.release()

    def release(self) -> None:
        """Let others write to the folder; a loop that was not closed has no claim."""
        self._closed = True
        self._lock.release()

    def _go_on(self) -> None:
        """Take up what an earlier process paused.

        Raises:
            EvidenceError: If it is closed, or another loop's.
        """
        path = self._run.path
        ledger = Ledger(self._run.ledger)
        header = ledger.entries[0] if ledger.entries else {}
        if ledger.of_kind("claim"):
            raise EvidenceError(f"{path}: is closed; a new recording needs a new folder")
        written = {line["round"] for line in ledger.of_kind("round")}
        lost = sum(line["round"] not in written for line in ledger.of_kind("spend"))
        if lost:
            raise EvidenceError(
                f"{path}: an earlier process ended before it paused: {lost} steps were charged but "
                "have no evidence, so nobody can judge them. Keep the folder, record into a new "
                "one, and count the cost of both"
            )
        known = tuple(header.get(name) for name in ("parameters", "records", "delta", "unit"))
        loop = self.loop
        if known != (loop.parameters, [loop.records], loop.delta, loop.unit):
            raise EvidenceError(
                f"{path}: holds a recording of a different loop: parameters, records or delta "
                "differ"
            )
        try:
            layout = read_mapping(self._run.evidence / "layout.json")
            self.sample = np.asarray(layout["sample_coordinates"], np.int64)
            summed = read_arrays(self._run.evidence / "coordinates.npz")
            self.summed, self.squares = summed["chosen"], summed["squares"]
            end = read_arrays(self._run.evidence / "end.npz")
            self._left = int(end["unused"]), int(end["skipped"])
            taken = int(end["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EvidenceError(
                f"{path}: was not paused and cannot be continued ({error}); record into a new "
                "folder"
            ) from None
        self._fingerprint = taken if taken >= 0 else None
        self._ledger = ledger
        self._files = len(ledger.of_kind("round"))
        self._steps = len(ledger.of_kind("spend"))
        # No stretch of this process has the number of an earlier one's.
        self._attachment = self._files

    def _end(self, stated: Stated) -> None:
        """Append the claim, after which nobody goes on."""
        assert self._ledger is not None
        self._ledger.append(
            "claim",
            claim_of(stated, self.loop.delta, adjacency_of(self.loop.sampling), self.loop.unit),
        )
        (self._run.evidence / PAUSED).unlink(missing_ok=True)
        self.release()

    def _write_end(self, unused: int, skipped: int) -> None:
        self._left = (self._left[0] + unused, self._left[1] + skipped)
        taken = -1 if self._fingerprint is None else self._fingerprint
        end: dict[str, NDArray[Any]] = {
            "fingerprint": np.asarray(taken, np.int64),
            "unused": np.asarray(self._left[0], np.int64),
            "skipped": np.asarray(self._left[1], np.int64),
        }
        write_arrays(self._run.evidence / "end.npz", end)

    def _begin(self, charge: Charge) -> Ledger:
        """The files that say what is recorded, and the ledger's header."""
        loop, run = self.loop, self._run
        created = datetime.now(UTC)
        spec = spec_of(run.identifier, loop, charge)
        write_atomically(run.spec, spec, PUBLIC_MODE)
        write_atomically(run.metrics, b"", PUBLIC_MODE)
        tensors = [dict(one) for one in loop.model_tensors]
        write_json(
            run.model_config,
            {"format": 1, "parameters": size_of(tensors), "tensors": tensors, "qualifications": []},
        )
        self._write_layout()
        ledger = Ledger(run.ledger)
        header = header_of(new_identifier(run.identifier, created), created, loop, charge, tensors)
        ledger.append("header", {**header, "spec_sha256": hashlib.sha256(spec).hexdigest()})
        return ledger

    def _write_layout(self) -> None:
        names, sizes = zip(*self.loop.tensors, strict=True)
        stops = np.cumsum(sizes).tolist()
        layout = {
            "format": 1,
            "unit": "loop",
            "parameters": self.loop.parameters,
            "blocks": {
                "kind": "tensor",
                "names": list(names),
                "sizes": list(sizes),
                "runs": [
                    {"name": name, "stop": stop, "blocks": [index]}
                    for index, (name, stop) in enumerate(zip(names, stops, strict=True))
                ],
            },
            "beta2": None,
            "sample_coordinates": self.sample.tolist(),
            "per_round_files": self._files,
        }
        write_json(self._run.evidence / "layout.json", layout, PRIVATE_MODE)

    def _flush(self, parameters_sha256: str | None = None) -> None:
        """Write the steps of the file that is open, and its line in the ledger."""
        file, self._file = self._file, None
        if file is None or self._ledger is None:
            return
        if not file.steps:
            raise EvidenceError(
                "a noised sum was charged but no step followed; the loop did something in between "
                "that the recorder cannot see"
            )
        arrays = arrays_of(file, self._group_of)
        write_arrays(self._run.evidence / f"round-{file.index:05d}.npz", arrays)
        if self._squares is not None:
            sums: dict[str, NDArray[Any]] = {
                "rounds": np.asarray(file.index + 1, np.int64),
                "chosen": self.summed,
                "squares": self._squares.astype(np.float32),
            }
            write_arrays(self._run.evidence / "coordinates.npz", sums)
        made = len(file.steps)
        line: dict[str, Any] = {
            "round": file.index,
            "clients": [0],
            "steps": [made],
            "queries": [made],
        }
        if parameters_sha256 is not None:
            line["parameters_sha256"] = parameters_sha256
        self._ledger.append("round", line)


def close_paused(run_dir: Path | str) -> RunDirectory:
    """End a recording that was paused and that nobody goes on with, by what was said at its pause.

    A federated client does not know which of its rounds is the last.

    Args:
        run_dir: Its folder.

    Raises:
        EvidenceError: If it was never paused, or is closed.
        LockedError: If another process writes to it.
    """
    path = Path(run_dir)
    if not (path / "ledger.jsonl").is_file():
        raise EvidenceError(f"{path}: holds no recording; name the folder of a recorder")
    with RunLock(path.resolve()):
        run = RunDirectory(path.resolve())
        ledger = Ledger(run.ledger)
        if ledger.of_kind("claim"):
            raise EvidenceError(f"{path}: is closed already")
        try:
            stated = read_mapping(run.evidence / PAUSED)
            header = ledger.entries[0]
            claim = claim_of(Stated(**stated), header["delta"], header["adjacency"], header["unit"])
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise EvidenceError(
                f"{path}: was not paused, so the statements of its loop are missing ({error})"
            ) from None
        ledger.append("claim", claim)
        (run.evidence / PAUSED).unlink()
    return run


def _fresh(path: Path) -> RunDirectory:
    if not _NAME.fullmatch(path.name):
        raise EvidenceError(
            f"{path}: the run is named after its folder; letters, digits, '.', '_' and '-' are "
            "allowed, beginning with a letter or digit"
        )
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise EvidenceError(f"{path}: exists already; name a folder that is new or empty")
    try:
        make_folders(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)
        path.chmod(0o700)
        run = RunDirectory(path.resolve())
        run.evidence.mkdir(mode=0o700)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be made ({error.strerror})") from None
    return run


def _chosen(generator: np.random.Generator, size: int, most: int) -> NDArray[np.int64]:
    if size <= most:
        return np.arange(size, dtype=np.int64)
    return np.sort(generator.choice(size, most, replace=False)).astype(np.int64)
