"""The data of a comparison are the numbers of its runs, each under the name it has."""

from __future__ import annotations

import pytest

from audit.protection import WORDS
from reports.extensions.comparison import METRIC, data, tables
from reports.extensions.comparison.pages import _judged
from tests.reports.extensions.comparison.several import several
from tests.reports.extensions.comparison.test_comparison import compared, run_of


@pytest.mark.parametrize("audience", ["internal", "public"])
def test_all_data_are_those_of_the_comparison_and_of_its_runs(monkeypatch, audience):
    found = several(monkeypatch, audience)
    groups = []
    for group in found.groups:
        entries = []
        for entry in group.entries:
            behind = entry.behind
            runs = [
                {
                    "run": run.run,
                    "accuracy": run.accuracy,
                    "privacy": [
                        {"key": v.key, "towards": v.towards, "epsilon": v.epsilon, "delta": v.delta}
                        for v in run.views
                    ]
                    if run.source.private
                    else "no differential privacy",
                    "audit": run.verdict,
                    "unprotected_against": None,
                    "signature": {"state": "holds", "problem": None},
                    "bytes_up": run.bytes_up,
                    "bytes_down": run.bytes_down,
                    "directory": f"runs/{run.run}",
                }
                for run in entry.runs
            ]
            entries.append(
                {
                    "label": entry.label,
                    "algorithm": entry.runs[0].algorithm,
                    "rank": entry.rank,
                    "objection": entry.objection,
                    "accuracy": {
                        "mean": entry.mean,
                        "standard_deviation": entry.deviation,
                        "repetitions": len(entry.accuracies),
                    },
                    "behind_first": None
                    if behind is None
                    else {
                        "difference": behind.difference,
                        "interval": list(behind.interval or ()),
                        "test": "paired t-test over 3 common seeds",
                        "told_apart": False,
                    },
                    "bytes_up": entry.mean_bytes("up"),
                    "bytes_down": entry.mean_bytes("down"),
                    "not_counted": [],
                    "runs": runs,
                }
            )
        groups.append(
            {
                "name": group.name,
                "heading": group.terms.heading,
                "privacy": group.privacy,
                "towards": group.terms.towards or None,
                "epsilon": None if group.epsilon is None else list(group.epsilon),
                "entries": entries,
                "also_differ": list(group.also_differ),
                "remarks": list(group.remarks),
            }
        )
    assert data.as_dict(found) == {
        "format": 1,
        "audience": audience,
        "towards": "server",
        "tolerance": 0.01,
        "metric": METRIC,
        "groups": groups,
        "not_ranked_together": [
            {"groups": [one.group, one.other], "because": list(one.because)}
            for one in found.refusals
        ],
        "notes": [],
    }
    assert sum(len(entry["runs"]) for group in groups for entry in group["entries"]) == 11


def test_a_report_has_each_runs_digests_its_beginning_and_what_its_group_assumes(monkeypatch):
    found = several(monkeypatch)
    report = data.as_report(found)
    for group, shown in zip(found.groups, report.groups, strict=True):
        assert bool(shown.assumptions) == group.terms.private
        for entry, told in zip(group.entries, shown.entries, strict=True):
            for run, row in zip(entry.runs, told.runs, strict=True):
                assert row.hashes == run.source.hashes
                assert row.created == (run.source.header.get("created") or "")


@pytest.mark.parametrize(
    ("worst", "third", "realised", "whom"),
    [(50.0, 5.0, 40.0, "the server"), (50.0, 30.0, 40.0, "anyone"), (7.0, 5.0, 6.0, None)],
)
def test_an_epsilon_that_protects_nobody_is_told_in_every_form(worst, third, realised, whom):
    found = compared(run_of(worst=worst, third=third, realised=realised))
    (run,) = data.as_dict(found)["groups"][0]["entries"][0]["runs"]
    assert run["unprotected_against"] == whom
    (row,) = tables.rows_of(found.groups[0])
    assert (row.audit == "PASS") == (whom is None)
    judged = _judged(found.groups[0].entries[0].runs[0])
    assert judged[-1] == {"badge": "PASS"}
    assert [span["strong"] for span in judged[:-1]] == ([f"{WORDS[whom]} "] if whom else [])
