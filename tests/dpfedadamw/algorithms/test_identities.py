"""Where one system must become another, it does: exactly, or up to rounding where sums differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw.algorithms.base import Broadcast
from tests.dpfedadamw.algorithms import worlds
from tests.dpfedadamw.algorithms.worlds import (
    COHORTS,
    STEPS,
    Oracle,
    Silent,
    algorithm,
    answer,
    first_parameters,
    play,
    rounds,
)


def differ_by(one: str, other: str, **how) -> float:
    paths = play(algorithm(one), **how), play(algorithm(other), **how)
    return max(float(np.abs(a - b).max()) for a, b in zip(*paths, strict=True))


@pytest.mark.parametrize("scope", ["vector", "tensor"])
def test_smoothing_of_strength_0_is_dp_fedavg(scope):
    smoothed = f"{{name: dp-fedavg-ls, smoothing: {{strength: 0, scope: {scope}}}}}"
    # A transform there and back: a few roundings of numbers of size 1.
    assert differ_by(smoothed, "{name: dp-fedavg}") < 1e-14
    assert differ_by(smoothed.replace("0", "1"), "{name: dp-fedavg}") > 1e-3


def test_fedcm_that_heeds_only_the_local_gradient_is_fedavg():
    assert differ_by("{name: fedcm, local_weight: 1}", "{name: fedavg}") < 1e-14
    assert differ_by("{name: fedcm, local_weight: 0.5}", "{name: fedavg}") > 1e-3


def test_fedsam_with_radius_0_steps_by_a_query_at_the_same_point_and_pays_for_both():
    system = algorithm("{name: dp-fedsam, sam: {radius: 0}}")
    oracle = Oracle(0, 0)
    start = Broadcast(torch.from_numpy(first_parameters()), {}, 0.1, 1, 0)
    update = system.local.run(start, oracle, Silent()).update.numpy()
    theta = first_parameters()
    expected = -0.1 * answer(0, 0, 0, 1, theta) - 0.1 * 0.001 * theta
    np.testing.assert_allclose(update, expected, rtol=0, atol=1e-14)
    assert system.local.queries_per_step == oracle.queries == 2


def test_fedsam_with_radius_0_is_dp_fedavg_where_the_second_query_gets_the_same_noise(monkeypatch):
    monkeypatch.setattr(
        "tests.dpfedadamw.algorithms.worlds.answer",
        lambda client, t, step, query, theta: answer(client, t, step, 0, theta),
    )
    assert differ_by("{name: dp-fedsam, sam: {radius: 0}}", "{name: dp-fedavg}") == 0.0
    assert differ_by("{name: dp-fedsam, sam: {radius: 0.5}}", "{name: dp-fedavg}") > 1e-3


@pytest.mark.parametrize("names", [("scaffold", "fedavg"), ("dp-scaffold", "dp-fedavg")])
def test_scaffold_starts_as_fedavg_and_then_parts_from_it(names):
    one, other = (play(algorithm(f"{{name: {name}}}")) for name in names)
    assert np.abs(one[0] - other[0]).max() < 1e-14
    assert np.abs(one[1] - other[1]).max() > 1e-3


def test_scaffolds_controls_cancel_where_all_clients_take_part():
    """c is the mean of all c_i then, and a round's mean drift correction is 0."""
    everyone = ((0, 1, 2),) * 3
    for state, _ in rounds(algorithm("{name: scaffold}"), everyone):
        assert state.state["control"].abs().max() > 1e-3
    # With one local step the corrections cancel in the average: FedAvg up to rounding.
    assert differ_by("{name: scaffold}", "{name: fedavg}", cohorts=everyone, steps=1) < 1e-14


# What is compared at one local step a round (specs/replication/confirmation*.yaml).
ONE_STEP = (
    "dp-fedavg",
    "dp-scaffold",
    "dp-fedavg-ls",
    "adap-dpfl",
    "dp-fedsam",
    "dp-fedlada",
    "dp-localadamw",
    "dp-fedadamw",
)


@pytest.mark.parametrize("name", ONE_STEP)
def test_at_one_local_step_a_local_rate_and_the_servers_are_one_knob_their_product(
    name, monkeypatch
):
    served = algorithm(f"{{name: {name}, server: {{learning_rate: 4}}}}")
    one_step, four_steps = play(served, steps=1), play(served, steps=4)
    monkeypatch.setattr(worlds, "RATES", tuple(4 * rate for rate in worlds.RATES))
    local = algorithm(f"{{name: {name}}}")
    np.testing.assert_allclose(play(local, steps=1), one_step, rtol=0, atol=1e-12)
    assert np.abs(np.subtract(play(local, steps=4), four_steps)).max() > 1e-3


def test_at_one_local_step_a_proximal_term_holds_nothing_back():
    proximal = "{name: pe-dpfl, proximal_weight: 0.5}"
    assert differ_by(proximal, "{name: dp-fedavg}", steps=1) < 1e-14
    assert differ_by(proximal, "{name: dp-fedavg}", steps=2) > 1e-3


def test_dp_fedadamw_without_its_parts_is_dp_localadamw():
    """Without aggregation both counters are the local one (the spec refuses `local`)."""
    bare = (
        "{name: dp-fedadamw, alignment: 0, first_moment: {aggregation: none}, "
        "second_moment: {aggregation: none, debias: false}}"
    )
    assert differ_by(bare, "{name: dp-localadamw}") == 0.0
    for part in ("alignment: 0", "aggregation: none, debias: false", ", debias: false"):
        whole = bare.replace(part, {"alignment: 0": "alignment: 0.5"}.get(part, ""))
        assert differ_by(whole, "{name: dp-localadamw}") > 1e-4, part


def test_the_theory_form_that_heeds_only_the_local_direction_is_fedadamw_without_its_rest():
    theory = "{name: fedadamw-theory, local_weight: 1, second_moment: {aggregation: tensor}}"
    plain = (
        "{name: fedadamw, beta1: 0, weight_decay: 0, alignment: 0, "
        "second_moment: {aggregation: tensor}}"
    )
    assert differ_by(theory, plain) < 1e-14


@pytest.mark.parametrize("name", ["dp-localadamw", "local-adamw", "fedadamw", "dp-fedadamw"])
def test_without_decay_it_does_not_matter_how_it_is_coupled(name):
    for decay, same in ((0, True), (0.1, False)):
        base = f"{{name: {name}, weight_decay: {decay}, decay: "
        difference = differ_by(base + "coupled}", base + "decoupled}")
        assert (difference < 1e-14) == same


def test_fedlada_that_heeds_only_the_local_step_keeps_no_offset():
    lonely = play(algorithm("{name: fedlada, local_weight: 1}"), steps=1)
    state, _ = rounds(algorithm("{name: fedlada, local_weight: 1}"), steps=1)[0]
    m = [0.1 * (answer(i, 0, 0, 0, first_parameters()) + 0.01 * first_parameters()) for i in (0, 1)]
    # m/√v̂ = (1−β1)·g/(√(1−β2)·|g|) in the first step, whatever g is.
    step = 0.1 * np.mean([np.sign(one) for one in m], 0) * 0.1 / np.sqrt(1e-3)
    np.testing.assert_allclose(lonely[0], first_parameters() - step, rtol=0, atol=1e-6)
    assert set(state.state) == {"second_moment", "global_update"}


@pytest.mark.parametrize(
    ("name", "vectors"), [("dp-fedavg", 1), ("dp-scaffold", 2), ("dp-fedlada", 2), ("dp-fafed", 3)]
)
def test_uploads_are_as_large_as_the_papers_count(name, vectors):
    system = algorithm(f"{{name: {name}}}")
    state = system.server.start(torch.from_numpy(first_parameters()))
    start = Broadcast(state.parameters, state.state, 0.1, STEPS, 0)
    upload = system.local.run(start, Oracle(0, 0), Silent())
    assert 1 + len(upload.state) == vectors
    assert all(value.shape == upload.update.shape for value in upload.state.values())


def test_a_clients_control_variate_follows_from_what_it_uploaded():
    """So the checkpoint that holds it, and the server, hold nothing that was not released."""
    system = algorithm("{name: dp-scaffold}")
    state = system.server.start(torch.from_numpy(first_parameters()))
    sent, memory = torch.zeros_like(state.parameters), {}
    for index in range(len(COHORTS)):
        start = Broadcast(state.parameters, state.state, 0.1, STEPS, index * STEPS, memory)
        upload = system.local.run(start, Oracle(0, index), Silent())
        sent, memory = sent + upload.state["control"], upload.memory
        state = system.server.combine(state, [upload], start)
        torch.testing.assert_close(memory["control"], sent, rtol=0, atol=1e-14)
