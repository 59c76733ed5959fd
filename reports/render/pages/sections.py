"""The numbered sections of a report on one run, from the guarantee to how to verify it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reports import formatting
from reports.render.pages import audit, clients, outcome
from reports.render.pages.blocks import (
    LEFT,
    RIGHT,
    Block,
    bullets,
    code,
    fields,
    figure,
    note,
    paragraph,
    settings,
    subheading,
    table,
    titled,
    tree,
)
from reports.render.pages.document import Section, sentence

Report = dict[str, Any]
_SHORT = 280


def short_description(report: Report) -> str:
    """Return the run's description if the first page has room for it."""
    text: str = report["identity"]["description"]
    return text if len(text) <= _SHORT else ""


def sections_of(report: Report, names: Iterable[str], attachment: str) -> tuple[Section, ...]:
    """Return the sections in order.

    Args:
        report: The report.
        names: Identifiers of the figures that there are.
        attachment: Name of the embedded data.
    """
    has = set(names)
    parts = (
        ("guarantee", "The guarantee", _guarantee(report)),
        ("mechanism", "Mechanism and sampling", _mechanism(report, has)),
        ("accounting", "Accounting", _accounting(report, has)),
        ("clients", "Clients", clients.blocks(report, has)),
        (
            "outside",
            "What lies outside the budget",
            [titled(report["outside_budget"])],
        ),
        ("audit", "The audit", audit.blocks(report, has)),
        ("randomness", "Randomness", _randomness(report)),
        ("utility", "Utility, communication and computation", outcome.blocks(report, has)),
        ("governance", "Governance", _governance(report)),
        ("hazards", "What this does not mean", [titled(report["hazards"])]),
        ("verify", "How to verify", _verification(report, attachment)),
    )
    return tuple(Section(name, title, tuple(blocks)) for name, title, blocks in parts)


def _guarantee(report: Report) -> list[Block]:
    guarantee = report["guarantee"]
    blocks = [note(guarantee["statement"], report["verdict"]["value"])]
    views = report["accounting"]["views"]
    if views:
        blocks.append(
            table(
                "Privacy loss by view",
                ("View", "Towards", "ε", "δ", "Composed by"),
                [
                    [
                        view["label"],
                        view["towards"],
                        formatting.epsilon(view["epsilon"]),
                        "–" if view["key"] == "trusted_server" else formatting.power(view["delta"]),
                        view["method"],
                    ]
                    for view in views
                ],
                (LEFT, LEFT, RIGHT, RIGHT, LEFT),
                (1.5, 2.1, 0, 0, 1.5),
            )
        )
    if guarantee["assumptions"]:
        blocks.append(subheading("It holds only if"))
        blocks.append(bullets([sentence(text) for text in guarantee["assumptions"]], ordered=True))
    if guarantee["private"]:
        explanation = f"Neighbours are {guarantee['adjacency']} data sets."
        blocks.append(paragraph(f"{explanation} {guarantee['explanation']}"))
    return blocks


def _mechanism(report: Report, has: set[str]) -> list[Block]:
    identity, mechanism, sampling = report["identity"], report["mechanism"], report["sampling"]
    blocks = []
    if identity["description"] and not short_description(report):
        blocks.append(paragraph(identity["description"], "quote"))
    blocks += [paragraph(mechanism["statement"]), paragraph(sampling["statement"])]
    if "client-sampling" in has:
        blocks.append(figure("client-sampling"))
    rows = [("algorithm", mechanism["algorithm"])]
    rows += [(row["name"], row["value"]) for row in mechanism["settings"]]
    for prefix in ("model", "partition"):
        rows += [(f"{prefix}.{row['name']}", row["value"]) for row in identity[prefix]]
    if identity["pretrained"] is not None:
        rows += [(f"pretrained.{key}", value) for key, value in identity["pretrained"].items()]
    blocks.append(settings("Settings of algorithm, model and partition", rows))
    return blocks


def _accounting(report: Report, has: set[str]) -> list[Block]:
    accounting = report["accounting"]
    if not report["guarantee"]["private"]:
        return [paragraph("There is no differential privacy to account for.")]
    library = accounting["library"]
    composed = (
        f"Composed with {library} {accounting['version'] or ''}".rstrip()
        + ", and converted as follows."
        if library is not None
        else "The ledger does not name its accounting library."
    )
    blocks = [
        paragraph(composed),
        table(
            "Conversions to ε and δ",
            ("Conversion", "ε", "Used for", "Source"),
            [
                [
                    row["name"],
                    formatting.epsilon(row["epsilon"]) if row["epsilon"] is not None else "–",
                    row["use"],
                    row["source"],
                ]
                for row in accounting["conversions"]
            ],
            (LEFT, RIGHT, LEFT, LEFT),
            (0, 0, 1.4, 1),
        ),
    ]
    blocks += _events(report)
    blocks += [figure(name) for name in ("epsilon-over-rounds", "privacy-profile") if name in has]
    if accounting["closed_forms"]:
        blocks += _closed_forms(report)
    return blocks


def _events(report: Report) -> list[Block]:
    labels = {view["key"]: view["label"] for view in report["accounting"]["views"]}
    found = report["accounting"]["events"]
    intro = (
        "What the accountant composed, from the outside in. Sampling and noise are those of the "
        "client that spends most."
    )
    if report["guarantee"]["unit"] == "client":
        intro = "What the accountant composed, from the outside in."
    if not found:
        intro = (
            "No fixed tree of events describes this run: the ledger does not state all of them, or "
            "steps or noise adapt."
        )
    trees = [
        tree(labels.get(entry["view"], entry["view"]), _branch(entry["root"])) for entry in found
    ]
    return [subheading("Events"), paragraph(intro), *trees]


def _branch(node: Report) -> Report:
    return {"text": node["text"], "of": [_branch(inner) for inner in node["of"]]}


def _closed_forms(report: Report) -> list[Block]:
    internal = report["audience"] == "internal"
    head = ["Closed form", "Formula", "Said to be for", "ε", "Reading"]
    rows = [
        [
            row["name"],
            row["formula"],
            row["towards"],
            formatting.epsilon(row["epsilon"]),
            row["reading"],
        ]
        for row in report["accounting"]["closed_forms"]
    ]
    align, widths = [LEFT, LEFT, LEFT, RIGHT, LEFT], [1.5, 1.75, 1.0, 0.0, 1.05]
    if internal:
        head, align, widths = [*head, "Against"], [*align, RIGHT], [*widths, 0.0]
        for cells, row in zip(rows, report["accounting"]["closed_forms"], strict=True):
            cells.append(row["compared_with"] or "–")
    return [
        subheading("Closed forms from the literature"),
        paragraph(
            "Their constants are taken as one, and no guarantee here rests on them. The reading "
            "says how each compares with what was composed directly."
        ),
        table("Closed forms from the literature", head, rows, align, widths, small=True),
    ]


def _randomness(report: Report) -> list[Block]:
    randomness = report["randomness"]
    blocks = []
    if randomness["caveat"] is not None:
        blocks.append(note(f"Reproducible mode: {randomness['caveat']}.", "FAIL", loud=True))
    blocks.append(paragraph(f"Mode: {randomness['mode']}. {randomness['statement']}"))
    if randomness["seed"] is not None:
        blocks.append(paragraph(f"Seed: {randomness['seed']}."))
    if randomness["commitment"] is not None:
        blocks.append(paragraph(["Commitment to the key: ", code(randomness["commitment"])]))
    return blocks


def _governance(report: Report) -> list[Block]:
    return [
        paragraph("Fields that the spec left empty are blank, for a person to fill in."),
        fields([(entry["label"], entry["text"]) for entry in report["governance"]]),
    ]


def _verification(report: Report, attachment: str) -> list[Block]:
    identity = report["identity"]
    blocks = [bullets(report["verification"])]
    rows = [[entry["file"], [code(entry["sha256"])]] for entry in identity["hashes"]]
    if identity["data_sha256"] is not None:
        rows.append(["the data", [code(identity["data_sha256"])]])
    if rows:
        caption = "SHA-256 of the files that this report was made from"
        blocks.append(table(caption, ("File", "SHA-256"), rows, (LEFT, LEFT), (0, 1)))
    blocks.append(
        paragraph(
            f"This report comes as a PDF (PDF/A-3a, PDF/UA-1) and as a web page that say the same. "
            f"The PDF holds {attachment}, the report as data, and the numbers behind each figure "
            "as CSV.",
            "small",
        )
    )
    return blocks
