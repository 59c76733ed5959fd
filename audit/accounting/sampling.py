"""What the auditor knows of samplers, and the most that a run can spend with them.

Adjacency of samplers, what they cost and what they must draw is shared by the checks "promise",
"accounting", "views" and "sensitivity", so that all mean the same by a sampler's name. The most is
that of a client of the fewest records in every round, by the ledger's header and charges. Nothing
here is the engine's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from audit.accounting.budget import Steps, ThirdParty, effective_noise_multiplier, epsilon_curve
from audit.errors import UnverifiedError
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import Spend
from audit.untrusted.archives import Integers

# The neighbouring data sets under which each sampler of single records can be accounted.
ADJACENCY = {"poisson": "add-remove", "fixed-size": "replace-one", "shuffled": "replace-one"}
# The ledger's words for those of the spec.
RECORD_SAMPLERS = {"poisson": "poisson", "fixed": "fixed-size", "shuffled": "shuffled"}
CLIENT_SAMPLERS = {"poisson": "poisson", "fixed": "fixed-size"}


def rate(sampling: str, batch: float, records: int, stated: float | None = None) -> float:
    """The rate that a charge must name: what may be gained from chance, nothing for epochs.

    Args:
        sampling: the ledger's word.
        batch: B.
        records: R of the client.
        stated: q of Poisson draws that spec and header state; None where it is B/R.
    """
    if sampling == "poisson" and stated is not None:
        return stated
    return 1.0 if sampling == "shuffled" else batch / records


def most_uses(batch: float, records: int, steps: int) -> int:
    """In how many of the first steps of an epoch order one record can be, ⌈K/⌈R/B⌉⌉."""
    per_epoch = int(np.ceil(records / batch))
    return -(-steps // per_epoch)


def epoch_sizes(batch: int, records: int, steps: int) -> Integers:
    """Sizes of the batches of `steps` steps that begin with a new epoch."""
    starts = np.arange(steps, dtype=np.int64) % -(-records // batch) * batch
    return np.minimum(batch, records - starts)


def cost(
    sampling: str,
    noise_multiplier: float,
    queries_per_step: int,
    batch: float,
    records: int,
    steps: int,
    stated: float | None = None,
) -> Steps:
    """What one participation costs one record.

    Under replace-one the record that goes and the one that comes move the sum by up to 2C, so the
    noise counts half.

    Args:
        sampling: the ledger's word.
        noise_multiplier: σ over C.
        queries_per_step: noised answers on each batch.
        batch: B.
        records: R of the client.
        steps: local steps.
        stated: q of Poisson draws that spec and header state; None where it is B/R.

    Raises:
        UnverifiedError: the sampler is unknown, so nothing says what it costs.
    """
    sigma = effective_noise_multiplier(noise_multiplier, queries_per_step)
    if sampling == "poisson":
        return Steps(min(1.0, rate(sampling, batch, records, stated)), sigma, steps)
    if sampling == "fixed-size":
        share = min(1.0, batch / records)
        return Steps(share, sigma / 2.0, steps, fixed_size=share < 1.0)
    if sampling == "shuffled":
        return Steps(1.0, sigma / 2.0, most_uses(batch, records, steps))
    raise UnverifiedError(f"no accounting is known for the sampler {sampling[:40]!r}")


def cost_of(spend: Spend) -> Steps:
    """What one charge costs one of the client's records.

    Raises:
        UnverifiedError: the sampler is unknown.
    """
    paid = cost(
        spend.sampling,
        spend.noise_multiplier,
        spend.queries_per_step,
        spend.expected_batch_size,
        spend.records,
        spend.steps,
        spend.stated_rate,
    )
    # Where a charge names a larger rate than its batch size gives, the larger one counts.
    if spend.sampling == "shuffled" or paid.sampling_rate >= spend.sampling_rate:
        return paid
    fixed_size = paid.fixed_size and spend.sampling_rate < 1.0
    return Steps(spend.sampling_rate, paid.noise_multiplier, paid.steps, fixed_size)


def largest_share(header: Header) -> float:
    """The largest share of a client's records that a batch holds, in (0, 1].

    Raises:
        UnverifiedError: the header lacks B.
    """
    if header.expected_batch_size is None:
        raise UnverifiedError("the ledger's header lacks B")
    if header.sampling_rate is not None:
        return header.sampling_rate
    smallest = min(records for records in header.records if records > 0)
    return min(1.0, header.expected_batch_size / smallest)


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
        queries: what every record was in in addition to the rounds.
        released: the ledger's finished rounds by index, rising. One that was run again, because its
            state was lost, is there again: third parties saw what came of it each time.
    """

    per_round: Steps
    header: Header
    queries: tuple[Steps, ...] = ()
    released: tuple[int, ...] = ()

    def seen(self, rounds: int) -> int:
        """How many results third parties can have seen of the first rounds.

        Where fewer were finished, as many as there can be count.
        """
        return max(rounds, bisect_left(self.released, rounds))

    def kinds(self, rounds: int) -> list[tuple[Steps, int]]:
        """What a participation in each of the first rounds costs, and how many rounds cost it."""
        bound = self.header.spending_bound
        effective = self.per_round.noise_multiplier / bound.noise_multiplier
        return [
            (replace(self.per_round, noise_multiplier=noise * effective), count)
            for noise, count in bound.noise_levels(rounds).items()
        ]

    def everything(self, rounds: int) -> list[Steps]:
        """Composition of the first rounds, which may share a limit on their steps.

        Where people are protected it is that of all clients that one may be at.
        """
        kinds = [replace(item, steps=item.steps * count) for item, count in self.kinds(rounds)]
        adaptation = self.header.spending_bound.adaptation
        if adaptation is not None and adaptation.step_limit is not None and len(kinds) == 1:
            kinds = [replace(kinds[0], steps=min(kinds[0].steps, adaptation.step_limit))]
        times = self.header.clients_per_person
        return [replace(item, steps=item.steps * times) for item in (*kinds, *self.queries)]

    def third_party(self, delta: float, fineness: int = 0) -> Callable[[int], float]:
        """ε against a third party as a function of the rounds done.

        Rounds may share a limit on their steps; what it allows bounds the mixture as well.
        """
        bound, share = self.header.spending_bound, participation(self.header)
        most = self.seen(self.header.rounds)
        if self.header.clients_per_person > 1:
            # Which of a person's clients take part, and how often, is not gone into.
            whole = self.everything(most)

            def of_all(rounds: int) -> float:
                done = [item.steps for item in self.everything(self.seen(rounds))] if rounds else []
                done += [0] * (len(whole) - len(done))
                value = epsilon_curve(whole, [done], delta, fineness)[0]
                return min(value, self.header.max_epsilon or value)

            return of_all
        kinds = self.kinds(most)
        mixture = ThirdParty(kinds, share, delta, fineness, self.queries)

        def epsilon(rounds: int) -> float:
            value = mixture.epsilon(list(bound.noise_levels(self.seen(rounds)).values()))
            # The run ends before any client's ε against the server exceeds its limit.
            value = min(value, self.header.max_epsilon or value)
            if bound.adaptation is None or bound.adaptation.step_limit is None:
                return value
            whole = self.everything(most)
            done = [item.steps for item in self.everything(self.seen(rounds))]
            return min(value, epsilon_curve(whole, [done], delta, fineness)[0])

        return epsilon


def queried(ledger: Ledger) -> tuple[Steps, ...]:
    """What the histograms of columns cost a record, of the client that they cost most.

    Each histogram is one Gaussian query of all records: no draw amplifies it.
    """
    found: dict[float, dict[int, int]] = {}
    for query in ledger.queries:
        sigma = query.noise_multiplier / max(1.0, query.sensitivity)
        by = found.setdefault(sigma, {})
        by[query.client] = by.get(query.client, 0) + len(query.columns)
    return tuple(Steps(1.0, sigma, max(by.values())) for sigma, by in sorted(found.items()))


def most_spent(ledger: Ledger, header: Header) -> MostSpent:
    """What the header's limits and the charges' rates and queries make of the worst case.

    Over ALL clients: a reader who does not know who took part must allow for each. The fewer
    records a client has, the more each is used.

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
        header.spending_bound.most_local_steps,
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
        queried(ledger),
        tuple(sorted(item.round for item in ledger.rounds)),
    )
