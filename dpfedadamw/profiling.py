"""Where a run's time goes, by named part; nothing is measured unless somebody asks.

A function says by `part` which part of a run it is, a block by `within`. Time counts for the
innermost part, so parts add up to the whole; what a part of `_WHOLE` calls counts for that part.
Only sums over a whole run are kept, because the time of one client or one batch would reveal its
size. The caller decides where the sums go.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

OTHER = "other"
# What they call is theirs: the probe's clipped sums are the probe.
_WHOLE = frozenset(("evaluation", "probe", "audit", "report", "signatures"))


@dataclass
class Profile:
    """Seconds by part, so far.

    Attributes:
        seconds: Wall time of each part, in the order in which they first began.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _part: str = OTHER
    _since: float = field(default_factory=lambda: time.perf_counter())

    @property
    def total(self) -> float:
        """Seconds of all parts together."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Seconds in all and of each part, the largest first, as JSON types."""
        self._count()
        order = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {
            "seconds": round(self.total, 3),
            "parts": {name: round(seconds, 3) for name, seconds in order},
        }

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._part] = self.seconds.get(self._part, 0.0) + now - self._since
        self._since = now

    def _enter(self, name: str) -> str:
        """Begin a part; what to give back to `_leave`."""
        before = self._part
        if before not in _WHOLE:
            self._count()
            self._part = name
        return before

    def _leave(self, before: str) -> None:
        """Go on with the part that was interrupted."""
        if before not in _WHOLE:
            self._count()
            self._part = before


_profile: Profile | None = None


@contextmanager
def profiled() -> Iterator[Profile]:
    """Measure what is done in this block, by this process's one thread that runs rounds."""
    global _profile
    _profile = Profile()
    try:
        yield _profile
    finally:
        _profile._count()
        _profile = None


class part(ContextDecorator):  # noqa: N801  Read as a verb: @part("noise").
    """Count the time of a function, or of a block, for a part.

    A function that it decorates is called by `contextlib`, so that no frame of this module is
    between a function and its caller.

    Args:
        name: The part, in words for the user: "clipped sum".
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def _recreate_cm(self) -> Self:
        """One of its own for each call, which may lie within another."""
        return type(self)(self._name)

    def __enter__(self) -> None:
        self._profile = _profile
        if self._profile is not None:
            self._before = self._profile._enter(self._name)

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile._leave(self._before)


# The same, where it surrounds a block.
within = part
