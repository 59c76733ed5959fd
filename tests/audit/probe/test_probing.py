"""What the active probe asks for, and which of the answers it compares."""

from __future__ import annotations

import numpy as np
import pytest

from audit.probe.probe_tally import ABSENT, ADDED, NOT_DRAWN, REPLACED
from audit.probe.probing import run_probe
from tests.audit.synthetic_run import SoftmaxProbe

CLIP = 0.5


class Asked(SoftmaxProbe):
    """Notes how many records each step draws, and may treat the record in one place wrongly."""

    def __init__(self, place: int | None = None) -> None:
        super().__init__(CLIP)
        self.drawn: list[int] = []
        self.place = place

    def sum_of_step(self, inputs, labels, clients, drawn, elsewhere=False):
        self.drawn.append(len(drawn))
        total = super().sum_of_step(inputs, labels, clients, drawn, elsewhere)
        if self.place is not None and len(drawn) > 1:
            record = np.nan_to_num(inputs[clients == 0][drawn[self.place]], nan=1.0)
            total[:6] += CLIP * (1.5 + np.sign(record))
        return total


def largest(found, kind):
    return found["difference_norm"][found["kind"] == kind].max()


def test_no_step_is_asked_for_twice_but_the_first():
    probe = Asked()
    found = run_probe(probe)
    assert (len(probe.drawn), sum(probe.drawn)) == (28, 89)
    assert len(found["names"]) == len(set(found["names"])) == 59


@pytest.mark.parametrize("place", [0, -1])
def test_a_record_that_counts_for_more_in_the_first_or_the_last_place_is_seen(place):
    assert largest(run_probe(Asked()), REPLACED) <= 2 * CLIP
    found = run_probe(Asked(place))
    assert largest(found, ADDED) > CLIP
    if place == 0:
        assert largest(found, REPLACED) > 2 * CLIP


@pytest.mark.parametrize(("wrong", "where"), [("client", NOT_DRAWN), ("all", ABSENT)])
def test_what_moves_a_sum_without_being_drawn_is_told_by_where_it_lies(wrong, where):
    found = run_probe(SoftmaxProbe(CLIP, wrong))
    assert largest(found, where) > 0.01 * CLIP
    if where == NOT_DRAWN:
        assert largest(found, ABSENT) == 0.0
