"""Eleven runs in four groups, whose numbers a comparison has to bring to the right places."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from reports.extensions.comparison import Comparison
from tests.reports.extensions.comparison import test_comparison
from tests.reports.extensions.comparison.test_comparison import compared, run_of, three


def several(patch: pytest.MonkeyPatch, audience: str = "internal") -> Comparison:
    """Two specs of three seeds and a run that failed; others at another ε, unit, and none."""
    patch.setattr(test_comparison, "_NUMBERS", itertools.count(1))
    a = [
        replace(run, bytes_up=1000.0 * place, spent=((1, 2.0 + place), (2, 5.0 + place)))
        for place, run in enumerate(
            three("dp-a", 0.80, 0.84, 0.88, worst=7.0, audience=audience), 1
        )
    ]
    b = [
        replace(run, bytes_up=500.0, bytes_down=900.0 + 100.0 * place)
        for place, run in enumerate(
            three("dp-b", 0.78, 0.85, 0.86, worst=7.05, realised=4.0, audience=audience)
        )
    ]
    bad = run_of(0.99, algorithm="dp-b", seed=7, verdict="FAIL", worst=7.0, audience=audience)
    other = run_of(0.6, algorithm="dp-a", worst=3.0, seed=1, audience=audience)
    plain = [
        run_of(accuracy, algorithm=name, unit="none", audience=audience)
        for name, accuracy in (("fedavg", 0.9), ("sgd", None))
    ]
    clients = run_of(0.7, algorithm="dp-a", unit="client", third=2.5, audience=audience)
    clients.source.header["created"] = "2026-11-21T10:00:00Z"
    other.source.header["created"] = "2026-11-20T10:00:00Z"
    return compared(*a, *b, bad, other, *plain, clients, audience=audience)
