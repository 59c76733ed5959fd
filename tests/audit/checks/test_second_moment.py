"""The check "second-moment": when it is asked, where intervals lie, and what each fault says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from audit.checks import second_moment
from audit.checks.second_moment import (
    _correction_tests,
    _exchanged_bits,
    _Recursion,
    _shift_tests,
    _without_evidence,
    shift_interval,
)
from audit.reading.bundle import Bundle, open_bundle
from audit.statistics.intervals import FALSE_ALARM, gamma_interval, skewed_upper_end
from audit.statistics.moments import InnovationSums
from audit.untrusted.fields import FieldError
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_run import Settings, build_run

NAME = "second-moment"


@pytest.mark.parametrize(
    ("algorithm", "verdict", "said"),
    [
        ({"name": "dp-fedavg"}, "NOT APPLICABLE", "dp-fedavg keeps no second moment"),
        # Running maxima and moments of one query of two are another recursion.
        ({"name": "dp-fafed", "beta2": 0.9}, "NOT APPLICABLE", "is not the recursion tested"),
        ({"name": "dp-fedlada", "beta2": 0.9}, "NOT APPLICABLE", "is not the recursion tested"),
        (
            {"name": "dp-fedadamw", "beta2": 0.9, "decay": "coupled"},
            "NOT APPLICABLE",
            "dp-fedadamw subtracts no noise from its second moment",
        ),
        (
            {
                "name": "dp-fedadamw", "beta2": 0.9, "decay": "coupled",
                "second_moment": {"debias": False},
            },
            "NOT APPLICABLE",
            "dp-fedadamw subtracts no noise from its second moment",
        ),
        (
            {
                "name": "dp-fedadamw", "beta2": 0.9, "decay": "coupled",
                "second_moment": {"debias": True},
            },
            "NOT VERIFIED",
            "with coupled decay the second moment follows the weights as well",
        ),
        (
            {"name": "dp-fedadamw", "beta2": 0.9, "second_moment": {"debias": False}},
            "NOT VERIFIED",
            "dp-fedadamw keeps a second moment but the evidence records none",
        ),
        (
            {"name": "dp-fedadamw", "beta2": 0.9, "decay": "decoupled"},
            "NOT VERIFIED",
            "dp-fedadamw keeps a second moment but the evidence records none",
        ),
    ],
)  # fmt: skip
def test_only_a_rule_that_subtracts_no_noise_may_leave_its_moment_out_of_the_evidence(
    algorithm: dict[str, Any], verdict: str, said: str
) -> None:
    found = _without_evidence(algorithm)
    assert found.verdict.value == verdict
    assert said in found.measurement


def test_a_layout_without_a_moment_is_judged_by_what_the_spec_says(of_records: Bundle) -> None:
    layout = replace(of_records.layout(), beta2=None)
    run = replace(changed(of_records), _layout=layout)
    assert says(run, NAME) == (
        "NOT VERIFIED",
        "dp-fedadamw keeps a second moment but the evidence records none",
    )
    nameless = replace(
        changed(of_records, spec=lambda s: s["algorithm"].pop("name")), _layout=layout
    )
    assert says(nameless, NAME) == ("FAIL", "spec.yaml: name is missing")
    with pytest.raises(FieldError):
        _without_evidence({})


def test_the_interval_of_a_shift_is_the_widest_of_three_laws_and_of_rounding() -> None:
    alpha = 1e-3
    reach = -stats.norm.ppf(alpha / 2.0)
    # Narrow beside its mean: hardly skewed.
    low, high = shift_interval(100.0, 4.0, 0.0, 0.0, alpha)
    gamma = gamma_interval(100.0, 4.0, alpha)
    assert low == pytest.approx(min(gamma[0], 100.0 - 2.0 * reach), rel=1e-12)
    assert high == pytest.approx(max(gamma[1], 100.0 + 2.0 * reach), rel=1e-12)
    # As wide as its mean: a gamma law cannot be negative, and the normal one is.
    low, high = shift_interval(1.0, 1.0, 0.0, 0.0, alpha)
    assert low == pytest.approx(1.0 - reach)
    assert high == pytest.approx(gamma_interval(1.0, 1.0, alpha)[1])
    # More skewed than the gamma law of two moments, whose third cumulant is 2.
    skewed = skewed_upper_end(1.0, 1.0, 2.5, alpha / 2.0)
    assert skewed > high
    assert shift_interval(1.0, 1.0, 2.5, 0.0, alpha)[1] == pytest.approx(skewed)
    assert shift_interval(1.0, 1.0, 2.5, 0.25, alpha) == pytest.approx((low - 0.25, skewed + 0.25))


def test_beside_little_noise_a_normal_law_is_wider_than_the_gamma_law_on_both_sides() -> None:
    # Nearly all of the mass of a gamma law that is so much wider than its mean lies at 0.
    reach = 1000.0 * -stats.norm.ppf(5e-4)
    assert gamma_interval(1.0, 1e6, 1e-3)[1] < 1.0
    assert shift_interval(1.0, 1e6, 0.0, 0.0, 1e-3) == pytest.approx((1.0 - reach, 1.0 + reach))


@pytest.mark.parametrize("over", [1.0, -5.0])
def test_each_block_and_their_sum_have_an_interval_of_their_own(
    over: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cumulants of a mean over n coordinates count n-fold in the sum, by their order."""
    asked: list[tuple[float, ...]] = []
    alone: list[tuple[float, ...]] = []

    def shift(*given: float) -> tuple[float, float]:
        asked.append(given)
        return given[0] - 4.0, given[0] + (6.0 if over > 0.0 else 2.0)

    def gamma(*given: float) -> tuple[float, float]:
        alone.append(given)
        return given[0] - (5.0 if over > 0.0 else 0.5), given[0] + 1.0

    monkeypatch.setattr(second_moment, "shift_interval", shift)
    monkeypatch.setattr(second_moment, "gamma_interval", gamma)
    sums = InnovationSums(
        total=np.array([10.0, 20.0]), expected=np.array([8.0, 16.0]), variance=np.array([3.0, 5.0]),
        third=np.array([7.0, 11.0]), noise_variance=np.array([1.0, 2.0]),
        rounding=np.array([0.25, 0.5]),
    )  # fmt: skip
    private: dict[str, Any] = {}
    pooled, widths = _shift_tests(sums, np.array([2.0, 3.0]), ["a", "b"], [], private)
    alpha = FALSE_ALARM / 3
    assert asked == [
        (8.0, 3.0, 7.0, 0.25, alpha),
        (16.0, 5.0, 11.0, 0.5, alpha),
        (64.0, 3.0 * 4 + 5.0 * 9, 7.0 * 8 + 11.0 * 27, 2.0, alpha),
    ]
    assert alone == [(8.0, 1.0, alpha), (16.0, 2.0, alpha)]
    assert pooled == (6.0 if over > 0.0 else 4.0) / 64.0
    assert widths == ([5.0 / 8, 5.0 / 16] if over > 0.0 else [1.0 / 8, 1.0 / 16])
    assert private == {"shift_ratio": {"block a": 1.25, "block b": 1.25, "all blocks": 1.25}}


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (10.0, 12.0, None),
        (8.0, 10.0, None),
        (10.5, 12.0, "block a: the shift is below its interval about (1-beta2^tau) Phi"),
        (8.0, 9.5, "block a: the shift is above its interval about (1-beta2^tau) Phi"),
    ],
)
def test_a_shift_at_an_end_of_its_interval_lies_in_it(
    low: float, high: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_moment, "shift_interval", lambda *_: (low, high))
    sums = InnovationSums(*(np.array([10.0]) for _ in range(6)))
    reasons: list[str] = []
    _shift_tests(sums, np.array([1.0]), ["a"], reasons, {})
    assert reasons == ([said, said.replace("block a", "all blocks")] if said else [])


def corrected(**changes: Any) -> list[str]:
    """What is wrong with a round of one step and beta2 = 1/2, whose 1 - beta2^tau is 1/2."""
    given = {
        "noisy": np.array([[0.5]]), "corrected": np.array([[1.0]]), "steps": np.array([1]),
        "subtracted": np.array([0.25]),
    }  # fmt: skip
    rule = {"beta2": 0.5, "restarts": False, "debias": True, "local_counter": False}
    rule |= {name: changes.pop(name) for name in list(changes) if name in rule}
    earlier = changes.pop("earlier", 0)
    evidence: Any = SimpleNamespace(batch_size=np.zeros((1, 1)))
    moment: Any = SimpleNamespace(**{**given, **changes})
    reasons: list[str] = []
    promised: Any = SimpleNamespace(**rule)
    _correction_tests(7, evidence, moment, promised, 0.25, earlier, reasons)
    return reasons


def test_a_divisor_and_a_subtracted_term_may_be_off_by_all_of_their_tolerance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert corrected() == []
    monkeypatch.setattr(second_moment, "_RELATIVE", 0.25)
    assert corrected(noisy=np.array([[0.625]])) == []
    assert corrected(noisy=np.array([[0.375]])) == []
    assert len(corrected(noisy=np.array([[0.640625]]))) == 1
    assert len(corrected(noisy=np.array([[0.359375]]))) == 1
    for off, wrong in ((1e-6, False), (np.nextafter(1e-6, 1.0), True)):
        monkeypatch.setattr(second_moment, "relative_difference", lambda *_, off=off: off)
        told = ["round 7: the term subtracted is not Phi = (sigma C/B)^2"]
        assert corrected() == (told if wrong else [])


@pytest.mark.parametrize(
    ("local", "restarts", "named"),
    [(True, False, True), (False, False, False), (True, True, False), (False, True, False)],
)
def test_the_local_counter_is_named_where_it_is_promised_and_rounds_go_on(
    local: bool, restarts: bool, named: bool
) -> None:
    # Divided by 1/4 in place of 1/2.
    said = corrected(corrected=np.array([[2.0]]), local_counter=local, restarts=restarts)
    assert said == [
        "from round 7 on the bias correction does not divide by 1-beta2^tau with tau = 1: v-hat "
        "is 2 times the unbiased value" + (" (the local counter)" if named else "")
    ]


def test_all_steps_count_where_rounds_go_on_and_those_of_the_round_where_they_do_not() -> None:
    # After two steps 1 - beta2^tau is 3/4.
    two = {"noisy": np.array([[0.75]]), "steps": np.array([2])}
    assert corrected(earlier=1, **two) == []
    assert corrected(earlier=1, restarts=True) == []
    assert corrected(earlier=1)[-1] == "round 7: the recorded number of steps tau is not 2"
    assert "the recorded number of steps tau is not 1" in corrected(restarts=True, **two)[-1]


def followed(monkeypatch: pytest.MonkeyPatch, *, floor: float | None, carried: bool) -> Any:
    """A recursion over one round of two clients and two blocks, and what was told."""
    reached: list[Any] = []

    def faults(*given: Any) -> list[str]:
        reached.append(given)
        return ["too many", "too few"]

    monkeypatch.setattr(second_moment, "floor_faults", faults)
    monkeypatch.setattr(second_moment, "accumulate", lambda *_: np.array([[1.0, 2.0], [3.0, 6.0]]))
    monkeypatch.setattr(second_moment, "_correction_tests", lambda *_: None)
    rule: Any = SimpleNamespace(beta2=0.5, floor=floor, carried=carried)
    sizes, zero = np.array([4.0, 6.0]), np.zeros(2)
    found = _Recursion(rule, 0.25, sizes, 24, InnovationSums.start(2), zero, zero, zero)
    evidence: Any = SimpleNamespace(batch_size=np.zeros((2, 3)), clients=np.array([5, 7]))
    moment: Any = SimpleNamespace(
        corrected="the corrected", floored=np.array([[1, 2], [0, 3]]),
        noisy=np.array([[1.0, 5.0], [3.0, 6.0]]),
    )  # fmt: skip
    reasons: list[str] = []
    found.follow(4, evidence, moment, reasons)
    if floor is not None:
        assert reached == [("the corrected", moment.floored, sizes, 0.25, floor)]
    return found, reasons


def test_a_round_hands_on_the_mean_of_its_clients_by_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on, told = followed(monkeypatch, floor=0.125, carried=True)
    assert told == ["round 4: too many", "round 4: too few"]
    assert on.start.tolist() == [2.0, 4.0]
    assert on.released.tolist() == [2.0, 5.5]
    assert (on.tau, on.earlier, on.floored, on.counted) == (3, 3, 6.0, 20.0)
    anew, told = followed(monkeypatch, floor=None, carried=False)
    assert told == ["round 4: a floor was reached where nothing is subtracted"]
    assert anew.start.tolist() == [0.0, 0.0]
    assert (anew.tau, anew.earlier) == (3, 0)


@pytest.mark.parametrize(
    ("pooled", "verdict", "blocks"),
    [(0.49, "PASS", "1 of 2"), (0.5, "NOT VERIFIED", None), (0.51, "NOT VERIFIED", None)],
)
def test_an_interval_as_wide_as_the_margin_shows_nothing(
    of_records: Bundle,
    pooled: float,
    verdict: str,
    blocks: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(second_moment, "_shift_tests", lambda *_: (pooled, [0.5, 0.499]))
    found = judged(of_records, NAME)
    assert found.verdict.value == verdict
    assert blocks is None or f"for {blocks} blocks on their own" in (found.power or "")
    assert "share_of_coordinates_at_the_floor" in found.private
    assert {"tau", "phi", "blocks"} == set(found.details)
    # A fault is told however little could be shown.
    fault = moment(of_records, 1, steps=at((2,), lambda v: v + 1))
    assert says(fault, NAME) == ("FAIL", "round 1: the recorded number of steps tau is not 6")


def test_of_whole_clients_the_question_does_not_arise(of_clients: Bundle) -> None:
    assert says(of_clients, NAME) == (
        "NOT APPLICABLE",
        "at client level local steps see no noise, so none enters their second moments",
    )


def test_what_is_printed_beside_each_block_follows_from_public_numbers(
    of_records: Bundle,
) -> None:
    s = Settings()
    phi = (s.noise_multiplier * s.clipping_norm / s.expected_batch_size) ** 2
    steps = s.rounds * s.local_steps
    # A mean of n squares of noise has variance 2Φ²/n. Every step counts by its weight, and is
    # averaged over the clients of its round.
    weights = (1 - s.beta2) * s.beta2 ** np.arange(steps)
    for block in judged(of_records, NAME).details["blocks"]:
        variance = np.sum(weights**2) * 2 * phi**2 / block["size"] / s.clients_per_round
        deviations = stats.norm.isf(FALSE_ALARM / 2)
        assert block["half_width"] == pytest.approx(deviations * np.sqrt(variance), rel=1e-9)
        place = int(block["name"].removeprefix("layer-"))
        last = of_records.round_evidence(s.rounds - 1).second_moment
        assert last is not None
        assert block["released"] == pytest.approx(float(last.noisy[:, place].mean()))


def test_a_moment_that_starts_anew_has_the_variance_of_one_round(tmp_path: Path) -> None:
    s = Settings(aggregation="none")
    details = judged(open_bundle(build_run(tmp_path / "run", s)), NAME).details
    phi = (s.noise_multiplier * s.clipping_norm / s.expected_batch_size) ** 2
    weights = (1 - s.beta2) * s.beta2 ** np.arange(s.local_steps)
    variance = np.sum(weights**2) * 2 * phi**2 / 240 / s.clients_per_round
    assert details["tau"] == s.local_steps
    deviations = stats.norm.isf(FALSE_ALARM / 2)
    assert details["blocks"][0]["half_width"] == pytest.approx(deviations * np.sqrt(variance))


def moment(bundle: Bundle, index: int, **changes: Any) -> Bundle:
    found = bundle.round_evidence(index).second_moment
    assert found is not None
    made = {name: change(getattr(found, name).copy()) for name, change in changes.items()}
    return changed(bundle, evidence={index: {"second_moment": replace(found, **made)}})


def at(place: tuple[int, ...], change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def apply(array: Any) -> Any:
        array[place] = change(array[place])
        return array

    return apply


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corrected": at((1, 2), lambda v: 0.0)}, "round 1: a second moment is not positive"),
        ({"noisy": at((0, 0), lambda v: 0.0)}, "round 1: a second moment is not positive"),
        (
            {"corrected": at((1, 2), lambda v: v * (1 + 1.1e-4))},
            "from round 1 on the bias correction does not divide by 1-beta2^tau with tau = 6: "
            "v-hat is 1 times the unbiased value",
        ),
        ({"corrected": at((1, 2), lambda v: v * (1 + 0.9e-4))}, None),
        (
            {"steps": at((2,), lambda v: v + 1)},
            "round 1: the recorded number of steps tau is not 6",
        ),
        (
            {"subtracted": at((2,), lambda v: v * (1 + 1.1e-6))},
            "round 1: the term subtracted is not Phi = (sigma C/B)^2",
        ),
        ({"subtracted": at((2,), lambda v: v * (1 + 0.9e-6))}, None),
    ],
)
def test_each_fault_of_the_correction_is_named(
    of_records: Bundle, changes: dict[str, Any], said: str | None
) -> None:
    verdict, text = says(moment(of_records, 1, **changes), NAME)
    if said is None:
        assert verdict == "PASS"
    else:
        assert verdict == "FAIL"
        assert said in text


def test_a_rule_without_debiasing_subtracts_nothing_and_raises_nothing(tmp_path: Path) -> None:
    run = open_bundle(build_run(tmp_path / "run", Settings(debias=False)))
    assert says(run, NAME)[0] == "PASS"
    assert says(moment(run, 1, subtracted=lambda v: v + 1e-9), NAME) == (
        "FAIL",
        "round 1: the term subtracted is not 0 (debiasing is off)",
    )
    raised = moment(run, 2, floored=at((0, 0), lambda v: 1))
    assert says(raised, NAME) == (
        "FAIL",
        "round 2: a floor was reached where nothing is subtracted",
    )


def test_a_local_counter_where_rounds_go_on_is_named(tmp_path: Path) -> None:
    run = open_bundle(build_run(tmp_path / "run", Settings(counter="local")))
    assert "(the local counter)" in says(run, NAME)[1]
    # Of one round the two counters are the same.
    once = open_bundle(build_run(tmp_path / "one", Settings(counter="local", rounds=1)))
    assert "(one round: the local counter makes no difference yet)" in says(once, NAME)[1]


def test_of_counters_that_agree_nothing_is_told_where_there_is_but_one(
    of_records: Bundle, tmp_path: Path
) -> None:
    anew = Settings(counter="local", aggregation="none")
    for run in (of_records, open_bundle(build_run(tmp_path / "run", anew))):
        verdict, text = says(run, NAME)
        assert verdict == "PASS"
        assert text.endswith("the coordinates at the floor are correct")


def test_a_round_that_records_no_moment_is_not_verified(of_records: Bundle) -> None:
    run = changed(of_records, evidence={2: {"second_moment": None}})
    assert says(run, NAME) == ("NOT VERIFIED", "round 2 records no second moment")


@pytest.mark.parametrize("name", ["noise_multiplier", "clipping_norm", "expected_batch_size"])
def test_without_the_noises_variance_nothing_is_verified(of_records: Bundle, name: str) -> None:
    run = changed(of_records, header={name: None})
    assert says(run, NAME) == ("NOT VERIFIED", "the ledger's header lacks sigma, C or B")


def test_a_shift_outside_its_interval_names_block_and_side(of_records: Bundle) -> None:
    def shifted(factor: float) -> str:
        found = of_records.round_evidence(3).second_moment
        assert found is not None
        noisy = found.noisy.copy()
        noisy[:, 0] *= factor
        corrected = found.corrected.copy()
        corrected[:, 0] *= factor
        changes = replace(found, noisy=noisy, corrected=corrected)
        return says(changed(of_records, evidence={3: {"second_moment": changes}}), NAME)[1]

    assert "block layer-0: the shift is above its interval" in shifted(4.0)
    assert "block layer-0: the shift is below its interval" in shifted(0.1)
    assert "block layer-1" not in shifted(4.0)


def test_a_run_that_is_too_small_for_the_interval_shows_nothing(tmp_path: Path) -> None:
    tiny = Settings(rounds=1, local_steps=1, clients_per_round=1, sizes=(4, 4, 4), sample=3)
    found = judged(open_bundle(build_run(tmp_path / "run", tiny)), NAME)
    assert found.verdict.value == "NOT VERIFIED"
    assert found.measurement.startswith("the interval of the shift is wider than the equivalence")
    assert found.power == "none: the run is too small for this check"


def test_the_blocks_that_are_conclusive_on_their_own_are_counted(of_records: Bundle) -> None:
    power = judged(of_records, NAME).power or ""
    assert "is shown pooled and for 3 of 3 blocks on their own" in power
    # Of two participations the block of 10 coordinates is not enough.
    short = changed(of_records, header={"rounds": 1})
    assert "is shown pooled and for 2 of 3 blocks on their own" in (judged(short, NAME).power or "")


def test_the_share_of_coordinates_at_the_floor_is_of_all_of_them(of_records: Bundle) -> None:
    raised = total = 0
    for index in range(4):
        found = of_records.round_evidence(index).second_moment
        assert found is not None
        raised += int(found.floored.sum())
        total += 340 * len(found.floored)
    private = judged(of_records, NAME).private
    assert private["share_of_coordinates_at_the_floor"] == pytest.approx(raised / total)


def test_a_moment_is_handed_on_with_the_bits_of_its_kind_or_those_of_float32(
    of_records: Bundle,
) -> None:
    header = of_records.header
    rules: Any = {whole: SimpleNamespace(whole=whole) for whole in (True, False)}
    assert _exchanged_bits(header, rules[True]) == 16
    assert _exchanged_bits(header, rules[False]) == 20
    bare = replace(header, grid=None)
    assert _exchanged_bits(bare, rules[True]) == _exchanged_bits(bare, rules[False]) == 24
