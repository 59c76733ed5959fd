"""Data as people have them: frames, arrays, data sets of pairs, Parquet, and a folder a client."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import load
from dpfedadamw.data.features import Preparation
from dpfedadamw.data.handed_over import handed_over, unlabelled
from dpfedadamw.errors import DataError, SpecError
from dpfedadamw.models.own_modules import plain_tokens
from tests.runs import small_spec

SECRET = "Jane Doe's diagnosis"
COLUMNS = {
    "age": [0.5, 0.25, 0.125, 0.75],
    "pressure": [1, 2, 3, 4],
    "hospital": ["north", "south", "north", "south"],
    "label": ["ill", "well", "ill", "well"],
}
BY_HOSPITAL = {"kind": "column", "column": "hospital"}


def section(**data):
    """The section `data` of a spec whose records are handed over."""
    mapping = small_spec().to_mapping()
    mapping["data"] = {"dataset": "given", "clients": 2, "test_fraction": 0.25, **data}
    mapping["federation"]["clients_per_round"] = 1
    return specs.from_mapping(mapping).data


def read(data, preprocessing=None, **keys):
    with handed_over(data):
        return load(section(**keys), preprocessing)


def frames():
    """The same table as each library that is here has it."""
    made = []
    for library, make in (
        ("pandas", lambda found: found.DataFrame(COLUMNS)),
        ("polars", lambda found: found.DataFrame(COLUMNS)),
        ("pyarrow", lambda found: found.table(COLUMNS)),
        ("datasets", lambda found: found.Dataset.from_dict(COLUMNS)),
    ):
        made.append(pytest.param(library, make, id=library))
    return made


@pytest.mark.parametrize(("library", "make"), frames())
def test_frames_of_every_library_are_the_same_records(library, make):
    found = read(make(pytest.importorskip(library)), partition=BY_HOSPITAL)
    assert found.input_shape == (2,)
    assert found.classes == 2
    assert sorted([*found.train.labels, *found.test.labels]) == [0, 0, 1, 1]
    # North's are ill, south's are well: whose each is stays with it through the split.
    assert found.clients.tolist() == found.train.labels.tolist()
    rows = torch.cat([found.train.inputs[:], found.test.inputs[:]])
    assert sorted(rows[:, 1].tolist()) == [1, 2, 3, 4]
    reference = read(_Frame(COLUMNS), partition=BY_HOSPITAL)
    assert found.sha256 == reference.sha256
    assert found.sha256 != read(_Frame(COLUMNS), numbers=["age"], partition=BY_HOSPITAL).sha256


class _Frame:
    """The least that a frame has."""

    def __init__(self, columns):
        self._columns = columns

    @property
    def columns(self):
        return list(self._columns)

    def __getitem__(self, name):
        return self._columns[name]


def test_pairs_arrays_and_pictures_are_read_and_test_records_may_be_given():
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    labels = [0, 1, 2, 0, 1, 2]
    pairs = [(Image.fromarray(one), label) for one, label in zip(pixels, labels, strict=True)]
    pictures = read(pairs)
    assert (pictures.input_shape, pictures.classes) == ((1, 8, 8), 3)
    assert float(pictures.train.inputs[:].max()) <= 1.0
    tensors = torch.utils.data.TensorDataset(torch.randn(6, 4), torch.tensor(labels))
    assert read(tensors).input_shape == (4,)
    parts = {"train": (np.ones((5, 3)), [0, 1, 0, 1, 0]), "test": (torch.zeros(2, 3), [1, 1])}
    both = read(parts)
    assert (len(both.train), len(both.test), both.classes) == (5, 2, 2)


def test_a_picture_with_a_palette_has_the_colours_that_it_shows():
    colours = {"red": (255, 0, 0), "blue": (0, 0, 255)}
    plain = [(Image.new("RGB", (2, 2), one), label) for label, one in enumerate(colours.values())]
    small = [(one.quantize(), label) for one, label in plain]
    assert {one.mode for one, _ in small} == {"P"}
    for pictures in (plain, small):
        found = read(pictures * 10).train.inputs[:]
        assert found.shape[1:] == (3, 2, 2)
        assert len(found[:, :, 0, 0].unique(dim=0)) == 2


def test_a_column_of_a_frame_may_have_a_number_for_its_name():
    columns = {0: [0.5, 1.5, 2.5, 3.5], 1: [1, 2, 3, 4], "label": [0, 1, 0, 1]}
    assert read(_Frame(columns)).input_shape == (2,)
    assert read(_Frame(columns), numbers=["1"]).input_shape == (1,)


def test_a_column_of_arrays_holds_no_number(recwarn):
    columns = {"wave": [np.ones(3)] * 4, "label": [0, 1, 0, 1]}
    wave = [{"name": "wave", "kind": "number", "low": 0, "high": 1}]
    with pytest.raises(DataError, match=r"data \(train\): row 0: .*wave"):
        read(_Frame(columns), columns=wave)


NUMBER, TEXT, ARRAY = [1.0, 2.0, 3.0, 4.0], ["good", "bad", "good", "bad"], [[1.0, 2.0]] * 4


@pytest.mark.parametrize(
    ("columns", "shape"),
    [
        ([NUMBER], (1,)),
        ([NUMBER] * 3, (3,)),
        ([[True, False, True, False]], (1,)),
        ([ARRAY], (2,)),
        ([TEXT], (2, 5)),
        ([TEXT] * 2, (2, 5)),
        ([], None),
        ([NUMBER, TEXT], None),
        ([NUMBER, ARRAY], None),
        ([TEXT, ARRAY], None),
        # A record is one text or a pair, and one array.
        ([TEXT] * 3, None),
        ([ARRAY] * 2, None),
    ],
)
def test_what_records_are_made_of_is_guessed_only_where_there_is_one_way(columns, shape):
    given = {f"column {place}": cells for place, cells in enumerate(columns)}
    frame = _Frame({**given, "label": [0, 1, 0, 1]})
    tokens = plain_tokens("words", 50, 5) if TEXT in columns else None
    if shape is None:
        named = ", ".join(given) or "none besides the label"
        with pytest.raises(DataError, match=rf"name the columns .* there are {named}$"):
            read(frame, tokens)
    else:
        assert read(frame, tokens).input_shape == shape


@pytest.mark.parametrize("named", [False, True])
def test_the_second_of_two_texts_is_read_guessed_or_named(named):
    other = ["well", "ill", "fine", "bad"]
    tokens = plain_tokens("words", 50, 9)
    pairs, again, single = (
        read(
            _Frame({**columns, "label": [0, 1, 0, 1]}),
            tokens,
            **({"text": list(columns), "label": "label"} if named else {}),
        ).sha256
        for columns in ({"a": TEXT, "b": other}, {"a": TEXT, "b": TEXT}, {"a": TEXT})
    )
    assert len({pairs, again, single}) == 3


PREPARED = [
    {"name": "age", "kind": "number", "low": 0, "high": 100, "missing": 50},
    {"name": "sex", "kind": "category", "categories": ["f", "m"]},
    {"name": "smokes", "kind": "boolean"},
]
PEOPLE = {
    "age": [25, None, 100.0, float("nan")],
    "sex": ["f", "m", "m", "f"],
    "smokes": [True, False, "yes", "no"],
    "label": ["ill", "well", "ill", "well"],
}


def test_columns_of_a_frame_are_prepared_as_those_of_a_table(tmp_path):
    given = read(_Frame(PEOPLE), columns=PREPARED, test_fraction=0.5)
    lines = [",".join(PEOPLE)]
    for row in zip(*PEOPLE.values(), strict=True):
        lines.append(",".join("" if one is None or one != one else str(one) for one in row))
    (tmp_path / "people.csv").write_text("\n".join(lines))
    path = str(tmp_path / "people.csv")
    keys = section(columns=PREPARED, test_fraction=0.5).to_mapping() | {"dataset": "table"}
    del keys["records"]
    table = load(specs.data_of(keys | {"path": path}))
    for part in ("train", "test"):
        ours, theirs = getattr(given, part), getattr(table, part)
        assert torch.equal(ours.inputs[:], theirs.inputs[:])
        assert ours.labels.tolist() == theirs.labels.tolist()
    whole = torch.cat([given.train.inputs[:], given.test.inputs[:]])
    assert sorted(whole[:, 0].tolist()) == [-0.5, 0.0, 0.0, 1.0]
    assert given.read_by["dataset"] == "table"
    assert given.read_by["columns"] == table.read_by["columns"]


def test_rows_of_a_service_are_prepared_as_the_records_were():
    preparation = Preparation.of(section(columns=PREPARED))
    rows = [dict(zip(PEOPLE, row, strict=True)) for row in zip(*PEOPLE.values(), strict=True)]
    frame = unlabelled(_Frame(PEOPLE), (), preparation, "rows")
    assert unlabelled(rows, (), preparation, "rows").values.tolist() == frame.values.tolist()
    with pytest.raises(DataError, match=r"row 1: the column sex holds no category from its list"):
        unlabelled([rows[0], rows[0] | {"sex": SECRET}], (), preparation, "rows")
    with pytest.raises(DataError, match=r"has no column 'sex' among its 1"):
        unlabelled([{"age": 1}], (), preparation, "rows")
    with pytest.raises(DataError, match=r"give a frame, or a list of dictionaries"):
        unlabelled(np.zeros((2, 4)), (), preparation, "rows")


class NothingKnown:
    """What pandas has for a missing cell of its nullable types: no comparison has an answer."""

    def __eq__(self, other):
        return self

    __ne__ = __eq__
    __hash__ = None

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def test_numbers_of_a_service_are_prepared_though_the_table_had_decimal_commas():
    preparation = replace(Preparation.of(section(columns=PREPARED)), decimal="comma")
    rows = [
        {"age": 12.5, "sex": "f", "smokes": True},
        {"age": "12,5", "sex": "f", "smokes": "yes"},
        {"age": NothingKnown(), "sex": "m", "smokes": False},
        {"age": "", "sex": "m", "smokes": "no"},
    ]
    one, two, three, four = unlabelled(rows, (), preparation, "rows").values.tolist()
    assert (one, three) == (two, four)
    assert (one[0], three[0]) == (-0.75, 0.0)


def test_people_and_clients_of_a_frame_are_those_of_a_table():
    given = {**PEOPLE, "label": [0, 1, 0, 1], "who": ["P7", "P7 ", " P8", "P8"]}
    keys = {"columns": PREPARED, "test_fraction": 0.5, "person": "who"}
    found = read(_Frame(given), **keys)
    assert len(set(found.people.stored)) == 2
    for cell, missing in ((None, []), (float("nan"), []), (" ", []), ("NA", ["NA"])):
        wrong = {**given, "who": ["P7", "P7", "P8", cell]}
        with pytest.raises(DataError, match="row 3: names no person"):
            read(_Frame(wrong), missing_values=missing, **keys)
        partition = {"kind": "column", "column": "who"}
        own = {"columns": PREPARED, "partition": partition, "missing_values": missing}
        with pytest.raises(DataError, match="row 3: names no client; name the client"):
            read(_Frame(wrong), **own)


def test_the_clients_column_is_no_feature_of_test_records_either():
    part = {"age": [1, 2, 3, 4], "clinic": [1, 2, 1, 2], "label": [0, 1, 0, 1]}
    parts = {"train": _Frame(part), "test": _Frame(part)}
    found = read(parts, partition={"kind": "column", "column": "clinic"})
    assert found.test.inputs[:].shape == (4, 1)


def test_a_frame_with_two_columns_of_one_name_is_refused():
    class Twice(_Frame):
        columns = (*PEOPLE, "age")

    with pytest.raises(DataError, match="has 2 columns 'age'; rename all but one"):
        read(Twice(PEOPLE), columns=PREPARED)


def test_texts_become_a_models_tokens():
    texts = _Frame({"letter": ["a good one", "a bad one", "good", "bad"], "label": [1, 0, 1, 0]})
    assert read(texts, plain_tokens("words", 50, 5)).input_shape == (2, 5)


@pytest.mark.parametrize(
    ("data", "keys", "message"),
    [
        (None, {}, r"passed from Python.*api\.resume\(folder, data=…\)"),
        ({"train": [], "valid": []}, {}, "use train and test"),
        (
            _Frame(COLUMNS),
            {"label": "lable"},
            "no column 'lable' among its 4; did you mean",
        ),
        (
            _Frame(COLUMNS),
            {"classes": ["ill", "dead"], "numbers": ["age"]},
            "row 1: its label is not one of",
        ),
        (_Frame(COLUMNS), {}, r"name the columns to read in data\.numbers"),
        (
            _Frame(COLUMNS | {"age": [0.5, SECRET, 1.0, 1.0]}),
            {"numbers": ["age"]},
            "row 1: the column age holds no finite number",
        ),
        (_Frame(COLUMNS | {"age": [SECRET, None, "", ""]}), {"text": ["age"]}, "row 1: the column"),
        (_Frame(COLUMNS | {"label": [0, SECRET, 1, 0]}), {"numbers": ["age"]}, "labels must be"),
        (_Frame(COLUMNS | {"label": [0, -1, 1, 0]}), {"numbers": ["age"]}, "must be 0, 1, 2"),
        (_Frame(COLUMNS | {"label": ["a", " ", "b", "a"]}), {"numbers": ["age"]}, "an empty label"),
        ((np.zeros((3, 2)), [1, 1, 1]), {}, "all records have one class"),
        ((np.zeros(3), [0, 1, 0]), {}, r"has shapes \(3,\) and \(3,\)"),
        ((np.full((2, 2), np.nan), [0, 1]), {}, "not finite"),
        ((np.array([[SECRET], ["x"]]), [0, 1]), {}, "needed are real numbers"),
        ([(np.zeros(2), 0), SECRET], {}, "row 1: is not a pair"),
        ([(np.zeros(2), 0), (np.zeros(3), 1)], {}, r"row 1: has shape \(3,\), others have \(2,\)"),
        ([(object(), 0)], {}, "needed are real numbers"),
        (object(), {}, "is neither a frame"),
        (SECRET.__iter__(), {}, r"cannot be indexed; give data=list"),
        (DataLoader([(np.zeros(2), 0)]), {}, r"DataLoader is a loader.*give its .*loader\.dataset"),
        ((np.zeros((2, 2)), [0, 1]), {"partition": BY_HOSPITAL}, "has no columns, so"),
    ],
)
def test_what_cannot_be_read_is_said_without_a_record(data, keys, message):
    with pytest.raises(DataError, match=message) as caught:
        read(data, **keys)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_parquet_and_arrow_are_tables_as_csv_is(tmp_path, ending):
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / f"t.{ending}"
    table = arrow.table(COLUMNS)
    if ending == "parquet":
        importlib.import_module("pyarrow.parquet").write_table(table, path)
    else:
        with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
    keys = {
        "dataset": "table",
        "label": "label",
        "numbers": ["age", "pressure"],
        "partition": BY_HOSPITAL,
        "cache": str(tmp_path / "cache"),
    }
    found = load(section(path=str(path), **keys))
    assert found.classes == 2
    assert found.clients.tolist() == found.train.labels.tolist()
    with pytest.raises(DataError, match=r"names is 'pressur'; did you mean 'pressure'"):
        load(section(path=str(path), **{**keys, "numbers": ["pressur"]}))
    path.write_bytes(SECRET.encode() * 10)
    with pytest.raises(DataError, match=rf"not a readable {ending} file \(Arrow") as caught:
        load(section(path=str(path), **keys))
    assert SECRET not in str(caught.value)


def test_a_folder_a_client_is_the_clients_own(tmp_path):
    for client, grey in (("ada", 10), ("bob", 200)):
        for name in ("cat", "dog"):
            place = tmp_path / "images" / client / name
            place.mkdir(parents=True)
            for number in range(3):
                Image.new("L", (4, 4), grey + number).save(place / f"{number}.png")
    keys = {
        "dataset": "image-folder",
        "path": str(tmp_path / "images"),
        "channels": 1,
        "cache": str(tmp_path / "cache"),
    }
    found = load(section(partition={"kind": "column", "column": "folder"}, **keys))
    assert found.classes == 2
    bright = found.train.inputs[:].flatten(1).mean(1) > 0.5
    assert found.clients.tolist() == bright.long().tolist()
    with pytest.raises(SpecError, match='has no column but "folder"'):
        section(partition=BY_HOSPITAL, **keys)
    keys["path"] = str(tmp_path / "images" / "ada")
    with pytest.raises(DataError, match="holds 0 client folders"):
        load(section(partition={"kind": "column", "column": "folder"}, **keys))
