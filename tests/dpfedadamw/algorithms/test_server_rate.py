"""Every algorithm takes a rate of the server, and moves by it and by nothing else."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
import torch

from dpfedadamw.algorithms import registry
from dpfedadamw.algorithms.base import Algorithm, Broadcast, ServerState, Upload
from dpfedadamw.algorithms.registry import ALGORITHMS, AlgorithmEntry
from dpfedadamw.errors import DpfedadamwError
from tests.dpfedadamw.algorithms import worlds

# Whose server has an optimiser, whose rate it always was.
OPTIMISERS = {"dp-fedopt", "fedadam"}
AVERAGED = sorted(ALGORITHMS.keys() - OPTIMISERS)


@functools.cache
def after_a_round(section: str) -> tuple[ServerState, ServerState, list[Upload]]:
    """The server before and after one round, and what it was sent."""
    system = worlds.algorithm(section)
    before = system.server.start(torch.from_numpy(worlds.first_parameters()))
    broadcast = Broadcast(before.parameters, before.state, worlds.RATES[0], worlds.STEPS, 0, {})
    uploads = [
        system.local.run(broadcast, worlds.Oracle(client, 0), worlds.Silent())
        for client in worlds.COHORTS[0]
    ]
    return before, system.server.combine(before, uploads, broadcast), uploads


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", AVERAGED)
def test_the_servers_step_is_its_rate_times_the_mean_update(name):
    _, plain, uploads = after_a_round(f"{{name: {name}}}")
    before, after, again = after_a_round(f"{{name: {name}, server: {{learning_rate: 2.5}}}}")
    mean = torch.stack([upload.update for upload in uploads]).mean(0)
    for one, other in zip(uploads, again, strict=True):
        torch.testing.assert_close(one.update, other.update, rtol=0, atol=0)
    # DP-FAFED's server makes a move of its own after that, which is the same at every rate.
    own = plain.parameters - before.parameters - mean
    expected = before.parameters + 2.5 * mean + own
    torch.testing.assert_close(after.parameters, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", AVERAGED)
def test_whatever_else_the_server_keeps_does_not_depend_on_its_rate(name):
    _, plain, _ = after_a_round(f"{{name: {name}}}")
    _, after, _ = after_a_round(f"{{name: {name}, server: {{learning_rate: 2.5}}}}")
    assert plain.state.keys() == after.state.keys()
    for key, value in plain.state.items():
        # θ' of DP-FAFED is the point that the server moved to.
        if key != "previous":
            torch.testing.assert_close(after.state[key], value, rtol=0, atol=0)


def test_an_algorithm_whose_server_would_not_do_what_the_spec_says_is_refused(monkeypatch):
    @dataclass(frozen=True)
    class Deaf:
        learning_rate: float = 1.0

    entry = ALGORITHMS["dp-fedavg"]

    def assemble(setup) -> Algorithm:
        return Algorithm(entry.assemble(setup).local, Deaf())

    deaf = AlgorithmEntry(**{**vars(entry), "assemble": assemble})
    monkeypatch.setattr(registry, "ALGORITHMS", {"dp-fedavg": deaf})
    section = worlds.section_of("{name: dp-fedavg, server: {learning_rate: 2.0}}")
    with pytest.raises(DpfedadamwError, match="the server of dp-fedavg takes no rate of its own"):
        registry.build(section, worlds.model(), worlds.CLIENTS)
    plain = worlds.section_of("{name: dp-fedavg}")
    assert registry.build(plain, worlds.model(), worlds.CLIENTS).server == Deaf()
