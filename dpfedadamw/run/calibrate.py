"""Turns a target ε into the one number of a spec that keeps to it.

The accountant is inverted by bisection and then asked again, forwards, about the spec that will be
written: what is reported is that second answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from dpfedadamw import spec as specs
from dpfedadamw.accounting import calibration
from dpfedadamw.accounting.calibration import round_up, solve_number
from dpfedadamw.accounting.several import epsilon_of_records
from dpfedadamw.errors import PrivacyError
from dpfedadamw.experiment import divide, foresee
from dpfedadamw.privacy.sampling import PoissonSampling
from dpfedadamw.spec import LocalIterationsSpec, Spec
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import unit_named, without_limit

# Noise multipliers that a spec may have.
_NOISE = (0.001, 1_000_000.0)


class Solve(StrEnum):
    """What may be changed to keep to a target."""

    noise = "noise"
    rounds = "rounds"
    rate = "rate"
    local_steps = "local-steps"


class View(StrEnum):
    """Against whom the target holds."""

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
        target_epsilon: ε > 0, at the spec's δ. Against the server every client is assumed to take
            part in every round. It replaces the spec's own target, which is left out where it
            holds in another view.
        view: Against whom.
        solve: What to change.

    Raises:
        PrivacyError: If nothing fits, or the spec claims no privacy.
    """
    unit, given = unit_named(spec.privacy.unit), spec
    if spec.tune.selection == "private":
        raise PrivacyError(
            "tune.selection: private: a target would hold for one trial only, and the selection "
            "costs more; try other noise multipliers with `dpfedadamw epsilon`"
        )
    unit.check_target(view, solve)
    if spec.privacy.noise_multiplier is None:
        if solve is not Solve.noise:
            raise PrivacyError(
                "privacy.noise_multiplier: missing; give it, or use --solve noise to find it"
            )
        given = specs.replace_noise_multiplier(spec, 1.0)
    replaced = given.privacy.target_epsilon is not None
    if replaced and given.algorithm.part(LocalIterationsSpec) is None:
        given = _with_target(given, None)
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
    leading = View.third_party if spec.privacy.unit == "client" else View.server
    if replaced and view is leading:
        changed = _with_target(changed, target_epsilon)
    epsilon = unit.spent(foresee(changed).expected_claim(1), view)
    if epsilon > target_epsilon:
        raise PrivacyError(
            f"{key} = {value:g} spends {epsilon:.6g}, more than the target {target_epsilon:g}; "
            "nothing was written"
        )
    return Calibration(changed, key, value, epsilon)


@dataclass(frozen=True)
class Way:
    """One way to keep a person to a target ε.

    Attributes:
        sampled: What batches are drawn of, "people" or "records".
        noise_multiplier: σ.
        batch: B, the divisor of a noisy sum, in people or records.
        noise: σC/B, standard deviation of the noise on the mean gradient of a step.
        epsilon: ε of the person with most records, recomputed forwards.
    """

    sampled: str
    noise_multiplier: float
    batch: float
    noise: float
    epsilon: float


def compare_person(spec: Spec, target_epsilon: float) -> tuple[Way, Way]:
    """Find the noise by which a person keeps to a target, sampling people or sampling records.

    Both look at as many records in a step on average. Sampling records, it is the person with most
    records who is kept to the target, by the mixture over how many of them are drawn
    (`accounting.several`).

    Args:
        spec: A spec that protects people by Poisson sampling.
        target_epsilon: ε > 0 against the server, every client being in every round.

    Raises:
        PrivacyError: If it protects no people, or nothing fits.
    """
    sampling = spec.privacy.sampling
    if spec.privacy.unit != "person" or sampling.kind != "poisson":
        raise PrivacyError(
            "--compare-person: compares ways to protect people; the spec needs privacy.unit person "
            "and sampling.kind poisson"
        )
    people = calibrate(spec, target_epsilon, View.server, Solve.noise)
    expected, norm = sampling.expected_batch_size, spec.privacy.clipping_norm
    assert expected is not None
    assert norm is not None
    sigma = people.value
    by_people = Way("people", sigma, expected, sigma * norm / expected, people.epsilon)
    batch = expected * _records_of_a_person(spec)
    changes = {
        "unit": "record",
        "clipping_norm": norm,
        "noise_multiplier": 1.0,
        "delta": spec.privacy.delta,
        "sampling": {"kind": "poisson", "expected_batch_size": batch},
    }
    mapping = spec.to_mapping() | {"privacy": changes}
    mapping["federation"] = {**mapping["federation"], "clients_per_person": 1}
    plan = foresee(without_limit(specs.from_mapping(mapping)))
    most = plan.most_records
    assert most is not None

    sigma, spent = _noise_for_a_person(plan, most, target_epsilon, 2.0 * sigma)
    return by_people, Way("records", sigma, batch, sigma * norm / batch, spent)


def for_a_person(spec: Spec, target_epsilon: float) -> Calibration:
    """Solve for the noise of a spec that samples records so that a person keeps to a target.

    Args:
        spec: One that protects records and bounds how many a person keeps.
        target_epsilon: ε > 0 of a person with that many, at the spec's δ, who takes part in every
            round.

    Raises:
        PrivacyError: If it bounds nothing, no accountant covers it, or nothing fits.
    """
    most = getattr(spec.data, "most_records_per_person", None)
    if spec.privacy.unit != "record" or most is None:
        raise PrivacyError(
            "--per-person: the spec needs privacy.unit record, data.person and "
            "data.most_records_per_person, which bounds what a person can move"
        )
    given = specs.replace_noise_multiplier(spec, spec.privacy.noise_multiplier or 1.0)
    # That is the ε of one record.
    given = _with_target(given, None)
    plan = foresee(without_limit(given))
    sigma, epsilon = _noise_for_a_person(plan, most, target_epsilon, float(most))
    changed = specs.replace_noise_multiplier(given, sigma)
    if changed.federation.max_epsilon is not None:
        foresee(changed)  # What is written must keep to its own limit.
    return Calibration(changed, "privacy.noise_multiplier", sigma, epsilon)


def _noise_for_a_person(
    plan: RunPlan, records: int, target_epsilon: float, first: float
) -> tuple[float, float]:
    """The least σ with which a person with so many records keeps to a target, and their ε."""

    def spent(noise_multiplier: float) -> float:
        changed = replace(plan, noise_multiplier=noise_multiplier)
        one = changed.composition(changed.smallest_client)
        everything = changed.spending_bound.everything(one)
        return epsilon_of_records(everything, records, changed.claimed_delta)

    sigma = solve_number(spent, first, 2.0, _NOISE, target_epsilon, round_up, "noise multiplier")
    return sigma, spent(sigma)


def _records_of_a_person(spec: Spec) -> float:
    """How many records a drawn person has in a batch on average, over all clients."""
    dataset, owner = divide(spec)
    people, most = dataset.people_of_train, spec.privacy.records_per_person
    assert people is not None
    assert most is not None
    each = np.unique(np.stack([people, owner]), axis=1, return_counts=True)[1]
    return float(np.minimum(each, most).mean())


def _with_target(spec: Spec, target: float | None) -> Spec:
    """The spec with another target, or with none."""
    value = "null" if target is None else repr(target)
    overrides = [f"privacy.target_epsilon={value}"]
    return specs.loads(specs.dump(spec), source=spec.name, overrides=overrides)


def _budgeted(spec: Spec, target: float, view: View, solve: Solve) -> Calibration:
    """A rule that fits its steps to the spec's target is calibrated by the target itself."""
    if view is not View.server or solve is not Solve.local_steps:
        name = spec.algorithm.name
        raise PrivacyError(
            f"{name} fits its local steps to privacy.target_epsilon, which holds against the "
            "server; use --solve local-steps, which sets it"
        )
    changed = _with_target(spec, target)
    plan = foresee(changed)
    return Calibration(
        changed, "privacy.target_epsilon", target, plan.unit.spent(plan.expected_claim(1), view)
    )
