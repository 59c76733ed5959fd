"""The house style (docs/style.md), as far as a program can judge it: words, and long sentences."""

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
# Identifiers, paths, code and quoted words are not prose. In a string, neither are a whole string
# that is one name, a field to fill in, and a parameter's name before its description.
_NAME = re.compile(r"[\w-]+")
_NAMES = re.compile(r"`+[^`\n]*`+|\{\w+\}|\"[\w-]+\"|^\s+\w+(?=: )")
# Words that earlier runs were signed with: they are kept to be recognised.
_SIGNED_EARLIER = "_SIGNED_EARLIER"
_CODE = re.compile(r"```.*?```|^    [^\n]*$|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->", re.M | re.S)
# What a command printed: the strings that it is made of are held to it where they are written.
_PRINTED = re.compile(r"<!-- printed by this command -->.*?<!-- end -->", re.S)
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|eq|vs|cf|no|fig|al)\.", re.IGNORECASE)
_END = re.compile(r"[.!?][)\"'*_]*(?=\s|$)")
_ITEM = re.compile(r"\s*([*+-]|\d+\.)\s")
LONGEST_SENTENCE = 30
# Folders whose strings are held to it as well.
STRINGS = ("audit/**/*.py", "dpfedadamw/**/*.py", "reports/**/*.py", "tests/faults/**/*.py")
# Words that runs are signed with, and that `verify` compares: they stay as long as they are.
_SIGNED = {"reports/content/guarantee.py": "_statement"}
# What is held to it, as patterns below the root: pages whose words and sentences are, and files
# whose words are. A pattern is added when its files are clean, and none is taken out.
HELD = (
    "ERRATA.md", "README.md", "SECURITY.md", "docs/accountants.md", "docs/budgets.md",
    "docs/canaries.md", "docs/challenge.md", "docs/claims.md", "docs/commands.md",
    "docs/comparison.md", "docs/data.md", "docs/datasets.md", "docs/decide.md", "docs/deploy.md",
    "docs/detection.md", "docs/evidence-format.md", "docs/evidence.md", "docs/exact-checks.md",
    "docs/field.md", "docs/figures.md", "docs/flower.md", "docs/gate-nvflare.md",
    "docs/glossary.md", "docs/gradients.md",
    "docs/interruptions.md", "docs/language-models.md", "docs/ledger.md", "docs/method.md",
    "docs/models.md", "docs/mutation.md", "docs/noise.md", "docs/nvflare.md", "docs/opacus.md",
    "docs/papers.md",
    "docs/people.md", "docs/performance.md", "docs/privacy.md", "docs/programs.md",
    "docs/published.md", "docs/python.md", "docs/recompute.md", "docs/reexecution.md",
    "docs/replication.md", "docs/results.md", "docs/scale.md", "docs/search.md", "docs/serving.md",
    "docs/signatures.md", "docs/site.md", "docs/style.md", "docs/sweeps.md", "docs/tasks.md",
    "docs/testing.md", "docs/trust.md", "docs/trusted-core.md", "docs/tutorial.md",
    "docs/uploads.md",
)  # fmt: skip

WORDS = (
    "CHANGELOG.md", "CONTRIBUTING.md", "audit/**/*.py", "docs/analyst.md", "docs/attestations.md",
    "docs/compare.md", "docs/faults.md", "docs/format.md", "docs/keys.md", "docs/loops.md",
    "docs/report-fields.md", "docs/report.md", "docs/sign-off.md", "docs/spec.md",
    "dpfedadamw/**/*.py", "reports/**/*.json", "reports/**/*.py", "tests/faults/**/*.py",
)  # fmt: skip


def prose_of_page(text: str) -> str:
    """A page with its code blanked out, line by line where it was."""
    return _CODE.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def strings_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string in a Python source, docstrings too."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not _is_signed_earlier(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def sentences_of_code(text: str, signed: str | None = None) -> Iterator[tuple[int, str]]:
    """Line and text of each sentence of a source's long strings, a placeholder being one word.

    Left out are strings too short for a sentence that is too long, docstrings, strings of several
    lines (scripts, templates, schemas), rows of tables, and the function that `signed` names.
    """
    left = [ast.parse(text)]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef) and node.name == signed:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if isinstance(node, ast.JoinedStr) or _text(node) is not None:
            whole = "".join(_text(part) or "X" for part in parts)
            # So many words, with a space after each but the last, have more than twice the letters.
            long = len(whole) > 2 * LONGEST_SENTENCE
            if long and "\n" not in whole and not whole.startswith("|"):
                yield from _sentences([(node.lineno, whole)])
            parts = [part for part in parts if isinstance(part, ast.FormattedValue)]
            left += [part.value for part in parts]
        else:
            left += ast.iter_child_nodes(node)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _is_signed_earlier(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _SIGNED_EARLIER


def _without_names(line: str) -> str:
    return _NAMES.sub("", line)


def sentences_of_page(text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each sentence of a page: no headings, tables and printed output."""
    text = _PRINTED.sub(_blank, text)
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*prose_of_page(text).splitlines(), ""], start=1):
        aside = not line.strip() or line.startswith(("#", "|", "!["))
        if block and (aside or _ITEM.match(line)):
            yield from _sentences(block)
            block = []
        if not aside:
            block.append((number, line))


def _sentences(block: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    starts, joined = [], ""
    for number, line in block:
        starts.append((len(joined), number))
        joined += _ABBREVIATIONS.sub(r"\1 ", line) + " "
    begin = 0
    for end in [*(found.end() for found in _END.finditer(joined)), len(joined)]:
        first = end - len(joined[begin:end].lstrip())
        yield max(number for place, number in starts if place <= first), joined[begin:end].strip()
        begin = end


def complaints(name: str, text: str, sentences: bool = True) -> list[str]:
    """What a file says in words that we do not use, and what too long sentences, a line each."""
    lines = list(enumerate(text.splitlines(), start=1))
    if name.endswith(".py") and not _BANNED.search(text):
        return []
    if name.endswith(".py"):
        lines = [
            (first + place, line)
            for first, string in strings_of_code(text)
            if not _NAME.fullmatch(string)
            for place, line in enumerate(map(_without_names, string.splitlines()))
        ]
    elif name.endswith(".md"):
        lines = list(enumerate(prose_of_page(text).splitlines(), start=1))
        # Words in tables are not judged: a table may list the words themselves.
        lines = [(number, line) for number, line in lines if not line.startswith("|")]
    elif name.endswith(".json"):
        lines = [(number, _without_names(line)) for number, line in lines]
    found = [
        f"{name}:{number}: {word[0]!r}: write {INSTEAD[word[0].lower()]}"
        for number, line in lines
        for word in _BANNED.finditer(line)
    ]
    if name.endswith(".md") and (sentences):
        found += _too_long(name, sentences_of_page(text))
    return found


def _too_long(name: str, sentences: Iterator[tuple[int, str]]) -> list[str]:
    counted = [(line, len(re.findall(r"\S*\w\S*", one)), one) for line, one in sentences]
    return [
        f"{name}:{line}: {words} words in a sentence: write two of at most "
        f"{LONGEST_SENTENCE}: {sentence[:60]!r}"
        for line, words, sentence in counted
        if words > LONGEST_SENTENCE
    ]


def found_by(patterns: tuple[str, ...]) -> list[str]:
    """Files by patterns. A pattern that finds no file is a mistake."""
    found = []
    for pattern in patterns:
        paths = sorted(ROOT.glob(pattern))
        assert paths, f"no file is {pattern}"
        found += [path.relative_to(ROOT).as_posix() for path in paths]
    return found


def test_pages_and_sources_keep_to_the_house_style():
    found = [
        one
        for patterns, sentences in ((HELD, True), (WORDS, False))
        for name in found_by(patterns)
        for one in complaints(name, (ROOT / name).read_text("utf-8"), sentences)
    ]
    assert not found, "docs/style.md:\n" + "\n".join(found)


def test_no_string_of_the_code_has_a_sentence_of_more_than_thirty_words():
    found = [
        one
        for name in found_by(STRINGS)
        for one in _too_long(
            name, sentences_of_code((ROOT / name).read_text("utf-8"), _SIGNED.get(name))
        )
    ]
    assert not found, "docs/style.md:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f'x = "It {"is " * 28}long."', []),
        (f'x = "It {"is " * 29}long."', [1]),
        (f'x = (\n    "It {"is " * 15}"\n    "{"is " * 15}long. Short."\n)', [2]),
        (f'x = "Short. It {"is " * 28}long."', []),
        (f"x = f\"It {'is ' * 28}{{'a b c'}}.\"", []),
        (f'x = f"It {"is " * 29}{{a}}."', [1]),
        ("x = f\"{y('It " + "is " * 29 + "long.')}\"", [1]),
        (f'"""It {"is " * 29}long."""\n\n\ndef f():\n    """It {"is " * 29}long."""', []),
        (f'x = """#!/bin/sh\n{"is " * 31}"""', []),
        (f'x = "| {"is " * 31}|"', []),
        (f'def signed():\n    return "{"is " * 31}"', []),
        (f'def unsigned():\n    return "{"is " * 31}"', [2]),
    ],
)
def test_a_long_sentence_is_found_in_strings_that_a_user_reads(text, lines):
    found = _too_long("a.py", sentences_of_code(text, "signed"))
    assert [int(one.split(":")[1]) for one in found] == lines


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.md", "The result is computed.\nIt is drawn anew.", ["a.md:2: 'anew': write again, or"]),
        ("a.md", "`anew` is a word\n\n    code towards\n\n[x](beside.md)", []),
        ("a.py", 'x = "ε towards the server"', ["a.py:1: 'towards': write against"]),
        ("a.py", '"""One.\n\nNothing but noise."""', ["a.py:3: 'Nothing but': write only"]),
        ("a.py", "towards = 1  # beside", []),
        ("a.py", 'x = f(["towards"], f"{beside}", "ε beside σ")', ["a.py:1: 'beside': write next"]),
        ("a.py", '"""One.\n\n    towards: Whom ``beside`` is.\n    """', []),
        ("a.py", '_SIGNED_EARLIER = ("Against", "Towards it")', []),
        ("a.json", '{"towards": {"required": ["towards"]}}', []),
        ("a.json", '{"x": "ε towards\\n"}', ["a.json:1: 'towards': write against"]),
        ("a.yaml", "name: x\ntitle: Whoever knows", ["a.yaml:2: 'Whoever': write anyone who"]),
        ("a.md", f"Short.\n\nOne. It {'is ' * 30}long.", ["a.md:3: 32 words in a sentence"]),
        ("a.md", f"It {'is ' * 28}long.", []),
        ("a.md", f"<!-- printed by this command -->\n{'is ' * 31}\n<!-- end -->\n", []),
        ("a.md", f"<!-- printed by this command -->\n<!-- end -->\n{'is ' * 31}", ["a.md:3: 31 w"]),
        ("a.md", f"* {'is ' * 20}\n* {'is ' * 20}\n\n# {'is ' * 40}\n\n| {'is ' * 40}|", []),
    ],
)
def test_a_word_is_found_in_prose_and_in_strings_alone(name, text, said):
    found = complaints(name, text)
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))
