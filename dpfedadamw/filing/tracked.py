"""What hears of a run while it goes on: the extension `trackers`, where some are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpfedadamw.registration import extension

if TYPE_CHECKING:
    from dpfedadamw.run.training import Training

# Where trackers write, beside the runs.
FOLDER = "tracking"
_MODULE = "dpfedadamw.extensions.trackers.tracking"


class Listener(Protocol):
    """What hears of a run."""

    def round_is_over(self) -> None:
        """Hear that public metrics have a line more."""
        ...

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Hear what the run came to, by what ``run --json`` prints."""
        ...


class _NoTrackers:
    """What a run without trackers tells."""

    def round_is_over(self) -> None: ...

    def finished(self, summary: Mapping[str, Any]) -> None: ...


def check(names: Sequence[str]) -> None:
    """Refuse trackers that are not there, before a run begins.

    Raises:
        DpfedadamwError: If one is unknown, its library is not installed, or the extension is not.
    """
    if names:
        extension(_MODULE, f"--tracker {names[0]}").check(names)


@contextlib.contextmanager
def tracked(
    training: Training, names: Sequence[str], say: Callable[[str], None]
) -> Iterator[Listener]:
    """Trackers of a run in progress.

    Args:
        training: The run.
        names: The trackers.
        say: Called with what went wrong in one, a line each; the run goes on.
    """
    if not names:
        yield _NoTrackers()
        return
    trackers = extension(_MODULE, f"--tracker {names[0]}").Tracking(
        names,
        training.run.path.parent / FOLDER,
        training.experiment.spec,
        training.run,
        training.completed,
        training.experiment.plan.participants_hidden,
    )
    try:
        yield trackers
    finally:
        trackers.close()
        for problem in trackers.problems:
            say(problem)
