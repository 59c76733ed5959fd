"""One message from the researcher's SuperLink to the shards, and one reply back.

What may leave is decided here and in `windows`: the arrays that the gate released, under the names
that the server sent, and one constant number of examples; or one of the fixed refusals.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate.errors import REFUSAL
from dpfedadamw.extensions.gate.flower import link, objects
from dpfedadamw.extensions.gate.windows import Windows
from dpfedadamw.federation.flower.required import quiet, require

if TYPE_CHECKING:
    from dpfedadamw.extensions.gate.door import Gate

NOT_TRAIN = f"{REFUSAL}: it answers train messages only"
NOT_MODEL = (
    f"{REFUSAL}: a message must hold one record of arrays, of exactly the names, shapes and types "
    "that it allows"
)
_TRAIN = "train"
_LOOK = 0.2
_AGAIN = 2.0


def serve(
    gate: Gate,
    site: Windows,
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
            with link.connected(address, objects.most_bytes(gate.model)) as opened:
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
    site: Windows,
    opened: link.Link,
    reply_after: float,
    tell: Callable[[str], None],
) -> None:
    """Carry one message and its reply, or wait a moment where there is none."""
    import httpx

    asked = opened.pull()
    if asked is None:
        time.sleep(_LOOK)
        return
    found = answer(gate, site, asked, reply_after, tell)
    tell(f"run {asked.run}: {found if isinstance(found, str) else 'released'}")
    # The run may have ended meanwhile; if the link is broken, the next message says so.
    with contextlib.suppress(httpx.HTTPStatusError):
        opened.push(reply_to(asked, found))


def answer(
    gate: Gate,
    site: Windows,
    asked: link.Asked,
    reply_after: float,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[str, objects.Arrays] | str:
    """The name of the record and the arrays that leave, or the refusal."""
    if asked.message.metadata.message_type != _TRAIN:
        return NOT_TRAIN
    try:
        record, broadcast = objects.read_arrays(asked.name, asked.contents, gate.model)
        question = asked.question(gate.model).to_bytes()
    except ValueError:
        return NOT_MODEL
    found = site.released(
        gate, question, broadcast, (f"flower-{asked.run}", asked.name), reply_after,
        lambda line: tell(f"run {asked.run}: {line}"),
    )  # fmt: skip
    return found if isinstance(found, str) else (record, found)


def reply_to(asked: link.Asked, found: tuple[str, Mapping[str, Any]] | str) -> Any:
    """Flower's Message to the server: all that ever leaves the site is made here."""
    from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
    from flwr.common.constant import ErrorCode
    from flwr.common.serde import message_from_proto

    question = message_from_proto(asked.message)
    if isinstance(found, str):
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, found), reply_to=question)
    record, released = found
    arrays = ArrayRecord({name: Array(one) for name, one in released.items()})
    # Flower's strategies weigh sites by this number; the true one is a fact about the records.
    return Message(
        RecordDict({record: arrays, "metrics": MetricRecord({"num-examples": 1})}),
        reply_to=question,
    )
