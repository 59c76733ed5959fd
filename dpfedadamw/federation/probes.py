"""What the auditor pokes at: the real private step and round, on data of its own choosing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.federation.release import public_coordinates
from dpfedadamw.models.registry import synthetic_records
from dpfedadamw.privacy import oracle, updates
from dpfedadamw.privacy.clipping.engines import ClippedSumEngine
from dpfedadamw.vectors.flat import FlatParameters
from dpfedadamw.vectors.sparsification import Sparsification


class GradientProbe:
    """The clipped sum of a real step, before noise, for synthetic records.

    It calls the very function that the gradient oracle calls. The auditor gives it synthetic
    neighbouring batches; no private record is involved.

    Attributes:
        clipping_norm: C.
        parameters: d, length of a clipped sum.
        input_shape: Shape of one record.
        classes: Number of classes.
    """

    def __init__(
        self,
        *,
        engine: ClippedSumEngine,
        flat: FlatParameters,
        clipping_norm: float,
        input_shape: tuple[int, ...],
        classes: int,
        physical_batch_size: int,
    ) -> None:
        self.clipping_norm = clipping_norm
        self.parameters = flat.layout.size
        self.input_shape = input_shape
        self.classes = classes
        self._engine = engine
        self._flat = flat
        self._physical_batch_size = physical_batch_size

    def clipped_sum(
        self, inputs: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Σ_j clip(g_j) of records [b, …] with labels [b], float64 [d]."""
        vector = self._flat.vector
        records = synthetic_records(self._flat.module, torch.from_numpy(np.array(inputs)))
        batch = (
            records.to(vector.device),
            torch.from_numpy(np.array(labels)).to(vector.device),
        )
        total = oracle.clipped_sum(
            self._engine, self._flat, vector.clone(), batch, self._physical_batch_size
        ).total
        array: NDArray[Any] = total.detach().double().cpu().numpy()
        return array


class UpdateProbe:
    """The sum of clipped updates of a real round, before noise, for synthetic updates.

    It calls the very functions that clients and server call. Where coordinates are public, they
    are those of the first round.

    Attributes:
        unit: "client".
        clipping_norm: C.
        parameters: d, length of an update.
    """

    unit = "client"

    def __init__(
        self,
        parameters: int,
        clipping_norm: float,
        sparsification: Sparsification | None = None,
    ) -> None:
        self.parameters = parameters
        self.clipping_norm = clipping_norm
        self._sparsification = sparsification
        self._kept = public_coordinates(sparsification, 0, {}, torch.device("cpu"))

    def clipped_sum_of_updates(self, changes: NDArray[np.float32]) -> NDArray[np.float64]:
        """Σ_i clip(Δ_i) of changes [n, d], float64 [d]; 0 off public coordinates."""
        clipped = [
            updates.contribute(
                torch.from_numpy(np.array(update)),
                self.clipping_norm,
                self._sparsification,
                self._kept,
            ).update
            for update in changes
        ]
        size = self.parameters if self._kept is None else len(self._kept)
        total = updates.sum_of_updates(clipped, size, torch.device("cpu"))
        whole = updates.spread(total, self._kept, self.parameters)
        array: NDArray[np.float64] = whole.numpy()
        return array
