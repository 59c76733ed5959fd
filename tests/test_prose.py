"""The house style (docs/style.md), as far as a program can judge it: words that we do not use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# What stands in its place. Longer phrases come first, so that each is found as what it is.
INSTEAD = {
    r"anew": "again, or a verb with re-",
    r"towards": "against, for, to",
    r"whoever": "anyone who",
    r"nothing but": "only",
    r"what of": "the parts of",
    r"begin anew": "restart",
    r"had by": "computed by, read from",
    r"is had": "is computed, is read",
    r"no matter": "whatever",
    r"beside": "next to, in addition to, with",
}
_BANNED = re.compile(rf"\b({'|'.join(sorted(INSTEAD, key=len, reverse=True))})\b", re.IGNORECASE)
# Identifiers, paths, code and quoted words are not prose.
_CODE = re.compile(r"```.*?```|^    [^\n]*$|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->", re.M | re.S)
# Pages and folders of code that are held to it. A page or folder is added when it is clean, and
# none is taken out.
PAGES = (
    "CONTRIBUTING.md", "ERRATA.md", "README.md", "SECURITY.md", "docs/analyst.md",
    "docs/attestations.md", "docs/challenge.md", "docs/claims.md", "docs/commands.md",
    "docs/compare.md", "docs/comparison.md", "docs/data.md", "docs/datasets.md",
    "docs/decide.md", "docs/deploy.md", "docs/detection.md", "docs/evidence-format.md",
    "docs/evidence.md", "docs/field.md", "docs/figures.md", "docs/flower.md", "docs/format.md",
    "docs/glossary.md", "docs/gradients.md", "docs/keys.md", "docs/ledger.md", "docs/loops.md",
    "docs/method.md", "docs/models.md", "docs/opacus.md", "docs/papers.md", "docs/people.md",
    "docs/performance.md", "docs/programs.md", "docs/published.md", "docs/python.md",
    "docs/recompute.md", "docs/report-fields.md", "docs/report.md", "docs/results.md",
    "docs/scale.md", "docs/search.md", "docs/serving.md", "docs/sign-off.md",
    "docs/signatures.md", "docs/site.md", "docs/spec.md", "docs/sweeps.md", "docs/tasks.md",
    "docs/testing.md", "docs/trust.md", "docs/trusted-core.md", "docs/tutorial.md",
)  # fmt: skip
CODE = (
    "dpfedadamw/algorithms", "dpfedadamw/budget", "dpfedadamw/canaries", "dpfedadamw/cli",
    "dpfedadamw/clipping", "dpfedadamw/data", "dpfedadamw/evidence", "dpfedadamw/federation",
    "dpfedadamw/filing", "dpfedadamw/integrations", "dpfedadamw/models", "dpfedadamw/privacy",
    "dpfedadamw/reexecution", "dpfedadamw/run", "dpfedadamw/spec", "dpfedadamw/storage",
    "dpfedadamw/units", "dpfedadamw/vectors", "reports/schema", "reports/verifier",
)  # fmt: skip


def prose_of_page(text: str) -> str:
    """A page with its code blanked out, line by line where it was."""
    return _CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def strings_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string in a Python source, docstrings too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def complaints(name: str, text: str) -> list[str]:
    """What a file says in words that we do not use, a line each."""
    if not _BANNED.search(text):
        return []
    if name.endswith(".py"):
        lines = [
            (first + place, line)
            for first, string in strings_of_code(text)
            for place, line in enumerate(re.sub(r"`[^`\n]*`", "", string).splitlines())
        ]
    else:
        lines = list(enumerate(prose_of_page(text).splitlines(), start=1))
    return [
        f"{name}:{number}: {word[0]!r}: write {INSTEAD[word[0].lower()]}"
        for number, line in lines
        for word in _BANNED.finditer(line)
    ]


def files() -> list[str]:
    """All that is held to it."""
    found = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*PAGES, *(path.relative_to(ROOT).as_posix() for path in found)]


def test_pages_and_code_use_plain_words():
    found = [one for name in files() for one in complaints(name, (ROOT / name).read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.md", "The result is computed.\nIt is drawn anew.", ["a.md:2: 'anew': write again, or"]),
        ("a.md", "`anew` is a word\n\n    code towards\n\n[x](beside.md)", []),
        ("a.py", 'x = "ε towards the server"', ["a.py:1: 'towards': write against"]),
        ("a.py", '"""One.\n\nNothing but noise."""', ["a.py:3: 'Nothing but': write only"]),
        ("a.py", "towards = 1  # beside", []),
    ],
)
def test_a_word_is_found_in_prose_and_in_strings_alone(name, text, said):
    found = complaints(name, text)
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))
