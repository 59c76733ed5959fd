"""What one budget buys: every row claims the target, and its noise is what its numbers say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.experiment import foresee
from dpfedadamw.run.calibrate import View
from dpfedadamw.run.frontier import ROUNDS, STEPS, _settings, frontier
from tests.runs import small_spec, train

BATCH = "privacy.sampling.expected_batch_size"


@pytest.fixture(scope="module")
def found():
    return frontier(small_spec(rounds=8), 3.0)


def test_every_row_claims_the_target_and_no_more(found):
    for one in found.combinations:
        assert 3.0 * 0.99 <= one.epsilon <= 3.0


def test_rows_have_as_many_steps_or_as_many_rounds_as_the_spec_which_is_one_of_them(found):
    spec = small_spec(rounds=8)
    steps, rounds = 8 * spec.federation.local_steps, spec.federation.rounds
    (own,) = [one for one in found.combinations if one.is_the_specs]
    assert (own.rounds, own.local_steps, own.batch_size) == (8, 3, 24)
    for one in found.combinations:
        assert one.rounds == rounds or abs(one.rounds * one.local_steps - steps) < one.local_steps
    assert len(
        {(one.rounds, one.local_steps, one.batch_size) for one in found.combinations}
    ) == len(found.combinations)


def test_noise_uploads_and_records_follow_from_a_rows_numbers(found):
    for one in found.combinations:
        rounds, steps, chosen = one.rounds, one.local_steps, one.clients_per_round
        deviation = one.noise_multiplier / one.batch_size
        assert one.gradient_noise == pytest.approx(deviation)
        # Of independent noises, variances add up and means divide them.
        client = np.full(steps, deviation**2).sum()
        assert one.client_noise == pytest.approx(math.sqrt(client))
        every = np.full(rounds * steps * chosen, deviation**2)
        assert one.training_noise == pytest.approx(math.sqrt(every.sum()) / len(every))
        assert (one.uploads, one.records) == (rounds * chosen, len(every) * one.batch_size)


def test_keys_that_are_named_are_combined_and_what_cannot_be_is_told():
    vary = {"federation.local_steps": [1, 3], BATCH: [24, 500]}
    found = frontier(small_spec(), 3.0, vary=vary)
    assert [tuple(one.values.values()) for one in found.combinations] == [(1, 24), (3, 24)]
    assert [tuple(one.values.values()) for one in found.refused] == [(1, 500), (3, 500)]
    assert all("500 exceeds the" in one.reason for one in found.refused)


def test_of_whole_clients_rounds_and_clients_are_varied():
    spec = small_spec("fed-smp", clients_per_round=2)
    found = frontier(spec, 8.0, View.third_party)
    assert {one.clients_per_round for one in found.combinations} == {1, 2, 4}
    for one in found.combinations:
        rounds = np.full(one.rounds, (one.noise_multiplier / one.clients_per_round) ** 2)
        assert one.training_noise == pytest.approx(math.sqrt(rounds.sum()) / one.rounds)
        assert one.batch_size is one.gradient_noise is one.client_noise is one.records is None


@pytest.mark.parametrize(
    ("name", "vary", "reason"),
    [
        ("dp-fedavg", {"federation.local_step": [1]}, "did you mean local_steps"),
        ("dp-fedavg", {"federation.rounds": range(1, 500)}, "499 combinations; at most 400"),
        ("fedadamw", None, "claims no privacy"),
        ("fed-smp", None, "at client level the target holds towards a third party"),
    ],
)
def test_what_cannot_be_shown_is_one_line(name, vary, reason):
    with pytest.raises(DpfedadamwError, match=reason) as refused:
        frontier(small_spec(name), 3.0, vary=vary)
    assert "\n" not in str(refused.value)


def test_a_target_that_nothing_keeps_to_is_refused_with_the_first_reason():
    with pytest.raises(PrivacyError, match="no combination keeps to"):
        frontier(small_spec(), 3.0, vary={BATCH: [500, 600]})


def test_clean_gradients_never_have_more_signal_than_the_bound(tmp_path):
    """Clipped to C, every one of them: the mean square of what the noise is added to."""
    spec = small_spec("dp-localadamw", rounds=4)
    plan = foresee(spec)
    bound = plan.parameters_of_equal_signal()
    assert bound == pytest.approx((24 / 2.0) ** 2 * (1 + 1 / 24))
    training, _ = train(spec, tmp_path)
    squares = []
    for path in sorted(training.run.evidence.glob("round-*.npz")):
        with np.load(path) as arrays:
            squares.append(arrays["clean_sum_squares"].sum(axis=-1).ravel())
    # Of mean gradients, summed over coordinates: a share of bound/d of d noises.
    noise = (2.0 * 1.0 / 24) ** 2
    signal = np.concatenate(squares).mean()
    assert 0.01 * bound * noise < signal <= bound * noise


def test_only_noised_gradients_have_a_bound():
    assert foresee(small_spec("fed-smp")).parameters_of_equal_signal() is None


def test_the_spec_itself_is_left_as_it_is():
    spec = small_spec()
    before = specs.dump(spec)
    frontier(spec, 3.0, vary={"federation.local_steps": [1]})
    assert specs.dump(spec) == before


def test_as_many_steps_are_made_in_one_round_at_least():
    spec = small_spec(rounds=1, overrides=("federation.local_steps=1",))
    found = [(one[ROUNDS], one[STEPS], one[BATCH]) for one in _settings(spec, None)]
    # Half a step, or a quarter of one, is one step; two steps in half a round are a whole round.
    batch = spec.privacy.sampling.expected_batch_size
    sizes = [batch / 2, batch, 2 * batch]
    many = [(1, steps, size) for steps in (1, 2) for size in sizes]
    assert found == [*many, (1, 2, batch)]
