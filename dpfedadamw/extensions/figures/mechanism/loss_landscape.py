"""The test loss on a random plane through the final model (DP-FedSAM, Fig. 1 and Appendix C).

Two directions are drawn with independent normal coordinates, and each filter of each is scaled to
the norm of the model's own (Li et al. 2018, "Visualizing the loss landscape of neural nets",
section 4): a row of a weight's first axis is a filter, and what has a single axis, biases and the
scales of normalisations, does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfedadamw.extensions.figures.charts import Chart, Drawing, Floats, Panel, Surface, Table
from dpfedadamw.extensions.figures.publication import TESTED
from dpfedadamw.extensions.figures.reading import FinishedRun
from dpfedadamw.extensions.figures.registry import Measured, MechanismFigure, Settings, register
from dpfedadamw.models.registry import is_in_nats
from dpfedadamw.run.evaluation import measure
from dpfedadamw.vectors.flat import FlatParameters, Layout

POINTS = 21


@dataclass(frozen=True)
class Landscape:
    """The loss on the plane.

    Attributes:
        offsets: Along either direction, [n].
        losses: Mean loss, by the second direction and the first, [n, n].
        seed: Of the directions.
        records: Test records.
        nats: Whether the loss is a cross-entropy, in nats; else it has the unit of its own.
    """

    offsets: Floats
    losses: Floats
    seed: int
    records: int
    nats: bool = True


def filter_normalised(parameters: Tensor, layout: Layout, generator: torch.Generator) -> Tensor:
    """A random direction, each of its filters as long as the parameters' own.

    Args:
        parameters: θ, [d].
        layout: Where tensors lie in it.
        generator: On the CPU, so that a seed gives the same direction everywhere.
    """
    drawn = torch.randn(len(parameters), generator=generator, dtype=torch.float64)
    drawn = drawn.to(parameters.device)
    direction = torch.zeros_like(drawn)
    for part in layout.slices:
        if len(part.shape) < 2:
            continue
        rows = part.shape[0]
        own = parameters[part.start : part.stop].double().view(rows, -1)
        random = drawn[part.start : part.stop].view(rows, -1)
        scale = own.norm(dim=1, keepdim=True) / random.norm(dim=1, keepdim=True)
        direction[part.start : part.stop] = (random * scale).flatten()
    return direction.to(parameters.dtype)


def _measure(run: FinishedRun, settings: Settings) -> Landscape:
    records, model = run.test_records(settings.records), run.model()
    flat = FlatParameters(model)
    centre = flat.vector.clone()
    generator = torch.Generator().manual_seed(settings.seed)
    first, second = (filter_normalised(centre, flat.layout, generator) for _ in range(2))
    offsets = np.linspace(-1.0, 1.0, POINTS)
    losses = np.empty((POINTS, POINTS))
    for row, down in enumerate(offsets.tolist()):
        for column, across in enumerate(offsets.tolist()):
            flat.assign(centre + across * first + down * second)
            losses[row, column] = measure(model, records, run.device)[1]
    return Landscape(offsets, losses, settings.seed, len(records), is_in_nats(model))


def _compose(runs: Sequence[Measured[Landscape]]) -> Drawing:
    nats = all(one.numbers.nats for one in runs)
    head = (
        "run", "direction_seed", "test_records", "offset_first_filter_norms",
        "offset_second_filter_norms", "test_loss_nats" if nats else "test_loss",
    )  # fmt: skip
    table = Table(head=head)
    panels = []
    # The same colours for all runs, or their depths could not be compared.
    every = np.concatenate([one.numbers.losses.ravel() for one in runs])
    known = every[np.isfinite(every) & (every > 0.0)]
    low, high = float(known.min(initial=np.inf)), float(known.max(initial=0.0))
    if not low < high:
        low, high = 0.5 * low if np.isfinite(low) else 0.5, 2.0 * high or 2.0
    for one in runs:
        found = one.numbers
        panels.append(
            Panel(
                title=one.label,
                x_label="first direction, filter norms",
                y_label="second direction, filter norms",
                marks=(
                    Surface(
                        x=found.offsets,
                        y=found.offsets,
                        values=found.losses,
                        low=low,
                        high=high,
                        label="test loss, nats" if nats else "test loss",
                    ),
                ),
            )
        )
        for row, down in enumerate(found.offsets.tolist()):
            for column, across in enumerate(found.offsets.tolist()):
                loss = float(found.losses[row, column])
                value = loss if np.isfinite(loss) else None
                table.rows.append((one.label, found.seed, found.records, across, down, value))
    counts = sorted({one.numbers.records for one in runs})
    title = (
        "Test loss around the final model, on "
        f"{' and '.join(f'{count:,}' for count in counts)} test records (filter-normalised random "
        f"plane, seed {runs[0].numbers.seed})."
    )
    return Drawing(chart=Chart(title=title, panels=tuple(panels)), table=table)


register(
    MechanismFigure(
        name="loss-landscape",
        summary="the test loss on a filter-normalised random plane through the final model",
        source="DP-FedSAM, Fig. 1; Li et al. 2018",
        exposure=TESTED,
        measure=_measure,
        compose=_compose,
        place=60,
    )
)
