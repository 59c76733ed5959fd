"""Which runs have moments to show, for the figures that look at them."""

from __future__ import annotations

from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.reading import FinishedRun


def require_moments(run: FinishedRun) -> None:
    """Refuse runs whose rule shows no second moment.

    Raises:
        FigureError: If it has none, or mixes weight decay into it.
        DpfedadamwError: If the run cannot be run again.
    """
    from dpfedadamw.algorithms.rules.adamw import AdamW

    rule, name = run.rerun.experiment.algorithm.local, run.spec.algorithm.name
    if not isinstance(rule, AdamW):
        raise FigureError(
            f"{name} keeps no second moment on its clients, or shows none; dp-fedadamw, "
            "dp-localadamw and their forms without privacy do"
        )
    if rule.decay == "coupled":
        raise FigureError(
            f"{name} mixes weight decay into its moments (decay: coupled), so that they are not "
            "those of the gradients"
        )
