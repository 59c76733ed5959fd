"""Numbers and dates as a reader sees them, in the languages that pages may be in.

Privacy losses are never rounded down. The pages are made in English; `reports.extensions.languages`
has the texts of all other languages.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Any, Final, Literal

from reports.files import clean, number

_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_LARGE_EPSILON = 1_000
_HUGE = 1e12
_SMALL = 0.1
# How a cell begins that a spreadsheet computes; the last four are wide forms of the first.
_FORMULA = re.compile(r"\s*'*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def unformulated(text: str) -> str:
    """Return text that no spreadsheet takes for a formula; numbers stay as they are."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def formulated(text: str) -> str:
    """Return the text that `unformulated` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text[1:]) else text


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV (RFC 4180, but lines end with a line feed) that computes nothing."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(
        [unformulated(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return buffer.getvalue()


def epsilon(value: float | None) -> str:
    """Format a privacy loss, rounded UP: a page must not promise more than was computed.

    Args:
        value: ε ≥ 0, or None when there is no finite value.

    Returns:
        Two decimals, three significant digits below 0.1, a whole number from 1000 on; "∞" for None.
    """
    if value is None:
        return "∞"
    if value == 0:
        return "0"
    if abs(value) >= _HUGE:
        return power(value)
    shown = _rounded_up(value)
    return f"{shown:,}" if abs(value) >= _LARGE_EPSILON else f"{shown:f}"


def printed_epsilon(value: float) -> float:
    """Return the number that `epsilon` prints. Odds and guesses are computed from it.

    So a reader who takes e to the power of a printed ε finds the printed odds.

    Args:
        value: ε ≥ 0.
    """
    return value if value == 0 or abs(value) >= _HUGE else float(_rounded_up(value))


def _rounded_up(value: float) -> Decimal:
    exact = Decimal(repr(float(value)))
    places = 2 if abs(value) >= _SMALL else 2 - exact.adjusted()
    if abs(value) >= _LARGE_EPSILON:
        places = 0
    return exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)


def power(value: float | None, digits: int = 3) -> str:
    """Format a small number: 1e-05 as 10⁻⁵, 2.5e-06 as 2.5·10⁻⁶, 0.0144 as it is."""
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits}g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    raised = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return raised if mantissa == "1" else f"{mantissa}·{raised}"


def decade(value: float) -> str:
    """Format a power of ten as one: 0.001 as 10⁻³, 1 as 1."""
    exponent = round(math.log10(value))
    return "1" if exponent == 0 else "10" + str(exponent).translate(_SUPERSCRIPT)


def letters(index: int) -> str:
    """Return the letters of a place, from 0: A to Z, then AA, AB and so on."""
    before, last = divmod(index, 26)
    return (letters(before - 1) if before else "") + chr(ord("A") + last)


def count(value: float | None) -> str:
    """Format a whole number with thousands separated, or "unknown"."""
    return "unknown" if value is None else f"{round(value):,}"


def plain(value: float | None, digits: int = 4) -> str:
    """Format a setting with up to `digits` significant digits and no trailing zeros."""
    if value is None:
        return "unknown"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    return power(value, digits)


def percent(value: float | None) -> str:
    """Format a fraction in [0, 1] as a percentage with one decimal."""
    if value is None:
        return "not measured"
    if abs(value) >= _HUGE:
        return power(value)
    exact = Decimal(repr(float(value))) * 100
    return f"{exact.quantize(Decimal('0.1'), rounding=ROUND_HALF_EVEN)} %"


def size(value: float | None) -> str:
    """Format bytes with a decimal unit."""
    if value is None:
        return "unknown"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(amount) < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def settings(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Flatten nested settings to dotted names and printed values, in the spec's order."""
    rows: list[tuple[str, str]] = []

    def walk(prefix: str, value: Any, depth: int) -> None:
        if isinstance(value, dict) and depth < 4:
            for key, inner in value.items():
                walk(f"{prefix}.{clean(key, 60)}" if prefix else clean(key, 60), inner, depth + 1)
            return
        known = number(value)
        if isinstance(value, list):
            shown = ", ".join(clean(entry, 40) for entry in value[:32]) or "none"
        elif isinstance(value, bool) or value is None:
            shown = {True: "yes", False: "no", None: "none"}[value]
        else:
            shown = plain(known, 6) if known is not None else clean(value, 300)
        rows.append((prefix, shown))

    walk("", values, 0)
    return [row for row in rows[:64] if row[0]]


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
