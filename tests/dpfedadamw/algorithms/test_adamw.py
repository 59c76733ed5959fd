"""Each part of the AdamW rule, switched on and off alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dpfedadamw.algorithms.base import Broadcast, SecondMoment, cosine_learning_rate
from dpfedadamw.algorithms.rules.adamw import AdamW
from dpfedadamw.algorithms.sgd import GradientDescent

SIZE, STEPS, RATE = 5, 4, 0.1


class Gradients:
    """An oracle that answers from a fixed list."""

    def __init__(self, noise_variance: float = 0.0) -> None:
        self.noise_variance = noise_variance
        generator = torch.Generator().manual_seed(3)
        self.answers = torch.randn(STEPS, SIZE, generator=generator, dtype=torch.float64)
        self.asked = -1

    def next_batch(self) -> None:
        self.asked += 1

    def gradient(self, parameters: torch.Tensor) -> torch.Tensor:
        return self.answers[self.asked]


class Seen:
    moment: SecondMoment

    def second_moment(self, look: Callable[[], SecondMoment]) -> None:
        self.moment = look()


RULE = AdamW(
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-8,
    weight_decay=0.0,
    alignment=0.0,
    blocks=None,
    aggregate_first=False,
    aggregate_second=True,
    debias=True,
    counter="global",
    relative_floor=1.0,
    absolute_floor=None,
    block_denominator=False,
)


def run(rule, noise_variance=0.0, earlier=0, state=None):
    theta = torch.ones(SIZE, dtype=torch.float64)
    state = {"second_moment": torch.zeros(SIZE, dtype=torch.float64)} if state is None else state
    seen = Seen()
    upload = rule.run(
        Broadcast(theta, state, RATE, STEPS, earlier), Gradients(noise_variance), seen
    )
    return upload, seen.moment


def test_weight_decay_shrinks_weights_and_never_enters_the_moments():
    plain, moment = run(RULE)
    decayed, moment_decayed = run(replace(RULE, weight_decay=0.5))
    torch.testing.assert_close(moment.moment, moment_decayed.moment)
    # theta starts at 1: four steps of factor 1 - 0.1*0.5 pull it towards 0.
    assert (decayed.update < plain.update).all()


def test_the_global_counter_counts_earlier_rounds_and_the_local_one_forgets_them():
    _, globally = run(RULE, earlier=40)
    _, locally = run(replace(RULE, counter="local"), earlier=40)
    assert (globally.steps, locally.steps) == (44, 4)
    ratio = (1 - 0.99**44) / (1 - 0.99**4)
    torch.testing.assert_close(locally.corrected, globally.corrected * ratio)


def test_debiasing_subtracts_the_noise_variance_and_holds_the_floor():
    variance = 0.3
    _, moment = run(RULE, noise_variance=variance)
    assert moment.subtracted == variance
    denominator = RULE.denominator(moment.corrected.clone(), variance)
    unbiased = moment.corrected - variance
    expected = torch.where(unbiased < variance, variance, unbiased).sqrt() + 1e-8
    torch.testing.assert_close(denominator, expected)
    torch.testing.assert_close(moment.floored, unbiased < variance)
    assert moment.floored.any(), "this case must reach the floor"


def test_an_absolute_floor_does_not_scale_with_the_noise():
    rule = replace(RULE, relative_floor=None, absolute_floor=0.01)
    denominator = rule.denominator(torch.tensor([0.0, 5.0]), 4.0)
    torch.testing.assert_close(denominator, torch.tensor([0.1 + 1e-8, 1.0 + 1e-8]))


def test_without_debiasing_neither_variance_nor_floor_touch_the_denominator():
    rule = replace(RULE, debias=False)
    _, moment = run(rule, noise_variance=7.0)
    assert moment.subtracted == 0.0
    denominator = rule.denominator(moment.corrected.clone(), 7.0)
    torch.testing.assert_close(denominator, moment.corrected.sqrt() + 1e-8)
    assert not moment.floored.any()


def test_alignment_moves_along_the_last_global_update():
    towards = torch.full((SIZE,), 2.0, dtype=torch.float64)
    state = {"second_moment": torch.zeros(SIZE, dtype=torch.float64), "global_update": towards}
    plain, _ = run(RULE, state=state)
    aligned, _ = run(replace(RULE, alignment=0.5), state=state)
    torch.testing.assert_close(plain.update - aligned.update, STEPS * RATE * 0.5 * towards)


def test_an_aggregated_first_moment_is_uploaded_and_goes_on_from_the_servers():
    start = torch.full((SIZE,), 3.0, dtype=torch.float64)
    state = {"second_moment": torch.zeros(SIZE, dtype=torch.float64), "first_moment": start}
    upload, _ = run(replace(RULE, aggregate_first=True), state=state, earlier=8)
    fresh, _ = run(
        replace(RULE, aggregate_first=True), state={**state, "first_moment": start * 0}, earlier=8
    )
    torch.testing.assert_close(
        upload.state["first_moment"] - fresh.state["first_moment"], start * 0.9**STEPS
    )


def test_without_aggregation_nothing_but_the_update_is_uploaded():
    upload, moment = run(replace(RULE, aggregate_second=False, counter="local"), state={})
    assert dict(upload.state) == {}
    assert moment.steps == STEPS


def test_gradient_descent_is_the_sum_of_its_gradients():
    upload = GradientDescent(0.0).run(
        Broadcast(torch.zeros(SIZE, dtype=torch.float64), {}, RATE, STEPS, 0), Gradients(), Seen()
    )
    torch.testing.assert_close(upload.update, -RATE * Gradients().answers.sum(0))


@pytest.mark.parametrize(("index", "expected"), [(0, 0.2), (5, 0.1), (10, 0.0)])
def test_cosine_decay_starts_at_the_rate_and_ends_at_zero(index: int, expected: float):
    assert cosine_learning_rate(0.2, index, 10) == pytest.approx(expected)


@pytest.mark.parametrize("rule", [RULE, GradientDescent(0.0)], ids=["adamw", "descent"])
def test_a_gradient_is_gone_before_the_next_is_formed(rule):
    class Watched(Gradients):
        given: weakref.ref | None = None
        gone: tuple[bool, ...] = ()

        def gradient(self, parameters):
            if self.given is not None:
                self.gone += (self.given() is None,)
            answer = super().gradient(parameters).clone()
            self.given = weakref.ref(answer)
            return answer

    theta, oracle = torch.ones(SIZE, dtype=torch.float64), Watched()
    state = {"second_moment": torch.zeros(SIZE, dtype=torch.float64)}
    rule.run(Broadcast(theta, state, RATE, STEPS, 0), oracle, Seen())
    assert oracle.gone == (True,) * (STEPS - 1)
