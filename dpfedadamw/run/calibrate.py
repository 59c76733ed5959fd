"""Turns a target ε into the one number of a spec that keeps to it.

The accountant is inverted by bisection and then asked again, forwards, about the spec that will be
written: what is reported is that second answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpfedadamw import spec as specs
from dpfedadamw.accounting import calibration
from dpfedadamw.errors import PrivacyError
from dpfedadamw.experiment import foresee
from dpfedadamw.privacy.sampling import PoissonSampling
from dpfedadamw.spec import Spec
from dpfedadamw.units.registry import UNITS, without_limit


class Solve(StrEnum):
    """What may be changed to keep to a target."""

    noise = "noise"
    rounds = "rounds"
    rate = "rate"
    local_steps = "local-steps"


class View(StrEnum):
    """Towards whom the target holds."""

    server = "server"
    third_party = "third-party"


@dataclass(frozen=True)
class Calibration:
    """A spec that keeps to a target.

    Attributes:
        spec: The changed spec.
        key: The field that was solved for.
        value: Its value.
        epsilon: What the changed spec spends at most in the view, recomputed forwards.
    """

    spec: Spec
    key: str
    value: float
    epsilon: float


def calibrate(spec: Spec, target_epsilon: float, view: View, solve: Solve) -> Calibration:
    """Solve for one field of a spec so that a view's ε keeps to a target.

    Noise and an expected batch size end within 0.5 % below the target; rounds, local steps and
    the exact batch sizes of other samplers are whole numbers and end at the largest that fits.

    Args:
        spec: A private spec; its noise multiplier must be given unless it is solved for.
        target_epsilon: ε > 0, at the spec's δ. Towards the server every client is assumed to take
            part in every round.
        view: Towards whom.
        solve: What to change.

    Raises:
        PrivacyError: If nothing fits, or the spec claims no privacy.
    """
    unit, given = UNITS[spec.privacy.unit], spec
    if spec.tune.selection == "private":
        raise PrivacyError(
            "tune.selection: private: a target would be that of one trial, and the selection costs "
            "more; see what `dpfedadamw epsilon` says of other noise multipliers"
        )
    unit.check_target(view, solve)
    if spec.privacy.noise_multiplier is None:
        if solve is not Solve.noise:
            raise PrivacyError(
                "privacy.noise_multiplier: missing; give it, or use --solve noise to find it"
            )
        given = specs.replace_noise_multiplier(spec, 1.0)
    plan = foresee(without_limit(given))
    if plan.adaptation is not None and plan.adaptation.step_limit is not None:
        return _budgeted(given, target_epsilon, view, solve)
    run = plan.planned_run(view.value)
    value: float
    match solve:
        case Solve.noise:
            key = "privacy.noise_multiplier"
            value = calibration.solve_noise_multiplier(target_epsilon, run)
        case Solve.rounds:
            key = "federation.rounds"
            value = calibration.solve_rounds(target_epsilon, run)
        case Solve.local_steps:
            key = "federation.local_steps"
            value = calibration.solve_local_steps(target_epsilon, run)
        case Solve.rate:
            value = calibration.solve_batch_size(target_epsilon, run)
            key = "privacy.sampling.expected_batch_size"
            if not isinstance(plan.sampling, PoissonSampling):
                key, value = "privacy.sampling.batch_size", int(value)
    changed = specs.loads(specs.dump(given), source=spec.name, overrides=[f"{key}={value!r}"])
    epsilon = unit.spent(foresee(changed).expected_claim(1), view)
    if epsilon > target_epsilon:
        raise PrivacyError(
            f"{key} = {value:g} spends {epsilon:.6g}, more than the target {target_epsilon:g}; "
            "nothing was written"
        )
    return Calibration(changed, key, value, epsilon)


def _budgeted(spec: Spec, target: float, view: View, solve: Solve) -> Calibration:
    """A rule that fits its steps to the spec's target is calibrated by the target itself."""
    if view is not View.server or solve is not Solve.local_steps:
        name = spec.algorithm.name
        raise PrivacyError(
            f"{name} fits its local steps to privacy.target_epsilon, which holds towards the "
            "server: use --solve local-steps, which sets it"
        )
    key = "privacy.target_epsilon"
    changed = specs.loads(specs.dump(spec), source=spec.name, overrides=[f"{key}={target!r}"])
    plan = foresee(changed)
    return Calibration(changed, key, target, plan.unit.spent(plan.expected_claim(1), view))
