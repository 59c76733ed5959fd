"""What the quick suite leaves out: thorough tests, and all but a sample of some tests' cases."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest


def leave_out(items: Sequence[pytest.Item]) -> None:
    """Mark as slow what is thorough, and the cases that a sample leaves out."""
    places: dict[str, Iterator[int]] = defaultdict(itertools.count)
    for item in items:
        sampled = item.get_closest_marker("sampled")
        beyond = sampled and next(places[item.nodeid.split("[")[0]]) % sampled.args[0]
        if beyond or item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.slow)
