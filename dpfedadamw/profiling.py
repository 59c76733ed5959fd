"""Where a run's time goes, by named part; nothing is measured unless somebody asks.

A function says by `part` which part of a run it is, a block by `within`. Time counts for the
innermost part, so parts add up to the whole; what a part of `_WHOLE` calls counts for that part.
Only sums over a whole run are kept: the time of one client or one batch would tell its size, and
where the sums go is for whoever asked to say.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

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


@contextmanager
def within(name: str) -> Iterator[None]:
    """Count the time of a block for a part."""
    profile = _profile
    if profile is None:
        yield
        return
    before = profile._enter(name)
    try:
        yield
    finally:
        profile._leave(before)


def part(name: str) -> Callable[[Callable[_Given, _Found]], Callable[_Given, _Found]]:
    """Count the time of a function for a part.

    Args:
        name: The part, in words for the user: "clipped sum".
    """

    def decorate(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
        @functools.wraps(function)
        def timed(*given: _Given.args, **named: _Given.kwargs) -> _Found:
            profile = _profile
            if profile is None:
                return function(*given, **named)
            # Without a context manager, which would take longer than some of what is timed.
            before = profile._enter(name)
            try:
                return function(*given, **named)
            finally:
                profile._leave(before)

        return timed

    return decorate
