"""Curvature of the test loss at the final model: largest eigenvalues and spectral density.

Lanczos' method with full reorthogonalisation, on exact products of the Hessian with vectors (twice
differentiated, float64). The density is stochastic Lanczos quadrature: what a few random vectors
see of the spectrum, each eigenvalue widened to a normal density (Ghorbani, Krishnan & Xiao 2019,
"An investigation into neural net optimization via Hessian eigenvalue density", section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpfedadamw.data.datasets import Records
from dpfedadamw.extensions.figures.charts import Chart, Drawing, Floats, Line, Panel, Table
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.publication import TESTED
from dpfedadamw.extensions.figures.reading import FinishedRun
from dpfedadamw.extensions.figures.registry import Measured, MechanismFigure, Settings, register
from dpfedadamw.models.registry import is_in_nats, loss_of
from dpfedadamw.vectors.flat import layout_of

# Vectors of Lanczos' method are all kept, in float64: 130 MB at the most.
MOST_PARAMETERS = 200_000
STEPS, PROBES, SHOWN = 80, 4, 20
# Relative to the largest eigenvalue in magnitude.
CONVERGED, WIDTH = 1e-4, 0.01
_POINTS = 400
_BATCH = 128
# Of the largest product, by rounding: the vectors so far span all that the start is made of.
_VANISHED = 1e-10


@dataclass(frozen=True)
class Spectrum:
    """What Lanczos' method finds of a symmetric matrix.

    Attributes:
        eigenvalues: The largest, descending, as far down as all have converged, [k]; equal ones
            count once.
        errors: How far each can be off, [k].
        points: Where the density is given, [n].
        density: Share of all eigenvalues per unit, [n].
        width: Standard deviation to which each eigenvalue is widened.
        records: Test records.
        seed: Of the probe vectors.
        nats: Whether the loss is a cross-entropy, in nats; else it has the unit of its own.
    """

    eigenvalues: Floats
    errors: Floats
    points: Floats
    density: Floats
    width: float
    records: int
    seed: int
    nats: bool = True


def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, steps: int
) -> tuple[Floats, Floats, Floats]:
    """Ritz values of a symmetric matrix, ascending, with their weights and errors; [m] each.

    Args:
        product: The matrix times a vector, [d].
        start: Where to start, [d] in float64.
        steps: Most products to take; fewer are taken where the vectors span what is to be seen.

    Returns:
        Ritz values; the squared first components of their vectors, which add up to 1; and the norm
        of each one's residual, within which an eigenvalue lies.
    """
    most = min(steps, len(start))
    basis = start.new_empty(most, len(start))
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(most):
        vector = product(basis[step])
        diagonal.append(float(vector @ basis[step]))
        known = basis[: step + 1]
        # Twice: what rounding leaves of the first time would grow from step to step.
        for _ in range(2):
            vector = vector - known.T @ (known @ vector)
        beside.append(float(vector.norm()))
        if step + 1 == most or beside[-1] <= _VANISHED * max(map(abs, diagonal)):
            break
        basis[step + 1] = vector / beside[-1]
    matrix = np.diag(diagonal) + np.diag(beside[:-1], 1)
    values, vectors = np.linalg.eigh(matrix, UPLO="U")
    whole = len(diagonal) == len(start)
    last = 0.0 if whole else beside[-1]
    return values, vectors[0] ** 2, np.abs(last * vectors[-1])


def hessian_product(
    model: nn.Module, records: Records, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """The Hessian of the mean loss over records (`loss_of`), times a vector [d].

    Args:
        model: In evaluation mode and float64; d trainable parameters.
        records: Records.
        device: Where the model lies.
    """
    parameters = [one for one in model.parameters() if one.requires_grad]
    inputs = records.inputs.to(device)

    def product(vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for start in range(0, len(records), _BATCH):
            part = slice(start, start + _BATCH)
            batch = inputs[part]
            batch = batch.double() if batch.is_floating_point() else batch
            labels = torch.from_numpy(records.labels[part]).to(device)
            # Fused attention has no second derivative.
            with sdpa_kernel(SDPBackend.MATH):
                loss = loss_of(model)(model(batch), labels).sum()
                slopes = torch.autograd.grad(loss, parameters, create_graph=True)
                along = torch.cat([one.reshape(-1) for one in slopes]) @ vector
                found = torch.autograd.grad(along, parameters, materialize_grads=True)
            total += torch.cat([one.reshape(-1) for one in found])
        return total / len(records)

    return product


def spectrum(
    product: Callable[[Tensor], Tensor], size: int, device: torch.device, settings: Settings
) -> tuple[Floats, Floats, Floats, Floats, float]:
    """Largest eigenvalues with their errors, and the spectral density with its width.

    Args:
        product: The matrix times a vector, [d].
        size: d.
        device: Where vectors live.
        settings: With the seed of the probe vectors.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    probes = []
    for _ in range(PROBES):
        start = torch.randn(size, generator=generator, dtype=torch.float64).to(device)
        probes.append(lanczos(product, start, STEPS))
    values, _, errors = probes[0]
    scale = max(float(np.abs(one[0]).max()) for one in probes) or 1.0
    order = np.argsort(values)[::-1]
    # What lies below one that has not converged may have others above it.
    order = order[: _leading(errors[order] <= CONVERGED * scale)][:SHOWN]
    width = WIDTH * scale
    low = min(float(one[0].min()) for one in probes) - 4.0 * width
    high = max(float(one[0].max()) for one in probes) + 4.0 * width
    points = np.linspace(low, high, _POINTS)
    density = np.zeros(_POINTS)
    for found, weights, _ in probes:
        kernels = np.exp(-0.5 * ((points[:, None] - found) / width) ** 2)
        density += kernels @ weights / (width * np.sqrt(2.0 * np.pi) * PROBES)
    return values[order], errors[order], points, density, width


def _leading(known: NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(known) if known.all() else int(np.argmin(known))


def _measure(run: FinishedRun, settings: Settings) -> Spectrum:
    model = run.model()
    size = layout_of(model).size
    if size > MOST_PARAMETERS:
        raise FigureError(
            f"the model has {size:,} trained parameters, and the Hessian's spectrum is computed "
            f"for {MOST_PARAMETERS:,} at most. {STEPS} vectors of that length are kept, and "
            f"{STEPS * PROBES} passes over the test records taken, each of several gradients"
        )
    records = run.test_records(settings.records)
    product = hessian_product(model.double(), records, run.device)
    found = spectrum(product, size, run.device, settings)
    nats = is_in_nats(model)
    return Spectrum(*found, records=len(records), seed=settings.seed, nats=nats)


def _compose(runs: Sequence[Measured[Spectrum]]) -> Drawing:
    unit = "nats" if all(one.numbers.nats for one in runs) else "loss"
    head = (
        "run", "test_records", "probe_seed", "quantity", "place",
        f"curvature_{unit}_per_weight_squared", f"error_{unit}_per_weight_squared",
        "density_share_per_curvature", f"width_{unit}_per_weight_squared",
    )  # fmt: skip
    table = Table(head=head)
    largest, densities = [], []
    for series, one in enumerate(runs):
        found = one.numbers
        places = np.arange(1, len(found.eigenvalues) + 1, dtype=np.float64)
        largest.append(
            Line(label=one.label, x=places, y=found.eigenvalues, series=series, form="points")
        )
        # Beyond the kernels' reach there is nothing, which a logarithm cannot show.
        shown = np.where(found.density > 1e-6 * found.density.max(), found.density, np.nan)
        densities.append(
            Line(label=one.label, x=found.points, y=shown, series=series, form="plain")
        )
        known = (one.label, found.records, found.seed)
        for place, (value, error) in enumerate(
            zip(found.eigenvalues.tolist(), found.errors.tolist(), strict=True), 1
        ):
            table.rows.append((*known, "eigenvalue", place, value, error, None, None))
        for place, (value, share) in enumerate(
            zip(found.points.tolist(), found.density.tolist(), strict=True), 1
        ):
            table.rows.append((*known, "density", place, value, None, share, found.width))
    panels = (
        Panel(
            title="Largest eigenvalues, as far as they converged",
            x_label="place, largest first",
            y_label=f"curvature, {unit}/weight²",
            marks=tuple(largest),
            whole_x=True,
        ),
        Panel(
            title=f"Spectral density, {PROBES} probe vectors",
            x_label=f"curvature, {unit}/weight²",
            y_label="share of eigenvalues per unit",
            marks=tuple(densities),
            log_y=True,
        ),
    )
    counts = sorted({one.numbers.records for one in runs})
    title = (
        "Curvature of the test loss at the final model, on "
        f"{' and '.join(f'{count:,}' for count in counts)} test records (probe vectors of seed "
        f"{runs[0].numbers.seed})."
    )
    return Drawing(chart=Chart(title=title, panels=panels), table=table)


register(
    MechanismFigure(
        name="hessian",
        summary="largest eigenvalues and spectral density of the test loss's Hessian",
        source="FedAdamW, App. D; DP-FedSAM's flatness; Ghorbani et al. 2019",
        exposure=TESTED,
        measure=_measure,
        compose=_compose,
        place=70,
    )
)
