"""Recorded loops: each check notices the one thing that is made wrong, and how far it may be off.

One correct loop is opened and changed in memory. It is NumPy's own, so that no other library is
needed; it has no probe, so that one is made up here where a check asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from audit.checks.loop import ledger as loop_ledger
from audit.checks.loop.ledger import NOT_COMPUTED_AGAIN, NOT_LOOKED_AT, NOT_SECURE, over_steps
from audit.checks.loop.steps import (
    _LOOKED_AT,
    _PASSED_OVER,
    RULES,
    UNGUARDED,
    UNGUARDED_UPDATE,
    UNTRAINED,
    _Draws,
    _Settings,
    _State,
)
from audit.checks.randomness import SEEDED
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.updates import ABSENT, ADDED, ELSEWHERE, NOT_DRAWN, UPDATE_KINDS
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.evidence import ProbeResults
from audit.reading.ledger import Resume
from audit.reading.loop_evidence import SETTINGS, LoopEnd
from audit.reading.units import LOOP
from audit.verdict import Severity, Verdict
from tests.audit.checks.opened import changed, judged, says
from tests.audit.corruptions import attest
from tests.dpfedadamw.extensions.recorders import numpy_loop
from tests.dpfedadamw.extensions.recorders.numpy_loop import (
    BATCH,
    CLIP,
    NOISE,
    RATE,
    RECORDS,
    STEPS,
)

Change = Callable[[Any], Any]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A correct loop of 70 steps in two files, of 64 and of 6."""
    run = numpy_loop.train(tmp_path_factory.mktemp("loops") / "run", seed=1)
    return open_bundle(attest(run))


def with_spends(loop: Bundle, place: int, **changes: Any) -> Bundle:
    """The loop with another charge."""
    spends = list(loop.readable_ledger.spends)
    spends[place] = replace(spends[place], **changes)
    return changed(loop, ledger={"spends": tuple(spends)})


def with_rounds(loop: Bundle, place: int, **changes: Any) -> Bundle:
    """The loop with another line that ends a file."""
    rounds = list(loop.readable_ledger.rounds)
    rounds[place] = replace(rounds[place], **changes)
    return changed(loop, ledger={"rounds": tuple(rounds)})


def file_of(loop: Bundle, index: int) -> Any:
    return loop.evidence_of_round(index, LOOP)


def with_array(loop: Bundle, name: str, change: Change, index: int = 0) -> Bundle:
    """The loop with another array in one of its files; `change` gets a copy, and may return one."""
    array = np.array(getattr(file_of(loop, index), name), copy=True)
    made = change(array)
    return changed(loop, evidence={index: {name: array if made is None else made}})


def put(place: Any, value: Any) -> Change:
    def change(array: Any) -> None:
        array[place] = value

    return change


def reason(found: Bundle, name: str) -> str:
    """What is wrong, or the verdict where nothing is."""
    verdict, text = says(found, name)
    return text if verdict == "FAIL" else verdict


def test_what_is_private_of_a_loop_is_named_as_in_its_file(loop: Bundle) -> None:
    found = LOOP.private_numbers(file_of(loop, 1))
    with np.load(loop.root / "evidence" / "round-00001.npz") as arrays:
        for name, values in found.items():
            assert np.array_equal(values, arrays[name], equal_nan=True), name
    names = "raw_norms noise_sum_squares noise_sample clean_sum_squares clean_sample"
    assert found.keys() == set(names.split())


# promise


def test_a_loop_that_did_what_it_declares_keeps_its_promise(loop: Bundle) -> None:
    found = judged(loop, "promise")
    assert found.verdict is Verdict.PASS
    assert found.measurement == (
        "header and every charge agree on records, sampling, delta and adjacency and C; each "
        "noised sum was divided by the public batch size"
    )
    assert found.details == {"delta_records": pytest.approx(1e-5 * RECORDS), "charges": STEPS}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": RECORDS + 1}, "records differ from the header's"),
        ({"sampling": "shuffled"}, "sampling differs from the header's"),
        ({"queries_per_step": 2}, "sampling differs from the header's"),
    ],
)
@pytest.mark.parametrize("place", [0, STEPS - 1])
def test_a_single_charge_that_differs_breaks_the_promise(
    loop: Bundle, place: int, changes: dict[str, Any], said: str
) -> None:
    line = loop.readable_ledger.spends[place].line
    assert reason(with_spends(loop, place, **changes), "promise") == f"ledger.jsonl:{line}: {said}"


def test_declarations_that_no_accounting_covers_break_the_promise(loop: Bundle) -> None:
    said = "poisson batches have no accounting under replace-one"
    other = changed(loop, header={"adjacency": "replace-one"})
    assert reason(other, "promise") == f"{said}; the claim's adjacency is not the header's"
    claimed = changed(loop, claim=lambda claim: claim.update(adjacency="replace-one"))
    assert reason(claimed, "promise") == "the claim's adjacency is not the header's"
    for delta, fails in ((0.999 / RECORDS, False), (1.0 / RECORDS, True), (0.5, True)):
        large = changed(
            loop,
            header={"delta": delta},
            claim=lambda claim, delta=delta: claim.update(delta=delta),
        )
        told = f"delta is not below 1/{RECORDS}, the number of records"
        assert reason(large, "promise") == (told if fails else "PASS")
    assert "delta" in reason(changed(loop, header={"delta": 2e-5}), "promise")
    assert says(changed(loop, header={"delta": None}), "promise")[0] == "NOT VERIFIED"


DIVIDED = "a noised sum was not divided by the public batch size"


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("divisor", "said"),
    [
        (BATCH * (1 + 9e-4), "PASS"),
        (BATCH * (1 - 9e-4), "PASS"),
        (BATCH * (1 + 1.1e-3), DIVIDED),
        (BATCH * (1 - 1.1e-3), DIVIDED),
        (-BATCH, DIVIDED),
        (0.0, "NOT VERIFIED"),
    ],
)
def test_every_sum_is_divided_by_the_public_batch_size(
    loop: Bundle, index: int, divisor: float, said: str
) -> None:
    found = reason(with_array(loop, "measured_divisor", put(-1, divisor), index), "promise")
    assert said in found
    if said is DIVIDED:
        assert found.startswith(f"file {index}: ")


def test_a_norm_that_changes_and_clients_in_the_place_of_records_are_told(loop: Bundle) -> None:
    told = says(with_spends(loop, 3, clipping_norm=2 * CLIP), "promise")
    assert told[0] == "PASS"
    assert ", C changes during the loop; each" in told[1]
    assert " and C;" in says(with_spends(loop, 3, clipping_norm=CLIP * (1 + 1e-12)), "promise")[1]
    clients = says(changed(loop, header={"of_clients": True}), "promise")
    assert clients[1].startswith("whole clients are protected, so a record is a client and a")


# integrity


def test_a_recording_that_is_whole_is_intact(loop: Bundle) -> None:
    assert says(loop, "integrity")[0] == "PASS"


def first_spend(loop: Bundle, index: int) -> int:
    return next(n for n, one in enumerate(loop.readable_ledger.spends) if one.round == index)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"client": 1}, "a loop has one client, and is charged step by step"),
        ({"steps": 2}, "a loop has one client, and is charged step by step"),
        ({"round": 9}, "a step was charged that no evidence covers"),
        ({"line": 10_000}, "charged after its file was written"),
    ],
)
def test_a_charge_that_is_no_step_s_is_named(
    loop: Bundle, index: int, changes: dict[str, Any], said: str
) -> None:
    place = first_spend(loop, index)
    line = changes.get("line", loop.readable_ledger.spends[place].line)
    assert f"ledger.jsonl:{line}: {said}" in reason(
        with_spends(loop, place, **changes), "integrity"
    )


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients": (1,)}, "a loop has one client"),
        ({"clients": (0, 1)}, "a loop has one client"),
        ({"queries": (5,)}, "its steps are not those that were charged"),
        ({"steps": (5,)}, "its steps are not those that were charged"),
        ({"queries": (5,), "steps": (5,)}, "its steps are not those that were charged"),
    ],
)
def test_a_file_s_last_line_that_does_not_fit_its_charges_is_named(
    loop: Bundle, index: int, changes: dict[str, Any], said: str
) -> None:
    line = loop.readable_ledger.rounds[index].line
    found = reason(with_rounds(loop, index, **changes), "integrity")
    assert f"ledger.jsonl:{line}: {said}" in found


def test_a_loop_has_one_client_and_is_not_continued(loop: Bundle) -> None:
    assert "a loop has one client" in reason(changed(loop, header={"clients": 2}), "integrity")
    resumed = changed(loop, ledger={"resumes": (a_resume(7),)})
    assert "ledger.jsonl:7: a recording cannot be continued" in reason(resumed, "integrity")


def a_resume(line: int) -> Resume:
    names = dict.fromkeys(Resume.__dataclass_fields__)
    return Resume(**{**names, "line": line})  # type: ignore[arg-type] # Only the line is read.


def test_a_file_with_fewer_steps_than_were_charged_is_named(loop: Bundle) -> None:
    fewer = with_array(loop, "batch_size", lambda sizes: sizes[:, 1:], 1)
    assert "its steps are not as many as the ledger's" in reason(fewer, "integrity")


def test_what_was_seen_last_must_be_readable(loop: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Bundle) -> LoopEnd:
        raise UntrustedFileError("evidence/end.npz", "cannot be read")

    monkeypatch.setattr(Bundle, "loop_end", unreadable)
    verdict, text = says(loop, "integrity")
    assert (verdict, "evidence/end.npz: cannot be read" in text) == ("NOT VERIFIED", True)


def test_a_file_that_cannot_be_read_leaves_the_recording_unverified(
    loop: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Bundle.evidence_of_round

    def unreadable(bundle: Bundle, index: int, unit: Any) -> Any:
        if index == 0:
            raise UntrustedFileError("evidence/round-00000.npz", "cannot be read")
        return read(bundle, index, unit)

    monkeypatch.setattr(Bundle, "evidence_of_round", unreadable)
    verdict, text = says(loop, "integrity")
    assert (verdict, "evidence/round-00000.npz: cannot be read" in text) == ("NOT VERIFIED", True)


# accounting


def test_the_loop_s_own_epsilon_is_what_its_steps_cost(loop: Bundle) -> None:
    found = judged(loop, "accounting")
    assert found.verdict is Verdict.PASS
    details = found.details
    assert (details["delta"], details["steps"], details["accountant"]) == (1e-5, STEPS, "pld")
    assert details["stated"] == pytest.approx(details["epsilon"])
    assert set(details["by_accountant"]) >= {"pld", "rdp"}
    curve = details["over_rounds"]
    # 70 steps in every second, and the last one.
    assert [point["round"] for point in curve] == list(range(2, STEPS + 1, 2))
    assert curve[-1]["server"] == curve[-1]["third_party"] == pytest.approx(details["epsilon"])
    assert all(a["server"] < b["server"] for a, b in pairwise(curve))


def test_the_curve_has_up_to_forty_points_and_the_last_step(loop: Bundle) -> None:
    spends = loop.readable_ledger.spends
    for steps, points in ((1, [1]), (40, list(range(1, 41))), (41, [*range(2, 41, 2), 41])):
        ledger = replace(loop.readable_ledger, spends=spends[:steps])
        assert [point["round"] for point in over_steps(ledger, 1e-5)] == points


def stating(factor: float, offset: float = 0.0, name: str = "pld") -> Change:
    def change(claim: Any) -> None:
        (known,) = claim["server"]["epsilon"].values()
        claim["server"] |= {"epsilon": {name: known * factor + offset}, "accountant": name}

    return change


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (stating(0.99995), "PASS", "which is not less"),
        (stating(0.996), "FAIL", "epsilon by pld is stated as"),
        (stating(0.98), "FAIL", "epsilon by pld is stated as"),
        (stating(1.04), "PASS", "which is not less"),
        (stating(1.08), "PASS", "epsilon by pld is overstated"),
        (stating(1.2, name="prv"), "PASS", "epsilon by prv is overstated"),
        # A loop may count by what the auditor has not, and more than it must.
        (stating(1.5, name="gdp"), "PASS", "by gdp, which is not less"),
        (stating(0.5, name="gdp"), "FAIL", "epsilon by gdp is stated as"),
        # What no correct loop states in addition is judged all the same.
        (
            lambda claim: claim.update(third_party={"epsilon": {"pld": 0.1}}),
            "FAIL",
            "stated as 0.1",
        ),
        (
            lambda claim: claim["server"]["epsilon"].update({"by-hand": 95.0}),
            "NOT VERIFIED",
            "epsilon by by-hand is claimed, which no accountant",
        ),
        (
            lambda claim: claim.update(gaussian_dp={"mu": 0.01}),
            "FAIL",
            "gaussian_dp, which no check",
        ),
        (lambda claim: claim.update(server={}), "NOT VERIFIED", "the loop states no epsilon"),
        (lambda claim: claim.pop("server"), "FAIL", "claim: server is missing"),
    ],
)
def test_what_the_loop_states_covers_what_its_steps_cost(
    loop: Bundle, change: Change, verdict: str, words: str
) -> None:
    found = judged(changed(loop, claim=change), "accounting")
    assert (found.verdict.value, words in found.measurement) == (verdict, True), found.measurement
    high = "overstated" in words
    assert found.severity is (Severity.THEORETICAL if high else found.severity)


MADE = f"but {STEPS} were made"
OTHER = "the loop's accountant counted a noise or rate that was not used"


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([[NOISE, RATE, STEPS]], "PASS"),
        ([[NOISE, RATE, STEPS - 30], [NOISE, RATE, 30]], "PASS"),
        ([[NOISE * (1 + 1e-12), RATE, STEPS]], "PASS"),
        ([[NOISE, RATE, STEPS - 1]], f"the loop's accountant counted {STEPS - 1} steps, {MADE}"),
        ([[NOISE, RATE, STEPS + 1]], f"the loop's accountant counted {STEPS + 1} steps, {MADE}"),
        ([[NOISE * (1 + 1e-6), RATE, STEPS]], OTHER),
        ([[NOISE, RATE * (1 - 1e-6), STEPS]], OTHER),
        ([[NOISE, RATE, STEPS - 1], [2 * NOISE, RATE, 1]], OTHER),
        ([], f"the loop's accountant counted 0 steps, {MADE}"),
        ([[NOISE, RATE]], "claim: accountant_history has an entry that is not three numbers"),
        ([7], "claim: accountant_history has an entry that is not three numbers"),
        ([[NOISE, -RATE, STEPS]], "claim: accountant_history is not a number from 0"),
        ([[NOISE, RATE, 0.5]], "claim: accountant_history is not a whole number from 0"),
        ({}, "claim: accountant_history is not a list"),
    ],
)
def test_what_the_loop_s_accountant_counted_are_the_steps_that_were_made(
    loop: Bundle, history: Any, said: str
) -> None:
    found = changed(loop, claim=lambda claim: claim.update(accountant_history=history))
    assert reason(found, "accounting").startswith(said)


def test_a_loop_whose_accountant_tells_no_history_is_judged_by_its_number(loop: Bundle) -> None:
    silent = changed(loop, claim=lambda claim: claim.pop("accountant_history"))
    assert reason(silent, "accounting") == "PASS"

    def wrong_and_unstated(claim: Any) -> None:
        claim.update(server={}, accountant_history=[])

    wrong = judged(changed(loop, claim=wrong_and_unstated), "accounting")
    assert "counted 0 steps" in wrong.measurement
    assert (wrong.details["stated"], wrong.details["accountant"]) == (0.0, "")


def test_nothing_is_accounted_without_charges_a_claim_or_a_delta_below_one(loop: Bundle) -> None:
    for other in (
        changed(loop, ledger={"spends": ()}),
        changed(loop, ledger={"claim": None}),
        changed(loop, header={"delta": 1.0}),
        changed(loop, header={"delta": None}),
    ):
        assert says(other, "accounting")[0] == "NOT VERIFIED"


# sampling


def test_a_loop_s_fresh_draws_are_those_that_are_accounted(loop: Bundle) -> None:
    found = judged(loop, "sampling")
    assert found.verdict is Verdict.PASS
    assert found.details == {"steps": STEPS}
    assert found.power not in (None, "none")
    assert (found.private["looked_at"], found.private["passed_over"]) == (0, 0)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    ("name", "said", "told"),
    [("unused", _LOOKED_AT, "looked_at"), ("skipped", _PASSED_OVER, "passed_over")],
)
def test_batches_that_were_drawn_and_became_no_step_are_told(
    loop: Bundle, index: int, name: str, said: str, told: str
) -> None:
    found = judged(with_array(loop, name, put(-1, 2), index), "sampling")
    assert (found.verdict, found.measurement) == (Verdict.FAIL, said)
    assert found.private[told] == 2
    ended = replace(loop.loop_end(), **{name: 3})
    found = judged(changed(loop, files={"loop_end": ended}), "sampling")
    assert (found.measurement, found.private[told]) == (said, 3)


def test_rows_that_are_unknown_or_name_no_record_are_told(loop: Bundle) -> None:
    unknown = changed(loop, evidence={1: {"rows": None}})
    assert says(unknown, "sampling") == (
        "NOT VERIFIED",
        "which records each batch held is not recorded",
    )
    beyond = with_array(loop, "rows", put(-1, RECORDS), 1)
    assert reason(beyond, "sampling") == "file 1: a batch names a record that does not exist"
    assert reason(with_array(loop, "rows", put(-1, RECORDS - 1), 1), "sampling") in (
        "PASS",
        "a record is in the batch of one step twice: it moves the sum by more than the clipping "
        "norm",
    )
    shorter = with_array(loop, "batch_size", put((0, -1), 1), 1)
    assert "file 1: a step does not have as many gradients as its batch has records" in reason(
        shorter, "sampling"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda loop: changed(loop, header={"sampling": "random"}), "the sampler 'random' is unk"),
        (lambda loop: changed(loop, header={"sampling": None}), "the sampler '' is unknown"),
        (lambda loop: with_spends(loop, 0, round=9), None),
        (lambda loop: changed(loop, ledger={"spends": ()}), "file 0: was never charged"),
    ],
)
def test_a_loop_of_unknown_draws_is_not_verified(
    loop: Bundle, change: Callable[[Bundle], Bundle], said: str | None
) -> None:
    verdict, text = says(change(loop), "sampling")
    if said is not None:
        assert (verdict, text.startswith(said)) == ("NOT VERIFIED", True)


def test_more_records_than_can_be_counted_are_not_judged(loop: Bundle) -> None:
    spends = [replace(one, records=10**8 + 1) for one in loop.readable_ledger.spends]
    many = changed(loop, ledger={"spends": tuple(spends)})
    told = "there are too many records to count how often each was used"
    assert says(many, "sampling") == ("NOT VERIFIED", told)


def drawn(*batches: list[int], records: int = 60, rate: float = 0.5, at: int = 0) -> list[str]:
    draws, reasons = _Draws(records), list[str]()
    for batch in batches:
        draws.add(np.asarray(batch, dtype=np.int64), at, rate)
    draws.judge(reasons)
    return [one.split(":")[0] for one in reasons]


def test_a_record_that_is_in_a_batch_twice_is_told() -> None:
    assert drawn([1, 2], [3, 4]) == []
    assert drawn([1, 2], [3, 3]) == ["a record is in the batch of one step twice"]


def test_equal_batches_are_told_where_chance_makes_none() -> None:
    again = "steps have exactly the batch of an earlier one"
    one, two = list(range(0, 60, 2)), list(range(1, 60, 3))
    assert drawn(one, two) == []
    assert drawn(one, two, one) == [again]
    assert drawn(one, one[::-1]) == [again]
    # Empty batches are equal by their nature, and few records give equal batches by chance.
    assert drawn([], []) == []
    assert drawn([0], [0], records=3) == []
    # 2^-records for a pair: 20 records are not surprising enough, 21 are not either, by a little.
    for records, told in ((19, False), (20, True), (30, True)):
        assert bool(drawn([0], [0], records=records)) is told, records


def test_batches_of_a_usual_seed_are_told_in_each_attachment() -> None:
    words = np.random.RandomState(42).randint(0, 1 << 32, 60, dtype=np.uint64)
    uniform = (words & np.uint64((1 << 24) - 1)).astype(np.float32) * np.float32(2.0**-24)
    seeded = np.flatnonzero(uniform < np.float32(0.5))
    fresh = np.arange(0, 60, 3)

    def told(*batches: tuple[Any, int]) -> list[str]:
        draws, reasons = _Draws(60), list[str]()
        for rows, attachment in batches:
            draws.add(rows, attachment, 0.5)
        draws.judge(reasons)
        return [one.split(":")[0] for one in reasons]

    guessed = ["the batches are those of a generator seeded with a number that anyone would try "
               "first"]  # fmt: skip
    assert told((fresh, 0), (fresh + 1, 0)) == []
    assert told((seeded, 0)) == guessed
    assert told((fresh, 0), (seeded, 1)) == guessed
    assert told((seeded, 1)) == guessed
    # Only what a generator draws first is looked for.
    assert told((fresh, 0), (seeded, 0)) == []


# sensitivity


def a_probe(**changes: Any) -> ProbeResults:
    """One that holds: a record that must be clipped, and one of each kind that a loop needs."""
    kinds = ["long", ADDED, NOT_DRAWN, ABSENT, ELSEWHERE]
    made: dict[str, Any] = {
        "names": tuple(f"case {number}" for number in range(len(kinds))),
        "kinds": tuple(kinds),
        "clipping_norm": CLIP,
        "batch_size": np.full(5, 3),
        "difference_norm": np.array([CLIP, 0.0, 0.0, 0.0, 0.1]),
        "norm_with": np.full(5, CLIP),
        "norm_without": np.full(5, CLIP),
    }
    return ProbeResults(**{**made, **changes})


def probed(loop: Bundle, probe: ProbeResults | None = None, **header: Any) -> Bundle:
    return changed(loop, header=header, files={"probe_results": probe or a_probe()})


def test_clipped_sums_that_are_those_of_the_records_pass_with_a_probe(loop: Bundle) -> None:
    assert says(loop, "sensitivity")[0] == "NOT VERIFIED"
    assert "no results of the active probe" in says(loop, "sensitivity")[1]
    found = judged(probed(loop), "sensitivity")
    assert found.verdict is Verdict.PASS
    assert found.measurement.startswith(f"the clipped sums of {STEPS} steps are those that")
    assert found.details["steps"] == STEPS
    norms = np.concatenate([file_of(loop, index).raw_norms for index in (0, 1)])
    assert found.private["records_used"] == len(norms)
    assert found.private["share_clipped"] == pytest.approx(np.mean(norms > CLIP))
    assert found.qualifications == ()


SUM = "the sum is not that of this step's records"


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("share", "fails"), [(0.95, False), (1.05, True), (-1.05, True)])
def test_a_sum_may_differ_by_the_rounding_of_float32_alone(
    loop: Bundle, index: int, share: float, fails: bool
) -> None:
    evidence = file_of(loop, index)
    allowed = 2e-3 * (CLIP + np.linalg.norm(evidence.expected[-1]))

    def move(clean: Any) -> None:
        clean[-1] = evidence.expected[-1]
        clean[-1, 0] += share * allowed

    found = reason(probed(with_array(loop, "clean", move, index)), "sensitivity")
    assert found.startswith(f"file {index}: {SUM}") if fails else found == "PASS"


@pytest.mark.parametrize(("share", "fails"), [(1.0 - 1e-7, False), (1.0 + 1e-7, True)])
def test_a_sum_is_no_longer_than_its_clipped_records_allow(
    loop: Bundle, share: float, fails: bool
) -> None:
    tolerance = 1e-4
    most = file_of(loop, 0).batch_size[0, 3] * CLIP * (1 + tolerance) + CLIP * tolerance

    def lengthen(squares: Any) -> None:
        squares[0, 3] = 0.0
        squares[0, 3, 0] = (share * most) ** 2

    found = reason(probed(with_array(loop, "clean_sum_squares", lengthen)), "sensitivity")
    told = "file 0: the sum is longer than its records, clipped to C, allow"
    assert found == (told if fails else "PASS")


def test_gradients_that_are_not_finite_are_told(loop: Bundle) -> None:
    infinite = probed(with_array(loop, "nonfinite", put((0, 2), 1), 1))
    assert reason(infinite, "sensitivity") == "file 1: a record's gradient is not finite"


def row(probe: ProbeResults, place: int, **changes: Any) -> ProbeResults:
    columns = {
        name: np.array(getattr(probe, name), copy=True)
        for name in ("difference_norm", "norm_with", "norm_without")
    }
    words = {name: list(getattr(probe, name)) for name in ("names", "kinds")}
    for name, value in changes.items():
        (columns if name in columns else words)[name][place] = value
    return replace(probe, **columns, names=tuple(words["names"]), kinds=tuple(words["kinds"]))


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (lambda p: row(p, 0, difference_norm=1.01 * CLIP), "FAIL", "one record moves the sum by"),
        (lambda p: row(p, 0, difference_norm=0.51 * CLIP), "PASS", ""),
        (
            lambda p: row(p, 0, difference_norm=0.5 * CLIP),
            "NOT VERIFIED",
            "no probe record had to be clipped, so clipping was not exercised",
        ),
        # What is added to others, or asked elsewhere, exercises no clipping.
        (
            lambda p: row(row(p, 0, difference_norm=0.1), 4, difference_norm=CLIP),
            "NOT VERIFIED",
            "no probe record had to be clipped",
        ),
        (lambda p: replace(p, clipping_norm=2 * CLIP), "FAIL", "clipping norm is not the ledger's"),
        (lambda p: row(p, 1, kinds="long"), "NOT VERIFIED", "the probe is not one of whole steps"),
        (lambda p: row(p, 2, kinds="long"), "NOT VERIFIED", "the probe is not one of whole steps"),
        (lambda p: row(p, 3, kinds="long"), "NOT VERIFIED", "the probe is not one of whole steps"),
        (lambda p: row(p, 4, kinds="long"), "NOT VERIFIED", "the probe is not one of whole steps"),
        (lambda p: row(p, 0, difference_norm=np.inf), "FAIL", "the clipped sum is not finite"),
    ],
)
def test_the_probe_says_whether_a_record_moves_the_sum_by_more(
    loop: Bundle, change: Change, verdict: str, words: str
) -> None:
    found = says(probed(loop, change(a_probe())), "sensitivity")
    assert (found[0], words in found[1]) == (verdict, True), found


EXTREMES = ("scaled by 1e30", "plus infinity", "not a number", "one coordinate infinite",
            "minus 1e38")  # fmt: skip


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("name", ["difference_norm", "norm_with", "norm_without"])
def test_an_extreme_record_that_is_not_left_out_is_told_and_no_failure(
    loop: Bundle, extreme: str, name: str
) -> None:
    probe = a_probe()
    longer = replace(
        probe,
        names=(*probe.names, f"record {extreme}, added"),
        kinds=(*probe.kinds, "long"),
        batch_size=np.append(probe.batch_size, 3),
        **{
            column: np.append(getattr(probe, column), np.nan if column == name else CLIP)
            for column in ("difference_norm", "norm_with", "norm_without")
        },
    )
    found = judged(probed(loop, longer), "sensitivity")
    assert (found.verdict, found.qualifications) == (Verdict.PASS, (UNGUARDED,))
    finite = replace(longer, **{name: np.append(getattr(probe, name), CLIP)})
    assert judged(probed(loop, finite), "sensitivity").qualifications == ()


def test_whole_clients_are_probed_by_whole_updates(loop: Bundle) -> None:
    found = judged(probed(loop, of_clients=True), "sensitivity")
    assert found.measurement == "the probe is not one of whole updates"
    assert found.qualifications == (UNTRAINED,)
    count = len(UPDATE_KINDS)
    updates = ProbeResults(
        names=tuple(UPDATE_KINDS),
        kinds=tuple(UPDATE_KINDS),
        clipping_norm=CLIP,
        batch_size=np.full(count, 3),
        difference_norm=np.full(count, CLIP),
        norm_with=np.full(count, CLIP),
        norm_without=np.full(count, CLIP),
    )
    found = judged(probed(loop, updates, of_clients=True), "sensitivity")
    assert found.verdict is Verdict.PASS
    assert found.measurement.startswith(f"the clipped sums of {STEPS} rounds are those that the")
    place = UPDATE_KINDS.index("minus 1e38")
    endless = row(updates, place, difference_norm=np.inf)
    found = judged(probed(loop, endless, of_clients=True), "sensitivity")
    assert found.qualifications == (UNTRAINED, UNGUARDED_UPDATE)
    fewer = row(updates, 0, kinds="another")
    assert judged(probed(loop, fewer, of_clients=True), "sensitivity").measurement == (
        "the probe is not one of whole updates"
    )


def test_the_probe_clips_at_the_norm_of_the_last_charge(loop: Bundle) -> None:
    wide = a_probe(clipping_norm=2 * CLIP, difference_norm=np.array([2 * CLIP, 0.0, 0.0, 0.0, 0.1]))
    grown = with_spends(loop, STEPS - 1, clipping_norm=2 * CLIP)
    assert "clipping norm is not the ledger's" not in reason(probed(grown, wide), "sensitivity")
    assert "clipping norm is not the ledger's" in reason(probed(grown), "sensitivity")


def test_a_file_that_was_never_charged_is_not_verified(loop: Bundle) -> None:
    uncharged = changed(loop, ledger={"spends": loop.readable_ledger.spends[:64]})
    assert says(uncharged, "sensitivity") == ("NOT VERIFIED", "file 1: was never charged")


# steps


def test_updates_that_follow_from_noised_gradients_pass(loop: Bundle) -> None:
    found = judged(loop, "steps")
    assert found.verdict is Verdict.PASS
    assert found.details == {"steps": STEPS, "optimizer": "sgd"}
    assert found.measurement.startswith(f"{STEPS} updates at the sampled coordinates are what sgd")


UPDATE = "an update is not what sgd computes from the noised gradient"


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("share", "fails"), [(0.5, False), (1.5, True), (-1.5, True)])
def test_an_update_may_differ_by_the_rounding_of_float32_alone(
    loop: Bundle, index: int, share: float, fails: bool
) -> None:
    evidence = file_of(loop, index)
    before, update = evidence.before[-1], -0.5 * evidence.released[-1]
    allowed = 2.0**-21 * np.abs(before) + 2e-4 * (np.abs(update) + np.abs(update).max())

    def move(after: Any) -> None:
        after[-1] = before + update
        after[-1, 0] += share * allowed[0]

    found = reason(with_array(loop, "after", move, index), "steps")
    assert found.startswith(f"file {index}: {UPDATE}") if fails else found == "PASS"


MOVED = "something moved the parameters between two noised steps"


@pytest.mark.parametrize(("index", "step"), [(0, 1), (0, 63), (1, 0), (1, 5)])
def test_parameters_that_moved_between_two_steps_are_noticed(
    loop: Bundle, index: int, step: int
) -> None:
    found = reason(with_array(loop, "before_fingerprint", put(step, 7), index), "steps")
    assert found.startswith(f"file {index}: {MOVED}")


def test_parameters_may_be_other_ones_where_the_loop_was_attached_anew(loop: Bundle) -> None:
    replaced = with_array(loop, "before_fingerprint", put(0, 7), 1)
    assert MOVED in reason(replaced, "steps")
    again = file_of(loop, 1).attachment + 1
    anew = changed(replaced, evidence={1: {"attachment": again}})
    assert reason(anew, "steps") == "PASS"


def test_a_step_that_leaves_the_model_as_it_was_is_noticed(loop: Bundle) -> None:
    evidence = file_of(loop, 1)
    ends = np.array(evidence.after_fingerprint, copy=True)
    begins = np.array(evidence.before_fingerprint, copy=True)
    ends[-1] = begins[-1]
    released = np.array(evidence.released, copy=True)
    released[0, 0] = 0.0
    other = changed(
        loop,
        evidence={1: {"after_fingerprint": ends, "released": released}},
        files={"loop_end": replace(loop.loop_end(), fingerprint=int(ends[-1]))},
    )
    assert reason(other, "steps").startswith("file 1: a step did not change the model")


def test_the_model_is_that_of_the_last_step(loop: Bundle) -> None:
    end = loop.loop_end()
    other = changed(loop, files={"loop_end": replace(end, fingerprint=end.fingerprint + 1)})
    assert reason(other, "steps") == "something moved the parameters after the last noised step"
    unseen = changed(loop, files={"loop_end": replace(end, fingerprint=None)})
    assert says(unseen, "steps") == (
        "NOT VERIFIED",
        "the parameters at the recorder's closing are not recorded",
    )


def test_an_update_that_the_auditor_has_no_replay_of_is_not_verified(loop: Bundle) -> None:
    producer = replace(loop.header.producer, optimizer="lion")
    verdict, text = says(changed(loop, header={"producer": producer}), "steps")
    assert (verdict, text.startswith("the auditor has no replay of 'lion'")) == (
        "NOT VERIFIED",
        True,
    )
    assert says(changed(loop, header={"producer": None}), "steps")[0] == "NOT VERIFIED"


def settings(**values: float) -> _Settings:
    return _Settings(np.array([[values.get(name, 0.0) for name in SETTINGS]]))


def replayed(rule: str, gradients: list[float], start: float, **values: float) -> list[float]:
    state, at, found = _State(), settings(**values), [start]
    for gradient in gradients:
        now = np.array([found[-1]])
        found.append(float((now + RULES[rule](state, np.array([gradient]), now, at))[0]))
        state.steps += 1
    return found[1:]


def as_torch_documents_sgd(
    gradients: list[float], x: float, lr: float, mu: float, tau: float, wd: float, nesterov: bool
) -> list[float]:
    buffer, found = None, []
    for plain in gradients:
        g = plain + wd * x
        if mu:
            buffer = g if buffer is None else mu * buffer + (1 - tau) * g
            g = g + mu * buffer if nesterov else buffer
        x -= lr * g
        found.append(x)
    return found


@pytest.mark.parametrize(
    ("mu", "tau", "wd", "nesterov"),
    [
        (0.0, 0.0, 0.0, False),
        (0.0, 0.0, 0.3, False),
        (0.9, 0.0, 0.3, False),
        (0.9, 0.4, 0.3, False),
        (0.9, 0.0, 0.3, True),
    ],
)
def test_sgd_is_replayed_as_torch_documents_it(
    mu: float, tau: float, wd: float, nesterov: bool
) -> None:
    gradients = [0.5, -2.0, 1.5]
    found = replayed(
        "sgd", gradients, 0.7,
        learning_rate=0.1, momentum=mu, dampening=tau, weight_decay=wd, nesterov=float(nesterov),
    )  # fmt: skip
    expected = as_torch_documents_sgd(gradients, 0.7, 0.1, mu, tau, wd, nesterov)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_and_adamw_are_replayed_as_their_papers_have_them(decoupled: bool) -> None:
    lr, b1, b2, eps, wd, x = 0.1, 0.8, 0.95, 0.01, 0.3, 0.7
    m = v = 0.0
    expected = []
    for step, plain in enumerate([0.5, -2.0, 1.5], start=1):
        g = plain if decoupled else plain + wd * x
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        move = lr * (m / (1 - b1**step)) / ((v / (1 - b2**step)) ** 0.5 + eps)
        x = x - move - (lr * wd * x if decoupled else 0.0)
        expected.append(x)
    found = replayed(
        "adamw" if decoupled else "adam", [0.5, -2.0, 1.5], 0.7,
        learning_rate=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=wd,
    )  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-12)


# What is for nobody to judge here.


def test_what_cannot_be_judged_of_a_loop_is_said_by_name(loop: Bundle) -> None:
    for name, said in (("reexecution", NOT_COMPUTED_AGAIN), ("outside-budget", NOT_LOOKED_AT)):
        found = judged(loop, name)
        assert (found.verdict, found.measurement) == (Verdict.NOT_VERIFIED, said)
        assert (found.qualifications, found.severity) == ((said,), Severity.THEORETICAL)


def test_the_generator_is_judged_by_its_seed_and_by_what_it_is_said_to_be(
    loop: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judged(loop, "randomness").verdict is Verdict.PASS
    for producer in (replace(loop.header.producer, secure=False), None):
        found = judged(changed(loop, header={"producer": producer}), "randomness")
        assert (found.verdict, found.measurement) == (Verdict.NOT_VERIFIED, NOT_SECURE)
        assert (found.qualifications, found.severity) == ((NOT_SECURE,), Severity.THEORETICAL)
    monkeypatch.setattr(loop_ledger, "drawn_again", lambda _: "torch, seed 0")
    assert says(loop, "randomness") == ("FAIL", SEEDED)

    def unreadable(_: Bundle) -> str:
        raise UnverifiedError("file 0 is missing")

    monkeypatch.setattr(loop_ledger, "drawn_again", unreadable)
    assert says(loop, "randomness") == (
        "NOT VERIFIED",
        "could not test whether the noise is that of a usual seed: file 0 is missing",
    )
