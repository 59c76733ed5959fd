"""Whom records are about: splits share no person, and no identifier leaves the data set."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from audit.checks.shared.drawn_partition import drawn, training_rows
from dpfedadamw import spec as specs
from dpfedadamw.data import datasets
from dpfedadamw.data.formats.visits import write_table
from dpfedadamw.data.handed_over import handed_over
from dpfedadamw.data.identifiers import suspected
from dpfedadamw.data.partition import in_order, kept_of_people, most_common
from dpfedadamw.errors import DataError, SpecError
from dpfedadamw.experiment import divide

SPEC = """
version: 1
name: people
data: {{{data}, clients: {clients}}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: dp-fedavg, learning_rate: 0.5}}
federation: {{rounds: 2, clients_per_round: {clients}, local_steps: 2}}
privacy:
  {{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5,
   sampling: {{kind: poisson, expected_batch_size: 20}}}}
"""
TABLE = (
    "dataset: table, path: {path}, cache: {cache}, label: label, numbers: [x0, x1], "
    "person: patient_id"
)


def spec_of(data, clients=4):
    return specs.loads(SPEC.format(data=data, clients=clients))


class _Frame(dict):
    """The least that a frame has."""

    columns = property(lambda self: list(self))


def visits(*more):
    return spec_of(", ".join(("dataset: visits", "person: patient_id", *more)))


@pytest.fixture(scope="module")
def first_visits():
    """The first 2,000 rows of the visits."""
    text = io.StringIO()
    write_table(text)
    return "".join(text.getvalue().splitlines(keepends=True)[:2001])


@pytest.fixture
def table(first_visits, tmp_path):
    """A small table of the visits; its people are called P00000, P00001, …"""
    path = tmp_path / "visits.csv"
    path.write_text(first_visits)
    return path


def people_on_both_sides(spec):
    """Pairs of parts of a data set that share a person."""
    whole = datasets.load(spec.data)
    stored, parts = whole.people.stored, {"train": whole.train, "test": whole.test}
    if whole.validation is not None:
        parts["validation"] = whole.validation
    of = {name: set(stored[part.inputs.rows]) for name, part in parts.items()}
    return {(a, b) for a in of for b in of if a < b and of[a] & of[b]}


def test_no_person_is_trained_on_and_tested_on(table, tmp_path):
    validated = visits("validation: {fraction: 0.4, public: true}")
    from_file = spec_of(TABLE.format(path=table, cache=tmp_path / "cache"))
    for spec in (visits(), validated, from_file):
        assert people_on_both_sides(spec) == set()
    # Without the key the same rows are divided one by one, and people are on both sides.
    by_row = datasets.load(spec_of("dataset: visits").data)
    rows = by_row.train.inputs.rows, by_row.test.inputs.rows
    people = datasets.load(visits().data).people.stored
    assert set(people[rows[0]]) & set(people[rows[1]])


def test_the_test_set_has_its_share_and_less_than_one_person_more():
    whole = datasets.load(visits().data)
    assert 0 <= len(whole.test) - 4000 < 10


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards"])
def test_a_drawn_partition_gives_a_person_to_one_client_and_the_auditor_draws_the_same(kind):
    spec = visits(f"partition: {{kind: {kind}}}")
    dataset, owner = divide(spec)
    people = dataset.people_of_train
    pairs = np.unique(np.stack([people, owner]), axis=1)
    assert len(pairs[0]) == len(np.unique(people))
    mapping = spec.to_mapping()
    stored = dataset.people.stored
    assert np.array_equal(training_rows(mapping, len(stored), stored), dataset.train.inputs.rows)
    assert np.array_equal(drawn(mapping, dataset.strata, people), owner)
    # Drawn by rows it would be another one: the comparison can fail.
    assert not np.array_equal(drawn(mapping, dataset.strata), owner)


def test_where_the_data_name_the_client_a_person_may_be_at_several():
    dataset, owner = divide(
        spec_of(
            "dataset: visits, person: patient_id, partition: {kind: column, column: hospital}", 8
        )
    )
    pairs = np.unique(np.stack([dataset.people_of_train, owner]), axis=1)[0]
    at = np.unique(pairs, return_counts=True)[1]
    assert at.max() == 3
    assert 0.5 < (at > 1).mean() < 0.8


@given(people=st.lists(st.integers(-5, 5), min_size=1, max_size=40))
@settings(max_examples=50)
def test_people_are_numbered_as_they_are_met(people):
    numbers = in_order(np.array(people))
    assert numbers.tolist() == [list(dict.fromkeys(people)).index(one) for one in people]
    labels = np.arange(len(people)) % 3
    for person in set(numbers.tolist()):
        own = labels[numbers == person].tolist()
        best = min(own, key=lambda label: (-own.count(label), label))
        assert most_common(numbers, labels)[person] == best


def test_people_beside_arrays_are_as_good_as_a_column():
    records, labels = np.random.default_rng(0).standard_normal((60, 2)), np.arange(60) % 2
    named = [f"person {row // 3}" for row in range(60)]
    spec = spec_of("dataset: given, person: person")
    with handed_over((records, labels), named):
        assert people_on_both_sides(spec) == set()
        assert len(set(datasets.load(spec.data).people.stored)) == 20
    with handed_over((records, labels), named[1:]), pytest.raises(DataError, match="59 entries"):
        datasets.load(spec.data)
    # Of a frame the column that the spec names is no part of a record, no matter who named it.
    columns = {"a": records[:, 0], "person": labels, "label": labels}
    with handed_over(_Frame(columns), named):
        assert datasets.load(spec.data).input_shape == (1,)
    for nobody in (None, float("nan"), " "):
        bad = handed_over((records, labels), [nobody, *named[1:]])
        with bad, pytest.raises(DataError, match="row 0: names no person"):
            datasets.load(spec.data)
    with handed_over((records, labels)), pytest.raises(DataError, match="has no columns"):
        datasets.load(spec.data)


def test_an_array_of_an_npz_says_whom_each_record_is_about(tmp_path):
    path, generator = tmp_path / "records.npz", np.random.default_rng(0)
    arrays = {
        "x_train": generator.normal(size=(60, 3)),
        "y_train": np.arange(60) % 2,
        "x_test": np.zeros((6, 3)),
        "y_test": np.arange(6) % 2,
    }
    named = np.array([f"P{number // 3}" for number in range(60)])
    np.savez(path, **arrays, patient_train=named, patient_test=np.array(["P1"] * 5 + ["Q"]))
    data = f"dataset: arrays, path: {path}, cache: {tmp_path / 'cache'}, person: patient"
    found = datasets.load(spec_of(data).data)
    assert np.bincount(found.people_of_train).tolist() == [3] * 20 + [0] * (
        found.people.stored.max() - 19
    )
    assert len(set(found.people.test)) == 2
    few = datasets.load(spec_of(f"{data}, most_records_per_person: 2").data)
    assert len(few.train) == 40
    # Numbers tell people apart as texts do; without test people nobody is said to be in both.
    np.savez(path, **arrays, patient_train=np.arange(60) // 3)
    found = datasets.load(spec_of(data).data)
    assert (len(set(found.people.stored)), found.people.test) == (20, None)
    for wrong, message in (
        (np.arange(59), r"needed is \[60\], a person a record"),
        (np.arange(60) / 2, "needed are whole numbers or texts"),
        (np.array(["a"] * 59 + [" "]), "entry 59 names no person"),
    ):
        np.savez(path, **arrays, patient_train=wrong)
        with pytest.raises(DataError, match=message):
            datasets.load(spec_of(data).data)
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="the array patient_train is missing"):
        datasets.load(spec_of(data).data)


def test_names_of_image_files_say_whom_they_are_about(tmp_path):
    for number in range(24):
        folder = tmp_path / "scans" / ("ill" if number % 2 else "well")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((4, 4), 10 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"scan-P{number // 4}_{number}.png")
    data = f"dataset: image-folder, path: {tmp_path / 'scans'}, cache: {tmp_path / 'cache'}"
    found = datasets.load(spec_of(f"{data}, person: 'scan-{{person}}_'", clients=2).data)
    assert np.bincount(found.people.stored).tolist() == [4] * 6
    assert people_on_both_sides(spec_of(f"{data}, person: 'scan-{{person}}_'", 2)) == set()
    # To the ending, each name is somebody's.
    alone = datasets.load(spec_of(f"{data}, person: 'scan-{{person}}'", clients=2).data)
    assert len(set(alone.people.stored)) == 24
    with pytest.raises(DataError, match=r"name of an image does not follow data\.person"):
        datasets.load(spec_of(f"{data}, person: 'slide-{{person}}_'", clients=2).data)
    with pytest.raises(SpecError, match=r"a text with \{person\} once"):
        spec_of(f"{data}, person: patient")


def test_nobody_keeps_more_records_than_the_spec_says_at_all_clients_together():
    bounded = visits("most_records_per_person: 3", "partition: {kind: column, column: hospital}")
    whole, few = datasets.load(visits().data), datasets.load(bounded.data)
    counts = np.bincount(few.people_of_train)
    before = np.bincount(whole.people_of_train, minlength=len(counts))
    assert before.max() == 10
    assert counts.tolist() == np.minimum(before, 3).tolist()
    assert len(few.clients) == len(few.train) == counts.sum()
    # Only training records are bounded.
    assert np.array_equal(few.test.inputs.rows, whole.test.inputs.rows)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 6),
)
def test_whose_records_stay_depends_on_nobody_else(people, most, seed, gone):
    """Removing a person with all rows changes nothing of what others keep: one person's change."""
    people = np.array(people)
    kept = kept_of_people(people, most, seed)
    assert np.all(np.diff(kept) > 0)
    rest = np.flatnonzero(people != gone)
    without = rest[kept_of_people(people[rest], most, seed)] if len(rest) else rest
    assert without.tolist() == [row for row in kept.tolist() if people[row] != gone]
    counts = np.bincount(people, minlength=7)
    assert np.bincount(people[kept], minlength=7).tolist() == np.minimum(counts, most).tolist()
    # The auditor's own rule, from the spec and the recorded people.
    spec = {"data": {"test_fraction": None, "seed": seed, "most_records_per_person": most}}
    assert training_rows(spec, len(people), people).tolist() == kept.tolist()


def test_a_bound_on_a_persons_records_needs_the_person():
    with pytest.raises(SpecError, match=r"most_records_per_person: given without data\.person"):
        spec_of("dataset: visits, most_records_per_person: 3")


def test_a_row_without_a_person_is_refused_by_its_line(table, tmp_path):
    rows = list(csv.reader(table.open()))
    rows[3][0] = " "
    with table.open("w") as file:
        csv.writer(file).writerows(rows)
    with pytest.raises(DataError, match="line 4: the column patient_id is empty"):
        datasets.load(spec_of(TABLE.format(path=table, cache=tmp_path / "cache")).data)
    # All without a name would be one person, who is not what is added or removed.
    rows[3][0] = "NA"
    with table.open("w") as file:
        csv.writer(file).writerows(rows)
    told = TABLE.format(path=table, cache=tmp_path / "cache") + ", missing_values: [NA]"
    with pytest.raises(DataError, match="line 4: the column patient_id is empty"):
        datasets.load(spec_of(told).data)


def test_no_identifier_is_kept(table, tmp_path):
    """Neither in the cache nor, since data sets hold numbers alone, anywhere after it."""
    found = datasets.load(spec_of(TABLE.format(path=table, cache=tmp_path / "cache")).data)
    assert found.people.stored.dtype == np.int64
    for file in (tmp_path / "cache").rglob("*"):
        assert file.is_dir() or b"P0000" not in file.read_bytes()


def test_a_column_that_looks_like_people_is_told_with_its_largest_number_of_rows(table, tmp_path):
    keys = TABLE.format(path=table, cache=tmp_path / "cache")
    found = suspected(spec_of(keys.replace(", person: patient_id", "")).data)
    rows = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    assert found.column == "patient_id"
    assert found.most == max(map(rows.count, rows)) > 1
    assert "P0" not in str(found)
    assert suspected(spec_of(keys).data) is None
    # A column of that name in which nothing repeats is a row's number.
    table.write_text("patient_id,x0,x1,label\n" + "".join(f"{n},1,2,{n % 2}\n" for n in range(9)))
    assert suspected(spec_of(keys.replace(", person: patient_id", "")).data) is None
    # Nor is an empty cell somebody.
    table.write_text(table.read_text() + ",1,2,0\n ,1,2,1\n")
    assert suspected(spec_of(keys.replace(", person: patient_id", "")).data) is None
