"""Each extension's folder can be removed: what is left runs, audits, reports and verifies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXTENSIONS = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for package in ("dpfedadamw", "audit", "reports")
    for path in (ROOT / package / "extensions").glob("*/__init__.py")
)
# What a user asks of each, and what is said where its folder was deleted.
ASKED = {
    "audit/extensions/gate": (("gate", "show", "gate.yaml"), "audit/extensions/gate"),
    "audit/extensions/claims": (("claim", "review-fedsam-twice"), "audit/extensions/claims"),
    "dpfedadamw/extensions/claims": (("claim", "review-fedsam-twice"), "No such command 'claim'"),
    "dpfedadamw/extensions/comparison": (("compare", "runs"), "No such command 'compare'"),
    "dpfedadamw/extensions/deployment": (("flower",), "No such command 'flower'"),
    "dpfedadamw/extensions/figures": (("figures",), "No such command 'figures'"),
    "dpfedadamw/extensions/gate": (("gate",), "No such command 'gate'"),
    "dpfedadamw/extensions/recorders": (("evidence", "close", "runs"), "was removed here"),
    "dpfedadamw/extensions/site": (("site", "runs", "out"), "No such command 'site'"),
    "dpfedadamw/extensions/starter": (("new", "project"), "No such command 'new'"),
    "dpfedadamw/extensions/sweeps": (("sweep",), "No such command 'sweep'"),
    "dpfedadamw/extensions/trackers": (
        ("run", "quickstart", "--tracker", "tensorboard"),
        "was removed here",
    ),
    "reports/extensions/comparison": (("compare", "runs"), "reports/extensions/comparison"),
    "reports/extensions/site": (("site", "runs", "out"), "reports/extensions/site"),
}
# Nobody asks for these; a page that was to be in another language is in English and says so.
NEVER_ASKED = ["reports/extensions/languages"]
SMALL = ("--set", "federation.rounds=2", "--set", "federation.clients_per_round=3")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, from which `without` takes folders away."""
    folder = tmp_path_factory.mktemp("packages")
    for package in ("dpfedadamw", "audit", "reports", "specs"):
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder


@contextmanager
def without(copy: Path, *names: str) -> Iterator[None]:
    """The copy without these folders, which are put back: each module is compiled once."""
    away = copy / "away"
    away.mkdir()
    for place, name in enumerate(names):
        (copy / name).rename(away / str(place))
    try:
        yield
    finally:
        for place, name in enumerate(names):
            shutil.rmtree(copy / name, ignore_errors=True)
            (away / str(place)).rename(copy / name)
        away.rmdir()


ALL = [f"{package}/extensions" for package in ("dpfedadamw", "audit", "reports")]


def typed(copy: Path, *words: str, package: str = "dpfedadamw") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "DPFEDADAMW_KEYS": str(copy / "keys"),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-m", package, *words],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def said_without(copy: Path, names: list[str]) -> None:
    """Ask for what was removed; nothing but one line, and exit code 2, may come of it."""
    for name in names:
        words, said = ASKED[name]
        told = typed(copy, *words)
        assert (told.returncode, "Traceback" in told.stderr) == (2, False), told.stderr
        assert said in told.stderr


def test_what_a_user_asks_of_each_extension_stands_here() -> None:
    assert sorted([*ASKED, *NEVER_ASKED]) == EXTENSIONS


@pytest.mark.slow
def test_without_any_extension_a_run_is_trained_audited_reported_and_verified(copy: Path) -> None:
    with without(copy, *ALL):
        told = typed(copy, "--help")
        listed = {line.split()[1] for line in told.stdout.splitlines() if len(line.split()) > 2}
        assert "run" in listed
        assert not listed & {words[0] for words, said in ASKED.values() if "No such" in said}
        german = ("--set", "report.language=de")
        for words in (
            ("run", "quickstart", *SMALL, *german),
            ("verify", "runs/latest"),
            ("audit",),
        ):
            told = typed(copy, *words)
            assert (told.returncode, "Traceback" in told.stderr) == (0, False), told.stderr
        # Of those that are commands, the help above lists none.
        said_without(
            copy, [name for name, (_, said) in ASKED.items() if said == "was removed here"]
        )
        page = (copy / "runs" / "latest" / "report.html").read_text("utf-8")
        assert "were to be in another language (de-DE)" in page
        for words in (("report", "--compare", "runs"), ("audit", "--paper-claim", "any")):
            told = typed(copy, *words)
            assert (told.returncode, "was removed here" in told.stderr) == (2, True), told.stderr
        told = typed(copy, "--paper-claim", "any", package="audit")
        assert told.returncode == 2
        assert (
            told.stderr == "--paper-claim: needs audit/extensions/claims, which was removed here\n"
        )
        told = typed(copy, "epsilon", "quickstart")
        assert told.returncode == 0


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ASKED)
def test_without_one_extension_all_others_are_there(name: str, copy: Path) -> None:
    with without(copy, name):
        said_without(copy, [name])
        told = typed(copy, "--help")
        listed = {line.split()[1] for line in told.stdout.splitlines() if len(line.split()) > 2}
        own = {words[0] for words, said in ASKED.values() if "No such" in said}
        gone = ASKED[name][0][0]
        assert own - {gone} <= listed
        assert gone not in own or (gone in listed) is not name.startswith("dpfedadamw")


@pytest.mark.slow
def test_without_extensions_the_core_s_tests_pass(copy: Path) -> None:
    """The engine's own, where the extensions of all three packages are gone."""
    with without(copy, *ALL):
        for path in ("tests", "pyproject.toml", "docs", "README.md", "ERRATA.md"):
            source = ROOT / path
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / path)
        folders = [
            f"tests/dpfedadamw/{folder}"
            for folder in (
                "privacy",
                "clipping",
                "accounting",
                "units",
                "budget",
                "federation",
                "run",
            )
        ]
        told = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *folders],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout[-2000:]
