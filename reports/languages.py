"""The languages that a report's pages may be in, and how each writes numbers and dates.

The pages are made in English; `reports.extensions.languages` has the texts of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Language = Literal["en", "de", "fr"]
LANGUAGES: Final[tuple[Language, ...]] = ("en", "de", "fr")


@dataclass(frozen=True)
class Writing:
    """How a language writes.

    Attributes:
        tag: As web pages and PDF files name it.
        decimal: Between whole and fraction.
        thousands: Between groups of three digits.
        months: Names of the months.
        date: Of a moment: {day}, {month}, {year} and {time}.
    """

    tag: str
    decimal: str
    thousands: str
    months: tuple[str, ...]
    date: str


WRITING: Final[Mapping[str, Writing]] = {
    "en": Writing(
        "en-GB", ".", ",",
        ("January", "February", "March", "April", "May", "June", "July", "August", "September",
         "October", "November", "December"),
        "{day} {month} {year}, {time} UTC",
    ),
    "de": Writing(
        "de-DE", ",", ".",
        ("Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August", "September",
         "Oktober", "November", "Dezember"),
        "{day}. {month} {year}, {time} UTC",
    ),
    "fr": Writing(
        "fr-FR", ",", "\u202f",
        ("janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre",
         "octobre", "novembre", "décembre"),
        "{day} {month} {year}, {time} UTC",
    ),
}  # fmt: skip
