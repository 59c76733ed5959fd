"""The check "reexecution" by itself: what a round that was computed again makes of the verdict."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.auditor import _run, audit_run
from audit.checks import Judgement
from audit.checks.reexecution import (
    REEXECUTION,
    WORD,
    _conclude,
    _power,
    chances,
    passing,
    percent,
    said,
)
from audit.checks.shared import recomputed
from audit.checks.shared.recomputed import Recomputed, _clean, _clipping
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.openings import participations
from audit.recomputed import RecomputedQuery, RecomputedRelease, RecomputedRound, RecomputedUpdate
from audit.reexecution import Replay, draw, with_the_first_round
from audit.verdict import Finding, Severity, Verdict
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, rewrite_ledger

Change = Callable[[RecomputedRound], RecomputedRound]
ANOTHER = "f" * 64


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("record") / "run", Settings())


def found(run: Path, change: Change, **order: Any) -> Finding:
    """The finding where every round comes out as the ledger has it, but for a change."""
    bundle = open_bundle(run)
    ledger = bundle.readable_ledger
    last = {item.round: item for item in ledger.rounds}

    def rounds(drawn: Sequence[tuple[int, int]], final: int) -> Iterator[RecomputedRound]:
        for index in sorted({index for index, _ in drawn} | {final}):
            yield change(
                RecomputedRound(
                    round=index,
                    attempt=1,
                    clients=last[index].clients,
                    cohort=last[index].clients,
                    digests=dict(last[index].digests),
                    commitments=np.zeros((len(last[index].clients), 32), np.uint8),
                )
            )

    replay = Replay(count=3, seed=bytes(32), drawn_by="a test", rounds=rounds)
    bundle.replay = replace(replay, **order)
    return _run(REEXECUTION, bundle)


def test_the_draw_is_of_the_ledger_and_the_run_goes_on_to_its_last_round(run: Path) -> None:
    bundle = open_bundle(run)
    asked: list[tuple[Any, int]] = []

    def rounds(drawn: Sequence[tuple[int, int]], final: int) -> Iterator[RecomputedRound]:
        asked.append((tuple(drawn), final))
        return iter(())

    among = participations(bundle.readable_ledger)

    def due(seed: bytes) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        digest = hashlib.sha256((run / "ledger.jsonl").read_bytes()).hexdigest()
        drawn = draw(among, seed, digest, 3)
        return drawn, with_the_first_round(drawn, among, seed, digest)

    def audited(seed: bytes) -> None:
        audit_run(run, replay=Replay(count=3, seed=seed, drawn_by="a test", rounds=rounds))

    # A draw without the first round, to which a participation of that round is added.
    seed = next(one for number in range(100) if len(due(one := bytes([number] * 32))[1]) == 4)
    audited(seed)
    assert asked == [(tuple((one.round, one.client) for one in due(seed)[1]), 3)]
    # A run that commits to no start is drawn from as before.
    rewrite_ledger(run, lambda entries: entries[0].pop("initial"))
    audited(seed)
    assert asked[1:] == [(tuple((one.round, one.client) for one in due(seed)[0]), 3)]


def test_a_participation_that_was_added_is_told_and_changes_no_chance(run: Path) -> None:
    bundle = open_bundle(run)
    rounds = {item.round: item for item in bundle.readable_ledger.rounds}
    tally = Recomputed(participations=4, queries=9, rounds=4)
    told = [_conclude(bundle.header, rounds, 12, 3, REPLAY, tally, asked) for asked in (None, 3, 4)]
    assert told[0] == told[1]
    assert told[2].measurement.startswith(
        "3 of 12 participations, drawn after the run, and one more of the first round were "
        "recomputed"
    )
    assert (told[2].details, told[2].power) == (told[0].details, told[0].power)
    missing = replace(tally, unjudged=["why"])
    judged = _conclude(bundle.header, rounds, 12, 3, REPLAY, missing, 4)
    assert judged.measurement.startswith("4 of 4 drawn participations could be recomputed")


def test_a_round_that_the_auditor_cannot_judge_is_told_and_never_passed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge_round(bundle: Bundle, item: Any, again: RecomputedRound, tally: Recomputed) -> None:
        if again.round == 3:
            raise UnverifiedError("round 3: nobody knows")
        tally.participations += 1

    monkeypatch.setattr(recomputed, "judge_round", judge_round)
    finding = found(run, lambda one: one)
    assert finding.verdict is Verdict.NOT_VERIFIED
    assert finding.measurement.endswith("could be recomputed; round 3: nobody knows")


def other_digest(again: RecomputedRound) -> RecomputedRound:
    return replace(again, digests={**again.digests, "uploads_sha256": ANOTHER})


def test_without_a_replay_it_rests_on_the_trainers_word(run: Path) -> None:
    finding = audit_run(run).named("reexecution")
    assert (finding.verdict, finding.severity) == (Verdict.NOT_VERIFIED, Severity.THEORETICAL)
    assert (finding.qualifications, finding.power) == ((WORD,), "none")
    assert found(run, lambda one: one, count=0).qualifications == (WORD,)


def test_another_digest_fails_on_the_machine_that_trained(run: Path) -> None:
    finding = found(run, lambda one: replace(other_digest(one), exact=True))
    assert finding.verdict is Verdict.FAIL
    assert "it differs from the run in uploads, on the same processor" in finding.measurement


def test_another_digest_on_another_machine_is_not_verified_and_told_why(run: Path) -> None:
    finding = found(run, lambda one: replace(other_digest(one), differences=("torch: 1 then",)))
    assert (finding.verdict, finding.severity) == (Verdict.NOT_VERIFIED, Severity.CRITICAL)
    assert "that proves nothing (torch: 1 then)" in finding.measurement


@pytest.mark.parametrize(("moved", "verdict"), [(0.009, "NOT VERIFIED"), (0.011, "FAIL")])
def test_a_state_that_rounding_cannot_explain_fails_on_any_machine(
    run: Path, moved: float, verdict: str
) -> None:
    finding = found(run, lambda one: replace(other_digest(one), moved=moved))
    assert finding.verdict.value == verdict


def test_a_state_that_is_not_a_number_fails(run: Path) -> None:
    finding = found(run, lambda one: replace(other_digest(one), moved=float("nan")))
    assert finding.verdict is Verdict.FAIL


def test_a_cohort_that_the_key_does_not_draw_fails(run: Path) -> None:
    finding = found(run, lambda one: replace(one, cohort=(*one.cohort[1:], 99)))
    assert "its clients are not those that the key draws" in finding.measurement
    assert finding.verdict is Verdict.FAIL


def test_charges_that_the_spec_does_not_make_fail(run: Path) -> None:
    finding = found(run, lambda one: replace(one, whole=True, charges=()))
    assert "its charge is not what the spec gives" in finding.measurement
    assert finding.verdict is Verdict.FAIL


def test_published_parameters_that_the_last_round_does_not_lead_to_fail(run: Path) -> None:
    charges = [
        {key: value for key, value in vars(spend).items() if key != "line"}
        for spend in open_bundle(run).readable_ledger.spends
    ]

    def change(one: RecomputedRound) -> RecomputedRound:
        due = tuple(entry for entry in charges if entry["round"] == one.round)
        return replace(one, whole=True, charges=due, published=False)

    finding = found(run, change)
    assert "the published parameters are not its result" in finding.measurement
    assert "was not charged" not in finding.measurement


def test_what_could_not_be_computed_is_never_passed(run: Path) -> None:
    finding = found(run, lambda one: replace(one, problem="the key is not there"))
    assert finding.verdict is Verdict.NOT_VERIFIED
    assert "the key is not there" in finding.measurement
    # Nothing differs, but no participation was computed either.
    assert found(run, lambda one: one).verdict is Verdict.NOT_VERIFIED


def test_faults_of_data_and_keys_fail_before_anything_is_computed(run: Path) -> None:
    finding = found(run, lambda one: one, faults=("client 3: other records",))
    assert (finding.verdict, finding.measurement) == (Verdict.FAIL, "client 3: other records")


def test_where_clients_are_drawn_independently_their_number_is_not_told(tmp_path: Path) -> None:
    run = build_client_run(tmp_path / "run", ClientSettings())
    finding = found(run, lambda one: replace(one, problem="not here"))
    assert "participations" not in finding.details
    assert finding.private["participations"] > 0
    assert finding.details["chances"][1]["passes"] == pytest.approx(0.95**3)


def test_release_noise_that_the_key_does_not_give_fails_also_where_uploads_are_not_opened(
    tmp_path: Path,
) -> None:
    run = build_client_run(tmp_path / "run", ClientSettings())
    bundle = open_bundle(run)
    size, clip = bundle.header.parameters, bundle.header.clipping_norm or 1.0

    def released(one: RecomputedRound, off: float) -> RecomputedRound:
        noise = np.zeros(size)
        shown = bundle.update_round(one.round).noise_sample * clip
        noise[bundle.layout().sample_coordinates] = shown + off
        release = RecomputedRelease(
            released=None, total=None, noise=noise, spacing=0.0, divisor=1.0, bits=None
        )
        return replace(one, release=release)

    wrong = "its noise is not what the key gives"
    assert wrong in found(run, lambda one: released(one, 0.01)).measurement
    assert wrong not in found(run, lambda one: released(one, 0.0)).measurement


@pytest.mark.parametrize(("moved", "within"), [(0.0, False), (0.3, False), (0.6, True)])
def test_what_rounding_does_not_explain_a_record_beside_a_kink_may(
    moved: float, within: bool
) -> None:
    asked: list[int] = []

    def beside() -> np.ndarray:
        asked.append(1)
        return np.array([moved, np.nan])

    query = RecomputedQuery(
        records=np.arange(2),
        gradient=np.array([0.5, 0.0, 0.0], np.float32),
        noise=np.zeros(3),
        spacing=0.0,
        divisor=2.0,
        clean=np.zeros(3),
        bound=1e-6,
        norms=np.ones(2, np.float32),
        raw_norms=np.array([1.0, 1.0]),
        norm_errors=np.zeros(2),
        moved=beside,
    )
    off, bound = _clean(query, clip=1.0)
    assert (off <= bound, off) == (within, pytest.approx(1.0, abs=1e-6))
    # It takes long, and is asked for where it matters alone.
    assert asked == [1]
    assert _clean(replace(query, clean=np.array([1.0, 0.0, 0.0])), clip=1.0)[0] == 0.0
    assert asked == [1]


def test_a_bound_is_kept_or_named_and_the_widest_is_told() -> None:
    tally = Recomputed()
    tally.bound("a sum", 0.0, 0.0, clip=1.0)
    assert (tally.reasons, tally.closest, tally.hidden) == ([], 0.0, 0.0)
    tally.bound("a sum", 0.5e-5, 1e-5, clip=1.0)
    assert tally.reasons == []
    tally.bound("a sum", 2e-5, 1e-5, clip=0.5)
    assert tally.reasons == [
        "a sum: differs by 4e-05 C from what the records give, but rounding explains only 2e-05 C"
    ]
    assert (tally.closest, tally.hidden) == (2.0, 4e-5)
    tally.bound("a sum", float("nan"), 1.0, clip=1.0)
    assert len(tally.reasons) == 2


def update_of(taken: list[float], clipped: list[float], **more: Any) -> RecomputedUpdate:
    """An update whose clipping is to be judged, with C = 1."""
    vector = np.array(taken, np.float32)
    sent = np.array(clipped, np.float32)
    given = {
        "update": vector, "reference": vector.astype(np.float64), "bound": 0.0, "taken": vector,
        "clipped": sent, "noise": None, "upload": sent, "spacing": 2.0**-20, "bits": None,
            "moved": lambda: 0.0,
    }  # fmt: skip
    return RecomputedUpdate(**{**given, **more})


def test_clipping_is_worked_out_anew() -> None:
    assert _clipping(update_of([0.6, 0.0], [0.6, 0.0]), 1.0) == []
    assert _clipping(update_of([3.0, 4.0], [0.6, 0.8]), 1.0) == []
    assert _clipping(update_of([3.0, 4.0], [3.0, 4.0]), 1.0) == [
        "its update was not clipped to the clipping norm"
    ]
    # Clients that choose keep what is largest.
    assert _clipping(update_of([0.5, 0.1], [0.5, 0.0]), 1.0) == []
    assert _clipping(update_of([0.5, 0.1], [0.0, 0.1]), 1.0) == [
        "a coordinate left out of its update is larger than one that was kept"
    ]
    assert _clipping(update_of([np.nan, 0.1], [0.0, 0.0]), 1.0) == []
    assert _clipping(update_of([np.nan, 0.1], [0.0, 0.1]), 1.0) == [
        "an update that is not finite was sent"
    ]


def test_a_clients_own_noise_must_be_the_keys() -> None:
    noise = np.array([0.25, -0.5])
    sent = np.array([0.85, -0.5], np.float32)
    assert _clipping(update_of([0.6, 0.0], [0.6, 0.0], noise=noise, upload=sent), 1.0) == []
    off = update_of([0.6, 0.0], [0.6, 0.0], noise=noise + 1e-5, upload=sent)
    assert _clipping(off, 1.0) == [
        "its upload is not its clipped update and the noise that the key gives"
    ]


def test_probabilities_are_told_in_words() -> None:
    assert [percent(0.0), percent(0.0004), percent(0.34), percent(1.0)] == [
        "0.0 %", "below 0.1 %", "34.0 %", "100.0 %",
    ]  # fmt: skip
    assert [percent(0.00099), percent(0.001), percent(0.0012), percent(0.0019)] == [
        "below 0.1 %", "0.1 %", "0.1 %", "0.2 %",
    ]  # fmt: skip


def test_what_was_drawn_is_told_with_how_likely_a_forger_passes() -> None:
    assert said({"participations": 12, "drawn": 12}) == (
        "all 12 participations were recomputed from the data"
    )
    assert said({"participations": 12, "drawn": 13}).startswith("all 12 participations")
    # One of twelve is false: it is among eleven of them but for one in twelve.
    assert said({"participations": 12, "drawn": 11}) == (
        "11 of 12 participations were recomputed from the data; a trainer who falsified 5 % of "
        "them would have passed with a probability of 8.3 %"
    )
    assert said({"drawn": 3}) == (
        "3 participations were recomputed from the data; a trainer who falsified 5 % of them would "
        f"have passed with a probability of {percent(0.95**3)}"
    )


def test_at_least_one_participation_is_taken_to_be_false_and_no_more_than_there_are() -> None:
    assert passing(10, 0.01, 4) == pytest.approx(0.6)
    assert passing(100, 0.05, 1) == pytest.approx(0.95)
    assert passing(1, 5.0, 1) == 0.0
    assert passing(None, 0.2, 2) == pytest.approx(0.64)
    assert [one["share"] for one in chances(None, 1)] == [0.01, 0.05, 0.2]


def test_power_is_told_for_each_share_and_how_many_would_find_one_percent() -> None:
    assert _power(12, 12) == "any falsified participation"
    assert _power(None, 1) == (
        "chance of a FAIL: 1 % falsified: 1.0 %; 5 % falsified: 5.0 %; 20 % falsified: 20.0 %"
    )
    # To miss one of a hundred with 5 % at most, 95 must be drawn.
    assert _power(100, 1).endswith("; detecting 1 of 100 with 95 % needs 95")
    # Of a thousand one percent is ten, of which none is drawn with 5 % at most.
    missed = (n for n in range(1000) if math.comb(990, n) <= 0.05 * math.comb(1000, n))
    assert _power(1000, 1).endswith(f"; detecting 10 of 1000 with 95 % needs {next(missed)}")
    assert "; detecting 1 of 20 with 95 % needs 19" in _power(20, 1)


# What the finding tells.

REPLAY = Replay(count=3, seed=bytes(32), drawn_by="a test", rounds=lambda drawn, final: iter(()))


def concluded(run: Path, many: int, drawn: int, replay: Replay = REPLAY, **tally: Any) -> Judgement:
    bundle = open_bundle(run)
    rounds = {item.round: item for item in bundle.readable_ledger.rounds}
    found = {"participations": drawn, "queries": 9, "rounds": 4, "hidden": 2e-6, **tally}
    return _conclude(bundle.header, rounds, many, drawn, replay, Recomputed(**found))


def test_a_pass_tells_how_many_were_computed_and_what_agrees_to_the_last_bit(run: Path) -> None:
    near = (
        "clean values match a second implementation in float64, one record at a time, up to "
        "rounding (at most 1e-06 C)"
    )
    exact = "batches, noise, uploads and commitments agree bit for bit"
    found = concluded(run, 12, 3, last=True, closest=0.5, lengthened=0.25)
    assert (found.verdict, found.measurement) == (
        Verdict.PASS,
        "3 of 12 participations, drawn after the run, were recomputed from the data (9 "
        f"queries): {exact}, as does the server's step in 4 of 4 rounds, the last of which leads "
        f"to the published parameters; {near}",
    )
    assert found.details == {
        "drawn": 3,
        "drawn_by": "a test",
        "seed": bytes(32).hex(),
        "rounds_run_again": 4,
        "rounds": 4,
        "published_parameters": True,
        "smallest_visible": 2e-6,
        "chances": chances(12, 3),
        "participations": 12,
    }
    assert found.private == {
        "largest_share_of_a_rounding_bound": 0.5,
        "longest_norm_over_its_own": 0.25,
        "participations": 12,
        "computed_again": 3,
    }
    assert found.qualifications == (said(found.details),)
    assert found.power == _power(12, 3)
    without = concluded(run, 12, 3, rounds=1)
    assert f"{exact}, as does the server's step in 1 of 4 rounds; {near}" in (without.measurement)
    nobody = concluded(run, 12, 3, rounds=0, last=True)
    assert (
        f"{exact}. The server's step was not recomputed in any round: none was opened completely; "
        f"{near}" in nobody.measurement
    )


def test_a_pass_on_another_machine_says_how_much_could_hide(run: Path) -> None:
    found = concluded(
        run, 12, 3, rounds=0, across=3, hidden=2e-4, elsewhere=["round 1: other bits"]
    )
    assert found.verdict is Verdict.PASS
    assert "no false term of more than 0.0002 C hides in a clipped sum (round 1: other bits)" in (
        found.measurement
    )
    assert "uploads and commitments agree" not in found.measurement
    assert (found.details["on_another_machine"], found.details["smallest_visible"]) == (3, 2e-4)


def test_what_could_hide_a_record_stands_as_if_nobody_had_computed_it(run: Path) -> None:
    """So the run has level 1, however many other participations agree, and is not NOT VERIFIED."""
    found = concluded(run, 12, 3, coarse=["round 1, client 2: rounding could hide 0.88 C"])
    assert (found.verdict, found.severity) == (Verdict.NOT_VERIFIED, Severity.THEORETICAL)
    assert "1 of 3 recomputed participations do not count" in found.measurement
    assert "rounding could hide 0.88 C" in found.measurement
    assert found.qualifications[0] in found.measurement
    worse = concluded(run, 12, 3, coarse=["one"], unjudged=["another"])
    assert (worse.severity, worse.qualifications) == (
        None,
        (),
    )  # the check's own, which is critical


def test_of_whole_clients_trainings_are_told_and_not_how_many_took_part(tmp_path: Path) -> None:
    found = concluded(build_client_run(tmp_path / "run", ClientSettings()), 12, 3)
    assert found.measurement.startswith(
        "3 participations, drawn after the run, were recomputed from the data (whole local "
        "trainings): "
    )
    assert "participations" not in found.details
    assert found.power == _power(None, 3)


def test_a_difference_fails_and_what_could_not_be_computed_is_not_verified(run: Path) -> None:
    wrong = concluded(run, 12, 3, reasons=["one differs"], unjudged=["one is not here"])
    assert (wrong.verdict, wrong.measurement) == (Verdict.FAIL, "one differs")
    missing = concluded(run, 12, 3, participations=2, unjudged=["one is not here"])
    assert (missing.verdict, missing.measurement) == (
        Verdict.NOT_VERIFIED,
        "2 of 3 drawn participations could be recomputed; one is not here",
    )
    none = concluded(run, 0, 0)
    assert (none.verdict, none.measurement) == (
        Verdict.NOT_VERIFIED,
        "0 of 0 drawn participations could be recomputed; the ledger has no participation",
    )
    for one in (wrong, missing, none):
        assert (one.qualifications, one.power) == ((), None)
        assert "drawn" in one.details
