"""What is printed about a run in training without a terminal: an occasional line, for a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from rich.text import Text

from dpfedadamw.cli.terminal import err

if TYPE_CHECKING:
    from dpfedadamw.run.evaluation import Evaluation

# The log of a day's run has some hundreds of lines, and that of a minute's run a few.
EVERY_SECONDS = 30.0


class TrainingLines:
    """Prints a run's progress, when it will end, and its accuracy at the last evaluation.

    Where the number of clients in a round is secret it prints nothing: a log has times, and a
    round's time would reveal the number.

    Args:
        rounds: Rounds of the whole run.
        completed: How many of them were over before.
        hidden: Whether it is hidden who takes part.
        clock: Seconds that pass.
        now: The time of day.
    """

    def __init__(
        self,
        rounds: int,
        completed: int,
        hidden: bool,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._rounds, self._before = rounds, completed
        self._hidden = hidden
        self._clock, self._now = clock, now
        self._began = self._said = clock()
        self._score: str | None = None

    def round_is_over(
        self,
        completed: int,
        score: str | None,
        epsilon: float | None = None,
    ) -> None:
        """Note a round, and print a line if the last one was long ago.

        Args:
            completed: Rounds completed.
            score: How well the model did on test records, in words (`score_of`); None where the
                round was not evaluated.
            epsilon: ε of the rounds so far; None where nothing is told.
        """
        from dpfedadamw.accounting.registry import rounded_up

        self._score = score or self._score
        passed = self._clock()
        if self._hidden or err.is_terminal or passed - self._said < EVERY_SECONDS:
            return
        self._said = passed
        left = (self._rounds - completed) * (passed - self._began) / (completed - self._before)
        said = [f"{self._now():%H:%M:%S}  round {completed} of {self._rounds}"]
        if self._score is not None:
            said.append(f"test {self._score}")
        if epsilon is not None:
            said.append(f"ε {rounded_up(epsilon)}")
        if completed < self._rounds:
            end = self._now() + timedelta(seconds=left)
            day = "" if end.date() == self._now().date() else f"{end:%d %B} "
            said.append(f"training ends about {day}{end:%H:%M}")
        err.print(Text(", ".join(said)), soft_wrap=True)


def score_of(evaluation: Evaluation) -> str | None:
    """How well a model did on test records, in a few words; None where it was not tested."""
    if evaluation.accuracy is not None:
        return f"accuracy {evaluation.accuracy:.1%}"
    error = evaluation.measures.get("rmse")
    return None if error is None else f"RMSE {error:.4g}"
