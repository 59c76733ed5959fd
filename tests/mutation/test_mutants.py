"""The mutants of a module: what is changed, and what a person reads is not."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.mutation import second_verifier
from tests.mutation.__main__ import (
    ANY,
    ENDLESS,
    EQUIVALENT,
    KILLED,
    SURVIVED,
    Result,
    equivalents,
    sources_of,
    table,
    without_equivalents,
)
from tests.mutation.mutants import Mutant, mutants_of, statements


def edited(source: str) -> set[str]:
    """The module's lines as its mutants have them."""
    text = source.encode()
    return {mutant.lines(text)[1] for mutant in mutants_of("module.py", text)}


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b", {"a <= b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a is not None", {"x = a is None"}),
        ("x = a < b == c", {"x = a <= b == c", "x = a < b != c"}),
        ("x = a and b or c", {"x = a or b or c", "x = a and b and c"}),
        ("x = (a) * (b)", {"x = (a) / (b)"}),
        ("x = a ** 3", {"x = a * 3", "x = a ** 4", "x = a ** 2"}),
        ("x += y", {"x -= y", "x = y"}),
        ("x = -y", {"x = (y)"}),
        ("x = True", {"x = False"}),
        ("x = 0.5", {"x = 1.0"}),
        ("x = 'name'", {"x = 'Xname'"}),
        ("x = 'a' + f'{b}'", {"x = 'Xa' + f'{b}'"}),
        ("x = min(y)", {"x = max(y)"}),
        ("x = y.sum(dim=0)", {"x = y.sum()", "x = y.sum(dim=1)"}),
        ("x = f(a, b=c)", {"x = f(a)"}),
        ("x = [y for y in z if y]", {"x = [y for y in z if True]"}),
        ("if a:\n    f()", {"if (not (a)):", "pass"}),
        ("if a == b:\n    f()", {"if a != b:", "pass"}),
        ("def f():\n    return a", {"return None"}),
        ("while a:\n    break", {"while (not (a)):", "continue"}),
        ("@property\ndef f(self):\n    return self.a", {"return None"}),
    ],
)
def test_what_is_executed_is_changed_in_every_way_that_the_operators_know(source, mutants):
    assert edited(source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module is for."""',
        "import a",
        "x: int | None",
        "def f(a: Literal['b']) -> c[1]: ...",
        "x = 'a text of several words'",
        "x = f'{a} of {1 + 2}'",
        "__all__ = ['a']",
        "if TYPE_CHECKING:\n    x = 1",
        "x = isinstance(a, int | Path)",
        "class A(place=30): ...",
        "x = clean(a, 80)",
        "@dataclass(frozen=True)\nclass A: ...",
        "@lru_cache(maxsize=64)\ndef f(a): ...",
        "@functools.lru_cache(maxsize=64)\ndef f(a): ...",
        "x = zip(a, b, strict=True)",
        "x = axes.plot(y, color=BLUE, linewidth=1.2, s=24 if a else 10)",
        "x = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), title_justify='left')",
        "x = table.add_column(style='dim')",
    ],
)
def test_texts_annotations_and_imports_stay_as_they_are(source):
    assert edited(source) == set()


def test_whether_a_printed_text_is_cut_or_folded_is_no_look():
    assert edited("x = out.print(a, style='red', soft_wrap=True)") == {
        "x = out.print(a, style='red', soft_wrap=False)",
        "x = out.print(a, style='red')",
    }


def test_a_raise_is_left_out_as_a_whole_and_its_message_stays():
    assert edited("if a:\n    raise ValueError('key', 3 + 4)") == {"if (not (a)):", "pass"}


def test_a_mutant_is_one_edit_where_it_says():
    source = b"# \xc2\xa7 1\nx = 1\ny = a < b  # a < c\n"
    (comparison,) = [m for m in mutants_of("module.py", source) if m.operator == "comparison"]
    assert comparison.line == 3
    assert comparison.apply(source) == source.replace(b"a < b", b"a <= b")


def test_mutants_of_some_lines_are_those_of_these_lines():
    source = b"x = a < b\ny = 3\n"
    every = mutants_of("m.py", source)
    assert mutants_of("m.py", source, ["y = 3"]) == [one for one in every if one.line == 2] != []
    assert mutants_of("m.py", source, []) == []


def test_a_statement_of_several_lines_is_one_place_and_a_condition_ends_before_what_it_guards():
    source = b"if (a and\n        b):\n    f(\n        c,\n    )\n"
    assert statements(source) == {1: (1, 2), 2: (1, 2), 3: (3, 5), 4: (3, 5), 5: (3, 5)}


def of_any(path, text, lines):
    """The mutants of a module or of the second verifier."""
    if path == second_verifier.PATH:
        return second_verifier.mutants_of(text)
    return mutants_of(path, text, lines)


@pytest.mark.slow
def test_what_is_called_equivalent_is_still_a_mutant_and_has_a_reason():
    """A line that has changed since is judged again."""
    assert EQUIVALENT.is_file()
    known = equivalents()
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for module, before, _ in known:
        wanted[module].add(before)
    every = {
        (path, *mutant.lines(text))
        for path, text in sources_of(sorted(wanted)).items()
        for mutant in of_any(path, text, wanted[path])
    }
    every |= {(path, before, ANY) for path, before, _ in every}
    assert set(known) <= every
    assert all(len(reason.split()) > 3 for reason in known.values())


def test_a_line_that_only_says_how_fast_is_left_out_as_a_whole(monkeypatch):
    text = b"WIDE = 3 + 4\nTALL = 3 + 4\n"
    every = mutants_of("a.py", text)
    known = {("a.py", "WIDE = 3 + 4", ANY): "a matter of time", ("b.py", "TALL = 3 + 4", ANY): "no"}
    monkeypatch.setattr("tests.mutation.__main__.equivalents", lambda: known)
    left = without_equivalents(every, {"a.py": text})
    assert {mutant.lines(text)[0] for mutant in left} == {"TALL = 3 + 4"}
    assert len(left) < len(every)


def test_the_score_is_told_by_folder_with_its_interval():
    ledger, rounds = "dpfedadamw/privacy/ledger.py", "dpfedadamw/privacy/parts/rounds.py"
    results = [
        Result(Mutant(path, 0, 0, "", line, "operator"), "", outcome, 1)
        for line, (path, outcome) in enumerate(
            [(ledger, KILLED), (rounds, ENDLESS), (rounds, SURVIVED), ("audit/errors.py", KILLED)]
        )
    ]
    assert table(results, {ledger: 10, rounds: 20, "audit/errors.py": 3}).splitlines()[2:] == [
        "| `audit` | 3 | 1 | 1 | 100.0 % (2.5 to 100.0) |",
        "| `dpfedadamw/privacy` | 30 | 3 | 2 | 66.7 % (9.4 to 99.2) |",
        "| together | 33 | 4 | 3 | 75.0 % (19.4 to 99.4) |",
    ]
