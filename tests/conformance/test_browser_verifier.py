"""The verifier's page in a real browser, from a disk: its words, axe-core's rules, no network."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports.verifier import PAGE
from tests.conformance import write
from tests.reports.render.browser import Browser, program

AXE = os.environ.get("AXE", "")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(program() is None, reason="no Chromium is installed"),
    pytest.mark.skipif(not Path(AXE).is_file(), reason="AXE does not name axe-core's axe.min.js"),
]
WORDS = {
    "en": ("Verify a run", "Does not hold", "The claim as it was signed:"),
    "de": ("Einen Lauf prüfen", "Trifft nicht zu", "Die Zusage im signierten Wortlaut"),
    "fr": ("Vérifier une exécution", "Ne concorde pas", "La promesse telle qu’elle a été signée"),
}
SAID = {
    "record": "Unchanged since it was signed, but by whom is not known",
    "record-public": "Unchanged since it was signed, but by whom is not known",
    "claim-halved": "The files contradict the privacy claim",
    "changed-ledger.jsonl": "This is not what was signed",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("conformance")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(root / "keys"))
        write(root / "folders")
    return root / "folders"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def _give(browser: Browser, selector: str, path: Path) -> None:
    """Choose a folder or a file as a user does."""
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)


def _verdict(browser: Browser) -> str:
    end = time.monotonic() + 60.0
    while not (found := browser.run("document.querySelector('.verdict')?.innerText ?? ''")):
        assert time.monotonic() < end, browser.run("document.body.innerText")
        time.sleep(0.05)
    return str(found)


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_folder_is_judged_in_words_without_a_network(
    browser: Browser, folders: Path, name: str, width: int, dark: bool
) -> None:
    browser.requests.clear()
    browser.open(PAGE, width, dark)
    _give(browser, "#folder", folders / name)
    assert SAID[name] in _verdict(browser)
    assert [url for url in browser.requests if not url.startswith("file:")] == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    browser.run(Path(AXE).read_text("utf-8"))
    broken = "axe.run().then(found => found.violations.map(one => one.id))"
    assert browser.run(broken) == []


def _speaks(browser: Browser, languages: str) -> None:
    """Have the browser prefer languages, as its settings do."""
    agent = browser.run("navigator.userAgent")
    browser.call("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=languages)


@pytest.mark.parametrize("name", ["record", "claim-halved", "changed-ledger.jsonl"])
@pytest.mark.parametrize("language", WORDS)
def test_the_page_speaks_the_browsers_language(
    browser: Browser, folders: Path, language: str, name: str
) -> None:
    _speaks(browser, f"xx,{language}-CH,en")
    try:
        for width, dark in ((1280, True), (390, False)):
            browser.requests.clear()
            browser.open(PAGE, width, dark)
            _give(browser, "#folder", folders / name)
            _verdict(browser)
            shown = browser.run("document.title + document.body.innerText")
            title, fails, signed = WORDS[language]
            assert title in shown
            assert (fails in shown) == (name != "record")
            assert (signed in shown) == (name != "changed-ledger.jsonl")
            assert browser.run("document.documentElement.lang") == language
            assert [url for url in browser.requests if not url.startswith("file:")] == []
            assert browser.run("document.documentElement.scrollWidth") <= width
            browser.run(Path(AXE).read_text("utf-8"))
            broken = "axe.run().then(found => found.violations.map(one => one.id))"
            assert browser.run(broken) == []
            if folder := os.environ.get("SCREENSHOTS"):
                Path(folder).mkdir(parents=True, exist_ok=True)
                path = Path(folder) / f"verifier-{name}-{language}-{width}.png"
                path.write_bytes(browser.picture(browser.run("document.body.scrollHeight")))
    finally:
        _speaks(browser, "en")


def test_another_language_is_chosen_by_the_keyboard_and_is_not_remembered(
    browser: Browser, folders: Path
) -> None:
    browser.open(PAGE, 390)
    _give(browser, "#folder", folders / "record")
    english = _verdict(browser)
    browser.run("document.activeElement.blur()")
    browser.run("document.getElementById('language').focus()")
    browser.press("ArrowDown")
    assert browser.run("document.getElementById('language').matches(':focus')")
    assert browser.run("document.documentElement.lang") == "de"
    assert "Seit der Signatur unverändert" in _verdict(browser)
    browser.press("ArrowUp")
    assert _verdict(browser) == english
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert "Inchangé depuis la signature" in _verdict(browser)
    kept = "[document.cookie, localStorage.length, sessionStorage.length, location.hash]"
    assert browser.run(kept) == ["", 0, 0, ""]
    browser.open(PAGE, 390)
    assert browser.run("document.documentElement.lang") == "en"


def test_with_the_signers_keys_all_holds_and_with_others_nothing_does(
    browser: Browser, folders: Path
) -> None:
    browser.open(PAGE, 1280)
    for role in ("trainer", "auditor"):
        _give(browser, f"#{role}", folders / "record" / f"{role}.pub")
    _give(browser, "#folder", folders / "record")
    assert "Signed by the keys you gave, and unchanged since" in _verdict(browser)
    browser.run("document.getElementById('result').replaceChildren()")
    _give(browser, "#auditor", folders / "record" / "trainer.pub")
    assert "This is not what was signed" in _verdict(browser)
