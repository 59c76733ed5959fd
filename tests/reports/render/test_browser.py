"""The web page in a real browser: axe-core's rules, no sideways scrolling, keyboard, both schemes.

Runs where Chromium is installed and AXE names axe-core's axe.min.js (tox -e browser fetches it from
npm). With SCREENSHOTS naming a folder, pictures of the pages are left there to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports import build_report
from tests.reports.data import write_comparison
from tests.reports.render.browser import Browser, program

MakeRun = Any  # the builder that conftest gives
AXE = os.environ.get("AXE", "")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None, reason="no Chromium is installed"),
    pytest.mark.skipif(not Path(AXE).is_file(), reason="AXE does not name axe-core's axe.min.js"),
]
WIDTHS = (1280, 375)
RUNS: dict[str, dict[str, Any]] = {
    "good": {},
    "failed": {"verdict": "FAIL"},
    "seeded": {"verdict": "NOT VERIFIED", "randomness": "reproducible"},
    "plain": {"private": False},
    "large": {"clients": 500, "rounds": 100, "blocks": 200, "name": "Long-name-without-end" * 12},
    "clients": {},
    "compared": {},
    "german": {"spec_extra": {"report": {"language": "de", "purpose": "Lesen."}}},
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module", params=RUNS)
def page(
    request: pytest.FixtureRequest,
    run_builder: MakeRun,
    client_run_builder: MakeRun,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    build = client_run_builder if request.param == "clients" else run_builder
    run = build(folder / "run", **RUNS[request.param])
    if request.param == "compared":
        other = run_builder(folder / "other", private=False, identifier="2b3c4d5e")
        found = write_comparison([run, other], folder / "out")["html"]
    else:
        found = build_report(run).html
    return found.rename(folder / f"{request.param}.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_rule_of_axe_is_broken(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """All of axe-core's default rules: WCAG A and AA, contrast among them, and best practices."""
    browser.open(page, width, dark)
    browser.run(Path(AXE).read_text("utf-8"))
    broken = browser.run(
        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map("
        "v => [v.id, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"
    )
    assert broken == []


def test_axe_would_have_noticed(browser: Browser, page: Path, tmp_path: Path) -> None:
    """The same page with pale text and an unnamed drawing breaks two rules."""
    spoilt = tmp_path / "spoilt.html"
    source = page.read_text("utf-8").replace("--ink: #1b2a38", "--ink: #c0c8ce")
    spoilt.write_text(source.replace("<main", '<svg role="img" width="9" height="9"/><main'))
    browser.open(spoilt, 1280)
    browser.run(Path(AXE).read_text("utf-8"))
    broken = browser.run("axe.run(document).then(r => r.violations.map(v => v.id))")
    assert {"color-contrast", "svg-img-alt"} <= set(broken)


@pytest.mark.parametrize("width", [*WIDTHS, 320])
def test_the_page_never_scrolls_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.body.getBoundingClientRect().right") <= width


def test_nothing_on_a_telephone_is_cut_or_scrolls_sideways(browser: Browser, page: Path) -> None:
    """Not even a table or a drawing by itself. A caption that only screen readers see is cut."""
    browser.open(page, 390)
    wider = browser.run(
        "[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() "
        "&& !e.closest('.hidden, .skip, svg') && e.scrollWidth > e.clientWidth + 1 "
        "&& getComputedStyle(e).overflowX !== 'visible').map(e => e.outerHTML.slice(0, 200))"
    )
    assert wider == []


def test_everything_that_can_be_used_is_reached_by_tab_and_shows_it(
    browser: Browser, page: Path
) -> None:
    browser.open(page, 1280)
    wanted = browser.run(
        "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility() && !e.closest('details:not([open]) > :not(summary)'))"
        ".map((e, i) => (e.dataset.i = i, i)).length"
    )
    reached = []
    for _ in range(wanted):
        browser.press("Tab")
        found = browser.run(
            "(() => { const e = document.activeElement;"
            "return [Number(e.dataset.i), getComputedStyle(e).outlineStyle !== 'none']; })()"
        )
        reached.append(found)
    assert [index for index, _ in reached] == list(range(wanted))
    assert all(visible for _, visible in reached)


def test_the_skip_link_and_the_numbers_open_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.run("location.hash") == "#content"
    if browser.run("document.querySelector('summary') !== null"):
        browser.run("document.querySelector('summary').focus()")
        browser.press("Enter")
        assert browser.run("document.querySelector('details').open")


def test_nothing_is_fetched_and_nothing_runs(browser: Browser, page: Path) -> None:
    browser.requests.clear()
    browser.open(page, 1280)
    assert set(browser.requests) == {page.resolve().as_uri()}
    assert browser.run("document.scripts.length") == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_can_be_taken(browser: Browser, page: Path, width: int, tmp_path: Path) -> None:
    """An empty page of this size compresses to less than a third of what is asked for here."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for dark in (False, True):
        browser.open(page, width, dark)
        picture = browser.picture(6000)
        name = f"{page.stem}-{width}-{'dark' if dark else 'light'}.png"
        (folder / name).write_bytes(picture)
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 20_000
