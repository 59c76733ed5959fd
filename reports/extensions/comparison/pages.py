"""Makes the document on several runs side by side, from a comparison and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from audit.protection import WORDS
from reports import formatting
from reports.content.build import as_json
from reports.content.parts import INTERNAL, plain
from reports.document import (
    AUDIENCES_IN_WORDS,
    LEFT,
    RIGHT,
    SHOWN_ROWS,
    Band,
    Block,
    Document,
    Picture,
    Section,
    Span,
    Text,
    badge,
    bullets,
    code,
    ended,
    paragraph,
    sentence,
    strong,
    subheading,
    table,
    titled,
)
from reports.document import figure as place_of
from reports.extensions.comparison import Comparison, Group, RankedSpec, figure, tables
from reports.extensions.comparison.data import ComparisonData, as_report
from reports.render.pages import ALARMING, date_in_words
from reports.run_rows import ComparedRun
from reports.signatures.verification.comparisons import ENVELOPES

ATTACHMENT = "comparison.json"
_FIGURE = "accuracy-and-privacy"
_CURVE_HEAD = ("what", "round", "accuracy_percent", "epsilon_spent_third_party")
_STATEMENTS = {
    "FAIL": "The audit contradicts the claim of at least one run. No rank: {labels}.",
    "NOT VERIFIED": "Claims of some runs are not verified. These runs have no rank: {labels}.",
}
_CAUTIONS = (
    (
        "A rank is of accuracy",
        "It orders runs whose claims agree. It does not say that one run is more private, or that "
        "the claims hold. Each run’s own report says how far its claim was checked.",
    ),
    (
        "Groups are not comparable",
        "An ε for another unit, adjacency, δ or reader measures something else. The order of the "
        "groups means nothing.",
    ),
    (
        "Chosen by the same test records",
        "If settings were chosen by the accuracy shown here, it looks better than it is. Each "
        "trial on the same private records also spent privacy of its own.",
    ),
    (
        "Seeds",
        "Each spec is tested against the first of its group: by a paired t-test over common seeds, "
        "or by Welch’s where seeds do not pair. The level is 5 % for all of a group together "
        "(Holm). Where the seeds do not tell specs apart, another seed may reverse their order.",
    ),
)
_CHECKING = (
    "Each row’s signatures and hashes were checked when this comparison was made. The column "
    "“signed” has the outcome.",
    "Check each run with its own VERIFY.md, and compare its digests with those below.",
)
_SIGNED = (
    "This comparison is signed by {key}, in {envelope} next to it, which names each run by its "
    "digests. dpfedadamw verify FOLDER checks it. The signature says who made this comparison, and "
    "nothing about the runs."
)
_UNSIGNED = "This comparison is not signed."


def document(comparison: Comparison, signed_by: str | None = None) -> Document:
    """Return what the pages on a comparison show.

    Args:
        comparison: What `compare` found.
        signed_by: Fingerprint of the key that is about to sign them; None leaves them unsigned.
    """
    data = as_report(comparison)
    runs = [run for _, entry in _entries(comparison) for run in entry.runs]
    # A header holds anything.
    stated = [run.source.header.get("created") for run in runs]
    created = max((one for one in stated if isinstance(one, str)), default="")
    pictures = _pictures(comparison)
    count = f"{len(runs)} runs" if len(runs) != 1 else "1 run"
    return Document(
        title=f"Comparison of {count}",
        label="Privacy report on several runs",
        audience=AUDIENCES_IN_WORDS[comparison.audience],
        description=(
            f"{sentence(data.metric)} of {count} in {len(comparison.groups)} "
            "groups whose privacy claims agree; groups are not ranked with each other."
        ),
        keywords=(comparison.audience, *(f"run {run.run}" for run in runs)),
        identifier="",
        created=created,
        date=f"Newest run: {date_in_words(created)}",
        paper="a4",
        band=_band(comparison),
        qualifications=(),
        introduction="",
        claim=None,
        front=(),
        summary=(("Side by side", (_overview(comparison), *_reading(comparison))),),
        glance=(),
        sections=tuple(_sections(comparison, data, pictures, signed_by)),
        pictures={picture.identifier: picture for picture in pictures},
        footer="Internal comparison" if comparison.audience == INTERNAL else "Public comparison",
        attachment=ATTACHMENT,
        data=as_json(plain(data)),
    )


def _entries(comparison: Comparison) -> Iterator[tuple[Group, RankedSpec]]:
    for group in comparison.groups:
        for entry in group.entries:
            yield group, entry


def _band(comparison: Comparison) -> Band | None:
    """Return the worst verdict of any run as the first thing seen; None where all is well."""
    found: dict[str, list[str]] = {}
    for group, entry in _entries(comparison):
        verdict = entry.runs[0].verdict
        if verdict in ALARMING:
            shown = "FAIL" if verdict == "FAIL" else "NOT VERIFIED"
            found.setdefault(shown, []).append(f"{entry.label} in {group.name}")
    for value, statement in _STATEMENTS.items():
        if value in found:
            return Band(value, statement.format(labels="; ".join(found[value])), alarming=True)
    return None


def _overview(comparison: Comparison) -> Block:
    """Return all entries in one table: what each reached, and its ε against whom."""
    rows: list[list[Text]] = []
    for group, entry in _entries(comparison):
        row = tables.rows_of(group)[group.entries.index(entry)]
        losses = entry.epsilons(group.terms.view)
        rows.append(
            [
                group.name,
                row.rank,
                entry.label,
                row.accuracy,
                formatting.epsilon(max(losses)) if losses else "none",
                group.terms.towards or "–",
                _judged(entry.runs[0]),
            ]
        )
    head = ("Group", "Rank", "What", "Accuracy, %", "ε", "Against", "Audit")
    align = (LEFT, RIGHT, LEFT, RIGHT, RIGHT, LEFT, LEFT)
    return table("All runs side by side", head, rows, align, (0, 0, 1, 0, 0, 0.8, 0))


def _judged(run: ComparedRun) -> Text:
    shown: list[Span] = [badge(run.verdict)]
    return shown if run.unprotected is None else [strong(f"{WORDS[run.unprotected]} "), *shown]


def _reading(comparison: Comparison) -> list[Block]:
    refusals = [one.sentence() for one in comparison.refusals]
    others = [text for text in tables.closing(comparison) if text not in refusals]
    said = [paragraph(text) for text in others]
    return [bullets(refusals), *said] if refusals else said


def _sections(
    comparison: Comparison,
    data: ComparisonData,
    pictures: Sequence[Picture],
    signed_by: str | None,
) -> Iterator[Section]:
    said: dict[str, str] = {}
    for group, shown in zip(comparison.groups, data.groups, strict=True):
        assumptions = shown.assumptions
        first = said.setdefault("\n".join(assumptions), group.name) if assumptions else group.name
        alike = first if first != group.name else None
        title = f"Group {group.name}: {group.privacy}"
        content = tuple(_group(group, assumptions, alike))
        yield Section(f"group-{group.name.lower()}", title, content)
    if pictures:
        places = tuple(place_of(picture.identifier) for picture in pictures)
        yield Section("figures", "Accuracy and privacy spent", places)
    yield Section("hazards", "What this does not mean", (titled(_CAUTIONS),))
    yield Section(
        "verify", "The runs, and how to verify them", tuple(_verification(data, signed_by))
    )


def _group(group: Group, assumptions: Sequence[str], alike: str | None) -> Iterator[Block]:
    yield paragraph(ended(sentence(group.terms.heading)))
    columns = tables.columns_of(group)
    words = ("what", "audit", "signed", "privacy")
    yield table(
        f"Runs of group {group.name}",
        columns,
        [list(row.cells) for row in tables.rows_of(group)],
        [LEFT if name in words else RIGHT for name in columns],
        [1.0 if name == "what" else 0.0 for name in columns],
        small=True,
    )
    said = tables.said_of(group)
    if said:
        yield bullets(said)
    if alike is not None:
        yield paragraph(f"Every ε of this group holds under the assumptions of group {alike}.")
    elif assumptions:
        yield subheading("Every ε of this group holds only if")
        yield bullets([sentence(text) for text in assumptions], ordered=True)


def _verification(data: ComparisonData, signed_by: str | None) -> Iterator[Block]:
    signed = _UNSIGNED
    if signed_by is not None:
        signed = _SIGNED.format(key=signed_by, envelope=ENVELOPES[data.audience])
    yield bullets((*_CHECKING, signed))
    rows: list[list[Text]] = []
    for group in data.groups:
        for entry in group.entries:
            for run in entry.runs:
                digest = run.hashes.get("model.safetensors")
                what: Text = [strong(f"{group.name}, {entry.label}"), " ", code(run.run)]
                rows.append([what, [code(digest)] if digest else "missing"])
    caption = "Every run with the SHA-256 of its model"
    yield table(caption, ("Run", "SHA-256 of its model"), rows, (LEFT, LEFT), (1.0, 0.0))


def _pictures(comparison: Comparison) -> list[Picture]:
    """A figure for each family of comparable runs; none where nothing has a rank."""
    return [_picture(place, row) for place, row in enumerate(figure.rows(comparison), 1)]


def _picture(place: int, row: figure.Drawn) -> Picture:
    found = figure.points(row)
    names = [group.name for group in row.family]
    of = f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"
    best = [f"{label} ends at {tables.accuracy_text(entry)} %" for label, entry in row.curves]
    repeated = any(len(entry.runs) > 1 for _, entry in row.curves)
    caption = "Runs without a rank are left out."
    if repeated:
        caption = (
            "Lines are means over repetitions of one spec; bands and bars are sample standard "
            f"deviations. {caption}"
        )
    title = "Accuracy over rounds"
    if row.private:
        title += " and against the privacy spent"
        caption = f"ε is that against a third party. {caption}"
    return Picture(
        f"{_FIGURE}-{place}",
        f"{title}, {of}",
        caption,
        f"Line chart{'s' if row.private else ''} of test accuracy, {of}: {'; '.join(best)}.",
        ("what", "round", "accuracy, %", "ε spent, third party"),
        tuple(
            (what, str(index), f"{mean:.2f}", "–" if loss is None else f"{loss:.4g}")
            for what, index, mean, loss in found[:SHOWN_ROWS]
        ),
        max(0, len(found) - SHOWN_ROWS),
        figure.draw_row(row),
        formatting.as_csv([_CURVE_HEAD, *found]).encode("utf-8"),
    )
