"""Every environment of tox.ini runs somewhere, and collects with the packages that it installs.

`tox run -e flower` once stopped at collection for months: a module of tests imported a package, and
a helper from a module that skips itself, neither of which is there. Nobody saw it, as no workflow
ran it. Here nothing is installed and nothing is collected: imports are read.
"""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.audit.alone import is_for_the_auditor_alone

ROOT = Path(__file__).parents[1]
FIRST_PARTY = {"audit", "dpfedadamw", "reports", "specs", "tests", "requirements", "acme_fl"}
# What each environment that collects the whole tree installs next to the package.
EVERYWHERE = ("pytest", "hypothesis")
# Folders that only environments with more packages are pointed at, or that nothing collects.
APART = ("bench", "mutation", "outside/acme_fl")
_TEXTS = re.compile(r'"""[\s\S]*?"""')
_IMPORTS = re.compile(
    r"^import (?P<plain>[\w., ]+)$"
    r"|^from (?P<package>[\w.]+) import (?P<names>\([^)]*\)|.*)$"
    r"|^(?:\w.*)?importorskip\(\s*\"(?P<skip>[^\"]+)",
    re.MULTILINE,
)
MODULES = sorted(
    path
    for path in (ROOT / "tests").rglob("*.py")
    if not path.relative_to(ROOT / "tests").as_posix().startswith(APART)
)


@cache
def installed_everywhere() -> frozenset[str]:
    """Modules of the packages that the wheel needs, directly or not, and of `EVERYWHERE`."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)
    assert listed is not None
    wanted = [*re.findall(r'"([^"]+)"', listed[1]), *EVERYWHERE]
    found: set[str] = set()
    while wanted:
        one = Requirement(wanted.pop())
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        extras = {"", *one.extras}
        if canonicalize_name(one.name) in found and not one.extras:
            continue
        found.add(canonicalize_name(one.name))
        try:
            needs = metadata.requires(one.name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                need.marker = None
                wanted.append(str(need))
    return frozenset(
        module
        for module, names in metadata.packages_distributions().items()
        if found & set(map(canonicalize_name, names))
    )


@cache
def imports_of(path: Path) -> tuple[tuple[str, str], ...]:
    """`imported` from a file, which is read once."""
    return tuple(imported(path.read_text("utf-8")))


def imported(text: str) -> Iterator[tuple[str, str]]:
    """What a module imports when it is collected, in order; and what it skips itself without.

    Each is ("import", name) or ("skip", name). What is indented is left to it: a function's own
    imports, and those under TYPE_CHECKING or in a try.
    """
    for found in _IMPORTS.finditer(_TEXTS.sub("", text)):
        if found["skip"]:
            yield "skip", found["skip"]
        elif found["plain"]:
            yield from (("import", one.split()[0]) for one in found["plain"].split(","))
        else:
            names = re.sub(r"#.*|[()]", "", found["names"]).split(",")
            yield "import", found["package"]
            inner = (one.split()[0] for one in names if one.strip())
            yield from (("import", f"{found['package']}.{one}") for one in inner)


def problems(
    path: Path,
    known: set[str],
    borrower: Path | None = None,
    imports: Iterable[tuple[str, str]] | None = None,
) -> Iterator[str]:
    """What would stop a module of tests at collection, where only `known` modules are there.

    Args:
        path: The module, or what it imports.
        known: Modules that are there, or whose absence the module answered by skipping itself.
        borrower: The module that imports it; None of one that pytest collects.
        imports: What it imports, in place of what its file says.
    """
    here = path.relative_to(ROOT)
    for kind, name in imports_of(path) if imports is None else imports:
        top = name.partition(".")[0]
        if kind == "skip" and borrower is not None and top not in known:
            yield f"{borrower.relative_to(ROOT)} imports from {here}, which skips itself: move it"
        if kind == "skip":
            known.add(top)
        elif top not in known:
            yield f"{here} imports {top}: put pytest.importorskip({top!r}) before it"
        helper = ROOT / Path(*name.split(".")).with_suffix(".py")
        if top == "tests" and helper.is_file() and helper != path and str(helper) not in known:
            known.add(str(helper))
            yield from problems(helper, known, path)


def test_each_module_collects_with_what_every_environment_has_or_skips_itself_first() -> None:
    known = {*sys.stdlib_module_names, *FIRST_PARTY, *installed_everywhere()}
    assert "torch" in known
    assert not known & {"flwr", "pikepdf", "transformers"}
    collected = [one for one in MODULES if one.name.startswith(("test_", "conftest"))]
    assert len(collected) > 300
    assert sorted({said for one in collected for said in problems(one, set(known))}) == []


def test_what_the_auditor_runs_alone_collects_with_what_its_requirements_install() -> None:
    listed = (ROOT / "requirements" / "auditor.txt").read_text("utf-8")
    pinned = {canonicalize_name(one) for one in re.findall(r"^([\w.-]+)==", listed, re.M)}
    installed = {
        module
        for module, names in metadata.packages_distributions().items()
        if pinned & set(map(canonicalize_name, names))
    }
    assert {"scipy", "yaml"} <= installed
    assert not installed & {"safetensors", "torch"}
    known = {*sys.stdlib_module_names, *FIRST_PARTY, *installed}
    collected = [one for one in MODULES if is_for_the_auditor_alone(one)]
    assert len(collected) > 50
    assert sorted({said for one in collected for said in problems(one, set(known))}) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import numpy\nfrom tests import runs", []),
        ("import flwr", ["imports flwr"]),
        ('import pytest\npytest.importorskip("flwr.app")\nimport flwr', []),
        ("from tests.reports.render.test_sign_off import key", ["which skips itself"]),
        ("def test():\n    import flwr", []),
    ],
)
def test_what_would_stop_at_collection_is_named(text: str, said: list[str]) -> None:
    known = {*sys.stdlib_module_names, *FIRST_PARTY, *installed_everywhere()}
    found = list(problems(ROOT / "tests" / "test_made_up.py", known, None, imported(text)))
    assert [any(part in one for one in found) for part in said] == [True] * len(said)
    assert bool(found) == bool(said)


def environments() -> configparser.ConfigParser:
    """tox.ini, its values as they stand there."""
    found = configparser.ConfigParser(interpolation=None)
    found.read(ROOT / "tox.ini", "utf-8")
    return found


def test_every_environment_is_run_by_a_workflow_with_a_limit_of_time() -> None:
    """Those of env_list by README's command, `.ci/run`, too."""
    names = {one.partition(":")[2] for one in environments().sections() if ":" in one}
    run: set[str] = set()
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"], path.name
            matrix = job.get("strategy", {}).get("matrix", {})
            told = " ".join(step.get("run", "") for step in job["steps"])
            if "tox run" not in told:
                continue
            told += " ".join(str(each) for each in [matrix, *matrix.get("include", [])])
            run |= set(re.findall(r"[a-z]+", told))
    run |= set(re.split(r"[,\s]+", environments()["tox"]["env_list"]))
    assert names - run == set()


def test_every_marker_is_asked_for_by_an_environment() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^markers = \[(.*?)^\]", project, re.M | re.S)
    assert listed is not None
    markers = re.findall(r'^  "([a-z]+):', listed[1], re.M)
    commands = " ".join(one.get("commands", "") for one in environments().values())
    # `tests.quick` makes slow what is thorough.
    asked = [one for one in markers if re.search(rf"-m {one}\b", commands)]
    assert {*markers} - {*asked} == {"thorough"}


def test_what_skips_itself_without_flower_is_run_in_flowers_environment() -> None:
    """That environment takes tests by their marker, and leaves out what has none."""
    texts = {one.relative_to(ROOT): one.read_text("utf-8") for one in MODULES}
    needing = [one for one, text in texts.items() if ("skip", "flwr.app") in imported(text)]
    assert len(needing) > 5
    assert [one for one in needing if "\npytestmark = pytest.mark.flower\n" not in texts[one]] == []
