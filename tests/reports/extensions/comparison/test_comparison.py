"""Comparisons: what may be ranked, by what, and what is said where it may not."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfedadamw.extensions.sweeps import cross_table
from dpfedadamw.extensions.sweeps.differences import against
from reports import build_report
from reports.content import guarantee
from reports.content.parts import INTERNAL, PUBLIC
from reports.errors import ReportError
from reports.extensions.comparison import (
    Comparison,
    Towards,
    arrange,
    compare,
    data,
    figure,
    tables,
)
from reports.extensions.comparison.terms import clusters
from reports.run_rows import BROKEN, HOLDS, UNSIGNED, ComparedRun, Signature
from reports.signatures import keyring, signing
from reports.source import RunSource
from tests.reports.signing_keys import create

MakeRun = Callable[..., Path]


def view(epsilon: float) -> dict[str, Any]:
    return {"epsilon": {"pld": epsilon}, "accountant": "pld"}


def run_of(
    accuracy: float | None = 0.8,
    *,
    algorithm: str = "dp-fedadamw",
    seed: int | None = None,
    unit: str = "record",
    worst: float = 7.0,
    third: float = 5.0,
    realised: float = 6.0,
    verdict: str | None = None,
    signature: str = HOLDS,
    finished: bool = True,
    audience: str = INTERNAL,
    data_settings: dict[str, Any] | None = None,
    header: dict[str, Any] | None = None,
    chosen: dict[str, Any] | None = None,
    weights: int | None = None,
    name: str = "",
) -> ComparedRun:
    """One run as a comparison reads it, without a directory."""
    number = next(_NUMBERS)
    claim = {
        "record": {
            "delta": 1e-5,
            "server": view(realised),
            "server_worst_case": view(worst),
            "third_party": {**view(third), "participation": 0.5},
        },
        "client": {"delta": 1e-5, "third_party": {**view(third), "participation": 0.5}},
        "none": {"view_headline": "none"},
    }[unit]
    source = RunSource(
        spec={
            "name": name,
            "data": {
                "dataset": "digits",
                "path": f"/somewhere/{number}",
                "clients": 10,
                "partition": {"kind": "dirichlet", "alpha": 0.6},
                "test_fraction": 0.2,
                "seed": 0,
                **(data_settings or {}),
            },
            "algorithm": {"name": algorithm, **(chosen or {})},
            "federation": {"rounds": 2},
            "model": {"name": "mlp", **({} if weights is None else {"seed": weights})},
            "randomness": {"mode": "release" if seed is None else "reproducible", "seed": seed},
        },
        header={
            "run": f"run-20261121T000000Z-{number:08x}",
            "unit": unit,
            "adjacency": "add-remove",
            "delta": 1e-5,
            "records": [100, 200],
            "data_sha256": "ab" * 32,
            "randomness": "release" if seed is None else "reproducible",
            "seed": seed,
            "noise_added_by": "server" if unit == "client" else None,
            **(header or {}),
        },
        claim=claim if finished else {},
        rounds_completed=2,
        spends=[],
        participations=(),
        metrics=[],
        audit=None,
        model={},
        hashes={"model.safetensors": f"{number:064x}"},
        notes=(),
    )
    accuracies = () if accuracy is None else ((0, 0.1), (1, accuracy / 2), (2, accuracy))
    return ComparedRun(
        path=Path(f"runs/{source.run}"),
        source=source,
        views=tuple(guarantee.views(source, audience)),
        verdict=verdict or ("NO CLAIM" if unit == "none" else "PASS"),
        signature=Signature(signature, "" if signature == HOLDS else "spec.yaml: changed"),
        accuracy=accuracy,
        accuracies=accuracies,
        spent=((1, third / 2), (2, third)) if unit != "none" else (),
        bytes_up=1000.0,
        bytes_down=2000.0,
    )


_NUMBERS = itertools.count(1)


def compared(*runs: ComparedRun, towards: Towards = Towards.server, **options: Any) -> Comparison:
    ordered = sorted(runs, key=lambda run: run.run)
    audience = options.pop("audience", INTERNAL)
    return arrange(ordered, audience, towards, options.pop("tolerance", 0.01))


def three(algorithm: str, *accuracies: float, **options: Any) -> list[ComparedRun]:
    """Repetitions of one spec with seeds 0, 1, 2."""
    return [
        run_of(value, algorithm=algorithm, seed=seed, **options)
        for seed, value in enumerate(accuracies)
    ]


def test_seeds_of_one_spec_become_mean_deviation_and_number():
    found = compared(*three("dp-fedadamw", 0.80, 0.83, 0.88))
    (entry,) = found.groups[0].entries
    values = np.array([0.80, 0.83, 0.88])
    assert entry.mean == pytest.approx(values.mean(), abs=1e-15)
    assert entry.deviation == pytest.approx(values.std(ddof=1), abs=1e-15)
    assert len(entry.runs) == 3


def test_specs_of_common_seeds_are_told_apart_by_a_paired_t_test():
    """Their spread is the seeds' and not the specs': the differences have none of it."""
    a, b = [0.80, 0.84, 0.88, 0.83], [0.78, 0.83, 0.86, 0.81]
    found = compared(*three("a", *a), *three("b", *b))
    first, second = found.groups[0].entries
    assert (first.rank, second.rank) == (1, 2)
    assert second.behind is not None
    # SciPy's own test statistic is the independent reference.
    reference = stats.ttest_rel(a, b)
    low, high = reference.confidence_interval(0.95)
    assert second.behind.interval == pytest.approx((low, high), rel=1e-9)
    assert second.behind.apart == (reference.pvalue < 0.05)
    assert second.behind.apart
    assert not stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05
    assert "paired t-test over 4 common seeds" in remarks_of(found)
    assert "do not tell them apart" not in remarks_of(found)


def test_specs_whose_seeds_do_not_pair_are_told_apart_by_welchs_test():
    a, b = [0.91, 0.93, 0.92, 0.94], [0.80, 0.85, 0.82]
    found = compared(
        *(run_of(value, algorithm="a") for value in a),
        *(run_of(value, algorithm="b") for value in b),
    )
    second = found.groups[0].entries[1]
    assert second.behind is not None
    reference = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert second.behind.interval == pytest.approx((reference.low, reference.high), rel=1e-9)
    assert second.behind.apart
    assert "Welch's t-test, as their seeds do not pair" in remarks_of(found)


def test_runs_of_which_two_have_one_seed_do_not_pair():
    """In release mode a seed fixes the initial weights alone: two runs of it are two runs."""
    weights = [0, 0, 1, 1]
    made = [
        run_of(value, algorithm=name, chosen={}, weights=seed)
        for name, values in (("a", [0.91, 0.93, 0.92, 0.94]), ("b", [0.80, 0.85, 0.82, 0.84]))
        for seed, value in zip(weights, values, strict=True)
    ]
    first, second = compared(*made).groups[0].entries
    assert (len(first.runs), first.by_seed) == (4, None)
    assert second.behind is not None
    assert second.behind.seeds is None
    assert [run.seeds for run in first.runs] == ["0 None", "0 None", "1 None", "1 None"]


def test_several_comparisons_with_the_first_are_corrected_together():
    """Holm: of two at 3 % and 4 %, neither stands at 5 % for both together."""
    base = np.array([0.80, 0.84, 0.88, 0.83, 0.85])
    noise = np.array([0.01, -0.01, 0.02, -0.02, 0.0])
    others = {name: base - shift - noise for name, shift in (("b", 0.0235), ("c", 0.0215))}
    chances = [stats.ttest_rel(base, other).pvalue for other in others.values()]
    assert all(0.025 < chance < 0.05 for chance in chances)
    alone = compared(*three("a", *base), *three("b", *others["b"]))
    assert alone.groups[0].entries[1].behind.apart
    both = compared(*three("a", *base), *(r for n, v in others.items() for r in three(n, *v)))
    assert not any(entry.behind.apart for entry in both.groups[0].entries[1:])
    assert tables.rows_of(both.groups[0])[1].rank == "2≈"


def test_a_difference_that_the_seeds_do_not_show_is_said():
    found = compared(*three("a", 0.80, 0.84, 0.88), *three("b", 0.82, 0.81, 0.86))
    assert "b is 1.0 points behind a" in remarks_of(found)
    assert "The seeds do not tell them apart." in remarks_of(found)
    assert tables.rows_of(found.groups[0])[1].rank == "2≈"


def test_compare_and_sweep_table_judge_the_same_runs_alike():
    values = {
        "a": [0.80, 0.84, 0.88, 0.83],
        "b": [0.78, 0.83, 0.86, 0.81],
        "c": [0.81, 0.80, 0.90, 0.80],
        "d": [0.70, 0.71, 0.72, 0.69],
    }
    found = compared(*(run for name, own in values.items() for run in three(name, *own)))
    rows = [
        {"algorithm": name, "seed": seed, "cell": f"{name}-{seed}", "test_accuracy": value}
        | {"audit": "PASS", "signatures": "holds"}
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]
    table = cross_table.tabulate(rows, "algorithm", None)
    first, *others = found.groups[0].entries
    assert first.label == "a"
    differences = against(table, first.label).differences
    for entry in others:
        sweep = differences[(entry.label, "")]
        assert entry.behind.difference == pytest.approx(sweep.mean, rel=1e-12)
        assert entry.behind.interval == pytest.approx((sweep.low, sweep.high), rel=1e-12)
        assert entry.behind.apart == (sweep.verdict == "wins")
    assert {entry.behind.apart for entry in others} == {True, False}


def remarks_of(found):
    return " ".join(found.groups[0].remarks)


def test_single_runs_are_ranked_but_never_told_apart():
    found = compared(run_of(0.9, algorithm="a"), run_of(0.2, algorithm="b"))
    assert [entry.rank for entry in found.groups[0].entries] == [1, 2]
    assert "A single run says nothing about the seeds' spread" in found.groups[0].remarks[0]


def test_equal_means_share_a_rank():
    found = compared(run_of(0.9, algorithm="a"), run_of(0.9, algorithm="b"), run_of(0.8))
    assert [entry.rank for entry in found.groups[0].entries] == [1, 1, 3]


def test_a_seed_that_was_run_twice_counts_once():
    """Counting it twice would make the spread too small."""
    found = compared(*three("a", 0.80, 0.84), run_of(0.80, algorithm="a", seed=0))
    (entry,) = found.groups[0].entries
    assert len(entry.runs) == 2
    assert len(entry.repeated) == 1
    assert any("not counted twice" in text for text in found.groups[0].remarks)


def test_two_release_runs_with_the_same_model_are_one_run():
    one = run_of(0.8)
    other = run_of(0.8)
    other.source.hashes["model.safetensors"] = one.source.hashes["model.safetensors"]
    (entry,) = compared(one, other).groups[0].entries
    assert len(entry.runs) == 1


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"worst": 3.9}, "ε 7.00 vs 3.90 against the server (worst case)"),
        (
            {"unit": "client"},
            "protection of one client with all its records vs protection of one record",
        ),
        ({"unit": "none"}, "no differential privacy vs protection of one record"),
        (
            {"header": {"adjacency": "replace-one"}},
            "adjacency replace-one-record vs add-or-remove-one-record",
        ),
        ({"data_settings": {"seed": 1}}, "data.seed 1 vs 0"),
        ({"data_settings": {"test_fraction": 0.3}}, "data.test_fraction 0.3 vs 0.2"),
        (
            {"data_settings": {"partition": {"kind": "iid"}}},
            "data.partition.kind iid vs dirichlet",
        ),
        ({"data_settings": {"dataset": "arrays"}}, "data set arrays vs digits"),
        ({"header": {"data_sha256": "cd" * 32}}, "different records under the name digits"),
        ({"header": {"records": [150, 150]}}, "the clients hold different numbers of records"),
        ({"seed": 3}, "randomness reproducible vs release"),
    ],
)
def test_what_differs_is_not_ranked_together_and_said(other: dict[str, Any], reason: str):
    found = compared(run_of(0.5), run_of(0.9, **other))
    assert [len(group.entries) for group in found.groups] == [1, 1]
    (refusal,) = found.refusals
    # Which of the two groups is named first depends on their order; the difference is the same.
    left, _, right = refusal.because[0].partition(" against ")
    words = set(reason.replace(" against ", " ").split())
    assert set(f"{left} {right}".split()) == words
    assert len(refusal.because) == 1
    assert {row.rank for group in found.groups for row in tables.rows_of(group)} == {"only"}


def test_settings_that_one_data_set_does_not_have_are_no_difference():
    table = {"dataset": "table", "label": "y", "columns": [{"name": "age"}], "augmentation": []}
    found = compared(run_of(data_settings=table), run_of(data_settings={"augmentation": None}))
    (refusal,) = found.refusals
    assert refusal.because in {("data set table vs digits",), ("data set digits vs table",)}


def test_another_delta_is_another_group():
    other = run_of(0.9)
    other.source.claim["delta"] = 1e-6
    (refusal,) = compared(run_of(0.5), other).refusals
    assert refusal.because[0].startswith("δ ")


def test_where_the_data_lies_does_not_matter():
    """Every run of these tests has a path of its own."""
    assert len(compared(run_of(), run_of()).groups) == 1


def test_epsilon_within_the_tolerance_is_ranked_and_said():
    found = compared(run_of(0.5, worst=7.0), run_of(0.9, worst=7.06, chosen={"alignment": 0}))
    (group,) = found.groups
    assert "ε runs from 7.00 to 7.06, within the tolerance of 1 %." in group.remarks
    assert len(compared(run_of(worst=7.0), run_of(worst=7.06), tolerance=0.0).groups) == 2


def test_the_view_that_must_agree_can_be_chosen():
    runs = run_of(worst=7.0, third=3.0), run_of(worst=7.0, third=5.0)
    assert len(compared(*runs).groups) == 1
    found = compared(*runs, towards=Towards.third_party)
    assert len(found.groups) == 2
    assert "against a third party" in found.refusals[0].because[0]


def selected(epsilon: float, accuracy: float, audience: str) -> ComparedRun:
    """The winner of a private selection; against the server it is for insiders."""
    run = run_of(accuracy, third=epsilon, audience=audience, name=f"of {epsilon:g}")
    every = {"server_all_trials": view(40.0)}
    source = replace(run.source, claim=run.source.claim | {"tuning": every})
    return replace(run, source=source, views=tuple(guarantee.views(source, audience)))


def test_private_selections_are_ranked_for_everybody_by_what_everybody_may_see():
    def of(audience):
        runs = selected(2.0, 0.7, audience), selected(9.0, 0.8, audience), run_of(audience=audience)
        return compared(*runs, audience=audience)

    found = of(PUBLIC)
    assert [group.privacy for group in found.groups] == [
        "ε 7.00 against the server (worst case)", "ε 2.00 against a third party",
        "ε 9.00 against a third party",
    ]  # fmt: skip
    said = found.refusals[0].sentence()
    assert said == "B is not ranked with A: against a third party vs the server (worst case)."
    assert [group.epsilon for group in of(INTERNAL).groups] == [(7.0, 7.0), (40.0, 40.0)]


def test_runs_without_a_known_loss_are_not_ranked_with_each_other():
    runs = [run_of(worst=math.inf), run_of(worst=math.inf, algorithm="b")]
    assert [run.epsilon("server_worst_case") for run in runs] == [None, None]
    found = compared(*runs)
    assert [group.losses for group in found.groups] == ["unknown", "unknown"]
    (refusal,) = found.refusals
    assert refusal.because == ("ε unknown vs unknown against the server (worst case)",)


def test_claims_for_people_at_other_numbers_of_clients_are_not_ranked_with_each_other():
    people = {"unit": "person", "adjacency": "add-remove"}
    runs = [run_of(header=people | {"clients_per_person": at}) for at in (1, 5, None)]
    found = compared(*runs)
    assert [len(group.entries[0].runs) for group in found.groups] == [2, 1]
    (refusal,) = found.refusals
    assert refusal.because == ("clients of a person at most 5 vs at most 1",)


def test_losses_of_different_units_are_never_set_side_by_side():
    found = compared(run_of(), run_of(unit="client", third=1.0))
    assert not any("ε" in text for text in found.refusals[0].because)


def test_who_adds_the_noise_separates_client_level_runs():
    clients = run_of(unit="client", header={"noise_added_by": "clients"})
    (refusal,) = compared(run_of(unit="client"), clients).refusals
    assert refusal.because[0].startswith("noise added by the ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"verdict": "FAIL"}, "audit: FAIL"),
        ({"verdict": "NOT VERIFIED"}, "audit: NOT VERIFIED"),
        ({"verdict": "NOT AUDITED"}, "audit: NOT AUDITED"),
        ({"signature": UNSIGNED}, "not signed"),
        ({"signature": BROKEN}, "signature does not hold: spec.yaml: changed"),
        ({"finished": False}, "the run did not finish"),
        ({"accuracy": None}, "no accuracy was measured after the last round"),
    ],
)
def test_what_nothing_vouches_for_is_shown_without_a_rank(options: dict[str, Any], why: str):
    accuracy = options.pop("accuracy", 0.99)
    found = compared(run_of(0.5), run_of(accuracy, **options))
    entries = [entry for group in found.groups for entry in group.entries]
    assert [entry.rank for entry in entries] == [1, None]
    assert entries[1].objection == why
    remarks = [text for group in found.groups for text in group.remarks]
    assert any(why in text for text in remarks)


def test_a_failed_repetition_does_not_enter_the_mean():
    bad = run_of(0.0, algorithm="a", seed=2, verdict="FAIL")
    found = compared(*three("a", 0.8, 0.8), bad)
    first, second = found.groups[0].entries
    assert first.mean == 0.8
    assert second.rank is None


def test_specs_of_one_algorithm_are_named_by_what_sets_them_apart():
    found = compared(run_of(chosen={"alignment": 0.5}), run_of(chosen={"alignment": 0}))
    labels = {entry.label for entry in found.groups[0].entries}
    assert labels == {"dp-fedadamw, alignment 0.5", "dp-fedadamw, alignment 0"}


def test_rows_go_by_the_specs_names_and_by_the_algorithm_where_the_name_does_not_say_it():
    found = compared(
        run_of(name="quickstart"), run_of(name="digits-dp-fedavg", algorithm="dp-fedavg")
    )
    labels = {entry.label for entry in found.groups[0].entries}
    assert labels == {"quickstart, dp-fedadamw", "digits-dp-fedavg"}


def test_runs_of_one_spec_are_repetitions_whatever_they_are_called():
    found = compared(run_of(name="one", seed=0), run_of(name="other", seed=1))
    (entry,) = found.groups[0].entries
    assert entry.label == "one, dp-fedadamw"


def test_no_setting_of_an_algorithm_is_called_epsilon():
    found = compared(run_of(chosen={"epsilon": 1e-8}), run_of(chosen={"epsilon": 1e-3}))
    labels = {entry.label for entry in found.groups[0].entries}
    assert labels == {f"dp-fedadamw, denominator’s constant {value}" for value in ("10⁻⁸", "0.001")}


def test_it_is_said_by_which_statistic_and_which_test_specs_are_ranked():
    (said,) = (text for text in tables.closing(compared(run_of())) if "Ranked by" in text)
    for words in ("test accuracy of the final model", "sample standard deviation", "Welch"):
        assert words in said


def test_other_settings_that_ranked_specs_do_not_share_are_said():
    longer = run_of(algorithm="dp-fedavg")
    longer.source.spec["federation"] = {"rounds": 40}
    (group,) = compared(run_of(), longer).groups
    assert group.also_differ == ("federation.rounds (2, 40)",)


def test_a_long_spec_differs_in_nothing_that_a_short_one_says_too():
    long = run_of(algorithm="dp-fedavg", chosen={f"setting_{n}": n for n in range(60)})
    short = run_of()
    for run in (long, short):
        run.source.spec["compute"] = {"precision": "float32", "threads": None}
    del short.source.spec["compute"]["threads"]
    (group,) = compared(long, short).groups
    assert group.also_differ == ()


ANY_RUN = st.builds(
    run_of,
    accuracy=st.none() | st.floats(0, 1),
    algorithm=st.sampled_from(["a", "b"]),
    seed=st.none() | st.integers(0, 3),
    unit=st.sampled_from(["record", "client", "none"]),
    worst=st.floats(0.01, 100),
    third=st.floats(0.01, 100),
    verdict=st.none() | st.sampled_from(["PASS", "FAIL", "NOT VERIFIED"]),
    signature=st.sampled_from([HOLDS, HOLDS, BROKEN]),
    finished=st.booleans(),
)


@settings(max_examples=40)
@given(st.lists(ANY_RUN, min_size=1, max_size=8), st.floats(0, 0.5))
def test_every_run_stands_in_one_place_and_ranks_stay_within_agreement(
    runs: list[ComparedRun], tolerance: float
):
    found = compared(*runs, tolerance=tolerance)
    named = [
        name
        for group in found.groups
        for entry in group.entries
        for name in [*(run.run for run in entry.runs), *entry.repeated]
    ]
    assert sorted(named) == sorted(run.run for run in runs)
    assert len(found.refusals) == len(found.groups) - 1
    assert all(refusal.because for refusal in found.refusals)
    for group in found.groups:
        if group.epsilon is not None:
            assert group.epsilon[1] <= group.epsilon[0] * (1 + tolerance)
        ranked = [entry for entry in group.entries if entry.rank is not None]
        assert all(run.objection is None for entry in ranked for run in entry.runs)
        assert len({run.source.header["unit"] for e in ranked for run in e.runs}) <= 1
        means = [entry.mean for entry in ranked]
        assert means == sorted(means, key=lambda mean: -(mean or 0))


@settings(max_examples=40)
@given(st.lists(ANY_RUN, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_the_order_in_which_runs_are_given_changes_nothing(
    runs: list[ComparedRun], chance: random.Random
):
    mixed = list(runs)
    chance.shuffle(mixed)
    assert data.as_dict(compared(*runs)) == data.as_dict(compared(*mixed))


@settings(max_examples=40)
@given(st.lists(st.none() | st.floats(0, 1e6), max_size=30), st.floats(0, 0.9))
def test_clusters_cover_each_loss_once_and_keep_to_the_tolerance(
    values: list[float | None], tolerance: float
):
    found = clusters(values, tolerance)
    assert sorted(itertools.chain(*found)) == list(range(len(values)))
    for cluster in found:
        known = [values[index] for index in cluster]
        assert None not in known or set(known) == {None}
        if None not in known:
            assert max(known) <= min(known) * (1 + tolerance)


def test_who_took_part_how_often_never_changes_what_the_public_sees():
    """The realised ε towards the server is for insiders; grouping may not depend on it either."""

    def seen(realised: float) -> tuple[str, str, bytes]:
        global _NUMBERS
        _NUMBERS = itertools.count(1)
        runs = [
            run_of(0.8, realised=realised, audience=PUBLIC),
            run_of(0.7, algorithm="dp-fedavg", audience=PUBLIC),
        ]
        found = compared(*runs, audience=PUBLIC)
        text = json.dumps(data.as_dict(found))
        return text, tables.as_csv(found), figure.draw(found, "svg")

    assert seen(2.0) == seen(6.9)


def test_insiders_see_the_realised_loss_and_are_told_that_it_is_restricted():
    found = compared(run_of(realised=4.0), run_of(realised=6.0, algorithm="b"))
    assert "ε server" in tables.columns_of(found.groups[0])
    assert any("As it happened, ε against the server runs" in t for t in found.groups[0].remarks)
    assert any("Restricted" in text for text in tables.closing(found))


def test_a_run_without_privacy_has_no_loss_anywhere():
    found = compared(run_of(unit="none"), run_of(unit="none", algorithm="b"))
    (group,) = found.groups
    assert group.privacy == "no differential privacy"
    assert all("no differential privacy" in row.cells for row in tables.rows_of(group))
    group_data = data.as_dict(found)["groups"][0]
    assert group_data["epsilon"] is None
    assert {run["privacy"] for e in group_data["entries"] for run in e["runs"]} == {
        "no differential privacy"
    }


def test_csv_has_a_line_a_spec_and_no_formula():
    found = compared(run_of(algorithm="=1+1"), run_of(unit="none"))
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(found))))
    assert [row["what"] for row in rows] == ["'=1+1", "dp-fedadamw"]
    assert rows[0]["epsilon_server_worst_case"] == "7.0"
    assert rows[1]["epsilon_server_worst_case"] == ""
    assert rows[1]["privacy"] == "no differential privacy"


def test_the_spreadsheet_has_the_largest_loss_of_a_specs_runs():
    found = compared(
        *(run_of(0.8 + number / 100, seed=number, worst=7.0 + number / 50) for number in range(3))
    )
    (row,) = csv.DictReader(io.StringIO(tables.as_csv(found)))
    assert (row["repetitions"], row["epsilon_server_worst_case"]) == ("3", "7.04")
    (shown,) = tables.rows_of(found.groups[0])
    assert "7.00…7.04" in shown.losses


def test_markdown_and_latex_carry_every_remark_and_escape_names():
    found = compared(run_of(algorithm="a_b|c"), run_of(worst=3.0))
    markdown, latex = tables.as_markdown(found), tables.as_latex(found)
    assert "a\\_b\\|c" in markdown
    assert "a\\_b\\textbar{}c" in latex
    assert "$\\delta$ = 10$^{-5}$" in latex
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 2
    for text in (markdown, latex):
        assert "is not ranked with" in text
        assert "worst case" in text


def test_rows_can_be_sorted_and_ranks_stay():
    found = compared(run_of(0.9, algorithm="z"), run_of(0.5, algorithm="a"))
    (group,) = tables.sorted_by(found, "name").groups
    assert [(entry.label, entry.rank) for entry in group.entries] == [("a", 2), ("z", 1)]


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89")])
def test_the_figure_is_the_same_every_time(kind: str, start: bytes):
    found = compared(*three("a", 0.8, 0.9), run_of(0.7, worst=3), run_of(unit="none"))
    first = figure.draw(found, kind)
    assert first.startswith(start)
    # Tags of the fonts in a PDF are matplotlib's and not its content.
    assert kind == "pdf" or figure.draw(found, kind) == first


def test_runs_without_a_rank_are_not_drawn():
    with pytest.raises(ReportError, match="nothing to draw"):
        figure.draw(compared(run_of(verdict="FAIL")), "svg")
    with pytest.raises(ReportError, match="must be one of"):
        figure.draw(compared(run_of()), "gif")


@pytest.fixture(scope="module")
def signed(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two signed runs on disk, one of them without privacy."""
    folder = tmp_path_factory.mktemp("compared")
    key = keyring.load_signing_key("trainer", create("trainer", folder / "keys").private)
    made = []
    for name, private in (("private", True), ("plain", False)):
        run = run_builder(folder / name, rounds=3, private=private, identifier=f"0000000{private}")
        build_report(run)
        signing.sign(run, trainer=key)
        signing.sign(run, auditor=key)
        made.append(run)
    return made[0], made[1]


def test_runs_are_read_with_accuracy_loss_bytes_verdict_and_signature(signed: tuple[Path, Path]):
    found = compare(signed)
    private, plain = (group.entries[0].runs[0] for group in found.groups)
    claim = json.loads((signed[0] / "ledger.jsonl").read_text().splitlines()[-1])
    assert private.epsilon("server") == claim["server"]["epsilon"]["pld"]
    assert private.epsilon("third_party") == claim["third_party"]["epsilon"]["pld"]
    assert private.accuracy == pytest.approx(0.1 + 0.78 * (1 - math.exp(-4)))
    assert (private.bytes_up, private.bytes_down) == (3 * 9656 * 5, 3 * 9672 * 5)
    assert (private.verdict, private.signature.state) == ("PASS", HOLDS)
    assert (plain.verdict, plain.views, plain.objection) == ("NO CLAIM", (), None)


def test_the_public_reading_leaves_out_the_realised_loss(signed: tuple[Path, Path]):
    internal, public = compare(signed[:1]), compare(signed[:1], PUBLIC)
    assert internal.groups[0].entries[0].epsilons("server")
    assert not public.groups[0].entries[0].epsilons("server")
    assert "epsilon_server," not in tables.as_csv(public)


def test_a_better_accuracy_written_in_later_is_not_ranked(
    signed: tuple[Path, Path], tmp_path: Path
):
    run = tmp_path / "changed"
    shutil.copytree(signed[0], run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["test_accuracy"] = 0.999
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = compare([run, signed[0]]).groups
    assert [entry.rank for entry in group.entries] == [1, None]
    changed = "signature does not hold: metrics.jsonl: changed since"
    assert (group.entries[1].objection or "").startswith(changed)
    assert group.entries[1].runs[0].verdict == "NOT AUDITED"
    assert group.entries[1].runs[0].signature.state == BROKEN


def test_a_run_that_is_given_twice_counts_once(signed: tuple[Path, Path]):
    found = compare([signed[0], signed[0]])
    assert len(found.groups[0].entries[0].runs) == 1
    assert "counts once" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ledger.jsonl", b"{broken\n", "ledger.jsonl, line 1: not valid JSON"),
        ("ledger.jsonl", None, "ledger.jsonl: missing"),
        ("spec.yaml", b"[1]", "spec.yaml: a YAML mapping is needed"),
        ("metrics.jsonl", None, "metrics.jsonl: missing"),
        ("metrics.jsonl", b"", "metrics.jsonl: is empty"),
        ("metrics.jsonl", b"[1]\n", "metrics.jsonl, line 1: a JSON object is needed"),
    ],
)
def test_a_damaged_run_is_one_line_that_names_it(
    signed: tuple[Path, Path], tmp_path: Path, name: str, content: bytes | None, message: str
):
    run = tmp_path / "damaged"
    shutil.copytree(signed[0], run)
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    with pytest.raises(ReportError) as error:
        compare([signed[0], run, tmp_path / "nowhere", signed[1]])
    first, second = str(error.value).splitlines()
    assert first.startswith(f"{run}: {message}")
    assert second == f"{tmp_path / 'nowhere'}: no such run directory"


@pytest.mark.parametrize("tolerance", [-0.001, 1.0, 1.5, float("inf"), float("nan")])
def test_a_tolerance_is_a_share_below_one(tolerance: float):
    said = f"tolerance {tolerance:g}: a relative tolerance from 0 to below 1"
    with pytest.raises(ReportError, match=f"^{re.escape(said)}$"):
        compare([], tolerance=tolerance)
    for right in (0.0, 0.999):
        with pytest.raises(ReportError, match="nothing to compare"):
            compare([], tolerance=right)


def test_options_out_of_range_are_refused(signed: tuple[Path, Path]):
    with pytest.raises(ReportError, match="tolerance"):
        compare(signed, tolerance=1.5)
    with pytest.raises(ReportError, match="audience"):
        compare(signed, "everybody")
    with pytest.raises(ReportError, match="nothing to compare"):
        compare([])
