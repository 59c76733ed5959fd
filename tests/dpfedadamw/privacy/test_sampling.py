"""Samplers: the distribution they promise, and the accounting they are allowed."""

from __future__ import annotations

import itertools
import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.privacy.sampling import (
    FixedClients,
    FixedSizeSampling,
    FullBatch,
    People,
    PoissonClients,
    PoissonSampling,
    Sampling,
    ShuffledEpochs,
    check_pairing,
    composition_of,
    from_ledger,
)

# Streams have fixed seeds; another seed would exceed these limits with this probability.
UNLIKELY = 1e-6
ADJACENCIES = ("add-remove", "replace-one")


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


def test_every_step_of_independent_draws_counts() -> None:
    poisson = composition_of(PoissonSampling(16), "add-remove", 1000, 1.5, 4, 10, 2)
    assert poisson == Composition(1.5, 0.016, 40, 2, "poisson")
    fixed = composition_of(FixedSizeSampling(16), "replace-one", 1000, 1.5, 4, 10, 2)
    assert fixed == Composition(1.5, 0.016, 40, 2, "fixed-size")
    # Noise over how far one neighbour moves the sum: two queries, and a replaced record twice.
    assert poisson.noise_over_sensitivity == 1.5 / math.sqrt(2)
    assert fixed.noise_over_sensitivity == 1.5 / math.sqrt(2) / 2


@given(records=st.integers(1, 60), batch=st.integers(1, 60), steps=st.integers(1, 40))
def test_shuffled_epochs_never_use_a_record_more_often_than_is_counted(
    records: int, batch: int, steps: int
) -> None:
    sampling = ShuffledEpochs(min(batch, records))
    counted = composition_of(sampling, "replace-one", records, 1.0, steps).steps
    used = np.zeros(records, int)
    for indices in itertools.islice(sampling.batches(records, stream()), steps):
        used[indices] += 1
    # Not too little, and for the record that is met most often not too much.
    assert used.max() == counted
    rounds = composition_of(sampling, "replace-one", records, 1.0, steps, rounds=3)
    # Every participation begins a new epoch, so cut epochs do not fill each other up.
    assert rounds.steps == 3 * counted


# Of letters that a relation's name has: all letters that there are take seconds to list.
OTHER_WORDS = st.text("acdelmnoprv-' A\n\u00e9", max_size=12)
SAMPLERS = (PoissonSampling(4), FixedSizeSampling(4), ShuffledEpochs(4), FullBatch())


@given(sampling=st.sampled_from(SAMPLERS), adjacency=OTHER_WORDS | st.sampled_from(ADJACENCIES))
def test_what_no_accountant_covers_is_refused_with_the_reason_and_the_way_out(
    sampling: Sampling, adjacency: str
) -> None:
    if adjacency in sampling.adjacency:
        assert composition_of(sampling, adjacency, 100, 1.0, 10).adjacency == adjacency
        return
    with pytest.raises(PrivacyError) as refused:
        composition_of(sampling, adjacency, 100, 1.0, 10)
    reason = str(refused.value)
    assert "\n" not in reason
    if adjacency in ADJACENCIES:
        assert f"set adjacency: {sampling.adjacency[0]}" in reason
    else:
        assert "'add-remove' or 'replace-one'" in reason


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan])
def test_a_composition_without_noise_is_refused(multiplier: float) -> None:
    with pytest.raises(PrivacyError, match="noise multiplier"):
        composition_of(PoissonSampling(4), "add-remove", 100, multiplier, 10)


def test_a_sampler_is_known_by_its_ledgers_words() -> None:
    for sampling in SAMPLERS[:3]:
        assert from_ledger(sampling.event_kind, 4.0) == sampling
    with pytest.raises(PrivacyError, match="'full'"):
        from_ledger("full", 4.0)


@pytest.mark.parametrize(
    ("sampler", "rate"),
    [
        (PoissonSampling(20.0, stated_rate=0.25), 0.25),
        (PoissonSampling(20.0, reference_size=80.0), 0.25),
        (PoissonSampling(20.0), None),
    ],
)
def test_a_stated_rate_is_that_of_every_client_and_its_neighbour(
    sampler: PoissonSampling, rate: float | None
) -> None:
    assert sampler.constant_rate == rate
    for records in (40, 41, 4000):
        assert sampler.rate(records) == (rate or 20.0 / records)
        assert sampler.normaliser(records) == 20.0
    # Fewer records than B are drawn from as well, at the same rate.
    if rate is not None:
        draws = [len(sampler.draw(8, bits)) for bits in [stream()] for _ in range(4000)]
        low, high = stats.binom.interval(1.0 - UNLIKELY, 4000 * 8, rate)
        assert low <= sum(draws) <= high


class Words(Stream):
    """A stream that says what it is asked for."""

    def __init__(self) -> None:
        super().__init__(bytes(32))
        self.asked: list[tuple[str, float, int]] = []

    def bernoulli(self, rate: float, n: int) -> NDArray[np.bool_]:
        self.asked.append(("bernoulli", rate, n))
        return np.arange(n) % 3 == 1

    def choice(self, n: int, size: int) -> NDArray[np.int64]:
        self.asked.append(("choice", size, n))
        return np.arange(n)[::-1][:size].copy()

    def permutation(self, n: int) -> NDArray[np.int64]:
        self.asked.append(("permutation", 0, n))
        return np.arange(n)[::-1].copy()


def test_a_batch_is_what_its_stream_says_and_nothing_of_it_is_dropped() -> None:
    one = Words()
    assert PoissonSampling(2.0).draw(8, one).tolist() == [1, 4, 7]
    assert PoissonSampling(2.0, stated_rate=0.75).draw(1, one).tolist() == []
    assert FixedSizeSampling(2).draw(5, one).tolist() == [4, 3]
    assert ShuffledEpochs(2).draw(5, one).tolist() == [4, 3]
    assert FullBatch().draw(3, one).tolist() == [0, 1, 2]
    assert one.asked == [
        ("bernoulli", 0.25, 8),
        ("bernoulli", 0.75, 1),
        ("choice", 2, 5),
        ("permutation", 0, 5),
    ]
    for sampling in SAMPLERS:
        assert sampling.draw(6, Words()).dtype == np.int64


def test_epochs_are_cut_from_their_order_one_after_another() -> None:
    one = Words()
    drawn = list(islice(ShuffledEpochs(2).batches(5, one), 4))
    assert [batch.tolist() for batch in drawn] == [[4, 3], [2, 1], [0], [4, 3]]
    assert one.asked == [("permutation", 0, 5)] * 2
    other = Words()
    drawn = list(islice(FixedSizeSampling(1).batches(2, other), 3))
    assert [batch.tolist() for batch in drawn] == [[1]] * 3
    assert other.asked == [("choice", 1, 2)] * 3


@pytest.mark.parametrize(
    ("sampling", "rate", "divisor", "steps"),
    [
        (PoissonSampling(4.0), 0.4, 4.0, 7),
        (PoissonSampling(10.0), 1.0, 10.0, 7),
        (PoissonSampling(4.0, 0.9, 5.0), 0.9, 4.0, 7),
        (PoissonSampling(4.0, None, 5.0), 0.8, 4.0, 7),
        (FixedSizeSampling(4), 0.4, 4.0, 7),
        (FixedSizeSampling(10), 1.0, 10.0, 7),
        (FullBatch(), 1.0, 10.0, 7),
        # Of 10 records by 4 an epoch has 3 steps, and 7 steps touch 3 epochs.
        (ShuffledEpochs(4), 1.0, 4.0, 3),
        (ShuffledEpochs(5), 1.0, 5.0, 4),
        (ShuffledEpochs(9), 1.0, 9.0, 4),
        (ShuffledEpochs(10), 1.0, 10.0, 7),
        (ShuffledEpochs(11), 1.0, 10.0, 7),
    ],
)
def test_rate_divisor_and_counted_steps_of_ten_records(sampling, rate, divisor, steps) -> None:
    assert sampling.rate(10) == rate
    found = sampling.normaliser(10)
    assert (found, type(found)) == (divisor, float)
    assert sampling.charged_steps(10, 7) == steps


@pytest.mark.parametrize(("records", "steps"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_an_epoch_has_as_many_batches_as_hold_every_record(records: int, steps: int) -> None:
    found = ShuffledEpochs(4).steps_per_epoch(records)
    assert (found, type(found)) == (steps, int)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: PoissonSampling(11.0).rate(10),
            "an expected batch size of 11 from 10 records needs a sampling rate above 1; "
            "use at most 10",
        ),
        (lambda: FixedSizeSampling(11).rate(10), "a batch of 11 cannot be drawn from 10 records"),
        (
            lambda: FixedSizeSampling(11).draw(10, Words()),
            "a batch of 11 cannot be drawn from 10 records",
        ),
        *(
            (lambda bad=bad: PoissonSampling(bad), f"the expected batch size must be .* not {bad}")
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
        (lambda: FixedSizeSampling(0), "the batch size must be a positive number, not 0"),
        (lambda: ShuffledEpochs(0), "the batch size must be a positive number, not 0"),
        (lambda: from_ledger("else", 4.0), "no accountant covers sampling 'else'"),
        (
            lambda: check_pairing(FullBatch(), "none"),
            "the adjacency is 'add-remove' or 'replace-one', not 'none'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_its_own_words(call, told) -> None:
    with pytest.raises(PrivacyError, match=f"^{told}$"):
        call()


def test_tiny_batches_are_no_fault_and_one_record_may_be_one() -> None:
    assert PoissonSampling(1e-9).rate(10) == 1e-10
    assert FixedSizeSampling(1).rate(1) == 1.0
    assert ShuffledEpochs(1).charged_steps(1, 5) == 5


@pytest.mark.parametrize(
    ("sampling", "kind", "adjacency"),
    [
        (PoissonSampling(4.0), "poisson", ("add-remove",)),
        (FullBatch(), "full", ("add-remove",)),
        (FixedSizeSampling(4), "fixed-size", ("replace-one",)),
        (ShuffledEpochs(4), "shuffled", ("replace-one",)),
    ],
)
def test_each_sampler_has_the_words_and_the_adjacency_of_its_accounting(
    sampling, kind, adjacency
) -> None:
    assert (sampling.event_kind, sampling.adjacency) == (kind, adjacency)
    (other,) = set(ADJACENCIES) - set(adjacency)
    check_pairing(sampling, adjacency[0])
    with pytest.raises(PrivacyError, match=f"accounted under {adjacency[0]} adjacency only"):
        check_pairing(sampling, other)


def test_a_composition_counts_rounds_times_the_steps_of_one_of_them() -> None:
    shuffled = composition_of(ShuffledEpochs(4), "replace-one", 10, 1.5, 7, 5, 2)
    assert shuffled == Composition(1.5, 1.0, 15, 2, "shuffled")
    once = composition_of(FullBatch(), "add-remove", 10, 1.5, 7)
    assert once == Composition(1.5, 1.0, 7, 1, "full")


def test_a_ledgers_batch_size_is_a_whole_number_where_batches_are() -> None:
    assert from_ledger("poisson", 4.5) == PoissonSampling(4.5)
    for kind in ("fixed-size", "shuffled"):
        assert type(from_ledger(kind, 4.0).batch_size) is int


# Person of each of ten records: 0 has one, 1 and 3 have three, 2 has two, 4 has one.
WHO = np.array([3, 1, 0, 2, 1, 3, 2, 1, 3, 4])
OF_EACH = [[2], [1, 4, 7], [3, 6], [0, 5, 8], [9]]


def test_a_person_brings_all_records_up_to_the_most_and_none_of_anyone_else():
    people = People(WHO, 3)
    assert len(people) == 5
    found = people.records_of(np.array([3, 0, 4, 1, 2]), stream())
    assert [one.tolist() for one in found] == [OF_EACH[who] for who in (3, 0, 4, 1, 2)]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, 99))
def test_no_batch_holds_more_of_a_persons_records_than_the_most_nor_one_twice(ids, most, seed):
    persons = np.unique(np.array(ids), return_inverse=True)[1].ravel()
    people = People(persons, most)
    own = people.records_of(np.arange(len(people)), ReproducibleRandomness(seed).stream("b", 0, 0))
    for person, rows in enumerate(own):
        assert len(set(rows.tolist())) == len(rows) == min(most, int((persons == person).sum()))
        assert set(persons[rows].tolist()) == {person}


def test_of_more_records_each_subset_of_the_most_is_as_likely_as_any_other():
    source, draws = stream(), 6_000
    counts = dict.fromkeys(itertools.combinations(OF_EACH[3], 2), 0)
    for _ in range(draws):
        (found,) = People(WHO, 2).records_of(np.array([3]), source)
        counts[tuple(sorted(found.tolist()))] += 1
    assert stats.chisquare(list(counts.values())).pvalue > UNLIKELY
    # The test could fail: a subset that is a sixth more likely is seen.
    skewed = [draws / 3 * 7 / 6, draws / 3, draws / 3 * 5 / 6]
    assert stats.chisquare(skewed).pvalue < UNLIKELY


def test_the_people_of_some_records_are_numbered_as_they_are_met():
    part = People(WHO, 2).among(np.array([9, 8, 7, 5, 4]))
    assert part.persons.tolist() == [0, 1, 2, 1, 2]
    assert part.most == 2
    assert len(part) == 3
    # People without a record among them are left out.
    assert People(WHO, 3).among(np.array([2])).persons.tolist() == [0]
