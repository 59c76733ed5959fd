"""All shards are asked one question, each in a window of its own, and the site has one answer.

What may leave is the arrays that the gate released, or one of two fixed refusals. Both follow from
the server's question and the ledger, never from a shard's answer. A shard that fails, answers
something else or is late counts as one that changed nothing, so a failure says nothing either.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate.cells import Cell, CellError
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.shards import Model, Shard

if TYPE_CHECKING:
    from dpfedadamw.extensions.gate.door import Gate

Arrays = Mapping[str, NDArray[Any]]
FAILED = f"{REFUSAL}: it has failed; ask the site's operator"
# In which a cell's program must start.
_START_SECONDS = 120.0
# Of each window: the cells' processes are killed and the system takes them away.
_END_SHARE = 0.1


def refuse_short(reply_after: float, release: float) -> None:
    """Refuse a time in which no shard could train.

    Args:
        reply_after: The time, in seconds.
        release: What the release needs of it, as `Gate.release_seconds` has it.

    Raises:
        CellError: If nothing is left.
    """
    if reply_after <= release:
        raise CellError(
            f"--reply-after: found {reply_after:g}; must be more than the {release:g} seconds that "
            "a release may take, since the shards train in the rest"
        )


class Windows:
    """The site's shards, asked together.

    Args:
        cells: One a shard.
        model: The arrays of an answer.
        at_once: Shards that compute at the same time.
        release: Seconds before a reply leaves, in which answers are clipped, noised and charged.
    """

    def __init__(self, cells: Sequence[Cell], model: Model, at_once: int, release: float) -> None:
        self._cells, self._model, self._at_once, self._release = cells, model, at_once, release
        self._answered = threading.Condition()

    def __enter__(self) -> Self:
        """Start one cell, to see that they do.

        Raises:
            CellError: If it does not start.
        """
        first = Shard(self._cells[0].socket, self._model)
        try:
            self._cells[0].start()
            started = first.has_joined(_START_SECONDS)
        finally:
            self._cells[0].end()
            first.close()
        if not started:
            raise CellError("the program of a shard does not start; keep logs to see why")
        return self

    def __exit__(self, *_: object) -> None:
        """End all cells."""
        for cell in self._cells:
            cell.end()

    def released(
        self,
        gate: Gate,
        question: bytes,
        broadcast: Arrays,
        names: tuple[str, str],
        reply_after: float,
        tell: Callable[[str], None],
    ) -> Arrays | str:
        """The arrays that leave, or the refusal.

        Once the shards are asked, this returns after ``reply_after`` seconds, whatever they do:
        else the time of a reply would say how long they took. A release that takes longer than it
        may ends a whole number of its times later. Another gate of this ledger waits meanwhile:
        a shard of one could else make those of another late.

        Args:
            gate: What charges and noises.
            question: What the shards are asked, as `Question.to_bytes` has it.
            broadcast: The arrays that the server sent.
            names: The job's identifier, and the request's within the job.
            reply_after: Seconds from now to the reply's departure.
            tell: Called with a line for the operator when something happens.
        """
        try:
            gate.check()
            with gate.alone():
                last = time.monotonic() + reply_after
                try:
                    answers = self.ask(question, reply_after - self._release)
                    job, request = names
                    return gate.release(
                        job=job, request=request, broadcast=broadcast, shards=answers
                    )
                finally:
                    late = time.monotonic() - last
                    time.sleep(max(0, math.ceil(late / self._release)) * self._release - late)
        except Refused as refusal:
            tell(refusal.reason)
            return str(refusal)
        except (DpfedadamwError, OSError) as error:
            # Its words are for the operator: they name files of the site.
            tell(str(error))
            return FAILED

    def ask(self, question: bytes, seconds: float) -> list[Arrays | None]:
        """What each shard answers, in so many seconds; None where that is no arrays of the model.

        Each shard has a window of its own, which begins and ends at times that follow from the
        number of shards, and its cell runs in this window alone. Else a shard that works long, or
        that leaves something running, could make later ones late: one record would then change
        several updates, and 2C would not bound what it does. A cell is killed a tenth of the window
        before its end. The next begins on time, though the system may still be taking away the
        memory of what was killed.

        Args:
            question: The server's.
            seconds: Those that it may take altogether.
        """
        found: list[Arrays | None] = []
        together = [
            self._cells[one : one + self._at_once]
            for one in range(0, len(self._cells), self._at_once)
        ]
        begin, window = time.monotonic(), seconds / len(together)
        for number, batch in enumerate(together):
            time.sleep(max(0.0, begin + number * window - time.monotonic()))
            found += self._asked(question, batch, begin + (number + 1) * window, window)
        return found

    def _asked(
        self, question: bytes, batch: Sequence[Cell], end: float, window: float
    ) -> list[Arrays | None]:
        shards: list[Shard] = []
        try:
            for cell in batch:
                shards.append(Shard(cell.socket, self._model, self._wake, question))
                cell.start()
            with self._answered:
                self._answered.wait_for(
                    lambda: all(shard.answered() is not None for shard in shards),
                    max(0.0, end - _END_SHARE * window - time.monotonic()),
                )
            return [shard.answered() for shard in shards]
        finally:
            for cell in batch:
                cell.stop()
            for shard in shards:
                shard.close()
            for cell in batch:
                cell.end(max(0.0, end - time.monotonic()))

    def _wake(self) -> None:
        with self._answered:
            self._answered.notify_all()
