"""From spend lines to the claim: sums, views, closed forms, and JSON that is finite."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from dpfedadamw.accounting import record_level
from dpfedadamw.accounting.pld import epsilon_pld, privacy_profile
from dpfedadamw.accounting.record_level import (
    ADAPTED,
    claim,
    closed_forms,
    no_claim,
    spends_from_ledger,
)
from dpfedadamw.accounting.selection import TUNED, Trials, epsilon_of_selection
from dpfedadamw.accounting.trade_off import gaussian_dp
from dpfedadamw.accounting.views import DERIVED_RATE, NOT_TUNED, STATED_RATE
from dpfedadamw.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition

DELTA = 1e-5


def line(round: int, client: int, records: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "spend",
        "round": round,
        "client": client,
        "attempt": 1,
        "records": records,
        "sampling": "poisson",
        "sampling_rate": 16 / records,
        "expected_batch_size": 16.0,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.5,
        "steps": 5,
        "queries_per_step": 1,
        **changes,
    }


def make_claim(lines: list[dict[str, Any]], records: list[int], **changes: Any) -> dict[str, Any]:
    setting: dict[str, Any] = {
        "clients": len(records),
        "clients_per_round": 2,
        "bound": SpendingBound(6, 5, 1.5),
        "delta": DELTA,
        "per_round": Composition(1.5, 16 / min(records), 5),
        "share": 16 / min(records),
        **changes,
    }
    return claim(spends_from_ledger(lines), **setting)


RECORDS = [100, 200, 400]
LINES = [line(r, c, RECORDS[c]) for r in range(6) for c in ((0, 1) if r < 2 else (1, 2))]


def test_every_spend_line_counts() -> None:
    other: list[dict[str, Any]] = [{"kind": "header"}, {"kind": "round", "round": 0}]
    spends = spends_from_ledger([*other, *LINES, line(5, 2, 400, attempt=2)])
    assert [(s.client, s.participations, s.steps) for s in spends] == [
        (0, 2, 10),
        (1, 6, 30),
        (2, 5, 25),
    ]
    assert spends[1].compositions == (Composition(1.5, 0.08, 30),)


def test_changes_during_a_run_are_kept_apart() -> None:
    lines = [line(0, 0, 100), line(1, 0, 100, noise_multiplier=2.0), line(2, 0, 100)]
    (spend,) = spends_from_ledger(lines)
    assert spend.compositions == (Composition(1.5, 0.16, 10), Composition(2.0, 0.16, 5))
    assert spend.sampling_rate == 0.16


def test_the_claim_has_every_view_and_only_json() -> None:
    made = make_claim(LINES, RECORDS)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert set(made) == {
        "view_headline",
        "delta",
        "adjacency",
        "server",
        "server_worst_case",
        "third_party",
        "closed_forms",
        "assumptions",
        "profile",
        "gaussian_dp",
    }
    assert set(made["server"]["clients"][0]) == {
        "client",
        "records",
        "sampling_rate",
        "participations",
        "steps",
        "epsilon",
        "delta_records",
    }
    assert made["view_headline"] == "server"
    assert len(made["profile"]) == 40


def test_the_claim_is_what_the_accountants_say() -> None:
    made = make_claim(LINES, RECORDS)
    spent = {entry["client"]: entry["epsilon"]["pld"] for entry in made["server"]["clients"]}
    assert spent == {
        0: epsilon_pld(Composition(1.5, 0.16, 10), DELTA),
        1: epsilon_pld(Composition(1.5, 0.08, 30), DELTA),
        2: epsilon_pld(Composition(1.5, 0.04, 20), DELTA),
    }
    assert made["server"]["epsilon"]["pld"] == max(spent.values())
    # The worst case and the third party's view take the largest rate of ANY client.
    worst = epsilon_pld(Composition(1.5, 0.16, 30), DELTA)
    assert made["server_worst_case"]["epsilon"]["pld"] == worst
    assert made["server"]["epsilon"]["pld"] < worst
    assert 0 < made["third_party"]["epsilon"]["pld"] < worst
    assert made["third_party"]["participation"] == 2 / 3


def test_a_client_that_never_took_part_still_counts_for_the_worst_case() -> None:
    absent = [line(r, c, RECORDS[c]) for r in range(6) for c in (1, 2)]
    made = make_claim(absent, RECORDS)
    assert [entry["client"] for entry in made["server"]["clients"]] == [1, 2]
    assert made["server_worst_case"] == make_claim(LINES, RECORDS)["server_worst_case"]


def test_repeated_rounds_can_lift_the_worst_case() -> None:
    lines = [line(r, 0, 100, attempt=a) for r in range(6) for a in (1, 2)]
    made = make_claim(lines, [100, 200], clients_per_round=1)
    assert made["server"]["epsilon"]["pld"] == epsilon_pld(Composition(1.5, 0.16, 60), DELTA)
    assert made["server_worst_case"]["epsilon"]["pld"] == made["server"]["epsilon"]["pld"]


def test_a_run_in_which_nobody_took_part_spent_nothing() -> None:
    # Where clients are drawn independently, every round may have been empty.
    made = make_claim([], RECORDS, client_sampling="poisson")
    assert made["server"] == {"epsilon": {"pld": 0.0}, "accountant": "pld", "clients": []}
    assert made["server_worst_case"]["epsilon"]["pld"] > 0
    assert any("independently of the others" in note for note in made["assumptions"])


def test_shuffled_epochs_are_charged_for_the_batches_that_one_record_can_be_in() -> None:
    shuffled = {"sampling": "shuffled", "sampling_rate": 1.0}
    # 100 records in batches of 16 are 7 steps an epoch: 5 steps meet a record once, 9 twice.
    lines = [line(0, 0, 100, **shuffled), line(1, 0, 100, steps=9, **shuffled)]
    (spend,) = spends_from_ledger(lines)
    assert spend.compositions == (Composition(1.5, 1.0, 3, 1, "shuffled"),)
    made = make_claim(lines, [100], clients_per_round=1, per_round=spend.compositions[0])
    assert made["adjacency"] == "replace-one"
    assert any("no amplification" in note for note in made["assumptions"])
    assert not any("Poisson" in note for note in made["assumptions"])


def test_a_claim_without_finite_numbers_is_refused() -> None:
    with pytest.raises(PrivacyError, match="noise multiplier"):
        make_claim([line(0, 0, 100, noise_multiplier=0.0)], RECORDS)
    with pytest.raises(PrivacyError, match="delta must be in"):
        make_claim(LINES, RECORDS, delta=1e-15)


def test_no_unit_no_claim() -> None:
    assert no_claim() == {"view_headline": "none"}


def test_closed_forms_of_the_papers() -> None:
    forms = closed_forms(0.016, 1.0, 50, 5, 100, 20, DELTA)
    server = 0.016 * math.sqrt(2000 * math.log(2e5) * math.log(2e7))
    assert forms.server_noble == pytest.approx(server, rel=1e-12)
    assert forms.third_party_noble == pytest.approx(server * math.sqrt(0.1 / 50), rel=1e-12)
    # Eq. (13) is printed as the third party's and is the server's; eq. (14) multiplies by
    # sqrt(N/l) once more: 22-fold here.
    assert forms.equation_13 == forms.server_noble
    assert forms.equation_14 / forms.equation_13 == pytest.approx(22.36, abs=0.01)
    assert forms.delta_server == pytest.approx(5.5 * DELTA, rel=1e-12)
    assert forms.sampling_rate == 0.016


@pytest.mark.thorough
def test_fifty_clients_are_accounted_for_in_seconds() -> None:
    records = [100 + 7 * index for index in range(50)]
    lines = [line(r, c, size) for r in range(40) for c, size in enumerate(records)]
    start = time.perf_counter()
    made = make_claim(lines, records, clients_per_round=50, bound=SpendingBound(40, 5, 1.5))
    # A tenth of this on an idle core.
    assert time.perf_counter() - start < 40
    epsilons = [entry["epsilon"]["pld"] for entry in made["server"]["clients"]]
    assert epsilons == sorted(epsilons, reverse=True)


def test_unlike_steps_are_kept_apart_in_one_order_and_like_ones_added_up() -> None:
    lines = [
        line(0, 9, 100, noise_multiplier=2.0),
        line(1, 9, 100, queries_per_step=2),
        line(2, 9, 100, sampling_rate=0.1),
        line(3, 9, 100, steps=3),
        line(4, 9, 100),
        # A spend by itself, as it is kept, may lack the word.
        {name: value for name, value in line(5, 4, 50).items() if name != "kind"},
        {"kind": "round", "round": 5},
    ]
    first, last = spends_from_ledger(lines)
    assert (first.client, first.records, first.participations) == (4, 50, 1)
    assert first.compositions == (Composition(1.5, 0.32, 5),)
    assert (last.client, last.records, last.participations, last.steps) == (9, 100, 5, 23)
    assert last.compositions == (
        Composition(1.5, 0.1, 5),
        Composition(1.5, 0.16, 8),
        Composition(1.5, 0.16, 5, 2),
        Composition(2.0, 0.16, 5),
    )


def test_of_a_client_that_grew_or_shrank_the_most_records_are_told() -> None:
    for sizes in ((100, 120), (120, 100)):
        (spend,) = spends_from_ledger([line(t, 0, size) for t, size in enumerate(sizes)])
        assert spend.records == 120


def test_closed_forms_are_the_printed_ones_at_any_noise() -> None:
    forms = closed_forms(0.03, 2.5, 40, 8, 60, 7, 1e-6)
    logarithms = math.log(2 / 1e-6) * math.log(2 * 60 / 1e-6)
    # s·√(l·T·K·log(2/δ)·log(2T/δ)/N)/σ with l = 1/5.
    third = 0.03 * math.sqrt(0.2 * 60 * 7 * logarithms / 40) / 2.5
    server = 0.03 * math.sqrt(60 * 7 * logarithms) / 2.5
    assert asdict(forms) == pytest.approx(
        {
            "third_party_noble": third,
            "server_noble": server,
            "equation_13": server,
            "equation_14": server * math.sqrt(40 / 0.2),
            "delta_server": 0.5e-6 * 6,
            "sampling_rate": 0.03,
        },
        rel=1e-12,
    )


# One Gaussian a round, which is quick to compose.
PLAIN = Composition(6.0, 1.0, 1)


def plain(participations: list[int], **changes: Any) -> dict[str, Any]:
    """The claim of a run of full batches, in which clients took part in so many rounds."""
    lines = [
        line(t, c, 100, sampling_rate=1.0, noise_multiplier=6.0, steps=1)
        for c, rounds in enumerate(participations)
        for t in range(rounds)
    ]
    setting = {"bound": SpendingBound(6, 1, 6.0), "per_round": PLAIN, "share": 1.0}
    setting = {**setting, "clients_per_round": min(2, len(participations)), **changes}
    return make_claim(lines, [100] * len(participations), **setting)


def cost(rounds: int) -> float:
    return epsilon_pld(replace(PLAIN, steps=rounds), DELTA)


def test_the_profile_is_that_of_the_client_that_spent_most() -> None:
    for participations in ([1, 4, 2], [4, 1, 2], [1, 2, 4]):
        made = plain(participations)
        expected = privacy_profile([replace(PLAIN, steps=4)])
        assert made["profile"] == [list(point) for point in expected]
        assert made["server"]["epsilon"] == {"pld": cost(4)}
        assert made["gaussian_dp"] == gaussian_dp(replace(PLAIN, steps=4))
    assert plain([0, 0])["profile"] == [[0.0, 0.0]]
    assert "gaussian_dp" not in plain([0, 0])


def test_no_epsilon_exceeds_the_limit_at_which_a_run_ends_unless_it_was_spent() -> None:
    free = plain([2, 4, 1])
    worst, third = (
        free["server_worst_case"]["epsilon"]["pld"],
        free["third_party"]["epsilon"]["pld"],
    )
    assert cost(4) < third < worst == cost(6)
    assert not any("the run ends before" in note for note in free["assumptions"])
    between = (third + worst) / 2
    made = plain([2, 4, 1], max_epsilon=between)
    assert made["server_worst_case"]["epsilon"] == {"pld": between}
    assert made["third_party"]["epsilon"] == {"pld": third}
    notes = [note for note in made["assumptions"] if "the run ends before" in note]
    assert len(notes) == 1
    assert f"exceeds {between:g}, by a rule" in notes[0]
    below = (cost(4) + third) / 2
    made = plain([2, 4, 1], max_epsilon=below)
    assert made["server_worst_case"]["epsilon"] == {"pld": below}
    assert made["third_party"]["epsilon"] == {"pld": below}
    assert made["server"]["epsilon"] == {"pld": cost(4)}
    # What was really spent is never understated.
    assert plain([4], max_epsilon=0.1)["server_worst_case"]["epsilon"] == {"pld": cost(4)}


@pytest.mark.parametrize("changes", [{}, {"selection": "private", "trials": Trials(10.0, 1.0)}])
def test_a_third_party_saw_what_came_of_a_round_each_time_that_it_was_run(
    changes: dict[str, Any],
) -> None:
    """A state is lost, its finished round is run again: what came of it first is out already."""
    once, again = plain([1, 2], **changes), plain([1, 2], released=8, **changes)
    longer = plain([1, 2], bound=SpendingBound(8, 1, 6.0), **changes)
    assert again["third_party"] == longer["third_party"] != once["third_party"]
    if changes:
        assert again["tuning"] == longer["tuning"] != once["tuning"]
    # The server's numbers are those of charges, and of the plan.
    for view in ("server", "server_worst_case"):
        assert again[view] == once[view]
    # Fewer rounds than planned: the plan is what holds, whatever ended the run.
    assert plain([1, 2], released=5, **changes) == plain([1, 2], released=6, **changes) == once


def test_only_finished_rounds_are_released() -> None:
    lines = [{"kind": kind} for kind in ("header", "spend", "round", "resume", "round", "claim")]
    assert record_level.rounds_released(lines) == 2


@pytest.mark.parametrize("stated", [False, True])
def test_a_claim_says_whether_the_rate_is_stated_or_follows_from_sizes(stated: bool) -> None:
    made = make_claim(LINES, RECORDS, rate_is_stated=stated)
    assert (STATED_RATE in made["assumptions"]) is stated
    assert (DERIVED_RATE in made["assumptions"]) is not stated
    # Unless it is told, a rate follows from sizes, which must then be public.
    assert DERIVED_RATE in make_claim(LINES, RECORDS)["assumptions"]


def test_a_claim_says_how_its_hyper_parameters_were_chosen() -> None:
    assert NOT_TUNED in plain([1])["assumptions"]
    for word in ("public", "unaccounted", "private"):
        found = plain([1], selection=word)["assumptions"]
        assert TUNED[word] in found
        assert NOT_TUNED not in found


def test_each_reading_is_stated_once_and_says_towards_whom() -> None:
    found = plain([1, 2])["assumptions"]
    assert len(found) == len(set(found))
    server = [note for note in found if note.startswith("server: ")]
    third = [note for note in found if note.startswith("third party: ")]
    assert [len(server), len(third)] == [1, 3]
    assert found == [*found[:6], *server, *third]
    # Where nobody took part, the worst case speaks for the server.
    empty = plain([0, 0], client_sampling="poisson")["assumptions"]
    assert sum(note.startswith("server: ") for note in empty) == 2
    assert any("independently of the others" in note for note in empty)
    assert any("same number of clients" in note for note in found)


@pytest.mark.parametrize(
    ("adaptation", "told"),
    [
        (None, False),
        (Adaptation(1, 6, True, None), True),
        (Adaptation(1, 6, False, None), False),
    ],
)
def test_a_claim_says_if_the_course_followed_what_was_released(adaptation, told) -> None:
    made = plain([2], bound=SpendingBound(6, 1, 6.0, adaptation))
    assert (ADAPTED in made["assumptions"]) is told


def test_the_printed_forms_know_the_mean_of_the_most_steps_and_the_least_noise() -> None:
    bound = SpendingBound(6, 1, 6.0, Adaptation(3, None, True, NoiseDecay(0.5, 1, 0.25)))
    made = plain([1, 1, 1], bound=bound, share=0.5)
    expected = closed_forms(0.5, 1.5, 3, 2, 6, 3.0, DELTA)
    assert made["closed_forms"] == asdict(expected)
    limited = SpendingBound(6, 1, 6.0, Adaptation(3, 9, True, None))
    made = plain([1, 1, 1], bound=limited, share=0.5)
    assert made["closed_forms"] == asdict(closed_forms(0.5, 6.0, 3, 2, 6, 1.5, DELTA))


@pytest.mark.parametrize("drawn", [None, 3])
def test_of_a_trial_the_selection_is_claimed_first(drawn: int | None) -> None:
    law = Trials(4.0, 1.0)
    alone = plain([2, 4, 1])
    made = plain([2, 4, 1], trials=law, drawn=drawn)
    # It would be that of one trial.
    assert "gaussian_dp" not in made
    assert (alone["view_headline"], made["view_headline"]) == ("server", "third-party")
    assert "tuning" not in alone
    chosen = epsilon_of_selection([(PLAIN, 6)], 2 / 3, DELTA, law)
    assert made["third_party"] == {
        "epsilon": {"rdp": chosen},
        "accountant": "rdp",
        "participation": 2 / 3,
    }
    assert made["tuning"]["one_trial"]["epsilon"] == alone["third_party"]["epsilon"]
    assert (made["server"], made["delta"]) == (alone["server"], DELTA)
    if drawn is None:
        assert "server_all_trials" not in made["tuning"]
    else:
        found = made["tuning"]["server_all_trials"]["epsilon"]
        assert found == {"pld": pytest.approx(cost(18), rel=1e-9)}
    # A trial that ends early costs no more than its limit, and neither does what is told of it.
    limited = plain([1, 1, 1], trials=law, drawn=drawn, max_epsilon=0.5)
    assert limited["tuning"]["one_trial"]["epsilon"] == {"pld": 0.5}


def test_what_was_spent_by_repeated_rounds_counts_among_all_trials() -> None:
    """The server saw the other trial's six rounds, and twenty of the published one."""
    made = plain([20], clients_per_round=1, trials=Trials(4.0, 1.0), drawn=2)
    found = made["tuning"]["server_all_trials"]["epsilon"]
    assert found == {"pld": pytest.approx(cost(26), rel=1e-9)}
    alone = plain([20], clients_per_round=1, trials=Trials(4.0, 1.0), drawn=1)
    assert alone["tuning"]["server_all_trials"]["epsilon"] == {"pld": cost(20)}
    # Of people at two clients, all that two clients can have been charged.
    people = plain(
        [8, 2],
        trials=Trials(4.0, 1.0),
        drawn=2,
        of_people=True,
        bound=SpendingBound(6, 1, 6.0, clients_per_person=2),
    )
    found = people["tuning"]["server_all_trials"]["epsilon"]
    assert found == {"pld": pytest.approx(cost(2 * 6 + 2 * 8), rel=1e-9)}


def test_the_most_that_a_client_was_to_spend_is_handed_to_its_view(monkeypatch) -> None:
    asked = []
    own = record_level.server_view

    def noted(spends: Any, delta: float, most: Any, queries: Any) -> Any:
        asked.append((delta, most))
        assert queries == ()
        return own(spends, delta, most, queries)

    monkeypatch.setattr(record_level, "server_view", noted)
    made = plain([2, 1])
    assert asked == [(DELTA, (replace(PLAIN, steps=6),))]
    assert (made["adjacency"], made["third_party"]["participation"]) == ("add-remove", 1.0)
