"""The report as pages: deterministic, archivable, and deaf to markup in the run's own texts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typst

from reports import ReportError, ReportFiles, build_report
from reports.content import parts
from reports.content.parts import AUDIENCES, figure_texts
from reports.document import Document, Picture
from reports.figures import tell_apart, whole_ticks
from reports.files import clean as clean_text
from reports.render import pdf
from reports.render.pages import document
from tests.reports import drawings
from tests.reports.data import data_of, report_of

MakeRun = Any  # the builder that conftest gives
POPPLER = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler is not installed")
HOSTILE = {
    "markup": '#panic("no") *x* _y_ $z$ `c` <label> @cite \\ // = Heading',
    "import": '#import "@preview/x:1.0.0": *\n#read("/etc/passwd")',
    "long": "a" * 900,
    "japanese": "連合学習のための差分プライバシー" * 8,
    "arabic": "الخصوصية التفاضلية للتعلم الاتحادي " * 8,
    "mixed": "emoji 😀 \u202e override \u0000 null \ud800 surrogate \ue000 private",
    "regex": "ε = " + "9" * 200,
}


def text_of(path: Path) -> str:
    done = subprocess.run(
        ["pdftotext", "-layout", str(path), "-"], capture_output=True, check=True, timeout=60
    )
    return " ".join(done.stdout.decode("utf-8").split())


@pytest.mark.thorough
@pytest.mark.usefixtures("drawn_anew")
def test_same_run_same_pages(make_run: MakeRun) -> None:
    run = make_run()
    first = build_report(run)
    once = first.json.read_bytes(), first.pdf.read_bytes()
    second = build_report(run)
    assert (second.json.read_bytes(), second.pdf.read_bytes()) == once


@pytest.fixture(scope="module")
def filed(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    """The internal report of a usual run, to be read."""
    return build_report(run_builder(tmp_path_factory.mktemp("filed") / "run"))


def test_the_pages_are_archivable_tagged_and_carry_the_data(filed: ReportFiles) -> None:
    data = filed.pdf.read_bytes()
    for part in (
        b"<pdfaid:part>3</pdfaid:part>",
        b"<pdfaid:conformance>A</pdfaid:conformance>",
        b"<pdfuaid:part>1</pdfuaid:part>",
        b"/AFRelationship/Data",
        b"/StructTreeRoot",
        b"/Lang(en-GB)",
        b"2026-11-21T09:21:27Z",
    ):
        assert part in data


def test_the_pages_metadata_names_run_and_model(filed: ReportFiles) -> None:
    identity = json.loads(filed.json.read_text("utf-8"))["identity"]
    digest = {entry["file"]: entry["sha256"] for entry in identity["hashes"]}["model.safetensors"]
    data = filed.pdf.read_bytes()
    assert f"run {identity['run']}".encode() in data
    assert f"model sha256:{digest}".encode() in data


@POPPLER
@pytest.mark.skipif(shutil.which("pdfdetach") is None, reason="poppler is not installed")
def test_the_embedded_data_is_the_report(filed: ReportFiles, tmp_path: Path) -> None:
    target = tmp_path / "embedded.json"
    command = ["pdfdetach", "-savefile", "report.json", "-o", str(target), str(filed.pdf)]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert target.read_bytes() == filed.json.read_bytes()


@pytest.mark.sampled(9)
@pytest.mark.parametrize("audience", AUDIENCES)
@pytest.mark.parametrize(
    "options",
    [
        {"private": False},
        {"audit": False},
        {"verdict": "FAIL"},
        {"verdict": "NOT VERIFIED", "randomness": "reproducible"},
        {"clients": 1, "rounds": 1, "blocks": 1},
    ],
)
def test_every_kind_of_run_has_pages_that_come_to_rest(
    make_run: MakeRun, options: dict[str, Any], audience: str
) -> None:
    files = build_report(make_run(**options), audience)
    assert files.pdf.read_bytes().startswith(b"%PDF-1.7")
    assert files.pdf.name == ("report.pdf" if audience == "internal" else "report-public.pdf")


def test_a_warning_of_typst_is_an_error(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that never comes to rest has wrong numbers: "1 / 7" on each, and two figures 2."""
    compiled = typst.compile_with_warnings

    def with_a_warning(*paths: str, **options: Any) -> tuple[bytes, list[str]]:
        made, found = compiled(*paths, **options)
        assert found == []
        return made, ["layout did not converge within 5 attempts"]

    monkeypatch.setattr(pdf.typst, "compile_with_warnings", with_a_warning)
    with pytest.raises(ReportError, match=r"report\.pdf: layout did not converge"):
        build_report(make_run())


# What could be run as a program; the others are read with every font, which takes seconds.
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=[] if kind in ("markup", "import", "mixed") else [pytest.mark.slow]
        )
        for kind in HOSTILE
    ],
)
def test_texts_of_the_run_are_never_evaluated(make_run: MakeRun, kind: str) -> None:
    text = HOSTILE[kind]
    report = data_of(make_run())
    clean = clean_text(text)
    report["identity"]["name"] = clean
    report["identity"]["description"] = clean
    report["identity"]["run"] = clean
    report["governance"][0]["text"] = clean
    report["audit"]["checks"][1].update(title=clean, measurement=clean)
    report["audit"]["second_moment"]["blocks"][0]["name"] = clean
    report["mechanism"]["settings"][0]["value"] = clean
    report["qualifications"] = [clean]
    assert pdf.typeset(document(report_of(report))).startswith(b"%PDF-1.7")


@POPPLER
def test_markup_is_shown_as_it_was_written(make_run: MakeRun) -> None:
    given = {"description": HOSTILE["markup"]}
    shown = text_of(build_report(make_run(spec_extra=given)).pdf)
    assert HOSTILE["markup"] in shown


@POPPLER
def test_a_failure_is_the_first_thing_on_the_page(make_run: MakeRun) -> None:
    assert text_of(build_report(make_run(verdict="FAIL")).pdf).startswith("✗ FAIL")


@POPPLER
def test_the_public_pages_name_no_client(make_run: MakeRun) -> None:
    shown = text_of(build_report(make_run(), "public").pdf)
    assert "Client 3" not in shown
    assert "ε (privacy loss), against a third party" in shown
    assert "Server, as it happened" not in shown


@POPPLER
def test_a_run_without_privacy_shows_no_loss(make_run: MakeRun) -> None:
    shown = text_of(build_report(make_run(private=False)).pdf)
    assert "No differential privacy" in shown
    assert "ε =" not in shown


@pytest.mark.thorough
@pytest.mark.usefixtures("drawn_anew")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("clients", "blocks"), [(50, 60), (500, 200)])
def test_a_large_run_is_set_quickly_and_stays_small(
    make_run: MakeRun, clients: int, blocks: int
) -> None:
    run = make_run(clients=clients, rounds=100, blocks=blocks)
    started = time.monotonic()
    files = build_report(run)
    # Takes about one second; five are promised on a machine that does nothing else.
    assert time.monotonic() - started < 15
    assert files.pdf.stat().st_size < 1_000_000
    assert files.html.stat().st_size < 1_000_000
    assert len(json.loads(files.json.read_text("utf-8"))["clients"]["rows"]) == clients


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_anew")
def test_figures_are_the_same_every_time_and_have_words(make_run: MakeRun) -> None:
    report = data_of(make_run())
    names = [text.identifier for text in figure_texts(report_of(report))]
    assert names == [
        "client-sampling",
        "epsilon-over-rounds",
        "privacy-profile",
        "epsilon-per-client",
        "noise-quantiles",
        "bias-shift",
        "accuracy-over-rounds",
        "accuracy-against-epsilon",
        "accuracy-by-class",
    ]
    for text in figure_texts(report_of(report)):
        assert len(text.alternative_text) > 40
        drawing = parts.draw(report_of(report), text.identifier)
        assert drawing == parts.draw(report_of(report), text.identifier)
        assert b"<text" in drawing


def test_a_figure_of_one_bar_is_a_sentence(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other figures need not be drawn for it.
    monkeypatch.setattr(parts, "draw", drawings.nothing)
    report = data_of(make_run())
    moment = report["audit"]["second_moment"]
    moment["blocks"] = [
        {"name": "head", "size": 10, "predicted": 2.0, "released": 2.1, "half_width": 0.02}
    ]
    names = [text.identifier for text in figure_texts(report_of(report))]
    assert "bias-shift" not in names
    shown = json.dumps(document(report_of(report)).sections, default=str, ensure_ascii=False)
    assert "The released mean is 5 % above the noise’s share." in shown
    assert "Noise alone would end within 1 % of it" in shown
    moment["blocks"][0]["released"] = 1.9
    low = json.dumps(document(report_of(report)).sections, default=str, ensure_ascii=False)
    assert "5 % below the noise’s share" in low
    assert "less noise than was charged" in low


def test_clients_that_are_all_alike_are_not_drawn_as_one_point(make_run: MakeRun) -> None:
    report = data_of(make_run())
    rows = report["clients"]["rows"]
    for row in rows:
        row |= {"records": 100, "epsilon": rows[0]["epsilon"]}
    names = [text.identifier for text in figure_texts(report_of(report))]
    assert "epsilon-per-client" not in names


def test_an_axis_of_rounds_ends_at_the_last_round_and_names_it() -> None:
    assert whole_ticks(0, 20) == [0, 5, 10, 15, 20]
    assert whole_ticks(0, 21) == [0, 5, 10, 15, 21]
    assert whole_ticks(1, 301)[-1] == 301
    assert whole_ticks(1, 1) == [1]


def test_where_both_views_agree_both_lines_can_be_seen() -> None:
    server, third = (tell_apart(place, 2, 40) for place in range(2))
    assert server["linewidth"] > third["linewidth"]
    marked = [set(range(*slice(start, None, step).indices(40))) for start, step in
              (line["markevery"] for line in (server, third))]  # fmt: skip
    assert not marked[0] & marked[1]


@POPPLER
def test_every_figure_stands_in_its_own_section(make_run: MakeRun, tmp_path: Path) -> None:
    report = report_of(data_of(make_run()))
    shown = document(report)
    (tmp_path / "r.pdf").write_bytes(pdf.typeset(shown))
    command = ["pdftotext", "-raw", str(tmp_path / "r.pdf"), "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    text = " ".join(done.stdout.decode("utf-8").split())
    place = 0
    for section in shown.sections:
        # Titles of sections occur in sentences as well; a heading has its number.
        number = 1 + list(shown.sections).index(section)
        start = text.index(f"{number} {section.title}", place)
        after = list(shown.sections)[number : number + 1]
        end = text.index(f"{number + 1} {after[0].title}", start) if after else len(text)
        for block in section.blocks:
            if block["kind"] == "figure":
                title = shown.pictures[block["identifier"]].title
                assert start < text.index(f"{title}.") < end, title
        place = start


def test_the_public_figures_leave_out_participation(make_run: MakeRun) -> None:
    report = data_of(make_run(), "public")
    names = [text.identifier for text in figure_texts(report_of(report))]
    assert names == [
        "epsilon-over-rounds",
        "bias-shift",
        "accuracy-over-rounds",
        "accuracy-against-epsilon",
        "accuracy-by-class",
    ]
    assert b"against the server" not in parts.draw(report_of(report), "epsilon-over-rounds")


def test_a_run_without_privacy_has_no_privacy_figures(make_run: MakeRun) -> None:
    report = data_of(make_run(private=False))
    names = [text.identifier for text in figure_texts(report_of(report))]
    assert names == ["client-sampling", "accuracy-over-rounds", "accuracy-by-class"]


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", [1e308, 5e-324, -1e308])
def test_absurd_numbers_give_a_page_or_one_clear_line(make_run: MakeRun, value: float) -> None:
    report = data_of(make_run())
    report["utility"]["rounds"][1]["test_accuracy"] = value
    for row in report["audit"]["second_moment"]["blocks"]:
        row["predicted"] = abs(value)
    report["accounting"]["profile"][3] = [abs(value), abs(value)]
    report["clients"]["rows"][0]["epsilon"]["pld"] = abs(value)
    with contextlib.suppress(ReportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pdf.typeset(document(report_of(report)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "created", ["", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1900-01-01"]
)
def test_a_date_that_cannot_be_read_is_not_invented(make_run: MakeRun, created: str) -> None:
    report = data_of(make_run())
    report["identity"]["created"] = created
    assert pdf.typeset(document(report_of(report))) == pdf.typeset(document(report_of(report)))


def test_an_existing_report_survives_a_failure(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    files = build_report(run)
    before = files.pdf.read_bytes()

    def fail(*_: object, **__: object) -> bytes:
        raise ReportError("cannot")

    monkeypatch.setattr(pdf, "_compile", fail)
    with pytest.raises(ReportError):
        build_report(run)
    assert files.pdf.read_bytes() == before
    assert not list(run.glob("*.tmp")) + list(run.glob(".*.tmp"))


def two_figures(created: str) -> Document:
    """A document made by hand; the numbers of one of its figures are in a file of their own."""
    first = Picture("loss", "Loss", "C", "A", ("h",), (("1",),), 0, b"<svg>1</svg>", b"h\n1\n")
    second = dataclasses.replace(first, identifier="bare", drawing=b"<svg>2</svg>", data=b"")
    return Document(
        title="T", label="L", audience="all", description="D", keywords=("k",), identifier="run",
        created=created, date="day", paper="letter", band=None, qualifications=(),
        introduction="", claim=None, front=(), summary=(), glance=(), sections=(),
        pictures={"loss": first, "bare": second}, footer="F", attachment="x.json", data=b'{"a":1}',
    )  # fmt: skip


@pytest.mark.parametrize(
    ("created", "moment"),
    [
        ("2026-11-21T10:21:27+01:00", [2026, 11, 21, 9, 21, 27]),
        ("soon", [1970, 1, 1, 0, 0, 0]),
    ],
)
def test_the_template_is_given_the_documents_texts_figures_and_files_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, created: str, moment: list[int]
) -> None:
    given: dict[str, bytes] = {}

    def compiled(folder: Path, at: datetime) -> bytes:
        given.update({path.name: path.read_bytes() for path in folder.iterdir()})
        assert [*at.timetuple()[:6]] == moment
        assert at.tzinfo is UTC
        return b"made"

    monkeypatch.setattr(pdf, "_compile", compiled)
    shown = two_figures(created)
    assert pdf.typeset(shown) == b"made"
    page = json.loads(given.pop("page.json"))
    assert given.pop("report.typ")
    assert given == {
        "x.json": b'{"a":1}', "loss.svg": b"<svg>1</svg>", "table-loss.csv": b"h\n1\n",
        "bare.svg": b"<svg>2</svg>",
    }  # fmt: skip
    assert page.pop("moment") == moment
    assert page.pop("files") == [
        ["x.json", "application/json", "This document as data", "data"],
        ["table-loss.csv", "text/csv", "Numbers of the figure: Loss", "supplement"],
    ]
    assert page == json.loads(json.dumps(shown.as_dict()))


@pytest.mark.parametrize(
    ("missing", "tried"),
    [
        (0, [(1, True)]),
        (1, [(1, True), (1, False)]),
        (2, [(1, True), (1, False), (2, True)]),
        (3, [(1, True), (1, False), (2, True)]),
    ],
)
def test_other_typefaces_are_looked_for_only_as_far_as_a_letter_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: int, tried: list[tuple[int, bool]]
) -> None:
    """First those that travel along, then the system's, and last the placeholders."""
    found: list[tuple[int, bool]] = []

    def compiled(_: str, **how: Any) -> tuple[bytes, list[str]]:
        found.append((len(how["font_paths"]), how["ignore_system_fonts"]))
        assert how["pdf_standards"] == ["a-3a", "ua-1"]
        assert (how["format"], how["root"]) == ("pdf", str(tmp_path))
        if len(found) <= missing:
            raise typst.TypstError("the character could not be displayed")
        return b"made", []

    monkeypatch.setattr(pdf.typst, "compile_with_warnings", compiled)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    if missing == 3:
        with pytest.raises(ReportError, match=r"^report\.pdf: .*could not be displayed"):
            pdf._compile(tmp_path, moment)
    else:
        assert pdf._compile(tmp_path, moment) == b"made"
    assert found == tried
    assert sorted(path.name for path in tmp_path.iterdir()) == ["faces", "placeholder"]


def test_any_other_fault_of_the_page_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[str] = []

    def compiled(source: str, **_: Any) -> None:
        found.append(source)
        raise typst.TypstError("unknown variable: x")

    monkeypatch.setattr(pdf.typst, "compile_with_warnings", compiled)
    with pytest.raises(ReportError, match=r"^report\.pdf: .*unknown variable"):
        pdf._compile(tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
    assert found == [str(tmp_path / "report.typ")]
