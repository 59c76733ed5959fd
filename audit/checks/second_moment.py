"""Check "second-moment": is the bias that noise puts into AdamW's second moment what theory says?

The heart of the audit of DP-FedAdamW. Noise of variance Φ = (σC/B)² on each coordinate of the
averaged gradient shifts the second moment by (1−β2^τ)Φ after τ steps. The check (1) tests that
shift against the recorded clean recursion, in both directions, (2) compares the bias correction
really used with 1−β2^τ, (3) the subtracted term with Φ, and (4) the coordinates raised to the floor
with as many as the estimate's mean leaves below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    listed,
    register,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import RoundEvidence, SecondMoment
from audit.statistics.floors import Floor, floor_faults, promised_floor
from audit.statistics.intervals import FALSE_ALARM, gamma_interval, relative_difference
from audit.statistics.moments import Array, InnovationSums, accumulate, step_weights, steps_gain
from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

# Their v is a running maximum, or follows one of two queries: not the recursion tested here.
_OTHER_RECURSION = ("dp-fafed", "dp-fedlada")
# Means of float32 moments: 2^-24 a rounding, a few dozen roundings along the recursion.
_RELATIVE = 1e-4
_MARGIN = 0.5


@dataclass(frozen=True)
class _Rule:
    """What the spec promises about the second moment."""

    beta2: float
    carried: bool
    debias: bool
    local_counter: bool
    restarts: bool
    floor: Floor | None = None


def _without_evidence(algorithm: Mapping[str, Any]) -> Judgement:
    """Whether a rule may leave its second moment out of the evidence."""
    name = fields.text(algorithm, "name")
    if "beta2" not in algorithm:
        return Judgement(Verdict.NOT_APPLICABLE, f"{name} keeps no second moment")
    moment = algorithm.get("second_moment")
    debias = isinstance(moment, Mapping) and moment.get("debias") is True
    if name in _OTHER_RECURSION or (algorithm.get("decay") == "coupled" and not debias):
        return Judgement(
            Verdict.NOT_APPLICABLE,
            f"{name} subtracts no noise from its second moment, which is not the recursion tested",
        )
    if algorithm.get("decay") == "coupled":
        return Judgement(
            Verdict.NOT_VERIFIED,
            "with coupled decay the second moment follows the weights as well; the share of the "
            "noise, which is subtracted from it, was not measured",
        )
    return Judgement(
        Verdict.NOT_VERIFIED, f"{name} keeps a second moment but the evidence records none"
    )


def _rule(spec: Mapping[str, Any], beta2: float) -> _Rule:
    algorithm = fields.mapping(spec, "algorithm")
    name = fields.text(algorithm, "name")
    declared = fields.number(algorithm, "beta2", least=0.0, most=1.0)
    if declared != beta2:
        raise FieldError("beta2 of the evidence is not the spec's")
    if "second_moment" not in algorithm:
        return _Rule(beta2, carried=False, debias=False, local_counter=True, restarts=True)
    moment = fields.mapping(algorithm, "second_moment")
    restarts = name == "dp-localadamw" or moment.get("aggregation", "none") == "none"
    return _Rule(
        beta2,
        carried=not restarts,
        debias=bool(moment.get("debias", False)),
        local_counter=moment.get("counter", "global") == "local",
        restarts=restarts,
        floor=promised_floor(moment) if moment.get("debias") is True else None,
    )


def _shift_tests(
    sums: InnovationSums,
    sizes: Array,
    names: Sequence[str],
    reasons: list[str],
    private: dict[str, Any],
) -> tuple[float, list[float]]:
    """Per block and pooled: is the mean innovation inside its interval?

    Returns:
        The pooled relative half-width, and for each block the half-width from noise alone, which
        follows from public numbers and may be printed.
    """
    tests = len(sizes) + 1
    alpha = FALSE_ALARM / tests
    half_widths = []
    ratios: dict[str, float] = {}

    def judge(name: str, total: float, expected: float, variance: float) -> float:
        low, high = gamma_interval(expected, variance, alpha)
        ratios[name] = total / expected
        if not low <= total <= high:
            side = "below" if total < low else "above"
            reasons.append(f"{name}: the shift is {side} its interval about (1-beta2^tau) Phi")
        return max(high - expected, expected - low) / expected

    for block in range(len(sizes)):
        expected = float(sums.expected[block])
        judge(
            f"block {names[block]}",
            float(sums.total[block]),
            expected,
            float(sums.variance[block]),
        )
        low, high = gamma_interval(expected, float(sums.noise_variance[block]), alpha)
        half_widths.append(max(high - expected, expected - low) / expected)
    pooled = judge(
        "all blocks",
        float(np.dot(sums.total, sizes)),
        float(np.dot(sums.expected, sizes)),
        float(np.dot(sums.variance, sizes**2)),
    )
    private["shift_ratio"] = ratios
    return pooled, half_widths


def _correction_tests(
    index: int,
    evidence: RoundEvidence,
    moment: SecondMoment,
    rule: _Rule,
    variance_of_noise: float,
    earlier: int,
    reasons: list[str],
) -> None:
    """Compare the divisor, counter and subtracted term really used with what they must be."""
    steps = evidence.batch_size.shape[1]
    tau = steps if rule.restarts else earlier + steps
    gain = steps_gain(rule.beta2, tau)
    known = moment.noisy > 0.0
    if np.any(~known) or np.any(moment.corrected <= 0.0):
        reasons.append(f"round {index}: a second moment is not positive")
        return
    used = moment.noisy / moment.corrected
    if np.any(np.abs(used / gain - 1.0) > _RELATIVE):
        factor = gain / float(np.median(used))
        reasons.append(
            f"from round {index} on the bias correction divides by something else than "
            f"1-beta2^tau with tau = {tau}: v-hat is {factor:.4g} times what is unbiased"
            + (" (the local counter)" if rule.local_counter and not rule.restarts else "")
        )
    if np.any(moment.steps != tau):
        reasons.append(f"round {index}: the recorded number of steps tau is not {tau}")
    promised = variance_of_noise if rule.debias else 0.0
    if any(relative_difference(float(value), promised) > 1e-6 for value in moment.subtracted):
        wanted = "Phi = (sigma C/B)^2" if rule.debias else "0 (debiasing is off)"
        reasons.append(f"round {index}: the term subtracted is not {wanted}")


def _judge(bundle: Bundle) -> Judgement:
    header, spec = bundle.header, bundle.readable_spec
    layout = bundle.layout()
    try:
        if layout.beta2 is None:
            return _without_evidence(fields.mapping(spec, "algorithm"))
        rule = _rule(spec, layout.beta2)
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    if None in (header.noise_multiplier, header.clipping_norm, header.expected_batch_size):
        raise UnverifiedError("the ledger's header lacks sigma, C or B")
    sigma = float(header.noise_multiplier or 0.0)
    clip, batch = float(header.clipping_norm or 0.0), float(header.expected_batch_size or 1.0)
    phi = (sigma * clip / batch) ** 2
    sizes = layout.sizes.astype(np.float64)
    zero = np.zeros(len(sizes))
    sums = InnovationSums(zero.copy(), zero.copy(), zero.copy(), zero.copy())
    start, earlier, public_variance = zero.copy(), 0, zero.copy()
    reasons: list[str] = []
    private: dict[str, Any] = {}
    floored = total = 0.0
    released = zero
    for index, evidence in bundle.all_rounds():
        moment = evidence.second_moment
        if moment is None:
            raise UnverifiedError(f"round {index} records no second moment")
        difference = accumulate(sums, evidence, moment, start, rule.beta2, phi, sizes)
        if not reasons:
            _correction_tests(index, evidence, moment, rule, phi, earlier, reasons)
        if rule.floor is not None:
            for fault in floor_faults(moment.corrected, moment.floored, sizes, phi, rule.floor):
                reasons.append(f"round {index}: {fault}")
        elif np.any(moment.floored):
            reasons.append(f"round {index}: a floor was reached where nothing is subtracted")
        steps = evidence.batch_size.shape[1]
        fresh = float(np.square(step_weights(rule.beta2, steps)).sum()) * 2.0 * phi**2 / sizes
        kept = rule.beta2 ** (2 * steps) if rule.carried else 0.0
        public_variance = kept * public_variance + fresh / len(evidence.clients)
        start = difference.mean(axis=0) if rule.carried else zero
        earlier = earlier + steps if rule.carried else 0
        tau = earlier if rule.carried else steps
        released = moment.noisy.mean(axis=0)
        floored += float(moment.floored.sum())
        total += float(layout.parameters * len(evidence.clients))
    pooled, half_widths = _shift_tests(sums, sizes, layout.names, reasons, private)
    private["share_of_coordinates_at_the_floor"] = floored / total
    predicted = steps_gain(rule.beta2, tau) * phi
    reach = 3.2905267314919255
    details = {
        "tau": tau,
        "phi": phi,
        "blocks": [
            {
                "name": layout.names[block],
                "size": int(layout.sizes[block]),
                "predicted": predicted,
                "released": float(released[block]),
                "half_width": reach * float(np.sqrt(public_variance[block])),
            }
            for block in range(len(sizes))
        ],
    }
    conclusive = sum(width < _MARGIN for width in half_widths)
    power = (
        f"equivalence within a factor of 1 plus or minus {_MARGIN} is shown pooled and for "
        f"{conclusive} of {len(sizes)} blocks on their own; noise at half or twice its scale "
        "(factors 1/4 and 4) lies far outside"
    )
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private, power=power)
    if pooled >= _MARGIN:
        return Judgement(
            Verdict.NOT_VERIFIED,
            "the interval of the shift is wider than the equivalence margin: too few queries",
            details,
            private,
            power="none: the run is too small for this check",
        )
    note = (
        " (one round: the local counter makes no difference yet)"
        if (rule.local_counter and rule.carried)
        else ""
    )
    return Judgement(
        Verdict.PASS,
        f"shift of the second moment over {sums.count} client rounds against (1-beta2^tau) Phi: "
        "inside the interval for all blocks and pooled; divisor, tau, subtracted term and the "
        f"coordinates at the floor as they must be{note}",
        details,
        private,
        power=power,
    )


def _of_whole_clients(bundle: Bundle) -> Judgement:
    del bundle
    return Judgement(
        Verdict.NOT_APPLICABLE,
        "at client level local steps see no noise, so none enters a second moment of theirs",
    )


SECOND_MOMENT = Check(
    name="second-moment",
    title="Is the noise's bias of the second moment exactly what is corrected?",
    units=AT_RECORD_LEVEL,
    place=110,
    claim="E[v] exceeds the noiseless second moment by (1-beta2^tau) Phi, v-hat divides by "
    "1-beta2^tau with tau all steps since the start, debiasing subtracts Phi = (sigma C/B)^2, and "
    "what is left, an estimate that may be negative, is held above a floor (DP-FedAdamW, Algorithm "
    "1 with the global counter of FedAdamW, Algorithm 2).",
    tolerance="Innovations of the difference, independent given the past, have mean "
    "(1-beta2^K) Phi and a variance that follows from the recursion; gamma law of the same two "
    "moments, 99.9 % over all blocks together (Bonferroni). Divisor: 1e-4 relative, from float32 "
    "moments; subtracted term: 1e-6. Floor: coordinates not raised have v-hat of Phi and the floor "
    "at least, so by Markov's inequality no more than mean(v-hat) over that are not raised; 1e-4 "
    "and one coordinate more are allowed.",
    power="noise at half or twice its scale (factors 1/4 and 4) lies far outside; no floor at all",
    limits="Whether a floor is high enough for training to be stable is not judged. The noiseless "
    "recursion is the recorder's; it runs along the noised trajectory. A second moment in which "
    "all steps' weights have died out cannot tell counters apart, and then they do not matter.",
    rule=_judge,
)
register(SECOND_MOMENT)
register(replace(SECOND_MOMENT, units=AT_CLIENT_LEVEL, rule=_of_whole_clients))
