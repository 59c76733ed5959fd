"""One report on several runs: the same groups, refusals and circles as the terminal's table."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from reports import ReportError, SourceError, build_report
from reports.content.build import check
from reports.extensions.comparison import compare, tables
from reports.extensions.comparison import report as comparison_report
from reports.extensions.comparison.pages import document
from reports.render import pdf
from reports.signatures import keyring, keys, signing
from tests.reports.extensions.comparison.test_comparison import compared, run_of
from tests.reports.signing_keys import create

MakeRun = Any  # the builder that conftest gives
POPPLER = pytest.mark.skipif(shutil.which("pdftotext") is None, reason="poppler is not installed")


@pytest.fixture
def runs(make_run: MakeRun, make_client_run: MakeRun) -> list[Path]:
    """Three claims that cannot be compared, none of them signed."""
    return [
        make_run("record"),
        make_client_run("client", identifier="2b3c4d5e", noise_added_by="clients"),
        make_run("plain", private=False, identifier="3c4d5e6f"),
    ]


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def page_text(path: Path) -> str:
    done = subprocess.run(["pdftotext", "-layout", str(path), "-"], capture_output=True, check=True)
    return " ".join(done.stdout.decode("utf-8").split())


@pytest.mark.parametrize("audience", ["internal", "public"])
def test_the_three_forms_are_written_and_fit_the_schema(
    runs: list[Path], tmp_path: Path, audience: str
) -> None:
    files = comparison_report.write(compare(runs, audience), tmp_path / "new" / "folder")
    stem = "comparison" if audience == "internal" else "comparison-public"
    assert sorted(path.name for path in files.values()) == [
        f"{stem}.html", f"{stem}.json", f"{stem}.pdf"
    ]  # fmt: skip
    folder = tmp_path / "new" / "folder"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *files.values())}
    # The internal one tells who took part how often, so it is for its owner alone.
    assert modes == ({0o700, 0o600} if audience == "internal" else {0o755, 0o644})
    check(read(files["json"]), "comparison")
    assert files["pdf"].read_bytes().startswith(b"%PDF-1.7")
    assert len(read(files["json"])["groups"]) == 3


def test_same_runs_same_bytes_in_any_order(runs: list[Path], tmp_path: Path) -> None:
    first = comparison_report.write(compare(runs), tmp_path / "a")
    second = comparison_report.write(compare(runs[::-1]), tmp_path / "b")
    for kind in comparison_report.KINDS:
        assert first[kind].read_bytes() == second[kind].read_bytes()


def test_claims_that_differ_are_not_ranked_and_it_is_said_why(
    runs: list[Path], tmp_path: Path
) -> None:
    found = compare(runs)
    page = comparison_report.write(found, tmp_path)["html"].read_text("utf-8")
    data = read(tmp_path / "comparison.json")
    assert len(data["not_ranked_together"]) == 2
    for refusal in found.refusals:
        assert refusal.sentence() in page
    assert "is not ranked with" in page
    ranks = [entry["rank"] for group in data["groups"] for entry in group["entries"]]
    assert ranks == [None] * 3
    assert all(
        "not signed" in entry["objection"] for group in data["groups"] for entry in group["entries"]
    )


def test_every_epsilon_stands_with_its_terms(runs: list[Path]) -> None:
    shown = document(compare(runs))
    groups = [section for section in shown.sections if section.identifier.startswith("group")]
    said = {section.title: json.dumps(section.blocks, ensure_ascii=False) for section in groups}
    private = {title: text for title, text in said.items() if "ε" in title}
    assert len(private) == 2
    for title, text in private.items():
        assert "against" in title
        for part in ("δ = ", "add-or-remove-one-", "holds only if"):
            assert part in text
    without = next(text for title, text in said.items() if "ε" not in title)
    assert "holds only if" not in without


def test_the_public_comparison_keeps_the_realised_loss(runs: list[Path], tmp_path: Path) -> None:
    internal = comparison_report.write(compare(runs), tmp_path)
    public = comparison_report.write(compare(runs, "public"), tmp_path)
    secret = next(
        view["epsilon"]
        for group in read(internal["json"])["groups"]
        for entry in group["entries"]
        for run in entry["runs"]
        if isinstance(run["privacy"], list)
        for view in run["privacy"]
        if view["key"] == "server"
    )
    assert str(secret) in internal["json"].read_text("utf-8")
    assert str(secret) not in public["json"].read_text("utf-8")
    assert "ε server" not in public["html"].read_text("utf-8")
    for group in read(public["json"])["groups"]:
        for entry in group["entries"]:
            for run in entry["runs"]:
                assert "ledger.jsonl" not in run["hashes"]
                assert "directory" not in run


@pytest.mark.parametrize("verdict", ["FAIL", "NOT VERIFIED"])
def test_a_bad_verdict_of_any_run_is_the_first_thing_seen(
    make_run: MakeRun, tmp_path: Path, verdict: str
) -> None:
    found = compare([make_run("a"), make_run("b", verdict=verdict, identifier="2b3c4d5e")])
    shown = document(found)
    assert shown.band is not None
    assert (shown.band.value, shown.band.alarming) == (verdict, True)
    assert "dp-fedadamw" in shown.band.statement
    page = comparison_report.write(found, tmp_path)["html"].read_text("utf-8")
    assert page.index(verdict) < page.index("<h1>")


def test_where_all_is_well_no_verdict_is_made_up(make_run: MakeRun) -> None:
    assert document(compare([make_run()])).band is None


@POPPLER
def test_the_pages_have_the_table_and_the_figure(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    build_report(run)
    trainer, auditor = (
        keyring.load_signing_key(role, create(role, tmp_path / "keys").private)
        for role in keys.ROLES
    )
    signing.sign(run, trainer=trainer)
    signing.sign(run, auditor=auditor)
    found = compare([run])
    files = comparison_report.write(found, tmp_path / "out")
    text = page_text(files["pdf"])
    for row in tables.rows_of(found.groups[0]):
        for cell in row.cells:
            assert cell.split()[0] in text
    shown = document(found)
    picture = shown.pictures["accuracy-and-privacy-1"]
    assert picture.drawing.startswith(b"<?xml")
    assert picture.rows[0][1] == "0"
    assert picture.rows[0][0].endswith("dp-fedadamw (1 run)")
    assert "Figure 1" in text


def texts_of_pages(pdf: Path) -> list[list[tuple[str, float, float, float, float]]]:
    """Each line of each page, with its box in shares of the page: left, top, right, bottom."""
    done = subprocess.run(
        ["pdftotext", "-bbox-layout", str(pdf), "-"], capture_output=True, check=True
    )
    html = "{http://www.w3.org/1999/xhtml}"
    pages = []
    for page in ElementTree.fromstring(done.stdout).iter(f"{html}page"):
        width, height = float(page.get("width", "")), float(page.get("height", ""))
        pages.append(
            [
                (
                    " ".join(word.text or "" for word in line.iter(f"{html}word")),
                    float(line.get("xMin", "")) / width,
                    float(line.get("yMin", "")) / height,
                    float(line.get("xMax", "")) / width,
                    float(line.get("yMax", "")) / height,
                )
                for line in page.iter(f"{html}line")
            ]
        )
    return pages


# Shares of an A4 page: its margins are 22 mm at the sides, 18 mm above and 22 mm below.
LEFT_EDGE, RIGHT_EDGE, TOP, FOOT = 22 / 210, 188 / 210, 18 / 297, 275 / 297


@POPPLER
def test_every_family_has_a_figure_that_lies_whole_within_its_page(tmp_path: Path) -> None:
    # The last family has more curves than one figure shows.
    crowd = [run_of(algorithm=f"rule-{number}") for number in range(20)]
    families = [
        run_of(unit="client", third=2.0), run_of(unit="none"),
        run_of(seed=1, data_settings={"seed": 3}), run_of(data_settings={"seed": 4}), *crowd,
    ]  # fmt: skip
    for run in families:
        run.source.header["created"] = "2026-11-21T00:00:00Z"
    shown = document(compared(*families))
    assert len(shown.pictures) == 6
    (tmp_path / "c.pdf").write_bytes(pdf.typeset(shown))
    found = 0
    for lines in texts_of_pages(tmp_path / "c.pdf"):
        captions = [line for line in lines if re.match(r"Figure \d+\.", line[0])]
        above = TOP
        for _, _, top, _, bottom in sorted(captions, key=lambda line: line[2]):
            inside = [line for line in lines if above <= line[2] and line[4] <= top + 0.001]
            # Its first line, its axis and the last line of its legend are there.
            said = " ".join(line[0] for line in inside)
            assert "clients; dirichlet (alpha" in said
            assert "rounds completed" in said
            assert "(1 run)" in said
            found += 1
            above = bottom
        for text, left, top, right, bottom in lines:
            assert left > LEFT_EDGE - 0.01, text
            assert right < RIGHT_EDGE + 0.01, text
            assert top > TOP - 0.01, text
            assert bottom < FOOT or top > FOOT, text
    assert found == len(shown.pictures)


@POPPLER
def test_a_figure_that_is_taller_than_its_page_is_set_smaller_and_not_cropped(
    tmp_path: Path,
) -> None:
    shown = document(compared(run_of()))
    (name, picture), *_ = shown.pictures.items()
    tall = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="500" height="2000" '
        'viewBox="0 0 500 2000"><text x="9" y="30" font-size="30">the top</text>'
        '<text x="9" y="1990" font-size="30">the foot</text></svg>'
    )
    changed = replace(shown, pictures={name: replace(picture, drawing=tall.encode())})
    (tmp_path / "c.pdf").write_bytes(pdf.typeset(changed))
    boxes = {line[0]: line[1:] for page in texts_of_pages(tmp_path / "c.pdf") for line in page}
    assert boxes["the top"][1] > TOP - 0.01
    assert boxes["the foot"][3] < FOOT


def test_a_broken_directory_leaves_nothing_half_written(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nowhere"):
        comparison_report.write(compare([make_run(), tmp_path / "nowhere"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_clear_line(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be made") as caught:
        comparison_report.write(compare([make_run()]), tmp_path / "file" / "out")
    assert "\n" not in str(caught.value)


def test_data_that_do_not_fit_the_schema_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compared(run_of())
    shown = replace(document(found), data=b"{}")
    monkeypatch.setattr(comparison_report, "document", lambda *given: shown)
    for form in ("pdf", "html"):
        monkeypatch.setattr(getattr(comparison_report, form), "typeset", lambda given: b"")
    with pytest.raises(ReportError):
        comparison_report.write(found, tmp_path / "out")
    assert not (tmp_path / "out").exists()
