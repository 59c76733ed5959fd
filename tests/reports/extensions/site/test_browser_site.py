"""A site over runs in a real browser: axe-core's rules, sorting and filtering, nothing fetched.

Runs as `test_browser` does, whose page it shares no rule with but these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.extensions.site import folder
from tests.reports.render.browser import Browser, program

MakeRun = Any  # the builder that conftest gives
AXE = os.environ.get("AXE", "")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None, reason="no Chromium is installed"),
    pytest.mark.skipif(not Path(AXE).is_file(), reason="AXE does not name axe-core's axe.min.js"),
]
# What has to be scrolled to be seen whole, within the page.
CUT = (
    "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    ".map(e => e.className)"
)
WIDTHS = (1280, 375)
RUNS: dict[str, dict[str, Any]] = {
    "good": {"rounds": 10},
    "failed": {"verdict": "FAIL", "rounds": 40},
    "seeded": {"verdict": "NOT VERIFIED", "randomness": "reproducible"},
    "plain": {"private": False},
    "clients": {"rounds": 30},
    "long": {"rounds": 80, "name": "Long-name-without-end" * 12},
}
NAMES = (
    "[...document.querySelectorAll('table.runs tbody tr')].filter(r => !r.hidden)"
    ".map(r => r.cells[0].dataset.value)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(
    run_builder: MakeRun, client_run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    place = tmp_path_factory.mktemp("site")
    for index, (name, options) in enumerate(RUNS.items()):
        build = client_run_builder if name == "clients" else run_builder
        build(place / "runs" / name, identifier=f"{index:08x}", **{"name": name, **options})
    folder.write(place / "runs", place / "out")
    return place / "out" / folder.PAGE


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_rule_of_axe_is_broken(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, dark)
    browser.run(Path(AXE).read_text("utf-8"))
    broken = browser.run(
        "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map("
        "v => [v.id, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"
    )
    assert broken == []


@pytest.mark.parametrize("width", [*WIDTHS, 320])
def test_the_page_never_scrolls_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_on_a_telephone_nothing_is_cut(browser: Browser, page: Path) -> None:
    browser.open(page, 390)
    assert browser.run(CUT) == []


def test_rows_sort_by_their_numbers_by_mouse_and_by_keyboard(browser: Browser, page: Path) -> None:
    """ε rises with the rounds; runs without a number stand last, whichever way."""
    browser.open(page, 1280)
    browser.run("document.querySelector('th[data-key=epsilon] button').click()")
    rising = browser.run(NAMES)
    private = [name for name in rising if name not in ("plain", "clients")]
    assert private == ["good", "seeded", "failed", RUNS["long"]["name"].lower()]
    assert rising[-1] == "plain"
    assert browser.run("document.querySelector('th[aria-sort]').dataset.key") == "epsilon"
    browser.run("document.querySelector('th[data-key=epsilon] button').focus()")
    browser.press("Enter")
    assert browser.run(NAMES) == [*rising[:-1][::-1], "plain"]
    assert browser.run("document.querySelector('th[aria-sort]').ariaSort") == "descending"


def test_rows_and_points_are_filtered_together(browser: Browser, page: Path) -> None:
    browser.open(page, 1280)
    points = (
        "[...document.querySelectorAll('svg.wide [data-point]')]"
        ".filter(p => !p.hasAttribute('hidden'))"
    )
    assert browser.run(f"{points}.length") == len(RUNS) - 1
    browser.run(
        "(s => { s.value = 'FAIL'; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('[data-filter=audit]'))"
    )
    assert browser.run(NAMES) == ["failed"]
    assert browser.run(f"{points}.length") == 1
    assert browser.run("document.querySelector('[role=status]').textContent") == "1 of 6 runs"
    browser.run(
        "(s => { s.value = 'nowhere'; s.dispatchEvent(new Event('input')); })"
        "(document.querySelector('[data-search]'))"
    )
    assert browser.run(NAMES) == []


def test_nothing_is_fetched_and_nothing_is_kept(browser: Browser, page: Path) -> None:
    browser.requests.clear()
    browser.open(page, 1280)
    assert set(browser.requests) == {page.resolve().as_uri()}
    assert browser.run("document.cookie + localStorage.length + sessionStorage.length") == "00"


def test_the_policy_stops_a_script_that_was_added(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    spoilt = tmp_path / "spoilt.html"
    source = page.read_text("utf-8")
    spoilt.write_text(source.replace("<main", "<script>window.added = 1</script><main"), "utf-8")
    browser.open(spoilt, 1280)
    assert browser.run("window.added === undefined")
    assert browser.run("!document.querySelector('.controls').hidden")


@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_can_be_taken(browser: Browser, page: Path, width: int, tmp_path: Path) -> None:
    target = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    target.mkdir(parents=True, exist_ok=True)
    for dark in (False, True):
        browser.open(page, width, dark)
        picture = browser.picture(3000)
        (target / f"site-{width}-{'dark' if dark else 'light'}.png").write_bytes(picture)
        assert len(picture) > 20_000
