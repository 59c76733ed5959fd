"""Which tests of the auditor need nothing else: those run in an environment of their own."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent

# What a test may compare the auditor with or be written with, and the package needed for that.
_COMPARED_WITH = {
    "dpfedadamw": "torch",
    "torch": "torch",
    "dp_accounting": "dp_accounting",
    "cryptography": "cryptography",
    "reports": "cryptography",
    "hypothesis": "hypothesis",
}
_IMPORT = re.compile(r"^(?:from|import) (\w+)|importorskip\(\"(\w+)", re.MULTILINE)


def compared_with(path: Path) -> set[str]:
    """The packages besides the auditor's own that a file of tests needs."""
    found = _IMPORT.findall(path.read_text(encoding="utf-8"))
    names = {name for pair in found for name in pair}
    return {_COMPARED_WITH[name] for name in names if name in _COMPARED_WITH}


def needs_what_is_missing(path: Path) -> bool:
    """Whether a file of tests needs a package that is not installed."""
    return any(find_spec(name) is None for name in compared_with(path))


def is_for_the_auditor_alone(path: Path) -> bool:
    """Whether a path is a file of the auditor's tests that needs nothing but the auditor."""
    is_test = path.is_relative_to(HERE) and path.match("test_*.py")
    return is_test and not compared_with(path)
