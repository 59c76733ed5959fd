"""What the ledger declares of a rule that adapts is what the spec allows, number by number."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from audit.accounting.budget import Steps, budget
from audit.checks.shared import adaptive
from audit.checks.shared.adaptive import _decays, affordable, declared, turns
from audit.reading.adaptation import Adaptation, Decay
from audit.reading.bundle import Bundle
from audit.untrusted.fields import FieldError
from tests.audit.checks.opened import changed

DECAYING = {
    "algorithm": {"noise_decay": {"factor": 0.8, "patience": 2, "floor": 0.5}},
    "federation": {"local_steps": 3},
}
DECAY = Decay(0.8, 2, 0.5)
ITERATING = {"algorithm": {"local_iterations": {"maximum": 7, "estimate": True}}}


def faults(spec, adaptation) -> list[str]:
    reasons: list[str] = []
    declared(spec, SimpleNamespace(adaptation=adaptation), reasons)
    return reasons


def test_what_the_spec_allows_is_no_fault():
    assert faults(DECAYING, Adaptation(3, None, True, DECAY)) == []
    assert faults(ITERATING, Adaptation(7, 40, True, None)) == []
    assert faults({"algorithm": {}}, None) == []


@pytest.mark.parametrize(
    "found",
    [
        None,
        Adaptation(4, None, True, DECAY),
        Adaptation(3, 40, True, DECAY),
        Adaptation(3, None, False, DECAY),
        Adaptation(3, None, True, None),
        Adaptation(3, None, True, Decay(0.9, 2, 0.5)),
        Adaptation(3, None, True, Decay(0.8, 1, 0.5)),
        Adaptation(3, None, True, Decay(0.8, 2, 0.4)),
    ],
)
def test_another_decay_than_the_specs_is_a_fault(found):
    assert faults(DECAYING, found) == [
        "adaptation: the ledger's header does not declare the spec's decay"
    ]


@pytest.mark.parametrize(
    "found",
    [
        None,
        Adaptation(8, 40, True, None),
        Adaptation(7, None, True, None),
        Adaptation(7, 40, False, None),
        Adaptation(7, 40, True, DECAY),
    ],
)
def test_other_iterations_than_the_specs_are_a_fault(found):
    assert faults(ITERATING, found) == [
        "adaptation: the ledger's header does not declare the spec's iterations"
    ]


def test_a_rule_that_does_not_adapt_may_declare_nothing():
    assert faults({"algorithm": {}}, Adaptation(3, None, True, DECAY)) == [
        "adaptation: the ledger declares one, but the spec's rule does not adapt"
    ]


@pytest.mark.parametrize(
    "section",
    [
        {"local_iterations": {"maximum": 0, "estimate": True}},
        {"local_iterations": {"maximum": 7, "estimate": 1}},
        {"noise_decay": {"factor": 0.0, "patience": 2, "floor": 0.5}},
        {"noise_decay": {"factor": 0.8, "patience": 0, "floor": 0.5}},
        {"noise_decay": {"factor": 0.8, "patience": 2, "floor": 0.0}},
        {"noise_decay": {"factor": 0.8, "patience": 2}},
    ],
)
def test_a_spec_without_a_usable_bound_is_refused(section):
    found = Adaptation(0, 40, True, None)
    with pytest.raises(FieldError):
        faults({"algorithm": section, "federation": {"local_steps": 3}}, found)


# What a round's charge must be.


@pytest.fixture(scope="module")
def iterating(of_records: Bundle) -> Bundle:
    """A run of ten rounds at most, whose local steps follow equation 9 of ALI-DPFL."""
    return changed(
        of_records,
        spec=lambda s: s["algorithm"].update(local_iterations=dict(SECTION)),
        header={"adaptation": Adaptation(7, 40, False, None), "rounds": 10},
    )


SECTION = {
    "minimum": 1,
    "maximum": 7,
    "estimate": False,
    "strong_convexity": 0.5,
    "heterogeneity": 0.1,
}


def of_steps(bundle: Bundle, *steps: int, noise: float = 1.5) -> list[str]:
    """What is wrong with charges of so many steps, round after round."""
    first = bundle.readable_ledger.spends[0]
    spends = tuple(
        replace(first, line=10 + index, round=index, steps=count, noise_multiplier=noise)
        for index, count in enumerate(steps)
    )
    reasons: list[str] = []
    ledger = replace(bundle.readable_ledger, spends=spends)
    turns(bundle.readable_spec, ledger, bundle.header, reasons)
    return reasons


def asked(monkeypatch: pytest.MonkeyPatch, best: float) -> list[tuple[float, ...]]:
    """Equation 9 gives this; what it is asked for."""
    found: list[tuple[float, ...]] = []

    def equation(*numbers: float) -> float:
        found.append(numbers)
        return best

    monkeypatch.setattr(adaptive, "local_steps_of_equation_9", equation)
    return found


def test_the_first_round_has_the_specs_steps_and_later_ones_those_of_equation_9(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = asked(monkeypatch, 4.2)
    assert of_steps(iterating, 3, 4, 4) == []
    assert of_steps(iterating, 4) == ["ledger.jsonl:10: 4 local steps, but the rule gives 3"]
    assert of_steps(iterating, 3, 5) == ["ledger.jsonl:11: 5 local steps, but the rule gives 4"]
    header = iterating.header
    variance = header.parameters * (1.5 * 0.5 / 12.0) ** 2
    # Convexity, heterogeneity, T·τ of the round before within the limit, C, and d·(σC/B)².
    assert numbers[0] == (0.5, 0.1, 30.0, 0.5, pytest.approx(variance))
    assert numbers[1] == (0.5, 0.1, 40.0, 0.5, pytest.approx(variance))


@pytest.mark.parametrize(
    ("best", "right"),
    [
        (4.49, {4}),
        (4.51, {5}),
        # Halfway between two numbers either is right.
        (4.5, {4, 5}),
        (4.5 - 0.9e-6, {4, 5}),
        (4.5 - 1.1e-6, {4}),
        (4.5 + 0.9e-6, {4, 5}),
        (4.5 + 1.1e-6, {5}),
        # Within the spec's bounds.
        (0.2, {1}),
        (99.0, {7}),
    ],
)
def test_steps_are_rounded_to_the_nearest_number_within_the_bounds(
    iterating: Bundle, best: float, right: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, best)
    assert {steps for steps in range(9) if not of_steps(iterating, 3, steps)} == right


def test_a_tie_is_told_with_both_numbers(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, 4.5)
    assert of_steps(iterating, 3, 6) == [
        "ledger.jsonl:11: 6 local steps, but the rule gives 4 or 5"
    ]


def test_no_round_has_more_steps_than_are_left(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, 7.0)
    # 3 + 5·7 = 38 of 40: two are left.
    assert of_steps(iterating, 3, 7, 7, 7, 7, 7, 2) == []
    assert of_steps(iterating, 3, 7, 7, 7, 7, 7, 3) == [
        "ledger.jsonl:16: 3 local steps, but the rule gives 2"
    ]


def test_where_each_round_can_have_one_step_alone_it_has_one(iterating: Bundle) -> None:
    for limit, right in ((10, 1), (9, 1), (11, 3)):
        run = changed(iterating, header={"adaptation": Adaptation(7, limit, False, None)})
        assert of_steps(run, right) == []
    bounded = changed(
        iterating,
        spec=lambda s: s["algorithm"]["local_iterations"].update(minimum=2),
        header={"adaptation": Adaptation(7, 10, False, None)},
    )
    # Never fewer than the spec's least, as long as there are any left.
    assert of_steps(bounded, 2) == []
    assert of_steps(bounded, 1) == ["ledger.jsonl:10: 1 local steps, but the rule gives 2"]


def test_a_rule_may_allow_one_step_at_most(iterating: Bundle) -> None:
    run = changed(iterating, spec=lambda s: s["algorithm"]["local_iterations"].update(maximum=1))
    assert of_steps(run, 1, 1) == []
    assert of_steps(run, 2) == ["ledger.jsonl:10: 2 local steps, but the rule gives 1"]
    for name in ("minimum", "maximum"):
        none = changed(
            iterating,
            spec=lambda s, name=name: s["algorithm"]["local_iterations"].update({name: 0}),
        )
        with pytest.raises(FieldError, match=name):
            of_steps(none, 1)


def test_an_estimate_goes_by_what_the_round_before_released(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = asked(monkeypatch, 4.0)
    rounds = tuple(
        replace(item, released={"strong_convexity": 0.25})
        for item in iterating.readable_ledger.rounds
    )
    run = changed(
        iterating,
        spec=lambda s: s["algorithm"]["local_iterations"].update(estimate=True),
        ledger={"rounds": rounds},
    )
    assert of_steps(run, 3, 4) == []
    assert numbers[0][0] == 0.25
    with pytest.raises(FieldError, match="strong_convexity"):
        of_steps(changed(run, ledger={"rounds": rounds[1:]}), 3, 4)


def test_noise_falls_after_as_many_rounds_as_patience_asks_for(of_records: Bundle) -> None:
    slopes = [1.0, 1.0, -1.0, 1.0, 1.0, 0.0]
    first = of_records.readable_ledger.rounds[0]
    rounds = tuple(
        replace(first, line=100 + index, round=index, released={"slope": slope})
        for index, slope in enumerate(slopes)
    )
    run = changed(
        of_records,
        header={"adaptation": Adaptation(3, None, True, DECAY), "rounds": 6},
        ledger={"rounds": rounds},
    )
    spend = of_records.readable_ledger.spends[0]

    def wrong(*shares: float) -> list[int]:
        spends = tuple(
            replace(spend, line=index, round=index, noise_multiplier=1.5 * share)
            for index, share in enumerate(shares)
        )
        reasons: list[str] = []
        ledger = replace(run.readable_ledger, spends=spends)
        turns(run.readable_spec, ledger, run.header, reasons)
        return [int(one.split(":")[1]) for one in reasons]

    # Two rises make the third round's noise fall; a fall in between begins the count anew.
    assert wrong(1.0, 1.0, 0.8, 0.8, 0.8, 0.64) == []
    assert wrong(1.0, 0.8, 0.8, 1.0, 0.8, 0.8) == [1, 3, 5]
    assert wrong(1.0, 1.0 + 1.1e-9, 0.8) == [1]


def test_without_a_rule_every_round_has_the_headers_steps(of_records: Bundle) -> None:
    assert of_steps(of_records, 3, 3) == []
    assert of_steps(of_records, 3, 4) == ["ledger.jsonl:11: 4 local steps, but the rule gives 3"]
    assert of_steps(of_records, 3, noise=1.5 * (1 + 1.1e-9)) == [
        "ledger.jsonl:10: noise_multiplier is not the 1.5 that the rule gives"
    ]


def test_the_limit_on_steps_is_what_the_target_pays_for(iterating: Bundle) -> None:
    # The smallest client that has records: q = 12/60, σ = 1.5, 40 steps.
    whole = budget([Steps(0.2, 1.5, 40)], 1e-5).headline

    def said(target: float, limit: int = 40, steps: int = 3, **header: object) -> list[str]:
        adaptation = Adaptation(7, limit, False, None)
        run = changed(
            iterating,
            spec=lambda s: s["privacy"].update(target_epsilon=target),
            header={"adaptation": adaptation, **header},
        )
        first = run.readable_ledger.spends[0]
        ledger = replace(run.readable_ledger, spends=(replace(first, steps=steps),))
        reasons: list[str] = []
        affordable(run.readable_spec, ledger, run.header, reasons)
        return reasons

    least = (whole - 1e-3) / 1.005
    assert said(least * 1.0001) == []
    assert said(least * 0.9999) == [
        f"adaptation: 40 steps cost {whole:.4g}, more than the target of {least * 0.9999:g}"
    ]
    empty = {"records": (0, *iterating.header.records[:1], *iterating.header.records[2:])}
    assert said(least * 1.0001, **empty) == []
    # Two queries on each batch leave σ/√2; the charge with the most of them counts.
    first = iterating.readable_ledger.spends[0]
    double = (first, replace(first, queries_per_step=2))
    reasons: list[str] = []
    spec = changed(iterating, spec=lambda s: s["privacy"].update(target_epsilon=least * 1.0001))
    ledger = replace(iterating.readable_ledger, spends=double)
    affordable(spec.readable_spec, ledger, iterating.header, reasons)
    cost = budget([Steps(0.2, 1.5 / 2**0.5, 40)], 1e-5).headline
    assert [one.split(",")[0] for one in reasons] == [f"adaptation: 40 steps cost {cost:.4g}"]
    assert said(99.0, steps=40) == []
    assert said(99.0, steps=41) == ["41 local steps were charged, more than the limit of 40"]
    # Without a limit, or before any charge, there is nothing to afford.
    reasons.clear()
    free = changed(iterating, header={"adaptation": Adaptation(7, None, False, None)})
    affordable({}, free.readable_ledger, free.header, reasons)
    affordable({}, replace(free.readable_ledger, spends=()), iterating.header, reasons)
    assert reasons == []


def test_before_any_charge_noise_has_not_fallen(of_records: Bundle) -> None:
    ledger = replace(of_records.readable_ledger, spends=())
    assert _decays(DECAY, ledger) == [0]
