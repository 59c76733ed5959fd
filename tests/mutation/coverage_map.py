"""Which tests reach a line: measured once, and again where a test or a source has changed.

One file in JSON for each file of tests. It says by what digests of tests and sources it was made,
how long each test took, and which lines of the packages each test reached.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.mutation import processes

WHOLE: Final = -1
"""Stands among a line's tests where the line was reached while the file or a fixture was made."""


@dataclass(frozen=True)
class TestFile:
    """What one file of tests reaches.

    Attributes:
        path: the file of tests, relative to the root.
        names: node identifiers of its tests, in order.
        seconds: how long each of them took, with what was set up for it.
        lines: by source file and line, the indices of the tests that reach it, or `WHOLE`.
        imports: the modules that it names in its own imports.
    """

    path: str
    names: tuple[str, ...]
    seconds: tuple[float, ...]
    lines: dict[str, dict[int, frozenset[int]]]
    imports: frozenset[str] = frozenset()

    # Not a class of tests, whatever its name makes pytest think.
    __test__ = False


def digest(path: Path) -> str:
    """Return the sha256 of a file, or of nothing where there is none."""
    return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()


def place(folder: Path, test_file: str) -> Path:
    """Return where the map of a file of tests is kept."""
    return folder / (test_file.replace("/", ".") + ".json")


def is_fresh(folder: Path, test_file: str) -> bool:
    """Whether the map of a file of tests was made by the tests and sources as they are now."""
    kept = place(folder, test_file)
    if not kept.is_file():
        return False
    made_by: dict[str, str] = json.loads(kept.read_bytes())["digests"]
    return all(digest(processes.ROOT / path) == value for path, value in made_by.items())


def read(folder: Path, test_file: str) -> TestFile:
    """Return the map of a file of tests."""
    content = json.loads(place(folder, test_file).read_bytes())
    lines: dict[str, dict[int, frozenset[int]]] = {}
    for path, groups in content["lines"].items():
        lines[path] = {line: frozenset(tests) for tests, numbers in groups for line in numbers}
    return TestFile(
        test_file,
        tuple(content["names"]),
        tuple(content["seconds"]),
        lines,
        imports_of((processes.ROOT / test_file).read_text(encoding="utf-8")),
    )


def imports_of(text: str) -> frozenset[str]:
    """Return what a file's imports name, with dots: modules, and what is taken from them."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return frozenset(found)


class _Contexts:
    """A plugin of pytest that tells coverage which test runs, and keeps each test's seconds."""

    def __init__(self, measured: Any) -> None:
        self.measured = measured
        self.context = ""
        self.seconds: dict[str, float] = {}
        self.passed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._enter("")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._enter(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._enter("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        # What is made in the first test that asks for it is what others look at too.
        before = self.context
        if fixturedef.scope != "function":
            self._enter("")
        try:
            return (yield)
        finally:
            self._enter(before)

    def _enter(self, context: str) -> None:
        self.context = context
        self.measured.switch_context(context)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


def measure(tree: Path, test_file: str, folder: Path) -> int:
    """Run a file of tests in this process, write its map, and return pytest's exit code."""
    # Bound late, because only the process that measures needs it.
    from coverage import Coverage

    sources = [str(tree / package) for package in processes.PACKAGES]
    measured = Coverage(data_file=None, config_file=False, source=sources, messages=False)
    measured.start()
    contexts = _Contexts(measured)
    code = pytest.main(processes.pytest_arguments(tree, [test_file]), plugins=[contexts])
    measured.stop()
    # A test that fails in sources as they are can tell nothing of a mutant.
    names = [name for name in contexts.seconds if name in contexts.passed]
    index = {name: number for number, name in enumerate(names)}
    data = measured.get_data()
    lines: dict[str, list[Any]] = {}
    for absolute in sorted(data.measured_files()):
        grouped: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for line, reached_in in data.contexts_by_lineno(absolute).items():
            tests = {index.get(name, WHOLE) for name in reached_in if name in index or not name}
            if tests:
                grouped[tuple(sorted(tests))].append(line)
        # A file of which nothing ran may change without another map.
        if grouped:
            name = str(Path(absolute).relative_to(tree))
            lines[name] = [[list(tests), numbers] for tests, numbers in grouped.items()]
    content = {
        "digests": {path: digest(tree / path) for path in (test_file, *lines)},
        "names": names,
        "seconds": [round(contexts.seconds[name], 3) for name in names],
        "lines": lines,
    }
    kept = place(folder, test_file)
    unfinished = kept.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
    unfinished.replace(kept)
    return int(code)


def files_of_tests(places: Iterable[str]) -> list[str]:
    """Return all files of tests below the places, relative to the root, in order."""
    found: set[str] = set()
    for name in places:
        path = processes.ROOT / name
        files = [path] if path.is_file() else path.rglob("test_*.py")
        found.update(str(file.relative_to(processes.ROOT)) for file in files)
    return sorted(found)
