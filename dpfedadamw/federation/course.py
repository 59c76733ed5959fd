"""What the ledger says of a run's rounds so far, each of its lines read once.

Each round asks how often it was begun and how many steps were taken before it. To look through the
whole ledger for that, in each of T rounds, takes time with T².
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Course:
    """Follows a ledger that grows.

    Args:
        entries: Its lines, to which others are appended.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = entries
        self._read = 0
        self._attempts: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        # Steps of all rounds before one of them.
        self._before = (0, 0)

    def attempts(self, round_index: int) -> int:
        """How often a round was charged so far."""
        self._follow()
        return self._attempts.get(round_index, 0)

    def steps_before(self, round_index: int) -> int:
        """Local steps of all rounds before one; a round that was repeated counts once, as it ended.

        Raises:
            KeyError: If one of them is not over.
        """
        self._follow()
        known, steps = self._before
        if known > round_index:
            known, steps = 0, 0
        steps += sum(self._steps[index] for index in range(known, round_index))
        self._before = (round_index, steps)
        return steps

    def _follow(self) -> None:
        for place in range(self._read, len(self._entries)):
            entry = self._entries[place]
            if entry["kind"] == "spend":
                index = entry["round"]
                self._attempts[index] = max(self._attempts.get(index, 0), entry["attempt"])
            elif entry["kind"] == "round":
                index = entry["round"]
                if index in self._steps:
                    self._before = (0, 0)
                self._steps[index] = max(entry["steps"], default=0)
        self._read = len(self._entries)
