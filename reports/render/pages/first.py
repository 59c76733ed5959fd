"""The first page of a report: what a privacy officer needs to decide, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports import formatting
from reports.render.pages.blocks import (
    Block,
    Text,
    bullets,
    code,
    paragraph,
    settings,
    strong,
    subheading,
)
from reports.render.pages.document import Band, Claim, Section, ended, number_of, sentence

Report = dict[str, Any]

ALARMING = ("FAIL", "NOT VERIFIED", "NOT AUDITED")
_SHOWN_REASONS = 6
# Longer reasons go on in the section on the audit, so that the page stays one page.
_SHOWN_LETTERS = 130
_TOWARDS = {"server": "towards the server", "third_party": "towards a third party"}


def band(report: Report) -> Band:
    """Return the verdict."""
    verdict = report["verdict"]
    return Band(verdict["value"], verdict["statement"], verdict["value"] in ALARMING)


def claim(report: Report) -> Claim:
    """Return the guarantee with its large numbers."""
    guarantee = report["guarantee"]
    numbers: tuple[tuple[str, str], ...] = ()
    headline = "" if guarantee["private"] else "No differential privacy"
    if guarantee["private"] and guarantee["view"] != "none":
        claimed = "" if report["verdict"]["value"] == "PASS" else "claimed, "
        numbers = (
            (f"ε {claimed}{_TOWARDS[guarantee['view']]}", formatting.epsilon(guarantee["epsilon"])),
            ("δ", formatting.power(guarantee["delta"])),
            _delta_times(guarantee),
            ("unit of protection", guarantee["unit"]),
        )
    # Where there is no guarantee, the sentence and the qualification on the first page say so.
    others = tuple(
        (
            view["label"],
            f"ε = {formatting.epsilon(view['epsilon'])}",
            f" at δ = {formatting.power(view['delta'])}",
        )
        for view in report["accounting"]["views"]
        if view["key"] not in ("trusted_server", guarantee["view"])
    )
    return Claim(numbers, headline, guarantee["statement"], others)


def _delta_times(guarantee: Report) -> tuple[str, str]:
    """Return the name and value of δ times the number of what is protected."""
    if guarantee["delta_times_clients"] is not None:
        return "δ·N", formatting.power(guarantee["delta_times_clients"])
    return "δ·n", formatting.power(guarantee["delta_times_records"])


def summary(
    report: Report, sections: Sequence[Section]
) -> tuple[tuple[str, tuple[Block, ...]], ...]:
    """Return the two columns: what was not verified, and which run this is."""
    return (
        ("What was not verified", tuple(_open_points(report, sections))),
        ("The run", (settings("Main facts of the run", _facts(report)),)),
    )


def _open_points(report: Report, sections: Sequence[Section]) -> list[Block]:
    verdict = report["verdict"]
    where = f"section {number_of(sections, 'audit')}"
    blocks: list[Block] = []
    for title, reasons in (
        ("Contradicted", verdict["failed"]),
        ("Not verified", verdict["not_verified"]),
    ):
        if reasons:
            blocks.append(subheading(title))
            blocks.append(bullets([_reason(entry, where) for entry in reasons[:_SHOWN_REASONS]]))
        if len(reasons) > _SHOWN_REASONS:
            blocks.append(paragraph(f"And {len(reasons) - _SHOWN_REASONS} more, in {where}."))
    if not verdict["failed"] and not verdict["not_verified"]:
        blocks.append(paragraph("No check that applies was left open."))
    if verdict["notes"]:
        blocks.append(bullets(verdict["notes"]))
    skipped = sum(c["verdict"] == "NOT APPLICABLE" for c in report["audit"]["checks"])
    if skipped:
        noun = "check does" if skipped == 1 else "checks do"
        blocks.append(paragraph(f"{skipped} {noun} not apply to this run."))
    outside = ", ".join(entry["title"].lower() for entry in report["outside_budget"])
    where = f"section {number_of(sections, 'outside')}"
    blocks.append(paragraph(f"Outside the guarantee, whatever the verdict: {outside} ({where})."))
    return blocks


def _reason(entry: dict[str, str], where: str) -> Text:
    why = sentence(entry["why"])
    if len(why) > _SHOWN_LETTERS:
        why = f"{why[:_SHOWN_LETTERS].rsplit(' ', 1)[0].rstrip(',;:')} … ({where})"
    return [strong(ended(entry["title"])), f" {why}"]


def _facts(report: Report) -> list[tuple[str, Text]]:
    identity, mechanism = report["identity"], report["mechanism"]
    sampling, utility = report["sampling"], report["utility"]
    model = next((row["value"] for row in identity["model"] if row["name"] == "name"), "unknown")
    digest = next((h["sha256"] for h in identity["hashes"] if h["file"] == "model.safetensors"), "")
    average = " on average" if sampling["participation"] is not None else ""
    total = formatting.count(report["clients"]["records_total"])
    return [
        ("Algorithm", mechanism["algorithm"]),
        ("Model", f"{model}, {formatting.count(identity['parameters'])} trainable parameters"),
        (
            "Data",
            f"{identity['dataset']}, {total} training records at "
            f"{formatting.count(sampling['clients'])} clients",
        ),
        (
            "Training",
            f"{formatting.count(mechanism['rounds_completed'])} of "
            f"{formatting.count(mechanism['rounds'])} rounds, "
            f"{formatting.count(sampling['clients_per_round'])} clients a round{average}, "
            f"{mechanism['local_steps_in_words']} local steps",
        ),
        ("Test accuracy", formatting.percent(utility["final_accuracy"])),
        ("Randomness", report["randomness"]["mode"]),
        ("Model file", [code(digest)] if digest else "missing"),
    ]
