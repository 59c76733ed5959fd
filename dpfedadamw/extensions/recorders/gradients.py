"""Records steps in which records' gradients are clipped, added up and noised: NumPy alone.

    recorder = GradientRecorder("runs/loop", delta=1e-5, producer="mine", version="1", records=1000)
    recorder.charge(weights, clipping_norm=1.0, noise_multiplier=1.1, expected_batch_size=64)
    recorder.record(rows=..., gradients=..., mean=..., noised=..., after=..., learning_rate=0.5)
    recorder.close(epsilon=..., accountant="pld", mean_of_records=..., input_shape=(8,), classes=2)

Tensors are given by their names, or in a list.

For a loop in any library whose descent is by plain stochastic gradients: `charge` before the noise
of a step is drawn, `record` after the parameters have moved, `close` after training. What is noted
is private and stays in ``evidence/``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.recorders.evidence import Charge, Stated
from dpfedadamw.extensions.recorders.updates import ArrayRecorder, Arrays, Vector

# By name, or in the order of the first charge.
Tensors = Mapping[str, Any] | Sequence[Any]
MeanOfRecords = Callable[[Any, NDArray[Any], NDArray[np.int64]], Tensors]


@dataclass
class _Step:
    """The program's own sum of clipped gradients; the auditor's `StepProbe`."""

    clipping_norm: float
    expected_batch_size: float
    weights: Vector
    shapes: Sequence[tuple[int, ...]]
    names: Sequence[str] | None
    mean: MeanOfRecords
    input_shape: tuple[int, ...]
    classes: int
    grey_levels: bool = False

    @property
    def parameters(self) -> int:
        return len(self.weights)

    def sum_of_step(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
        elsewhere: bool = False,
    ) -> NDArray[np.float64]:
        """The clipped sum of the records drawn, at the trained parameters or at half of them."""
        return self._at(0.5 if elsewhere else 1.0, 0.0, inputs, labels, clients, drawn)

    def sum_of_step_far_off(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """The same at parameters of another sign and size."""
        return self._at(-3.0, 4.0, inputs, labels, clients, drawn)

    def _at(
        self,
        factor: float,
        shift: float,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        own = np.flatnonzero(clients == 0)[drawn]
        if not len(own):
            # Nothing is added for an empty batch, and few libraries read one.
            return np.zeros(self.parameters)
        weights: list[Vector] = []
        start = 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape))
            part = np.float32(factor) * self.weights[start:stop] + np.float32(shift)
            weights.append(part.reshape(shape))
            start = stop
        given = weights if self.names is None else dict(zip(self.names, weights, strict=True))
        found = self.mean(given, inputs[own].astype(np.float32), labels[own])
        vector = _in_order(found, self.names)
        flat = np.concatenate([np.asarray(one, np.float64).reshape(-1) for one in vector])
        return self.expected_batch_size * flat


def _in_order(tensors: Tensors, names: Sequence[str] | None) -> Arrays:
    """Tensors as a list, in the order of the first charge."""
    if isinstance(tensors, Mapping):
        return [np.asarray(tensors[name]) for name in (tensors if names is None else names)]
    return [np.asarray(one) for one in tensors]


class GradientRecorder(ArrayRecorder):
    """Notes what becomes of records' gradients, step by step.

    Args:
        run_dir: A folder that is new or empty; the run is named after it.
        delta: δ of the guarantee, in (0, 1).
        producer: Who clips and noises, such as "jax_privacy".
        version: Its version.
        records: R, the number of records that batches are drawn from.
        sampling: "poisson" (neighbours by adding a record) or "fixed-size" (by exchanging one).
        mode: How clipped sums are computed; for the reader.
        generator: What draws noise, such as "jax.random (Threefry)".
        secure: Whether that is a cryptographic generator.
        mechanism: "gaussian"; "laplace" where C is of the sum of absolute values, and σ stands for
            the scale b; or another name, such as "sparse vector": of both the audit says what it
            cannot verify.
        continued: Whether to go on with what an earlier process recorded there and paused.
    """

    def __init__(
        self,
        run_dir: str | Path,
        delta: float,
        *,
        producer: str,
        version: str,
        records: int,
        sampling: str = "poisson",
        mode: str = "per record",
        generator: str = "unknown",
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
            "optimizer": "sgd",
            "records": records,
            "delta": delta,
            "sampling": sampling,
            "unit": "record",
            "mechanism": mechanism,
        }
        super().__init__(run_dir, declared, continued=continued)
        self._keys: list[str] | None = None
        self._size = 1.0

    def charge(
        self,
        before: Tensors,
        *,
        clipping_norm: float,
        noise_multiplier: float,
        expected_batch_size: float,
    ) -> None:
        """Take down what the next step costs, and wait until it is on the disk.

        Args:
            before: The parameters that the step begins with, by name or in a list.
            clipping_norm: C > 0, of one record's whole gradient.
            noise_multiplier: σ > 0: the standard deviation of the noise on the sum over C.
            expected_batch_size: B, what the noised sum is divided by; each record is in the batch
                with chance B/R, or B of R records are.

        Raises:
            UpdateRecorderError: If the parameters have other shapes than before.
            DpfedadamwError: If a number is out of range, or the folder cannot be used.
        """
        charge = Charge(
            sampling_rate=min(1.0, expected_batch_size / self._declared["records"]),
            expected_batch_size=float(expected_batch_size),
            clipping_norm=float(clipping_norm),
            noise_multiplier=float(noise_multiplier),
        )
        if self._keys is None and isinstance(before, Mapping):
            self._keys = [*before]
        self._size = charge.expected_batch_size
        self._pay(_in_order(before, self._keys), charge, self._keys)

    def record(
        self,
        *,
        rows: Sequence[int] | NDArray[Any] | None,
        gradients: Tensors,
        mean: Tensors,
        noised: Tensors,
        after: Tensors,
        learning_rate: float,
    ) -> None:
        """Take down the step that was charged.

        Args:
            rows: Which records the batch held, from 0, [b]; None where that is not known, and the
                sampling is NOT VERIFIED.
            gradients: Each record's gradient before clipping, an array [b, ...] a tensor.
            mean: The sum of the clipped gradients over B, before noise.
            noised: The same with its noise: what the optimiser was given.
            after: The parameters after the step: before − learning rate · noised.
            learning_rate: Of the step.

        Raises:
            UpdateRecorderError: If nothing was charged, or shapes differ.
        """
        size = np.float32(self._charged().expected_batch_size)
        each = _in_order(gradients, self._keys)
        vectors = (self._fitting([one[place] for one in each]) for place in range(len(each[0])))
        clean, released, moved = (
            self._fitting(_in_order(one, self._keys)) for one in (mean, noised, after)
        )
        self._note(rows, vectors, size * clean, released, moved, learning_rate)

    def close(
        self,
        epsilon: float | None = None,
        accountant: str = "stated",
        *,
        mean_of_records: MeanOfRecords | None = None,
        input_shape: tuple[int, ...] = (),
        classes: int = 1,
    ) -> Path:
        """End the recording: probe the sum, write the model, and state what the program claims.

        Args:
            epsilon: ε as it is claimed for all steps together; None where none is.
            accountant: By what that was computed, such as "pld".
            mean_of_records: The program's own: parameters, made-up records float32
                [n, *input_shape] and labels int64 [n], to the sum of their clipped gradients over
                B, before noise. Without it, whether the program clips is NOT VERIFIED.
            input_shape: Shape of one record.
            classes: Number of labels, from 1.

        Returns:
            The run directory.

        Raises:
            UpdateRecorderError: If no step was recorded.
        """
        probe = mean_of_records and _Step(
            self._clip, self._size, self._moved(), self._shapes, self._keys,
            mean_of_records, input_shape, classes,
        )  # fmt: skip
        return self._end(Stated(epsilon=epsilon, accountant=accountant), probe)
