"""The section on the audit: every check with its power and limits, and what was measured."""

from __future__ import annotations

from typing import Any

from reports import formatting
from reports.render.pages.blocks import (
    LEFT,
    RIGHT,
    Block,
    badge,
    checks,
    figure,
    paragraph,
    table,
)
from reports.render.pages.document import sentence

Report = dict[str, Any]
_SHOWN_BLOCKS = 24
_PARTS = (
    ("Claim", "claim"),
    ("Measured", "measurement"),
    ("Accepted", "tolerance"),
    ("Power", "power"),
    ("Limits", "limits"),
)


def blocks(report: Report, has: set[str]) -> list[Block]:
    """Return the section's content."""
    found = report["audit"]["checks"]
    if not found:
        return [paragraph("No findings of an auditor could be used.")]
    versions = [f"{entry['name']} {entry['version']}" for entry in report["audit"]["auditor"]]
    verdict = report["verdict"]
    content = [
        paragraph(
            f"{verdict['passed']} of {verdict['applicable']} applicable checks passed. Auditor’s "
            f"software: {', '.join(versions) or 'not stated'}."
        )
    ]
    content += _internal(found) if report["audience"] == "internal" else _public(found)
    if "noise-quantiles" in has:
        content.append(figure("noise-quantiles"))
    if report["audit"]["second_moment"] is not None:
        content += _shift(report["audit"]["second_moment"], has)
    return content


def _internal(found: list[Report]) -> list[Block]:
    return [
        checks(
            [
                {
                    "title": check["title"],
                    "severity": check["severity"],
                    "verdict": check["verdict"],
                    "parts": [
                        [name, sentence(check[key])]
                        for name, key in _PARTS
                        if check[key] is not None
                    ],
                }
                for check in found
            ]
        )
    ]


def _public(found: list[Report]) -> list[Block]:
    return [
        table(
            "Verdict of each check",
            ("Check", "What is at stake", "Severity", "Verdict"),
            [
                [
                    check["title"],
                    check["meaning"] or "–",
                    check["severity"],
                    [badge(check["verdict"])],
                ]
                for check in found
            ],
            (LEFT, LEFT, LEFT, LEFT),
            (1.2, 1.5, 0, 0),
        ),
        paragraph(
            "Measurements, tolerances and the power of each check stand in the internal report."
        ),
    ]


def _shift(found: Report, has: set[str]) -> list[Block]:
    largest = sorted(found["blocks"], key=lambda block: -(block["size"] or 0))
    shown = found["blocks"] if len(largest) <= _SHOWN_BLOCKS else largest[:_SHOWN_BLOCKS]
    rows = [
        [
            block["name"],
            formatting.count(block["size"]),
            formatting.plain(block["predicted"], 5),
            formatting.plain(block["half_width"], 3),
            formatting.plain(block["released"], 5),
        ]
        for block in shown
    ]
    content = [figure("bias-shift")] if "bias-shift" in has else []
    content.append(
        table(
            "The noise's share in the second moment, by block",
            ("Block", "Coordinates", "Predicted shift", "± 99.9 %", "Released mean"),
            rows,
            (LEFT, RIGHT, RIGHT, RIGHT, RIGHT),
            (1, 0, 0, 0, 0),
            small=True,
        )
    )
    if len(shown) < len(found["blocks"]):
        content.append(
            paragraph(
                f"The {len(shown)} largest of {len(found['blocks'])} blocks; the embedded data has "
                "all."
            )
        )
    return content
