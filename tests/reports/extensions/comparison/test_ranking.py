"""Repetitions, ranks and labels, and the sentence on how far one lies behind."""

from __future__ import annotations

import pytest

from reports.extensions.comparison.ranking import Behind, differing, entries_of, settings_of
from tests.reports.extensions.comparison.test_comparison import compared, run_of, three


def test_a_distance_is_said_with_its_interval_its_test_and_its_verdict():
    single = Behind("a", 0.0126, None)
    assert single.test == ""
    assert single.sentence("b").startswith("b is 1.3 points behind a. A single run says nothing")
    paired = Behind("a", 0.02, (-0.01, 0.05), 4)
    assert paired.sentence("b") == (
        "b is 2.0 points behind a (95 % interval −1.0 to 5.0; paired t-test over 4 common seeds). "
        "The seeds do not tell them apart."
    )
    apart = Behind("a", -0.001, (-0.02, -0.01), None, apart=True)
    assert apart.sentence("b") == (
        "b is −0.1 points behind a (95 % interval −2.0 to −1.0; Welch's t-test, as their seeds do "
        "not pair)."
    )


@pytest.mark.parametrize(("difference", "apart"), [(0.0, False), (0.1, True)])
def test_repetitions_without_any_spread_differ_or_do_not(difference, apart):
    """Of two constants there is no doubt, and no test that could be made."""
    runs = [run_of(0.8, algorithm="a") for _ in range(3)]
    runs += [run_of(0.8 - difference, algorithm="b") for _ in range(2)]
    first, second = compared(*runs).groups[0].entries
    assert first.behind is None
    assert second.behind.interval == pytest.approx((difference, difference))
    assert second.behind.difference == pytest.approx(difference)
    assert second.behind.apart == apart
    assert second.rank == (2 if apart else 1)


@pytest.mark.filterwarnings("ignore:Precision loss occurred")
def test_one_side_without_any_spread_is_tested_as_any_other():
    runs = [run_of(value, algorithm="a") for value in (0.9, 0.7)]
    runs += [run_of(0.5, algorithm="b") for _ in range(2)]
    behind = compared(*runs).groups[0].entries[1].behind
    assert behind.interval[0] < 0.3 < behind.interval[1]
    assert not behind.apart


def test_the_common_seeds_are_compared_and_the_others_are_not():
    runs = [*three("a", 0.9, 0.8, 0.7), run_of(0.1, algorithm="b", seed=9)]
    runs += [run_of(value, algorithm="b", seed=seed) for seed, value in ((0, 0.5), (2, 0.4))]
    first, second = compared(*runs).groups[0].entries
    assert (first.label, second.label) == ("a", "b")
    assert second.behind.seeds == 2
    assert second.behind.difference == pytest.approx((0.4 + 0.3) / 2)
    assert second.mean == pytest.approx(1.0 / 3)
    # With one seed in common nothing is paired: all runs of both are.
    runs = three("a", 0.9, 0.8) + [
        run_of(value, algorithm="b", seed=seed) for seed, value in ((1, 0.5), (5, 0.4))
    ]
    behind = compared(*runs).groups[0].entries[1].behind
    assert behind.seeds is None
    assert behind.difference == pytest.approx(0.85 - 0.45)


def test_one_run_on_either_side_is_not_told_apart():
    for runs in (
        [*three("a", 0.9, 0.91), run_of(0.1, algorithm="b", seed=7)],
        [run_of(0.9, algorithm="a", seed=7), *three("b", 0.1, 0.11)],
    ):
        behind = compared(*runs).groups[0].entries[1].behind
        assert (behind.interval, behind.apart) == (None, False)


def test_two_runs_on_each_side_are_enough_for_welchs_test():
    runs = [run_of(value, algorithm="a") for value in (0.9, 0.91)]
    runs += [run_of(value, algorithm="b") for value in (0.1, 0.11)]
    behind = compared(*runs).groups[0].entries[1].behind
    assert behind.interval is not None
    assert behind.interval[0] < 0.8 < behind.interval[1]
    assert behind.apart


def test_an_accuracy_of_nothing_is_the_last_one():
    found = entries_of([run_of(0.0, algorithm="a"), run_of(0.1, algorithm="b")])
    assert [entry.label for entry in found] == ["b", "a"]


def test_a_run_whose_accuracy_is_not_known_pairs_with_none():
    (entry,) = entries_of([run_of(None, seed=1)])
    assert (entry.by_seed, entry.accuracies, entry.mean) == (None, [], None)


def test_entries_have_the_losses_and_the_bytes_of_their_runs():
    (entry,) = entries_of(three("a", 0.8, 0.9, worst=3.0, third=2.0))
    assert (entry.epsilons("server_worst_case"), entry.epsilons("third_party")) == (
        [3.0, 3.0], [2.0, 2.0],
    )  # fmt: skip
    assert entry.epsilons("nobody") == []
    assert (entry.mean_bytes("up"), entry.mean_bytes("down")) == (1000.0, 2000.0)


def test_settings_of_a_run_are_those_that_a_label_may_name():
    run = run_of(seed=3, chosen={"learning_rate": 0.5}, name="one", weights=4)
    run.source.spec["task"] = {"kind": "classification"}
    run.source.spec["report"] = {"language": "en"}
    assert settings_of(run) == {
        "algorithm.name": "dp-fedadamw", "algorithm.learning_rate": "0.5",
        "federation.rounds": "2", "model.name": "mlp",
    }  # fmt: skip
    run.source.spec["task"] = {"kind": "multilabel"}
    assert settings_of(run)["task.kind"] == "multilabel"


def test_labels_name_what_sets_specs_apart_and_count_what_does_not_fit():
    assert differing([run_of(), run_of()]) == []
    few, many = (
        run_of(chosen={f"s{place}": place + change for place in range(5)}) for change in (0, 1)
    )
    found = entries_of([few, many])
    assert sorted(entry.label for entry in found) == [
        "dp-fedadamw, s0 0, s1 1, s2 2, 2 more",
        "dp-fedadamw, s0 1, s1 2, s2 3, 2 more",
    ]
    three_apart = [
        run_of(chosen={f"s{place}": place + change for place in range(3)}) for change in (0, 1)
    ]
    assert {entry.label for entry in entries_of(three_apart)} == {
        "dp-fedadamw, s0 0, s1 1, s2 2", "dp-fedadamw, s0 1, s1 2, s2 3",
    }  # fmt: skip
    # What one of them does not set is none.
    lacking = entries_of([run_of(chosen={"own": 1}), run_of()])
    assert {entry.label for entry in lacking} == {"dp-fedadamw, own 1", "dp-fedadamw, own none"}


def test_a_run_without_a_rank_has_a_row_of_its_own_and_the_end_of_its_name():
    bad = [run_of(0.99, verdict="FAIL"), run_of(0.98, verdict="FAIL")]
    found = entries_of([*bad, run_of(0.5)])
    assert [entry.rank for entry in found] == [1, None, None]
    assert [entry.label for entry in found[1:]] == [f"dp-fedadamw ({run.run[-8:]})" for run in bad]
