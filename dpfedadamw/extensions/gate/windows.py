"""All shards are asked one question, each in a window of its own, and the site has one answer.

What may leave is the arrays that the gate released, or one of two fixed refusals. Both follow from
the server's question and the ledger, never from a shard's answer. A shard that fails, answers
something else or is late counts as one that changed nothing, so a failure says nothing either.
"""

from __future__ import annotations

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
RELEASE_SECONDS = 1.0
"""Before a reply leaves: in which the shards' answers are read, noised and charged."""
# In which a cell's program must start.
_START_SECONDS = 120.0


def refuse_short(reply_after: float) -> None:
    """Refuse a time in which no shard could train.

    Raises:
        CellError: If it is not longer than `RELEASE_SECONDS`.
    """
    if reply_after <= RELEASE_SECONDS:
        raise CellError(
            f"--reply-after: found {reply_after:g}; must be more than {RELEASE_SECONDS:g} "
            "seconds, in which the shards train"
        )


class Windows:
    """The site's shards, asked together.

    Args:
        cells: One a shard.
        model: The arrays of an answer.
        at_once: Shards that compute at the same time.
    """

    def __init__(self, cells: Sequence[Cell], model: Model, at_once: int) -> None:
        self._cells, self._at_once = cells, at_once
        self._answered = threading.Condition()
        self._shards = [Shard(one.socket, model, self._wake) for one in cells]

    def __enter__(self) -> Self:
        """Start one cell, to see that they do.

        Raises:
            CellError: If it does not start.
        """
        self._cells[0].start()
        started = self._shards[0].has_joined(_START_SECONDS)
        self._cells[0].end()
        if not started:
            self.__exit__()
            raise CellError("the program of a shard does not start; keep logs to see why")
        return self

    def __exit__(self, *_: object) -> None:
        """End all cells."""
        for cell, shard in zip(self._cells, self._shards, strict=True):
            cell.end()
            shard.close()

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
        else the time of a reply would say how long they took.

        Args:
            gate: What charges and noises.
            question: What the shards are asked, as `Question.to_bytes` has it.
            broadcast: The arrays that the server sent.
            names: The job's identifier, and the request's within the job.
            reply_after: Seconds from now to the reply's departure.
            tell: Called with a line for the operator when something happens.
        """
        last = time.monotonic() + reply_after
        try:
            gate.check()
            try:
                answers = self.ask(question, reply_after - RELEASE_SECONDS)
                job, request = names
                return gate.release(job=job, request=request, broadcast=broadcast, shards=answers)
            finally:
                time.sleep(max(0.0, last - time.monotonic()))
        except Refused as refusal:
            tell(refusal.reason)
            return str(refusal)
        except DpfedadamwError as error:
            # Its words are for the operator: they name files of the site.
            tell(str(error))
            return FAILED

    def ask(self, question: bytes, seconds: float) -> list[Arrays | None]:
        """What each shard answers, in so many seconds; None where that is no arrays of the model.

        Each shard has a window of its own, which begins and ends at times that follow from the
        number of shards, and its cell runs in this window alone. Else a shard that works long, or
        that leaves something running, could make later ones late: one record would then change
        several updates, and 2C would not bound what it does.

        Args:
            question: The server's.
            seconds: Those that it may take altogether.
        """
        found: list[Arrays | None] = []
        places = range(len(self._shards))
        together = [places[one : one + self._at_once] for one in places[:: self._at_once]]
        begin, window = time.monotonic(), seconds / len(together)
        for number, batch in enumerate(together):
            time.sleep(max(0.0, begin + number * window - time.monotonic()))
            found += self._asked(question, batch, begin + (number + 1) * window)
        return found

    def _asked(self, question: bytes, batch: range, last: float) -> list[Arrays | None]:
        try:
            for place in batch:
                self._shards[place].ask(question)
                self._cells[place].start()
            with self._answered:
                self._answered.wait_for(
                    lambda: all(self._shards[place].answered() is not None for place in batch),
                    max(0.0, last - time.monotonic()),
                )
            return [self._shards[place].answered() for place in batch]
        finally:
            for place in batch:
                self._cells[place].end()
                self._shards[place].ask(None)

    def _wake(self) -> None:
        with self._answered:
            self._answered.notify_all()
