"""What came out of a run beside the model: accuracy, also by class, traffic, and computation.

Used by `content` and by the comparison. Everything is read from the public metrics; what would tell
how many clients took part is dropped here for the public audience.
"""

from __future__ import annotations

import math
from typing import Any

from reports import formatting
from reports.content import wording
from reports.content.guarantee import INTERNAL
from reports.reading.files import integer, mapping, number, sequence
from reports.reading.source import RunSource

_MOST_CLASSES = 1_000
# Fewer test records of a class than this say next to nothing of its accuracy.
FEWEST_OF_A_CLASS = 10
_NORMAL = 1.959963984540054


def utility(source: RunSource) -> dict[str, Any]:
    """Return test accuracy and loss over the rounds, of the last round measured, and by class."""
    rows = []
    for raw in source.metrics:
        index = integer(raw.get("round"))
        if index is not None:
            rows.append(
                {
                    "round": index,
                    "test_accuracy": number(raw.get("test_accuracy")),
                    "test_loss": number(raw.get("test_loss")),
                }
            )
    measured = [row for row in rows if row["test_accuracy"] is not None]
    classes = by_class(source)
    return {
        "rounds": rows,
        "final_accuracy": measured[-1]["test_accuracy"] if measured else None,
        "final_loss": measured[-1]["test_loss"] if measured else None,
        "final_round": measured[-1]["round"] if measured else None,
        "untrained_accuracy": measured[0]["test_accuracy"]
        if measured and measured[0]["round"] == 0
        else None,
        "classes": classes,
        "classes_statement": _classes_statement(classes),
    }


def by_class(source: RunSource) -> list[dict[str, Any]]:
    """Return the final model's accuracy on each class, with Wilson's 95 % interval.

    A class with fewer than `FEWEST_OF_A_CLASS` test records has neither accuracy nor interval.
    """
    pairs = sequence(source.metrics[-1].get("test_classes")) if source.metrics else []
    rows: list[dict[str, Any]] = []
    for index, pair in enumerate(pairs[:_MOST_CLASSES]):
        values = [integer(value) for value in sequence(pair)]
        if len(values) != 2 or values[0] is None or values[1] is None:
            return []
        records, right = values[0], values[1]
        if not 0 <= right <= records:
            return []
        enough = records >= FEWEST_OF_A_CLASS
        low, high = _wilson(right, records) if enough else (None, None)
        rows.append(
            {
                "class": index,
                "records": records,
                "accuracy": right / records if enough else None,
                "low": low,
                "high": high,
            }
        )
    return rows


def _wilson(right: int, records: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share (Wilson 1927)."""
    share, z = right / records, _NORMAL**2 / records
    middle = (share + z / 2) / (1 + z)
    half = _NORMAL * math.sqrt(share * (1 - share) / records + z / (4 * records)) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def _classes_statement(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Accuracy by class was not recorded."
    known = [row for row in rows if row["accuracy"] is not None]
    few = len(rows) - len(known)
    text = ""
    if known:
        worst, best = (pick(known, key=lambda row: row["accuracy"]) for pick in (min, max))
        text = (
            f"By class, accuracy runs from {formatting.percent(worst['accuracy'])} (class "
            f"{worst['class']}) to {formatting.percent(best['accuracy'])} (class {best['class']}). "
        )
    if few:
        noun = "class has" if few == 1 else "classes have"
        text += (
            f"{few} of {len(rows)} {noun} fewer than {FEWEST_OF_A_CLASS} test records, too few to "
            "state an accuracy. "
        )
    return text + "Intervals are Wilson's, 95 % for each class by itself."


def validation(source: RunSource) -> list[tuple[str, str]]:
    """Return what is to be said of a validation set that the spec declares public."""
    declared = mapping(mapping(source.spec.get("data")).get("validation"))
    fraction = number(declared.get("fraction"))
    if not fraction:
        return []
    measured = [number(row.get("validation_accuracy")) for row in source.metrics]
    known = [value for value in measured if value is not None]
    result = formatting.percent(known[-1]) if known else "not measured"
    return [(wording.VALIDATION_TITLE, wording.VALIDATION.format(fraction=fraction, result=result))]


def communication(source: RunSource, audience: str) -> dict[str, Any]:
    """Return bytes up and down and what was computed.

    Bytes and seconds are None where they would tell how many took part.
    """
    # Where clients are drawn by chance, traffic is a multiple of how many took part.
    by_chance = source.protects_clients or source.header.get("client_sampling") == "poisson"
    shown = audience == INTERNAL or not by_chance
    rows = [row for row in source.metrics if integer(row.get("round")) != 0]

    def total(key: str) -> float | None:
        values = [number(row.get(key)) for row in rows]
        known = [value for value in values if value is not None]
        return sum(known) if known and shown else None

    return {
        "bytes_up": total("bytes_up"),
        "bytes_down": total("bytes_down"),
        "rounds": len(rows),
        "seconds": total("seconds"),
        "expected_gradients": _expected_gradients(source),
    }


def _expected_gradients(source: RunSource) -> float | None:
    """Return how many gradients of single records the spec lets one expect over the run.

    Rounds x clients a round x local steps x expected batch; known before the run, so that it tells
    nothing of who took part. None where steps adapt or batches are not of records.
    """
    header = source.header
    if not source.private or source.protects_clients or mapping(header.get("adaptation")):
        return None
    values = [
        number(header.get(key))
        for key in ("rounds", "clients_per_round", "local_steps", "expected_batch_size")
    ]
    known = [value for value in values if value is not None]
    return math.prod(known) if len(known) == len(values) else None
