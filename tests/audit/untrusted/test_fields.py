"""Fields of hostile mappings: what each reader takes, and what it refuses with the field's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from audit.untrusted import fields
from audit.untrusted.fields import FieldError

Read = Callable[[Any, str], Any]

# By reader: values that it takes, and values that it refuses.
CASES: dict[str, tuple[Read, list[Any], list[Any]]] = {
    "mapping": (fields.mapping, [{}, {"a": 1}], [[], "a", 1, None]),
    "list": (fields.sequence, [[], [1, "a"]], [(), "ab", {"a": 1}, 1, None]),
    "short list": (
        lambda source, key: fields.sequence(source, key, most=2), [[], [1, 2]], [[1, 2, 3]],
    ),
    "text": (fields.text, ["", "a\nb", "x" * 4096], ["x" * 4097, 1, None, ["a"], b"a"]),
    "text of a form": (
        lambda source, key: fields.text(source, key, pattern="[a-c]{2}"),
        ["ab", "cc"], ["a", "abc", "ad", "ab\n", " ab"],
    ),
    "choice": (
        lambda source, key: fields.choice(source, key, ("one", "two")),
        ["one", "two"], ["on", "One", "", 1, None, ["one"]],
    ),
    "whole number": (
        fields.integer, [0, 1, 2**53], [-1, 2**53 + 1, True, False, 1.0, "1", None, math.nan],
    ),
    "whole number of a range": (
        lambda source, key: fields.integer(source, key, least=-3, most=5),
        [-3, 0, 5], [-4, 6, True],
    ),
    "number": (
        fields.number, [0, -5, 2.5, -1e300, 1.7e308],
        [math.inf, -math.inf, math.nan, True, "1", None, [1.0]],
    ),
    "number of a range": (
        lambda source, key: fields.number(source, key, least=-0.5, most=2.0),
        [-0.5, 0, 2, 2.0], [-0.5000001, 2.0000001, math.nan],
    ),
    "number above zero": (fields.positive, [5e-324, 1, 1e300], [0, 0.0, -0.0, -1, 1.1e300, True]),
    "share": (
        lambda source, key: fields.positive(source, key, most=1.0),
        [1, 1.0, 0.25], [0.0, 1.0000001],
    ),
    "truth value": (fields.flag, [True, False], [0, 1, "true", None]),
    "whole numbers": (
        fields.integers, [[], [0, 1], [2**53]], [[-1], [1.0], [True], [2**53 + 1], 1, "1", (1,)],
    ),
    "whole numbers of a range": (
        lambda source, key: fields.integers(source, key, least=1, most=3),
        [[1, 2, 3]], [[0], [4], [1, 2, 3, 4]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_reader_returns_what_it_takes_and_names_the_field_that_it_refuses(name: str) -> None:
    read, taken, refused = CASES[name]
    for value in taken:
        found = read({"field": value}, "field")
        assert (list(found) if isinstance(found, tuple) else found) == value, value
    for value in refused:
        with pytest.raises(FieldError, match="field"):
            read({"field": value}, "field")


@pytest.mark.parametrize("name", CASES)
def test_a_field_that_is_not_there_is_missing_and_no_other_stands_in(name: str) -> None:
    read, (value, *_), _ = CASES[name]
    source: Any
    for source in ({}, {"other": value}, [value], "field", None, 3):
        with pytest.raises(FieldError, match="field is missing"):
            read(source, "field")


def test_numbers_are_read_in_floating_point_and_single_values_by_the_same_rules() -> None:
    assert isinstance(fields.number({"field": 3}, "field"), float)
    assert isinstance(fields.positive({"field": 3}, "field"), float)
    assert fields.as_number(-1e300, "it") == -1e300
    assert (fields.as_integer(0, "it"), fields.as_integer(2**53, "it")) == (0, 2**53)
    for value in (-1, 2**53 + 1, True):
        with pytest.raises(FieldError, match="it is not a whole number"):
            fields.as_integer(value, "it")
    for value in (math.inf, True, "1"):
        with pytest.raises(FieldError, match="it is not a number"):
            fields.as_number(value, "it")
