"""The most that a run can spend, and towards whom: a client in every round, of the fewest records.

The checks "accounting" and "views" read it off the ledger's header and charges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from audit.accounting.budget import Steps, ThirdParty, epsilon_curve
from audit.accounting.sampling import cost, cost_of
from audit.errors import UnverifiedError
from audit.reading.ledger import Header, Ledger


def participation(header: Header) -> float:
    """Share of the clients that a round takes: S/N, in (0, 1]."""
    return header.clients_per_round / header.clients


@dataclass(frozen=True)
class MostSpent:
    """The most that a client in every round can spend.

    Attributes:
        per_round: the most that one participation costs one record of any client, under the first
            round's noise.
        header: rounds, steps, noise and participation.
    """

    per_round: Steps
    header: Header

    def kinds(self, rounds: int) -> list[tuple[Steps, int]]:
        """What a participation in each of the first rounds costs, and how many rounds cost it."""
        course = self.header.course
        effective = self.per_round.noise_multiplier / course.noise_multiplier
        return [
            (replace(self.per_round, noise_multiplier=noise * effective), count)
            for noise, count in course.noise_levels(rounds).items()
        ]

    def everything(self, rounds: int) -> list[Steps]:
        """Composition of the first rounds, which may share a limit on their steps.

        Where people are protected it is that of all clients that one may be at.
        """
        kinds = [replace(item, steps=item.steps * count) for item, count in self.kinds(rounds)]
        adaptation = self.header.course.adaptation
        if adaptation is not None and adaptation.step_limit is not None and len(kinds) == 1:
            kinds = [replace(kinds[0], steps=min(kinds[0].steps, adaptation.step_limit))]
        times = self.header.clients_per_person
        return [replace(item, steps=item.steps * times) for item in kinds]

    def third_party(self, delta: float, fineness: int = 0) -> Callable[[int], float]:
        """ε towards a third party as a function of the rounds done.

        Rounds may share a limit on their steps; what it allows bounds the mixture as well.
        """
        course, share = self.header.course, participation(self.header)
        if self.header.clients_per_person > 1:
            # Which of a person's clients take part, and how often, is not gone into.
            whole = self.everything(self.header.rounds)

            def of_all(rounds: int) -> float:
                done = [item.steps for item in self.everything(rounds)] if rounds else []
                done += [0] * (len(whole) - len(done))
                return epsilon_curve(whole, [done], delta, fineness)[0]

            return of_all
        mixture = ThirdParty(self.kinds(self.header.rounds), share, delta, fineness)

        def epsilon(rounds: int) -> float:
            value = mixture.epsilon(list(course.noise_levels(rounds).values()))
            # The run ends before any client's ε towards the server exceeds its limit.
            value = min(value, self.header.max_epsilon or value)
            if course.adaptation is None or course.adaptation.step_limit is None:
                return value
            whole = self.everything(self.header.rounds)
            done = [item.steps for item in self.everything(rounds)]
            return min(value, epsilon_curve(whole, [done], delta, fineness)[0])

        return epsilon


def most_spent(ledger: Ledger, header: Header) -> MostSpent:
    """What the header's limits and the charges' rates and queries make of the worst case.

    Over ALL clients: whoever does not know who took part must reckon with each. The fewer records
    a client has, the more each is used.

    Raises:
        UnverifiedError: the header lacks sampler, B or sigma, or the sampler is unknown.
    """
    if (
        header.expected_batch_size is None
        or header.sampling is None
        or header.noise_multiplier is None
    ):
        raise UnverifiedError("the ledger's header lacks sampler, B or sigma")
    smallest = min(records for records in header.records if records > 0)
    most = cost(
        header.sampling,
        header.noise_multiplier,
        max(spend.queries_per_step for spend in ledger.spends),
        min(header.expected_batch_size, float(smallest)),
        smallest,
        header.course.most_local_steps,
        header.sampling_rate,
    )
    # Charges that go beyond the header fail "promise", and count here all the same.
    paid = [most, *(cost_of(spend) for spend in ledger.spends)]
    rate = max(item.sampling_rate for item in paid)
    return MostSpent(
        Steps(
            rate,
            most.noise_multiplier,
            max(item.steps for item in paid),
            rate < 1.0 and any(item.fixed_size for item in paid),
        ),
        header,
    )
