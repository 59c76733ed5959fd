"""Rules that adapt, where steps or noise follow something that nobody accounts for."""

from __future__ import annotations

import dataclasses

from dpfedadamw.accounting.worst_case import SpendingBound
from dpfedadamw.algorithms.adaptive_iterations import IterationSchedule
from dpfedadamw.algorithms.adaptive_noise import NoiseSchedule
from dpfedadamw.algorithms.base import ScheduledRound
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy import oracle
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.units import record
from tests.faults.fault import Fault, FaultGroup, Patch
from tests.runs import small_spec

SIX_ROUNDS = {"rounds": 6, "overrides": ("algorithm.noise_decay.patience=1",)}


def ali():
    return small_spec("ali-dpfl")


def ali_for_six_rounds():
    return small_spec("ali-dpfl", rounds=6)


def adap():
    return small_spec("adap-dpfl", **SIX_ROUNDS)


def adap_that_diverges():
    overrides = (*SIX_ROUNDS["overrides"], "algorithm.learning_rate=8")
    return small_spec("adap-dpfl", rounds=6, overrides=overrides)


def hide_a_step(patch: Patch) -> None:
    """The ledger is charged for one step less than each round takes."""
    charges = RecordLevel.charges

    def told_less(self, current):
        fewer = max(1, current.plan.local_steps - 1)
        plan = dataclasses.replace(current.plan, local_steps=fewer)
        return charges(dataclasses.replace(current, plan=plan))

    patch.setattr(RecordLevel, "charges", told_less)


def hide_a_step_twice(patch: Patch) -> None:
    """As before, and the finished round says the same."""
    hide_a_step(patch)
    close = Federation._close

    def one_less(answer):
        steps, queries = answer.result.steps - 1, answer.result.queries - 1
        result = dataclasses.replace(answer.result, steps=steps, queries=queries)
        return dataclasses.replace(answer, result=result)

    def tell_less(self, current):
        answers = tuple(map(one_less, current.answers))
        return close(self, dataclasses.replace(current, answers=answers))

    patch.setattr(Federation, "_close", tell_less)


def greedy_steps(patch: Patch) -> None:
    next_round = IterationSchedule.next_round

    def greedy(self, state, inputs):
        more = next_round(self, state, inputs).local_steps
        return ScheduledRound(
            min(10, more + 1 if more < 10 else 9, inputs.step_limit - inputs.spent_steps)
        )

    patch.setattr(IterationSchedule, "next_round", greedy)


def beyond_the_budget(patch: Patch) -> None:
    patch.setattr(SpendingBound, "check", lambda *arguments: None)
    patch.setattr(IterationSchedule, "next_round", lambda self, state, inputs: ScheduledRound(10))


def a_limit_too_large(patch: Patch) -> None:
    solve = record.solve_step_limit
    patch.setattr(record, "solve_step_limit", lambda *given: solve(*given) + 3)


def less_noise_in_late_rounds(patch: Patch) -> None:
    """The noise falls by a tenth more than the ledger says, wherever it has fallen at all."""
    first = adap().privacy.noise_multiplier

    def falls_further(total, deviation, *rest, **more):
        return add_gaussian_noise(
            total, deviation * (0.9 if deviation < first else 1.0), *rest, **more
        )

    patch.setattr(oracle, "add_gaussian_noise", falls_further)


def falling_although_the_loss_does_not(patch: Patch) -> None:
    """Within what is accounted for, and charged as it is: but not what the rule says."""
    patch.setattr(
        NoiseSchedule,
        "next_round",
        lambda self, state, inputs: ScheduledRound(
            inputs.local_steps, max(self.floor, self.factor ** max(0, inputs.round_index - 1))
        ),
    )


def beyond_max_epsilon(patch: Patch) -> None:
    patch.setattr(Federation, "_allows", lambda self, index: True)


def claiming_what_was_spent(patch: Patch) -> None:
    """How much was spent followed the releases, so its ε is no guarantee."""
    patch.setattr(SpendingBound, "accounted", lambda self, entries: list(entries))


_ALI = "adaptive schedules whose accountant sees a mean number of steps"
_ADAP = "noise schedules that follow a loss"

GROUP = FaultGroup(
    110,
    "Rules that adapt",
    (
        Fault(
            "a-step-hidden-from-the-charge",
            "each round takes one step more than it is charged for",
            _ALI,
            ("promise",),
            ali,
            hide_a_step,
        ),
        Fault(
            "a-step-hidden-from-charge-and-round",
            "as before, and the finished round is noted with one step less",
            _ALI,
            # Evidence has a column a query, and the rule's own steps can be worked out again.
            ("promise", "integrity"),
            ali,
            hide_a_step_twice,
        ),
        Fault(
            "steps-that-are-not-the-rules",
            "more steps are taken than the rule gives the round",
            _ALI,
            ("promise",),
            ali,
            greedy_steps,
        ),
        Fault(
            "a-run-beyond-its-budget",
            "rounds go on when the limit on steps is used up",
            _ALI,
            ("promise", "accounting"),
            ali_for_six_rounds,
            beyond_the_budget,
        ),
        Fault(
            "a-limit-that-the-target-does-not-afford",
            "the limit on steps costs more than the target ε",
            _ALI,
            ("promise",),
            ali_for_six_rounds,
            a_limit_too_large,
        ),
        Fault(
            "a-limit-on-epsilon-that-nothing-keeps-to",
            "rounds go on when the spec's max_epsilon is used up",
            "training loops that only print the ε at which they should have ended",
            ("promise",),
            lambda: small_spec("dp-fedavg", overrides=("federation.max_epsilon=1",)),
            beyond_max_epsilon,
        ),
        Fault(
            "less-noise-in-late-rounds-alone",
            "noise falls further than the ledger says, in the rounds in which it falls",
            _ADAP,
            ("noise-scale",),
            adap,
            less_noise_in_late_rounds,
        ),
        Fault(
            "noise-that-falls-although-the-loss-does-not",
            "the noise multiplier falls every round, whatever was released",
            _ADAP,
            ("promise",),
            adap_that_diverges,
            falling_although_the_loss_does_not,
        ),
        Fault(
            "the-epsilon-of-what-happened-to-be-spent",
            "steps followed releases, and the ε of the steps that came of it is claimed",
            _ALI,
            ("accounting",),
            lambda: small_spec("ali-dpfl", clients_per_round=2),
            claiming_what_was_spent,
        ),
    ),
)
