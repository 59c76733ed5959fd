"""Who sees what of an audit run that protects whole clients.

All that leaves a round is its noised mean, so that the claim towards a third party is the one that
is judged: of all releases, of the first of them, and of the final model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from audit.accounting.budget import Steps, budget, merge, privacy_profile
from audit.canaries.bounds import Mechanism, Shares, scaled
from audit.canaries.e_values import (
    LEAST_NOISE,
    TOO_LITTLE_NOISE,
    Scores,
    collected,
    of_one_draw,
)
from audit.canaries.scores import log_likelihood_ratio, loss_reduction, noise_shown
from audit.canaries.views import View, beginning
from audit.errors import UnverifiedError
from audit.reading.canary_evidence import CanaryEvidence
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import RoundSpend
from audit.untrusted.archives import Floats


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
    whole = _mechanism(charged, delta)
    found = [View("uploads", "every noised mean", whole, _scores(evidence, charged))]
    first = _beginning(charged, beginning(len(evidence.client)), delta)
    if first < len(charged):
        part = charged[:first]
        words = f"the noised means of the first {first} rounds"
        if first == 1:
            words = "the noised mean of the first round"
        found.append(View("beginning", words, _mechanism(part, delta), _scores(evidence, part)))
    reduction = loss_reduction(evidence.loss_before, evidence.loss_after)
    return [*found, View("final-model", "the final model", whole, reduction)]


def observations(evidence: CanaryEvidence, ledger: Ledger, header: Header) -> Scores | str:
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


def _history(charged: Sequence[RoundSpend]) -> tuple[Steps, ...]:
    return merge([Steps(one.sampling_rate, one.noise_multiplier, 1) for one in charged])


def _mechanism(charged: Sequence[RoundSpend], delta: float) -> Mechanism:
    history = _history(charged)

    def losses(factor: float) -> Shares:
        return [(1.0, privacy_profile(scaled(history, factor), delta))]

    return losses


def _beginning(charged: Sequence[RoundSpend], most: float, delta: float) -> int:
    """How many rounds spend up to ε = `most`, at least one; fixed by the ledger alone."""
    low, high = 1, len(charged)
    while low < high:
        middle = (low + high + 1) // 2
        spent = budget(_history(charged[:middle]), delta).headline
        low, high = (middle, high) if spent <= most else (low, middle - 1)
    return low


def _scores(evidence: CanaryEvidence, charged: Sequence[RoundSpend]) -> Floats:
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
