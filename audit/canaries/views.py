"""What each party sees in an audit run, what the ledger claims against it, what it would guess.

**Views.** Where records are protected there are three. Against the server, who sees every noised
gradient: all of the run, and its beginning, where the claim is small and a fault therefore shows
with fewer canaries. Against a third party, who sees the final model. Where whole clients are
protected, all that leaves a round is its noised mean, so that the claim against a third party is
the one that is judged: of all releases, of the first of them, and of the final model.

**Scores**: how much a release speaks for a canary's having been there.

White-box: the adversary of the claim sees every noised sum and knows all other records, so it takes
away what those put in and looks along the canary's own direction. What is left in units of C is
N(0, σ²) with a shift of 1 in each step that drew the canary. Adding the logarithms of the
likelihood ratio over the steps is the best that anybody can do with it (Neyman & Pearson 1933).

A person who is at several clients is there in each or in none, so that their scores add up over all
clients, and the claim is that of these clients' histories together.

Black-box: the canary's loss under the final model against that under the initial one; a record that
was trained on has a smaller loss.

The noise is that of the ledger, or what the releases themselves show where they show less
(`noise_shown`): the adversary looks before it weighs, or else a single draw of a canary would count
little under noise that is not there.

A score is only ever used to order the canaries: a bad one costs power, and never makes a bound
wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from audit.errors import UnverifiedError
from audit.reading.canary_evidence import CanaryEvidence
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import RoundSpend, Spend
from audit.untrusted.archives import Floats

# Of the normal law: median of |x| over the standard deviation.
_MEDIAN_MAGNITUDE = 0.6744897501960817
_LEAST_SHARE = 0.02


def noise_shown(standardised: NDArray[np.float64]) -> float:
    """The noise that releases show over the ledger's, in [0.02, 1].

    The median magnitude, because most releases are only noise: half of the canaries are out, and
    the others are in few batches.

    Args:
        standardised: projections over the noise multiplier that the ledger names.
    """
    if not standardised.size:
        return 1.0
    shown = float(np.median(np.abs(standardised))) / _MEDIAN_MAGNITUDE
    return min(1.0, max(_LEAST_SHARE, shown))


def log_likelihood_ratio(
    projections: NDArray[np.float64],
    noise_multiplier: float,
    sampling_rate: float,
    queries: float | NDArray[np.float64] = 1,
    opposed: bool = False,
) -> NDArray[np.float64]:
    """Log-likelihood ratio of "in" against "out" for one step.

    Args:
        projections: sum over the step's queries of the released sum along each canary's direction,
            without what other records put in, in units of C, times what the canary would move it
            by; any shape.
        noise_multiplier: σ of one query.
        sampling_rate: q, a canary's chance to be in the step's batch.
        queries: noised answers on the step's one batch; or, where a canary moves some of them by
            other than 1, the sum of the squares of what it moves them by, of the same shape.
        opposed: whether a canary that is out points the other way, as under replace-one adjacency,
            instead of being absent.
    """
    inside = _mixture(projections, noise_multiplier, sampling_rate, queries)
    if not opposed:
        return inside
    return inside - _mixture(-projections, noise_multiplier, sampling_rate, queries)


def _mixture(
    projections: NDArray[np.float64],
    noise_multiplier: float,
    rate: float,
    queries: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    present: NDArray[np.float64] = (projections - queries / 2.0) / noise_multiplier**2
    if rate >= 1.0:
        return present
    mixed: NDArray[np.float64] = np.logaddexp(np.log1p(-rate), np.log(rate) + present)
    return mixed


def loss_reduction(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much smaller each canary's loss became, [m]; what is not finite counts as 0."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(before - after, nan=0.0, posinf=0.0, neginf=0.0)


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
        mechanism: what the ledger claims against them.
        scores: how much what they see speaks for each canary.
    """

    name: str
    words: str
    mechanism: Mechanism
    scores: Floats


def views(evidence: CanaryEvidence, ledger: Ledger, header: Header, delta: float) -> list[View]:
    """The views of an audit run at record level, or of one that protects people.

    Raises:
        UnverifiedError: the ledger does not charge what the evidence shows.
    """
    charged = _charges(ledger, header, evidence)
    planted = Counter(evidence.clients_of_each())
    at = max(map(len, planted))
    whole = _mechanism(charged, planted, delta)
    found = [View("uploads", "every noised gradient", whole, _scores(evidence, charged))]
    most, exactly = beginning(evidence.planted) / at, len(charged) <= _MOST_EXACT
    part = {client: _beginning(events, most, delta, exactly) for client, events in charged.items()}
    if part != charged:
        some = max(map(len, part.values()))
        words = f"the noised gradients of each client's first {some} participations at most"
        if some == 1:
            words = "the noised gradients of each client's first participation"
        begun = _mechanism(part, planted, delta)
        found.append(View("beginning", words, begun, _scores(evidence, part)))
    reduction = evidence.together(loss_reduction(evidence.loss_before, evidence.loss_after))
    # Of people at several clients the server's claim is the bound against everybody.
    third = _third_party(ledger, header, delta) if at == 1 else whole
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
    for spend, noise, steps in header.spending_bound.accounted(ledger.spends):
        if spend.client in planted:
            paid = cost_of(replace(spend, noise_multiplier=noise, steps=steps))
            found.setdefault(spend.client, []).append((spend, paid))
    if not found:
        raise UnverifiedError("no client with a canary took part in any round")
    for events in found.values():
        events.sort(key=lambda event: event[0].round)
    return found


def _scores(evidence: CanaryEvidence, charges: _Charges) -> Floats:
    """Each canary's log-likelihood ratios, summed over what is charged and over its parts."""
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
    return evidence.together(scores)


def observations(evidence: CanaryEvidence, ledger: Ledger, header: Header) -> Scores | str:
    """The scores of every answer, whose law the ledger states; or why there are none.

    Raises:
        UnverifiedError: the ledger does not charge what the evidence shows.
    """
    assert header.canaries is not None
    if header.canaries.kind == "label":
        return (
            "wrong labels, a retired kind, had no direction of their own; plant canaries of the "
            "kind input"
        )
    charged = _charges(ledger, header, evidence)
    at = {(spend.round, client): spend for client, events in charged.items() for spend, _ in events}
    if header.canaries.kind in ("input", "secret"):
        return _of_inputs(evidence, at)
    answers: dict[tuple[int, int, int], list[Floats]] = {}
    places: dict[tuple[int, int, int], slice] = {}
    rest = evidence.further_by_row("others")
    for (number, step, canaries, projections), others in zip(evidence.rows(), rest, strict=True):
        key = (number, step, int(evidence.client[canaries.start]))
        if (number, key[2]) not in at:
            continue
        if at[number, key[2]].sampling == "fixed-size" and "others" not in evidence.further:
            return "the evidence does not say what other records contributed"
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


def _mechanism(
    charges: _Charges, planted: Mapping[tuple[int, ...], int], delta: float
) -> Mechanism:
    """What the ledger claims of who is at these clients, weighted by their canaries."""
    total = sum(planted.values())
    alike: dict[tuple[Steps, ...], float] = {}
    for clients, canaries in planted.items():
        history = merge([paid for client in clients for _, paid in charges.get(client, [])])
        if history:
            alike[history] = alike.get(history, 0.0) + canaries / total
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
    kinds = most.kinds(most.seen(header.rounds))

    def losses(factor: float) -> Shares:
        steps = [(scaled([item], factor)[0], rounds) for item, rounds in kinds]
        mixture = ThirdParty(steps, participation(header), delta)
        return [(1.0, mixture.losses([rounds for _, rounds in kinds]))]

    return losses


def client_views(
    evidence: CanaryEvidence, ledger: Ledger, header: Header, delta: float
) -> list[View]:
    """The views of an audit run at client level.

    Raises:
        UnverifiedError: the ledger charges no round.
    """
    del header
    charged = sorted(ledger.round_spends, key=lambda spend: spend.round)
    if not charged:
        raise UnverifiedError("no round was charged")
    whole = _mechanism_of_rounds(charged, delta)
    found = [View("uploads", "every noised mean", whole, _scores_of_rounds(evidence, charged))]
    first = _beginning_of_rounds(charged, beginning(len(evidence.client)), delta)
    if first < len(charged):
        part = charged[:first]
        words = f"the noised means of the first {first} rounds"
        if first == 1:
            words = "the noised mean of the first round"
        found.append(
            View(
                "beginning",
                words,
                _mechanism_of_rounds(part, delta),
                _scores_of_rounds(evidence, part),
            )
        )
    reduction = loss_reduction(evidence.loss_before, evidence.loss_after)
    return [*found, View("final-model", "the final model", whole, reduction)]


def client_observations(evidence: CanaryEvidence, ledger: Ledger, header: Header) -> Scores | str:
    """The scores of every release, whose law the ledger states; or why there are none."""
    del header
    at = {spend.round: spend for spend in ledger.round_spends}
    parts = []
    for number, _, canaries, projections in evidence.rows():
        if number not in at:
            continue
        noise = at[number].noise_multiplier
        if noise < LEAST_NOISE:
            return TOO_LITTLE_NOISE
        included = evidence.included[canaries].astype(np.float64)
        parts += of_one_draw(
            projections[None] / noise, included * at[number].sampling_rate, included / noise
        )
    return collected(parts)


def _history_of_rounds(charged: Sequence[RoundSpend]) -> tuple[Steps, ...]:
    return merge([Steps(one.sampling_rate, one.noise_multiplier, 1) for one in charged])


def _mechanism_of_rounds(charged: Sequence[RoundSpend], delta: float) -> Mechanism:
    history = _history_of_rounds(charged)

    def losses(factor: float) -> Shares:
        return [(1.0, privacy_profile(scaled(history, factor), delta))]

    return losses


def _beginning_of_rounds(charged: Sequence[RoundSpend], most: float, delta: float) -> int:
    """How many rounds spend up to ε = `most`, at least one; fixed by the ledger alone."""
    low, high = 1, len(charged)
    while low < high:
        middle = (low + high + 1) // 2
        spent = budget(_history_of_rounds(charged[:middle]), delta).headline
        low, high = (middle, high) if spent <= most else (low, middle - 1)
    return low


def _scores_of_rounds(evidence: CanaryEvidence, charged: Sequence[RoundSpend]) -> Floats:
    """Sum of the log-likelihood ratios over the charged rounds."""
    at = {spend.round: spend for spend in charged}
    rows = [
        (at[number], canaries, projections)
        for number, _, canaries, projections in evidence.rows()
        if number in at
    ]
    standardised = [projections / spend.noise_multiplier for spend, _, projections in rows]
    shown = noise_shown(np.concatenate([np.zeros(0), *standardised]))
    scores = np.zeros(len(evidence.client))
    for spend, canaries, projections in rows:
        noise = spend.noise_multiplier * shown
        scores[canaries] += log_likelihood_ratio(projections, noise, spend.sampling_rate)
    return scores
