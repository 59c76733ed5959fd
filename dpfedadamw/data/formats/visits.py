"""Made-up visits of patients to hospitals: several rows a person, and no download.

What a data set of people looks like, for trying out what protects a person. Nobody's data are in
it: all of it comes from a fixed seed.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import sys
from dataclasses import dataclass
from typing import ClassVar, Literal, TextIO

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.registry import DatasetEntry, Part, Prepared, register
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing, TextPreprocessing
from dpfedadamw.spec.data_section import (
    PATH,
    DataSpec,
    MostRecordsPerPerson,
    PersonColumn,
    TestFraction,
)
from dpfedadamw.spec.section import Contradictions, Values, key

_ROWS, _MOST_OF_A_PATIENT, _HOSPITALS, _HOSPITALS_OF_A_PATIENT = 20_000, 10, 8, 3
_NUMBERS = 16
_SEED = 20_000
_PERSON, _CLIENT = "patient_id", "hospital"


class VisitsSpec(DataSpec, title="Visits"):
    """20,000 made-up visits: 16 numbers and one of two classes, patients and hospitals.

    A patient has 1 to 10 visits, at up to 3 of 8 hospitals.
    """

    key_order: ClassVar[tuple[str, ...]] = ("dataset", "person", "most_records_per_person")

    dataset: Literal["visits"] = "visits"
    path: None = key(None, PATH, title="File", why="visits are made up by the package")
    person: PersonColumn = None
    most_records_per_person: MostRecordsPerPerson = None
    test_fraction: TestFraction = 0.2


@dataclass(frozen=True)
class _Visits:
    """Rows in the order of the table."""

    values: NDArray[np.float32]
    labels: NDArray[np.int64]
    hospitals: NDArray[np.int64]
    patients: NDArray[np.int64]
    sha256: str


@functools.cache
def _visits() -> _Visits:
    generator = np.random.default_rng(_SEED)
    counts = generator.integers(1, _MOST_OF_A_PATIENT + 1, _ROWS)
    patients = np.repeat(np.arange(_ROWS), counts)[:_ROWS]
    people = int(patients[-1]) + 1
    known = generator.random((people, _HOSPITALS)).argsort(1)[:, :_HOSPITALS_OF_A_PATIENT]
    which = generator.choice(_HOSPITALS_OF_A_PATIENT, _ROWS, p=(0.75, 0.15, 0.1))
    hospitals = known[patients, which].astype(np.int64)
    # Visits of one patient are alike, and mostly end alike.
    of_patient = generator.standard_normal((people, _NUMBERS))
    direction = generator.standard_normal(_NUMBERS)
    inclination = of_patient @ direction / np.linalg.norm(direction)
    of_visit = generator.standard_normal((_ROWS, _NUMBERS))
    values = (0.8 * of_patient[patients] + 0.6 * of_visit).astype(np.float32)
    labels = (inclination[patients] + 0.4 * generator.standard_normal(_ROWS) > 0.0).astype(np.int64)
    # Visits come in no order.
    order = generator.permutation(_ROWS)
    parts = (values[order], labels[order], hospitals[order], patients[order])
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    return _Visits(*parts, digest)


def write_table(stream: TextIO) -> None:
    """Write the visits as a CSV table, as a hospital's would be: `python -m` this module does."""
    visits, rows = _visits(), csv.writer(stream, lineterminator="\n")
    rows.writerow([_PERSON, _CLIENT, *(f"x{number}" for number in range(_NUMBERS)), "label"])
    for row in range(_ROWS):
        rows.writerow(
            [
                f"P{visits.patients[row]:05d}",
                f"H{visits.hospitals[row]}",
                *(f"{value:.6f}" for value in visits.values[row]),
                int(visits.labels[row]),
            ]
        )


def _bring(keys: VisitsSpec, preprocessing: Preprocessing) -> Prepared:
    if isinstance(preprocessing, TextPreprocessing):
        raise DataError("data.dataset: visits are numbers, but the model reads texts")
    visits = _visits()
    people = visits.patients.copy() if keys.person is not None else None
    part = Part(visits.values.copy(), visits.labels.copy(), visits.hospitals.copy(), people)
    return Prepared({"train": part}, 2, visits.sha256)


def _check(get: Values) -> Contradictions:
    for path, right in ((("data", "person"), _PERSON), (("data", "partition", "column"), _CLIENT)):
        if get(*path) not in (None, right):
            yield path, f"found {get(*path)}; of visits it is {right}"


register(
    DatasetEntry(
        name="visits",
        keys=VisitsSpec,
        summary="20,000 made-up visits of patients to hospitals, up to 10 a patient: 16 numbers, 2 "
        "classes; needs no download",
        origin="made from a fixed seed",
        licence="this package's",
        bring=_bring,
        record_shape=(_NUMBERS,),
        check=_check,
        has_columns=True,
        place=10,
    )
)

if __name__ == "__main__":
    write_table(sys.stdout)
