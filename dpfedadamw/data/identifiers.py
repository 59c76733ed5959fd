"""Columns of a table that look like identifiers of people, where the spec names none.

A person with several records is protected less than a claim on single records says. The author of
the spec may not have thought of this, and the table can show it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.data.features import is_empty
from dpfedadamw.data.formats.tables import TableSpec, cells_of, columns_of
from dpfedadamw.errors import DataError
from dpfedadamw.spec.data_section import DataSpec

_PEOPLE = (
    "patient", "person", "subject", "user", "customer", "participant", "member", "author",
    "speaker", "writer", "donor", "employee", "student", "respondent", "household",
)  # fmt: skip
_NAME = re.compile(rf"(.*[_\-. ])?({'|'.join(_PEOPLE)})s?([_\-. ]?(id|no|nr|num|number|key|code))?")


@dataclass(frozen=True)
class Suspected:
    """A column that looks like an identifier of people.

    Attributes:
        column: Its name.
        most: Most rows that one value has.
    """

    column: str
    most: int

    def __str__(self) -> str:
        """What to do about it, in one line."""
        return (
            f"the column {self.column} looks like an identifier of people, and one value has "
            f"{self.most:,} rows. Set data.person: {self.column}, or only single rows are "
            "protected, and a person with several rows less than the claim says"
        )


def _names_people(column: str) -> bool:
    """Whether a column is called as identifiers of people are: patient_id, PatientID, user."""
    return _NAME.fullmatch(re.sub("([a-z])([A-Z])", r"\1_\2", column).lower()) is not None


def _occurring(path: Path, name: str, missing_values: Sequence[str]) -> Counter[str]:
    """How often each value of a column occurs; an empty cell names nobody."""
    cells = (cell.strip() for cell in cells_of(path, name))
    return Counter(cell for cell in cells if not is_empty(cell, missing_values))


def suspected(spec: DataSpec) -> Suspected | None:
    """The column of a table that looks most like an identifier of people; None where none does.

    It has the name of one, some value occurs twice or more, and the spec says nothing of people.
    The values themselves are counted and forgotten.
    """
    if not isinstance(spec, TableSpec) or spec.person is not None:
        return None
    path = Path(spec.path)
    try:
        known = {spec.label, spec.partition.column, *spec.targets}
        found = [
            Suspected(name, max(_occurring(path, name, spec.missing_values).values(), default=0))
            for name in columns_of(path)
            if name not in known and _names_people(name)
        ]
    except (DataError, OSError):
        # Faults in the table are reported by the code that reads it.
        return None
    return max((one for one in found if one.most > 1), key=lambda one: one.most, default=None)
