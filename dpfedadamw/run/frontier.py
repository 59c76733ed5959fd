"""What one budget buys: rounds, local steps and batches against each other at the same ε.

Noise is solved for in every combination, so that all of them claim the same. What then differs can
be read before anything is trained: how noisy a gradient and a round are, what is sent, what is
computed. Which of them learns best is for an experiment to say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.experiment import foresee
from dpfedadamw.run.calibrate import Solve, View, calibrate
from dpfedadamw.spec import Spec
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import unit_named

ROUNDS, STEPS = "federation.rounds", "federation.local_steps"
CHOSEN = "federation.clients_per_round"
# Each combination takes a second; more of them are nothing that is read.
MOST_COMBINATIONS = 400
_HALVINGS = (0.25, 0.5, 1.0, 2.0)
_BATCHES = (0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Combination:
    """One way to spend the budget.

    Attributes:
        values: What was set, by key.
        rounds: R.
        local_steps: K.
        clients_per_round: S.
        batch_size: B, the expected or exact size of a batch; None where whole clients are
            protected.
        noise_multiplier: σ that keeps to the target.
        epsilon: What is claimed at most with it.
        gradient_noise: Standard deviation of the noise on one coordinate of one mean gradient, in
            units of C: σ/B. None where gradients are not noised.
        client_noise: The same on what one client's K steps come to at a learning rate of 1, before
            averaging: √K·σ/B. This is the noise under which a round's gradients are computed. None
            where gradients are not noised.
        training_noise: The same on the mean of all gradients, σ/(B√(KRS)), or of all updates,
            σ/(S√R). Where ε is spent on many steps it hardly depends on how they are divided.
        uploads: Vectors that all clients send: R·S.
        records: Expected gradients of records: R·S·K·B; None where whole clients are protected.
        is_the_specs: Whether these are the spec's own numbers.
    """

    values: Mapping[str, Any]
    rounds: int
    local_steps: int
    clients_per_round: int
    batch_size: float | None
    noise_multiplier: float
    epsilon: float
    gradient_noise: float | None
    client_noise: float | None
    training_noise: float
    uploads: int
    records: float | None
    is_the_specs: bool


@dataclass(frozen=True)
class Refused:
    """A combination that cannot be.

    Attributes:
        values: What was set, by key.
        reason: Why not, one line.
    """

    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Frontier:
    """What one budget buys.

    Attributes:
        target_epsilon: ε that all keep to.
        delta: At this δ.
        view: Against whom.
        combinations: What fits, in the order that was asked for.
        refused: What does not.
    """

    target_epsilon: float
    delta: float
    view: View
    combinations: tuple[Combination, ...]
    refused: tuple[Refused, ...]


def frontier(
    spec: Spec,
    target_epsilon: float,
    view: View = View.server,
    vary: Mapping[str, Sequence[Any]] | None = None,
) -> Frontier:
    """Solve for the noise of every combination of the values that some keys may have.

    Args:
        spec: A private spec; its noise multiplier is not looked at.
        target_epsilon: ε > 0 that all combinations keep to, at the spec's δ.
        view: Against whom.
        vary: Values by dotted key, every one with every other. By default a quarter, half, all and
            twice of the spec's local steps, in rounds that leave the number of all steps as it is,
            each with half, the same and twice the batch; and the same local steps in the spec's own
            rounds, which send as much. Where whole clients are protected, rounds and clients a
            round.

    Raises:
        DpfedadamwError: If there are too many combinations, a key is unknown, or not even one of
            them keeps to the target.
    """
    unit_named(spec.privacy.unit).check_target(view, Solve.noise)
    combinations = _settings(spec, vary)
    if len(combinations) > MOST_COMBINATIONS:
        raise PrivacyError(
            f"--vary: {len(combinations)} combinations; at most {MOST_COMBINATIONS} are computed"
        )
    found: list[Combination] = []
    refused: list[Refused] = []
    for values in combinations:
        try:
            found.append(_solved(spec, values, target_epsilon, view))
        except DpfedadamwError as error:
            refused.append(Refused(values, str(error).splitlines()[0]))
    if not found:
        raise PrivacyError(f"no combination meets ε = {target_epsilon:g}: {refused[0].reason}")
    return Frontier(target_epsilon, spec.privacy.delta or 0.0, view, tuple(found), tuple(refused))


def _settings(spec: Spec, vary: Mapping[str, Sequence[Any]] | None) -> list[dict[str, Any]]:
    """The values of each combination, by key."""
    if vary:
        return [
            dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())
        ]
    rounds, steps = spec.federation.rounds, spec.federation.local_steps
    if spec.privacy.sampling is None or spec.privacy.unit == "client":
        chosen = spec.federation.clients_per_round
        return [
            {ROUNDS: _share(rounds, more), CHOSEN: _share(chosen, many)}
            for more in _HALVINGS
            for many in _BATCHES
        ]
    key, batch = _batch_of(spec)
    local = list(dict.fromkeys(_share(steps, share) for share in _HALVINGS))
    as_many_steps = [
        {ROUNDS: max(1, round(rounds * steps / one)), STEPS: one, key: _like(batch, batch * many)}
        for one in local
        for many in _BATCHES
    ]
    as_many_rounds = [{ROUNDS: rounds, STEPS: one, key: batch} for one in local if one != steps]
    return as_many_steps + as_many_rounds


def _share(number: int, share: float) -> int:
    return max(1, round(number * share))


def _like(given: float, value: float) -> float:
    """A value of the same kind as what the spec gives: a whole number stays one."""
    return max(1, round(value)) if isinstance(given, int) or float(given).is_integer() else value


def _batch_of(spec: Spec) -> tuple[str, float]:
    """The key of a spec's batch size, and its value.

    Raises:
        PrivacyError: If its sampler has none.
    """
    sampling = spec.privacy.sampling
    for name in ("expected_batch_size", "batch_size"):
        value = getattr(sampling, name, None)
        if value is not None:
            return f"privacy.sampling.{name}", value
    raise PrivacyError(
        "privacy.sampling: its batches have no size to vary; name keys and values by --vary"
    )


def _solved(
    spec: Spec, values: Mapping[str, Any], target_epsilon: float, view: View
) -> Combination:
    changes = [f"{key}={value!r}" for key, value in values.items()]
    changed = specs.loads(specs.dump(spec), source=spec.name, overrides=changes)
    found = calibrate(changed, target_epsilon, view, Solve.noise)
    plan = foresee(found.spec)
    return _combination(plan, values, found.value, found.epsilon, _is_same(spec, changed))


def _is_same(spec: Spec, changed: Spec) -> bool:
    return specs.dump(spec) == specs.dump(changed)


def _combination(
    plan: RunPlan, values: Mapping[str, Any], noise: float, epsilon: float, is_same: bool
) -> Combination:
    rounds, steps, chosen = plan.rounds, plan.local_steps, plan.clients_per_round
    batch = gradient = of_client = records = None
    whole = noise / (chosen * math.sqrt(rounds))
    if plan.unit.noises_gradients:
        # B is the same for all clients, or the smallest client's, whose gradients are noisiest.
        batch = min(plan.divisor(client) for client in range(len(plan.records)))
        gradient = noise / batch
        of_client = gradient * math.sqrt(steps)
        whole = gradient / math.sqrt(rounds * steps * chosen)
        records = float(rounds * chosen * steps) * batch
    return Combination(
        values=dict(values),
        rounds=rounds,
        local_steps=steps,
        clients_per_round=chosen,
        batch_size=batch,
        noise_multiplier=noise,
        epsilon=epsilon,
        gradient_noise=gradient,
        client_noise=of_client,
        training_noise=whole,
        uploads=rounds * chosen,
        records=records,
        is_the_specs=is_same,
    )
