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

from audit.checks.second_moment import _exchanged_bits, _without_evidence, shift_interval
from audit.reading.bundle import Bundle, open_bundle
from audit.statistics.intervals import FALSE_ALARM, gamma_interval, skewed_upper_end
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
            "from round 1 on the bias correction divides by something else than 1-beta2^tau with "
            "tau = 6: v-hat is 1 times what is unbiased",
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
        assert text.endswith("the coordinates at the floor as they must be")


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
