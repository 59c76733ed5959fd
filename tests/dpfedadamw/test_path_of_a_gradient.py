"""The table "The path of a gradient" of CONTRIBUTING.md is what a run does, from command to PDF.

A quickstart is run with a profiler that looks at the stack whenever a function of the table is
called. The table is read from the page itself, so that neither can change without the other.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.runs import call

ROOT = Path(__file__).parents[2]
MOST_FILES = 25
_ROW = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A row of the table: a function of a file."""

    file: str
    function: str


@dataclass
class Trace:
    """What the profiler saw.

    Attributes:
        calls: The table's functions in the order in which they were called, leaving out what runs
            below a function that is named as being beside the path.
        between: By function of the table, the files of the packages that stood on the stack.
        beside: Functions beside the path that were called.
        given: Arguments of the table's functions, by name, of their last call.
        returned: What they returned last.
    """

    calls: list[Step] = field(default_factory=list)
    between: dict[Step, set[str]] = field(default_factory=dict)
    beside: set[Step] = field(default_factory=set)
    given: dict[Step, dict[str, Any]] = field(default_factory=dict)
    returned: dict[Step, list[Any]] = field(default_factory=dict)


def rows_below(heading: str) -> list[Step]:
    """The rows of the table below a heading of CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    _, found, after = page.partition(f"\n{heading}\n")
    assert found, heading
    table = re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]
    return [Step(file, function) for file, function, _ in _ROW.findall(table)]


PATH = rows_below("### The path of a gradient")
BESIDE = rows_below("#### Off the path")


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """Note the calls of a block."""
    start, beside, wanted = PATH[0], set(BESIDE), set(PATH)
    known: dict[CodeType, Step | None] = {}

    def step_of(code: CodeType) -> Step | None:
        if code not in known:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests")
            file = path.relative_to(ROOT).as_posix() if inside else ""
            known[code] = Step(file, code.co_qualname) if file else None
        return known[code]

    def look(frame: FrameType, event: str, value: object) -> None:
        step = step_of(frame.f_code) if event in ("call", "return") else None
        if step is None or (step not in wanted and step not in beside):
            return
        files, above = set(), frame
        while above is not None:
            one = step_of(above.f_code)
            if one in beside:
                trace.beside.add(one)
                return
            if one is not None:
                files.add(one.file)
            if one == start:
                break
            above = above.f_back
        else:
            return
        if event == "return":
            trace.returned.setdefault(step, []).append(value)
            return
        trace.calls.append(step)
        trace.between.setdefault(step, set()).update(files)
        trace.given[step] = dict(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


@dataclass(frozen=True)
class Traced:
    """A traced run, and its folder."""

    trace: Trace
    folder: Path

    def step(self, function: str) -> Step:
        """The row of the table with a function."""
        (found,) = [one for one in PATH if one.function == function]
        return found

    def given(self, function: str, name: str) -> Any:
        """An argument of a function's last call."""
        return self.trace.given[self.step(function)][name]

    def returned(self, function: str) -> Any:
        """What a function returned last."""
        return self.trace.returned[self.step(function)][-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Two rounds of the quickstart, of which one participation is computed again."""
    out, trace = tmp_path_factory.mktemp("traced"), Trace()
    with traced(trace):
        small = ("rounds=2", "local_steps=2", "clients_per_round=3")
        sets = [word for one in small for word in ("--set", f"federation.{one}")]
        code = call("run", "quickstart", *sets, "--replay", "1", "--out", str(out))
    # By chance alone the audit of so short a run may be in doubt; the path is the same.
    assert code in (0, 1)
    return Traced(trace, (out / "latest").resolve())


def test_the_path_has_25_files_at_most_and_each_once() -> None:
    files = [step.file for step in PATH]
    assert len(files) <= MOST_FILES
    assert len(set(files)) == len(files)


def test_every_function_of_the_table_is_called(run: Traced) -> None:
    assert [step for step in PATH if step not in run.trace.between] == []


def test_everything_that_is_said_to_be_beside_the_path_is_called_too(run: Traced) -> None:
    assert [step for step in BESIDE if step not in run.trace.beside] == []


def test_the_functions_are_called_in_the_order_of_the_table(run: Traced) -> None:
    left = iter(run.trace.calls)
    assert [step for step in PATH if step not in left] == []


def test_no_file_that_is_not_in_the_table_stands_between_two_that_are(run: Traced) -> None:
    listed = {step.file for step in PATH}
    found = {step: files - listed for step, files in run.trace.between.items()}
    assert {step: files for step, files in found.items() if files} == {}


def test_what_is_clipped_is_what_is_noised(run: Traced) -> None:
    # Object by object: nothing is put in the place of a sum on its way.
    clipped = run.returned("BookKeepingEngine.__call__").total
    assert run.given("add_gaussian_noise", "clipped_sum") is clipped
    assert run.returned("_Rehearsed.__call__").total is clipped


def test_what_is_noised_is_what_the_local_rule_gets(run: Traced) -> None:
    assert run.returned("PrivateOracle.gradient") is run.returned("add_gaussian_noise")


def test_the_auditor_reads_the_ledger_that_the_engine_wrote(run: Traced) -> None:
    written = (run.folder / "ledger.jsonl").read_bytes()
    assert run.given("read_ledger", "raw") == written
    claim = json.loads(written.splitlines()[-1])
    computed = run.returned("claim")
    assert {name: claim[name] for name in computed} == json.loads(json.dumps(computed))


def test_the_pages_are_made_of_the_report_that_was_built(run: Traced) -> None:
    # A signature is added behind the pages, and changes no byte of them.
    assert (run.folder / "report.pdf").read_bytes().startswith(run.returned("typeset"))
    report = json.loads((run.folder / "report.json").read_bytes())
    assert report == json.loads(json.dumps(run.returned("build").data()))
