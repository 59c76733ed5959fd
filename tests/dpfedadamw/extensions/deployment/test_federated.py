"""What a server's file tells while its run is led, and how the run ended."""

from __future__ import annotations

import json
import os

import pytest

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment.federated import lead
from dpfedadamw.extensions.deployment.leading import led_run
from dpfedadamw.extensions.deployment.server import Patience
from tests.dpfedadamw.extensions.deployment.loops import LoopLink, opened

SHORT = Patience(again=0.0, answer=5.0, meeting=0.3)


@pytest.fixture
def clients(fresh):
    found = opened(fresh)
    yield found
    for one in found.values():
        one.close()


def told(project):
    """What the server's file says now, but for the number of the process."""
    values = json.loads((project.server / "status.json").read_text())
    assert values.pop("process") == os.getpid()
    return values


class Watched(LoopLink):
    """Takes down what the server's file says whenever a message is sent; `broken` ends a round."""

    def __init__(self, project, clients, broken=None):
        super().__init__(clients)
        self.project, self.broken, self.seen = project, broken, []

    def send(self, node, values, message):
        now = told(self.project)
        if now not in self.seen:
            self.seen.append(now)
        if self.broken is not None and "hello" not in values:
            raise self.broken
        return super().send(node, values, message)


def test_the_file_tells_of_the_meeting_each_round_and_the_end(fresh, clients):
    link = Watched(fresh, clients)
    run = lead(fresh.server, link, SHORT)
    where = str(led_run(fresh.server).path)
    assert str(run) == where
    assert link.seen == [
        {"state": "meeting"},
        {"state": "training", "run": where, "completed": 0},
        {"state": "training", "run": where, "completed": 1},
    ]
    assert told(fresh) == {"state": "finished", "run": where}


def test_the_file_tells_why_a_run_failed_in_the_words_of_the_error(fresh, clients):
    del clients[102]
    with pytest.raises(DpfedadamwError) as caught:
        lead(fresh.server, LoopLink(clients), SHORT)
    assert told(fresh) == {"state": "failed", "reason": str(caught.value)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("broken", [KeyboardInterrupt(), ZeroDivisionError("a record of a client")])
def test_the_file_names_an_unforeseen_end_by_its_kind_and_shows_none_of_its_words(
    broken, fresh, clients
):
    with pytest.raises(type(broken)):
        lead(fresh.server, Watched(fresh, clients, broken), SHORT)
    assert told(fresh) == {"state": "failed", "reason": type(broken).__name__}
