"""A report in German and French: texts of one table, numbers as written, what stays English."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.checks import checks_of
from audit.checks.loop import ledger as loop
from audit.checks.loop import steps
from audit.reading import units
from reports import Auditing, build_report
from reports.content import wording
from reports.content.build import build
from reports.content.meaning import Meaning
from reports.content.parts import INTERNAL, PUBLIC
from reports.document import (
    LEFT,
    WORDS,
    Block,
    Document,
    Section,
    bullets,
    check_list,
    code,
    ended,
    fields,
    figure,
    note,
    paragraph,
    scale,
    sentence,
    settings,
    strong,
    subheading,
    table,
    titled,
    tree,
)
from reports.extensions import languages
from reports.extensions.languages import number, remains_english, texts, translate
from reports.extensions.languages.pages import translated
from reports.formatting import LANGUAGES, Language
from reports.render import html
from reports.render.pages import document
from tests.reports import drawings
from tests.reports.changed_runs import rewrite_header

MakeRun = Any  # the builder that conftest gives
undrawn = drawings.undrawn
FIELD = re.compile(r"\{(\w+)\}")
OTHERS = [language for language in LANGUAGES if language != "en"]
KINDS: dict[str, dict[str, Any]] = {
    "good": {},
    "failed": {"verdict": "FAIL"},
    "open": {"verdict": "NOT VERIFIED", "randomness": "reproducible"},
    "unaudited": {"audit": False},
    "plain": {"private": False},
    "server": {},
    "clients": {},
    "person": {},
    "loop": {},
    "challenged": {},
}
LOOP = {
    "name": "opacus",
    "version": "1.6.0",
    "mode": "per-sample",
    "optimizer": "sgd",
    "generator": "a generator",
}
HEADERS: dict[str, dict[str, Any]] = {
    "person": {"unit": "person", "clients_per_person": 3},
    "loop": {"producer": LOOP, "sampling_rate": 0.1},
    "challenged": {
        "public_coin": {
            "nonce": "00" * 32,
            "intents": {"for_data": 3, "of_trainer": 5, "dropped": 1, "dropped_of_trainer": 2},
        },
        "budget": {"epsilon": 12.0, "delta": 1e-5},
    },
}
# Texts of a run's own: names, digests, settings, and what this builder invents for the audit.
OWN = re.compile(
    r"[0-9a-f]{64}|[a-z0-9-]+|–| (Outside|The evidence|If it fails).*|Noise has.*|", re.DOTALL
)


@pytest.fixture(scope="module", params=KINDS)
def run(
    request: pytest.FixtureRequest,
    run_builder: MakeRun,
    client_run_builder: MakeRun,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("languages") / "run"
    if request.param in ("server", "clients"):
        return Path(client_run_builder(folder, noise_added_by=request.param))
    made = Path(run_builder(folder, **KINDS[request.param]))
    if request.param in HEADERS:
        rewrite_header(made, **HEADERS[request.param])
        if request.param == "loop":
            # A recording has no profile.
            *others, claim = (made / "ledger.jsonl").read_text("utf-8").splitlines()
            kept = {key: value for key, value in json.loads(claim).items() if key != "profile"}
            (made / "ledger.jsonl").write_text("\n".join([*others, json.dumps(kept)]) + "\n")
        audit = json.loads((made / "audit.json").read_text("utf-8"))
        audit["inputs"].pop("ledger.jsonl")
        (made / "audit.json").write_text(json.dumps(audit), "utf-8")
    return made


def spans(text: Any) -> Iterator[str]:
    for span in [text] if isinstance(text, str) else text:
        if isinstance(span, str):
            yield span
        else:
            yield from (inner for kind, inner in span.items() if kind == "strong")


def texts_of(block: dict[str, Any]) -> Iterator[str]:
    """Every text of a block that a person reads."""
    kind = block["kind"]
    if kind in ("paragraph", "subheading", "note"):
        yield from spans(block["text"])
    elif kind == "list":
        yield from (span for item in block["items"] for span in spans(item))
    elif kind == "titled":
        yield from (text for item in block["items"] for text in item.values())
    elif kind == "table":
        yield from (block["caption"], *block["head"])
        yield from (span for row in block["rows"] for cell in row for span in spans(cell))
    elif kind == "settings":
        yield from (name for name, _ in block["rows"])
        yield from (span for _, value in block["rows"] for span in spans(value))
    elif kind == "scale":
        yield from (block["text"], block["alt"], block["here"][0])
        yield from (entry[0] for entry in (*block["bands"], *block["ticks"], *block["marks"]))


def promised(shown: Document) -> Iterator[str]:
    """The texts that every language has: both first pages, headings, heads of tables, labels."""
    yield from (shown.label, shown.audience, shown.footer, *shown.qualifications)
    yield from (section.title for section in (*shown.front, *shown.sections))
    if shown.band is not None:
        yield shown.band.statement
    if shown.claim is not None:
        yield from (shown.claim.headline, shown.claim.statement)
        yield from (text for pair in shown.claim.numbers for text in pair)
    for name, value in shown.subject:
        yield from (name, *spans(value))
    front = [block for section in shown.front for block in section.blocks]
    for block in (*front, *(block for _, inner in shown.summary for block in inner)):
        yield from texts_of(block)
    yield from (title for title, _ in shown.summary)
    for block in (block for section in shown.sections for block in section.blocks):
        if block["kind"] == "table":
            yield from block["head"]
        elif block["kind"] == "subheading":
            yield block["text"]
    yield from (picture.title for picture in shown.pictures.values())


@pytest.mark.sampled(3)
def test_no_text_of_the_first_pages_no_heading_and_no_head_of_a_table_is_missing(
    run: Path,
) -> None:
    """A new or changed text needs its row in reports/extensions/languages/texts.json."""
    other = Auditing("SHA256:a", "SHA256:b", one_hand=False)
    for audience, auditing in ((INTERNAL, None), (INTERNAL, other), (PUBLIC, None)):
        texts = dict.fromkeys(promised(document(build(run, audience, auditing))))
        unknown = (text for text in texts if not OWN.fullmatch(text))
        assert [text for text in unknown if translate(text, "de") is None] == []


def test_standing_texts_verdicts_labels_and_the_checks_names_are_there() -> None:
    texts = [*WORDS, *(label for _, label in wording.GOVERNANCE)]
    for unit in units.EVERY_UNIT.values():
        texts += [check.title for check in checks_of(unit)]
    assert [text for text in texts if translate(text, "de") is None] == []


def test_what_qualifies_each_verdict_on_a_recorded_loop_is_there() -> None:
    texts = [loop.NOT_COMPUTED_AGAIN, loop.NOT_SECURE, loop.NOT_LOOKED_AT]
    texts += [steps.UNGUARDED, steps.UNGUARDED_UPDATE, steps.UNTRAINED]
    shown = [ended(sentence(text)) for text in texts]
    assert [text for text in shown if translate(text, "de") is None] == []


def test_every_text_is_once_in_the_table_with_the_same_fields_in_every_language() -> None:
    english = [text.en for text in texts()]
    assert len(english) == len(set(english))
    for text in texts():
        assert text.de.strip()
        assert text.fr.strip()
        fields = [sorted(FIELD.findall(one)) for one in text]
        assert fields[0] == fields[1] == fields[2], text.en


@pytest.mark.parametrize(
    ("printed", "german", "french"),
    [
        ("4.80", "4,80", "4,80"),
        ("1,190", "1.190", "1\u202f190"),
        ("12,345.6", "12.345,6", "12\u202f345,6"),
        ("99.92 %", "99,92 %", "99,92 %"),
        ("2.5·10⁻⁶", "2,5·10⁻⁶", "2,5·10⁻⁶"),
        ("10⁻⁵", "10⁻⁵", "10⁻⁵"),
    ],
)
def test_numbers_are_written_as_the_language_writes_them(
    printed: str, german: str, french: str
) -> None:
    assert (number(printed, "de"), number(printed, "fr")) == (german, french)
    assert number(printed, "en") == printed


@pytest.mark.sampled(4)
@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("verdict", ["FAIL", "NOT VERIFIED"])
def test_no_english_of_the_auditor_stands_on_the_first_pages(
    make_run: MakeRun, verdict: str, language: Language
) -> None:
    """Findings are named by their titles, and by the section that has the auditor's words."""
    made = make_run(verdict=verdict, spec_extra={"report": {"language": language}})
    shown = document(build(made))
    told = json.dumps([section.blocks for section in shown.front], ensure_ascii=False)
    assert "accepted interval" not in told
    assert "evidence of some rounds" not in told
    assert {"de": "(Abschnitt 11)", "fr": "(section 11)"}[language] in told


@pytest.mark.parametrize("language", OTHERS)
def test_a_sentence_of_the_table_that_stands_without_its_full_stop_gets_none(
    language: Language,
) -> None:
    standing = [text for text in texts() if not FIELD.search(text.en)]
    known = {text.en for text in standing}
    ended_by_one = [text for text in standing if re.search(r"[^.]\.$", text.en)]
    assert len(ended_by_one) > 50
    for text in ended_by_one:
        bare = text.en.removesuffix(".")
        if bare not in known:
            assert translate(bare, language) == getattr(text, language).removesuffix("."), bare


@pytest.mark.parametrize("text", ["0.6.0", "SP 800-226", "sha256:12", "2026-01-31", "1,2,3"])
def test_versions_dates_and_names_are_no_numbers(text: str) -> None:
    assert number(text, "de") is None


@pytest.mark.parametrize(
    "text",
    [
        "1, 1; 1: 1 of 1 · 1 (1). " * 4 + "x",
        "1 (1), " * 280 + "x",
        "Matrix of 1 classes: 1 of 1 test records are answered correctly; " * 30,
        "A. " * 650,
    ],
)
def test_no_text_of_a_stranger_takes_long(text: str) -> None:
    begun = time.process_time()
    assert translate(text, "de") is None
    # A hundredth of a second; it was more than fourteen for the first, of a hundred characters.
    assert time.process_time() - begun < 1.0


def test_a_text_is_left_alone_that_is_longer_or_takes_more_look_ups_than_any_of_a_report() -> None:
    one = "It is not a proof."
    most = 2000 // (len(one) + 1)
    assert translate(" ".join([one] * most), "de") is not None
    assert translate(" ".join([one] * (most + 10)), "de") is None
    search = languages._Search("de", left=3)
    assert search.translate(f"{one} {one}", 0) is not None
    assert search.left == 1
    with pytest.raises(languages._TooMuchError):
        search.translate("It is not a proof. Treat the claim as unproven.", 0)


@given(
    parts=st.lists(st.text("ab,", max_size=2), min_size=2, max_size=4),
    text=st.text("ab,", max_size=8),
)
def test_fields_are_those_that_a_lazy_expression_would_find(parts: list[str], text: str) -> None:
    names = tuple(f"f{number}" for number in range(len(parts) - 1))
    source = re.escape(parts[0])
    for name, part in zip(names, parts[1:], strict=True):
        source += f"(?P<{name}>.+?){re.escape(part)}"
    due = re.compile(source).fullmatch(text)
    nothing = languages.Text("", "", "")
    found = languages._Pattern(nothing, names, tuple(parts)).fields_of(text)
    assert found == (None if due is None else due.groupdict())


def test_a_promise_is_put_together_of_its_parts(make_run: MakeRun) -> None:
    found = translate(build(make_run(verdict="FAIL"))[Meaning].promise, "de")
    assert found is not None
    assert found.startswith("Behauptet, aber vom Audit widerlegt: was sie auch sehen")
    assert "mit einer Wahrscheinlichkeit von höchstens 1 zu 100.000" in found
    assert translate("A sentence that nobody wrote.", "de") is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("language", OTHERS)
def test_pages_are_in_the_language_the_data_are_not_and_what_is_english_says_so(
    make_run: MakeRun, language: Language
) -> None:
    other = make_run(spec_extra={"report": {"language": language}})
    files = build_report(other)
    page = files.html.read_text("utf-8")
    assert f'<html lang="{language}-' in page
    assert remains_english(language) in page
    assert '<div lang="en">' in page
    front = page[: page.index('id="guarantee"')]
    assert '<div lang="en">' not in front
    assert "PASS" not in front[front.index("<body") :]
    assert '"promise": "Whatever they see' in files.json.read_text("utf-8")
    assert f"({'de-DE' if language == 'de' else 'fr-FR'})".encode() in files.pdf.read_bytes()


@pytest.mark.parametrize("language", OTHERS)
def test_the_claim_on_the_first_page_is_in_the_language_too(
    pages: Document, language: Language
) -> None:
    english, shown = pages.claim, translated(pages, language).claim
    assert english is not None
    assert shown is not None
    for (name, value), (name_there, there) in zip(english.numbers, shown.numbers, strict=True):
        assert name_there == translate(name, language) != name
        assert there == (translate(value, language) or value)
    assert shown.headline == translate(english.headline, language)
    assert shown.statement == translate(english.statement, language) != english.statement


@pytest.fixture(scope="module")
def pages(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Document:
    shown = document(build(run_builder(tmp_path_factory.mktemp("pages") / "run")))
    # The tests put a section of their own here; what else would be translated takes the time.
    return replace(shown, front=(), sections=(), pictures={})


KNOWN, UNKNOWN = "Contents", "A sentence that nobody wrote."


def a_check(*parts: str) -> Block:
    told = [("Measured", text) for text in parts]
    return check_list([{"title": KNOWN, "severity": "", "verdict": "PASS", "parts": told}])


def a_scale(text: str) -> Block:
    return scale([(KNOWN, 1.0)], [("1", 0.0)], [(KNOWN, 0.0, 1.0)], (KNOWN, 0.5), text, KNOWN)


@pytest.mark.parametrize(
    ("block", "english"),
    [
        (paragraph(KNOWN), False),
        (paragraph(UNKNOWN), True),
        (paragraph([KNOWN, UNKNOWN]), True),
        (paragraph([UNKNOWN, strong(KNOWN)]), True),
        (paragraph([KNOWN, strong(UNKNOWN)]), True),
        (paragraph([strong(KNOWN), code("a_name_in_code")]), False),
        (subheading(UNKNOWN), True),
        (note(UNKNOWN, "PASS"), True),
        (bullets([KNOWN, KNOWN]), False),
        (bullets([UNKNOWN, KNOWN]), True),
        (bullets([KNOWN, [KNOWN, UNKNOWN]]), True),
        (titled([(KNOWN, KNOWN), (UNKNOWN, KNOWN)]), False),
        (titled([(KNOWN, UNKNOWN), (KNOWN, KNOWN)]), True),
        (a_scale(KNOWN), False),
        (a_scale(UNKNOWN), True),
        (a_check(KNOWN, KNOWN), False),
        (a_check(KNOWN, UNKNOWN), True),
    ],
)
def test_a_block_is_marked_as_english_where_any_of_its_texts_stays_so(
    pages: Document, block: Block, english: bool
) -> None:
    """Who has a page read out hears each language as it is spoken."""
    shown = replace(pages, sections=(Section("one", "One", (block,)),))
    (section,) = translated(shown, "de").sections
    line, made = section.blocks
    assert line["text"] == remains_english("de")
    assert made.get("language") == ("en" if english else None)


MADE: dict[str, Callable[[str, str], Block]] = {
    "paragraph": lambda text, _: paragraph(text),
    "spans": lambda text, name: paragraph([text, strong(text), code(name)]),
    "subheading": lambda text, _: subheading(text),
    "note": lambda text, _: note(text, "PASS"),
    "list": lambda text, _: bullets([text, [text]], ordered=True),
    "titled": lambda text, _: titled([(text, text)]),
    "table": lambda text, _: table(text, (text, text), [[text, [strong(text)]]], (LEFT, LEFT)),
    "settings": lambda text, _: settings("Names", [(text, text)]),
    # What people stated is theirs, and so are the names of mechanisms and of files.
    "fields": lambda text, name: fields([(text, name)]),
    "tree": lambda text, name: tree(text, {"text": name, "of": []}),
    "figure": lambda _, name: figure(name),
    "scale": lambda text, _: scale([(text, 1)], [(text, 0)], [(text, 0, 1)], (text, 1), text, text),
    "checks": lambda text, name: check_list(
        [{"title": text, "severity": text, "verdict": "PASS", "parts": [(text, name)]}]
    ),
}


@pytest.mark.parametrize("kind", MADE)
def test_the_words_of_a_block_are_put_into_the_language_and_its_names_are_not(
    pages: Document, kind: str
) -> None:
    german = translate(KNOWN, "de")
    assert german not in (None, KNOWN)
    block = MADE[kind](KNOWN, KNOWN)
    shown = replace(pages, sections=(Section("one", "One", (block,)),))
    _, made = translated(shown, "de").sections[0].blocks
    due = MADE[kind](str(german), KNOWN)
    assert json.loads(json.dumps(made)) == json.loads(json.dumps(due))


def test_the_auditors_words_in_the_annex_are_marked_as_english(make_run: MakeRun) -> None:
    made = make_run(spec_extra={"report": {"language": "de"}})
    annex = document(build(made)).sections[-1]
    checks = [block for block in annex.blocks if block["kind"] == "checks"]
    assert checks
    assert {block.get("language") for block in checks} == {"en"}


def test_an_english_report_says_nothing_of_languages(make_run: MakeRun) -> None:
    page = html.typeset(document(build(make_run()))).decode("utf-8")
    assert '<html lang="en-GB">' in page
    assert "no translation yet" not in page
    assert 'lang="en">' not in page


def test_where_the_texts_were_removed_pages_are_english_and_say_so(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = build(make_run(spec_extra={"report": {"language": "de"}}))

    def removed(name: str) -> None:
        raise ModuleNotFoundError(name="reports.extensions.languages")

    monkeypatch.setattr("reports.render.pages.import_module", removed)
    page = html.typeset(document(report)).decode("utf-8")
    assert '<html lang="en-GB">' in page
    assert page.count("These pages were to be in another language (de-DE).") == 1
