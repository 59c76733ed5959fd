"""The check "sensitivity" by hand: norms, uses of records, and what the probe must exercise.

The rule of clipping at its tolerance: 1e-4 of C pass, twice as much fails.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import sensitivity
from audit.checks.sensitivity import (
    PUBLISHED,
    TOLERANCE,
    _gradients,
    _known_as_rounding,
    _Norms,
    _participations,
    _probe,
    judge_probe,
    norm_faults,
)
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.probing import PATH_KINDS
from audit.probe.updates import (
    ADDED,
    ADDED_PRECISELY,
    CLIENT_KINDS,
    ELSEWHERE,
    NONFINITE_KINDS,
    NOT_DRAWN,
    REPLACED,
    UNEQUAL,
)
from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults, Seen
from audit.statistics.batches import LAWS
from tests.audit.checks.opened import changed, judged, says

NAME = "sensitivity"


def norms_of(clip: float | None = 0.5) -> _Norms:
    bundle: Any = SimpleNamespace(header=SimpleNamespace(clipping_norm=clip))
    return _Norms(bundle, [])


def test_norms_are_counted_over_all_rounds_and_those_at_the_norm_are_not_clipped() -> None:
    norms = norms_of()
    assert norms.private("records") == {"records_used": 0, "share_clipped": None}
    above = float(np.nextafter(0.5, 1.0))
    norms.judge(0, np.array([0.25, 0.5]), np.array([0.25, 0.5]))
    assert norms.private("records") == {"records_used": 2, "share_clipped": 0.0}
    norms.judge(1, np.array([above, np.nan, np.inf, 0.1]), np.array([0.5, 0.0, 0.0, 0.1]))
    assert norms.private("updates") == {"updates_used": 6, "share_clipped": 0.5}
    assert norms.reasons == []
    norms.judge(7, np.array([0.7]), np.array([0.7]))
    assert norms.reasons
    assert all(reason.startswith("round 7: ") for reason in norms.reasons)
    with pytest.raises(UnverifiedError, match="lacks C"):
        norms_of(None)


def evidence_of(sizes: list[list[int]], raw: list[float], nonfinite: list[list[int]]) -> Any:
    """One round's norms; those that are not finite count zero after clipping."""
    offsets = np.concatenate([[0], np.cumsum(np.ravel(sizes))])
    norms = np.array(raw)
    return SimpleNamespace(
        record_offsets=offsets, batch_size=np.array(sizes), raw_norms=norms,
        clipped_norms=np.where(np.isfinite(norms), np.minimum(norms, 0.5), 0.0),
        nonfinite=np.array(nonfinite),
    )  # fmt: skip


COUNT = "round 4: the count of non-finite gradients is not that of the norms"
MANY = "round 4: as many norms as records are not recorded"


@pytest.mark.parametrize(
    ("sizes", "raw", "nonfinite", "said"),
    [
        # Batches of one, of two and of no records; the last one is empty.
        ([[1, 2], [0, 0]], [0.1, np.nan, np.inf], [[0, 2], [0, 0]], []),
        ([[1, 2], [0, 0]], [np.nan, 0.1, np.inf], [[1, 1], [0, 0]], []),
        ([[1, 2], [0, 0]], [np.nan, 0.1, np.inf], [[0, 2], [0, 0]], [COUNT]),
        ([[1, 2], [0, 0]], [0.1, 0.2, 0.3], [[0, 0], [0, 1]], [COUNT]),
        ([[2, 1], [1, 1]], [0.1] * 5, [[0, 0], [0, 0]], []),
    ],
)
def test_gradients_that_are_not_finite_are_counted_batch_by_batch(
    sizes: list[list[int]], raw: list[float], nonfinite: list[list[int]], said: list[str]
) -> None:
    norms = norms_of()
    _gradients(4, evidence_of(sizes, raw, nonfinite), norms)
    assert norms.reasons == said
    assert norms.private("records")["records_used"] == len(raw)


def test_one_batch_of_another_size_is_enough_to_be_told() -> None:
    norms = norms_of()
    evidence = evidence_of([[2, 1], [1, 1]], [0.1] * 5, [[0, 0], [0, 0]])
    evidence.batch_size = np.array([[2, 1], [1, 2]])
    _gradients(4, evidence, norms)
    assert norms.reasons == [MANY]


def test_each_clients_uses_are_as_many_as_it_was_charged_for() -> None:
    charges: Any = {(3, 5): SimpleNamespace(records=2), (3, 7): SimpleNamespace(records=4)}
    sizes = np.array([[1, 2], [3, 4]])

    def given(uses: int) -> tuple[list[Any], list[str]]:
        added: list[Any] = []
        batches: Any = SimpleNamespace(
            add=lambda where, charge, size, used, reasons, read: added.append(
                (where, charge, size.tolist(), used.tolist(), *([] if read is None else [read]))
            )
        )
        evidence: Any = SimpleNamespace(
            clients=np.array([5, 7]), inclusions=np.arange(uses), batch_size=sizes
        )
        reasons: list[str] = []
        _participations(3, evidence, charges, batches, reasons)
        return added, reasons

    first = ("round 3, client 5", charges[3, 5], [1, 2], [0, 1])
    second = ("round 3, client 7", charges[3, 7], [3, 4], [2, 3, 4, 5])
    counted = ["round 3: not every record's use is counted"]
    assert given(6) == ([first, second], [])
    assert given(7) == ([first, second], counted)
    assert given(5) == ([first], counted)
    assert given(1) == ([], counted)
    del charges[3, 7]
    with pytest.raises(UnverifiedError, match="round 3: client 7 was never charged"):
        given(6)


def test_each_client_has_the_batches_that_its_own_gradients_were_taken_of() -> None:
    charges: Any = {(3, 5): SimpleNamespace(records=1), (3, 7): SimpleNamespace(records=1)}
    digests = np.arange(24).reshape(3, 8)
    seen = Seen(np.array([7, 5, 7]), digests, np.zeros(3, int), np.zeros((3, 16), int))
    evidence: Any = SimpleNamespace(
        clients=np.array([5, 7]), inclusions=np.zeros(2), batch_size=np.zeros((2, 1)), seen=seen
    )
    given: list[Any] = []
    batches: Any = SimpleNamespace(add=lambda *all: given.append(all[-1]))
    _participations(3, evidence, charges, batches, [], True)
    assert [one.tolist() for one in given] == [digests[[1]].tolist(), digests[[0, 2]].tolist()]
    # Evidence of before, and records that are read one by one, tell none.
    for less in (None, replace(seen, batches=None)):
        evidence.seen, given[:] = less, []
        _participations(3, evidence, charges, batches, [], True)
        assert given == [None, None]


# The probe.


@pytest.mark.parametrize(
    ("kind", "one", "brought"),
    [("of_records", "record", "record"), ("of_clients", "client", "update")],
)
def test_a_probe_that_moves_nothing_exercised_no_clipping(
    kind: str,
    one: str,
    brought: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    asked: list[Any] = []

    def judge_probe(probe: Any, clip: float, word: str, reasons: list[str]) -> str:
        asked.append((clip, word))
        return "what was found"

    monkeypatch.setattr(sensitivity, "judge_probe", judge_probe)
    probe = bundle.probe_results()

    def moving(last: float) -> tuple[str, str]:
        moved = np.zeros(len(probe.names))
        moved[-1] = last
        other = replace(probe, difference_norm=moved)
        found = judged(changed(bundle, files={"probe_results": other}), NAME)
        assert found.details["probe"] == "what was found"
        return found.verdict.value, found.measurement

    nothing = f"no probe {brought} contributes anything, so clipping was not exercised"
    assert moving(0.0) == ("NOT VERIFIED", nothing)
    assert moving(1e-9)[0] == "PASS"
    assert set(asked) == {(0.5, one)}
    passed = moving(0.25)[1]
    assert f"{len(probe.names)} synthetic neighbouring" in passed


def test_a_probe_that_is_not_there_is_not_verified_and_has_no_power(of_records: Bundle) -> None:
    def run(**changes: Any) -> Bundle:
        found = changed(of_records, **changes)

        def missing() -> Any:
            raise UntrustedFileError("evidence/probe.npz", "is not there")

        found.probe_results = missing  # type: ignore[method-assign] # as if it lay there
        return found

    found = judged(run(), NAME)
    said = "no results of the active probe (evidence/probe.npz: is not there)"
    assert (found.verdict.value, found.measurement, found.power) == ("NOT VERIFIED", said, None)
    assert set(found.details) == {"steps", "clients_tested"}
    used = of_records.round_evidence(1).inclusions
    wrong = judged(run(evidence={1: {"inclusions": np.append(used, 0)}}), NAME)
    assert wrong.verdict.value == "FAIL"
    assert (wrong.power or "").startswith(f"{sensitivity.SENSITIVITY.power}; ")


def test_a_pass_tells_its_power_and_how_many_steps_and_clients_it_is_of(
    of_records: Bundle, of_clients: Bundle
) -> None:
    found = judged(of_records, NAME)
    assert found.verdict.value == "PASS"
    # Four rounds of three clients with three steps each.
    assert found.details["steps"] == 36
    took_part = {one for item in of_records.readable_ledger.rounds for one in item.clients}
    assert found.details["clients_tested"] == len(took_part)
    assert "norms of every record of 36 steps" in found.measurement
    assert LAWS["poisson"] in found.measurement
    assert (found.power or "").startswith(f"{sensitivity.SENSITIVITY.power}; ")
    assert {"records_used", "share_clipped"} < set(found.private)
    clients = judged(of_clients, NAME)
    assert clients.verdict.value == "PASS"
    assert set(clients.private) == {"updates_used", "share_clipped"}
    assert set(clients.details) == {"probe"}


def test_a_probe_of_the_clipped_sum_alone_is_not_verified(of_records: Bundle) -> None:
    probe = of_records.probe_results()
    for kind in PATH_KINDS:
        names = tuple("another" if one == kind else one for one in probe.kinds)
        run = changed(of_records, files={"probe_results": replace(probe, kinds=names)})
        verdict, text = says(run, NAME)
        assert verdict == "NOT VERIFIED"
        assert text.startswith("the probe called only the clipped sum")


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        ({"name": "mlp"}, "PASS"),
        ({"name": "python", "vocabulary": 0, "length": 128}, "PASS"),
        ({"name": "python", "vocabulary": 60, "length": 128}, "NOT VERIFIED"),
        ({"name": "roberta-base", "length": 64}, "NOT VERIFIED"),
    ],
)
def test_a_model_of_texts_needs_probed_records_of_other_lengths(
    of_records: Bundle, of_clients: Bundle, model: dict[str, Any], verdict: str
) -> None:
    for bundle in (of_records, of_clients):
        probe = bundle.probe_results()
        kinds = tuple("another" if one == UNEQUAL else one for one in probe.kinds)
        files = {"probe_results": replace(probe, kinds=kinds)}
        read = replace(bundle, spec={**bundle.readable_spec, "model": model})
        found, text = says(changed(read, files=files), NAME)
        assert found == verdict
        assert ("padding was not exercised" in text) == (verdict != "PASS")


@pytest.mark.parametrize(
    ("moved", "wrong"),
    [
        (0.5 * 1e-4, False),
        (np.nextafter(0.5 * 1e-4, 1.0), True),
        (0.4, True),
        (np.nan, True),
        (np.inf, True),
        (0.0, False),
    ],
)
def test_an_update_that_is_not_finite_moves_nothing_but_by_rounding(
    of_clients: Bundle, moved: float, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "judge_probe", lambda *_: {})
    probe = of_clients.probe_results()
    for kind in NONFINITE_KINDS:
        own = [place for place, one in enumerate(probe.kinds) if one == kind]
        assert own
        other = np.full(len(probe.names), 0.4)
        other[[one in NONFINITE_KINDS for one in probe.kinds]] = 0.0
        other[own[0]] = moved
        run = changed(of_clients, files={"probe_results": replace(probe, difference_norm=other)})
        said = f"probe, {probe.names[own[0]]}: an update that is not finite does not count zero"
        found = judged(run, NAME)
        assert (found.verdict.value == "FAIL") is wrong
        assert not wrong or found.measurement == said


def test_why_a_probe_shows_nothing_is_told_before_that_it_moves_nothing() -> None:
    probe: Any = SimpleNamespace(names=("a", "b"), difference_norm=np.zeros(2))
    bundle: Any = SimpleNamespace(probe_results=lambda: probe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "judge_probe", lambda *_: "found")
        told = _probe(bundle, norms_of(), "record", "record", lambda _: "another why")
        assert told == ({"probe": "found"}, 2, ["another why"])
        probe.difference_norm = np.array([0.0, 1.0])
        assert _probe(bundle, norms_of(), "record", "record", lambda _: None)[2] == []


def test_the_sampler_is_named_up_to_forty_characters(of_records: Bundle) -> None:
    text = says(changed(of_records, header={"sampling": "x" * 50}), NAME)[1]
    assert text == f"the sampler {'x' * 40!r} is unknown"


C = 0.5
# What rounding of float32 sums may add, and what it never adds (see the check's own text).
WITHIN, BEYOND = 0.5e-4, 2e-4


def probe(**changes: object) -> ProbeResults:
    """Three pairs: one record more, one replaced, the same batch again; all of them correct."""
    results = ProbeResults(
        names=("one more", "another", "again"),
        kinds=("gaussian", REPLACED, "repeat"),
        clipping_norm=C,
        batch_size=np.array([3, 3, 3]),
        difference_norm=np.array([C, 2 * C, 0.0]),
        norm_with=np.array([4 * C, 3 * C, 3 * C]),
        norm_without=np.array([3 * C, 3 * C, 3 * C]),
    )
    return replace(results, **changes)


def reasons(results: ProbeResults) -> list[str]:
    found: list[str] = []
    judge_probe(results, C, "record", found)
    return found


def test_a_correct_probe_gives_no_reason():
    assert reasons(probe()) == []


@pytest.mark.parametrize(
    ("field", "row", "exact", "reason"),
    [
        ("difference_norm", 0, C, "probe, one more: one record moves the sum by"),
        ("difference_norm", 1, 2 * C, "probe, another: one record moves the sum by"),
        ("difference_norm", 2, 0.0, "probe, again: the same batch gives different sums"),
        ("norm_with", 0, 4 * C, "probe, one more: the sum is longer than its records allow"),
    ],
)
def test_a_probe_beyond_the_tolerance_is_a_reason_and_one_within_it_is_none(
    field, row, exact, reason
):
    for extra, expected in ((WITHIN, []), (BEYOND, [reason])):
        norms = np.array(getattr(probe(), field))
        norms[row] = exact + max(exact, C) * extra
        found = reasons(probe(**{field: norms}))
        assert [text[: len(reason)] for text in found] == expected


@pytest.mark.parametrize(("row", "times"), [(0, 1.0), (1, 2.0)])
def test_a_record_that_moves_the_sum_by_just_the_tolerance_is_no_reason(row, times):
    norms = np.array(probe().difference_norm)
    norms[row] = C * (1.0 + TOLERANCE) * times
    assert reasons(probe(difference_norm=norms)) == []
    norms[row] = np.nextafter(norms[row], 9.0)
    assert len(reasons(probe(difference_norm=norms))) == 1


def test_an_empty_batch_gives_the_zero_vector():
    """Where a record is taken away from one alone; a replaced one leaves another behind."""
    sizes, norms = np.array([0, 0, 3]), np.array([C, C, 3 * C])
    alone = probe(batch_size=sizes, norm_with=norms, difference_norm=np.array([C, C, 0.0]))
    said = ["probe, one more: an empty batch does not give the zero vector"]
    assert reasons(replace(alone, norm_without=np.array([1e-9, C, 3 * C]))) == said
    assert reasons(replace(alone, norm_without=np.array([0.0, C, 3 * C]))) == []


def more(kind: str, difference: float, norms: float = C) -> ProbeResults:
    """The three correct pairs, and one of this kind."""
    results = probe()
    return replace(
        results,
        names=(*results.names, "further"),
        kinds=(*results.kinds, kind),
        batch_size=np.append(results.batch_size, 3),
        difference_norm=np.append(results.difference_norm, difference),
        norm_with=np.append(results.norm_with, norms),
        norm_without=np.append(results.norm_without, norms),
    )


@pytest.mark.parametrize(
    ("kind", "within", "beyond", "reason"),
    [
        (NOT_DRAWN, WITHIN * C, BEYOND * C, "one record that takes no part moves the sum by"),
        (ADDED, 0.9e-3 * C, 1.1e-3 * C, "together with others, one record moves the sum by"),
        (ELSEWHERE, 1e-12, 0.0, "the step does not depend on the model's parameters"),
    ],
)
def test_who_takes_no_part_moves_nothing_and_whoever_does_counts_for_itself(
    kind, within, beyond, reason
):
    assert reasons(more(kind, within)) == []
    (found,) = reasons(more(kind, beyond))
    assert found.startswith(f"probe, further: {reason}")


def test_a_step_depends_on_its_parameters_where_any_others_move_it():
    moved = more(ELSEWHERE, 0.5 * C)
    for other, differences in (("near", [0.0, 0.5 * C]), ("both", [0.0, 0.0])):
        results = replace(
            moved,
            names=(*moved.names[:-1], "near", "far"),
            kinds=(*moved.kinds, ELSEWHERE),
            batch_size=np.append(moved.batch_size, 3),
            difference_norm=np.append(moved.difference_norm[:-1], differences),
            norm_with=np.append(moved.norm_with, moved.norm_with[-1]),
            norm_without=np.append(moved.norm_without, moved.norm_without[-1]),
        )
        told = ["probe, near and far: the step does not depend on the model's parameters"]
        assert reasons(results) == (told if other == "both" else [])


def test_a_step_that_contributes_nothing_says_nothing_about_its_parameters():
    assert reasons(more(ELSEWHERE, 0.0, norms=0.0)) == []


@pytest.mark.parametrize("factor", [1.0 - 1e-6, 1.0 + 1e-6, 0.5, 2.0])
def test_a_probe_of_a_step_that_clips_at_another_norm_is_a_reason(factor):
    """Everything else may look right: a step that clips at C / 2 moves no sum by more than C."""
    assert reasons(probe(clipping_norm=C * factor)) == [
        "the probed step's clipping norm is not the ledger's C"
    ]
    assert reasons(probe(clipping_norm=C * (1.0 + 1e-12))) == []


@pytest.mark.parametrize(
    ("raw", "clipped", "fault"),
    [
        (9.0, C, "a clipped norm exceeds C"),
        (0.8 * C, 0.8 * C, "a clipped norm is not the lesser of its raw norm and C"),
        (np.inf, 0.0, "a clipped norm is not the lesser of its raw norm and C"),
    ],
)
def test_recorded_norms_beyond_the_tolerance_are_faults(raw, clipped, fault):
    raws = np.array([0.1 * C, raw])
    assert norm_faults(raws, np.array([0.1 * C, clipped + WITHIN * C]), C) == []
    assert fault in norm_faults(raws, np.array([0.1 * C, clipped + BEYOND * C]), C)


@pytest.mark.parametrize("bad", [-1e-12, np.nan, np.inf])
def test_a_clipped_norm_is_a_finite_number_from_zero(bad):
    assert norm_faults(np.array([C]), np.array([bad]), C) == [
        "a clipped norm is not a finite number from 0"
    ]


def with_second_opinion(single: float, double: float, name: str = "further") -> ProbeResults:
    """A pair that differs by so much in float32, and by so much in float64, in units of C."""
    results = more(ADDED, single * C)
    return replace(
        results,
        names=(*results.names, name),
        kinds=(*results.kinds, ADDED_PRECISELY),
        batch_size=np.append(results.batch_size, 3),
        difference_norm=np.append(results.difference_norm, double * C),
        norm_with=np.append(results.norm_with, C),
        norm_without=np.append(results.norm_without, C),
    )


def test_what_float64_shows_to_be_rounding_is_excused_up_to_a_hundredth():
    assert reasons(with_second_opinion(9.9e-3, 0.9e-6)) == []
    found = judge_probe(with_second_opinion(9.9e-3, 0.9e-6), C, "record", [])
    assert found["pairs_judged_in_float64"] == 1
    (reason,) = reasons(with_second_opinion(1.1e-2, 0.0))
    assert reason.endswith("moves the sum by 0.011 C differently than alone")


@pytest.mark.parametrize("double", [1.1e-6, 1.5e-3, np.nan])
def test_what_float64_shows_too_is_no_rounding(double):
    first, second = reasons(with_second_opinion(1.5e-3, double))
    assert first.endswith("moves the sum by 0.0015 C differently than alone")
    assert second.endswith("in float64" if np.isfinite(double) else "is not finite")


def test_a_second_opinion_on_another_pair_excuses_nothing():
    (reason,) = reasons(with_second_opinion(1.5e-3, 0.0, name="another"))
    assert reason.startswith("probe, further: together with others")


def test_the_largest_differences_are_told_over_c_added_and_replaced_apart():
    results = more(ADDED, 9.0 * C)
    results = replace(
        results,
        names=(*results.names, "moved", "endless"),
        kinds=(*results.kinds, ELSEWHERE, "gaussian"),
        batch_size=np.append(results.batch_size, [3, 3]),
        difference_norm=np.append(results.difference_norm, [7.0 * C, np.inf]),
        norm_with=np.append(results.norm_with, [C, C]),
        norm_without=np.append(results.norm_without, [C, C]),
    )
    assert judge_probe(results, C, "record", []) == {
        "pairs": 6,
        "largest_difference_over_clipping_norm": 1.0,
        "largest_difference_of_a_replaced_one": 2.0,
        "tolerance": TOLERANCE,
        "pairs_judged_in_float64": 0,
    }
    alone = replace(probe(), kinds=("gaussian", "gaussian", "repeat"))
    found = judge_probe(alone, C, "record", [])
    assert found["largest_difference_of_a_replaced_one"] is None
    assert found["largest_difference_over_clipping_norm"] == 2.0


@pytest.mark.parametrize("kind", [*CLIENT_KINDS, REPLACED])
@pytest.mark.parametrize("one", ["record", "client"])
def test_what_was_published_in_between_is_rounded_and_may_be_off_by_a_thousandth(kind, one):
    """Whole clients train, and what they send is written on a grid before it is summed."""
    times = 2.0 if kind == REPLACED else 1.0
    wide = kind in CLIENT_KINDS or one == "client"

    def fits(off):
        found: list[str] = []
        results = more(kind, C * (1.0 + off) * times, norms=3.0 * C)
        judge_probe(results, C, one, found)
        return not any(text.startswith("probe, further: one") for text in found)

    assert fits(WITHIN)
    assert fits(0.99 * PUBLISHED) is wide
    assert not fits(1.01 * PUBLISHED)


# Boundaries, to the last bit: C is a power of two, so that a share of it has no rounding.


def nearest(value: float) -> tuple[float, float]:
    return value, float(np.nextafter(value, 9.0))


@pytest.mark.parametrize(
    ("kind", "allowed", "one"),
    [
        ("repeat", C * 1e-4, "record"),
        (NOT_DRAWN, C * 1e-4, "record"),
        (ADDED, C * 1e-3, "record"),
        (ADDED_PRECISELY, C * 1e-6, "record"),
        ("gaussian", C * (1.0 + 1e-4), "record"),
        (REPLACED, C * (1.0 + 1e-4) * 2.0, "record"),
        (REPLACED, C * (1.0 + 1e-3) * 2.0, "client"),
        (CLIENT_KINDS[0], C * (1.0 + 1e-3), "client"),
        (CLIENT_KINDS[0], C * (1.0 + 1e-3), "record"),
        # Of a client that is asked like a record nothing is published in between.
        ("gaussian", C * (1.0 + 1e-4), "client"),
    ],
)
def test_a_difference_may_be_as_large_as_its_kind_allows_and_no_larger(kind, allowed, one):
    def found(difference: float) -> list[str]:
        said: list[str] = []
        judge_probe(more(kind, difference, norms=2.0 * C), C, one, said)
        return said

    within, beyond = nearest(allowed)
    assert found(within) == []
    assert len(found(beyond)) == 1


def test_rounding_that_float64_shows_is_excused_up_to_a_hundredth_of_c():
    for single, right in zip(nearest(1e-2), (True, False), strict=True):
        assert (reasons(with_second_opinion(single, 0.0)) == []) is right
    # And shown by a millionth at most.
    assert reasons(with_second_opinion(5e-3, 1e-6)) == []
    assert len(reasons(with_second_opinion(5e-3, 1.0000001e-6))) == 2


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_sum_is_as_long_as_its_slots_allow_and_no_longer(size):
    for norm, right in zip(nearest((size + 1) * (C * (1.0 + 1e-4))), (True, False), strict=True):
        results = replace(
            probe(),
            batch_size=np.array([size, 3, 3]),
            norm_with=np.array([norm, 3 * C, 3 * C]),
            norm_without=np.array([0.0, 3 * C, 3 * C]),
        )
        said = ["probe, one more: the sum is longer than its records allow"]
        assert reasons(results) == ([] if right else said)
    # At other parameters the sum is not held against its slots.
    elsewhere = more(ELSEWHERE, 0.5 * C, norms=99.0 * C)
    assert reasons(elsewhere) == []


def test_only_an_empty_batch_gives_nothing():
    for size, without, right in ((0, 0.0, True), (0, 1.0, False), (1, 1.0, True), (1, 0.0, True)):
        results = probe(
            batch_size=np.array([size, 3, 3]), norm_with=np.array([C, 3 * C, 3 * C]),
            norm_without=np.array([without * C, 3 * C, 3 * C]),
        )  # fmt: skip
        said = ["probe, one more: an empty batch does not give the zero vector"]
        assert reasons(results) == ([] if right else said)


@pytest.mark.parametrize(
    ("norms", "told"), [((0.0, 0.0), False), ((C, 0.0), True), ((0.0, C), True), ((0.1, 0.1), True)]
)
def test_a_sum_of_something_that_other_parameters_leave_alone_is_told(norms, told):
    results = more(ELSEWHERE, 0.0)
    results.norm_with[-1], results.norm_without[-1] = norms
    assert bool(reasons(results)) is told


@pytest.mark.parametrize("bad", ["difference_norm", "norm_with", "norm_without"])
def test_any_number_that_is_not_finite_is_told_of_its_row(bad):
    for value in (np.nan, np.inf):
        results = more("gaussian", 0.0)
        getattr(results, bad)[-1] = value
        assert reasons(results)[0] == "probe, further: the clipped sum is not finite"


def test_names_and_kinds_are_as_many_as_each_other():
    with pytest.raises(ValueError, match="zip"):
        reasons(replace(probe(), names=("one more", "another")))
    with pytest.raises(ValueError, match="zip"):
        reasons(replace(probe(), kinds=("gaussian", REPLACED)))
    with pytest.raises(ValueError, match="zip"):
        _known_as_rounding(replace(probe(), names=("one more",)), C)


def test_without_any_pair_nothing_was_measured():
    none = np.zeros(0)
    results = replace(
        probe(), names=(), kinds=(), batch_size=np.zeros(0, np.int64), difference_norm=none,
        norm_with=none, norm_without=none,
    )  # fmt: skip
    said: list[str] = []
    assert judge_probe(results, C, "record", said) == {
        "pairs": 0,
        "largest_difference_over_clipping_norm": 0.0,
        "largest_difference_of_a_replaced_one": None,
        "tolerance": 1e-4,
        "pairs_judged_in_float64": 0,
    }
    assert said == []


@pytest.mark.parametrize(
    ("raw", "clipped", "faults"),
    [
        (C, C * (1.0 + 1e-4), ["a clipped norm is not the lesser of its raw norm and C"]),
        (9.0, C, []),
        (0.0, 0.0, []),
        (np.inf, 0.0, []),
        (np.nan, 0.0, []),
        (-np.inf, 0.0, []),
        # Next to infinite: a factor below the least normal float32 is 0, and the record counts so.
        (C * 2.0**126, 0.0, []),
        (C * 2.0**126, C, []),
        (C * 2.0**125, 0.0, ["a clipped norm is not the lesser of its raw norm and C"]),
        (C * 2.0**126, 0.5 * C, ["a clipped norm is not the lesser of its raw norm and C"]),
        (0.0, C * 1e-4, []),
        (0.0, float(np.nextafter(C * 1e-4, 1.0)),
         ["a clipped norm is not the lesser of its raw norm and C"]),
    ],
)  # fmt: skip
def test_a_norm_that_was_clipped_is_the_lesser_of_it_and_c(raw, clipped, faults):
    # Beside one that is right: each is judged by itself.
    found = norm_faults(np.array([raw, 0.25]), np.array([clipped, 0.25]), C)
    if clipped == C * (1.0 + 1e-4):
        # At the tolerance it does not exceed C; what is left of it may round either way.
        assert "a clipped norm exceeds C" not in found
        return
    assert found == faults


@pytest.mark.parametrize("bad", [np.nan, -0.1])
def test_one_bad_norm_among_good_ones_is_told(bad):
    assert norm_faults(np.array([C, 0.25]), np.array([bad, 0.25]), C) == [
        "a clipped norm is not a finite number from 0"
    ]


def test_one_norm_that_exceeds_c_is_told_among_others():
    above = float(np.nextafter(C * (1.0 + 1e-4), 9.0))
    assert "a clipped norm exceeds C" in norm_faults(
        np.array([9.0, 0.25]), np.array([above, 0.25]), C
    )
