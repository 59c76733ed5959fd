"""Who sees what of an audit run, what the ledger claims towards them, and what they would guess.

Three views. Towards the server, who sees every noised gradient: all of the run, and its beginning,
where the claim is small and a fault therefore shows with fewer canaries. Towards a third party, who
sees the final model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from audit.accounting.budget import Steps, ThirdParty, budget, merge, privacy_profile, rdp_estimate
from audit.accounting.sampling import cost_of, most_spent, participation
from audit.canaries.bounds import Mechanism, Shares, scaled
from audit.canaries.e_values import (
    LEAST_NOISE,
    TOO_LITTLE_NOISE,
    Scores,
    Sums,
    collected,
    of_one_draw,
)
from audit.canaries.scores import log_likelihood_ratio, loss_reduction, noise_shown
from audit.errors import UnverifiedError
from audit.reading.canary_evidence import CanaryEvidence
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import Spend
from audit.untrusted.archives import Floats

_BEGINNING, _BEGINNING_OF_FEW, _FEW = 2.0, 1.0, 200
# Samplers that do not draw each record by itself.
_DEPENDENT = ("fixed-size", "shuffled")
# More different clients than that are put into groups, each counted as its worst.
_MOST_HISTORIES = 12
# Of more clients than that, what their beginnings spend is estimated from above.
_MOST_EXACT = 64


@dataclass(frozen=True)
class View:
    """What somebody sees.

    Attributes:
        name: "uploads", "beginning" or "final-model".
        words: for the reader.
        mechanism: what the ledger claims towards them.
        scores: [N] how much what they see speaks for each canary.
    """

    name: str
    words: str
    mechanism: Mechanism
    scores: Floats


def views(evidence: CanaryEvidence, ledger: Ledger, header: Header, delta: float) -> list[View]:
    """The views of an audit run at record level.

    Raises:
        UnverifiedError: the ledger does not charge what the evidence shows.
    """
    charged = _charges(ledger, header, evidence)
    planted = Counter(evidence.client.tolist())
    whole = _mechanism(charged, planted, delta)
    found = [View("uploads", "every noised gradient", whole, _scores(evidence, charged))]
    most, exactly = beginning(len(evidence.client)), len(charged) <= _MOST_EXACT
    part = {client: _beginning(events, most, delta, exactly) for client, events in charged.items()}
    if part != charged:
        some = max(map(len, part.values()))
        words = f"the noised gradients of each client's first {some} participations at most"
        if some == 1:
            words = "the noised gradients of each client's first participation"
        begun = _mechanism(part, planted, delta)
        found.append(View("beginning", words, begun, _scores(evidence, part)))
    reduction = loss_reduction(evidence.loss_before, evidence.loss_after)
    third = _third_party(ledger, header, delta)
    return [*found, View("final-model", "the final model", third, reduction)]


def beginning(canaries: int) -> float:
    """What the beginning of a run may spend that is looked at by itself: ε = 2, of few canaries 1.

    Few right guesses can contradict a small claim only.
    """
    return _BEGINNING if canaries >= _FEW else _BEGINNING_OF_FEW


_Events = list[tuple[Spend, Steps]]
_Charges = dict[int, _Events]


def _charges(ledger: Ledger, header: Header, evidence: CanaryEvidence) -> _Charges:
    """Each client's charges, in the order of the rounds, and what each costs a record."""
    planted = set(evidence.client.tolist())
    found: _Charges = {}
    for spend, noise, steps in header.course.accounted(ledger.spends):
        if spend.client in planted:
            paid = cost_of(replace(spend, noise_multiplier=noise, steps=steps))
            found.setdefault(spend.client, []).append((spend, paid))
    if not found:
        raise UnverifiedError("no client with a canary took part in any round")
    for events in found.values():
        events.sort(key=lambda event: event[0].round)
    return found


def _scores(evidence: CanaryEvidence, charges: _Charges) -> Floats:
    """Sum of the log-likelihood ratios over what is charged; what is not is not looked at."""
    at = {(spend.round, client): spend for client, events in charges.items() for spend, _ in events}
    steps: dict[tuple[int, int, int], tuple[slice, Floats, Floats]] = {}
    standardised: list[Floats] = [np.zeros(0)]
    moves = evidence.further_by_row("contributions", 1.0)
    for (number, step, canaries, projections), moved in zip(evidence.rows(), moves, strict=True):
        client = int(evidence.client[canaries.start])
        if (number, client) not in at:
            continue
        standardised.append(projections / at[number, client].noise_multiplier)
        key = (number, client, step)
        # Answers on one batch are one draw: their sum is looked at.
        none = np.zeros(len(projections))
        _, sums, squares = steps.get(key, (canaries, none, none))
        moved = np.nan_to_num(moved)
        steps[key] = (canaries, sums + moved * projections, squares + moved**2)
    shown = noise_shown(np.concatenate(standardised))
    scores = np.zeros(len(evidence.client))
    for (number, client, _), (canaries, sums, squares) in steps.items():
        spend = at[number, client]
        scores[canaries] += log_likelihood_ratio(
            sums,
            spend.noise_multiplier * shown,
            spend.sampling_rate,
            squares,
            evidence.opposed,
        )
    return scores


def observations(evidence: CanaryEvidence, ledger: Ledger, header: Header) -> Scores | str:
    """The scores of every answer, whose law the ledger states; or why there are none.

    Raises:
        UnverifiedError: the ledger does not charge what the evidence shows.
    """
    assert header.canaries is not None
    if header.canaries.kind == "label":
        return "wrong labels, a retired kind, had no direction of their own; plant the kind input"
    charged = _charges(ledger, header, evidence)
    at = {(spend.round, client): spend for client, events in charged.items() for spend, _ in events}
    if header.canaries.kind == "input":
        return _of_inputs(evidence, at)
    answers: dict[tuple[int, int, int], list[Floats]] = {}
    places: dict[tuple[int, int, int], slice] = {}
    rest = evidence.further_by_row("others")
    for (number, step, canaries, projections), others in zip(evidence.rows(), rest, strict=True):
        key = (number, step, int(evidence.client[canaries.start]))
        if (number, key[2]) not in at:
            continue
        if at[number, key[2]].sampling == "fixed-size" and "others" not in evidence.further:
            return "the evidence does not say what other records put in"
        answers.setdefault(key, []).append(np.nan_to_num(projections - others))
        places[key] = canaries
    parts = []
    for (number, step, client), together in answers.items():
        spend, canaries = at[number, client], places[number, step, client]
        if spend.noise_multiplier < LEAST_NOISE:
            return TOO_LITTLE_NOISE
        signs = np.where(evidence.included[canaries], 1.0, -1.0 if evidence.opposed else 0.0)
        rates = np.where(signs == 0.0, 0.0, spend.sampling_rate)
        parts += of_one_draw(
            np.array(together) / spend.noise_multiplier,
            rates,
            signs / spend.noise_multiplier,
            independent=spend.sampling not in _DEPENDENT,
        )
    return collected(parts)


def _of_inputs(evidence: CanaryEvidence, at: Mapping[tuple[int, int], Spend]) -> Scores | str:
    """The scores of crafted inputs: their directions are orthogonal one after the other."""
    names = ("residuals", "residual_shift", "residual_low", "residual_high", "residual_total")
    if not all(name in evidence.further for name in names):
        return "the evidence has no scores of crafted inputs"
    columns = zip(*(evidence.further_by_row(name) for name in names), strict=True)
    parts = []
    for (number, _, canaries, _), numbers in zip(evidence.rows(), columns, strict=True):
        spend = at.get((number, int(evidence.client[canaries.start])))
        if spend is None:
            continue
        if spend.noise_multiplier < LEAST_NOISE:
            return TOO_LITTLE_NOISE
        values, shifts, low, high, total = (one / spend.noise_multiplier for one in numbers)
        rates = np.where(evidence.included[canaries], spend.sampling_rate, 0.0)
        # A canary whose gradient is all but spanned by others has no score.
        there = np.isfinite(values + shifts + low + high)
        found = Scores(values, rates, shifts, low, high, np.full(len(values), False)).where(there)
        if spend.sampling not in _DEPENDENT:
            inside = evidence.included[canaries]
            moved = there & inside
            sums = Sums(float(values[moved].sum()), int(moved.sum()), total[inside], rates[inside])
            found = replace(found, sums=(sums,))
        parts.append(found)
    return collected(parts)


def _mechanism(charges: _Charges, planted: Mapping[int, int], delta: float) -> Mechanism:
    """What the ledger claims of each client's records, weighted by their canaries."""
    total = sum(planted.values())
    alike: dict[tuple[Steps, ...], float] = {}
    for client, events in charges.items():
        history = merge([paid for _, paid in events])
        alike[history] = alike.get(history, 0.0) + planted[client] / total
    ordered = sorted(alike.items(), key=lambda item: rdp_estimate(item[0], delta))
    size = -(-len(ordered) // _MOST_HISTORIES)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    together = [
        (sum(share for _, share in group), _worst([history for history, _ in group]))
        for group in groups
    ]

    def losses(factor: float) -> Shares:
        return [
            (share, privacy_profile(scaled(history, factor), delta)) for share, history in together
        ]

    return losses


def _worst(histories: Sequence[tuple[Steps, ...]]) -> tuple[Steps, ...]:
    """A history that costs at least what any of some histories costs."""
    if len(histories) == 1:
        return histories[0]
    rate = max(item.sampling_rate for history in histories for item in history)
    most: dict[tuple[float, bool], int] = {}
    for history in histories:
        own: Counter[tuple[float, bool]] = Counter()
        for item in history:
            own[item.noise_multiplier, item.fixed_size] += item.steps
        for kind, steps in own.items():
            most[kind] = max(most.get(kind, 0), steps)
    return merge([Steps(rate, noise, steps, fixed) for (noise, fixed), steps in most.items()])


def _beginning(events: _Events, most: float, delta: float, exactly: bool) -> _Events:
    """The participations of a client that spend up to ε = `most`, at least its first.

    Fixed by the ledger alone, before any score is seen.
    """
    low, high = 1, len(events)
    while low < high:
        middle = (low + high + 1) // 2
        history = [paid for _, paid in events[:middle]]
        spent = budget(history, delta).headline if exactly else rdp_estimate(history, delta)
        low, high = (middle, high) if spent <= most else (low, middle - 1)
    return events[:low]


def _third_party(ledger: Ledger, header: Header, delta: float) -> Mechanism:
    most = most_spent(ledger, header)
    kinds = most.kinds(header.rounds)

    def losses(factor: float) -> Shares:
        steps = [(scaled([item], factor)[0], rounds) for item, rounds in kinds]
        mixture = ThirdParty(steps, participation(header), delta)
        return [(1.0, mixture.losses([rounds for _, rounds in kinds]))]

    return losses
