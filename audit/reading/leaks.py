"""Numbers of the private evidence, looked for where others read.

A gradient norm or a clean sum that was copied into a report is there digit by digit. Only such
copies are found: a mean of private numbers is another number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.files import read_bytes
from audit.reading.units import EVERY_UNIT
from audit.untrusted.arrays import Floats

MOST_NUMBERS = 20_000
# Two numbers that have nothing to do with each other agree in so many digits once in 9·10^11 times:
# 20,000 private ones and a million others meet by chance in 2 % of runs, a report's ten thousand in
# 0.02 %.
DIGITS = 12
MAXIMUM_BYTES = 1 << 26

_REPORTS = [f"report{kind}.{form}" for kind in ("", "-public") for form in ("json", "html")]
_TEXTS = ("metrics.jsonl", "ledger.jsonl", "model.json", "audit.json", *_REPORTS)
_DIGITS = re.compile(r"\d[\d.]{11,}")


@dataclass(frozen=True)
class Leak:
    """A private number that a file shows.

    Attributes:
        file: where it stands.
        array: which array of the evidence it is from.
        round: the round's number, from 0.
    """

    file: str
    array: str
    round: int


def search(run_dir: Path) -> tuple[Leak, ...]:
    """Look for private numbers in the files of a run, one finding a file at most.

    Raises:
        AuditError: the evidence cannot be read, so that nothing can be looked for.
    """
    return search_bundle(open_bundle(run_dir))


def search_bundle(bundle: Bundle) -> tuple[Leak, ...]:
    """As `search`, on a run that is open already."""
    private = {digits: (array, index) for digits, array, index in _private_numbers(bundle)}
    leaks = []
    for name in _TEXTS:
        try:
            text = read_bytes(bundle.root, name, MAXIMUM_BYTES).decode("utf-8", "replace")
        except UntrustedFileError as error:
            if error.missing:
                continue
            raise
        shown = {digits_of(part)[:DIGITS] for part in _DIGITS.findall(text)}
        found = sorted(shown & private.keys())
        if found:
            leaks.append(Leak(name, *private[found[0]]))
    return tuple(leaks)


def digits_of(text: str) -> str:
    """The significant digits of a number in decimal notation."""
    mantissa, _, _ = text.partition("e")
    return mantissa.replace(".", "").replace("-", "").lstrip("0")


def _private_numbers(bundle: Bundle) -> Iterator[tuple[str, str, int]]:
    """Digits, array and round of numbers long enough to be known by their digits."""
    rounds = bundle.layout().round_files
    each = -(-MOST_NUMBERS // max(1, rounds))
    for index in range(rounds):
        arrays = _arrays_of(bundle, index)
        share = -(-each // max(1, len(arrays)))
        for name, values in arrays:
            # Evenly spread, so that every client and query has its turn.
            some = values.ravel()[:: max(1, -(-values.size // share))]
            for text in map(repr, np.abs(some[np.isfinite(some)]).tolist()):
                digits = digits_of(text)
                if len(digits) >= DIGITS:
                    yield digits[:DIGITS], name, index


def _arrays_of(bundle: Bundle, index: int) -> list[tuple[str, Floats]]:
    """What one round holds that no noise hides, and the noise, which would undo the hiding."""
    try:
        unit = EVERY_UNIT[bundle.layout().unit]
        named = unit.private_numbers(bundle.evidence_of_round(index, unit))
    except UntrustedFileError as error:
        if error.missing:
            return []
        raise
    return list(named.items())
