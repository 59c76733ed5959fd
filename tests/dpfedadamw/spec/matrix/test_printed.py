"""What a paper prints for a sweep's cells, and which values the paper does not state."""

from __future__ import annotations

import pytest

from dpfedadamw.spec.matrix.printed import Printed
from tests.sweeps import problems_of, swept

MATRIX = """
matrix:
  method:
    label: [SGD, Adam]
    algorithm:
      - {name: dp-fedavg, learning_rate: 0.1}
      - {name: dp-fedadamw, learning_rate: 0.02}
  privacy.noise_multiplier: [1.0, 2.0]
"""
EXPECTED = """
expected:
  test_accuracy:
    source: A Paper, Table 2
    rows: method
    columns: privacy.noise_multiplier
    values:
      SGD: [71.69 ± 0.37, 60]
      Adam: [null, 8.05]
  test_loss:
    source: A Paper, Table 2
    rows: method
    values: {SGD: 2.350, Adam: 0.122}
"""


def test_numbers_stand_beside_their_cells_and_accuracies_are_shares(tmp_path):
    sweep = swept(tmp_path, MATRIX + EXPECTED)
    accuracy, loss = sweep.expected
    assert [accuracy.of(cell.values) for cell in sweep.cells] == [
        Printed(0.7169, 0.0037), Printed(0.6, None), None, Printed(0.0805, None),
    ]  # fmt: skip
    assert [loss.of(cell.values) for cell in sweep.cells] == [Printed(2.35, None)] * 2 + [
        Printed(0.122, None)
    ] * 2
    assert (accuracy.source, loss.measure) == ("A Paper, Table 2", "test_loss")


def test_a_cell_is_the_same_run_whatever_a_paper_prints_for_it(tmp_path):
    plain, told = swept(tmp_path, MATRIX), swept(tmp_path, MATRIX + EXPECTED)
    assert [cell.digest for cell in plain.cells] == [cell.digest for cell in told.cells]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "test_loss:",
            "loss:",
            "expected.loss: not a measure; must be one of test_accuracy, test_loss",
        ),
        (
            "rows: method",
            "rows: way",
            "expected.test_accuracy.rows: not an axis of the matrix; it has",
        ),
        ("rows: method", "rows: [method]", "test_accuracy.rows: not an axis of the matrix; it has"),
        ("rows: method", "rows: {a: 1}", "test_accuracy.rows: not an axis of the matrix; it has"),
        (
            "columns: privacy.noise_multiplier",
            "columns: {a: 1}",
            "test_accuracy.columns: not an axis of the matrix; it has",
        ),
        ("SGD: [", "Sgd: [", "values.Sgd: method has no such label; it has SGD, Adam"),
        (", 60]", "]", "values.SGD: give 2 numbers, for 1.0, 2.0"),
        ("71.69 ± 0.37", "71.69+0.37", "give a number, or one with its deviation: 71.69 ± 0.37"),
        ("60]", "160]", "values.SGD[1]: give a number"),
        ("60]", "true]", "values.SGD[1]: give a number"),
        ("    source: A Paper, Table 2\n", "", "the keys are source, rows, columns"),
    ],
)
def test_what_cannot_be_a_printed_number_is_refused_with_its_place(tmp_path, old, new, message):
    said = problems_of(tmp_path, MATRIX + EXPECTED.replace(old, new, 1))
    assert message in said
    assert said.startswith("sweep.yaml:")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("printed", "read"), [("100", 1.0), ("0", 0.0), ("0.50 ± 0", 0.005)])
def test_a_printed_accuracy_is_a_percentage_from_0_to_100(tmp_path, printed, read):
    sweep = swept(tmp_path, MATRIX + EXPECTED.replace("60]", f"{printed}]", 1))
    assert sweep.expected[0].of(sweep.cells[1].values).value == read


def test_a_reading_names_a_field_that_the_file_or_an_axis_sets(tmp_path):
    text = MATRIX + "readings: {algorithm.learning_rate: Not  stated., data.clients: Ours.}\n"
    assert swept(tmp_path, text).readings == {
        "algorithm.learning_rate": "Not stated.",
        "data.clients": "Ours.",
    }


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ("algorithm.sam.radius: Ours.", "this file does not set that field; leave the reading"),
        ("data.clients: ''", "what the paper does not say, in 1 to 500 characters"),
        ("data.clients: [a]", "what the paper does not say, in 1 to 500 characters"),
        ("'data..clients': Ours.", "not a field's dotted path"),
    ],
)
def test_a_reading_of_nothing_is_refused(tmp_path, reading, message):
    assert message in problems_of(tmp_path, f"{MATRIX}readings: {{{reading}}}\n")
