"""The three systems of ALI-DPFL against NumPy references written from the papers' equations.

Three rounds or more in float64 with the gradients and the noise of ``worlds``; states are compared
as well as parameters. Rounding stays some orders below the tolerance of 1e-10.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedadamw.algorithms.adaptive_iterations import IterationSchedule, best_local_steps
from dpfedadamw.algorithms.base import ScheduleInputs, ServerState
from tests.dpfedadamw.algorithms import worlds
from tests.dpfedadamw.algorithms.test_references import DECAY, agree
from tests.dpfedadamw.algorithms.worlds import (
    CLIPPING_NORM,
    COHORTS,
    NOISE_VARIANCE,
    RATES,
    SIZE,
    STEP_LIMIT,
    STEPS,
    algorithm,
    answer,
    first_parameters,
    play,
    rounds,
)


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("weight", [0.3, 5.0])
def test_pe_dpfl_descends_the_loss_with_a_proximal_term(weight, steps):
    theta, path = first_parameters(), []
    for t, cohort in enumerate(COHORTS):
        ends = []
        for i in cohort:
            w = theta.copy()
            for k in range(steps):
                gradient = answer(i, t, k, 0, w) + weight * (w - theta)
                w = w - RATES[t] * gradient - RATES[t] * DECAY * w
            ends.append(w)
        theta = np.mean(ends, 0)
        path.append(theta)
    agree(f"{{name: pe-dpfl, weight_decay: {DECAY}, proximal_weight: {weight}}}", path, steps)


@pytest.mark.parametrize("steps", [1, STEPS])
def test_adap_dpfl_counts_falls_of_the_loss_along_the_last_update(steps):
    factor, patience, floor, cohorts = 0.8, 2, 0.65, COHORTS * 3
    theta, update, falls, decays, expected = first_parameters(), np.zeros(SIZE), 0, 0, []
    for t, cohort in enumerate(cohorts):
        rate, ends, slopes = RATES[t % 3], [], []
        for i in cohort:
            w = theta.copy()
            slopes.append(answer(i, t, 0, 0, w) @ update)
            for k in range(steps):
                w = w - rate * answer(i, t, k, 0, w) - rate * DECAY * w
            ends.append(w)
        noise = max(floor, factor**decays)
        slope = float(np.mean(slopes))
        update = (theta - np.mean(ends, 0)) / (steps * rate)
        theta = np.mean(ends, 0)
        falls = falls + 1 if slope > 0 else 0
        if falls == patience:
            falls, decays = 0, decays + 1
        expected.append((theta, update, slope, falls, decays, noise))
    section = f"{{factor: {factor}, patience: {patience}, floor: {floor}}}"
    system = algorithm(f"{{name: adap-dpfl, weight_decay: {DECAY}, noise_decay: {section}}}")
    assert system.round_schedule is not None
    state = system.server.start(torch.from_numpy(first_parameters()))
    path = [state, *(after for after, _ in rounds(system, cohorts, steps))]
    for t, (theta, update, slope, falls, decays, noise) in enumerate(expected):
        inputs = ScheduleInputs(
            round_index=t,
            rounds=len(cohorts),
            local_steps=steps,
            previous_steps=steps,
            spent_steps=0,
            step_limit=None,
            clipping_norm=CLIPPING_NORM,
            noise_variance=NOISE_VARIANCE,
        )
        scheduled = system.round_schedule.next_round(path[t], inputs)
        assert scheduled.local_steps == steps
        assert scheduled.noise_factor == pytest.approx(noise, abs=1e-15)
        after = path[t + 1]
        np.testing.assert_allclose(after.parameters.numpy(), theta, rtol=0, atol=1e-10)
        np.testing.assert_allclose(after.state["global_update"], update, rtol=0, atol=1e-10)
        assert system.round_schedule.readings(after)["slope"] == pytest.approx(slope, abs=1e-10)
        assert (float(after.state["falls"]), float(after.state["decays"])) == (falls, decays)
    # The noise falls, and the floor is reached: both branches have been compared.
    assert {1.0, factor, floor} <= {entry[-1] for entry in expected}


def equation_9(mu: float, gamma: float, total: float, c: float, noise: float) -> float:
    numerator = 4 / mu**2 + 3 * c**2 + 2 * gamma * total * mu + noise
    return float(np.sqrt(1 + numerator / ((2 + 1 / total) * (c**2 + noise))))


@pytest.mark.parametrize("estimate", [True, False])
@pytest.mark.parametrize("gamma", [0.0, 1.5])
def test_ali_dpfl_takes_the_steps_of_equation_9(gamma, estimate):
    """Algorithm 2: R_s = 3 rounds, R_c = 40 steps, τ of the first round given."""
    mu, theta, tau, spent, expected = 1.1, first_parameters(), STEPS, 0, []
    for t, cohort in enumerate(COHORTS):
        if t:
            total = min(len(COHORTS) * tau, STEP_LIMIT)
            best = equation_9(mu, gamma, total, CLIPPING_NORM, SIZE * NOISE_VARIANCE)
            tau = int(np.floor(min(max(best, 1), 9) + 0.5))
        tau = min(tau, STEP_LIMIT - spent)
        spent += tau
        ends, above, below = [], [], []
        for i in cohort:
            w, points, gradients = theta.copy(), [], []
            for k in range(tau):
                points.append(w.copy())
                gradients.append(answer(i, t, k, 0, w))
                w = w - RATES[t] * gradients[-1] - RATES[t] * DECAY * w
            ends.append(w)
            noise = 2 * SIZE * NOISE_VARIANCE
            above.append(((gradients[-1] - gradients[0]) ** 2).sum() - noise)
            below.append(((points[-1] - points[0]) ** 2).sum())
        theta = np.mean(ends, 0)
        if estimate and np.mean(above) > 0:
            mu = float(np.sqrt(np.mean(above) / np.mean(below)))
        expected.append((theta, tau, mu))
    section = (
        f"{{minimum: 1, maximum: 9, heterogeneity: {gamma}, strong_convexity: 1.1, "
        f"estimate: {str(estimate).lower()}}}"
    )
    system = algorithm(f"{{name: ali-dpfl, weight_decay: {DECAY}, local_iterations: {section}}}")
    assert system.round_schedule is not None
    for (state, oracles), (theta, tau, mu) in zip(rounds(system), expected, strict=True):
        assert [oracle.steps for oracle in oracles] == [tau] * len(oracles)
        np.testing.assert_allclose(state.parameters.numpy(), theta, rtol=0, atol=1e-10)
        assert system.round_schedule.readings(state)["strong_convexity"] == pytest.approx(
            mu, abs=1e-10
        )
    assert len({tau for _, tau, _ in expected}) > 1, "the steps must adapt at all"


def test_equation_9_is_what_the_rule_uses():
    for values in [(0.1, 10.0, 105.0, 1.0, 3.2), (2.0, 0.0, 1.0, 0.1, 1e-4)]:
        assert best_local_steps(*values) == pytest.approx(equation_9(*values), rel=1e-14)
    # It is at least 1, and grows with the clients' heterogeneity.
    assert best_local_steps(1e3, 0.0, 1e3, 1.0, 1e9) == pytest.approx(np.sqrt(1.5), abs=1e-2)
    assert best_local_steps(1, 9, 50, 1, 1) > best_local_steps(1, 3, 50, 1, 1)


def steps_of(schedule: IterationSchedule, **inputs) -> int:
    public = {
        "round_index": 1,
        "rounds": 10,
        "local_steps": 3,
        "previous_steps": 3,
        "spent_steps": 0,
        "step_limit": 60,
        "clipping_norm": 1.0,
        "noise_variance": 0.001,
        **inputs,
    }
    return schedule.next_round(
        ServerState(torch.zeros(8), {}), ScheduleInputs(**public)
    ).local_steps


def test_where_rounds_are_not_scarce_every_round_takes_one_step():
    schedule = IterationSchedule(1, 9, 1.0, 0.5)
    assert steps_of(schedule) > 1
    assert steps_of(schedule, step_limit=10) == steps_of(schedule, step_limit=9, round_index=0) == 1
    assert steps_of(schedule, step_limit=11, round_index=0) == 3


def test_the_bounds_and_what_is_left_win_over_theory():
    wide, narrow = IterationSchedule(1, 50, 1e6, 0.5), IterationSchedule(1, 4, 1e6, 0.5)
    assert steps_of(wide) == 50
    assert steps_of(narrow) == 4
    assert steps_of(IterationSchedule(6, 9, 0.0, 1e3)) == 6
    # The last round takes what is left, even below the minimum, and then there is no other.
    assert steps_of(IterationSchedule(6, 9, 0.0, 1e3), spent_steps=58) == 2
    assert steps_of(wide, spent_steps=60) == 0


def test_an_estimate_that_is_all_noise_leaves_the_strong_convexity_as_it_was():
    """‖g̃_K − g̃_1‖² below 2dΦ says that nothing but noise was seen."""
    system = algorithm("{name: ali-dpfl, local_iterations: {strong_convexity: 0.7}}")
    for state, _ in rounds(system, noise_variance=100.0):
        assert float(state.state["strong_convexity"]) == 0.7


@pytest.mark.parametrize(
    "section",
    [
        "name: pe-dpfl, proximal_weight: 0",
        "name: adap-dpfl, noise_decay: {factor: 1}",
        "name: ali-dpfl",
    ],
)
@pytest.mark.parametrize("steps", [1, STEPS])
def test_without_what_makes_them_they_are_dp_fedavg(section, steps):
    system = algorithm(f"{{{section}}}")
    if isinstance(system.round_schedule, IterationSchedule):
        # Bounds that leave no choice: a spec's would have to hold its default of 5 steps.
        system = replace(
            system, round_schedule=replace(system.round_schedule, minimum=steps, maximum=steps)
        )
    plain = play(algorithm("{name: dp-fedavg}"), steps=steps)
    for one, other in zip(play(system, steps=steps), plain, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "section",
    ["name: pe-dpfl, proximal_weight: 0.5", "name: ali-dpfl, local_iterations: {maximum: 9}"],
)
def test_with_it_they_are_not(section):
    one, other = play(algorithm(f"{{{section}}}")), play(algorithm("{name: dp-fedavg}"))
    assert np.abs(one[-1] - other[-1]).max() > 1e-3


def test_what_the_adaptive_rules_upload_beside_the_update_is_a_number_or_two():
    for name, size in (("adap-dpfl", 1), ("ali-dpfl", 2)):
        system = algorithm(f"{{name: {name}}}")
        state = system.server.start(torch.from_numpy(first_parameters()))
        start = worlds.Broadcast(state.parameters, state.state, 0.1, STEPS, 0)
        upload = system.local.run(start, worlds.Oracle(0, 0), worlds.Silent())
        assert [len(value) for value in upload.state.values()] == [size]
