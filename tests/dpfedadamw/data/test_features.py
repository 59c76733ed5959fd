"""Cells become numbers by declared constants alone, and again by the written form."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw.data.features import Preparation, day_in, number_in
from dpfedadamw.errors import DataError
from dpfedadamw.spec.column_section import (
    BooleanColumn,
    CategoryColumn,
    DateColumn,
    NumberColumn,
)

AGE = NumberColumn(name="age", low=0.0, high=100.0, indicator=True)
DOSE = NumberColumn(name="dose", low=0.0, high=999.0, scale="log", missing=0.0)
WARD = CategoryColumn(name="ward", categories=("A", "B"), unseen="other", missing="B")
CODE = CategoryColumn(name="code", buckets=4, indicator=True)
SMOKES = BooleanColumn(name="smokes", true_words=("ja",), false_words=("nein",))
SEEN = DateColumn(name="seen", low="2020-01-01", high="2020-01-11", format="DD.MM.YYYY")
ALL = Preparation(columns=(AGE, DOSE, WARD, CODE, SMOKES, SEEN), missing_values=("NA",))


def one(column, cell, **changes):
    """The features of one cell."""
    return Preparation(columns=(column,), **changes).prepare([[cell]])[0].tolist()


def test_numbers_are_held_to_their_bounds_and_scaled():
    assert [one(AGE, cell) for cell in ("0", "50", "100", "-3", "1e9", "")] == [
        [-1, 0], [0, 0], [1, 0], [-1, 0], [1, 0], [0, 1],
    ]  # fmt: skip
    for dose in (0.0, 7.5, 999.0):
        expected = 2 * math.log1p(dose) / math.log(1000) - 1
        assert one(DOSE, str(dose)) == pytest.approx([expected], abs=1e-6)
    both = NumberColumn(name="x", low=-9.0, high=9.0, scale="log")
    assert one(both, "-3") == pytest.approx([-math.log(4) / math.log(10)], abs=1e-6)
    assert one(DOSE, "NA", missing_values=("NA",)) == [-1]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        *(
            (
                NumberColumn(name="x", low=-20.0, high=100.0, scale=scale, missing=number),
                str(number),
            )
            for scale in ("linear", "log", "bins")
            for number in (-7.0, 0.0, 12.5, 60.0)
        ),
        (WARD, "B"),
        (CODE.replace(indicator=False, missing="E11"), "E11"),
        (SMOKES.replace(missing=True), "ja"),
        (SEEN.replace(missing="2020-01-03"), "03.01.2020"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.kind,
)
def test_an_empty_cell_is_what_the_cell_that_it_counts_as_is(column, told):
    assert one(column, "") == one(column, told)


def test_bins_have_public_edges_and_every_number_has_one():
    binned = NumberColumn(name="x", low=-1.0, high=12.0, scale="bins", indicator=True)
    below = [-(digit * 10.0**-power) for power in (1, 2, 3) for digit in (5, 2, 1)]
    edges = [*below, *(-edge for edge in reversed(below)), 1.0, 2.0, 5.0, 10.0]
    for cell in (-99.0, -0.3, 0.0, 0.001, 0.0015, 0.5, 1.0, 9.99, 10.0, 99.0):
        expected = [0.0] * (len(edges) + 2)
        expected[sum(cell >= edge for edge in edges)] = 1.0
        assert one(binned, str(cell)) == expected, cell
    assert one(binned, "") == [0.0] * (len(edges) + 1) + [1.0]
    names = Preparation(columns=(binned,)).features
    assert (names[0], names[-2], names[-1]) == (
        "x from -1 to -0.5",
        "x from 10 to 12",
        "x is empty",
    )
    assert one(binned.replace(indicator=False, missing=3.0), "") == one(binned, "3")[:-1]


def test_categories_are_one_hot_and_an_unseen_one_is_said_or_refused():
    assert [one(WARD, cell) for cell in ("A", "B", "C", "", " A ")] == [
        [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0],
    ]  # fmt: skip
    strict = CategoryColumn(name="ward", categories=("A", "B"))
    with pytest.raises(DataError, match="row 0: the column ward holds no category from its list"):
        one(strict, "C")


def test_a_bucket_is_a_public_hash_of_the_text_alone():
    for text in ("A", "ward 7", "Überwachung"):
        digest = hashlib.sha256(text.encode()).hexdigest()
        expected = [0.0] * 5
        expected[int(digest[:16], 16) % 4] = 1.0
        assert one(CODE, text) == expected
    assert one(CODE, "") == [0, 0, 0, 0, 1]


def test_truth_and_days():
    assert [one(SMOKES, cell) for cell in ("ja", "JA", "nein")] == [[1], [1], [0]]
    assert [one(SEEN, cell) for cell in ("1.1.2020", "06.01.2020", "11.01.2020 23:59")] == [
        [-1], [0], [1],
    ]  # fmt: skip
    assert one(SEEN, "31.12.1999") == [-1]


@pytest.mark.parametrize(
    ("cell", "form", "day"),
    [
        ("2024-02-29", "YYYY-MM-DD", "2024-02-29"),
        ("2024-02-29T10:00:00.5Z", "YYYY-MM-DD", "2024-02-29"),
        ("2024-02-29 10:00:00+01:00", "YYYY-MM-DD", "2024-02-29"),
        ("20240229", "YYYYMMDD", "2024-02-29"),
        ("29/2/2024", "DD/MM/YYYY", "2024-02-29"),
        ("2/29/2024", "MM/DD/YYYY", "2024-02-29"),
        ("2023-02-29", "YYYY-MM-DD", None),
        ("2024-02-29x", "YYYY-MM-DD", None),
        ("\u0662\u0660\u0662\u0664-02-29", "YYYY-MM-DD", None),
    ],
)
def test_only_days_that_there_are_are_read(cell, form, day):
    found = day_in(cell, form)
    assert (None if found is None else found.isoformat()) == day


@pytest.mark.parametrize(
    ("cell", "decimal", "number"),
    [
        (" 1.5 ", "point", 1.5),
        ("1,5", "point", None),
        ("1,5", "comma", 1.5),
        ("1.5", "comma", None),
        ("1.234,5", "comma", None),
        ("-7e2", "comma", -700.0),
        ("1_000", "point", None),
        ("\u0663", "point", None),
        ("nan", "point", None),
        ("inf", "point", None),
        ("1e39", "point", None),
        ("0x10", "point", None),
    ],
)
def test_only_plain_numbers_are_read(cell, decimal, number):
    assert number_in(cell, decimal) == number


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        (AGE, "secret", "the column age holds no finite number there; give one, or list this"),
        (AGE, "7,25", "where numbers have a decimal comma, set data.decimal: comma"),
        (SMOKES, "secret", "holds no true or false word there; give one, or list this"),
        (SEEN, "2020-01-01", "holds no day as DD.MM.YYYY there; give one, or the column's format"),
        (SEEN, "", "is empty there; set what such a cell counts as: missing, or indicator"),
        (WARD.replace(unseen="refuse"), "secret", "list it in categories, or set unseen: other"),
    ],
)
def test_a_refused_cell_is_placed_and_never_shown(column, cell, said):
    with pytest.raises(DataError, match=said) as refused:
        Preparation(columns=(column,)).prepare([[cell]], "t.csv: line {}".format)
    assert str(refused.value).startswith("t.csv: line 0: the column")
    assert not cell or cell not in str(refused.value)


def test_its_written_form_gives_the_same_features_again():
    rows = [["41", "3", "A", "x", "ja", "3.1.2020"], ["", "NA", "Z", "", "nein", "9.1.2020"]]
    again = Preparation.from_mapping(json.loads(json.dumps(ALL.to_mapping())))
    assert again == ALL
    assert np.array_equal(again.prepare(rows), ALL.prepare(rows))
    assert ALL.names == ("age", "dose", "ward", "code", "smokes", "seen")
    assert len(ALL.features) == ALL.prepare(rows).shape[1] == 2 + 1 + 3 + 5 + 1 + 1
    plain = Preparation(numbers=("age", "dose"))
    assert plain.features == ("age", "dose")
    assert plain.prepare([["7", "-2.5"]]).tolist() == [[7, -2.5]]


_CELLS = st.text(max_size=12) | st.sampled_from(
    ["9" * 5000, "-0", "1e308", "0000-01-01", "9999-12-31", "99.99.2020", "\ud800", "NA", " 7 "]
)


@pytest.mark.parametrize("column", [*ALL.columns, AGE.replace(scale="bins")], ids=str)
@settings(max_examples=60)
@given(cell=_CELLS, decimal=st.sampled_from(["point", "comma"]))
def test_whatever_a_cell_holds_becomes_numbers_from_minus_1_to_1_or_a_line(column, cell, decimal):
    preparation = Preparation(columns=(column,), missing_values=("NA",), decimal=decimal)
    try:
        found = preparation.prepare([[cell]])
    except DataError:
        return
    assert found.shape == (1, len(preparation.features))
    assert np.abs(found).max() <= 1


def test_a_record_is_prepared_alike_whatever_else_is_in_the_table():
    row = ["41", "3", "A", "x", "ja", "3.1.2020"]
    others = [[str(n), str(n * n), "C", str(n), "nein", "1.1.2001"] for n in range(50)]
    alone, among = ALL.prepare([row])[0], ALL.prepare([*others, row, *others])[50]
    assert np.array_equal(alone, among)
