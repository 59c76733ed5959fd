"""From a spec's word for the unit of protection to the object, and so to the plan of the spec."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import import_module

from dpfedadamw.accounting.calibration import solve_noise_multiplier
from dpfedadamw.spec import Spec, replace_noise_multiplier
from dpfedadamw.units.plan import PrivacyUnit, RunPlan
from dpfedadamw.vectors.sparsification import Sparsification

# Each unit's module and class.
_UNITS = {
    "record": ("record", "SingleRecords"),
    "person": ("record", "WholePeople"),
    "client": ("client", "WholeClients"),
    "none": ("none", "Nothing"),
}


@functools.cache
def unit_named(name: str) -> PrivacyUnit:
    """The unit of protection that a spec calls so; the modules of the others are not loaded."""
    module, kind = _UNITS[name]
    unit: PrivacyUnit = getattr(import_module(f"dpfedadamw.units.{module}"), kind)()
    return unit


def make_plan(
    spec: Spec,
    records: tuple[int, ...],
    queries_per_step: int,
    sparsification: Sparsification | None = None,
) -> RunPlan:
    """The plan of a spec, for clients of the given sizes.

    Args:
        spec: The resolved spec, its noise multiplier known.
        records: R_i of each client.
        queries_per_step: What the local rule asks for.
        sparsification: What is kept of a client's update, for the unit "client".

    Raises:
        PrivacyError: If no accountant covers the combination; the reason is named.
    """
    return unit_named(spec.privacy.unit).plan(spec, records, queries_per_step, sparsification)


def solve_noise(spec: Spec, records: Sequence[int], queries_per_step: int) -> Spec:
    """Fill in the noise multiplier of a spec that gives a target ε instead.

    The target holds against the server at record level, every client being in every round; against
    a third party at client level.

    Args:
        spec: The spec; returned as it is where there is nothing to solve.
        records: R_i of each client.
        queries_per_step: What the local rule asks for on one batch.
    """
    privacy = spec.privacy
    if privacy.target_epsilon is None or privacy.noise_multiplier is not None:
        return spec
    provisional = replace_noise_multiplier(without_limit(spec), 1.0)
    plan = make_plan(provisional, tuple(records), queries_per_step)
    solved = solve_noise_multiplier(privacy.target_epsilon, plan.planned_run())
    return replace_noise_multiplier(spec, solved)


def without_limit(spec: Spec) -> Spec:
    """The spec without its limit on ε, which holds for what is solved and not for a stand-in."""
    federation = spec.federation.model_copy(update={"max_epsilon": None})
    return spec.model_copy(update={"federation": federation})
