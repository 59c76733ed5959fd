"""What is said of canaries: when a claim is contradicted, by what, and what could not be judged.

The bounds and the law of the scores have tests of their own (`tests/audit/canaries`); here they
are given, so that each sentence is asked for by the numbers that decide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from audit.canaries.bounds import CONFIDENCE, Bound, Outcome
from audit.canaries.e_values import Evaluation, Scores
from audit.canaries.guessing import Guesses
from audit.canaries.views import View
from audit.checks import Judgement, canaries, checks_for
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.canary_evidence import CanaryEvidence
from audit.reading.ledger_lines import Canaries
from audit.statistics.intervals import FALSE_ALARM
from tests.audit.checks.opened import changed, judged, says

MANY = 40
CLAIMED = 8.0
SAID = (f"audit run with {MANY} planted canaries: its model is not for release",)


def evidence_of(bundle: Bundle, *, included: int = MANY // 2, many: int = MANY) -> CanaryEvidence:
    """Canaries of the first client (or the first clients), and one row for each of its answers."""
    whole = bundle.header.unit.whole_clients
    rows = [
        (item.round, step)
        for item in bundle.readable_ledger.rounds
        for client, queries in zip(item.clients, item.queries, strict=True)
        if client == 1 and not whole
        for step in range(queries)
    ]
    if whole:
        rows = [(item.round, 0) for item in bundle.readable_ledger.rounds]
    return CanaryEvidence(
        client=np.arange(many) if whole else np.ones(many, np.int64),
        included=np.arange(many) < included,
        opposed=False,
        row_round=np.array([number for number, _ in rows]),
        row_step=np.array([step for _, step in rows]),
        row_first=np.zeros(len(rows), np.int64),
        row_count=np.full(len(rows), many),
        projections=np.zeros(len(rows) * many),
        further={},
        loss_before=np.zeros(many),
        loss_after=np.zeros(many),
        person=np.arange(many),
    )


def planted(bundle: Bundle, kind: str = "gradient", count: int = MANY, **header: Any) -> Bundle:
    """The run as an audit run that planted canaries."""
    return changed(
        bundle,
        header={"canaries": Canaries(count, kind, "audited"), **header},
        files={"canaries": evidence_of(bundle)},
    )


def outcome(*, contradicted: bool = False, able: bool = True) -> Outcome:
    return Outcome(
        (Guesses(MANY, 10, 9),), contradicted, able, Bound(1.0, 2.0, 0.5), Bound(3.0, 4.0, 0.25)
    )


def evaluation(**found: Any) -> Evaluation:
    given = {
        "scores": 480, "log10_e_value": 0.25, "contradicted": False, "noise": 0.75,
        "contribution": 1.5, "noise_interval": (0.5, 2.0), "largest_ratio": 4.0, "seen": 0.5,
    }  # fmt: skip
    return Evaluation(**{**given, **found})


def asked(
    bundle: Bundle,
    outcomes: dict[str, Outcome],
    scores: Evaluation | str,
    patch: pytest.MonkeyPatch,
    calls: list[tuple[Any, ...]] | None = None,
    needed: Iterator[int | None] | None = None,
) -> Judgement:
    """What the check says where the bounds of each view and what the scores show are given.

    A claim of so many times the noise is one of as much less epsilon.
    """
    noted = [] if calls is None else calls
    enough = repeat(77) if needed is None else needed

    def judge(guesses: Any, mechanism: Any, delta: float, views: float) -> Outcome:
        noted.append(("judge", guesses, mechanism(1.0), delta, views))
        return outcomes[guesses[0]]

    def judge_scores(observed: Any, level: float, bound_level: float) -> Any:
        noted.append(("scores", observed, level, bound_level))
        return scores

    patch.setattr(canaries, "judge", judge)
    patch.setattr(canaries, "guess", lambda seen, included: (seen, int(included.sum())))
    patch.setattr(canaries, "judge_scores", judge_scores)
    patch.setattr(canaries, "epsilon", lambda shares, delta: CLAIMED / shares)
    patch.setattr(canaries, "canaries_needed", lambda mechanism, views: next(enough))
    none = np.zeros(0)
    sample = Scores(none, none, none, none, none, np.zeros(0, np.bool_))
    seen: Any = [View(name, f"the {name}", lambda factor: factor, name) for name in outcomes]
    return canaries._judge(
        lambda evidence, ledger, header, delta: seen,
        lambda evidence, ledger, header: scores if isinstance(scores, str) else sample,
        lambda evidence, ledger: None,
        bundle,
    )


PASSING = {"uploads": outcome(), "final-model": outcome(able=False)}


def test_a_pass_says_what_was_seen_what_could_be_and_what_was_claimed(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(planted(of_records), PASSING, evaluation(), monkeypatch)
    assert (found.verdict.value, found.qualifications) == ("PASS", SAID)
    assert found.measurement == (
        "not contradicted. Planted: 40 gradients far above the clipping norm in the places of "
        "records, each there by a fair coin. Scores: the ledger's steps explain the 480 scores, "
        "with noise between 0.500 and 2.000 times the ledger's; epsilon >= 4.00 of these steps if "
        "a canary adds the clipping norm, 2.00 whatever it adds, claimed 8.00. Noise at most 0.50 "
        "times the ledger's would have been seen in 999 of 1,000 runs. Guesses give lower bounds "
        "on epsilon, for any mechanism and for these steps with only the noise in doubt. Next "
        "to each stands the most that 40 canaries could show: the uploads 1.00 of 3.00, for these "
        "steps 2.00 of 4.00, claimed 8.00; the final-model 1.00 of 3.00, for these steps 2.00 of "
        "4.00, claimed 8.00 (more than so many could contradict). Not shown: that nothing else "
        "leaks, or anything about the released model, which was trained without canaries."
    )
    assert found.details == {
        "canaries": 40,
        "kind": "gradient",
        "unit": "record",
        "audited": "audited",
        "confidence": CONFIDENCE,
        "false_alarm": FALSE_ALARM,
        "delta": 1e-5,
        "views": [
            {
                "view": name,
                "claimed_epsilon": 8.0,
                "epsilon_any_mechanism": 1.0,
                "epsilon_these_steps": 2.0,
                "ceiling_any_mechanism": 3.0,
                "ceiling_these_steps": 4.0,
                "noise_share_excluded": 0.5,
                "contradicted": False,
                "could_contradict": able,
                "guesses": [[10, 9]],
            }
            for name, able in (("uploads", True), ("final-model", False))
        ],
        "scores": {
            "scores": 480,
            "log10_e_value": 0.25,
            "contradicted": False,
            "noise": 0.75,
            "contribution": 1.5,
            "noise_interval": [0.5, 2.0],
            "claimed_epsilon": 8.0,
            "epsilon_these_steps": 4.0,
            "epsilon_any_contribution": 2.0,
            "noise_seen": 0.5,
        },
    }


def test_the_scores_have_a_tenth_of_the_false_alarms_and_the_views_share_the_rest(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    asked(planted(of_records), PASSING, evaluation(), monkeypatch, calls)
    level, bound_level = calls[0][2:]
    assert level == pytest.approx(0.1 * FALSE_ALARM)
    assert bound_level == pytest.approx(1.0 - CONFIDENCE)
    judged_at = ("judge", ("uploads", MANY // 2), 1.0, 1e-5, pytest.approx(2 / 0.9))
    assert calls[1] == judged_at
    calls.clear()
    asked(planted(of_records), PASSING, "they are missing", monkeypatch, calls)
    assert [call[0] for call in calls] == ["judge", "judge"]
    assert calls[0][4] == 2


def test_scores_that_are_missing_are_told_in_a_pass(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(planted(of_records), PASSING, "they are missing", monkeypatch)
    assert found.verdict.value == "PASS"
    assert "Scores: not tested: they are missing. Guesses" in found.measurement
    assert found.details["scores_missing"] == "they are missing"
    assert "scores" not in found.details


def test_without_an_interval_of_the_noise_none_is_told(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = evaluation(noise_interval=None)
    found = asked(planted(of_records), PASSING, scores, monkeypatch)
    assert "explain the 480 scores; epsilon >= 2.00 of these steps" in found.measurement
    assert found.details["scores"]["noise_interval"] is None
    assert found.details["scores"]["epsilon_these_steps"] == 2.0


def test_a_ratio_beyond_what_can_be_computed_says_nothing_of_privacy_lost() -> None:
    asked: list[float] = []

    def mechanism(ratio: float) -> Any:
        asked.append(ratio)
        return ratio

    def details(interval: tuple[float, float] | None, largest: float) -> dict[str, Any]:
        found = SimpleNamespace(
            scores=9, log10_e_value=1.5, contradicted=False, noise=1.0, contribution=1.0,
            noise_interval=interval, largest_ratio=largest, seen=0.75,
        )  # fmt: skip
        return canaries._score_details(found, SimpleNamespace(mechanism=mechanism), 1e-5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canaries, "epsilon", lambda ratio, delta: 10.0 / ratio)
        found = details((0.5, 2.0), 4.0)
        assert found["claimed_epsilon"] == 10.0
        assert found["epsilon_these_steps"] == 5.0
        assert found["epsilon_any_contribution"] == 2.5
        assert found["noise_interval"] == [0.5, 2.0]
        assert (found["scores"], found["log10_e_value"], found["noise_seen"]) == (9, 1.5, 0.75)
        # From 32 times the noise on nothing is lost, and below a 32nd part no more is counted.
        assert details(None, 32.0)["epsilon_any_contribution"] == 0.0
        assert details(None, 31.9)["epsilon_any_contribution"] > 0.0
        assert details(None, 0.001)["epsilon_any_contribution"] == 320.0
        assert details(None, 4.0)["epsilon_these_steps"] == 2.5
        assert details(None, 4.0)["noise_interval"] is None


def test_bounds_are_told_beside_what_could_be_shown_at_most() -> None:
    assert canaries._of(1.236, 5.678) == "1.23 of 5.67"
    bound = SimpleNamespace(any_mechanism=1.239, these_steps=0.5)
    assert canaries._words(bound) == "epsilon >= 1.23 (0.50 of these steps)"


def test_every_kind_of_canary_has_its_words() -> None:
    given = {("gradient", unit) for unit in ("record", "person", "client")}
    crafted = {(kind, unit) for kind in ("input", "secret") for unit in ("record", "person")}
    crafted.add(("label", "record"))
    assert set(canaries._WHAT) == given | crafted
    assert "updates" in canaries._WHAT["gradient", "client"]


@pytest.mark.parametrize(
    ("interval", "adds"),
    [(None, True), ((0.5, 2.0), True), ((1.0, 2.0), True), ((0.5, 1.0), True), ((0.4, 0.9), False),
     ((1.1, 2.0), False)],
)  # fmt: skip
def test_scores_that_the_steps_do_not_explain_refute_the_claim(
    of_records: Bundle,
    interval: tuple[float, float] | None,
    adds: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = evaluation(contradicted=True, noise_interval=interval)
    found = asked(planted(of_records), PASSING, scores, monkeypatch)
    assert (found.verdict.value, found.qualifications) == ("FAIL", SAID)
    said = "the ledger's steps do not explain the 480 scores, which show noise of 0.75 times the "
    assert found.measurement.startswith(said + "ledger's")
    contribution = ", and 1.5 times the clipping norm from a canary: epsilon >= "
    assert (contribution in found.measurement) is adds
    assert found.measurement.endswith("places of records, each there by a fair coin.")
    assert found.details["scores"]["contradicted"] is True


def test_guesses_that_contradict_the_claim_name_their_view(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"uploads": outcome(), "final-model": outcome(contradicted=True)}
    found = asked(planted(of_records), outcomes, evaluation(), monkeypatch)
    assert found.verdict.value == "FAIL"
    assert found.measurement.startswith(
        "contradicts the claim: the final-model: epsilon >= 1.00 (2.00 of these steps), but the "
        "claim is 8.00. Planted: 40 gradients"
    )
    both = asked(planted(of_records), outcomes, evaluation(contradicted=True), monkeypatch)
    assert "the ledger's steps do not explain" in both.measurement
    assert "; contradicts the claim: the final-model" in both.measurement


@pytest.mark.parametrize(
    ("able", "seen", "verdict"),
    [
        ((False, False), 0.5, "PASS"),
        ((False, False), 0.49, "NOT VERIFIED"),
        ((False, False), None, "NOT VERIFIED"),
        ((False, True), 0.49, "PASS"),
        ((True, False), None, "PASS"),
    ],
)
def test_canaries_are_too_few_where_neither_scores_nor_guesses_could_contradict(
    of_records: Bundle,
    able: tuple[bool, bool],
    seen: float | None,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = {name: outcome(able=one) for name, one in zip(PASSING, able, strict=True)}
    scores = "none" if seen is None else evaluation(seen=seen)
    found = asked(planted(of_records), outcomes, scores, monkeypatch)
    assert (found.verdict.value, found.qualifications) == (verdict, SAID)
    if verdict != "PASS":
        assert found.measurement.startswith("40 canaries are too few: even if every guess were")
        assert found.measurement.endswith("noise of half its size. Plant at least 77")
        assert found.details["canaries"] == MANY


@pytest.mark.parametrize(
    ("needed", "least"), [((90, 80), 80), ((90, None), 90), ((None, None), 1_000_000_000)]
)
def test_as_many_canaries_are_asked_for_as_the_view_that_needs_fewest(
    of_records: Bundle,
    needed: tuple[int | None, int | None],
    least: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {name: outcome(able=False) for name in PASSING}
    found = asked(planted(of_records), few, "none", monkeypatch, needed=iter(needed))
    assert found.measurement.endswith(f"Plant at least {least}")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("gradient", "gradients far above the clipping norm in the places of records"),
        ("input", "crafted records in the places of others"),
        ("secret", "texts with a secret code in the places of others"),
        ("label", "records with wrong labels, a retired kind"),
        ("another", "canaries"),
    ],
)
def test_what_was_planted_is_told(
    of_records: Bundle, kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(planted(of_records, kind), PASSING, evaluation(), monkeypatch)
    assert f"Planted: 40 {what}, each there by a fair coin. Scores" in found.measurement


def test_in_the_places_of_whole_clients_updates_are_planted(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(planted(of_clients), PASSING, evaluation(), monkeypatch)
    what = "updates far above the clipping norm in the places of clients"
    assert f"Planted: 40 {what}, each" in found.measurement
    assert found.details["unit"] == "client"


# What is held against the ledger before anything is judged.


@pytest.fixture(params=["of_records", "of_clients"])
def run(request: pytest.FixtureRequest) -> Bundle:
    """A correct run of either unit."""
    bundle: Bundle = request.getfixturevalue(request.param)
    return bundle


def test_the_question_arises_where_canaries_were_planted_alone(run: Bundle) -> None:
    assert "canaries" not in {check.name for check in checks_for(run.header)}
    assert "canaries" in {check.name for check in checks_for(planted(run).header)}
    assert "canaries" not in {check.name for check in checks_for(None)}
    assert says(run, "canaries") == ("NOT VERIFIED", "the ledger's header names no canaries")


@pytest.mark.parametrize("delta", [None, 1.0, 2.0])
def test_without_a_delta_below_one_nothing_is_judged(run: Bundle, delta: float | None) -> None:
    with pytest.raises(UnverifiedError, match="lacks a delta below 1"):
        canaries.CANARIES.rule(planted(run, delta=delta))


def test_evidence_of_another_number_of_canaries_is_not_judged(run: Bundle) -> None:
    found = judged(planted(run, count=MANY + 1), "canaries")
    assert found.verdict.value == "NOT VERIFIED"
    assert found.measurement == (
        "the evidence has a different number of canaries from the ledger's header"
    )
    assert found.qualifications == (
        "audit run with 41 planted canaries: its model is not for release",
    )


def test_coins_are_fair_but_for_one_sample_in_a_million(of_records: Bundle) -> None:
    declared = Canaries(200, "gradient", None)

    def fault(included: int) -> str | None:
        return canaries._fault(evidence_of(of_records, included=included, many=200), declared, 1)

    # Both ends of the law of 200 fair coins.
    fewest = next(k for k in range(200) if 2 * binom.cdf(k, 200, 0.5) >= 1e-6)
    assert fault(fewest) is fault(200 - fewest) is fault(100) is None
    said = "the coins that included the canaries are not fair, so no bound holds"
    assert fault(fewest - 1) == fault(201 - fewest) == fault(0) == said


def test_every_answer_to_a_client_with_canaries_must_be_there(of_records: Bundle) -> None:
    ledger, evidence = of_records.readable_ledger, evidence_of(of_records)
    assert canaries._missing_answers(evidence, ledger) is None
    rows = len(evidence.row_round)
    assert rows == 6
    for gone, number in ((0, 0), (rows - 1, 2)):
        kept = np.arange(rows) != gone
        less = replace(
            evidence,
            **{name: getattr(evidence, name)[kept] for name in ("row_round", "row_step")},
            **{name: getattr(evidence, name)[kept] for name in ("row_first", "row_count")},
            projections=evidence.projections[MANY:],
        )
        assert canaries._missing_answers(less, ledger) == (
            f"round {number}: the evidence lacks an answer to client 1"
        )
        found = judged(changed(planted(of_records), files={"canaries": less}), "canaries")
        assert found.verdict.value == "NOT VERIFIED"
        assert found.measurement.endswith("the evidence lacks an answer to client 1")
        assert found.qualifications == SAID


def test_the_scores_are_told_beside_the_first_views_claim(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    real = canaries._score_details

    def details(scores: Any, view: View, delta: float) -> dict[str, Any]:
        told.append(view.name)
        return real(scores, view, delta)

    monkeypatch.setattr(canaries, "_score_details", details)
    asked(planted(of_records), PASSING, evaluation(), monkeypatch)
    assert told == ["uploads"]


def test_coins_at_the_limit_of_what_is_fair_are_fair(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence, declared = evidence_of(of_records), Canaries(MANY, "gradient", None)
    for chance, fair in ((1e-6, True), (np.nextafter(1e-6, 0.0), False)):
        monkeypatch.setattr(canaries, "binomial_p_value", lambda *_, p=chance: p)
        assert (canaries._fault(evidence, declared, 1) is None) is fair


def test_a_canary_at_more_clients_than_the_claim_counts_is_not_judged(of_records: Bundle) -> None:
    evidence, declared = evidence_of(of_records), Canaries(MANY - 1, "gradient", None)
    person = np.maximum(np.arange(MANY) - 1, 0)
    apart = replace(evidence, client=np.arange(MANY), person=person)
    assert canaries._fault(apart, declared, 2) is None
    said = "a canary is at more clients than the claim counts"
    assert canaries._fault(apart, declared, 1) == said


def test_rows_of_the_evidence_may_stand_in_any_order(of_clients: Bundle) -> None:
    ledger, evidence = of_clients.readable_ledger, evidence_of(of_clients)
    turned = replace(evidence, row_round=evidence.row_round[::-1].copy())
    assert turned.row_round[0] > turned.row_round[-1]
    assert canaries._missing_releases(turned, ledger) is None


def test_a_single_answer_that_is_missing_is_missed(of_records: Bundle) -> None:
    ledger, evidence = of_records.readable_ledger, evidence_of(of_records)
    took_part = [item for item in ledger.rounds if 1 in item.clients]
    rounds = tuple(
        replace(item, queries=(1,) * len(item.clients)) if item in took_part else item
        for item in ledger.rounds
    )
    one_each = replace(ledger, rounds=rounds)
    first = [int(np.flatnonzero(evidence.row_round == item.round)[0]) for item in took_part]

    def with_rows(kept: list[int]) -> str | None:
        names = ("row_round", "row_step", "row_first", "row_count")
        less = {name: getattr(evidence, name)[kept] for name in names}
        cut = replace(evidence, **less, projections=np.zeros(len(kept) * MANY))
        return canaries._missing_answers(cut, one_each)

    assert with_rows(first) is None
    assert with_rows(first[:-1]) == (
        f"round {took_part[-1].round}: the evidence lacks an answer to client 1"
    )


def test_every_release_must_be_there_of_all_canaries(of_clients: Bundle) -> None:
    ledger, evidence = of_clients.readable_ledger, evidence_of(of_clients)
    assert canaries._missing_releases(evidence, ledger) is None
    said = "the evidence lacks a round's release"
    twice = replace(evidence, row_round=np.minimum(evidence.row_round, 22))
    assert canaries._missing_releases(twice, ledger) == said
    some = replace(evidence, row_count=np.where(evidence.row_round == 3, MANY - 1, MANY))
    assert canaries._missing_releases(some, ledger) == said
    found = judged(changed(planted(of_clients), files={"canaries": twice}), "canaries")
    assert (found.verdict.value, found.measurement) == ("NOT VERIFIED", said)


# The whole of it, on numbers that follow a law.


def drawn(bundle: Bundle, noise: float, many: int = 300) -> Bundle:
    """An audit run whose canaries are drawn and noised by the ledger's law, or by less noise."""
    draw = np.random.default_rng(5)
    evidence = evidence_of(bundle, many=many)
    # In random order, for losses that are all alike are guessed from the first to the last.
    evidence = replace(evidence, included=draw.permutation(np.arange(many) < many // 2))
    if bundle.header.unit.whole_clients:
        rate, sigma = 0.25, 1.5
    else:
        spend = next(one for one in bundle.readable_ledger.spends if one.client == 1)
        rate, sigma = spend.sampling_rate, spend.noise_multiplier
    shape = (len(evidence.row_round), many)
    moved = (draw.random(shape) < rate) & evidence.included
    projections = moved + noise * sigma * draw.standard_normal(shape)
    return changed(
        bundle,
        header={"canaries": Canaries(many, "gradient", None)},
        files={"canaries": replace(evidence, projections=projections.ravel())},
    )


def test_noise_as_charged_is_not_contradicted_and_half_of_it_is(run: Bundle) -> None:
    found = judged(drawn(run, 1.0), "canaries")
    assert found.verdict.value == "PASS"
    low, high = found.details["scores"]["noise_interval"]
    assert low < 1.0 < high
    less = judged(drawn(run, 0.5), "canaries")
    assert less.verdict.value == "FAIL"
    assert less.details["scores"]["noise"] == pytest.approx(0.5, abs=0.05)
    assert less.measurement.startswith("the ledger's steps do not explain the")
