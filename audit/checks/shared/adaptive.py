"""Did a run whose rule adapts do in every round what its rule says, and stay within its limits?

The part of the check "promise" for ALI-DPFL and Adap DP-FL: each round's steps and noise are worked
out once more from the spec and from the released values on the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from audit.accounting.budget import budget
from audit.accounting.sampling import cost
from audit.checks.shared.agreement import differs
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import (
    Adaptation,
    Decay,
    local_steps_of_equation_9,
    steps_charged,
)
from audit.untrusted import fields

# Rounding of tau* to a whole number may fall either way this close to a half.
_TIE = 1e-6


def declared(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    """What the header says may change is what the spec allows.

    Raises:
        FieldError: the spec lacks a field.
    """
    algorithm, found = fields.mapping(spec, "algorithm"), header.adaptation
    if "noise_decay" in algorithm:
        part = fields.mapping(algorithm, "noise_decay")
        steps = fields.integer(fields.mapping(spec, "federation"), "local_steps")
        decay = Decay(
            fields.positive(part, "factor"),
            fields.integer(part, "patience", least=1),
            fields.positive(part, "floor"),
        )
        if found != Adaptation(steps, None, True, decay):
            reasons.append("adaptation: the ledger's header does not declare the spec's decay")
    elif "local_iterations" in algorithm:
        part = fields.mapping(algorithm, "local_iterations")
        most = fields.integer(part, "maximum", least=1)
        limit = found.step_limit if found else None
        if limit is None or found != Adaptation(most, limit, fields.flag(part, "estimate"), None):
            reasons.append("adaptation: the ledger's header does not declare the spec's iterations")
    elif found is not None:
        reasons.append("adaptation: the ledger declares one, but the spec's rule does not adapt")


def affordable(spec: Mapping[str, Any], ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """The limit on steps fits the spec's target epsilon for the smallest client, and was kept.

    Raises:
        FieldError: the spec lacks a field.
    """
    limit = header.adaptation.step_limit if header.adaptation else None
    if limit is None or not ledger.spends:
        return
    target = fields.positive(fields.mapping(spec, "privacy"), "target_epsilon")
    sigma, batch = header.declared("noise_multiplier"), header.declared("expected_batch_size")
    queries = max(spend.queries_per_step for spend in ledger.spends)
    smallest = min(records for records in header.records if records > 0)
    sampling, stated = header.sampling or "", header.sampling_rate
    # Of a person at several clients, each of these takes so many steps.
    steps = limit * header.clients_per_person
    whole = cost(sampling, sigma, queries, batch, smallest, steps, stated)
    spent = budget([whole], header.declared("delta")).headline
    if spent > target * 1.005 + 1e-3:
        reasons.append(
            f"adaptation: {steps} steps cost {spent:.4g}, more than the target of {target:g}"
        )
    charged = steps_charged(ledger.spends)
    if charged > limit:
        reasons.append(f"{charged} local steps were charged, more than the limit of {limit}")


def turns(spec: Mapping[str, Any], ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every charge has the steps and the noise multiplier that the rule gives its round.

    Raises:
        FieldError: spec or ledger lack a value that the rule goes by.
    """
    algorithm = fields.mapping(spec, "algorithm")
    released = {item.round: item.released for item in ledger.rounds}
    sigma = header.declared("noise_multiplier")
    seen: dict[tuple[int, int], tuple[frozenset[int], float]] = {}
    spent = 0
    decay = header.adaptation.decay if header.adaptation else None
    decays = _decays(decay, ledger) if decay else []
    last: dict[int, int] = {}
    for spend in ledger.spends:
        key = (spend.round, spend.attempt)
        if key not in seen:
            if "local_iterations" in algorithm:
                section = fields.mapping(algorithm, "local_iterations")
                steps = _iterations(section, header, spend.round, last, spent, released)
                seen[key] = (steps, sigma)
            else:
                share = decay.after(decays[spend.round]) if decay else 1.0
                seen[key] = (frozenset({header.local_steps}), sigma * share)
            spent += spend.steps
            last[spend.round] = spend.steps
        expected, noise = seen[key]
        where = f"ledger.jsonl:{spend.line}"
        if spend.steps not in expected:
            wanted = " or ".join(str(steps) for steps in sorted(expected))
            reasons.append(f"{where}: {spend.steps} local steps, but the rule gives {wanted}")
        if differs(noise, spend.noise_multiplier):
            reasons.append(f"{where}: noise_multiplier is not the {noise:.6g} that the rule gives")


def _iterations(
    section: Mapping[str, Any],
    header: Header,
    index: int,
    last: Mapping[int, int],
    spent: int,
    released: Mapping[int, Mapping[str, Any]],
) -> frozenset[int]:
    """Local steps that ALI-DPFL takes in a round; two where tau* lies halfway between them."""
    fewest = fields.integer(section, "minimum", least=1)
    most = fields.integer(section, "maximum", least=1)
    limit = header.adaptation.step_limit if header.adaptation else None
    limit = header.rounds * most if limit is None else limit
    if header.rounds >= limit:
        wanted = {1}
    elif index == 0:
        wanted = {header.local_steps}
    else:
        convexity = fields.positive(section, "strong_convexity")
        if fields.flag(section, "estimate"):
            convexity = fields.positive(released.get(index - 1, {}), "strong_convexity")
        sigma, clip = header.declared("noise_multiplier"), header.declared("clipping_norm")
        deviation = sigma * clip / header.declared("expected_batch_size")
        best = local_steps_of_equation_9(
            convexity,
            fields.number(section, "heterogeneity", least=0.0),
            float(min(header.rounds * last.get(index - 1, header.local_steps), limit)),
            clip,
            header.parameters * deviation * deviation,
        )
        best = min(best, float(most))
        wanted = {math.floor(best + 0.5 - _TIE), math.floor(best + 0.5 + _TIE)}
    bounded = {max(fewest, min(most, steps)) for steps in wanted}
    return frozenset(min(steps, limit - spent) for steps in bounded)


def _decays(decay: Decay, ledger: Ledger) -> list[int]:
    """How often the noise has fallen before each charged round, from the released slopes."""
    released = {item.round: item.released for item in ledger.rounds}
    falls, found = 0, [0]
    for index in range(max((spend.round for spend in ledger.spends), default=0)):
        slope = fields.number(released.get(index, {}), "slope")
        falls = falls + 1 if slope > 0.0 else 0
        found.append(found[-1] + (falls == decay.patience))
        falls %= decay.patience
    return found
