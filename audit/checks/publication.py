"""Check "publication": do the public files keep to themselves how many clients took part?

The third party's ε counts on participation that stays unknown. Even the number of participants of a
round is a function of the clients' draw that no noise hides, and traffic is a multiple of it. (At
record level an empty round shows in a model that does not change. The bound is an average over who
takes part, and covers that.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import MAXIMUM_LEDGER_BYTES, Bundle
from audit.reading.files import read_bytes
from audit.untrusted.documents import DocumentError, parse_json
from audit.verdict import Verdict

_METRICS = "metrics.jsonl"
_TRAFFIC = ("bytes_up", "bytes_down")
_EXACT = 1e-9
# Shares of some hundred test records: over two or three different numbers of clients they are a
# multiple of these by chance in one run of some hundred or ten thousand, over four in one of 1e7. A
# schedule falls by simple ratios in few rounds; the check "disclosure" holds it to the spec's.
_BY_CHANCE = ("test_accuracy", "validation_accuracy", "learning_rate")
_FEWEST_COUNTS = 4


def metrics_of(bundle: Bundle) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl.

    Raises:
        UnverifiedError: They cannot be read.
    """
    try:
        raw = read_bytes(bundle.root, _METRICS, MAXIMUM_LEDGER_BYTES)
        lines = [parse_json(line) for line in raw.splitlines() if line.strip()]
    except (UntrustedFileError, DocumentError) as error:
        raise UnverifiedError(f"{_METRICS} cannot be read, so not judged") from error
    if not all(isinstance(line, dict) and isinstance(line.get("round"), int) for line in lines):
        raise UnverifiedError(f"{_METRICS} has a line without a round")
    return lines


def _proportional(values: Sequence[float], counts: Sequence[int]) -> bool:
    """Whether the values are one factor times counts that differ."""
    numbers, participants = np.asarray(values, dtype=np.float64), np.asarray(counts)
    if len(set(counts)) < 2 or not np.any(numbers):
        return False
    factor = float(numbers.sum()) / float(participants.sum())
    difference = np.abs(numbers - factor * participants).max()
    return bool(difference <= _EXACT * np.abs(numbers).max())


def _judge(bundle: Bundle) -> Judgement:
    if bundle.header.client_sampling != "poisson":
        return Judgement(
            Verdict.NOT_APPLICABLE,
            "every round has the same public number of clients, so there is nothing to tell",
        )
    lines = [line for line in metrics_of(bundle) if line["round"] > 0]
    present = {item.round + 1: len(item.clients) for item in bundle.readable_ledger.rounds}
    reasons = []
    for name in sorted({key for line in lines for key in line} - {"round"}):
        pairs = [
            (line[name], present[line["round"]])
            for line in lines
            if isinstance(line.get(name), int | float) and line["round"] in present
        ]
        values = [float(value) for value, _ in pairs]
        if name in _TRAFFIC and len(set(values)) > 1:
            reasons.append(f"traffic in {_METRICS} ({name}) varies with how many clients took part")
            continue
        counts = [count for _, count in pairs]
        by_chance = name in _BY_CHANCE and len(set(counts)) < _FEWEST_COUNTS
        if not by_chance and _proportional(values, counts):
            reasons.append(f"a number in {_METRICS} ({name}) tells how many clients took part")
    details = {"lines": len(lines)}
    return conclude(
        "the public metrics state the same traffic for every round, and none of their numbers is a "
        "multiple of how many clients took part",
        reasons,
        details=details,
    )


PUBLICATION = Check(
    name="publication",
    title="Do the public files keep who took part to themselves?",
    place=90,
    meaning="If it fails, public numbers tell how many took part, which the stated loss keeps "
    "secret.",
    claim="Nothing in the public metrics tells how many clients took part in a round.",
    tolerance="1e-9 of the largest value, for numbers written and read again in decimal",
    power="traffic or any other number of metrics.jsonl that is a multiple of the participants",
    limits="Running times grow with the participants, if not exactly; publish them rounded or not "
    "at all. An accuracy or a learning rate is judged where rounds had four different numbers of "
    "participants or more: below that it may be a multiple of them by chance. What else is "
    "published beside the run is not seen.",
    rule=_judge,
)
register(PUBLICATION)
