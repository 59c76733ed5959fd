"""Writes ledger and evidence of a training loop that is not this package's own: NumPy alone.

`docs/evidence.md` is the format. Any program that trains by noised sums of clipped gradients can
use the writer: it calls `charge` before each noised sum is drawn, `step` after the parameters have
moved, and `close` once it is over. Nothing here imports torch.

Everything that `step` is given is private. It goes into ``evidence/`` (mode 0700, files 0600) and
nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from dpfedadamw import __version__
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.rundir import RunDirectory, new_identifier, write_arrays
from dpfedadamw.spec.reading import RECORDED
from dpfedadamw.storage.disk import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    make_folders,
    write_atomically,
    write_json,
)
from dpfedadamw.storage.lock import RunLock

FORMAT = 1
# Steps of one file of evidence: a crash loses what no file holds yet.
STEPS_A_FILE = 64
# Sampled coordinates, of which noise and parameters are kept value by value.
MOST_SAMPLED = 256
# Coordinates whose squared noise is added up over the run: 1 MiB of float32.
MOST_SUMMED = 1 << 18
MODULUS = 1 << 53
# What a paused recording would state if nobody went on with it.
PAUSED = "paused.json"
SETTINGS = (
    "learning_rate", "momentum", "dampening", "weight_decay", "nesterov", "beta1", "beta2", "eps",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_OF_CLIENTS = (
    "hyper-parameters were not tuned on the clients' data, or that was accounted elsewhere",
    "each person's data lie with one client: neighbours differ in one client with all its data",
    "the number of clients, and with it the sampling rate, is public",
    "nothing left the clients, or the server, beside what was recorded",
)
_OF_RECORDS = (
    "hyper-parameters were not tuned on the private records, or that was accounted elsewhere",
    "each record belongs to one person and lies in the data set once: neighbouring data sets "
    "differ in one record",
    "the number of records, and with it the sampling rate, is public",
    "the loop did nothing with the private records beside what was recorded",
)


class EvidenceError(DpfedadamwError):
    """Evidence of a loop cannot be written as asked."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a training loop declares of itself before its first step.

    Attributes:
        producer: Who trains, such as "opacus".
        version: Its version.
        mode: How it computes clipped sums, such as "hooks"; for the reader.
        generator: What draws noise and batches, such as "torch default generator".
        secure: Whether that is a cryptographic generator.
        optimizer: The update's name, "sgd", "adam" or "adamw"; any other is not judged.
        records: R, how many records the loop trains on; at least 1.
        delta: δ, in (0, 1).
        sampling: "poisson", or "fixed-size" under replace-one.
        unit: "record"; or "client" where each step is a round, a record is a client, and what is
            clipped is a client's whole update.
        tensors: Name and number of coordinates of each trained tensor, in the vector's order.
        model_tensors: model.json's list of all tensors of the model.
    """

    producer: str
    version: str
    mode: str
    generator: str
    secure: bool
    optimizer: str
    records: int
    delta: float
    tensors: tuple[tuple[str, int], ...]
    model_tensors: tuple[Mapping[str, Any], ...]
    sampling: str = "poisson"
    unit: str = "record"

    @property
    def parameters(self) -> int:
        """Number of trained parameters d."""
        return sum(size for _, size in self.tensors)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What is paid for one step, before its noise.

    Attributes:
        sampling_rate: q in (0, 1].
        expected_batch_size: What the noised sum is divided by.
        clipping_norm: C > 0.
        noise_multiplier: σ > 0, in units of C.
    """

    sampling_rate: float
    expected_batch_size: float
    clipping_norm: float
    noise_multiplier: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that was made, with B tensors, m sampled coordinates and G parameter groups.

    All of it is private.

    Attributes:
        rows: Which records the batch held, [b]; None where the loop does not know.
        raw_norms: Norms of the records' gradients before clipping, [n].
        noise_sum_squares: Sum of squared noise on the clipped sum, by tensor, [B].
        clean_sum_squares: The same of the sum before noise, [B].
        noise_silent: Coordinates on which the noise is exactly 0.
        noise_largest: Largest noise on any coordinate.
        noise_sample: The noise at the sampled coordinates, [m].
        clean_sample: The sum before noise there, as the loop has it, [m].
        expected_sample: The same as the recorder clips and sums it by itself, [m].
        released_sample: What was handed to the optimiser there, [m].
        before_sample: Parameters before the update there, [m].
        after_sample: Parameters after it there, [m].
        before_fingerprint: A checksum of all parameters of the model before the update.
        after_fingerprint: The same after it.
        settings: The update's settings of each group, in the order of `SETTINGS`, [G, 8].
        unused: Batches that were drawn since the last step, went through the model, and of which
            no step was made.
        skipped: Batches that were drawn since the last step and passed over.
    """

    rows: NDArray[np.int64] | None
    raw_norms: NDArray[np.float32]
    noise_sum_squares: NDArray[np.float64]
    clean_sum_squares: NDArray[np.float64]
    noise_silent: int
    noise_largest: float
    noise_sample: NDArray[np.float32]
    clean_sample: NDArray[np.float32]
    expected_sample: NDArray[np.float32]
    released_sample: NDArray[np.float32]
    before_sample: NDArray[np.float32]
    after_sample: NDArray[np.float32]
    before_fingerprint: int
    after_fingerprint: int
    settings: NDArray[np.float64]
    unused: int = 0
    skipped: int = 0


@dataclass
class _File:
    """Steps of one file of evidence: all under one charge, of one attachment."""

    index: int
    charge: Charge
    attachment: int
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What the loop prints of its privacy.

    Attributes:
        epsilon: ε; None where the loop states none.
        accountant: By which it was computed, such as "prv", "rdp" or "classical".
        history: What its accountant counted: noise multiplier, sampling rate and number of steps
            of each kind; None where that is not known.
    """

    epsilon: float | None
    accountant: str
    history: Sequence[tuple[float, float, int]] | None = None


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
        _check(loop)
        self.loop = loop
        path = Path(run_dir)
        goes_on = continued and (path / "ledger.jsonl").is_file()
        self._run = RunDirectory(path.resolve()) if goes_on else _fresh(path)
        self._lock = RunLock(self._run.path)
        self._ledger: Ledger | None = None
        self._file: _File | None = None
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
            self._file = _File(self._files, charge, self._attachment)
            self._files += 1
        self._charged = charge
        self._ledger.append("spend", {**_charged(charge, self.loop), "round": self._file.index})

    def step(self, step: Step, squares: NDArray[np.float32] | None = None) -> None:
        """Take down a step that was charged.

        Args:
            step: What it did.
            squares: Sums of squared noise so far at the coordinates `summed`, in units of the
                variance charged, [k]; kept with the next file. None where they are not added up.
        """
        if self._file is None or self._charged is None:
            raise EvidenceError("a step was made that was never charged; call charge before noise")
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
            write_json(self._run.evidence / PAUSED, _as_json(stated), PRIVATE_MODE)
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
                f"{path}: an earlier process ended before it paused: {lost} steps were charged and "
                "have no evidence, so that nobody can judge them; keep the folder, record into a "
                "new one, and count what both cost"
            )
        known = tuple(header.get(name) for name in ("parameters", "records", "delta", "unit"))
        loop = self.loop
        if known != (loop.parameters, [loop.records], loop.delta, loop.unit):
            raise EvidenceError(
                f"{path}: holds the recording of another loop: parameters, records or delta differ"
            )
        try:
            layout = json.loads((self._run.evidence / "layout.json").read_bytes())
            self.sample = np.asarray(layout["sample_coordinates"], np.int64)
            with np.load(self._run.evidence / "coordinates.npz") as file:
                self.summed, self.squares = file["chosen"], file["squares"]
            with np.load(self._run.evidence / "end.npz") as file:
                self._left = int(file["unused"]), int(file["skipped"])
                taken = int(file["fingerprint"])
        except (OSError, ValueError, KeyError) as error:
            raise EvidenceError(
                f"{path}: was not paused, and cannot be gone on with ({error}); record into a new "
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
            _claim(stated, self.loop.delta, _adjacency(self.loop.sampling), self.loop.unit),
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
        spec = _spec(run.identifier, loop, charge)
        write_atomically(run.spec, spec, PUBLIC_MODE)
        write_atomically(run.metrics, b"", PUBLIC_MODE)
        tensors = [dict(one) for one in loop.model_tensors]
        write_json(
            run.model_config,
            {"format": 1, "parameters": _size(tensors), "tensors": tensors, "qualifications": []},
        )
        self._write_layout()
        ledger = Ledger(run.ledger)
        header = _header(new_identifier(run.identifier, created), created, loop, charge, tensors)
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
                "a noised sum was charged and no step followed; the loop did something between "
                "that the recorder cannot see"
            )
        arrays = _arrays(file, self._group_of)
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
            stated = json.loads((run.evidence / PAUSED).read_bytes())
            header = ledger.entries[0]
            claim = _claim(Stated(**stated), header["delta"], header["adjacency"], header["unit"])
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise EvidenceError(
                f"{path}: was not paused, so that nothing says what its loop states ({error})"
            ) from None
        ledger.append("claim", claim)
        (run.evidence / PAUSED).unlink()
    return run


def fingerprint(values: Sequence[NDArray[np.float32]]) -> int:
    """A checksum of parameters: the sum of their bits as whole numbers, modulo 2^53."""
    return sum(int(one.view(np.int32).sum(dtype=np.int64)) for one in values) % MODULUS


def _check(loop: Loop) -> None:
    if loop.records < 1:
        raise EvidenceError("the data set has no record; there is nothing to record")
    if not 0.0 < loop.delta < 1.0:
        raise EvidenceError(f"delta is {loop.delta:g}; it must lie between 0 and 1, such as 1e-5")
    if not loop.parameters:
        raise EvidenceError("the model has no parameter that is trained")
    if loop.unit not in ("record", "client"):
        raise EvidenceError(f"unit is {loop.unit!r}; record or client can be protected")
    if loop.sampling not in ("poisson", "fixed-size"):
        raise EvidenceError(
            f"sampling is {loop.sampling!r}; poisson or fixed-size can be judged (epochs of "
            "shuffled records cannot, step by step)"
        )


def _fresh(path: Path) -> RunDirectory:
    if not _NAME.fullmatch(path.name):
        raise EvidenceError(
            f"{path}: the run is named after its folder; letters, digits, '.', '_' and '-' are "
            "allowed, beginning with a letter or digit"
        )
    if path.is_symlink() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise EvidenceError(f"{path}: is there already; name a folder that is new or empty")
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


def _as_json(stated: Stated) -> dict[str, Any]:
    history = stated.history
    return {
        "epsilon": stated.epsilon,
        "accountant": stated.accountant,
        "history": None if history is None else [list(one) for one in history],
    }


def _claim(stated: Stated, delta: float, adjacency: str, unit: str) -> dict[str, Any]:
    view: dict[str, Any] = {}
    if stated.epsilon is not None and np.isfinite(stated.epsilon):
        view = {
            "accountant": stated.accountant,
            "epsilon": {stated.accountant: float(stated.epsilon)},
        }
    claim: dict[str, Any] = {
        "view_headline": "server",
        "delta": delta,
        "adjacency": adjacency,
        "assumptions": list(_OF_CLIENTS if unit == "client" else _OF_RECORDS),
        "server": dict(view),
        "third_party": dict(view),
    }
    if stated.history is not None:
        claim["accountant_history"] = [
            [float(noise), float(rate), int(steps)] for noise, rate, steps in stated.history
        ]
    return claim


def _size(tensors: Sequence[Mapping[str, Any]]) -> int:
    """Parameters of the whole model, frozen ones included."""
    return sum(math.prod(one["shape"]) for one in tensors)


def _adjacency(sampling: str) -> str:
    return "add-remove" if sampling == "poisson" else "replace-one"


def _spec(name: str, loop: Loop, charge: Charge) -> bytes:
    """What was declared, in the form that reports read."""
    spec = {
        "version": 1,
        RECORDED: f"{loop.producer} {loop.version}",
        "name": name,
        "description": f"A training loop of {loop.producer} {loop.version}, recorded.",
        "data": {"dataset": "of the loop", "clients": 1},
        "algorithm": {"name": f"{loop.producer}, {loop.optimizer}", "mode": loop.mode},
        "privacy": {
            "unit": loop.unit,
            "adjacency": _adjacency(loop.sampling),
            "clipping_norm": charge.clipping_norm,
            "noise_multiplier": charge.noise_multiplier,
            "delta": loop.delta,
            "sampling": {
                "kind": "poisson" if loop.sampling == "poisson" else "fixed",
                "expected_batch_size": charge.expected_batch_size,
                "rate": charge.sampling_rate,
            },
        },
        "randomness": {"mode": "release", "generator": loop.generator},
    }
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True).encode()


def _header(
    run: str, created: datetime, loop: Loop, charge: Charge, tensors: list[dict[str, Any]]
) -> dict[str, Any]:
    listed = json.dumps(tensors, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {
        "format": FORMAT,
        "run": run,
        "package": __version__,
        "created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "unit": loop.unit,
        "producer": {
            "name": loop.producer,
            "version": loop.version,
            "mode": loop.mode,
            "optimizer": loop.optimizer,
            "generator": loop.generator,
            "secure": loop.secure,
        },
        "adjacency": _adjacency(loop.sampling),
        "delta": loop.delta,
        "clients": 1,
        "clients_per_round": 1,
        "client_sampling": "fixed-size",
        "records": [loop.records],
        "sampling": loop.sampling,
        "expected_batch_size": charge.expected_batch_size,
        "sampling_rate": charge.sampling_rate,
        "clipping_norm": charge.clipping_norm,
        "noise_multiplier": charge.noise_multiplier,
        "precision": "float32",
        "randomness": "release",
        "qualifications": [],
        "parameters": loop.parameters,
        "tensors_sha256": hashlib.sha256(listed.encode()).hexdigest(),
    }


def _charged(charge: Charge, loop: Loop) -> dict[str, Any]:
    return {
        "client": 0,
        "attempt": 1,
        "records": loop.records,
        "sampling": loop.sampling,
        "sampling_rate": charge.sampling_rate,
        "rate_stated": True,
        "expected_batch_size": charge.expected_batch_size,
        "clipping_norm": charge.clipping_norm,
        "noise_multiplier": charge.noise_multiplier,
        "steps": 1,
        "queries_per_step": 1,
    }


def _arrays(file: _File, groups: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The arrays of one file, as docs/evidence.md lists them: K steps of one client."""
    steps, clip = file.steps, file.charge.clipping_norm
    known = [one.rows for one in steps if one.rows is not None]
    rows: dict[str, NDArray[Any]] = {}
    if len(known) == len(steps):
        rows = {
            "rows": np.concatenate([np.zeros(0, np.int64), *known]).astype(np.uint32),
            "row_offsets": np.cumsum([0, *map(len, known)], dtype=np.int64),
        }

    def each(name: str, kind: Any) -> NDArray[Any]:
        return np.asarray([getattr(one, name) for one in steps], kind)

    counts = [len(one.raw_norms) for one in steps]
    norms = [one.raw_norms.astype(np.float32) for one in steps]
    released, noisy = each("released_sample", np.float64), each("clean_sample", np.float64)
    noisy = noisy + each("noise_sample", np.float64)
    with np.errstate(all="ignore"):
        # What the noised sum was really divided by, as the values show it.
        divisor = np.square(noisy).sum(axis=1) / (noisy * released).sum(axis=1)
    divisor = np.where(np.isfinite(divisor), divisor, 0.0)
    return {
        "clients": np.zeros(1, np.int64),
        "attempt": np.asarray(1, np.int64),
        "attachment": np.asarray(file.attachment, np.int64),
        "batch_size": np.asarray([counts], np.int64),
        "record_offsets": np.cumsum([0, *counts], dtype=np.int64),
        "raw_norms": np.concatenate([np.zeros(0, np.float32), *norms]),
        **rows,
        "divisor": divisor[None],
        "noise_sum_squares": each("noise_sum_squares", np.float64)[None],
        "clean_sum_squares": each("clean_sum_squares", np.float64)[None],
        "noise_silent": each("noise_silent", np.int64)[None],
        "noise_largest": each("noise_largest", np.float32)[None] / np.float32(clip),
        "noise_sample": each("noise_sample", np.float32)[None] / np.float32(clip),
        "clean_sample": each("clean_sample", np.float32),
        "expected_sample": each("expected_sample", np.float32),
        "released_sample": each("released_sample", np.float32),
        "before_sample": each("before_sample", np.float32),
        "after_sample": each("after_sample", np.float32),
        "before_fingerprint": each("before_fingerprint", np.int64),
        "after_fingerprint": each("after_fingerprint", np.int64),
        "settings": each("settings", np.float64),
        "group": groups,
        "unused": each("unused", np.int64),
        "skipped": each("skipped", np.int64),
    }
