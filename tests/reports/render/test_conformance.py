"""The PDF against what PDF/A-3a and PDF/UA-1 ask of its objects, read by another library.

No validator of either standard comes from a package registry, so these are the rules that can be
read off the objects: structure, metadata, colour, typefaces, attachments, and what is forbidden.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports import build_report
from reports.render import sign_off
from reports.signatures import pades
from tests.reports.data import write_comparison
from tests.reports.signing_keys import fresh

pikepdf = pytest.importorskip("pikepdf", reason="pikepdf is not installed")

MakeRun = Any  # the builder that conftest gives
# In this order, as the quick suite takes each fourth case: public, signed, compared.
KINDS: dict[str, dict[str, Any]] = {
    "failed": {"verdict": "FAIL"},
    "no privacy": {"private": False},
    "japanese": {"name": "連合学習のための差分プライバシー"},
    "signed": {},
    "good": {},
    "large": {"clients": 120, "rounds": 40, "blocks": 90},
    "french": {"spec_extra": {"report": {"language": "fr"}}},
    "compared": {},
    "signed off": {"spec_extra": {"report": {"purpose": "Reading."}}},
}


_DATA = {"compared": "comparison.json", "signed off": "sign-off.json"}
_TITLES = {
    "report.json": ("guarantee", "verify"),
    "comparison.json": ("group a", "verify"),
    "sign-off.json": ("signed off", "decision"),
}
_IN_FRENCH = ("garantie", "vérifier")
CASES = [("public", "good"), *(("internal", kind) for kind in KINDS)]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def opened(
    request: pytest.FixtureRequest, run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    audience, kind = request.param
    if kind == "french":
        pytest.importorskip("reports.extensions.languages")
    run = run_builder(tmp_path_factory.mktemp("conformance") / "run", **KINDS[kind])
    if kind == "signed off":
        build_report(run)
        path = run.parent / "annex.pdf"
        decision = sign_off.Decision("Approved.", "A. Person", "2026-11-22")
        sign_off.write(run, path, decision=decision, key=fresh("auditor"))
    elif kind == "compared":
        found = write_comparison([run], run.parent / "out", key=fresh("auditor"))
        path = found["pdf"]
    else:
        path = build_report(run, audience).pdf
    if kind == "signed":
        # The signature stands behind the file, and every rule must hold with it too.
        key = fresh("auditor")
        path.write_bytes(pades.sign(path.read_bytes(), key, path.name))
    with pikepdf.open(path) as document:
        document.source = path
        document.data = _DATA.get(kind, "report.json")
        document.language = "fr-FR" if kind == "french" else "en-GB"
        yield document


def elements(node: Any) -> Iterator[Any]:
    """All structure elements below a node, the node among them."""
    if isinstance(node, pikepdf.Array):
        for inner in node:
            yield from elements(inner)
    elif isinstance(node, pikepdf.Dictionary) and "/S" in node:
        yield node
        yield from elements(node.get("/K", pikepdf.Array()))
    elif isinstance(node, pikepdf.Dictionary):
        yield from elements(node.get("/K", pikepdf.Array()))


def streams(document: Any) -> Iterator[Any]:
    for entry in document.objects:
        if isinstance(entry, pikepdf.Dictionary | pikepdf.Stream):
            yield entry


@pytest.mark.sampled(4)
def test_it_is_tagged_named_and_in_a_language(opened: Any) -> None:
    root = opened.Root
    assert root.MarkInfo.Marked
    assert str(root.Lang) == opened.language
    assert root.ViewerPreferences.DisplayDocTitle
    assert "/StructTreeRoot" in root
    for page in opened.pages:
        assert page.obj.Tabs == "/S"
        assert "/StructParents" in page.obj


@pytest.mark.sampled(4)
def test_its_metadata_claims_both_standards(opened: Any) -> None:
    with opened.open_metadata() as metadata:
        assert metadata["pdfaid:part"] == "3"
        assert metadata["pdfaid:conformance"] == "A"
        assert metadata["pdfuaid:part"] == "1"
        assert metadata["dc:title"]
    assert "/Filter" not in opened.Root.Metadata


@pytest.mark.sampled(4)
def test_colours_have_a_meaning(opened: Any) -> None:
    intents = list(opened.Root.OutputIntents)
    assert [str(intent.S) for intent in intents] == ["/GTS_PDFA1"]
    assert intents[0].DestOutputProfile.read_bytes()[36:40] == b"acsp"


@pytest.mark.sampled(4)
def test_every_figure_has_a_text_in_its_place(opened: Any) -> None:
    found = list(elements(opened.Root.StructTreeRoot))
    pictures = [element for element in found if element.S == "/Figure"]
    # A comparison without a ranked run draws nothing.
    assert bool(pictures) == (opened.data == "report.json")
    for element in pictures:
        assert len(str(element.Alt)) > 40


@pytest.mark.sampled(4)
def test_headings_tables_and_lists_are_what_they_look_like(opened: Any) -> None:
    kinds = [str(element.S) for element in elements(opened.Root.StructTreeRoot)]
    levels = [int(kind[2:]) for kind in kinds if re.fullmatch(r"/H[1-6]", kind)]
    assert levels
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert kinds.count("/Table") > 0
    assert kinds.count("/TH") > 0
    assert kinds.count("/L") > 0
    for element in elements(opened.Root.StructTreeRoot):
        if element.S == "/TH":
            attributes = element.get("/A", pikepdf.Array())
            rows = list(attributes) if isinstance(attributes, pikepdf.Array) else [attributes]
            assert any("/Scope" in row for row in rows)


@pytest.mark.sampled(4)
def test_all_typefaces_are_embedded_and_map_to_text(opened: Any) -> None:
    count = 0
    for entry in streams(opened):
        if entry.get("/Type") != "/Font":
            continue
        if entry.get("/Subtype") == "/Type0":
            assert "/ToUnicode" in entry
            descriptor = entry.DescendantFonts[0].FontDescriptor
        elif entry.get("/Subtype") in ("/CIDFontType0", "/CIDFontType2"):
            descriptor = entry.FontDescriptor
        elif entry.get("/Subtype") == "/Type3":
            continue
        else:
            descriptor = entry.FontDescriptor
        assert {"/FontFile", "/FontFile2", "/FontFile3"} & set(descriptor.keys())
        count += 1
    assert count


@pytest.mark.sampled(4)
def test_nothing_runs_hides_or_points_elsewhere(opened: Any) -> None:
    assert not opened.is_encrypted
    forbidden = {
        "/JavaScript",
        "/JS",
        "/Launch",
        "/URI",
        "/SubmitForm",
        "/GoToR",
        "/Movie",
        "/Sound",
    }
    for entry in streams(opened):
        assert str(entry.get("/S", "")) not in forbidden
        assert "/JS" not in entry
        assert str(entry.get("/Filter", "")) != "/LZWDecode"
    assert not {"/OpenAction", "/AA", "/XFA"} & set(opened.Root.keys())


@pytest.mark.sampled(4)
def test_what_is_attached_says_what_it_is_and_equals_the_file(opened: Any) -> None:
    path: Path = opened.source
    attached = dict(opened.attachments.items())
    data = opened.data
    if data != "sign-off.json":  # It lies beside nothing: the annex alone carries it.
        assert attached[data].get_file().read_bytes() == path.with_suffix(".json").read_bytes()
    relations = {str(entry.F): str(entry.AFRelationship) for entry in opened.Root.AF}
    assert set(relations) == set(attached)
    assert relations.pop(data) == "/Data"
    assert set(relations.values()) <= {"/Supplement"}
    for name, file in attached.items():
        assert file.get_file().mime_type == ("text/csv" if name.endswith("csv") else
                                             "application/json")  # fmt: skip
        assert file.description


@pytest.mark.sampled(4)
def test_page_labels_and_contents_can_be_walked(opened: Any) -> None:
    with opened.open_outline() as outline:
        titles = [entry.title for entry in outline.root]
    wanted = _IN_FRENCH if opened.language == "fr-FR" else _TITLES[opened.data]
    for words in wanted:
        assert any(words in title.lower() for title in titles)
    assert io.BytesIO(opened.source.read_bytes()).read(8).startswith(b"%PDF-1.7")
