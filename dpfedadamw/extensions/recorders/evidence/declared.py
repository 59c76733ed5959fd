"""What a loop tells the writer: of itself, of each step, and of what it states in the end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DpfedadamwError

# Said only where it is another: recordings of before have none.
GAUSSIAN, MECHANISM = "gaussian", r"[a-z][a-z0-9 -]{0,59}"
SETTINGS = (
    "learning_rate", "momentum", "dampening", "weight_decay", "nesterov", "beta1", "beta2", "eps",
)  # fmt: skip


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
        mechanism: What noise: "gaussian", "laplace" (whose C is of the ℓ1 norm, and whose σ is
            its scale b), or the name of any other, which nobody accounts for.
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
    mechanism: str = GAUSSIAN

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


def check(loop: Loop) -> None:
    """Refuse a declaration that is out of range.

    Raises:
        EvidenceError: With what is wrong.
    """
    if loop.records < 1:
        raise EvidenceError("the data set is empty; there is nothing to record")
    if not 0.0 < loop.delta < 1.0:
        raise EvidenceError(f"delta is {loop.delta:g}; it must be between 0 and 1, such as 1e-5")
    if not loop.parameters:
        raise EvidenceError("the model has no trainable parameter")
    if loop.unit not in ("record", "client"):
        raise EvidenceError(f"unit is {loop.unit!r}; record or client can be protected")
    if not re.fullmatch(MECHANISM, loop.mechanism):
        raise EvidenceError(
            f"mechanism is {loop.mechanism!r}; write gaussian, laplace, or another name in small "
            "letters, such as 'sparse vector'"
        )
    if loop.sampling not in ("poisson", "fixed-size"):
        raise EvidenceError(
            f"sampling is {loop.sampling!r}; poisson or fixed-size can be judged (epochs of "
            "shuffled records cannot, step by step)"
        )
