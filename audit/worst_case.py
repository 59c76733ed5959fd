"""The most that a run can spend, and towards whom: a client in every round, at the largest rate.

The checks "accounting" and "views" read it off the ledger's header and charges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from audit.accounting import (
    Steps,
    ThirdParty,
    effective_noise_multiplier,
    epsilon_curve,
)
from audit.ledger import Header, Ledger


def participation(header: Header) -> float:
    """Share of the clients that a round takes: S/N, in (0, 1]."""
    return header.clients_per_round / header.clients


@dataclass(frozen=True)
class MostSpent:
    """The most that a client in every round can spend, at the largest sampling rate of any.

    The rate is over ALL clients: whoever does not know who took part must reckon with each.

    Attributes:
        rate: that rate.
        queries: answers on each batch.
        header: rounds, steps, noise and participation.
    """

    rate: float
    queries: int
    header: Header

    def sigma(self, noise_multiplier: float) -> float:
        """Effective noise multiplier of a step."""
        return effective_noise_multiplier(noise_multiplier, self.queries)

    def everything(self, rounds: int) -> list[Steps]:
        """Composition of the first rounds."""
        course = self.header.course
        levels = course.noise_levels(rounds)
        if len(levels) == 1:
            noise = next(iter(levels))
            return [Steps(self.rate, self.sigma(noise), course.most_steps(rounds))]
        return [
            Steps(self.rate, self.sigma(noise), count * course.most_local_steps)
            for noise, count in levels.items()
        ]

    def third_party(self, delta: float) -> Callable[[int], float]:
        """ε towards a third party as a function of the rounds done.

        Rounds may share a limit on their steps; what it allows bounds the mixture as well.
        """
        course = self.header.course
        mixture = ThirdParty(
            [
                (Steps(self.rate, self.sigma(noise), course.most_local_steps), count)
                for noise, count in course.noise_levels(self.header.rounds).items()
            ],
            participation(self.header),
            delta,
        )

        def epsilon(rounds: int) -> float:
            value = mixture.epsilon(list(course.noise_levels(rounds).values()))
            if course.adaptation is None or course.adaptation.step_limit is None:
                return value
            whole = self.everything(self.header.rounds)
            return min(value, epsilon_curve(whole, [[course.most_steps(rounds)]], delta)[0])

        return epsilon


def most_spent(ledger: Ledger, header: Header) -> MostSpent:
    """What the header's limits and the charges' rates and queries make of the worst case."""
    rates = [spend.sampling_rate for spend in ledger.spends]
    if header.expected_batch_size is not None:
        smallest = min(records for records in header.records if records > 0)
        rates.append(min(1.0, header.expected_batch_size / smallest))
    return MostSpent(max(rates), max(spend.queries_per_step for spend in ledger.spends), header)
