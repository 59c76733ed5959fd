"""What the ledger declares of a rule that adapts is what the spec allows, number by number."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from audit.accounting.budget import Steps, budget
from audit.checks.shared import adaptive
from audit.checks.shared.adaptive import _decays, affordable, declared, turns
from audit.reading.bundle import Bundle
from audit.reading.ledger_lines import Adaptation, Decay
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

    # Two rises make the third round's noise fall; a fall in between begins the count again.
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


@pytest.mark.parametrize(
    ("patience", "slopes", "falls"),
    [
        # A slope of nothing is no fall of the loss; however small, one above it is.
        (1, [0.0, 1e-9, 2.0, -1.0, 0.5], [0, 0, 1, 2, 2, 3]),
        (2, [1.0, 1e-9, 0.0, 1.0, 0.0], [0, 0, 1, 1, 1, 1]),
        (2, [1.0, 1.0, 1.0, 1.0, 1.0], [0, 0, 1, 1, 2, 2]),
        (3, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1, 2, 2]),
        (3, [1.0, 1.0, -1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0, 0, 0, 1]),
        (1, [], [0]),
    ],
)
def test_noise_falls_once_for_each_row_of_rises(patience, slopes, falls):
    rounds = [
        SimpleNamespace(round=index, released={"slope": slope})
        for index, slope in enumerate(slopes)
    ]
    spends = [SimpleNamespace(round=index) for index in (len(slopes), 0)]
    ledger = SimpleNamespace(rounds=rounds, spends=spends)
    assert _decays(Decay(0.8, patience, 0.5), ledger) == falls
    if slopes:
        ledger.rounds = rounds[:-1]
        with pytest.raises(FieldError, match="slope is missing"):
            _decays(Decay(0.8, patience, 0.5), ledger)


def test_without_a_limit_all_rounds_have_the_most_steps(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for adaptation in (None, Adaptation(7, None, False, None)):
        numbers = asked(monkeypatch, 4.0)
        assert of_steps(changed(iterating, header={"adaptation": adaptation}), 3, 4, 4) == []
        # Ten rounds of the steps of the one before: 30 and 40 of 70.
        assert [one[2] for one in numbers] == [30.0, 40.0]
        numbers.clear()
        assert of_steps(changed(iterating, header={"adaptation": adaptation}), 3, 9, 4) != []
        assert [one[2] for one in numbers] == [30.0, 70.0]


def test_a_round_after_one_that_nobody_was_charged_for_goes_by_the_header_s_steps(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = asked(monkeypatch, 4.0)
    first = iterating.readable_ledger.spends[0]
    spends = (replace(first, round=0, steps=2), replace(first, round=2, steps=4))
    turns(iterating.readable_spec, replace(iterating.readable_ledger, spends=spends),
          iterating.header, [])  # fmt: skip
    assert [one[2] for one in numbers] == [30.0]


def test_each_round_goes_by_the_estimate_of_the_one_before(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = asked(monkeypatch, 4.0)
    rounds = tuple(
        replace(item, released={"strong_convexity": 0.25 + item.round})
        for item in iterating.readable_ledger.rounds
    )
    run = changed(
        iterating,
        spec=lambda s: s["algorithm"]["local_iterations"].update(estimate=True),
        ledger={"rounds": rounds},
    )
    assert of_steps(run, 3, 4, 4) == []
    assert [one[0] for one in numbers] == [0.25, 1.25]


@pytest.mark.parametrize(("heterogeneity", "right"), [(0.0, True), (0.5, True), (-1e-9, False)])
def test_heterogeneity_is_a_number_from_nothing(
    iterating: Bundle, heterogeneity: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = asked(monkeypatch, 4.0)
    section = {"heterogeneity": heterogeneity}
    run = changed(iterating, spec=lambda s: s["algorithm"]["local_iterations"].update(section))
    if right:
        assert of_steps(run, 3, 4) == []
        assert numbers[0][1] == heterogeneity
    else:
        with pytest.raises(FieldError, match="heterogeneity is not a number from 0"):
            of_steps(run, 3, 4)


def test_an_attempt_that_is_made_again_has_the_steps_that_are_left_then(
    iterating: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, 7.0)
    run = changed(iterating, header={"adaptation": Adaptation(7, 16, False, None)})
    first = run.readable_ledger.spends[0]

    def said(*charges: tuple[int, int, int]) -> list[str]:
        spends = tuple(
            replace(first, line=10 + place, round=index, attempt=attempt, steps=steps)
            for place, (index, attempt, steps) in enumerate(charges)
        )
        reasons: list[str] = []
        turns(run.readable_spec, replace(run.readable_ledger, spends=spends), run.header, reasons)
        return reasons

    # Of 16 steps 3 and 7 are gone when the second round begins again; its clients share its steps.
    assert said((0, 1, 3), (1, 1, 7), (1, 2, 6)) == []
    assert said((0, 1, 3), (1, 1, 7), (1, 1, 7), (1, 2, 6), (1, 2, 6)) == []
    assert said((0, 1, 3), (1, 1, 7), (1, 2, 7)) == [
        "ledger.jsonl:12: 7 local steps, but the rule gives 6"
    ]


@pytest.mark.parametrize("of_a_person", [1, 3])
@pytest.mark.parametrize(
    ("spent", "fits"),
    [(2.0 * 1.005 + 1e-3, True), (2.0100000001 + 1e-3, False), (0.1, True), (2.005, True)],
)
def test_a_target_pays_for_the_limit_of_the_smallest_client_that_has_a_record(
    spent: float, fits: bool, of_a_person: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[tuple[object, ...]] = []

    def cost(*given: object) -> object:
        asked_for.append(given)
        return "the whole"

    def paid(history: list[object], delta: float) -> SimpleNamespace:
        assert (history, delta) == (["the whole"], 1e-5)
        return SimpleNamespace(headline=spent)

    monkeypatch.setattr(adaptive, "cost", cost)
    monkeypatch.setattr(adaptive, "budget", paid)
    numbers = {"noise_multiplier": 1.5, "expected_batch_size": 12.0, "delta": 1e-5}
    header = SimpleNamespace(
        adaptation=Adaptation(7, 40, False, None), records=(60, 0, 1, 2), sampling="poisson",
        sampling_rate=0.25, declared=numbers.__getitem__, clients_per_person=of_a_person,
    )  # fmt: skip
    spends = tuple(
        SimpleNamespace(queries_per_step=each, round=0, attempt=1, steps=3) for each in (1, 3, 2)
    )
    reasons: list[str] = []
    spec = {"privacy": {"target_epsilon": 2.0}}
    affordable(spec, SimpleNamespace(spends=spends), header, reasons)
    steps = 40 * of_a_person
    assert asked_for == [("poisson", 1.5, 3, 12.0, 1, steps, 0.25)]
    said = [] if fits else [f"adaptation: {steps} steps cost 2.011, more than the target of 2"]
    assert reasons == said


@pytest.mark.parametrize("name", ["patience", "maximum"])
def test_one_is_the_least_that_a_rule_may_wait_or_step(name):
    if name == "patience":
        section = {"noise_decay": {"factor": 0.8, "patience": 1, "floor": 0.5}}
        spec = {"algorithm": section, "federation": {"local_steps": 3}}
        assert faults(spec, Adaptation(3, None, True, Decay(0.8, 1, 0.5))) == []
    else:
        spec = {"algorithm": {"local_iterations": {"maximum": 1, "estimate": False}}}
        assert faults(spec, Adaptation(1, 40, False, None)) == []
