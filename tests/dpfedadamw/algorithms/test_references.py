"""Each rule equals an independent NumPy reference, written here from its paper's equations.

Three rounds in float64, clients that come and go, fixed gradients and fixed noise. Steps have size
1 at most, so rounding stays some orders below the tolerance of 1e-10.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dpfedadamw.algorithms.smoothing import eigenvalues
from tests.dpfedadamw.algorithms.worlds import (
    CLIENTS,
    COHORTS,
    RATES,
    SIZE,
    STEPS,
    algorithm,
    answer,
    first_parameters,
    play,
)

DECAY = 0.02


def agree(section: str, reference: list[np.ndarray], steps: int = STEPS) -> None:
    path = play(algorithm(section), steps=steps)
    for seen, expected in zip(path, reference, strict=True):
        np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-10)
    moved = np.abs(reference[-1] - first_parameters()).max()
    assert moved > 1e-3, "the reference must move at all"


def averaged(direction, steps: int = STEPS) -> list[np.ndarray]:
    """θ ← θ − η·direction − ηλθ locally, the mean of the updates on the server."""
    theta, path = first_parameters(), []
    for t, cohort in enumerate(COHORTS):
        ends = []
        for i in cohort:
            x = theta.copy()
            for k in range(steps):
                x = x - RATES[t] * direction(i, t, k, x) - RATES[t] * DECAY * x
            ends.append(x)
        theta = np.mean(ends, 0)
        path.append(theta)
    return path


@pytest.mark.parametrize("steps", [1, STEPS])
def test_fedavg(steps):
    expected = averaged(lambda i, t, k, x: answer(i, t, k, 0, x), steps)
    for name in ("fedavg", "dp-fedavg"):
        agree(f"{{name: {name}, weight_decay: {DECAY}}}", expected, steps)


@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_fedsam_climbs_along_the_first_noised_gradient_and_descends_by_the_second(radius):
    def direction(i, t, k, x):
        noised = answer(i, t, k, 0, x)
        return answer(i, t, k, 1, x + radius * noised / np.sqrt((noised**2).sum()))

    section = f"{{name: dp-fedsam, weight_decay: {DECAY}, sam: {{radius: {radius}}}}}"
    agree(section, averaged(direction))


@pytest.mark.parametrize("size", [7, 20_000, 1_000_003])
@pytest.mark.parametrize("strength", [1.0, 1e4, 1e6])
def test_eigenvalues_of_smoothing_are_exact_to_the_last_bit_but_one(size, strength):
    """Where a coordinate's frequency is low, 1 − cos in float32 has no digit left."""
    found = eigenvalues(size, strength, torch.zeros(1)).double().numpy()
    half = np.pi * np.arange(size // 2 + 1, dtype=np.longdouble) / size
    expected = 1.0 + 4.0 * strength * np.sin(half) ** 2
    assert np.abs(found / expected - 1.0).max() < 2.0**-23


@pytest.mark.parametrize("scope", ["vector", "tensor"])
def test_smoothing_solves_the_linear_system_that_defines_it(scope):
    strength = 1.7
    system = np.zeros((SIZE, SIZE))
    for ring in [range(8)] if scope == "vector" else [range(6), range(6, 8)]:
        for at, j in enumerate(ring):
            system[j, j] += 1 + 2 * strength
            for neighbour in (ring[at - 1], ring[(at + 1) % len(ring)]):
                system[j, neighbour] -= strength
    section = (
        f"{{name: dp-fedavg-ls, weight_decay: {DECAY}, "
        f"smoothing: {{strength: {strength}, scope: {scope}}}}}"
    )
    agree(section, averaged(lambda i, t, k, x: np.linalg.solve(system, answer(i, t, k, 0, x))))


@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("name", ["scaffold", "dp-scaffold"])
def test_scaffold(name, decay):
    """Karimireddy et al., Algorithm 1; option II, worked out without the weight decay's part."""
    server_rate, theta, control, path = 0.9, first_parameters(), np.zeros(SIZE), []
    own = [np.zeros(SIZE) for _ in range(CLIENTS)]
    for t, cohort in enumerate(COHORTS):
        updates, changes = [], []
        for i in cohort:
            y, decayed = theta.copy(), np.zeros(SIZE)
            for k in range(STEPS):
                decayed += RATES[t] * decay * y
                g = answer(i, t, k, 0, y)
                y = y - RATES[t] * (g - own[i] + control) - RATES[t] * decay * y
            new = own[i] - control + (theta - y - decayed) / (STEPS * RATES[t])
            updates.append(y - theta)
            changes.append(new - own[i])
            own[i] = new
        theta = theta + server_rate * np.mean(updates, 0)
        control = control + len(cohort) / CLIENTS * np.mean(changes, 0)
        path.append(theta)
    section = f"{{name: {name}, weight_decay: {decay}, server: {{learning_rate: {server_rate}}}}}"
    agree(section, path)


@pytest.mark.parametrize(
    ("name", "rule"), [("fedadam", "adam"), ("dp-fedopt", "adam"), ("dp-fedopt", "yogi")]
)
def test_fedopt(name, rule):
    """Reddi et al., Algorithm 2."""
    b1, b2, tau, server_rate = 0.8, 0.9, 1e-3, 0.05
    theta, m, v, path = first_parameters(), np.zeros(SIZE), np.full(SIZE, tau**2), []
    for t, cohort in enumerate(COHORTS):
        updates = []
        for i in cohort:
            x = theta.copy()
            for k in range(STEPS):
                x = x - RATES[t] * answer(i, t, k, 0, x) - RATES[t] * DECAY * x
            updates.append(x - theta)
        delta = np.mean(updates, 0)
        m = b1 * m + (1 - b1) * delta
        if rule == "adam":
            v = b2 * v + (1 - b2) * delta**2
        else:
            v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        theta = theta + server_rate * m / (np.sqrt(v) + tau)
        path.append(theta)
    chosen = f"rule: {rule}, " if name == "dp-fedopt" else ""
    agree(
        f"{{name: {name}, weight_decay: {DECAY}, server: {{{chosen}learning_rate: {server_rate}, "
        f"beta1: {b1}, beta2: {b2}, epsilon: {tau}}}}}",
        path,
    )


def test_fedcm():
    """Xu et al., Algorithm 2: a local step is α·g + (1−α)·Δ."""
    alpha, theta, offset, path = 0.3, first_parameters(), np.zeros(SIZE), []
    for t, cohort in enumerate(COHORTS):
        ends = []
        for i in cohort:
            x = theta.copy()
            for k in range(STEPS):
                v = alpha * answer(i, t, k, 0, x) + (1 - alpha) * offset
                x = x - RATES[t] * v - RATES[t] * DECAY * x
            ends.append(x)
        mean = np.mean(ends, 0)
        offset, theta = (theta - mean) / (RATES[t] * STEPS), mean
        path.append(theta)
    agree(f"{{name: fedcm, weight_decay: {DECAY}, local_weight: {alpha}}}", path)


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("name", ["fedlada", "dp-fedlada"])
def test_fedlada(name, steps):
    """Sun et al., section 3: v̂ starts at ϵ², moves as a maximum, and is averaged."""
    alpha, b1, b2, epsilon = 0.4, 0.9, 0.97, 1e-3
    theta, offset, path = first_parameters(), np.zeros(SIZE), []
    shared = np.full(SIZE, epsilon**2)
    for t, cohort in enumerate(COHORTS):
        ends, largest = [], []
        for i in cohort:
            x, m, v, v_hat = theta.copy(), np.zeros(SIZE), shared.copy(), shared.copy()
            for k in range(steps):
                g = answer(i, t, k, 0, x) + DECAY * x
                m = b1 * m + (1 - b1) * g
                v = b2 * v + (1 - b2) * g * g
                v_hat = np.maximum(v_hat, v)
                x = x - RATES[t] * (alpha * m / np.sqrt(v_hat) + (1 - alpha) * offset)
            ends.append(x)
            largest.append(v_hat)
        mean = np.mean(ends, 0)
        offset, theta = (theta - mean) / (RATES[t] * steps), mean
        shared = np.mean(largest, 0)
        path.append(theta)
    agree(
        f"{{name: {name}, weight_decay: {DECAY}, local_weight: {alpha}, beta1: {b1}, "
        f"beta2: {b2}, epsilon: {epsilon}}}",
        path,
        steps,
    )


@pytest.mark.parametrize("steps", [1, STEPS])
def test_fafed(steps):
    """Wu et al., Algorithm 2, with the three choices that the rule's docstring names."""
    alpha, beta, rho, theta, path = 0.2, 0.95, 1e-3, first_parameters(), []
    before, m_bar, v_bar = theta, np.zeros(SIZE), np.zeros(SIZE)

    def gradient(i, t, k, query, x):
        return answer(i, t, k, query, x) + DECAY * x

    for t, cohort in enumerate(COHORTS):
        ends, firsts, seconds = [], [], []
        for i in cohort:
            trail = [before, theta]
            m, v, scale = m_bar, v_bar, np.sqrt(v_bar) + rho
            for k in range(steps):
                g, g_before = gradient(i, t, k, 0, trail[-1]), gradient(i, t, k, 1, trail[-2])
                if t == k == 0:
                    m, v = g_before, np.full(SIZE, np.mean(g_before**2))
                    scale = np.sqrt(v) + rho
                m = g + (1 - alpha) * (m - g_before)
                v = beta * v + (1 - beta) * g**2
                if k < steps - 1:
                    trail.append(trail[-1] - RATES[t] * m / scale)
            ends.append(trail[-1])
            firsts.append(m)
            seconds.append(v)
        before, m_bar, v_bar = np.mean(ends, 0), np.mean(firsts, 0), np.mean(seconds, 0)
        theta = before - RATES[t] * m_bar / (np.sqrt(v_bar) + rho)
        path.append(theta)
    agree(
        f"{{name: dp-fafed, weight_decay: {DECAY}, beta1: {1 - alpha}, beta2: {beta}, "
        f"epsilon: {rho}}}",
        path,
        steps,
    )


@pytest.mark.parametrize(
    ("name", "coupled"),
    [
        ("local-adam", True),
        ("local-adamw", False),
        ("dp-localadamw", False),
        ("local-adamw, decay: coupled", True),
        ("dp-localadamw, decay: coupled", True),
    ],
)
def test_local_adam_and_adamw(name, coupled):
    """Kingma & Ba, Algorithm 1, restarted every round; Loshchilov & Hutter's decay or plain L2."""
    b1, b2, epsilon, theta, path = 0.85, 0.97, 1e-6, first_parameters(), []
    for t, cohort in enumerate(COHORTS):
        ends = []
        for i in cohort:
            x, m, v = theta.copy(), np.zeros(SIZE), np.zeros(SIZE)
            for k in range(1, STEPS + 1):
                g = answer(i, t, k - 1, 0, x) + (DECAY * x if coupled else 0.0)
                m = b1 * m + (1 - b1) * g
                v = b2 * v + (1 - b2) * g * g
                step = m / (1 - b1**k) / (np.sqrt(v / (1 - b2**k)) + epsilon)
                x = x - RATES[t] * step - (0.0 if coupled else RATES[t] * DECAY * x)
            ends.append(x)
        theta = np.mean(ends, 0)
        path.append(theta)
    agree(
        f"{{name: {name}, weight_decay: {DECAY}, beta1: {b1}, beta2: {b2}, epsilon: {epsilon}}}",
        path,
    )


@pytest.mark.parametrize("aggregation", ["full", "tensor"])
def test_the_theory_form_of_fedadamw(aggregation):
    """FedAdamW, Algorithm 3, with γ = server learning rate · K·η."""
    alpha, b2, epsilon, server_rate = 0.6, 0.97, 1e-6, 0.8
    theta, v_bar, offset, path = first_parameters(), np.zeros(SIZE), np.zeros(SIZE), []
    for t, cohort in enumerate(COHORTS):
        updates, moments = [], []
        for i in cohort:
            x, v = theta.copy(), v_bar.copy()
            for k in range(1, STEPS + 1):
                g = answer(i, t, k - 1, 0, x)
                v = b2 * v + (1 - b2) * g * g
                v_hat = v / (1 - b2 ** (t * STEPS + k))
                x = x - RATES[t] * (alpha * g / (np.sqrt(v_hat) + epsilon) + (1 - alpha) * offset)
            updates.append(x - theta)
            if aggregation == "tensor":
                v = np.concatenate([np.full(6, v[:6].mean()), np.full(2, v[6:].mean())])
            moments.append(v)
        offset = -np.sum(updates, 0) / (len(cohort) * STEPS * RATES[t])
        theta = theta - server_rate * STEPS * RATES[t] * offset
        v_bar = np.mean(moments, 0)
        path.append(theta)
    agree(
        f"{{name: fedadamw-theory, beta2: {b2}, epsilon: {epsilon}, local_weight: {alpha}, "
        f"second_moment: {{aggregation: {aggregation}}}, "
        f"server: {{learning_rate: {server_rate}}}}}",
        path,
    )


_SECOND_MOMENTS = [
    ("none", "global", "coordinate"),
    *itertools.product(["full"], ["global", "local"], ["coordinate"]),
    *itertools.product(["tensor"], ["global", "local"], ["coordinate", "block"]),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("decay", ["decoupled", "coupled"])
@pytest.mark.parametrize("first", ["none", "full"])
@pytest.mark.parametrize(("second", "counter", "denominator"), _SECOND_MOMENTS)
@pytest.mark.parametrize("floor", ["relative", "absolute", None])
def test_every_ablation_of_dp_fedadamw(decay, first, second, counter, floor, denominator):
    """DP-FedAdamW, Algorithm 1, corrected; ``floor`` None switches the debiasing off."""
    b1, b2, epsilon, gamma, phi = 0.85, 0.97, 1e-6, 0.4, 0.01
    limit = {"relative": 0.7 * phi, "absolute": 2e-3, None: 0.0}[floor]
    theta, m_bar, v_bar, offset = first_parameters(), *np.zeros((3, SIZE))
    path = []

    def means(v):
        return np.concatenate([np.full(6, v[:6].mean()), np.full(2, v[6:].mean())])

    for t, cohort in enumerate(COHORTS):
        updates, firsts, seconds = [], [], []
        for i in cohort:
            x, m, v = theta.copy(), m_bar.copy(), v_bar.copy()
            for k in range(1, STEPS + 1):
                g = answer(i, t, k - 1, 0, x) + (DECAY * x if decay == "coupled" else 0.0)
                m = b1 * m + (1 - b1) * g
                v = b2 * v + (1 - b2) * g * g
                run = t * STEPS + k
                m_hat = m / (1 - b1 ** (run if first == "full" else k))
                v_hat = v / (1 - b2 ** (run if second != "none" and counter == "global" else k))
                if denominator == "block":
                    v_hat = means(v_hat)
                if floor is not None:
                    v_hat = np.maximum(v_hat - phi, limit)
                step = m_hat / (np.sqrt(v_hat) + epsilon) + gamma * offset
                shrink = RATES[t] * DECAY * x if decay == "decoupled" else 0.0
                x = x - RATES[t] * step - shrink
            updates.append(x - theta)
            firsts.append(m)
            seconds.append(means(v) if second == "tensor" else v)
        offset = -np.sum(updates, 0) / (len(cohort) * STEPS * RATES[t])
        theta = theta + np.mean(updates, 0)
        m_bar = np.mean(firsts, 0) if first == "full" else np.zeros(SIZE)
        v_bar = np.mean(seconds, 0) if second != "none" else np.zeros(SIZE)
        path.append(theta)
    floors = {"relative": "{relative: 0.7}", "absolute": "{absolute: 2e-3}", None: "{relative: 1}"}
    agree(
        f"{{name: dp-fedadamw, weight_decay: {DECAY}, decay: {decay}, beta1: {b1}, beta2: {b2}, "
        f"epsilon: {epsilon}, alignment: {gamma}, first_moment: {{aggregation: {first}}}, "
        f"second_moment: {{aggregation: {second}, debias: {str(floor is not None).lower()}, "
        f"counter: {counter}, floor: {floors[floor]}, denominator: {denominator}}}}}",
        path,
    )
