"""Sweeps: a spec with `matrix` and `seeds` means many specs, one for each combination.

    matrix:
      algorithm.learning_rate: [0.02, 0.05, 0.1]
      method:
        label: [DP-FedAvg, DP-FedAdamW]
        algorithm.name: [dp-fedavg, dp-fedadamw]
    seeds: {numbers: 5, vary: [weights, run]}

An axis whose name is a field's dotted path holds that field's values. An axis of any other name
holds a mapping of fields to lists of one length, which are taken together. Every combination of the
axes, under every seed, is a *cell*: a spec like any other, held to all that a spec is held to.

A search for hyper-parameters has its axes in `tune.grid`, written alike. Every combination of these
is a *candidate*, and each combination of the matrix is searched by itself, over as many candidates.

    tune:
      selection: private
      grid: {algorithm.learning_rate: [0.02, 0.05, 0.1]}

A search's cells are *trials*. Where what is reported is not these, because the search is on other
records or under seeds of its own (`tune.seeds`), the best candidate is *released* as further cells,
on `data` and under `seeds`.

What a paper prints for the cells may be given with them (`printed`).
"""

from __future__ import annotations

from dpfedadamw.spec.matrix.axes import Axis
from dpfedadamw.spec.matrix.cells import Cell, with_spec
from dpfedadamw.spec.matrix.sweep import Sweep, load_private_selection, load_sweep

__all__ = ["Axis", "Cell", "Sweep", "load_private_selection", "load_sweep", "with_spec"]
