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
from scipy.special import ndtri

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    register,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import RoundEvidence, SecondMoment
from audit.reading.ledger import Header
from audit.statistics.intervals import (
    FALSE_ALARM,
    gamma_interval,
    relative_difference,
    skewed_upper_end,
)
from audit.statistics.moments import (
    Array,
    InnovationSums,
    MomentRule,
    accumulate,
    floor_faults,
    promised_rule,
    step_weights,
    steps_gain,
)
from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

# Their v is a running maximum, or follows one of two queries: not the recursion tested here.
_OTHER_RECURSION = ("dp-fafed", "dp-fedlada")
# Means of float32 moments: 2^-24 a rounding, a few dozen roundings along the recursion.
_RELATIVE = 1e-4
# How far from 1 the measured shift over the predicted one may lie and still show equivalence.
_MARGIN = 0.5
# The standard normal law leaves this many deviations with probability FALSE_ALARM.
_REACH = 3.2905267314919255


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
            "noise that is subtracted from it was not measured",
        )
    return Judgement(
        Verdict.NOT_VERIFIED, f"{name} keeps a second moment but the evidence records none"
    )


def shift_interval(
    expected: float, variance: float, third: float, rounding: float, alpha: float
) -> tuple[float, float]:
    """Two-sided interval of a sum of innovations, which correct runs leave with probability alpha.

    Args:
        expected: its mean.
        variance: its variance.
        third: its third cumulant.
        rounding: how far float32 and the public grid may have moved it.
        alpha: of both tails together.
    """
    low, high = gamma_interval(expected, variance, alpha)
    # With little noise most of the variance is that of noise times gradient, which is normal and
    # may outweigh the squares of noise, so that the sum is negative. Where beta2 is small, a step
    # outweighs all before it, and the sum is more skewed than that gamma law.
    reach = -float(ndtri(alpha / 2.0)) * float(np.sqrt(variance))
    skewed = skewed_upper_end(expected, variance, third, alpha / 2.0)
    low, high = min(low, expected - reach), max(high, expected + reach, skewed)
    return low - rounding, high + rounding


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

    def judge(name: str, block: int | None) -> float:
        """Test one block, or the sum over all by their sizes; the relative half-width."""

        def of(cumulants: Array, order: int) -> float:
            return float(cumulants @ sizes**order if block is None else cumulants[block])

        total, expected = of(sums.total, 1), of(sums.expected, 1)
        variance, third = of(sums.variance, 2), of(sums.third, 3)
        low, high = shift_interval(expected, variance, third, of(sums.rounding, 1), alpha)
        ratios[name] = total / expected
        if not low <= total <= high:
            side = "below" if total < low else "above"
            reasons.append(f"{name}: the shift is {side} its interval about (1-beta2^tau) Phi")
        return max(high - expected, expected - low) / expected

    for block in range(len(sizes)):
        judge(f"block {names[block]}", block)
        expected = float(sums.expected[block])
        low, high = gamma_interval(expected, float(sums.noise_variance[block]), alpha)
        half_widths.append(max(high - expected, expected - low) / expected)
    pooled = judge("all blocks", None)
    private["shift_ratio"] = ratios
    return pooled, half_widths


def _correction_tests(
    index: int,
    evidence: RoundEvidence,
    moment: SecondMoment,
    rule: MomentRule,
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
            f"from round {index} on the bias correction does not divide by 1-beta2^tau with tau = "
            f"{tau}: v-hat is {factor:.4g} times the unbiased value"
            + (" (the local counter)" if rule.local_counter and not rule.restarts else "")
        )
    if np.any(moment.steps != tau):
        reasons.append(f"round {index}: the recorded number of steps tau is not {tau}")
    promised = variance_of_noise if rule.debias else 0.0
    if any(relative_difference(float(value), promised) > 1e-6 for value in moment.subtracted):
        wanted = "Phi = (sigma C/B)^2" if rule.debias else "0 (debiasing is off)"
        reasons.append(f"round {index}: the term subtracted is not {wanted}")


@dataclass
class _Recursion:
    """The second moment followed from round to round, and what was noted on the way.

    Attributes:
        rule: what the spec promises.
        phi: Φ = (σC/B)², the noise's variance on a coordinate of the averaged gradient.
        sizes: coordinates of each block, [B].
        bits: significant bits in which the moment is exchanged between rounds.
        sums: innovations over all clients and rounds.
        start: how far noise has moved the moment that a round starts from, [B].
        earlier: steps behind that moment; 0 where each round starts from nothing.
        tau: steps behind the moment that was released last.
        variance: variance of that moment by noise alone, which is public, [B].
        released: that moment itself, averaged over the clients, [B].
        floored: coordinates that were raised to the floor.
        counted: all coordinates.
    """

    rule: MomentRule
    phi: float
    sizes: Array
    bits: int
    sums: InnovationSums
    start: Array
    variance: Array
    released: Array
    earlier: int = 0
    tau: int = 0
    floored: float = 0.0
    counted: float = 0.0

    def follow(
        self, index: int, evidence: RoundEvidence, moment: SecondMoment, reasons: list[str]
    ) -> None:
        """Add a round; what its correction or its floor breaks becomes a reason."""
        rule, phi, sizes = self.rule, self.phi, self.sizes
        difference = accumulate(
            self.sums, evidence, moment, self.start, rule.beta2, phi, sizes, self.bits
        )
        if not reasons:
            _correction_tests(index, evidence, moment, rule, phi, self.earlier, reasons)
        if rule.floor is not None:
            faults = floor_faults(moment.corrected, moment.floored, sizes, phi, rule.floor)
            reasons.extend(f"round {index}: {fault}" for fault in faults)
        elif np.any(moment.floored):
            reasons.append(f"round {index}: a floor was reached where nothing is subtracted")
        steps, clients = evidence.batch_size.shape[1], len(evidence.clients)
        # A mean of n squares of noise has variance 2Φ²/n; each step counts by its weight.
        fresh = float(np.square(step_weights(rule.beta2, steps)).sum()) * 2.0 * phi**2 / sizes
        kept = rule.beta2 ** (2 * steps) if rule.carried else 0.0
        self.variance = kept * self.variance + fresh / clients
        self.start = difference.mean(axis=0) if rule.carried else np.zeros(len(sizes))
        self.tau = self.earlier + steps
        self.earlier = self.tau if rule.carried else 0
        self.released = moment.noisy.mean(axis=0)
        self.floored += float(moment.floored.sum())
        self.counted += float(sizes.sum()) * clients

    def details(self, names: Sequence[str]) -> dict[str, Any]:
        """The released second moment compared with that of noise alone: public numbers."""
        return {
            "tau": self.tau,
            "phi": self.phi,
            "blocks": [
                {
                    "name": name,
                    "size": int(self.sizes[block]),
                    "predicted": steps_gain(self.rule.beta2, self.tau) * self.phi,
                    "released": float(self.released[block]),
                    "half_width": _REACH * float(np.sqrt(self.variance[block])),
                }
                for block, name in enumerate(names)
            ],
        }


def _noise_variance(header: Header) -> float:
    sigma, clip, batch = header.noise_multiplier, header.clipping_norm, header.expected_batch_size
    if sigma is None or clip is None or batch is None:
        raise UnverifiedError("the ledger's header lacks sigma, C or B")
    return (sigma * clip / batch) ** 2


def _exchanged_bits(header: Header, rule: MomentRule) -> int:
    """Significant bits of the moment that rounds hand on; those of float32 without a grid."""
    if header.grid is None:
        return 24
    return header.grid.vectors if rule.whole else header.grid.summaries


def _followed(bundle: Bundle, rule: MomentRule, reasons: list[str]) -> _Recursion:
    """All rounds, one after the other."""
    sizes = bundle.layout().sizes.astype(np.float64)
    zero = np.zeros(len(sizes))
    sums = InnovationSums.start(len(sizes))
    phi, bits = _noise_variance(bundle.header), _exchanged_bits(bundle.header, rule)
    recursion = _Recursion(rule, phi, sizes, bits, sums, zero, zero, zero)
    for index, evidence in bundle.all_rounds():
        if evidence.second_moment is None:
            raise UnverifiedError(f"round {index} records no second moment")
        recursion.follow(index, evidence, evidence.second_moment, reasons)
    return recursion


def _judge(bundle: Bundle) -> Judgement:
    spec, layout = bundle.readable_spec, bundle.layout()
    try:
        if layout.beta2 is None:
            return _without_evidence(fields.mapping(spec, "algorithm"))
        rule = promised_rule(spec, layout.beta2)
    except FieldError as error:
        return Judgement(Verdict.FAIL, f"spec.yaml: {error}")
    reasons: list[str] = []
    recursion = _followed(bundle, rule, reasons)
    private: dict[str, Any] = {}
    pooled, half_widths = _shift_tests(
        recursion.sums, recursion.sizes, layout.names, reasons, private
    )
    private["share_of_coordinates_at_the_floor"] = recursion.floored / recursion.counted
    details = recursion.details(layout.names)
    if pooled >= _MARGIN and not reasons:
        return Judgement(
            Verdict.NOT_VERIFIED,
            "the interval of the shift is wider than the equivalence margin: too few queries",
            details,
            private,
            power="none: the run is too small for this check",
        )
    conclusive = sum(width < _MARGIN for width in half_widths)
    counters_agree = rule.local_counter and rule.carried
    note = " (one round: the local counter makes no difference yet)" if counters_agree else ""
    return conclude(
        f"shift of the second moment over {recursion.sums.count} client rounds against "
        "(1-beta2^tau) Phi: inside the interval for all blocks and pooled. Divisor, tau, "
        f"subtracted term and the coordinates at the floor are correct{note}",
        reasons,
        details=details,
        private=private,
        power=f"equivalence within a factor of 1 plus or minus {_MARGIN} is shown pooled and for "
        f"{conclusive} of {len(half_widths)} blocks on their own. Noise at half or twice its scale "
        "(factors 1/4 and 4) lies far outside",
    )


def _of_whole_clients(bundle: Bundle) -> Judgement:
    del bundle
    return Judgement(
        Verdict.NOT_APPLICABLE,
        "at client level local steps see no noise, so none enters their second moments",
    )


SECOND_MOMENT = Check(
    name="second-moment",
    title="Is the noise's bias in the second moment corrected exactly?",
    units=AT_RECORD_LEVEL,
    place=110,
    meaning="If it fails, the optimiser corrects for noise that is absent, or corrects too little.",
    claim="E[v] exceeds the noiseless second moment by (1-beta2^tau) Phi. v-hat divides by "
    "1-beta2^tau with tau all steps since the start. Debiasing subtracts Phi = (sigma C/B)^2. "
    "What is left, an estimate that may be negative, is held above a floor (DP-FedAdamW, "
    "Algorithm 1 with the global counter of FedAdamW, Algorithm 2).",
    tolerance="Innovations of the difference, independent given the past, have mean "
    "(1-beta2^K) Phi and a variance that follows from the recursion. Gamma or normal law of the "
    "same two moments, or of three, whichever is wider, 99.9 % over all blocks together "
    "(Bonferroni). What float32 and the public grid may round, at most K+2 times 2^-22 and a "
    "unit of the grid's last bit of v a round, is added. Divisor: "
    "1e-4 relative, from float32 moments; subtracted term: 1e-6. Floor: coordinates not raised "
    "have v-hat of Phi and the floor at least. So by Markov's inequality no more than mean(v-hat) "
    "over that are not raised; 1e-4 and one coordinate more are allowed.",
    power="noise at half or twice its scale (factors 1/4 and 4) lies far outside; no floor at all",
    limits="Whether a floor is high enough for stable training is not judged. The noiseless "
    "recursion is the recorder's; it runs along the noised trajectory. A second moment in which "
    "all steps' weights have died out cannot distinguish counters, but then they do not matter.",
    rule=_judge,
)
register(SECOND_MOMENT)
register(
    replace(
        SECOND_MOMENT,
        units=AT_CLIENT_LEVEL,
        meaning="Only where local steps are noised; at client level they are not.",
        rule=_of_whole_clients,
    )
)
