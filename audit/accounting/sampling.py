"""What the auditor knows of samplers: their adjacency, what they cost, and what they must draw.

Shared by the checks "promise", "accounting", "views" and "sensitivity", so that all mean the same
by a sampler's name. Nothing here is the engine's.
"""

from __future__ import annotations

import numpy as np

from audit.accounting.budget import Steps, effective_noise_multiplier
from audit.errors import UnverifiedError
from audit.reading.ledger import Header
from audit.reading.spends import Spend
from audit.untrusted.arrays import Integers

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
    raise UnverifiedError(f"the sampler {sampling[:40]!r} has no accounting here")


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
