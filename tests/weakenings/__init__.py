"""Small weakenings of the product, of the kind that a hurried change makes, and who notices.

    python -m tests.weakenings [NAME …]

applies each by itself to a copy of the packages, two at a time, and runs the tests that it names. A
weakening that none of them notices is a hole: the command says which, with what a user would lose,
and ends with 1. `tests/test_weakenings.py` sees that each still fits the code. A feature adds
three.
"""

from __future__ import annotations

from tests.weakenings import auditor, engine, reports
from tests.weakenings.weakening import Weakening, applied

WEAKENINGS = (*engine.WEAKENINGS, *auditor.WEAKENINGS, *reports.WEAKENINGS)

__all__ = ["WEAKENINGS", "Weakening", "applied"]
