"""Where the clients of a round compute: what a round asks of that place, and this process as one.

A runner is handed the parts of a round's clients and gives their answers, in the same order. All
that it needs is in a `Participation`, in the spec, in the client's own records and in the source of
the client's noise, so that it may just as well compute in another process or on another machine.

A runner writes nothing that belongs to the run. When it is asked, the ledger's charge for the whole
round is on the disk already; evidence is written by the round, in this process, as each answer
comes. So the run's files are written in one order wherever clients compute, and what is charged
before it is drawn stays so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dpfedadamw.federation.participation import Answer, ClientData, Participation
from dpfedadamw.federation.worker import Worker


class ClientRunner(Protocol):
    """Runs clients of a round."""

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer | None]:
        """What each client's part comes to, in the order of ``parts``; None where it dropped out.

        No more drop out than the spec allows. The caller takes them one by one, and has written
        down what belongs to one before it asks for the next. It keeps their messages until the
        round is over, and nothing else that is as long as the model.

        Args:
            parts: Those of all clients of one attempt at one round, charged for.

        Raises:
            DpfedadamwError: If a client cannot be run. Nothing of the round is released then; it
                stays charged, and the run can be resumed.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds; no round follows."""
        ...


@dataclass(frozen=True)
class Inline:
    """Runs clients in this process, one after another.

    Attributes:
        worker: What they share.
        clients: Every client's records.
    """

    worker: Worker
    clients: Sequence[ClientData]

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer]:
        """Run each client when its answer is asked for."""
        for part in parts:
            # Not held here: else one client's vectors would stay while the next one works.
            yield self.worker.take_part(part.of(self.clients[part.client]))

    def close(self) -> None:
        """Nothing is held."""
