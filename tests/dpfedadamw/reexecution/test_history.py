"""On what a run was computed, as far as computing it again goes by that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dpfedadamw.reexecution.history import TrainingMachine

CPU = torch.device("cpu")


def noted(folder: Path, **rounds: object) -> TrainingMachine:
    """A machine that a run's evidence notes, from rounds on."""
    for first, content in rounds.items():
        name = f"environment-{int(first.removeprefix('from_')):05d}.json"
        (folder / name).write_text(json.dumps(content))
    return TrainingMachine(folder, CPU)


def used(machine: TrainingMachine, index: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that torch is told within a round and after it."""
    told: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    with machine.threads(index):
        told.append(0)
    return told


@pytest.mark.parametrize(
    ("threads", "within"),
    [
        *((count, [count]) for count in (1, 2, 1024)),
        # What no machine has is not asked of torch.
        *((other, []) for other in (0, -1, 1025, "2", 2.0, None)),
    ],
)
def test_a_round_is_computed_with_the_trainer_s_threads_and_the_next_with_ours(
    threads: object, within: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = noted(tmp_path, from_0={"threads": threads})
    assert used(machine, 3, monkeypatch) == [*within, 0, 7]


def test_a_round_goes_by_the_last_note_at_or_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = noted(
        tmp_path,
        from_1={"threads": 2, "engine": "loop"},
        from_4={"threads": 3, "engine": "vmap"},
    )
    assert [machine.engine(index) for index in range(6)] == [
        "auto", "loop", "loop", "loop", "vmap", "vmap",
    ]  # fmt: skip
    assert [used(machine, index, monkeypatch)[0] for index in range(6)] == [7, 2, 2, 2, 3, 3]
    assert len(machine.differences(0)) == 1
    assert "did not record" in machine.differences(0)[0]


def test_threads_are_no_difference_between_machines_and_the_rest_is(tmp_path: Path) -> None:
    from dpfedadamw.run.environment import environment

    here = environment(CPU, "loop")
    machine = noted(
        tmp_path,
        from_0=here | {"threads": 999},
        from_1=here | {"torch": "0.1"},
    )
    assert machine.differences(0) == ()
    (said,) = machine.differences(1)
    assert "0.1" in said
