"""One message from the researcher's SuperLink to the shards, and one reply back.

What may leave is decided here: the arrays that the gate released, under the names that the server
sent, and one constant number of examples; or one of the fixed refusals. Every refusal follows from
the server's own message and the ledger, never from a shard's answer. A shard that fails, answers
something else or is late counts as one that changed nothing, so a failure says nothing either.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate.errors import REFUSAL, Refused
from dpfedadamw.extensions.gate.flower import link, objects, shards
from dpfedadamw.extensions.gate.flower.cells import Cell, CellError
from dpfedadamw.federation.flower.required import quiet, require

if TYPE_CHECKING:
    from dpfedadamw.extensions.gate.door import Gate

NOT_TRAIN = f"{REFUSAL}: it answers train messages only"
NOT_MODEL = (
    f"{REFUSAL}: a message must hold one record of arrays, of exactly the names, shapes and types "
    "that it allows"
)
FAILED = f"{REFUSAL}: it has failed; ask the site's operator"
_TRAIN = "train"
_LOOK = 0.2
_AGAIN = 2.0
RELEASE_SECONDS = 1.0
"""Before a reply leaves: in which the shards' answers are read, noised and charged."""
# In which a cell's SuperNode must start.
_START_SECONDS = 120.0


class Site:
    """The site's shards, asked together.

    Args:
        cells: One a shard.
        model: Shape and type of each array by name.
        at_once: Shards that compute at the same time.
    """

    def __init__(self, cells: Sequence[Cell], model: objects.Model, at_once: int) -> None:
        self.most = objects.most_bytes(model)
        self.model, self._cells, self._at_once = model, cells, at_once
        self._answered = threading.Condition()
        self._shards = [shards.Shard(one.socket, self.most, self._wake) for one in cells]

    def __enter__(self) -> Site:
        """Start one cell, to see that they do.

        Raises:
            CellError: If it does not start.
        """
        self._cells[0].start()
        started = self._shards[0].has_joined(_START_SECONDS)
        self._cells[0].end()
        if not started:
            self.__exit__()
            raise CellError("the SuperNode of a shard does not start; see --logs DIR")
        return self

    def __exit__(self, *_: object) -> None:
        """End all cells."""
        for cell, shard in zip(self._cells, self._shards, strict=True):
            cell.end()
            shard.close()

    def ask(self, question: shards.Question, seconds: float) -> list[objects.Arrays | None]:
        """What each shard answers, in so many seconds; None where that is no arrays of the model.

        Each shard has a window of its own, which begins and ends at times that follow from the
        number of shards, and its cell runs in this window alone. Else a shard that works long, or
        that leaves something running, could make later ones late: one record would then change
        several updates, and 2C would not bound what it does.

        Args:
            question: The server's message.
            seconds: Those that it may take altogether.
        """
        found: list[objects.Arrays | None] = []
        places = range(len(self._shards))
        together = [places[one : one + self._at_once] for one in places[:: self._at_once]]
        begin, window = time.monotonic(), seconds / len(together)
        for number, batch in enumerate(together):
            time.sleep(max(0.0, begin + number * window - time.monotonic()))
            found += self._asked(question, batch, begin + (number + 1) * window)
        return found

    def _asked(
        self, question: shards.Question, batch: range, last: float
    ) -> list[objects.Arrays | None]:
        try:
            for place in batch:
                self._shards[place].ask(question)
                self._cells[place].start()
            with self._answered:
                self._answered.wait_for(
                    lambda: all(self._shards[place].answered() for place in batch),
                    max(0.0, last - time.monotonic()),
                )
            return [self._arrays(self._shards[place].answered()) for place in batch]
        finally:
            for place in batch:
                self._cells[place].end()
                self._shards[place].ask(None)

    def _arrays(self, answer: shards.Answer | None) -> objects.Arrays | None:
        if answer is None:
            return None
        try:
            return objects.read_arrays(answer.name, answer.contents, self.model)[1]
        except ValueError:
            return None

    def _wake(self) -> None:
        with self._answered:
            self._answered.notify_all()


def serve(
    gate: Gate,
    site: Site,
    address: link.Address,
    reply_after: float,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer the SuperLink's messages without an end.

    Args:
        gate: What charges and noises.
        site: The shards, started.
        address: The SuperLink's.
        reply_after: Seconds from a message's arrival to the reply's departure.
        tell: Called with a line for the operator when something happens.

    Raises:
        LinkError: If the key cannot be read.
        FlowerError: If Flower is not installed.
    """
    require()
    import httpx

    quiet()
    last = ""

    def say(line: str) -> None:
        nonlocal last
        if line != last:
            last = line
            tell(line)

    while True:
        try:
            with link.connected(address, site.most) as opened:
                say(f"connected to the SuperLink at {address.superlink}")
                while True:
                    _carry(gate, site, opened, reply_after, tell)
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            say(f"the SuperLink at {address.superlink} rejects this site (HTTP {code})")
        except httpx.TransportError as error:
            say(f"no SuperLink at {address.superlink} ({type(error).__name__}); trying again")
        except (ImportError, DpfedadamwError):
            raise
        except Exception as error:
            # The server may send anything; nothing that it sends may end this process.
            say(
                f"the SuperLink at {address.superlink} sent something that is not a message "
                f"({type(error).__name__}); trying again"
            )
        time.sleep(_AGAIN)


def _carry(
    gate: Gate,
    site: Site,
    opened: link.Link,
    reply_after: float,
    tell: Callable[[str], None],
) -> None:
    """Carry one message and its reply, or wait a moment where there is none."""
    import httpx

    question = opened.pull()
    if question is None:
        time.sleep(_LOOK)
        return
    found = answer(gate, site, question, reply_after, tell)
    tell(f"run {question.run}: {found if isinstance(found, str) else 'released'}")
    # The run may have ended meanwhile; if the link is broken, the next message says so.
    with contextlib.suppress(httpx.HTTPStatusError):
        opened.push(reply_to(question, found))


def answer(
    gate: Gate,
    site: Site,
    question: shards.Question,
    reply_after: float,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[str, objects.Arrays] | str:
    """The name of the record and the arrays that leave, or the refusal.

    Once the shards are asked, this returns after ``reply_after`` seconds, whatever they do: else
    the time of a reply would say how long they took.
    """
    last = time.monotonic() + reply_after
    if question.message.metadata.message_type != _TRAIN:
        return NOT_TRAIN
    try:
        record, broadcast = objects.read_arrays(question.name, question.contents, site.model)
    except ValueError:
        return NOT_MODEL
    try:
        gate.check()
        try:
            answers = site.ask(question, reply_after - RELEASE_SECONDS)
            job, request = f"flower-{question.run}", question.name
            released = gate.release(job=job, request=request, broadcast=broadcast, shards=answers)
        finally:
            time.sleep(max(0.0, last - time.monotonic()))
    except Refused as refusal:
        tell(f"run {question.run}: {refusal.reason}")
        return str(refusal)
    except DpfedadamwError as error:
        # Its words are for the operator: they name files of the site.
        tell(f"run {question.run}: {error}")
        return FAILED
    return record, released


def reply_to(question: shards.Question, found: tuple[str, Mapping[str, Any]] | str) -> Any:
    """Flower's Message to the server: all that ever leaves the site is made here."""
    from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
    from flwr.common.constant import ErrorCode
    from flwr.common.serde import message_from_proto

    asked = message_from_proto(question.message)
    if isinstance(found, str):
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, found), reply_to=asked)
    record, released = found
    arrays = ArrayRecord({name: Array(one) for name, one in released.items()})
    # Flower's strategies weigh sites by this number; the true one is a fact about the records.
    return Message(
        RecordDict({record: arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=asked
    )
