"""What one budget buys: every row claims the target, and its noise is what its numbers say."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.run import frontier as module
from dpfedadamw.run.calibrate import View
from dpfedadamw.run.frontier import ROUNDS, STEPS, _settings, frontier
from tests.runs import small_spec

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


@pytest.mark.thorough
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
        ("fed-smp", None, "at client level the target holds against a third party"),
    ],
)
def test_what_cannot_be_shown_is_one_line(name, vary, reason):
    with pytest.raises(DpfedadamwError, match=reason) as refused:
        frontier(small_spec(name), 3.0, vary=vary)
    assert "\n" not in str(refused.value)


def test_a_target_that_nothing_keeps_to_is_refused_with_the_first_reason():
    with pytest.raises(PrivacyError, match="no combination meets"):
        frontier(small_spec(), 3.0, vary={BATCH: [500, 600]})


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


@pytest.mark.parametrize(
    ("rounds", "rows"),
    [
        (8, [(24, 1), (12, 2), (8, 3), (4, 6)]),
        # Six steps are more than all of the spec's: one round is the least.
        (1, [(3, 1), (2, 2), (1, 3), (1, 6)]),
    ],
)
def test_by_default_three_batches_go_with_each_number_of_steps_and_then_the_specs_rounds(
    rounds, rows
):
    keys = (module.ROUNDS, module.STEPS, BATCH)
    found = module._settings(small_spec(rounds=rounds), None)
    wanted = [(*row, batch) for row in rows for batch in (12, 24, 48)]
    wanted += [(rounds, steps, 24) for steps in (1, 2, 6)]
    assert found == [dict(zip(keys, row, strict=True)) for row in wanted]


@pytest.mark.parametrize(("rounds", "varied"), [(8, (2, 4, 8, 16)), (1, (1, 1, 1, 2))])
def test_by_default_whole_clients_are_varied_in_twelve_ways(rounds, varied):
    spec = small_spec("fed-smp", rounds=rounds, clients_per_round=2)
    assert module._settings(spec, None) == [
        {module.ROUNDS: more, module.CHOSEN: many} for more in varied for many in (1, 2, 4)
    ]


@pytest.mark.parametrize(
    ("given", "value", "wanted"),
    [(24, 12.0, 12), (24, 12.6, 13), (24.0, 12.6, 13), (24, 0.4, 1), (2.5, 1.25, 1.25)],
)
def test_a_batch_is_a_whole_number_of_at_least_one_where_the_specs_is(given, value, wanted):
    found = module._like(given, value)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize("name", ["expected_batch_size", "batch_size"])
def test_a_batch_is_found_by_either_name(name):
    spec = SimpleNamespace(privacy=SimpleNamespace(sampling=SimpleNamespace(**{name: 7})))
    assert module._batch_of(spec) == (f"privacy.sampling.{name}", 7)


def test_a_sampler_without_a_size_of_its_batches_is_refused():
    spec = SimpleNamespace(privacy=SimpleNamespace(sampling=SimpleNamespace()))
    with pytest.raises(PrivacyError, match="have no size to vary"):
        module._batch_of(spec)


@pytest.mark.parametrize("noised", [True, False])
def test_a_rows_numbers_are_those_of_the_noisiest_client(noised):
    sizes = [10.0, 8.0, 12.0]
    plan = SimpleNamespace(
        rounds=5,
        local_steps=4,
        clients_per_round=3,
        records=[100, 80, 120],
        divisor=sizes.__getitem__,
        unit=SimpleNamespace(noises_gradients=noised),
    )
    found = module._combination(plan, {"key": 1}, 2.0, 1.5, True)
    assert (found.values, found.is_the_specs) == ({"key": 1}, True)
    assert (found.rounds, found.local_steps, found.clients_per_round) == (5, 4, 3)
    assert (found.noise_multiplier, found.epsilon, found.uploads) == (2.0, 1.5, 15)
    of_gradients = (found.batch_size, found.gradient_noise, found.client_noise, found.records)
    # Of 60 gradients with a noise of 2/8 each, or of 15 updates with one of 2 on three in a round.
    assert of_gradients == ((8.0, 0.25, 0.5, 480.0) if noised else (None,) * 4)
    wanted = 0.25 / math.sqrt(60) if noised else 2 / 3 / math.sqrt(5)
    assert found.training_noise == pytest.approx(wanted, rel=1e-12)


def test_400_combinations_are_computed_and_one_more_is_not(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_solved", lambda spec, *given: asked.append(given) or given)
    spec = small_spec()
    found = frontier(spec, 3.0, vary={module.ROUNDS: range(20), module.STEPS: range(20)})
    assert len(asked) == 400
    assert found.combinations == tuple(asked)
    assert found.refused == ()
    assert asked[21] == ({module.ROUNDS: 1, module.STEPS: 1}, 3.0, View.server)
    assert (found.target_epsilon, found.view) == (3.0, View.server)
    assert found.delta == spec.privacy.delta > 0
    with pytest.raises(PrivacyError, match="401 combinations"):
        frontier(spec, 3.0, vary={module.ROUNDS: range(401)})
    assert len(asked) == 400


def test_of_several_reasons_the_first_ones_first_line_is_told(monkeypatch):
    def refuse(_spec, values, *_rest):
        raise PrivacyError(f"no {values[module.ROUNDS]} rounds\nand more")

    monkeypatch.setattr(module, "_solved", refuse)
    with pytest.raises(PrivacyError, match=r"= 3: no 5 rounds$"):
        frontier(small_spec(), 3.0, vary={module.ROUNDS: [5, 6, 7]})
