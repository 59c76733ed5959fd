"""What a recorder states of a loop's privacy, and the order in which it is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from dpfedadamw.extensions.recorders.evidence import Stated
from dpfedadamw.extensions.recorders.opacus import Recorder, RecorderError
from tests.dpfedadamw.extensions.recorders import loops


class Accountant:
    """States ε of its own for the δ that it is asked for."""

    def __init__(self, name: str, epsilon: float | None, *history: tuple[float, float, int]):
        self.name, self.epsilon, self.history = name, epsilon, [*history]

    def mechanism(self) -> str:
        return self.name

    def get_epsilon(self, delta: float) -> float:
        assert delta == 1e-5
        if self.epsilon is None:
            raise ValueError
        return self.epsilon


ONE, TWO = (1.0, 0.1, 7), (2.0, 0.2, 3)
FIRST, SECOND = Accountant("rdp", 4, ONE), Accountant("prv", 3, TWO)
FAILING = Accountant("gdp", None, TWO)


@pytest.mark.parametrize(
    ("accountants", "given", "continued", "due"),
    [
        ([], (), False, Stated(epsilon=None, accountant="unstated", history=None)),
        ([FIRST], (), False, Stated(epsilon=4.0, accountant="rdp", history=[ONE])),
        # What a loop prints is what the accountant says that it has now.
        ([FIRST, SECOND], (), False, Stated(epsilon=3.0, accountant="prv", history=[TWO])),
        ([FIRST, FAILING], (), False, Stated(epsilon=None, accountant="gdp", history=[TWO])),
        ([], (9.5,), False, Stated(epsilon=9.5, accountant="stated", history=None)),
        ([FIRST], (0.0,), False, Stated(epsilon=0.0, accountant="stated", history=[ONE])),
        (
            [FIRST, SECOND],
            (9.5, "classical"),
            False,
            Stated(epsilon=9.5, accountant="classical", history=[ONE, TWO]),
        ),
        # What accountants of earlier processes counted is not known.
        ([FIRST], (9.5,), True, Stated(epsilon=9.5, accountant="stated", history=None)),
        ([SECOND], (), True, Stated(epsilon=3.0, accountant="prv", history=[TWO])),
    ],
)
def test_what_is_stated_is_what_was_handed_over_or_what_the_last_accountant_says(
    accountants: list[Any], given: tuple[Any, ...], continued: bool, due: Stated
) -> None:
    recorder = Recorder("run", delta=1e-5, continued=continued)
    recorder._accountants = accountants
    epsilon, accountant, *_ = (*given, *(None, "stated")[len(given) :])
    assert recorder._stated(epsilon, accountant) == due


def test_a_loop_that_was_closed_or_paused_is_over(tmp_path: Path) -> None:
    ended: list[str] = []
    for name, end in (("closed", Recorder.close), ("paused", Recorder.pause)):
        recorder = Recorder(tmp_path / name, delta=loops.DELTA)
        with pytest.raises(RecorderError, match="nothing was attached"):
            end(recorder)
        # Nothing to stop is no error.
        recorder.detach()
        recorder._attached = SimpleNamespace(release=lambda: False)  # type: ignore[assignment]
        recorder.detach()
        assert recorder._left == (0, 0)
        writer = SimpleNamespace(
            in_stretch=0, path=tmp_path,
            pause=lambda **left: ended.append("paused"),
            close=lambda *_, **left: ended.append("closed"),
        )  # fmt: skip
        recorder._writer = writer  # type: ignore[assignment]
        recorder._finish = lambda *_: (1, "")  # type: ignore[method-assign]
        assert end(recorder) == tmp_path
        assert ended.pop() == name
        with pytest.raises(RecorderError, match="nothing was attached"):
            end(recorder)


def test_what_is_left_over_is_added_up_over_all_stretches(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, delta=loops.DELTA)
    for left in ((1, 2), (10, 20)):
        recorder._attached = SimpleNamespace(  # type: ignore[assignment]
            release=lambda: True, left_over=lambda left=left: left
        )
        recorder.detach()
    assert recorder._left == (11, 22)


def test_a_second_attach_is_of_the_same_training_and_hears_of_each_accountant_once(
    tmp_path: Path,
) -> None:
    parts = loops.private()
    recorder = Recorder(tmp_path / "run", delta=loops.DELTA)
    engine = SimpleNamespace(accountant=FIRST)
    recorder.attach(parts.optimizer, parts.loader, parts.model, privacy_engine=engine)
    recorder.attach(parts.optimizer, parts.loader, parts.model)
    recorder.attach(parts.optimizer, parts.loader, parts.model, privacy_engine=engine)
    assert recorder._accountants == [FIRST, parts.engine.accountant]
    fewer = loops.TensorDataset(*loops.data()[: loops.RECORDS - 1])
    for other in (
        loops.private(model=loops.network(nn.Linear(12, 12))),
        loops.private(dataset=fewer),
    ):
        with pytest.raises(RecorderError, match="differ from the first attach"):
            recorder.attach(other.optimizer, other.loader, other.model)
    recorder._writer.release()
    # The objects are as they were.
    assert "add_noise" not in vars(parts.optimizer)
