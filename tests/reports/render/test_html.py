"""The web page: the same words as the PDF, in a file that needs nothing and runs nothing."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from reports import build_report
from reports import document as blocks
from reports.content import parts
from reports.content.build import build
from reports.content.parts import AUDIENCES, PUBLIC
from reports.document import WORDS, Band, Claim, Document, Picture, Section
from reports.files import clean
from reports.render import html, pdf
from reports.render.pages import document
from tests.reports import drawings
from tests.reports.data import data_of, report_of

MakeRun = Any  # the builder that conftest gives
POPPLER = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler is not installed")
VOID = {"meta", "path", "use", "rect", "br", "link", "img", "input", "hr"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style></svg><iframe src=//example.org>",
    "&lt;b&gt; & ' \" ]]> <!-- --!>",
    "javascript:alert(1)",
    "連合学習 الخصوصية \u202e 😀",
)


class Page(HTMLParser):
    """Elements in order, each with its attributes and its open ancestors, and all text."""

    def __init__(self, source: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.feed(source.decode("utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        if not {"style", "title", "desc"} & set(self.open):
            self.texts.append(data)

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes, _ in self.elements if tag in tags]

    @property
    def text(self) -> str:
        return squeezed("".join(self.texts))


def squeezed(text: str) -> str:
    """Text without white space and other marks that only lay it out."""
    return re.sub(r"[\s\u200b\u2002\u00ad-]+", "", text)


def words(value: Any) -> list[str]:
    """All texts of blocks, spans and cells."""
    if isinstance(value, dict):
        # A drawing's text for those who do not see it is an attribute.
        skipped = ("kind", "identifier", "style", "tone", "align", "caption", "alt")
        return [t for key, inner in value.items() if key not in skipped for t in words(inner)]
    if isinstance(value, list | tuple):
        return [text for inner in value for text in words(inner)]
    return [value] if isinstance(value, str) else []


def shown_texts(shown: Document) -> list[str]:
    """Everything that a reader of either form is to see."""
    texts = [shown.title, shown.label, shown.audience, shown.identifier, shown.date]
    texts += [shown.introduction, *shown.qualifications]
    if shown.band:
        texts += [shown.band.value, shown.band.statement]
    if shown.claim:
        texts += words([shown.claim.numbers, shown.claim.statement])
        texts.append(shown.claim.headline)
    texts += [name for name, _ in shown.subject] + words([value for _, value in shown.subject])
    texts += words([shown.summary, shown.glance])
    for section in (*shown.front, *shown.sections):
        texts += [section.title, *words(list(section.blocks))]
    for picture in shown.pictures.values():
        texts += [picture.title, picture.caption]
    return [text for text in texts if squeezed(text)]


KINDS: list[dict[str, Any]] = [
    {},
    {"private": False},
    {"audit": False},
    {"verdict": "FAIL"},
    {"verdict": "NOT VERIFIED", "randomness": "reproducible"},
    {"clients": 1, "rounds": 1, "blocks": 1},
    {"clients": 80, "rounds": 30, "blocks": 90},
]


@dataclass(frozen=True)
class Made:
    """A document and its page."""

    shown: Document
    source: bytes
    page: Page


@pytest.fixture(
    scope="module",
    params=[(audience, index) for audience in AUDIENCES for index in range(len(KINDS))],
    ids=str,
)
def made(
    request: pytest.FixtureRequest, run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    audience, index = request.param
    run = run_builder(tmp_path_factory.mktemp("page") / "run", **KINDS[index])
    shown = document(build(run, audience))
    source = html.typeset(shown)
    return Made(shown, source, Page(source))


@pytest.mark.sampled(5)
def test_the_page_is_whole_and_asks_for_nothing(made: Made) -> None:
    source, page = made.source, made.page
    assert page.faults == []
    assert page.open == []
    tags = {tag for tag, _, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "audio"}
    for _, attributes, _ in page.elements:
        assert not {name for name in attributes if name.startswith("on")}
        for name in ("href", "xlink:href", "src"):
            assert (attributes.get(name) or "#").startswith("#")
    assert re.findall(rb"(?<!xmlns=\")(?<!xlink=\")https?://", source) == []
    assert re.findall(rb"@import|url\((?!#)", source) == []
    policy = next(m for m in page.named("meta") if m.get("http-equiv"))["content"] or ""
    assert policy.startswith("default-src 'none'")
    assert "script" not in policy


@pytest.mark.sampled(5)
def test_the_page_is_built_so_that_machines_can_read_it_out(made: Made) -> None:
    page = made.page
    assert page.named("html")[0]["lang"] == "en-GB"
    assert (
        len(page.named("h1"))
        == len(page.named("main"))
        == len(page.named("title")) - len(page.named("svg"))
    )
    names = [attributes["id"] for _, attributes, _ in page.elements if attributes.get("id")]
    assert len(names) == len(set(names))
    for link in [*page.named("a"), *page.named("use")]:
        assert (link.get("href") or "")[1:] in names
    for _, attributes, _ in page.elements:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(names)
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert len(page.named("table")) == len(page.named("caption"))
    assert all(cell.get("scope") == "col" for cell in page.named("th"))
    for attributes in page.named("svg"):
        assert attributes["role"] == "img"
    for attributes in [a for _, a, _ in page.elements if a.get("role") == "region"]:
        assert attributes["aria-label"]
        assert attributes["tabindex"] == "0"
    assert not [a for _, a, _ in page.elements if int(a.get("tabindex") or 0) > 0]


@pytest.mark.sampled(5)
def test_the_page_says_everything_that_the_document_says(made: Made) -> None:
    page = made.page.text
    for text in shown_texts(made.shown):
        for part in text.split("\n"):
            assert squeezed(part) in page, part


@pytest.mark.sampled(5)
def test_the_scale_is_a_picture_with_its_values_as_text(made: Made) -> None:
    scales = [block for section in made.shown.front for block in section.blocks
              if block["kind"] == "scale"]  # fmt: skip
    labels = [a["aria-label"] for _, a, _ in made.page.elements if a.get("class") == "scale"]
    assert labels == [scale["alt"] for scale in scales]
    for scale in scales:
        assert scale["here"][0].removeprefix("this run: ε = ") in scale["alt"]
        assert "2 to 16" in scale["alt"]


@pytest.mark.sampled(3)
@POPPLER
@pytest.mark.parametrize("options", [{}, {"verdict": "FAIL", "randomness": "reproducible"}])
@pytest.mark.parametrize("audience", AUDIENCES)
def test_the_pdf_says_everything_that_the_page_says(
    make_run: MakeRun, tmp_path: Path, options: dict[str, Any], audience: str
) -> None:
    """Words are compared one by one: in columns, poppler tells lines in another order."""
    report = data_of(make_run(**options), audience)
    target = tmp_path / "twin.pdf"
    target.write_bytes(pdf.typeset(document(report_of(report))))
    done = subprocess.run(["pdftotext", str(target), "-"], capture_output=True, check=True)
    page = squeezed(done.stdout.decode("utf-8"))
    for text in shown_texts(document(report_of(report))):
        for word in text.split():
            assert squeezed(word) in page, word


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is drawn, for a test that looks at other things."""
    monkeypatch.setattr(parts, "draw", drawings.nothing)


@pytest.mark.usefixtures("undrawn")
def test_a_failure_is_the_first_thing_on_the_page(make_run: MakeRun) -> None:
    page = Page(html.typeset(document(build(make_run(verdict="FAIL")))))
    shown = squeezed("".join(page.texts)).removeprefix(squeezed("Skip to the content"))
    assert shown.startswith("✗FAIL")


def bands_of(page: Page) -> list[str]:
    """The classes of each verdict that is shown as the first thing."""
    classes = (attributes.get("class") or "" for _, attributes, _ in page.elements)
    return [one for one in classes if re.match("band (alarm|calm)", one)]


@pytest.mark.usefixtures("undrawn")
def test_the_verdict_has_the_colour_of_its_meaning_and_its_warning_first(
    make_run: MakeRun,
) -> None:
    # What follows the first pages makes no difference, and takes the time.
    shown = replace(document(build(make_run())), sections=(), pictures={})
    css = html.typeset(shown).decode("utf-8").partition("</style>")[0]
    warning = "No meaningful protection"
    for value, warned, alarming, classes in (
        ("PASS", "", False, "band calm is-pass"),
        ("PASS", warning, True, "band alarm is-unprotected"),
        ("FAIL", "", True, "band alarm is-fail"),
        ("FAIL", warning, True, "band alarm is-fail"),
        ("NOT VERIFIED", "", True, "band alarm is-not-verified"),
        ("NOT VERIFIED", warning, True, "band alarm is-unprotected"),
        ("NOT AUDITED", "", True, "band alarm is-not-audited"),
        ("NO CLAIM", "", False, "band calm is-no-claim"),
    ):
        level = "level 2 of 4" if value == "PASS" else ""
        verdict = Band(value, "What it means.", alarming, level, warning=warned)
        source = html.typeset(replace(shown, band=verdict))
        page = Page(source)
        assert bands_of(page) == [classes]
        assert all(f".{name}" in css for name in classes.split())
        texts = squeezed("".join(page.texts)).removeprefix(squeezed("Skip to the content"))
        said = [text for text in (warned, value, level, "What it means.") if text]
        order = [texts.index(squeezed(text)) for text in said]
        assert order == sorted(order), value
        # What alarms is read before the title of the report.
        assert (order[0] < texts.index(squeezed(shown.title))) == alarming
        assert ("reserved" in str(page.named("body"))) == verdict.reserved
    assert bands_of(Page(html.typeset(replace(shown, band=None)))) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_the_run_are_never_markup(make_run: MakeRun, text: str) -> None:
    report = data_of(make_run())
    # One figure stands for all: drawing them is what takes the time.
    del report["figures"][1:]
    plain = Page(html.typeset(document(report_of(report))))
    shown = clean(text)
    report["identity"].update(name=shown, description=shown, run=shown)
    report["governance"][0]["text"] = shown
    report["audit"]["checks"][1].update(title=shown, measurement=shown)
    report["audit"]["second_moment"]["blocks"][0]["name"] = shown
    report["mechanism"]["settings"][0]["value"] = shown
    report["qualifications"] = [shown]
    report["figures"][0].update(title=shown, caption=shown, alternative_text=shown)
    page = Page(html.typeset(document(report_of(report))))
    assert page.faults == []
    assert {tag for tag, _, _ in page.elements} == {tag for tag, _, _ in plain.elements}
    assert squeezed(shown) in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_anew")
def test_same_run_same_bytes(make_run: MakeRun) -> None:
    report = data_of(make_run())
    assert html.typeset(document(report_of(report))) == html.typeset(document(report_of(report)))


def test_each_figure_has_its_numbers_beside_it(make_run: MakeRun) -> None:
    report = data_of(make_run())
    page = Page(html.typeset(document(report_of(report))))
    assert len(page.named("figure")) == len(page.named("details")) == len(report["figures"])
    shown = document(report_of(report))
    for entry in report["figures"]:
        picture = shown.pictures[entry["identifier"]]
        assert picture.data.decode().count("\n") == 1 + len(picture.rows) + picture.omitted


def test_the_public_page_names_no_client(make_run: MakeRun) -> None:
    files = build_report(make_run(), "public")
    assert files.html.name == "report-public.html"
    page = files.html.read_text("utf-8")
    assert not re.search(r"client\s*\d|took part \d", page, re.IGNORECASE)
    assert "Server, as it happened" not in page
    assert json.loads(files.json.read_text())["sampling"]["participations"] == []


@pytest.mark.usefixtures("undrawn")
def test_a_long_reason_is_cut_on_the_first_page_and_whole_in_its_section(
    make_run: MakeRun,
) -> None:
    report = data_of(make_run(verdict="FAIL"))
    reason = "model.bin: " + "is not what it was; " * 40
    report["verdict"]["failed"][0]["why"] = reason
    report["audit"]["checks"][2]["measurement"] = reason
    shown = document(report_of(report))
    first = json.dumps([section.blocks for section in shown.front], ensure_ascii=False)
    assert "… (section 11)" in first
    assert reason not in first
    # A file's name keeps its small letter.
    assert "model.bin: is" in first
    assert reason in json.dumps([section.blocks for section in shown.sections])


@pytest.mark.usefixtures("undrawn")
def test_the_public_page_never_cuts_a_reason_and_shows_each(make_run: MakeRun) -> None:
    """Nothing else in the public report has it in full."""
    report = data_of(make_run(verdict="FAIL"), PUBLIC)
    reason = "model.bin: " + "is not what it was; " * 40
    report["verdict"]["failed"] = [{"title": f"Check {n}", "why": reason} for n in range(9)]
    shown = document(report_of(report))
    first = json.dumps([section.blocks for section in shown.front], ensure_ascii=False)
    assert first.count(reason) == 9
    assert "…" not in first


def plain_document(**changes: Any) -> Document:
    """A document of few words, made by hand."""
    parts: dict[str, Any] = {
        "title": "A & B", "label": "Report", "audience": "For all", "description": "In <short>",
        "keywords": ("one", "two"), "identifier": "run-1", "created": "", "date": "Some day",
        "paper": "a4", "band": None, "qualifications": (), "introduction": "", "claim": None,
        "front": (), "summary": (), "glance": (), "sections": (), "pictures": {},
        "footer": "The end", "attachment": "x.json", "data": b"{}",
    }  # fmt: skip
    return Document(**{**parts, **changes})


PICTURE = Picture(
    "loss", "Loss over rounds", "What to <see>.", "It falls.", ("round", "loss"),
    (("0", "1.5"), ("1", "<2>")), 7,
    b'<?xml version="1.0"?><svg width="1" viewBox="0 0 9 5"><metadata>secret</metadata>'
    b'<defs><style type="text/css">*{stroke:red}</style></defs>'
    b'<path id="p"/><use xlink:href="#p"/><use href="#p" clip-path="url(#p)"/></svg>',
)  # fmt: skip


def shown_as(block: Any, **changes: Any) -> str:
    return html.blocks(plain_document(**changes), (block,))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (blocks.paragraph("a\n\nb < c"), "<div><p>a</p><p>b &lt; c</p></div>"),
        (
            blocks.paragraph(
                ["a ", blocks.strong("b"), blocks.code("c>"), blocks.code("")], "small"
            ),
            '<div class="small"><p>a <strong>b</strong><code>c&gt;</code></p></div>',
        ),
        ({**blocks.subheading("Below"), "language": "en"}, '<div lang="en"><h3>Below</h3></div>'),
        (blocks.note("n", "FAIL"), '<p class="note is-fail">n</p>'),
        (
            blocks.note("n", "NOT VERIFIED", loud=True),
            '<p class="note loud is-not-verified">n</p>',
        ),
        (blocks.bullets(["a", [blocks.strong("b")]]),
         "<ul><li>a</li><li><strong>b</strong></li></ul>"),
        (blocks.bullets(["a"], ordered=True), "<ol><li>a</li></ol>"),
        (
            blocks.titled([("T", "x & y"), ("U", "z")]),
            "<p><strong>T.</strong> x &amp; y</p><p><strong>U.</strong> z</p>",
        ),
        (
            blocks.settings("S", [("n", "v"), ("m", [blocks.code("w")])]),
            '<dl class="settings"><div><dt>n</dt><dd>v</dd></div>'
            "<div><dt>m</dt><dd><code>w</code></dd></div></dl>",
        ),
        (
            blocks.tree(
                "T", {"text": "a", "of": [{"text": "b<", "of": []}, {"text": "c", "of": []}]}
            ),
            '<h4>T</h4><ul class="tree"><li>a<ul><li>b&lt;</li><li>c</li></ul></li></ul>',
        ),
        (
            blocks.fields([("L", "x\ny")]),
            '<div class="field"><h3>L</h3><p>x</p><p>y</p></div>',
        ),
        (
            blocks.blank(["L&M"]),
            '<div class="field"><h3>L&amp;M</h3><p class="blank"></p></div>',
        ),
        (
            blocks.check_list(
                [{"title": "C?", "severity": "critical", "verdict": "PASS", "parts": [("p", "<t")]}]
            ),
            '<article class="check"><h3>C? <span class="severity">critical</span> '
            '<span class="badge is-pass"><span aria-hidden="true">✓</span> PASS</span></h3>'
            '<dl class="settings"><div><dt>p</dt><dd>&lt;t</dd></div></dl></article>',
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_each_kind_of_block_is_shown_with_all_its_texts(block: Any, expected: str) -> None:
    assert shown_as(block) == expected


def test_a_block_that_no_page_can_show_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no such block: tableau"):
        shown_as({"kind": "tableau"})


@pytest.mark.parametrize(
    ("columns", "widths", "small", "kinds"),
    [
        (3, None, False, ""),
        (4, None, False, "wide"),
        (4, (0, 1, 0, 0), False, ""),
        (4, (1, 1, 0, 0), True, "wide dense"),
        (5, (0, 1, 0, 0, 0), False, "wide"),
        (2, None, True, "dense"),
    ],
)
def test_a_table_names_its_columns_and_is_set_cell_below_cell_where_it_is_wide(
    columns: int, widths: Any, small: bool, kinds: str
) -> None:
    head = [f"h{n}<" for n in range(columns)]
    rows = [[f"c{n}" for n in range(columns)]]
    align = ["left", *["right"] * (columns - 1)]
    given = blocks.table("What & how", head, rows, align, widths, small=small)
    top = "".join(f'<th class="{side}" scope="col">h{n}&lt;</th>' for n, side in enumerate(align))
    body = "".join(
        f'<td class="{side}" data-name="h{n}&lt;">c{n}</td>' for n, side in enumerate(align)
    )
    assert shown_as(given) == (
        '<div class="scroll" role="region" tabindex="0" aria-label="What &amp; how">'
        f'<table class="{kinds}"><caption class="hidden">What &amp; how</caption>'
        f"<thead><tr>{top}</tr></thead><tbody><tr>{body}</tr></tbody></table></div>"
    )


def test_a_drawing_stands_in_the_page_by_names_of_its_own_and_with_its_numbers() -> None:
    other = replace(PICTURE, identifier="other", omitted=0)
    given = plain_document(pictures={"other": other, "loss": PICTURE})
    shown = html.blocks(given, (blocks.figure("loss"),))
    drawing = shown[shown.index("<svg") : shown.index("</svg>")]
    assert drawing.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 5" ')
    assert drawing.endswith(
        '<title id="loss-title">Loss over rounds</title><desc id="loss-desc">It falls.</desc>'
        '<path id="loss-p"/><use href="#loss-p"/><use href="#loss-p" clip-path="url(#loss-p)"/>'
    )
    assert 'aria-labelledby="loss-title loss-desc"' in drawing
    assert shown.startswith('<figure id="figure-loss">')
    assert 'aria-label="Figure 2: Loss over rounds"' in shown
    assert (
        "<figcaption>Figure 2. <strong>Loss over rounds.</strong> What to &lt;see&gt;."
        "</figcaption><details><summary>Numbers of figure 2</summary>"
    ) in shown
    assert '<td class="left" data-name="loss">&lt;2&gt;</td>' in shown
    assert "<p>7 more rows are in this page&#x27;s data file.</p></details></figure>" in shown
    assert "more rows" not in html.blocks(given, (blocks.figure("other"),))


@pytest.mark.parametrize(
    ("at", "style"),
    [(0.25, "padding-left:25.00%;text-align:left"), (0.6, "padding-left:60.00%;text-align:left"),
     (0.75, "padding-right:25.00%;text-align:right")],
)  # fmt: skip
def test_a_scale_has_its_bands_ticks_and_marks_where_they_are(at: float, style: str) -> None:
    scale = blocks.scale(
        [("low", 0.25), ("high", 1.0)], [("1", 0.5)], [("known", 0.1, 0.4)], ("this", at), "So.",
        "All <of> it",
    )  # fmt: skip
    assert shown_as(scale) == (
        '<div class="scale" role="img" aria-label="All &lt;of&gt; it">'
        f'<div class="here" style="{style}"><b>this</b></div>'
        '<div class="bands"><span class="part-0" style="width:25.00%">low</span>'
        '<span class="part-1" style="width:75.00%">high</span>'
        f'<i style="left:{100 * at:.2f}%"></i></div>'
        '<div class="ticks"><span style="left:50.00%">1</span></div>'
        '<div class="known"><span style="margin-left:10.00%;width:30.00%"></span>'
        "<small>known</small></div></div><p>So.</p>"
    )


def test_a_whole_page_has_its_parts_in_their_order_and_nothing_of_what_is_empty() -> None:
    words = {word: word.upper() for word in WORDS} | {"PASS": "BESTANDEN"}
    shown = plain_document(
        band=Band("PASS", "It holds.", alarming=False, reserved=True),
        qualifications=("Mind <this>.",),
        introduction="An introduction.",
        subject=(("Model", [blocks.code("mlp")]),),
        claim=Claim("Head", "A promise.", (("ε", "1.01"),)),
        front=(Section("trust", "Trust", (blocks.paragraph("Whom?"),)),),
        summary=(("Spent", (blocks.bullets(["x"]),)),),
        glance=(("PASS", "Is it?"),),
        sections=(
            Section("one", "First & last", (blocks.paragraph("Text."),)),
            Section("two", "Second", ()),
        ),
        language="de",
        words=words,
    )
    source = html.typeset(shown).decode("utf-8")
    head, body = source.split("</head>\n")
    assert head.startswith('<!DOCTYPE html>\n<html lang="de-DE">\n<head>\n<meta charset="utf-8">')
    assert '<meta name="description" content="In &lt;short&gt;">' in head
    assert '<meta name="keywords" content="one, two">' in head
    assert "<title>Report: A &amp; B</title>" in head
    badge = '<span class="badge is-pass"><span aria-hidden="true">✓</span> BESTANDEN</span>'
    assert body.splitlines() == [
        '<body class="reserved">',
        '<a class="skip" href="#content">SKIP TO THE CONTENT</a>',
        "<header>",
        '<p class="label"><span>Report</span> <span>For all</span></p>',
        "<h1>A &amp; B</h1>",
        '<p class="when">RUN <code>run-1</code> · Some day</p>',
        '<div class="band calm is-pass"><strong><span aria-hidden="true">✓</span> BESTANDEN'
        "</strong> <span>It holds.</span></div>",
        '<div class="qualifications"><p><strong>QUALIFICATION.</strong> Mind &lt;this&gt;.</p>'
        "</div>",
        "</header>",
        '<nav aria-label="CONTENTS"><ol><li><a href="#one">First &amp; last</a></li>'
        '<li><a href="#two">Second</a></li></ol></nav>',
        '<main id="content">',
        '<div class="quote"><p>An introduction.</p></div>',
        '<dl class="settings subject"><div><dt>Model</dt><dd><code>mlp</code></dd></div></dl>',
        '<section class="claim" aria-label="THE GUARANTEE IN SHORT">',
        '<p class="headline">Head</p>',
        "<p>A promise.</p>",
        "<dl><div><dt>ε</dt><dd>1.01</dd></div></dl>",
        "</section>",
        '<section id="trust"><h2>Trust</h2><div><p>Whom?</p></div></section>',
        '<div class="summary"><section><h2>Spent</h2><ul><li>x</li></ul></section></div>',
        '<section><h2>THE AUDIT AT A GLANCE</h2><ul class="glance">'
        f"<li><span>Is it?</span> {badge}</li></ul></section>",
        '<section id="one" aria-labelledby="one-title">',
        '<h2 id="one-title"><span class="number">1</span> First &amp; last</h2>',
        "<div><p>Text.</p></div>",
        "</section>",
        '<section id="two" aria-labelledby="two-title">',
        '<h2 id="two-title"><span class="number">2</span> Second</h2>',
        "",
        "</section>",
        "</main>",
        "<footer><p><code>run-1</code> The end</p></footer>",
        "</body>",
        "</html>",
    ]
    bare = html.typeset(plain_document(identifier="")).decode("utf-8").split("</head>\n")[1]
    assert '<p class="when">Some day</p>\n</header>' in bare
    assert '<main id="content">\n</main>' in bare
    assert bare.startswith("<body>\n")
