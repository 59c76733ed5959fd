"""The pages of a comparison show its tables, and first of all what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reports.document import SHOWN_ROWS
from reports.extensions.comparison import data, figure, tables
from reports.extensions.comparison.pages import document
from reports.signatures.verification.comparisons import ENVELOPES
from tests.reports.extensions.comparison.several import several
from tests.reports.extensions.comparison.test_comparison import compared, run_of


@pytest.fixture(autouse=True)
def without_drawings(monkeypatch):
    """The pictures themselves take a second, and are looked at elsewhere."""
    monkeypatch.setattr(figure, "draw_row", lambda row: f"{len(row.curves)} curves".encode())


@pytest.fixture
def found(monkeypatch):
    return several(monkeypatch)


def tables_of(blocks):
    return [block for block in blocks if block["kind"] == "table"]


def test_all_runs_stand_next_to_each_other_with_their_groups_loss(found):
    ((title, blocks),) = document(found).summary
    (overview,) = tables_of(blocks)
    server = "the server (worst case)"
    assert title == "Side by side"
    assert [[*row[:6], row[6][0]["badge"]] for row in overview["rows"]] == [
        ["A", "only", "dp-a", "70.0", "2.50", "a third party", "PASS"],
        ["B", "only", "dp-a", "60.0", "3.00", server, "PASS"],
        ["C", "1", "dp-a", "84.0 ± 4.0", "7.00", server, "PASS"],
        ["C", "2≈", "dp-b", "83.0 ± 4.4", "7.05", server, "PASS"],
        ["C", "–", "dp-b (00000007)", "99.0", "7.00", server, "FAIL"],
        ["D", "only", "fedavg", "90.0", "none", "–", "NO CLAIM"],
        ["D", "–", "sgd (0000000a)", "not measured", "none", "–", "NO CLAIM"],
    ]
    assert overview["head"] == ["Group", "Rank", "What", "Accuracy, %", "ε", "Against", "Audit"]
    assert len(overview["head"]) == len(overview["align"]) == len(overview["widths"]) == 7
    refused = next(block for block in blocks if block["kind"] == "list")
    assert refused["items"] == [one.sentence() for one in found.refusals]
    said = [block["text"] for block in blocks if block["kind"] == "paragraph"]
    assert said == tables.closing(found)[len(found.refusals) :]


def test_each_group_has_its_table_what_is_said_of_it_and_its_assumptions_once(found):
    shown = document(found)
    sections = [one for one in shown.sections if one.identifier.startswith("group-")]
    assert [one.identifier for one in sections] == [f"group-{name}" for name in "abcd"]
    report = data.as_report(found)
    for section, group, told in zip(sections, found.groups, report.groups, strict=True):
        assert section.title == f"Group {group.name}: {group.privacy}"
        (table,) = tables_of(section.blocks)
        columns = tables.columns_of(group)
        assert tuple(table["head"]) == columns
        assert [tuple(row) for row in table["rows"]] == [row.cells for row in tables.rows_of(group)]
        words = {"what", "audit", "signed", "privacy"}
        assert [one == "left" for one in table["align"]] == [name in words for name in columns]
        lists = [block for block in section.blocks if block["kind"] == "list"]
        due = [tables.said_of(group)] if tables.said_of(group) else []
        last = section.blocks[-1]
        if group.name == "A":
            due.append([text[0].upper() + text[1:] for text in told.assumptions])
            assert last["ordered"]
        assert [block["items"] for block in lists] == due
        if group.name in "BC":
            assert "the assumptions of group A" in last["text"]


def test_each_run_stands_with_the_digest_of_its_model_and_who_signed_is_said(found):
    for signed_by in (None, "abcd-1234"):
        section = next(
            one for one in document(found, signed_by).sections if one.identifier == "verify"
        )
        (table,) = tables_of(section.blocks)
        told = [
            (what[0]["strong"], what[2]["code"], digest[0]["code"])
            for what, digest in table["rows"]
        ]
        assert told == [
            (f"{group.name}, {entry.label}", run.run, run.source.hashes["model.safetensors"])
            for group in found.groups
            for entry in group.entries
            for run in entry.runs
        ]
        said = json.dumps(section.blocks, ensure_ascii=False)
        assert ("is not signed" in said) == (signed_by is None)
        by = f"signed by abcd-1234, in {ENVELOPES['internal']} next to it"
        assert (by in said) == (signed_by is not None)


def test_a_model_without_a_digest_is_missing():
    run = run_of()
    run.source.hashes.clear()
    section = document(compared(run)).sections[-1]
    assert tables_of(section.blocks)[0]["rows"][0][1] == "missing"


def test_the_head_says_how_many_runs_there_are_and_when_the_newest_began(found):
    shown = document(found)
    assert shown.title == "Comparison of 11 runs"
    assert "Test accuracy of the final model of 11 runs in 4 groups" in shown.description
    assert shown.created == "2026-11-21T10:00:00Z"
    assert "21 November 2026" in shown.date
    runs = [run.run for group in found.groups for entry in group.entries for run in entry.runs]
    assert shown.keywords == ("internal", *(f"run {run}" for run in runs))
    assert shown.footer == "Internal comparison"
    one = document(compared(run_of(), audience="public"))
    assert one.title == "Comparison of 1 run"
    assert one.footer == "Public comparison"
    assert json.loads(shown.data) == data.plain(data.as_report(found))


@pytest.mark.parametrize("odd", [5, [1], {"a": 1}, True, None])
def test_a_header_without_a_date_leaves_the_newest_of_the_others(odd):
    """A stranger's header may hold anything, and a comparison is made all the same."""
    stated = (odd, "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z", odd)
    shown = document(compared(*(run_of(header={"created": one}) for one in stated)))
    assert shown.created == "2026-11-21T10:00:00Z"
    alone = document(compared(run_of(header={"created": odd})))
    assert alone.created == ""


@pytest.mark.parametrize(
    ("verdicts", "value", "labels"),
    [
        (["FAIL", "NOT VERIFIED", "PASS"], "FAIL", ["a"]),
        (["PASS", "NOT VERIFIED", "NOT AUDITED"], "NOT VERIFIED", ["b", "c"]),
        (["PASS", "PASS", "PASS"], None, []),
    ],
)
def test_the_worst_verdict_comes_first_with_the_runs_that_have_it(verdicts, value, labels):
    runs = [run_of(algorithm=name, verdict=one) for name, one in zip("abc", verdicts, strict=True)]
    band = document(compared(*runs)).band
    assert (band.value if band else None) == value
    if band:
        told = band.statement.split("No rank: " if value == "FAIL" else "no rank: ")[1]
        assert [label.split(" (")[0] for label in told.split("; ")] == labels
        assert band.alarming


def test_a_picture_has_its_points_as_rows_and_as_a_file(found):
    pictures = list(document(found).pictures.values())
    rows = figure.rows(found)
    assert [picture.identifier for picture in pictures] == [
        f"accuracy-and-privacy-{place}" for place in (1, 2, 3)
    ]
    of = ("group A", "groups B, C", "group D")
    for picture, row, groups in zip(pictures, rows, of, strict=True):
        points = figure.points(row)
        assert [(what, int(at), float(mean)) for what, at, mean, _ in picture.rows] == [
            (what, at, pytest.approx(mean)) for what, at, mean, _ in points
        ]
        losses = [None if loss == "–" else float(loss) for *_, loss in picture.rows]
        assert losses == [loss for *_, loss in points]
        assert picture.omitted == 0
        assert picture.drawing == f"{len(row.curves)} curves".encode()
        assert picture.title.endswith(groups)
        assert ("privacy spent" in picture.title) == row.private
        assert ("third party" in picture.caption) == row.private
        assert ("Lines are means" in picture.caption) == (groups == "groups B, C")
        assert picture.alternative_text.startswith(
            "Line charts of" if row.private else "Line chart of"
        )
        for label, entry in row.curves:
            assert f"{label} ends at {tables.accuracy_text(entry)} %" in picture.alternative_text


def test_of_many_points_the_first_are_shown_and_the_rest_are_counted():
    measured = tuple((place, 0.5) for place in range(SHOWN_ROWS + 5))
    (picture,) = document(compared(replace(run_of(), accuracies=measured))).pictures.values()
    assert (len(picture.rows), picture.omitted) == (SHOWN_ROWS, 5)
    assert picture.rows[-1][1] == str(SHOWN_ROWS - 1)
    # The file has them all.
    head, *lines = picture.data.decode().splitlines()
    assert head == "what,round,accuracy_percent,epsilon_spent_third_party"
    assert len(lines) == SHOWN_ROWS + 5
