"""Mutants that are put in the place of functions in a process that has imported them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.mutation.processes import ROOT
from tests.mutation.warm import NOT_HERE, changed_functions

MODULE = """
LIMIT = 3
def outer(x, most=LIMIT):
    def inner(y):
        return y + 1
    return inner(x) if x < most else 0
class Kept:
    size = 4
    def twice(self):
        return [2 * one for one in range(self.size)]
"""


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("x < most", "x <= most", ["outer"]),
        ("y + 1", "y - 1", ["outer", "outer.<locals>.inner"]),
        ("2 * one", "3 * one", ["Kept.twice", "Kept.twice.<locals>.<listcomp>"]),
        # A function that is left out is made again by the one around it alone.
        ("inner(x) if", "(lambda: x)() if", ["outer"]),
    ],
)
def test_what_is_changed_inside_functions_is_told_from_the_outermost_inwards(
    before: str, after: str, names: list[str]
) -> None:
    assert MODULE.count(before) == 1
    changed = changed_functions(MODULE.encode(), MODULE.replace(before, after).encode())
    assert changed is not None
    assert [old.co_qualname for old, _ in changed] == names
    assert all(old != new for old, new in changed)


@pytest.mark.parametrize(
    ("before", "after"),
    [("LIMIT = 3", "LIMIT = 4"), ("size = 4", "size = 5"), ("most=LIMIT", "most=7")],
)
def test_what_runs_while_a_module_is_imported_is_no_functions(before: str, after: str) -> None:
    changed = MODULE.replace(before, after).encode()
    assert changed_functions(MODULE.encode(), changed) is None


# What the answers must be, in the order of `ASKED`.
TRIED = [1, 0, NOT_HERE, NOT_HERE, -9, 1]
ASKED = """
import sys, time
from pathlib import Path
from tests.mutation.warm import Request, Warm

tree = Path(sys.argv[1])
test = "tests/test_sizes.py::test_twice"
warm = Warm(tree, ["tests/test_sizes.py"])
for module, before, after, line in (
    ("sizes", "2 * x", "3 * x", 4),
    ("sizes", "x + 1", "x - 1", 6),
    ("sizes", "LIMIT = 5", "LIMIT = 6", 1),
    ("sizes", "return 7", "return 8", 8),
    ("sizes", "2 * x", "[x for y in iter(int, 1)]", 4),
    ("later", "ADDED = 0", "ADDED = 1", 1),
):
    path = tree / "audit" / f"{module}.py"
    text = path.read_text()
    path.write_text(text.replace(before, after))
    asked = warm.ask(Request(f"audit/{module}.py", text, line, line, [test], 60.0, 3.0))
    while (code := asked.ended()) is None:
        time.sleep(0.01)
    path.write_text(text)
    print("answer", code, flush=True)
warm.close()
"""


@pytest.mark.slow
def test_a_mutant_is_tried_in_a_fork_or_said_to_need_a_process_of_its_own(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": """
            [tool.pytest.ini_options]
            markers = ["slow: .", "browser: .", "crashes: ."]
            """,
        "audit/__init__.py": "",
        "audit/sizes.py": """\
            LIMIT = 5

            def twice(x):
                return 2 * x
            def unused(x):
                return x + 1
            def called():
                return 7
            called()
            """,
        "audit/later.py": "ADDED = 0\n",
        "dpfedadamw/__init__.py": "",
        "reports/__init__.py": "",
        "specs/__init__.py": "",
        "tests/conftest.py": """
            def pytest_addoption(parser):
                parser.addoption("--every-case", action="store_true")
            """,
        "tests/test_sizes.py": """
            from audit.sizes import twice

            def test_twice():
                from audit.later import ADDED

                assert twice(2) + ADDED == 4
            """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [int(line.split()[1]) for line in done.stdout.splitlines() if "answer" in line]
    assert answers == TRIED
