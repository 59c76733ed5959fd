"""What is seen of a table before there is a spec, and what is proposed of its columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfedadamw.cli.init_words import warnings
from dpfedadamw.data.proposal import Known, bounds, outward, propose, read_dictionary
from dpfedadamw.data.survey import Seen, Survey, survey, told
from dpfedadamw.errors import DataError

# A column, and the cell that it has in row n of forty.
COLUMNS = {
    "Patient_ID": ("identifier", lambda n: f"P{n % 30}"),
    "code": ("identifier", lambda n: f"x{n * 7919}"),
    "age": ("number", lambda n: f"{20 + n % 37}" if n else ""),
    "crp": ("number", lambda n: f"{n},{n % 7}"),
    "zero_or_one": ("boolean", lambda n: str(n % 2)),
    "smoker": ("boolean", lambda n: ("Yes", "No", "NA")[n % 3]),
    "ward": ("category", lambda n: "ABC"[n % 3]),
    "grade": ("category", lambda n: ("1", "2", "n")[n % 3]),
    "born": ("date", lambda n: f"{1 + n % 28:02d}.05.19{40 + n}"),
    "seen": ("date", lambda n: f"2020-01-{1 + n % 28:02d} 10:{n:02d}:00"),
    "day": ("date", lambda n: f"202001{1 + n % 28:02d}"),
    "american": ("date", lambda n: f"1/{1 + n % 28}/2020"),
    "unit": ("constant", lambda n: "mg"),
    "nothing": ("empty", lambda n: ("", "NA", "?")[n % 3]),
    "letter": ("text", lambda n: f"the patient of bed {n % 9} was well this morning"),
    "": ("empty", lambda n: str(n)),
}


@pytest.fixture
def table(tmp_path):
    """A table with a column of each kind."""
    lines = [";".join(make(n) for _, make in COLUMNS.values()) for n in range(40)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([";".join(COLUMNS), *lines, ""]), "utf-8-sig")
    return path


def test_each_kind_of_column_is_told(table):
    found = survey(table)
    assert {one.name: one.kind for one in found.columns} == {
        name: kind for name, (kind, _) in COLUMNS.items()
    }
    assert found.decimal == "comma"
    seen = {one.name: one for one in found.columns}
    assert {name for name, one in seen.items() if one.has_empty} == {"age", "smoker", "nothing"}
    assert (seen["Patient_ID"].repeats, seen["code"].repeats) == (True, False)
    forms = ("DD.MM.YYYY", "YYYY-MM-DD", "YYYYMMDD", "MM/DD/YYYY")
    assert tuple(seen[name].format for name in ("born", "seen", "day", "american")) == forms


def test_whole_numbers_of_a_small_table_are_no_identifier_and_of_a_large_one_are(tmp_path):
    for rows, kind in ((100, "number"), (2000, "identifier")):
        path = tmp_path / f"{rows}.csv"
        path.write_text("a,b\n" + "".join(f"{n},{n % 2}\n" for n in range(rows)))
        assert survey(path).columns[0].kind == kind


def test_what_the_private_table_holds_is_in_no_proposal(table):
    for one in survey(table).columns:
        keys = propose(one, Known()).keys
        if keys is not None:
            constants = {"low", "high", "buckets", "scale"} & set(keys)
            assert {name: keys[name] for name in constants} in (
                {"low": -1e6, "high": 1e6, "scale": "bins"},
                {"low": "1900-01-01", "high": "2099-12-31"},
                {"buckets": 64},
                {},
            )
            assert "categories" not in keys


def test_a_public_sample_and_a_dictionary_give_bounds_and_categories(table, tmp_path):
    dictionary = tmp_path / "d.csv"
    dictionary.write_text(
        "Variable;Type;Min;Max;Values;Missing\nage;integer;0;120;;60\ngrade;factor;;;1|2|n;\n"
        "born;;1900-01-01;2010-12-31;;\ncode;nominal;;;a|b;\nward;skip;;;;\n"
    )
    known = Known(read_dictionary(dictionary), survey(table))
    items = {one.name: propose(one, known).keys for one in survey(table).columns}
    assert items["age"] == {
        "name": "age", "kind": "number", "low": 0.0, "high": 120.0, "missing": 60.0,
        "indicator": True,
    }  # fmt: skip
    assert items["grade"] is not None
    assert (items["grade"]["categories"], items["grade"]["unseen"]) == (["1", "2", "n"], "other")
    assert items["born"] is not None
    assert (items["born"]["low"], items["born"]["format"]) == ("1900-01-01", "DD.MM.YYYY")
    assert items["code"] is not None
    assert items["code"]["categories"] == ["a", "b"]
    assert items["ward"] is None
    assert items["crp"] is not None
    assert (items["crp"]["low"], items["crp"]["high"]) == (0.0, 40.0)
    assert items["seen"] is not None
    assert (items["seen"]["low"], items["seen"]["high"]) == ("2020-01-01", "2020-01-28")


@pytest.mark.parametrize(
    ("line", "kind", "keys"),
    [
        # A dictionary has bounds of every column; what it says a column is counts.
        ("pid,identifier,1,300,", "number", None),
        ("ward,category,1,5,", "number", {"kind": "category", "buckets": 64}),
        ("ill,boolean,0,1,1", "number", {"kind": "boolean", "missing": True}),
        ("day,date,1,9,", "number", {"kind": "date", "low": "1900-01-01", "high": "2099-12-31"}),
        ("age,,0,9,6", "category", {"kind": "number", "low": 0.0, "high": 9.0, "missing": 6.0}),
        ("age,,,,60", "number", {"kind": "number", "low": -1e6, "high": 1e6, "scale": "bins",
                                 "missing": 60.0}),
        ("age,,,,none", "category", {"kind": "category", "buckets": 64, "missing": "none"}),
    ],
)  # fmt: skip
def test_a_dictionary_says_what_a_column_is_before_its_bounds_do(line, kind, keys, tmp_path):
    (tmp_path / "d.csv").write_text(f"name,kind,low,high,missing\n{line}\n")
    name = line.partition(",")[0]
    found = propose(Seen(name, kind), Known(read_dictionary(tmp_path / "d.csv"))).keys
    assert found == (None if keys is None else {"name": name, **keys})


def test_a_number_that_stands_for_an_empty_cell_is_one(tmp_path):
    (tmp_path / "d.csv").write_text("name,missing\nage,none\n")
    known = Known(read_dictionary(tmp_path / "d.csv"))
    with pytest.raises(DataError, match="--dictionary: age: missing: found 'none'; give a number"):
        propose(Seen("age", "number"), known)


@pytest.mark.parametrize(
    ("said", "own", "public", "found"),
    [
        ("MM/DD/YYYY", "DD/MM/YYYY", "YYYYMMDD", {"format": "MM/DD/YYYY"}),
        ("", "DD/MM/YYYY", "YYYYMMDD", {"format": "DD/MM/YYYY"}),
        ("", "", "YYYYMMDD", {"format": "YYYYMMDD"}),
        # The form that a spec takes where it says none.
        ("YYYY-MM-DD", "DD/MM/YYYY", "YYYYMMDD", {}),
        ("", "", "", {}),
    ],
)
def test_a_dictionary_says_how_days_are_written_before_the_tables_do(said, own, public, found):
    dictionary = {"born": {"kind": "date", **({"format": said} if said else {})}}
    sample = Survey(Path("s.csv"), (Seen("born", "date", format=public),), "point")
    keys = propose(Seen("born", "date", format=own), Known(dictionary, sample)).keys
    assert keys is not None
    assert {name: value for name, value in keys.items() if name == "format"} == found


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0.0, 119.3, (0.0, 120.0)),
        (-0.01234, 0.0777, (-0.013, 0.078)),
        (1234.0, 1236.0, (1200.0, 1300.0)),
        (5.0, 5.0, (5.0, 6.0)),
    ],
)
def test_bounds_of_a_sample_are_rounded_outward(low, high, found):
    assert outward(low, high) == pytest.approx(found)


@pytest.mark.parametrize(
    ("cells", "decimal", "with_comma", "with_point", "with_thousands"),
    [
        # Charges with commas between thousands, next to numbers with a point.
        ({"a": ['"1,234"', "950"], "b": ["14.2", "7"]}, "point", (), ("b",), ("a",)),
        ({"a": ['"1,5"', "2"], "b": ["14.2", "7"]}, "comma", ("a",), ("b",), ()),
        ({"a": ['"1,5"', "2"], "b": ['"1,234"', "7"]}, "comma", ("a",), (), ("b",)),
        ({"a": ['"0,512"', "2"], "b": ["1", "7"]}, "comma", ("a",), (), ()),
        ({"a": ['"12,345,678.5"', "2"], "b": ["1", "7"]}, "point", (), (), ("a",)),
        ({"a": ['"1,234"', "unknown"], "b": ["1", "7"]}, "point", (), (), ()),
    ],
)
def test_commas_between_thousands_are_no_decimal_commas(
    tmp_path, cells, decimal, with_comma, with_point, with_thousands
):
    rows = ["a,b,c", *(f"{a},{b},x" for a, b in zip(*cells.values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(rows * 1))
    found = survey(tmp_path / "t.csv")
    assert found.decimal == decimal
    assert (found.with_comma, found.with_point) == (with_comma, with_point)
    assert found.with_thousands == with_thousands


def test_days_that_can_be_read_in_two_ways_are_told(tmp_path):
    days = [f"0{1 + n % 9}/01/2020,{13 + n % 9}/01/2020,{n % 2}" for n in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["seen,clear,ill", *days]))
    found = survey(tmp_path / "t.csv")
    seen, clear = found.column("seen"), found.column("clear")
    assert (seen.format, seen.other_format) == ("DD/MM/YYYY", "MM/DD/YYYY")
    assert (clear.format, clear.other_format) == ("DD/MM/YYYY", "")
    proposed = [propose(column, Known({}, None)) for column in found.columns]
    (line, *_) = warnings(found, told(found.path, "ill", None), proposed, "ill", None, None)
    assert line.startswith("seen is read as DD/MM/YYYY, and all its cells are days by MM/DD/YYYY")


def test_a_name_that_two_columns_have_is_not_shown_for_it_may_be_a_cell(tmp_path):
    (tmp_path / "t.csv").write_text("P17,diabetes,diabetes\nP18,asthma,none\n")
    with pytest.raises(DataError, match="the columns 2 and 3 have one name") as error:
        survey(tmp_path / "t.csv")
    assert "diabetes" not in str(error.value)


def test_bounds_are_two_numbers_or_two_days():
    assert bounds("0", "1.5", "here") == {"low": 0.0, "high": 1.5}
    assert bounds("2020-01-01", "2021-01-01", "here") == {"low": "2020-01-01", "high": "2021-01-01"}
    for wrong in (("0", "x"), ("2020-02-30", "2021-01-01"), ("2", "1"), ("", "")):
        with pytest.raises(DataError, match="here: found"):
            bounds(*wrong, "here")


def test_a_column_that_is_the_label_in_other_words_is_found(tmp_path):
    rows = [f"{n % 2},{('well', 'ill')[n % 2]},{n},{n % 3},c{n % 4}\n" for n in range(60)]
    rows += [",ill,60,0,c1\n"]
    (tmp_path / "t.csv").write_text("label,words,number,third,who\n" + "".join(rows))
    found = told(tmp_path / "t.csv", "label", "who")
    # The client's own column says it too here: four clients, each of one label.
    assert found.telling == ("words", "who")
    assert found.labels == {"0": 30, "1": 30, "": 1}
    # A row without a label is no client's record: it will not be trained on.
    assert found.clients == {"c0": 15, "c1": 15, "c2": 15, "c3": 15}
    assert found.with_empty == {"label"}


def test_a_class_may_be_called_as_an_empty_cell_is_elsewhere(tmp_path):
    (tmp_path / "t.csv").write_text("region,age\n" + "NA,1\nEU,?\n,3\n" * 5)
    assert told(tmp_path / "t.csv", "region", None).labels == {"EU": 5, "": 10}
    found = told(tmp_path / "t.csv", "region", None, ["NA", "EU"])
    assert found.labels == {"NA": 5, "EU": 5, "": 5}
    assert found.with_empty == {"region", "age"}


@pytest.mark.parametrize(
    "word", ["", " ", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "?"]
)
def test_each_word_for_an_empty_cell_leaves_a_column_what_it_is(word, tmp_path):
    lines = [f"{n % 7}.5,{'ab'[n % 2]},{('yes', 'no')[n % 2]}\n" for n in range(12)]
    lines.insert(4, f"{word},{word},{word}\n")
    (tmp_path / "t.csv").write_text("age,ward,ill\n" + "".join(lines))
    found = survey(tmp_path / "t.csv")
    assert [one.kind for one in found.columns] == ["number", "category", "boolean"]
    assert [one.has_empty for one in found.columns] == [True] * 3
    assert (found.columns[0].low, found.columns[0].high) == (0.5, 6.5)
    assert found.columns[1].values == ("a", "b")
    assert told(tmp_path / "t.csv", "ill", None).labels == {"yes": 6, "no": 6, "": 1}


def test_of_each_column_that_is_left_out_it_is_told_why(table):
    reasons = {one.name: one.reason for one in survey(table).columns if one.reason}
    assert set(reasons) == {
        name for name, (kind, _) in COLUMNS.items()
        if kind in ("identifier", "text", "constant", "empty")
    }  # fmt: skip
    said = {
        "Patient_ID": "name suggests",
        "code": "no two rows",
        "unit": "the same",
        "nothing": "no cell",
        "letter": "sentences",
        "": "no name",
    }
    assert {name for name, words in said.items() if words not in reasons[name]} == set()


@pytest.mark.parametrize(
    ("kind", "rows", "cell"),
    [
        ("number", 2000, lambda n: f"{n}.5"),
        ("identifier", 2000, lambda n: f"{n}.0"),
        ("category", 40, lambda n: ("a b c d e", "b c d e f")[n % 2]),
        ("text", 40, lambda n: ("a b c d e", "b c d e f g")[n % 2]),
        ("identifier", 2000, lambda n: f"x{n % 1001}"),
        ("category", 2000, lambda n: f"x{n % 1000}"),
        ("category", 2002, lambda n: f"x{n % 1001}"),
        ("boolean", 40, lambda n: ("yes", "no")[n % 2]),
        ("category", 40, lambda n: ("1", "yes")[n % 2]),
        ("identifier", 20, lambda n: f"x{n}"),
        ("category", 19, lambda n: f"x{n}"),
        ("identifier", 1000, lambda n: f"{n}"),
        ("number", 999, lambda n: f"{n}"),
        ("date", 40, lambda n: f"202001{10 + n % 20}"),
        ("number", 40, lambda n: f"302001{10 + n % 20}"),
    ],
)
def test_each_kind_of_column_begins_where_it_is_said_to(kind, rows, cell, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{cell(n)},{n % 2}\n" for n in range(rows)))
    assert survey(tmp_path / "t.csv").columns[0].kind == kind


@pytest.mark.parametrize(("count", "found"), [(50, ("words",)), (51, ())])
def test_a_column_of_more_than_fifty_words_is_not_the_label_in_other_words(count, found, tmp_path):
    rows = [f"w{n % count},{n % count % 2}\n" for n in range(400)]
    (tmp_path / "t.csv").write_text("words,label\n" + "".join(rows))
    assert told(tmp_path / "t.csv", "label", None).telling == found
