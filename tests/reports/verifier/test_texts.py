"""The verifier's page in three languages: each sentence has each of them, with the same fields."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from reports import verifier
from reports.verifier import FOLDER, page, sentences, standing, texts

SCRIPTS = {name: (FOLDER / name).read_text("utf-8") for name in ("verify.mjs", "page.mjs")}
MARKUP = (FOLDER / "page.html").read_text("utf-8")
# A text in quotes where a sentence is due.
BARE = re.compile(
    r"""(?:\b(?:refuse|fail|contradict|same)\(|aults\.push\(|\bwhy: |=> element\("p", )["'`]"""
    r"""|\bfails\((?:[^,()`]|`[^`]*`)+, ["'`]|\bsay\("\w+", ["'`]"""
)
# What markup shows and is a name in every language.
NAMES = {"trainer.pub", "auditor.pub", "gate.pub", "English", "Deutsch", "Français"}


def test_the_table_has_every_sentence_of_the_page_and_no_other() -> None:
    said = {one for script in SCRIPTS.values() for one in sentences(script)} | {*standing(MARKUP)}
    assert {*texts()} == said


def test_nothing_is_told_but_in_sentences_of_the_table() -> None:
    """Where a text goes to the reader, it begins with said`, or is a name."""
    told = "\n".join(SCRIPTS.values())
    found = [told[one.start() :][:80] for one in BARE.finditer(told)]
    assert found == []
    assert BARE.search('faults.push("is missing")')
    assert BARE.search("fails(`${role}.pub`, `is another`)")
    assert BARE.search('say("holds", `all of it`)')


def test_the_markup_shows_nothing_but_sentences_of_the_table_and_names() -> None:
    body = re.sub(r"<(style|script)[^>]*>.*?</\1>", "", MARKUP, flags=re.DOTALL)
    shown = {" ".join(text.split()) for text in re.findall(r">([^<]+)<", body)} - {""}
    assert shown == {*standing(MARKUP), *NAMES}


def test_a_sentence_without_a_language_or_with_other_fields_makes_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("verify.mjs", "page.mjs", "page.html", "texts.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    monkeypatch.setattr(verifier, "FOLDER", tmp_path)
    assert page()
    whole = (tmp_path / "texts.json").read_text("utf-8")
    for change, message in (
        (lambda row: row.pop("fr"), "has no fr"),
        (lambda row: row.update(de="nennt {2} zweimal"), "has no de with the same fields"),
        (lambda row: row.update(en="names {1} thrice"), "lacks: names {1} twice"),
    ):
        table = json.loads(whole)
        (row,) = [one for rows in table.values() for one in rows if one["en"] == "names {1} twice"]
        change(row)
        (tmp_path / "texts.json").write_text(json.dumps(table), "utf-8")
        with pytest.raises(ValueError, match=re.escape(message)):
            page()


def test_a_sentence_stands_in_the_table_once() -> None:
    rows = json.loads((FOLDER / "texts.json").read_text("utf-8")).values()
    assert sum(map(len, rows)) == len(texts())


def test_what_reports_say_too_is_said_in_the_same_words() -> None:
    languages = pytest.importorskip("reports.extensions.languages")
    told = {text.en: text for text in languages.texts()}
    both = {*told} & {*texts()}
    assert {"PASS", "FAIL", "NOT VERIFIED", "NO CLAIM", "consistent", "re-executed"} <= both
    for english in both:
        due = {"de": told[english].de, "fr": told[english].fr}
        assert {one: text.replace("\u00a0", " ") for one, text in texts()[english].items()} == due
