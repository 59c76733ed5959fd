"""A comparison as data for a machine: everything that the tables show, numbers unrounded."""

from __future__ import annotations

from typing import Any

from reports.comparison import METRIC, Comparison, Entry, Group
from reports.comparison.runs import ComparedRun
from reports.content import guarantee
from reports.content.guarantee import INTERNAL, NO_PRIVACY
from reports.reading.files import clean
from reports.reading.source import PUBLIC_FILES

FORMAT = 1


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as what ``compare --json`` prints."""
    return {
        "format": FORMAT,
        "audience": comparison.audience,
        "towards": comparison.towards,
        "tolerance": comparison.tolerance,
        "metric": METRIC,
        "groups": [_group_data(group) for group in comparison.groups],
        "not_ranked_together": [
            {"groups": [one.group, one.other], "because": list(one.because)}
            for one in comparison.refusals
        ],
        "notes": list(comparison.notes),
    }


def as_report(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as the data of a report that leaves the machine.

    As `as_dict`, without directories, and with the digests that tie each row to its run's signed
    files. The public one has the digests of public files alone. Its schema is
    reports/schema/comparison.schema.json.
    """
    found = as_dict(comparison)
    for group, data in zip(comparison.groups, found["groups"], strict=True):
        first = group.entries[0].runs[0]
        data["assumptions"] = (
            guarantee.assumptions(first.source, comparison.audience) if group.terms.private else []
        )
        for entry, shown in zip(group.entries, data["entries"], strict=True):
            for run, row in zip(entry.runs, shown["runs"], strict=True):
                del row["directory"]
                row["created"] = clean(run.source.header.get("created"), 40)
                row["hashes"] = {
                    name: digest
                    for name, digest in sorted(run.source.hashes.items())
                    if comparison.audience == INTERNAL or name in PUBLIC_FILES
                }
    return found


def _group_data(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "heading": group.terms.heading,
        "privacy": group.privacy,
        "towards": group.terms.towards or None,
        "epsilon": list(group.epsilon) if group.epsilon else None,
        "entries": [_entry_data(entry) for entry in group.entries],
        "also_differ": list(group.also_differ),
        "remarks": list(group.remarks),
    }


def _entry_data(entry: Entry) -> dict[str, Any]:
    behind = entry.behind
    return {
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
            "interval": list(behind.interval) if behind.interval else None,
            "told_apart": behind.apart,
        },
        "bytes_up": entry.mean_bytes("up"),
        "bytes_down": entry.mean_bytes("down"),
        "not_counted": list(entry.repeated),
        "runs": [_run_data(run) for run in entry.runs],
    }


def _run_data(run: ComparedRun) -> dict[str, Any]:
    return {
        "run": run.run,
        "directory": str(run.path),
        "accuracy": run.accuracy,
        "privacy": _privacy(run),
        "audit": run.verdict,
        "signature": {"state": run.signature.state, "problem": run.signature.problem or None},
        "bytes_up": run.bytes_up,
        "bytes_down": run.bytes_down,
    }


def _privacy(run: ComparedRun) -> list[dict[str, Any]] | str:
    if not run.source.private:
        return NO_PRIVACY
    keys = ("key", "towards", "epsilon", "delta")
    return [{key: view[key] for key in keys} for view in run.views]
