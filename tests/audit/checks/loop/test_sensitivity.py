"""Clipped sums of a loop and its probe: each bound, and what is told of whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import checks_of
from audit.checks.loop.steps import (
    UNGUARDED,
    UNGUARDED_UPDATE,
    UNTRAINED,
    _finite,
    _sums,
)
from audit.checks.loop.steps import (
    _judge_sensitivity as _judge,
)
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.updates import ABSENT, ADDED, ELSEWHERE, NOT_DRAWN, UPDATE_KINDS
from audit.reading.evidence import ProbeResults
from audit.reading.ledger_lines import Spend
from audit.reading.units import LOOP

C = 0.5
TOLERANCE = 1e-4


def charge(index: int = 0, line: int = 2, clip: float = C) -> Spend:
    return Spend(
        line=line, round=index, client=0, attempt=1, records=9, sampling="poisson",
        sampling_rate=0.5, expected_batch_size=4.5, clipping_norm=clip, noise_multiplier=1.0,
        steps=1, queries_per_step=1,
    )  # fmt: skip


def a_file(**changes: Any) -> Any:
    """Two steps of four and of no records, seen at two coordinates."""
    made = {
        "nonfinite": np.zeros((1, 2), np.int64),
        "clean": np.array([[0.6, 0.8], [0.0, 0.0]]),
        "expected": np.array([[0.6, 0.8], [0.0, 0.0]]),
        "clean_sum_squares": np.array([[[0.5, 0.5], [0.0, 0.0]]]),
        "batch_size": np.array([[4, 0]]),
        "raw_norms": np.array([0.1, 0.5, 0.6, 9.0]),
    }
    return SimpleNamespace(**{**made, **changes})


SUM = "file 3: the sum is not that of this step's records, each clipped to C over all trained"
LONG = "file 3: the sum is longer than its records, clipped to C, allow"


def sums(**changes: Any) -> list[str]:
    reasons: list[str] = []
    _sums(3, a_file(**changes), charge(), reasons)
    return [reason.split(" parameters")[0] for reason in reasons]


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan, 1e308])
def test_a_sum_that_has_no_size_is_that_of_no_records(wrong: float) -> None:
    """An infinite sum would allow any other one to differ from it."""
    expected = np.array(a_file().expected)
    expected[0, 1] = wrong
    assert sums(expected=expected) == [SUM]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("step", "allowed"),
    [
        # 2e-3 of C, and of the sum, whose norm is 1 in the first step.
        (0, 2e-3 * 1.5),
        (1, 2e-3 * 0.5),
    ],
)
def test_a_sum_is_that_of_its_records_but_for_rounding(
    step: int, allowed: float, sign: float
) -> None:
    for share, said in ((1.0 - 1e-9, []), (1.0 + 1e-9, [SUM])):
        clean = np.array(a_file().expected)
        clean[step] += sign * share * allowed * np.array([0.8, -0.6])
        assert sums(clean=clean) == said


def test_a_sum_may_be_off_by_just_what_is_allowed() -> None:
    # Nothing of a step without records, so that all is exact: 2e-3 of C.
    clean = np.array([[0.6, 0.8], [2e-3 * 0.5, 0.0]])
    assert sums(clean=clean) == []


@pytest.mark.parametrize(
    ("step", "most"), [(0, 4 * C * (1 + TOLERANCE) + C * TOLERANCE), (1, 5e-5)]
)
def test_a_sum_is_no_longer_than_its_records(step: int, most: float) -> None:
    for share, said in ((1.0 - 1e-9, []), (1.0 + 1e-9, [LONG])):
        squares = np.zeros((1, 2, 2))
        # Over all blocks together.
        squares[0, step] = (share * most) ** 2 * np.array([0.36, 0.64])
        assert sums(clean_sum_squares=squares) == said
    assert sums(clean=np.ones((2, 2)), clean_sum_squares=np.full((1, 2, 2), 99.0)) == [SUM, LONG]


def test_a_sum_may_be_just_as_long_as_its_records_allow() -> None:
    # Of C = 2^-1 and a batch of none it is 2^-1 * 1e-4, whose square has an exact root.
    allowed = 0 * C * (1 + TOLERANCE) + C * TOLERANCE
    assert np.sqrt(np.square(allowed)) == allowed
    squares = np.zeros((1, 2, 2))
    squares[0, 1, 0] = np.square(allowed)
    assert sums(clean_sum_squares=squares) == []


@pytest.mark.parametrize("step", [0, 1])
def test_a_gradient_that_is_not_finite_is_told_before_what_its_sum_is(step: int) -> None:
    nonfinite = np.zeros((1, 2), np.int64)
    nonfinite[0, step] = 1
    off = np.full((2, 2), 9.0)
    assert sums(nonfinite=nonfinite, clean=off) == ["file 3: a record's gradient is not finite"]


def a_probe(kinds: tuple[str, ...], reach: float = C, **changes: Any) -> ProbeResults:
    count = len(kinds)
    made = {
        "names": tuple(f"case {number}" for number in range(count)),
        "kinds": kinds,
        "clipping_norm": C,
        "batch_size": np.arange(3, 3 + count),
        "difference_norm": np.array([reach, *([0.0] * (count - 2)), 0.1]),
        "norm_with": np.full(count, C),
        "norm_without": np.full(count, C),
    }
    return ProbeResults(**{**made, **changes})


STEPS = ("long", ADDED, NOT_DRAWN, ABSENT, ELSEWHERE)


def judged(
    *, probe: ProbeResults | None = None, files: list[Any] | None = None, clients: bool = False,
    charges: tuple[Spend, ...] = (charge(), charge(1, 5)),
) -> Any:  # fmt: skip
    def probed() -> ProbeResults:
        if probe is None:
            raise UntrustedFileError("probe.npz", "is missing")
        return probe

    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(of_clients=clients, mechanism="gaussian"),
        readable_ledger=SimpleNamespace(spends=charges),
        loop_rounds=lambda: list(enumerate(files or [a_file(), a_file()])),
        probe_results=probed,
    )
    return _judge(bundle)


def test_records_are_counted_over_all_files_and_clipped_ones_above_c() -> None:
    found = judged(probe=a_probe(STEPS))
    assert found.verdict.value == "PASS"
    # Of 0.1, 0.5, 0.6 and 9 two lie above C = 0.5, in each file.
    assert found.private == {"records_used": 8, "share_clipped": 0.5}
    assert (found.details["steps"], found.details["probe"]["pairs"]) == (4, 5)
    assert found.qualifications == ()
    none = judged(probe=a_probe(STEPS), files=[a_file(raw_norms=np.zeros(0))])
    assert none.private == {"records_used": 0, "share_clipped": None}


def test_files_are_charged_one_by_one() -> None:
    with pytest.raises(UnverifiedError, match="file 1: was never charged"):
        judged(probe=a_probe(STEPS), charges=(charge(),))
    wide = judged(probe=a_probe(STEPS), charges=(charge(clip=0.05), charge(1, 5)))
    # A file's records are clipped to what its own charge says: four and two of eight here.
    assert wide.private["share_clipped"] == 0.75


def test_the_probe_clips_at_the_norm_of_the_last_line() -> None:
    other = "the probed step's clipping norm is not the ledger's C"
    # The last line is not the last file's here.
    charges = (charge(0, line=9), charge(1, line=5, clip=0.25))
    assert other not in judged(probe=a_probe(STEPS), charges=charges).measurement
    charges = (charge(0, line=5), charge(1, line=9, clip=0.25))
    assert other in judged(probe=a_probe(STEPS), charges=charges).measurement


WHOLE_STEPS = "the probe is not one of whole steps"
UNCLIPPED = "no probe record had to be clipped, so clipping was not exercised"


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (a_probe(STEPS, reach=float(np.nextafter(0.25, 1.0))), None),
        (a_probe(STEPS, reach=0.25), UNCLIPPED),
        (a_probe(STEPS[1:], reach=0.0), UNCLIPPED),
        (a_probe(("long", ADDED, NOT_DRAWN, ELSEWHERE)), WHOLE_STEPS),
        (a_probe(("long", ADDED, ABSENT, ELSEWHERE)), WHOLE_STEPS),
        (a_probe(("long", NOT_DRAWN, ABSENT, ELSEWHERE)), WHOLE_STEPS),
        (a_probe(("long", "long", ADDED, NOT_DRAWN, ABSENT), 0.3), WHOLE_STEPS),
        (None, "no results of the active probe (probe.npz: is missing)"),
    ],
)
def test_a_probe_of_whole_steps_has_records_that_must_be_clipped(
    probe: ProbeResults | None, said: str | None
) -> None:
    if probe is not None and probe.kinds[-1] == ABSENT:
        probe.difference_norm[-1] = 0.0
    found = judged(probe=probe)
    assert found.verdict.value == ("PASS" if said is None else "NOT VERIFIED")
    if said is not None:
        assert found.measurement == said


@pytest.mark.parametrize("clients", [False, True])
def test_what_moves_the_sum_by_more_is_told_of_whom_it_is(clients: bool) -> None:
    kinds = tuple(UPDATE_KINDS) if clients else STEPS
    found = judged(probe=a_probe(kinds, reach=3 * C), clients=clients)
    one = "client" if clients else "record"
    assert found.verdict.value == "FAIL"
    assert f"probe, case 0: one {one} moves the sum by 3 C" in found.measurement


def test_extreme_rows_are_left_out_with_all_that_belongs_to_them() -> None:
    extreme = ("case 0", "plus infinity", "not a number, later", "scaled by 1e30", "case 4")
    endless = np.array([C, np.inf, np.nan, C, 0.1])
    whole = a_probe(STEPS, names=extreme, difference_norm=endless)
    found, dropped = _finite(whole)
    assert dropped is True
    assert found.names == ("case 0", "scaled by 1e30", "case 4")
    assert found.kinds == ("long", ABSENT, ELSEWHERE)
    assert found.batch_size.tolist() == [3, 6, 7]
    assert found.difference_norm.tolist() == [C, C, 0.1]
    assert found.norm_with.tolist() == found.norm_without.tolist() == [C, C, C]
    # One that is not extreme and not finite stays, to be told.
    kept, dropped = _finite(a_probe(STEPS, difference_norm=endless))
    assert (dropped, len(kept.names)) == (False, 5)
    for name in ("norm_with", "norm_without"):
        norms = np.array([C, C, np.inf, C, C])
        less, dropped = _finite(a_probe(STEPS, names=extreme, **{name: norms}))
        assert (dropped, less.names) == (True, (*extreme[:2], *extreme[3:]))
        assert np.isfinite(getattr(less, name)).all()
    for clients, said in ((False, (UNGUARDED,)), (True, (UNTRAINED, UNGUARDED_UPDATE))):
        assert judged(probe=whole, clients=clients).qualifications == said


def test_a_program_of_whole_clients_is_probed_by_whole_updates() -> None:
    kinds = tuple(UPDATE_KINDS)
    found = judged(probe=a_probe(kinds), clients=True)
    assert (found.verdict.value, found.qualifications) == ("PASS", (UNTRAINED,))
    assert found.measurement.startswith("the clipped sums of 4 rounds are those that the recorder")
    assert judged(clients=True).qualifications == (UNTRAINED,)
    for missing in range(len(kinds)):
        fewer = ("another" if place == missing else kind for place, kind in enumerate(kinds))
        less = judged(probe=a_probe(tuple(fewer)), clients=True)
        assert less.measurement == "the probe is not one of whole updates"


def test_a_probe_of_which_nothing_is_finite_exercised_nothing() -> None:
    endless = a_probe(
        ("long", "long"),
        names=("plus infinity", "not a number"),
        difference_norm=np.full(2, np.inf),
    )
    found = judged(probe=endless)
    assert (found.verdict.value, found.qualifications) == ("NOT VERIFIED", (UNGUARDED,))
    assert found.measurement == f"{WHOLE_STEPS}; {UNCLIPPED}"
    assert found.details["probe"]["pairs"] == 0


def test_the_check_is_asked_of_loops_by_its_name() -> None:
    (check,) = (one for one in checks_of(LOOP) if one.name == "sensitivity")
    assert check.rule.__module__ == "audit.checks.loop.steps"
