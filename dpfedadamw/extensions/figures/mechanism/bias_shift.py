"""The noise's share in the second moment, and what debiasing leaves of it (DP-FedAdamW, eq. (8)).

All of it is kept as block means by every record-level run whose rule has a second moment: v̂ as the
rule corrected it, the second moment that the same gradients would have left without noise, and how
many coordinates lay on the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from dpfedadamw.extensions.figures.charts import Chart, Drawing, Floats, Line, Panel, Table
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.publication import PRIVATE
from dpfedadamw.extensions.figures.reading import FinishedRun, undamaged
from dpfedadamw.extensions.figures.registry import Measured, MechanismFigure, Settings, register


@dataclass(frozen=True)
class BiasShift:
    """Means over coordinates and over a round's clients, after the last local step; [n] each.

    Attributes:
        rounds: From 1; rounds without clients are left out.
        noise_variance: Φ of the round; its mean where clients differ.
        noised: v̂ before anything is subtracted.
        debiased: v̂ − Φ before the floor; NaN where the rule subtracts nothing.
        clean: v̂ of the same gradients without noise, corrected alike.
        floored: Percent of coordinates on the floor; NaN where there is none.
    """

    rounds: Floats
    noise_variance: Floats
    noised: Floats
    debiased: Floats
    clean: Floats
    floored: Floats


def _measure(run: FinishedRun, _settings: Settings) -> BiasShift:
    if run.spec.privacy.unit not in ("record", "person"):
        raise FigureError(
            "no noise is added to its gradients, so none is in its second moment; the figure is "
            "for runs with privacy.unit: record or person"
        )
    beta2, sizes = run.measures.beta2, run.measures.sizes
    if beta2 is None:
        raise FigureError(
            f"{run.spec.algorithm.name}, as it was set, has no second moment that follows noised "
            "gradients alone; dp-fedadamw and dp-localadamw with decoupled decay have"
        )
    share, rows = sizes / sizes.sum(), []
    with undamaged("its evidence"):
        for index, found in run.evidence("v_corrected", "v_clean", "subtracted", "tau", "floored"):
            if not len(found["tau"]):
                continue
            correction = 1.0 - beta2 ** found["tau"].astype(np.float64)
            variance = float(np.mean([one.noise_variance for one in run.charges(index)]))
            noised = float((found["v_corrected"] @ share).mean())
            subtracted = float(found["subtracted"].mean())
            floored = float(100.0 * found["floored"].sum(1).mean() / sizes.sum())
            debiased = noised - subtracted if subtracted else np.nan
            clean = float(((found["v_clean"] @ share) / correction).mean())
            rows.append(
                (index + 1, variance, noised, debiased, clean, floored if subtracted else np.nan)
            )
    if not rows:
        raise FigureError("no client took part in any of its rounds")
    return BiasShift(*np.asarray(rows, dtype=np.float64).T)


_CURVES = (
    ("noised", "v̂ with noise"),
    ("debiased", "v̂ − Φ, debiased"),
    ("clean", "v̂ of the same gradients without noise"),
)


def _compose(runs: Sequence[Measured[BiasShift]]) -> Drawing:
    head = (
        "run", "round", "noise_variance_phi_gradient_squared", "mean_v_hat_gradient_squared",
        "mean_v_hat_minus_phi_gradient_squared", "mean_v_hat_without_noise_gradient_squared",
        "coordinates_on_floor_percent",
    )  # fmt: skip
    table = Table(head=head)
    moments, floors = [], []
    for series, one in enumerate(runs):
        found, prefix = one.numbers, f"{one.label}: " if len(runs) > 1 else ""
        for variant, (name, words) in enumerate(_CURVES):
            values = getattr(found, name) / found.noise_variance
            if np.isfinite(values).any():
                moments.append(
                    Line(
                        label=prefix + words, x=found.rounds, y=values,
                        series=series if len(runs) > 1 else variant,
                        variant=variant if len(runs) > 1 else 0,
                    )
                )  # fmt: skip
        if np.isfinite(found.floored).any():
            label = prefix + "share on the floor"
            floors.append(
                Line(
                    label=label,
                    x=found.rounds,
                    y=found.floored,
                    series=series if len(runs) > 1 else len(_CURVES),
                    variant=len(_CURVES) if len(runs) > 1 else 0,
                )
            )
        columns = [getattr(found, field.name) for field in fields(found)]
        for index, *values in zip(*columns, strict=True):
            cells = [float(value) if np.isfinite(value) else None for value in values]
            table.rows.append((one.label, int(index), *cells))
    panels = [
        Panel(
            x_label="round",
            y_label="mean second moment, multiples of Φ",
            marks=tuple(moments),
            whole_x=True,
        )
    ]
    if floors:
        panels.append(
            Panel(
                x_label="round",
                y_label="coordinates on the floor, %",
                marks=tuple(floors),
                whole_x=True,
            )
        )
    title = "Share of the noise’s variance Φ in the second moment, before and after debiasing."
    return Drawing(chart=Chart(title=title, panels=tuple(panels)), table=table)


register(
    MechanismFigure(
        name="bias-shift",
        summary="the noise's share Φ in the second moment, before and after debiasing",
        source="DP-FedAdamW, eqs. (6) to (8)",
        exposure=PRIVATE,
        measure=_measure,
        compose=_compose,
        place=40,
    )
)
