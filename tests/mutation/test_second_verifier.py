"""The mutants of a script: what is changed, and what a person reads is not."""

from __future__ import annotations

import pytest

from tests.mutation import second_verifier


def edited(source: str) -> set[str]:
    """The script as its mutants have it."""
    text = source.encode()
    return {mutant.apply(text).decode() for mutant in second_verifier.mutants_of(text)}


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b;", {"a <= b;"}),
        ("x = a && !b;", {"x = a || !b;", "x = a && b;"}),
        ("x = a === 'q';", {"x = a !== 'q';"}),
        ('x = y + "q";', {'x = y + "Xq";'}),
        ("x = y - 2;", {"x = y + 2;", "x = y - (2 + 1);", "x = y - (2 - 1);"}),
        ("x = -y;", {"x = y;"}),
        ("if (a) b;", {"if (!(a)) b;"}),
        ("if (!a) b;", {"if (a) b;"}),
        (
            "if (a) refuse(said`no ${1 + 2}`);",
            {"if (!(a)) refuse(said`no ${1 + 2}`);", "if (a) null;"},
        ),
        ("faults.push(said`no`);", {"null;"}),
        ("throw error;", {"void error;"}),
        ("x = Math.max(a, b); // 1 < 2", {"x = Math.min(a, b); // 1 < 2"}),
    ],
)
def test_what_is_executed_is_changed(source: str, mutants: set[str]) -> None:
    assert edited(source) == mutants


@pytest.mark.parametrize(
    "source",
    ["/* 1 < 2 */", "x = `${a ? `${1}` : 2}`;", 'x = "two words";', "x = /[/<]1+/y;", 'x = "";'],
)
def test_remarks_sentences_and_expressions_of_characters_stay(source: str) -> None:
    assert edited(source) == set()


def test_the_verifier_is_read_to_its_end() -> None:
    text = (second_verifier.processes.ROOT / second_verifier.PATH).read_text("utf-8")
    found = second_verifier.tokens(text)
    assert text.rstrip().endswith("".join(one[3] for one in found[-4:]))
    assert len(second_verifier.mutants_of(text.encode())) > 3000
