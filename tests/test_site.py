"""The documentation's pages are all on the site, and their links lead somewhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    """A page without its fenced code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """What GitHub names a page's headings; a later one of the same name has another."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        kept = (sign for sign in text if sign in " -_" or unicodedata.category(sign)[0] in "LMN")
        found.add("".join(kept).replace(" ", "-"))
    return found


def places(entries: list[object]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from places(value)
            else:
                yield str(value)


def test_every_page_stands_once_in_the_navigation() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    named = sorted(places(settings["nav"]))
    # README.md is the site's first page; api.md is made of docstrings.
    files = ["index.md" if page.name == "README.md" else page.name for page in PAGES]
    assert named == sorted([*files, "api.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, heading in LINK.findall(prose(page)):
        file = (page.parent / target).resolve() if target else page
        assert file.is_relative_to(ROOT), target
        assert file.exists(), target
        if heading:
            assert heading in anchors(file), f"{target}#{heading}"


def test_every_test_that_the_threat_model_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    named = {one for one in re.findall(r"`([\w/]+(?:\.py|/))`", text) if "test" in one}
    assert len(named) > 20
    for one in named:
        place = ROOT if one.startswith("tests/") else ROOT / "tests" / "dpfedadamw"
        assert (place / one).exists(), one


def test_nothing_is_fetched_by_a_reader() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert settings["theme"]["font"] is False
    assert "analytics" not in settings["extra"]
    assert "repo_url" not in settings
    for name in settings.get("extra_css", []) + settings.get("extra_javascript", []):
        text = (ROOT / "docs" / name).read_text("utf-8")
        assert not re.search(r"//\w|url\(|@import|fetch\(", text), name
