"""Readers of publishers' files: what they find, in each format."""

from __future__ import annotations

import gzip
import hashlib
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpfedadamw.data.datasets import load
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.errors import DataError
from dpfedadamw.spec import GivenPartition, schema
from dpfedadamw.spec.column_section import BooleanColumn, CategoryColumn, DateColumn, NumberColumn
from tests.dpfedadamw.data import published
from tests.dpfedadamw.data.published import TOY_TEXT, data_spec, write_folder


@pytest.mark.parametrize(("pack", "end"), [(gzip.compress, ".gz"), (bytes, "")])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_give_their_images_in_order(name, pack, end, tmp_path):
    images, labels = published.write_mnist(tmp_path, pack, end)
    data = load(data_spec(name, tmp_path))
    assert (len(data.train), len(data.test), data.classes) == (12, 6, 10)
    assert (data.train.labels == labels).all()
    expected = torch.from_numpy(images[:, None].astype(np.float32)) / 255
    assert torch.equal(data.train.inputs[:], expected)


@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("balanced", 0, 47)])
def test_emnist_is_turned_upright_and_its_letters_start_at_0(split, first, classes, tmp_path):
    images, labels = published.write_mnist(
        tmp_path, prefix=f"emnist-{split}-", test="test", first=first
    )
    data = load(data_spec("emnist", tmp_path, split=split))
    assert data.classes == classes
    assert (data.train.labels == labels).all()
    assert (data.train.inputs.values[:, 0] == images.swapaxes(1, 2)).all()


@pytest.mark.parametrize(
    ("name", "files", "counts"),
    [("cifar10", published.CIFAR10, (15, 4)), ("cifar100", published.CIFAR100, (8, 4))],
)
def test_an_archive_of_cifar_and_its_folder_hold_the_same(name, files, counts, tmp_path):
    archive = load(data_spec(name, published.write_tar(tmp_path / "c.tar.gz", files)))
    folder = load(data_spec(name, write_folder(tmp_path / "folder", files)))
    assert (len(archive.train), len(archive.test)) == counts
    assert archive.input_shape == (3, 32, 32)
    assert (archive.train.inputs.values == folder.train.inputs.values).all()
    assert (archive.train.labels == folder.train.labels).all()
    record = 3072 + (1 if name == "cifar10" else 2)
    first = np.frombuffer(next(iter(files.values())), np.uint8)[:record]
    assert (archive.train.inputs.values[0].ravel() == first[-3072:]).all()


def test_tiny_imagenet_takes_its_val_folder_for_testing(tmp_path):
    data = load(data_spec("tiny-imagenet", write_folder(tmp_path, published.tiny_imagenet_files())))
    assert (len(data.train), len(data.test), data.classes) == (6, 2, 2)
    assert data.input_shape == (3, 64, 64)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.labels.tolist() == [1, 0]
    grey = data.train.inputs.values[2]
    assert (grey[0] == grey[1]).all()


@pytest.mark.parametrize("name", published.GLUE)
def test_every_task_of_glue_is_read_as_its_publisher_writes_it(name, tmp_path):
    files, train, test = published.GLUE[name]
    data = load(data_spec(name, write_folder(tmp_path, files)), TOY_TEXT)
    assert (len(data.train), len(data.test)) == (train, test)
    assert data.classes == (3 if name.startswith("mnli") else 2)
    tokens = data.train.inputs[:]
    assert tokens.dtype == torch.int32
    assert tokens.shape == (train, 2, 8)
    assert (tokens[:, 0, 0] > 0).all()


def test_quotes_mean_nothing_in_glue(tmp_path):
    data = load(data_spec("sst2", write_folder(tmp_path, published.GLUE["sst2"][0])), TOY_TEXT)
    expected = TOY_TEXT.encode(['a fine "film '], None)
    assert (data.train.inputs.values[0] == expected[0]).all()


def test_an_image_folder_is_a_class_a_folder(tmp_path):
    files = {
        f"{name}/{number}.{ending}": published.picture(number, (20 + number, 30), form=form)
        for name in ("cat", "dog")
        for number, (ending, form) in enumerate(
            (("png", "PNG"), ("jpg", "JPEG"), ("jpeg", "JPEG"), ("BMP", "BMP"), ("webp", "WEBP"))
        )
    }
    # What a file manager leaves there is no class, and neither is a folder without images.
    files[".thumbnails/0.png"] = files["cat/0.png"]
    files["notes/read me.txt"] = b"none"
    write_folder(tmp_path, files)
    data = load(data_spec("image-folder", tmp_path, size=16, channels=1))
    assert data.input_shape == (1, 16, 16)
    assert (len(data.train), len(data.test), data.classes) == (8, 2, 2)


def test_images_of_more_than_8_bits_are_refused_and_not_cut_off(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        ramp = np.linspace(0, 4095, 64).reshape(8, 8).astype(np.uint16)
        Image.fromarray(ramp).save(tmp_path / name / "a.png")
    with pytest.raises(DataError, match="has more than 8 bits a pixel; save the images with 8"):
        load(data_spec("image-folder", tmp_path, channels=1))


def test_an_image_folder_may_bring_its_test_records(tmp_path):
    files = {
        f"{part}/{name}/a.png": published.picture(0, form="PNG")
        for part in ("train", "test")
        for name in ("cat", "dog")
    }
    data = load(data_spec("image-folder", write_folder(tmp_path, files), channels=3))
    assert (len(data.train), len(data.test)) == (2, 2)


TABLE = "who,text,more,age,sick\n" + "".join(
    f'{"ab"[n % 2]},"word {n}, quoted",second,{n}.5,{"yes" if n % 3 else "no"}\n' for n in range(10)
)


def test_a_table_gives_texts_pairs_or_numbers(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    columns = {"label": "sick", "classes": (), "test_path": None}
    numbers = load(data_spec("table", tmp_path / "t.csv", numbers=("age",), text=(), **columns))
    assert numbers.input_shape == (1,)
    assert sorted(
        numbers.train.inputs[:][:, 0].tolist() + numbers.test.inputs[:][:, 0].tolist()
    ) == [n + 0.5 for n in range(10)]
    texts = load(
        data_spec("table", tmp_path / "t.csv", text=("text", "more"), numbers=(), **columns),
        TOY_TEXT,
    )
    assert texts.input_shape == (2, 8)
    assert texts.classes == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3.5,", "line 3: the column sick is empty there"),
        ("3.5,  ", "line 3: the column sick is empty there"),
        ("1_000,no", "line 3: the column age holds no finite number there"),
        ("\u0663,no", "line 3: the column age holds no finite number there"),
        ("1e39,no", "line 3: the column age holds no finite number there"),
        ("nan,no", "line 3: the column age holds no finite number there"),
        (" +3.5e-2 ,no", None),
        (".5,no", None),
        ("7.,no", None),
    ],
)
def test_what_is_no_number_and_no_label_is_refused_with_its_line(line, said, tmp_path):
    (tmp_path / "t.csv").write_text(f"age,sick\n1,yes\n{line}\n" + "2,no\n4,yes\n" * 4)
    spec = data_spec("table", tmp_path / "t.csv", label="sick", numbers=("age",))
    if said is None:
        assert load(spec).classes == 2
        return
    with pytest.raises(DataError, match=said):
        load(spec)


@pytest.mark.parametrize(
    ("first", "sign"),
    [
        ("", ","),
        ("", ";"),
        ("", "\t"),
        ("", "|"),
        ("\ufeff", ";"),
        ("sep=;\r\n", ";"),
        ("sep=#\n", "#"),
    ],
)
def test_a_table_is_divided_by_what_divides_its_first_line(first, sign, tmp_path):
    lines = ["age#a;b, or\tc|d#sick", *(f"{n}#x#{'yes' if n % 2 else 'no'}" for n in range(8))]
    cells = [[f'"{cell}"' for cell in line.split("#")] for line in lines]
    text = first + "\r\n".join(sign.join(line) for line in cells)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    data = load(data_spec("table", tmp_path / "t.csv", label="sick", numbers=("age",)))
    assert sorted(data.train.inputs[:][:, 0].tolist() + data.test.inputs[:][:, 0].tolist()) == [
        *range(8)
    ]


def test_a_table_whose_columns_are_found_is_divided_as_its_ending_says(tmp_path):
    (tmp_path / "t.csv").write_text("age,sick,a;b;c;d;e\n" + "1,yes,x\n2,no,x\n" * 4)
    assert load(data_spec("table", tmp_path / "t.csv", label="sick", numbers=("age",))).classes == 2


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path):
    """Else class 10 would be answered where the table says 2, and none of them is named 2."""
    named = [str(number) for number in (10, 9, 2, 1, 11) for _ in range(3)]
    rows = "".join(f"{row},{name}\n" for row, name in enumerate(named))
    (tmp_path / "t.csv").write_text(f"age,grade\n{rows}")
    data = load(data_spec("table", tmp_path / "t.csv", label="grade", numbers=("age",)))
    assert data.labels == ("1", "2", "9", "10", "11")
    for part in (data.train, data.test):
        ages = part.inputs[:][:, 0].int().tolist()
        told = [data.labels[label] for label in part.labels]
        assert told == [named[age] for age in ages]


def test_spaces_around_names_labels_and_clients_are_no_part_of_them(tmp_path):
    rows = [f"{n}, {('yes', 'no ')[n % 2]}, {' ab'[1 + n % 2]}\n" for n in range(10)]
    (tmp_path / "t.csv").write_text("age, sick, who\n" + "".join(rows) + "11,yes,a\n")
    keys = {"label": "sick", "numbers": ("age",), "partition": GivenPartition(column="who")}
    data = load(data_spec("table", tmp_path / "t.csv", **keys))
    assert (data.classes, set(data.clients.tolist())) == (2, {0, 1})
    (tmp_path / "u.csv").write_text("age, sick\n" + "1, yes\n2, no\n" * 4)
    keys = {"label": " sick", "numbers": ("age",), "classes": (" no", " yes")}
    assert load(data_spec("table", tmp_path / "u.csv", **keys)).classes == 2


def test_records_without_label_are_left_out_where_the_spec_says_so(tmp_path):
    lines = [f"{n},{('yes', 'no', '', 'NA')[n % 4]},{'ab'[n % 2]}\n" for n in range(16)]
    (tmp_path / "t.csv").write_text("age,sick,who\n" + "".join(lines))
    keys = {"label": "sick", "numbers": ("age",), "partition": GivenPartition(column="who")}
    spec = data_spec(
        "table", tmp_path / "t.csv", unlabelled="leave_out", missing_values=("NA",), **keys
    )
    data = load(spec)
    ages = [*data.train.inputs[:][:, 0].tolist(), *data.test.inputs[:][:, 0].tolist()]
    assert (sorted(ages), data.classes) == ([0, 1, 4, 5, 8, 9, 12, 13], 2)
    assert len(data.clients) == len(data.train)
    with pytest.raises(DataError, match="line 4: the column sick is empty there"):
        load(spec.replace(unlabelled="refuse"))


def test_a_record_without_client_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("age,sick,who\n1,yes,a\n2,no, \n")
    keys = {"label": "sick", "numbers": ("age",), "partition": GivenPartition(column="who")}
    with pytest.raises(DataError, match="line 3: the column who is empty there; name the client"):
        load(data_spec("table", tmp_path / "t.csv", **keys))
    (tmp_path / "t.csv").write_text("age,sick,who\n1,yes,a\n2,no,NA\n")
    with pytest.raises(DataError, match="line 3: the column who is empty there; name the client"):
        load(data_spec("table", tmp_path / "t.csv", missing_values=("NA",), **keys))


def test_prepared_columns_are_read_alike_from_csv_and_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = (
        NumberColumn(name="age", low=0.0, high=10.0, indicator=True),
        BooleanColumn(name="old"),
        DateColumn(name="day", low="2020-01-01", high="2020-12-31"),
    )
    days = [datetime(2020, 1, 1 + n, 12) for n in range(10)]
    ages = [None, float("nan"), *(n + 0.5 for n in range(2, 10))]
    told = {"age": ages, "old": [n > 4 for n in range(10)], "day": days, "sick": [0, 1] * 5}
    parquet.write_table(arrow.table(told), tmp_path / "t.parquet")
    lines = [f"{'' if n < 2 else f'{n},5'};{n > 4};{days[n]};{n % 2}\n" for n in range(10)]
    (tmp_path / "t.csv").write_text("age;old;day;sick\n" + "".join(lines))
    made = [
        load(data_spec("table", tmp_path / name, label="sick", columns=columns, decimal="comma"))
        for name in ("t.csv", "t.parquet")
    ]
    assert made[0].input_shape == (4,)
    assert torch.equal(made[0].train.inputs[:], made[1].train.inputs[:])


def test_codes_are_read_alike_from_csv_and_from_a_column_that_became_floats(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    told = {"code": [1.0, 2.0, None] * 4, "sick": [0, 1] * 6}
    parquet.write_table(arrow.table(told), tmp_path / "t.parquet")
    lines = [f"{('1', '2', '')[n % 3]},{n % 2}\n" for n in range(12)]
    (tmp_path / "t.csv").write_text("code,sick\n" + "".join(lines))
    # The second as earlier versions named the codes of a Parquet file.
    for named in (("1", "2"), ("1.0", "2.0")):
        columns = (CategoryColumn(name="code", categories=named, indicator=True),)
        made = [
            load(data_spec("table", tmp_path / name, label="sick", columns=columns)).train.inputs[:]
            for name in ("t.csv", "t.parquet")
        ]
        assert torch.equal(*made)
        assert sorted(set(map(tuple, made[0].tolist()))) == [(0, 0, 1), (0, 1, 0), (1, 0, 0)]


@pytest.mark.parametrize("name", ["t.xlsx", "t.ods", "t.sav", "t.json"])
def test_what_is_no_table_is_said_to_be_none(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK\3\4")
    with pytest.raises(DataError, match="save it"):
        load(data_spec("table", tmp_path / name, label="sick", numbers=("age",)))


@pytest.mark.parametrize("classes", [(), ("yes",)])
def test_a_table_of_one_class_is_refused(classes, tmp_path):
    (tmp_path / "t.csv").write_text("age,sick\n" + "1,yes\n" * 10)
    with pytest.raises(DataError, match="two or more"):
        load(
            data_spec("table", tmp_path / "t.csv", label="sick", numbers=("age",), classes=classes)
        )


def test_a_column_of_a_table_says_whose_a_record_is(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    spec = data_spec(
        "table",
        tmp_path / "t.csv",
        label="sick",
        text=(),
        numbers=("age",),
        classes=("no", "yes"),
        partition=GivenPartition(column="who"),
    )
    data = load(spec)
    ages = data.train.inputs[:][:, 0].numpy() - 0.5
    assert (data.clients == ages.astype(int) % 2).all()


def test_a_file_says_whose_a_record_is(tmp_path):
    published.write_mnist(tmp_path)
    (tmp_path / "owners.txt").write_text("".join(f"clinic {n % 3}\n" for n in range(12)))
    given = GivenPartition(file=str(tmp_path / "owners.txt"))
    plain = load(data_spec("mnist", tmp_path))
    data = load(data_spec("mnist", tmp_path, partition=given))
    assert data.clients.tolist() == [n % 3 for n in range(12)]
    assert data.sha256 != plain.sha256


def test_the_digest_can_be_repeated_by_sha256sum(tmp_path):
    published.write_mnist(tmp_path)
    listing = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(tmp_path.iterdir())
    )
    assert load(data_spec("mnist", tmp_path)).sha256 == hashlib.sha256(listing.encode()).hexdigest()


def test_every_registered_data_set_is_in_the_schema():
    definitions = schema()["$defs"]
    named = [
        name
        for branch in schema()["properties"]["data"]["oneOf"]
        for name in definitions[branch["$ref"].removeprefix("#/$defs/")]["properties"]["dataset"][
            "enum"
        ]
    ]
    assert named == list(DATASETS)


def test_a_second_table_with_the_test_records_may_lie_anywhere(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "t.csv").write_text(TABLE)
    (tmp_path / "other.csv").write_text("sick,age\nno,7\n")
    columns = {"label": "sick", "numbers": ("age",), "test_path": str(tmp_path / "other.csv")}
    data = load(data_spec("table", tmp_path / "a" / "t.csv", **columns))
    assert (len(data.train), data.test.inputs[:].tolist()) == (10, [[7.0]])


def test_a_test_table_of_the_same_name_hides_no_change_of_the_table_that_is_trained_on(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    ours, tested = Path("data/visits.csv"), Path("visits.csv")
    ours.write_text("age,sick\n" + "1,yes\n1,no\n" * 5)
    tested.write_text("age,sick\n7,yes\n7,no\n")
    keys = {"label": "sick", "numbers": ("age",), "test_path": "visits.csv"}
    found = load(data_spec("table", ours, **keys))
    listing = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}\n" for file in (ours, tested)
    )
    assert found.sha256 == hashlib.sha256(listing.encode()).hexdigest()
    pinned = {**keys, "sha256": found.sha256, "cache": str(tmp_path / "cache")}
    load(data_spec("table", ours, **pinned))
    ours.write_text("age,sick\n" + "9,yes\n9,no\n" * 5)
    with pytest.raises(DataError, match=r"data\.sha256"):
        load(data_spec("table", ours, **pinned))
    assert float(load(data_spec("table", ours, **keys)).train.inputs[:].max()) == 9.0


def test_two_tables_that_change_places_are_read_in_their_new_places(tmp_path):
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("age,sick\n" + "1,yes\n1,no\n" * 5)
    other.write_text("age,sick\n" + "2,yes\n2,no\n" * 3)
    keys = {"label": "sick", "numbers": ("age",)}
    found = [
        load(data_spec("table", first, test_path=str(second), **keys))
        for first, second in ((one, other), (other, one))
    ]
    assert [(len(data.train), len(data.test)) for data in found] == [(10, 6), (6, 10)]
    assert [float(data.train.inputs[:].max()) for data in found] == [1.0, 2.0]


def test_a_table_that_is_trained_on_cannot_hold_the_test_records_too(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "copy.csv").write_text(TABLE)
    for second in ("a.csv", "copy.csv"):
        keys = {"label": "sick", "numbers": ("age",), "test_path": str(tmp_path / second)}
        with pytest.raises(DataError, match=r"data\.test_path: .* is the table that is trained on"):
            load(data_spec("table", tmp_path / "a.csv", **keys))
