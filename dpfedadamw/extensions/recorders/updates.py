"""Records rounds in which whole clients' updates are clipped, added up and noised: NumPy alone.

    recorder = UpdateRecorder("runs/server", delta=1e-3, producer="mine", version="1", clients=100)
    recorder.charge(weights, clipping_norm=0.5, noise_multiplier=1.0, cohort=10)   # before noise
    recorder.record(participants=[...], updates=[...], mean=[...], noised=[...])   # after it
    recorder.close(epsilon=..., accountant="rdp", sum_of_updates=...)              # after training

For servers that add central noise, and for filters that clip and noise one client's own update
(then there is one client, in every round). The auditor judges what it judges of any recorded loop,
with clients for records and rounds for steps. What is noted is private and stays in ``evidence/``.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.recorders.evidence import (
    SETTINGS,
    Charge,
    EvidenceWriter,
    Loop,
    Stated,
    Step,
    fingerprint,
)
from dpfedadamw.filing import after_training
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import PUBLIC_MODE, write_atomically

Arrays = Sequence[NDArray[Any]]
Vector = NDArray[np.float32]
SumOfUpdates = Callable[[NDArray[np.float32]], NDArray[np.float64]]


class UpdateRecorderError(DpfedadamwError):
    """Rounds of updates cannot be recorded."""


@dataclass
class _Sum:
    """The program's own sum of clipped updates; the auditor's `SumProbe`."""

    clipping_norm: float
    parameters: int
    total: SumOfUpdates
    unit: str = "client"

    def clipped_sum_of_updates(self, updates: NDArray[np.float32]) -> NDArray[np.float64]:
        """Clip every update and sum them, [n, d] to [d]."""
        return np.asarray(self.total(updates), np.float64)


class ArrayRecorder:
    """What recorders of updates and of gradients share: each step is given as arrays.

    Args:
        run_dir: A folder that is new or empty; the run is named after it.
        declared: What the loop declares, but for its tensors.
        continued: Whether to go on with what an earlier process recorded there and paused.
    """

    def __init__(self, run_dir: str | Path, declared: dict[str, Any], *, continued: bool) -> None:
        self._path = Path(run_dir)
        self._declared = declared
        self._continued = continued
        self._writer: EvidenceWriter | None = None
        self._squares: Vector = np.zeros(0, np.float32)
        self._charge: Charge | None = None
        self._before: Vector = np.zeros(0, np.float32)
        self._last: Vector | None = None
        self._clip = 0.0
        self._shapes: list[tuple[int, ...]] = []
        self._names: list[str] = []

    def _pay(self, before: Arrays, charge: Charge, names: Sequence[str] | None) -> None:
        """Take down what the next noised mean costs, and wait until it is on the disk."""
        if self._charge is not None:
            raise UpdateRecorderError("a round was charged and not recorded; call record after it")
        vector = _vector(before)
        if self._writer is None:
            self._open(before, names)
        assert self._writer is not None
        if [one.shape for one in map(np.asarray, before)] != self._shapes:
            raise UpdateRecorderError(
                "the parameters have different shapes from the first round; record each training "
                "into its own folder"
            )
        if self._last is None or not np.array_equal(self._last, vector):
            # A server's average stands between two messages of one client.
            self._writer.attach()
        self._writer.charge(charge)
        self._charge, self._before, self._clip = charge, vector, charge.clipping_norm

    def _charged(self) -> Charge:
        if self._charge is None:
            raise UpdateRecorderError("call charge before the noise of a round is drawn")
        return self._charge

    def _note(
        self,
        rows: Sequence[int] | NDArray[Any] | None,
        gradients: Iterable[Vector],
        clean: Vector,
        released: Vector,
        moved: Vector,
        learning_rate: float,
    ) -> None:
        """Take down the step that was charged.

        Args:
            rows: What the batch held, [b]; None where that is not known.
            gradients: Each of them before clipping, [d].
            clean: The sum of the clipped ones, before noise, [d].
            released: The noised sum over the expected size of a batch, [d].
            moved: The parameters after the step, [d].
            learning_rate: By which the released gradient is applied.
        """
        charge, writer, before = self._charged(), self._opened(), self._before
        sample = writer.sample
        noise = np.float32(charge.expected_batch_size) * released - clean
        norms, expected = [], np.zeros(len(sample))
        for vector in gradients:
            with np.errstate(all="ignore"):
                norm = float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
                expected += min(1.0, charge.clipping_norm / norm if norm else 1.0) * vector[sample]
            norms.append(norm)
        scale = charge.noise_multiplier * charge.clipping_norm
        self._squares += np.square(noise[writer.summed] / np.float32(scale))
        stops = np.cumsum([0, *(size for _, size in writer.loop.tensors)])
        settings = np.zeros((1, len(SETTINGS)))
        settings[0, 0] = learning_rate
        writer.step(
            Step(
                rows=None if rows is None else np.asarray(rows, np.int64),
                raw_norms=np.asarray(norms, np.float32),
                noise_sum_squares=_by_tensor(noise, stops),
                clean_sum_squares=_by_tensor(clean, stops),
                noise_silent=int(np.count_nonzero(noise == 0.0)),
                noise_largest=float(np.abs(noise).max()),
                noise_sample=noise[sample],
                clean_sample=clean[sample],
                expected_sample=expected.astype(np.float32),
                released_sample=released[sample],
                before_sample=before[sample],
                after_sample=moved[sample],
                before_fingerprint=fingerprint([before]),
                after_fingerprint=fingerprint([moved]),
                settings=settings,
            ),
            self._squares,
        )
        self._last, self._charge = moved, None

    def _open(self, before: Arrays, names: Sequence[str] | None) -> None:
        arrays = [np.asarray(one) for one in before]
        self._shapes = [one.shape for one in arrays]
        self._names = [f"tensor_{i}" for i in range(len(arrays))] if names is None else [*names]
        if len(self._names) != len(arrays):
            raise UpdateRecorderError("there are not as many names as parameters")
        sizes = [(name, one.size) for name, one in zip(self._names, arrays, strict=True)]
        listed = [
            {"name": name, "shape": list(one.shape), "dtype": "F32", "trained": True}
            for name, one in zip(self._names, arrays, strict=True)
        ]
        loop = Loop(tensors=tuple(sizes), model_tensors=tuple(listed), **self._declared)
        self._writer = EvidenceWriter(self._path, loop, continued=self._continued)
        self._squares = self._writer.squares.copy()

    def _opened(self) -> EvidenceWriter:
        if self._writer is None:
            raise UpdateRecorderError("no round was recorded; call charge and record in each round")
        return self._writer

    def _moved(self) -> Vector:
        if self._last is None:
            raise UpdateRecorderError("no round was recorded; call charge and record in each round")
        return self._last

    def _fitting(self, arrays: Arrays) -> Vector:
        if [np.shape(one) for one in arrays] != self._shapes:
            raise UpdateRecorderError("an update has different shapes from the parameters")
        return _vector(arrays)

    def _finish(self, probe: Any) -> str:
        """Write the model and the probe's answers; the digest of the parameters.

        Args:
            probe: The program's own sum, as the auditor asks it; None where nobody can.
        """
        vector, writer = self._moved(), self._opened()
        run = RunDirectory(writer.path)
        stops = np.cumsum([0, *(size for _, size in writer.loop.tensors)])
        tensors = {
            name: vector[start:stop].reshape(shape)
            for name, shape, start, stop in zip(
                self._names, self._shapes, stops[:-1], stops[1:], strict=True
            )
        }
        write_atomically(run.weights, save(tensors, metadata={"format": "pt"}), PUBLIC_MODE)
        if probe is not None:
            try:
                after_training.record_probe(run, probe)
            except Exception as error:
                # Without results the check "sensitivity" says that there are none.
                (run.evidence / "probe.npz").unlink(missing_ok=True)
                cause = error.__cause__ or error
                made_up = "updates" if self._declared["unit"] == "client" else "records"
                warnings.warn(
                    f"the sum could not be computed for made-up {made_up}, so whether it clips is "
                    f"NOT VERIFIED ({type(cause).__name__}: {cause})",
                    stacklevel=3,
                )
        return hashlib.sha256(vector.astype("<f4").tobytes()).hexdigest()

    def _end(self, stated: Stated, probe: Any, *, pauses: bool = False) -> Path:
        """End the recording, or let a later process go on with it."""
        writer, digest = self._opened(), self._finish(probe)
        ending = writer.pause if pauses else writer.close
        ending(stated, digest, fingerprint=fingerprint([self._moved()]))
        self._writer = None
        return writer.path


class UpdateRecorder(ArrayRecorder):
    """Notes what becomes of clients' updates, round by round.

    Args:
        run_dir: A folder that is new or empty; the run is named after it.
        delta: δ of the guarantee, in (0, 1) and below one over the number of clients.
        producer: Who clips and noises, such as "flwr".
        version: Its version.
        clients: N, the number of clients that could take part; 1 for a client's own filter.
        sampling: "fixed-size" (neighbours by exchanging a client) or "poisson" (by adding one).
        mode: Where noise is added, "server" or "client"; for the reader.
        optimizer: What the noised mean is applied by; "sgd" where it is added as it is.
        generator: What draws noise, such as "NumPy's default generator".
        secure: Whether that is a cryptographic generator.
        mechanism: "gaussian", "laplace" or another name; see `GradientRecorder`.
        continued: Whether to go on with what an earlier process recorded there and paused.
    """

    def __init__(
        self,
        run_dir: str | Path,
        delta: float,
        *,
        producer: str,
        version: str,
        clients: int,
        sampling: str = "fixed-size",
        mode: str = "server",
        optimizer: str = "sgd",
        generator: str = "NumPy's default generator",
        secure: bool = False,
        mechanism: str = "gaussian",
        continued: bool = False,
    ) -> None:
        declared: dict[str, Any] = {
            "producer": producer,
            "version": version,
            "mode": mode,
            "generator": generator,
            "secure": secure,
            "optimizer": optimizer,
            "records": clients,
            "delta": delta,
            "sampling": sampling,
            "unit": "client",
            "mechanism": mechanism,
        }
        super().__init__(run_dir, declared, continued=continued)

    @property
    def rounds(self) -> int:
        """How many rounds were recorded, those of earlier processes included."""
        return 0 if self._writer is None else self._writer.steps

    def charge(
        self,
        before: Arrays,
        *,
        clipping_norm: float,
        noise_multiplier: float,
        cohort: float,
        names: Sequence[str] | None = None,
    ) -> None:
        """Take down what the next noised mean costs, and wait until it is on the disk.

        Args:
            before: The parameters that the round began with, one array a tensor.
            clipping_norm: C > 0, of one client's whole update.
            noise_multiplier: σ > 0: the standard deviation of the noise on the sum over C.
            cohort: Clients that take part, on average where they are drawn independently: what
                the sum is divided by.
            names: Names of the tensors; numbers if left out.

        Raises:
            UpdateRecorderError: If the parameters are others than in the round before.
            DpfedadamwError: If a number is out of range, or the folder cannot be used.
        """
        charge = Charge(
            sampling_rate=min(1.0, cohort / self._declared["records"]),
            expected_batch_size=float(cohort),
            clipping_norm=float(clipping_norm),
            noise_multiplier=float(noise_multiplier),
        )
        self._pay(before, charge, names)

    def record(
        self,
        *,
        updates: Sequence[Arrays],
        mean: Arrays,
        noised: Arrays,
        participants: Sequence[int] | None = None,
        after: Arrays | None = None,
    ) -> None:
        """Take down the round that was charged.

        Args:
            updates: Each participant's update before clipping, as tensors.
            mean: The mean of the clipped updates, before noise.
            noised: The same with its noise: what is released.
            participants: Which clients they are, from 0; None where that is not known, and the
                sampling of clients is NOT VERIFIED.
            after: The parameters after the update; before plus the noised mean if left out.

        Raises:
            UpdateRecorderError: If nothing was charged, or shapes differ.
        """
        size = np.float32(self._charged().expected_batch_size)
        # Gradients point against updates.
        clean, released = -size * self._fitting(mean), -self._fitting(noised)
        moved = self._before - released if after is None else self._fitting(after)
        gradients = (-self._fitting(update) for update in updates)
        self._note(participants, gradients, clean, released, moved, 1.0)

    def pause(
        self,
        epsilon: float | None = None,
        accountant: str = "stated",
        *,
        sum_of_updates: SumOfUpdates | None = None,
    ) -> Path:
        """As `close`, but that a later process may go on; ``dpfedadamw evidence close`` ends it."""
        stated = Stated(epsilon=epsilon, accountant=accountant)
        return self._end(stated, self._sum(sum_of_updates), pauses=True)

    def close(
        self,
        epsilon: float | None = None,
        accountant: str = "stated",
        *,
        sum_of_updates: SumOfUpdates | None = None,
    ) -> Path:
        """End the recording: probe the sum, write the model, and state what the program claims.

        Args:
            epsilon: ε as it is claimed for all rounds together; None where none is.
            accountant: By what that was computed, such as "rdp" or "classical".
            sum_of_updates: The program's own sum: made-up updates, float32 [n, d], to what it
                makes of them before noise and before it divides, [d]. Without it, whether it clips
                is NOT VERIFIED.

        Returns:
            The run directory.

        Raises:
            UpdateRecorderError: If no round was recorded.
        """
        return self._end(Stated(epsilon=epsilon, accountant=accountant), self._sum(sum_of_updates))

    def _sum(self, total: SumOfUpdates | None) -> _Sum | None:
        return None if total is None else _Sum(self._clip, len(self._moved()), total)


def _vector(arrays: Arrays) -> Vector:
    """All tensors as one vector of float32, which is what is judged."""
    flat = [np.asarray(one, np.float32).reshape(-1) for one in arrays]
    return np.concatenate([np.zeros(0, np.float32), *flat])


def _by_tensor(vector: Vector, stops: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum of squares of each tensor, [B]."""
    squares = np.square(vector, dtype=np.float64)
    return np.asarray([squares[a:b].sum() for a, b in pairwise(stops)], np.float64)
