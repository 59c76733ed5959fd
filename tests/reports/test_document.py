"""Documents as data: blocks with all that they were given, and texts as sentences."""

from __future__ import annotations

import pytest

from reports import document
from reports.document import Document, Picture, Section, ended, number_of, sentence


def test_each_block_has_what_it_was_given_and_the_usual_for_the_rest() -> None:
    assert document.paragraph("t") == {"kind": "paragraph", "text": "t", "style": "plain"}
    assert document.paragraph("t", "quote")["style"] == "quote"
    assert document.note("t", "FAIL") == {
        "kind": "note", "text": "t", "tone": "FAIL", "loud": False,
    }  # fmt: skip
    assert document.bullets(("a",)) == {"kind": "list", "items": ["a"], "ordered": False}
    assert document.table("c", ("a", "b"), [("1", "2")], ("left", "right")) == {
        "kind": "table", "caption": "c", "head": ["a", "b"], "rows": [["1", "2"]],
        "align": ["left", "right"], "widths": [1.0, 1.0], "small": False,
    }  # fmt: skip
    assert document.table("c", ("a",), [], ("left",), (0,), small=True) == {
        "kind": "table", "caption": "c", "head": ["a"], "rows": [], "align": ["left"],
        "widths": [0], "small": True,
    }  # fmt: skip
    assert document.settings("c", [("n", "v")]) == {
        "kind": "settings", "caption": "c", "rows": [["n", "v"]],
    }  # fmt: skip
    assert document.figure("f") == {"kind": "figure", "identifier": "f"}
    assert document.blank(("a",)) == {"kind": "blank", "labels": ["a"]}
    assert document.subheading("s") == {"kind": "subheading", "text": "s"}
    assert document.tree("c", {"text": "r"}) == {
        "kind": "tree", "caption": "c", "root": {"text": "r"},
    }  # fmt: skip
    assert document.check_list(({"title": "t"},)) == {"kind": "checks", "items": [{"title": "t"}]}
    assert (document.strong("a"), document.code("b"), document.badge("PASS")) == (
        {"strong": "a"}, {"code": "b"}, {"badge": "PASS"},
    )  # fmt: skip
    assert document.titled([("a", "b")])["items"] == [{"title": "a", "text": "b"}]
    assert document.fields([("a", "b")]) == {"kind": "fields", "items": [["a", "b"]]}
    assert document.scale([("a", 1.0)], [("b", 0.5)], [("c", 0.1, 0.2)], ("d", 0.3), "e", "f") == {
        "kind": "scale", "alt": "f", "bands": [["a", 1.0]], "ticks": [["b", 0.5]],
        "marks": [["c", 0.1, 0.2]], "here": ["d", 0.3], "text": "e",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "as_sentence", "with_its_end"),
    [
        ("is it?", "Is it?", "is it?"),
        ("it is", "It is", "it is."),
        ("it is!", "It is!", "it is!"),
        ("it is.", "It is.", "it is."),
        ("spec.yaml is gone", "spec.yaml is gone", "spec.yaml is gone."),
        ("clip_norm: too small", "clip_norm: too small", "clip_norm: too small."),
        ("done. and more", "Done. and more", "done. and more."),
        ("ε is small", "Ε is small", "ε is small."),
        ("", "", "."),
    ],
)  # fmt: skip
def test_a_sentence_begins_large_but_for_a_files_name_and_ends(
    text: str, as_sentence: str, with_its_end: str
) -> None:
    assert sentence(text) == as_sentence
    assert ended(text) == with_its_end


def test_a_document_is_told_without_its_drawings_and_files() -> None:
    picture = Picture("p", "T", "C", "A", ("h",), (("1",),), 3, b"<svg/>", b"h\n1\n")
    sections = (Section("a", "A", (document.paragraph("x"),)), Section("b", "B", ()))
    shown = Document(
        title="T", label="L", audience="all", description="D", keywords=("k",), identifier="run",
        created="", date="day", paper="a4", band=None, qualifications=(), introduction="",
        claim=None, front=(), summary=(), glance=(), sections=sections, pictures={"p": picture},
        footer="F", attachment="x.json", data=b"secret",
    )  # fmt: skip
    told = shown.as_dict()
    assert "data" not in told
    assert told["pictures"] == {
        "p": {
            "identifier": "p", "title": "T", "caption": "C", "alternative_text": "A",
            "head": ("h",), "omitted": 3,
        }
    }  # fmt: skip
    assert told["words"]["Run"] == "Run"
    assert told["language"] == "en"
    assert told["sections"][0]["blocks"] == (document.paragraph("x"),)
    assert [number_of(sections, name) for name in ("a", "b")] == [1, 2]
    assert picture.drawing == b"<svg/>"
