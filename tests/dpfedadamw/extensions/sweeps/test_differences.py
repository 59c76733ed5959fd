"""One row of a sweep's table against the others: SciPy's paired test is the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpfedadamw.extensions.sweeps import cross_table, differences
from reports import paired
from reports.errors import ReportError
from tests.reports.test_run_rows import row

OURS = [0.61, 0.64, 0.66, 0.70, 0.63]
CLOSE = [0.60, 0.65, 0.66, 0.69, 0.64]
WORSE = [0.51, 0.55, 0.55, 0.61, 0.52]


def table(measure: str = "test_accuracy", epsilons=None, **methods) -> cross_table.CrossTable:
    rows = []
    for name, values in methods.items():
        for seed, value in enumerate(values):
            loss = (epsilons or {}).get(name, 8.0)
            more = {"method": name, "epsilon_third_party": loss, measure: value}
            rows.append(row(f"{name}{seed}", seed, 0.5, **more))
    return cross_table.tabulate(rows, "method", None, measure)


def test_means_and_intervals_are_those_of_the_paired_test():
    found = differences.against(table(ours=OURS, close=CLOSE), "ours").differences["close", ""]
    interval = stats.ttest_rel(OURS, CLOSE).confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(np.subtract(OURS, CLOSE)), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.seeds == 5


def test_a_run_without_privacy_neither_wins_nor_loses_against_a_private_one():
    """It states no ε, so that any largest and smallest of both are the private one's."""
    made = table(epsilons={"plain": None}, private=WORSE, plain=OURS)
    for row_name, other in (("plain", "private"), ("private", "plain")):
        found = differences.against(made, row_name).differences[other, ""]
        assert (found.verdict, found.detectable) == ("other ε", None)


@settings(max_examples=100)
@given(st.data())
def test_only_seeds_that_both_rows_have_are_compared_each_with_itself_in_any_order(data):
    """Whatever other seeds either row has, and in which order its runs came."""
    common = data.draw(st.integers(2, 5))
    names = data.draw(st.permutations(range(12)))
    shared, alone = names[:common], names[common:]
    cut = data.draw(st.integers(0, len(alone)))
    scatter = st.floats(-0.05, 0.05)
    level = {seed: 0.5 + 0.04 * place for place, seed in enumerate(names)}
    ours = {seed: level[seed] + 0.03 for seed in [*shared, *alone[:cut]]}
    theirs = {seed: level[seed] + data.draw(scatter) for seed in [*shared, *alone[cut:]]}
    rows = [
        row(f"{name}{seed}", seed, 0.5, method=name, test_accuracy=values[seed])
        for name, values in (("ours", ours), ("theirs", theirs))
        for seed in data.draw(st.permutations(sorted(values)))
    ]
    made = cross_table.tabulate(rows, "method", None, "test_accuracy")
    found = differences.against(made, "ours").differences["theirs", ""]
    pairs = [ours[seed] for seed in shared], [theirs[seed] for seed in shared]
    each = np.subtract(*pairs)
    assert found.seeds == common
    assert found.mean == pytest.approx(np.mean(each), rel=1e-9, abs=1e-12)
    by_seed = (made.entries[name, ""].values for name in ("ours", "theirs"))
    if np.std(each) > 1e-6:
        reference = stats.ttest_rel(*pairs)
        chance = paired.chance(paired.differences(*by_seed))
        assert chance == pytest.approx(reference.pvalue, rel=1e-6)
        interval = reference.confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx(tuple(interval), rel=1e-6, abs=1e-12)


def test_a_seed_that_failed_in_one_row_does_not_pair_the_others_with_the_wrong_ones():
    """A clear lead at every seed, which pairing by order would lose in the seeds' own spread."""
    steep = [0.50, 0.62, 0.55, 0.70, 0.58]
    rows = [
        row(f"ours{seed}", seed, 0.5, method="ours", test_accuracy=value + 0.01 + seed / 1e4)
        for seed, value in enumerate(steep)
    ]
    rows += [
        row(f"theirs{seed}", seed, 0.5, method="theirs", test_accuracy=value)
        for seed, value in enumerate(steep)
        if seed != 1
    ]
    made = cross_table.tabulate(rows, "method", None)
    by_seed = (made.entries[name, ""].values for name in ("ours", "theirs"))
    assert paired.chance(paired.differences(*by_seed)) < 1e-4
    found = differences.against(made, "ours").differences["theirs", ""]
    assert (found.verdict, found.seeds) == ("wins", 4)


def test_it_wins_ties_and_loses():
    better = [value + 0.05 + seed / 1000 for seed, value in enumerate(OURS)]
    found = differences.against(table(ours=OURS, close=CLOSE, worse=WORSE, better=better), "ours")
    verdicts = {name: each.verdict for (name, _), each in found.differences.items()}
    assert verdicts == {"close": "ties", "worse": "wins", "better": "loses"}
    assert found.counts() == {"wins": 1, "ties": 1, "loses": 1, "other ε": 0}


def test_of_a_loss_less_is_better():
    found = differences.against(table("test_loss", ours=WORSE, other=OURS), "ours")
    assert found.differences["other", ""].verdict == "wins"


def test_a_difference_that_one_comparison_alone_would_tell_may_tie_among_many():
    # p = 0.016 would tell alone, and stands at Holm's first level of four, 0.0125.
    rows = {f"other{index}": [value - 0.02 for value in OURS] for index in range(4)}
    for index, values in enumerate(rows.values()):
        values[index] += 0.02
    alone = stats.ttest_rel(OURS, rows["other0"]).pvalue
    assert 0.0125 < alone < 0.05
    only = differences.against(table(ours=OURS, other=rows["other0"]), "ours")
    assert only.differences["other", ""].verdict == "wins"
    found = differences.against(table(ours=OURS, **rows), "ours")
    assert {each.verdict for each in found.differences.values()} == {"ties"}


def test_all_columns_are_one_family():
    """The same pair in one column wins alone, and ties next to seven columns of equal rows."""
    other = [value - 0.02 for value in OURS]
    other[0] += 0.02
    alone = stats.ttest_rel(OURS, other).pvalue
    assert 0.05 / 8 < alone < 0.05
    for columns, verdict in ((1, "wins"), (8, "ties")):
        rows = [
            row(f"{name}{column}{seed}", seed, 0.5, method=name, alpha=column, test_accuracy=value)
            for column in range(columns)
            for name, values in (("ours", OURS), ("other", CLOSE if column else other))
            for seed, value in enumerate(values)
        ]
        found = differences.against(cross_table.tabulate(rows, "method", "alpha"), "ours")
        assert found.differences["other", "0"].verdict == verdict
        assert found.family == columns
        assert any(f"{columns} comparisons are corrected" in note for note in found.notes())


def test_runs_of_another_epsilon_are_shown_and_not_judged():
    found = differences.against(table(epsilons={"worse": 10.8}, ours=OURS, worse=WORSE), "ours")
    assert found.differences["worse", ""].verdict == "other ε"
    assert any(note.startswith("Other ε") for note in found.notes())
    # Nor do they count among the comparisons that the others are corrected for.
    one = differences.against(table(ours=OURS, close=CLOSE), "ours").differences["close", ""]
    two = differences.against(
        table(epsilons={"worse": 10.8}, ours=OURS, close=CLOSE, worse=WORSE), "ours"
    )
    assert two.differences["close", ""] == one


def test_a_single_seed_has_no_interval_and_no_verdict():
    found = differences.against(table(ours=[0.7], other=[0.5]), "ours").differences["other", ""]
    assert (found.low, found.high, found.verdict) == (None, None, "ties")


def test_it_reads_as_a_table():
    text = differences.as_markdown(differences.against(table(ours=OURS, worse=WORSE), "ours"))
    lines = text.splitlines()
    assert lines[0] == "| ours against | test_accuracy |"
    assert lines[2].startswith("| worse | +10.0 [+")
    assert lines[2].endswith("] **wins** |")
    latex = differences.as_latex(differences.against(table(ours=OURS, worse=WORSE), "ours"))
    assert r"\textbf{wins} \\" in latex
    assert latex.count(r"\toprule") == 1


def of_columns(measure: str, values: dict[tuple[str, str], dict[int, float]]):
    """A table of rows by columns, each with its values by seed."""
    return cross_table.tabulate(
        [
            row(f"{name}{column}{seed}", seed, 0.5, method=name, at=column, **{measure: value})
            for (name, column), of in values.items()
            for seed, value in of.items()
        ],
        "method",
        "at",
        measure,
    )


WHOLE = {
    ("ours", "x"): {0: 0.75, 1: 0.625},
    ("ours", "y"): {0: 0.5},
    ("b|", "x"): {0: 0.5, 1: 0.375},
    ("b|", "y"): {0: 0.75},
    ("c", "y"): {5: 0.25},
}


def test_a_whole_table_has_intervals_verdicts_and_gaps_where_nothing_is_shared():
    """Equal differences have no scatter; a single one no interval; other seeds no pair."""
    found = differences.against(of_columns("test_accuracy", WHOLE), "ours")
    lines = differences.as_markdown(found).splitlines()
    assert lines[:5] == [
        "| ours against | x (ε 8) | y (ε 8) |",
        "|---|---|---|",
        r"| b\| | +25.0 [+25.0, +25.0] **wins** | -25.0 ties |",
        "| c | – | – |",
        "",
    ]
    first, _, third = lines[5:]
    assert ", in points: mean over 1 to 2 common seeds" in first
    # What shares no seed is no comparison that the others are corrected for.
    assert third == "In all: wins 1, ties 1. 2 comparisons are corrected together."


def test_a_whole_table_of_losses_reads_as_latex():
    found = differences.against(of_columns("test_loss", WHOLE), "b|")
    *notes, begin, top, head, middle, ours, c, bottom, end = differences.as_latex(
        found
    ).splitlines()
    assert all(note.startswith("% ") for note in notes)
    assert "points" not in notes[0]
    assert [begin, top, head, middle, ours, c, bottom, end] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"b| against & x ($\varepsilon$ 8) & y ($\varepsilon$ 8) \\",
        r"\midrule",
        r"ours & -0.250 [-0.250, -0.250] \textbf{wins} & +0.250 ties \\",
        r"c & – & – \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_row_that_shares_no_seed_with_another_is_refused():
    for other in ({"y": {0: 0.5}}, {"x": {1: 0.5}}):
        values = {("ours", "x"): {0: 0.5}} | {("b", at): of for at, of in other.items()}
        with pytest.raises(ReportError, match=r"^ours: has no seed of a column in common with"):
            differences.against(of_columns("test_accuracy", values), "ours")


@pytest.mark.parametrize(
    ("ours", "others", "judged"),
    [
        (8.0, 8.07, True),
        (8.07, 8.0, True),
        (8.0, 8.09, False),
        (8.09, 8.0, False),
        (None, None, True),
        (None, 8.0, False),
        (8.0, None, False),
    ],
)
def test_claims_within_one_percent_or_none_at_all_are_judged(ours, others, judged):
    found = differences.against(
        table(epsilons={"ours": ours, "other": others}, ours=OURS, other=WORSE), "ours"
    )
    assert found.differences["other", ""].verdict == ("wins" if judged else "other ε")
    assert found.family == int(judged)
    assert any(note.startswith("Other ε") for note in found.notes()) is not judged


def test_under_the_differences_stands_what_was_left_out_and_how_settings_were_chosen():
    rows = [
        row(f"{name}{seed}", seed, value, method=name, tune="public", selected="best")
        for name, values in (("ours", OURS), ("other", WORSE))
        for seed, value in enumerate(values)
    ]
    rows += [row(cell, 9, 0.5, method="ours", audit="FAIL") for cell in "xy"]
    *_, chosen, left = differences.against(
        cross_table.tabulate(rows, "method", None), "ours"
    ).notes()
    assert chosen.startswith("Each is the best of ")
    assert left == "Left out: 2 (audit: FAIL)."


def test_the_lead_that_would_have_been_told_is_from_the_smallest_to_the_largest():
    wide = [0.50, 0.75, 0.60, 0.80, 0.55]
    tied = differences.against(table(ours=OURS, close=CLOSE, wide=wide), "ours")
    least, most = sorted(one.detectable for one in tied.differences.values())
    assert most > 2 * least
    (note,) = [note for note in tied.notes() if "does not win" in note]
    assert f"lead of {100 * least:.1f} to {100 * most:.1f} points (" in note


def test_an_unknown_row_and_an_only_row_are_refused():
    with pytest.raises(ReportError, match="theirs: no such row; rows are ours, worse"):
        differences.against(table(ours=OURS, worse=WORSE), "theirs")
    with pytest.raises(ReportError, match="ours: is the only row"):
        differences.against(table(ours=OURS), "ours")


def test_what_a_tie_would_have_told_is_what_the_power_of_the_paired_test_says():
    """By SciPy's noncentral t: 80 % of as many seeds, at Holm's first level."""
    for others in (1, 4):
        rows = {f"other{index}": CLOSE for index in range(others)}
        found = differences.against(table(ours=OURS, **rows), "ours").differences["other0", ""]
        limit = stats.t.ppf(1 - 0.05 / others / 2, 4)
        shift = found.detectable / np.std(np.subtract(OURS, CLOSE), ddof=1) * 5**0.5
        assert stats.nct.sf(limit, 4, shift) == pytest.approx(0.8, abs=2e-3)
        # Far beyond what was found, which is why it is a tie.
        assert abs(found.mean) < found.detectable / 10


def test_what_does_not_win_says_what_lead_would_have_been_told():
    tied = differences.against(table(ours=OURS, close=CLOSE), "ours")
    (seen,) = [one.detectable for one in tied.differences.values()]
    (note,) = [note for note in tied.notes() if "does not win" in note]
    assert f"would have shown a true lead of {100 * seen:.1f} points (" in note
    lost = differences.against(table(ours=WORSE, better=OURS), "ours")
    assert any("does not win" in note for note in lost.notes())
    won = differences.against(table(ours=OURS, worse=WORSE), "ours")
    assert not any("does not win" in note for note in won.notes())
    alone = differences.against(table(ours=[0.7], other=[0.5]), "ours")
    assert not any("does not win" in note for note in alone.notes())
    loss = differences.against(table("test_loss", ours=OURS, close=CLOSE), "ours").notes()
    assert any(f"lead of {seen:.3f} (" in note for note in loss)


def test_a_strict_level_and_two_seeds_have_a_detectable_difference_too():
    rows = {f"other{index}": [0.50, 0.53] for index in range(12)}
    found = differences.against(table(ours=[0.61, 0.62], **rows), "ours")
    each = next(iter(found.differences.values()))
    assert 1 < each.detectable < 10


def test_without_a_difference_it_wins_or_loses_in_5_of_100_tables():
    """Four others without any difference, 400 tables: at most 5 % judge (binomial, 3 σ)."""
    judged = 0
    for seed in range(400):
        values = stats.norm(0.5, 0.02).rvs((5, 6), random_state=seed)
        named = {f"m{index}": list(one) for index, one in enumerate(values)}
        counts = differences.against(table(**named), "m0").counts()
        judged += counts["wins"] + counts["loses"] > 0
    assert judged <= 0.05 * 400 + 3 * (0.05 * 0.95 * 400) ** 0.5
