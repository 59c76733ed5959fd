"""Samplers: the distribution they promise, and the accounting they are allowed."""

from __future__ import annotations

import math
from itertools import islice

import dp_accounting
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.randomness import ReproducibleRandomness
from dpfedadamw.privacy.sampling import (
    FixedClients,
    FixedSizeSampling,
    FullBatch,
    PoissonClients,
    PoissonSampling,
    Sampling,
    ShuffledEpochs,
    accounting_event,
)
from dpfedadamw.privacy.streams import Stream

# Streams have fixed seeds; another seed would exceed these limits with this probability.
UNLIKELY = 1e-6


def stream(name: str = "batches") -> Stream:
    return ReproducibleRandomness(11).stream(name, 0, 0)


def batches(sampling: Sampling, records: int, count: int) -> list[NDArray[np.int64]]:
    return list(islice(sampling.batches(records, stream()), count))


def inclusion_is_accepted(drawn: list[NDArray[np.int64]], records: int, rate: float) -> bool:
    """Whether inclusions, sizes and pairs fit independent coins of this rate, in both directions.

    Totals by an exact binomial test; the spread of batch sizes by a chi-square test, which is what
    tells Poisson batches from fixed-size ones of the same mean.
    """
    sizes = np.array([batch.size for batch in drawn])
    total = stats.binomtest(int(sizes.sum()), records * len(drawn), rate).pvalue
    spread = float(np.sum((sizes - rate * records) ** 2)) / (records * rate * (1 - rate))
    tail = stats.chi2.cdf(spread, len(drawn))
    counts = np.bincount(np.concatenate(drawn), minlength=records)
    least, most = (
        float(stats.binom.cdf(c, len(drawn), rate)) for c in (counts.min(), counts.max())
    )
    return bool(
        total > UNLIKELY
        and UNLIKELY < tail < 1 - UNLIKELY
        and least * records > UNLIKELY
        and (1 - most) * records > UNLIKELY
    )


def test_poisson_batches_include_each_record_with_its_rate() -> None:
    records, count = 200, 4000
    drawn = batches(PoissonSampling(16.0), records, count)
    assert inclusion_is_accepted(drawn, records, 16 / 200)
    # The check can fail in both directions …
    assert not inclusion_is_accepted(drawn, records, 1.05 * 16 / 200)
    assert not inclusion_is_accepted(drawn, records, 0.95 * 16 / 200)
    # … and tells fixed-size and truncated batches from Poisson ones.
    assert not inclusion_is_accepted(
        batches(FixedSizeSampling(16), records, count), records, 16 / 200
    )
    truncated = [batch[:20] for batch in drawn]
    assert not inclusion_is_accepted(truncated, records, 16 / 200)
    no_empty = batches(PoissonSampling(1.0), 50, count)
    assert not inclusion_is_accepted([b for b in no_empty if b.size], 50, 1 / 50)


def test_poisson_batches_may_be_empty_and_have_no_repeats() -> None:
    drawn = batches(PoissonSampling(1.0), 50, 2000)
    empty = sum(batch.size == 0 for batch in drawn)
    assert stats.binomtest(empty, 2000, 0.98**50).pvalue > UNLIKELY
    assert all(np.all(np.diff(batch) > 0) for batch in drawn)


def test_poisson_records_come_in_independently_of_one_another() -> None:
    drawn = batches(PoissonSampling(5.0), 10, 5000)
    both = sum(0 in batch and 1 in batch for batch in drawn)
    assert stats.binomtest(both, 5000, 0.25).pvalue > UNLIKELY


def test_a_rate_of_one_takes_every_record() -> None:
    assert PoissonSampling(7).rate(7) == 1.0
    assert batches(PoissonSampling(7), 7, 3)[2].size == 7
    assert np.array_equal(batches(FullBatch(), 5, 1)[0], np.arange(5))
    assert FullBatch().rate(5) == 1.0


def test_the_divisor_of_a_private_sampler_does_not_depend_on_the_records() -> None:
    assert PoissonSampling(16.0).normaliser(20) == PoissonSampling(16.0).normaliser(2000) == 16.0
    assert FixedSizeSampling(8).normaliser(20) == 8.0


def test_fixed_size_batches_have_distinct_members() -> None:
    drawn = batches(FixedSizeSampling(4), 10, 5000)
    assert all(np.unique(batch).size == 4 for batch in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert np.all(np.abs(counts - 2000) < 5 * math.sqrt(5000 * 0.4 * 0.6))


def test_shuffled_epochs_use_every_record_once() -> None:
    sampling = ShuffledEpochs(4)
    assert sampling.steps_per_epoch(10) == 3
    drawn = batches(sampling, 10, 6)
    for epoch in (drawn[:3], drawn[3:]):
        assert [batch.size for batch in epoch] == [4, 4, 2]
        assert sorted(np.concatenate(epoch)) == list(range(10))
    assert not np.array_equal(np.concatenate(drawn[:3]), np.concatenate(drawn[3:]))


def test_clients_of_a_round() -> None:
    source = stream("clients")
    drawn = [FixedClients(3).draw(10, source) for _ in range(3000)]
    assert FixedClients(3).rate(10) == 0.3
    assert all(np.unique(cohort).size == 3 for cohort in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=10)
    assert np.all(np.abs(counts - 900) < 5 * math.sqrt(3000 * 0.3 * 0.7))
    sizes = [PoissonClients(3).draw(10, source).size for _ in range(3000)]
    assert stats.binomtest(sum(sizes), 30_000, 0.3).pvalue > UNLIKELY
    assert min(sizes) == 0


def test_impossible_sizes_are_refused() -> None:
    for call in (
        lambda: PoissonSampling(0.0),
        lambda: PoissonSampling(math.nan),
        lambda: PoissonSampling(11.0).rate(10),
        lambda: FixedSizeSampling(0),
        lambda: FixedSizeSampling(11).draw(10, stream()),
        lambda: ShuffledEpochs(-1),
        lambda: FixedClients(11).draw(10, stream()),
        lambda: PoissonClients(0).rate(10),
    ):
        with pytest.raises(PrivacyError):
            call()


def test_poisson_steps_become_poisson_events() -> None:
    event = accounting_event(PoissonSampling(16), "record", "add-remove", 1.5, 2, 40, 1000)
    # Two queries on one batch: jointly one Gaussian of multiplier σ/√2, subsampled once.
    gaussian = dp_accounting.GaussianDpEvent(1.5 / math.sqrt(2))
    expected = dp_accounting.PoissonSampledDpEvent(0.016, gaussian)
    assert event == dp_accounting.SelfComposedDpEvent(expected, 40)


def test_fixed_size_steps_are_events_of_twice_the_sensitivity() -> None:
    event = accounting_event(FixedSizeSampling(16), "record", "replace-one", 1.0, 1, 40, 1000)
    expected = dp_accounting.SampledWithoutReplacementDpEvent(
        1000, 16, dp_accounting.GaussianDpEvent(0.5)
    )
    assert event == dp_accounting.SelfComposedDpEvent(expected, 40)


def test_shuffled_epochs_are_charged_once_an_epoch_without_amplification() -> None:
    for steps, epochs in ((1, 1), (3, 1), (4, 2), (9, 3)):
        event = accounting_event(ShuffledEpochs(4), "record", "replace-one", 1.0, 1, steps, 10)
        assert event == dp_accounting.SelfComposedDpEvent(
            dp_accounting.GaussianDpEvent(0.5), epochs
        )


def test_full_batches_are_plain_gaussians() -> None:
    for adjacency, multiplier in (("add-remove", 3.0), ("replace-one", 1.5)):
        event = accounting_event(FullBatch(), "client", adjacency, 3.0, 1, 5, 100)
        assert event == dp_accounting.SelfComposedDpEvent(
            dp_accounting.GaussianDpEvent(multiplier), 5
        )


@pytest.mark.parametrize(
    ("sampling", "unit", "adjacency", "reason"),
    [
        (PoissonSampling(4), "record", "replace-one", "under add-remove adjacency only"),
        (FixedSizeSampling(4), "record", "add-remove", "under replace-one adjacency only"),
        (ShuffledEpochs(4), "record", "add-remove", "without amplification"),
        (PoissonSampling(4), "none", "add-remove", "no accounting"),
        (PoissonSampling(4), "record", "zero-out", "not 'zero-out'"),
    ],
)
def test_what_no_accountant_covers_is_refused_with_the_reason(
    sampling: Sampling, unit: str, adjacency: str, reason: str
) -> None:
    with pytest.raises(PrivacyError, match=reason):
        accounting_event(sampling, unit, adjacency, 1.0, 1, 10, 100)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan])
def test_an_event_without_noise_is_refused(multiplier: float) -> None:
    with pytest.raises(PrivacyError, match="noise multiplier"):
        accounting_event(PoissonSampling(4), "record", "add-remove", multiplier, 1, 10, 100)
