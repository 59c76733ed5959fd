"""The engine's errors: one base class, so that one handler can turn each into a line for the user.

Everything below may raise a subclass of `DpfedadamwError`; the command line catches that class,
writes its text and leaves with exit code 2. A traceback that reaches a user is a bug.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 50


class DpfedadamwError(Exception):
    """Base of every error that a user can cause: what is wrong, where, and what would be right."""


class FilingError(DpfedadamwError):
    """A run cannot be audited, reported or signed as asked."""


def taken_name() -> str | None:
    """Say which of this distribution's further packages is hidden by another of its name, if any.

    Their names are words that others use as well. Nothing is imported to find out.
    """
    ours = Path(__file__).resolve().parents[1]
    for name in ("audit", "reports", "specs"):
        found = importlib.util.find_spec(name)
        if found is None:
            return f"the package {name} of dpfedadamw is missing; reinstall dpfedadamw"
        places = [*(found.submodule_search_locations or ()), str(found.origin)]
        if Path(places[0]).resolve().parent != ours:
            return (
                f"the package {name} of dpfedadamw is hidden by another package of that name "
                f"({places[0]}); remove it, or install dpfedadamw in a separate environment"
            )
    return None


@dataclass(frozen=True)
class SpecProblem:
    """One thing that is wrong with a spec.

    Attributes:
        source: The file as the user named it, or the override (`--set federation.rounds=0`).
        message: What was found and what would be right, in one line.
        path: Dotted path of the key (`algorithm.second_moment.floor`), empty for the whole file.
        line: Line in the file, counted from 1; None where the problem has no place in a file.
        column: Column in the line, counted from 1; None with `line`.
    """

    source: str
    message: str
    path: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return `source:line:column: path: message`, without the parts that are not known."""
        place = self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


class SpecError(DpfedadamwError):
    """A spec was refused.

    Attributes:
        problems: All that is wrong, in the order of the file; never empty. Of a hopeless file only
            the first fifty, and one more that counts the rest.
    """

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        shown = list(problems[:_SHOWN])
        if len(problems) > _SHOWN:
            more = f"… and {len(problems) - _SHOWN} more problems"
            shown.append(dataclasses.replace(shown[-1], path="", message=more))
        super().__init__(tuple(shown))
        self.problems: tuple[SpecProblem, ...] = tuple(shown)

    def __str__(self) -> str:
        """Return one line a problem."""
        return "\n".join(str(problem) for problem in self.problems)


class DataError(DpfedadamwError):
    """A data set cannot be read or used."""


class ModelError(DpfedadamwError):
    """A model cannot be built: it does not fit the data, or what it is built from is missing."""


class PrivacyError(DpfedadamwError):
    """A mechanism or claim was refused: no accountant covers it, or a value is impossible."""
