"""The server's side: finds its clients, asks them, and takes nothing that it cannot check.

A client is known by the key that the facts name: it signs what the server draws before the first
round, and every upload. Asked again it sends the same bytes again, so the server asks again where
no answer comes: a SuperNode that was killed has forgotten what it was asked.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment.client import statement
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts
from dpfedadamw.extensions.deployment.identity import INTRODUCTION, UPLOAD, is_signed
from dpfedadamw.extensions.deployment.refusals import told
from dpfedadamw.federation.arrivals import ArrivalError, Likeness, foreseen
from dpfedadamw.federation.links import Link, Reply
from dpfedadamw.federation.participation import Answer, LocalResult, Participation
from dpfedadamw.federation.stations import Asked
from dpfedadamw.federation.worker import Worker

_REFERENCE = "participation"
_LOOK = 0.1
# What may be asked or answered besides an upload.
_SMALL = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the server waits, in seconds.

    Attributes:
        again: After which it asks the first time again; each time twice as long as before.
        answer: For all answers of a round.
        meeting: For all clients to be there before the first round.
    """

    again: float = 30.0
    answer: float = 3600.0
    meeting: float = 600.0


@dataclass
class _Waiting:
    """One question that is open.

    Attributes:
        part: What is asked.
        since: When it was asked last.
        again: How long to wait until it is asked again.
        known_by: What its replies are known by.
        why: Why the last answer was none.
    """

    part: Participation
    since: float
    again: float
    known_by: set[str] = field(default_factory=set)
    why: str = "no answer"


def meet(link: Link, facts: Facts, spec_sha256: str, patience: Patience) -> dict[int, int]:
    """Find the node of every client.

    Args:
        link: Carries the messages.
        facts: The federation's.
        spec_sha256: Digest of the resolved spec, hexadecimal: theirs must be the same.
        patience: How long is waited.

    Returns:
        Nodes by client.

    Raises:
        DeploymentError: If one is not there in time, or is not who it says.
    """
    nodes: dict[int, int] = {}
    wanted, last = len(facts.keys), time.monotonic() + patience.meeting
    asked: dict[str, tuple[int, str]] = {}
    due: dict[int, float] = {}
    why = ""
    while len(nodes) < wanted:
        for node in link.nodes():
            if node in nodes.values() or time.monotonic() < due.get(node, 0.0):
                continue
            nonce = secrets.token_hex(16)
            if known_by := link.send(node, {"hello": nonce}, None):
                asked[known_by] = node, nonce
                due[node] = time.monotonic() + patience.again
        for known_by, reply in link.replies(list(asked), _SMALL).items():
            node, nonce = asked.pop(known_by)
            if reply.away:
                why = f"; one node: {reply.away}"
                continue
            client = _introduced(reply.values, nonce, facts, spec_sha256)
            if nodes.setdefault(client, node) != node:
                raise DeploymentError(
                    f"client {client} answers from two SuperNodes; stop one of them"
                )
        if time.monotonic() > last:
            missing = [str(one) for one in range(wanted) if one not in nodes]
            raise DeploymentError(
                f"of {wanted} clients, {len(missing)} did not come within {patience.meeting:g} s: "
                f"{', '.join(missing[:20])}{why}"
            )
        time.sleep(_LOOK)
    return nodes


def _introduced(values: Mapping[str, Any], nonce: str, facts: Facts, spec_sha256: str) -> int:
    """Which client a node's answer is signed by."""
    try:
        client, signature = values["client"], bytes.fromhex(values["signature"])
        shown = {"hello": nonce, "client": client, "spec_sha256": values["spec_sha256"]}
        good = client >= 0 and is_signed(facts.keys[client], signature, INTRODUCTION, shown)
    except (KeyError, ValueError, TypeError, IndexError):
        good = False
    if not good:
        raise DeploymentError("a SuperNode answers without a signature by any of the clients")
    if shown["spec_sha256"] != spec_sha256:
        raise DeploymentError(
            f"client {client} has a different spec.yaml from the server; give both the same"
        )
    return int(client)


class RemoteClients:
    """Runs clients on machines of their own.

    Args:
        run: Identifier of the run.
        facts: The federation's.
        nodes: The node of each client, as `meet` found them.
        worker: The server's: learns from its rule what an upload looks like.
        link: Carries the messages.
        patience: How long is waited.
        drop_outs: How many of a round may give no answer, or none that can be used.
        clock: Seconds that only grow.
        rest: Waits for so many seconds.
    """

    def __init__(
        self,
        run: str,
        facts: Facts,
        nodes: Mapping[int, int],
        worker: Worker,
        link: Link,
        patience: Patience,
        *,
        drop_outs: int = 0,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._facts = run, facts
        self._worker, self._link, self._patience = worker, link, patience
        self._clock, self._rest, self._drop_outs = clock, rest, drop_outs
        self._nodes = nodes
        self._expected: Likeness | None = None
        self._remembers = False

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer | None]:
        """What each client's part comes to, in the order of ``parts``; None where it dropped out.

        Raises:
            DeploymentError: If more clients give no answer in time, or refuse, than may drop out.
            ArrivalError: If what one more sends is no upload.
        """
        if not parts:
            return
        current = parts[0].current
        if self._expected is None:
            upload = foreseen(self._worker, current)
            self._expected = Likeness.of(self._worker.unit.likeness(current, upload))
            self._remembers = bool(upload.memory)
        now = self._clock()
        last = now + self._patience.answer
        waiting = {
            part.place: _Waiting(part, now - self._patience.again, self._patience.again)
            for part in parts
        }
        arrived: dict[int, Answer | DpfedadamwError] = {}
        dropped = 0
        for part in parts:
            while part.place not in arrived:
                self._ask(waiting)
                self._take(waiting, arrived)
                if part.place in arrived:
                    break
                if self._clock() > last:
                    late = waiting.pop(part.place)
                    arrived[part.place] = DeploymentError(
                        f"client {part.client}, round {current.index}: {late.why} within "
                        f"{self._patience.answer:g} s; the round stays charged"
                    )
                    break
                self._rest(_LOOK)
            found = arrived.pop(part.place)
            if isinstance(found, Answer):
                yield found
                continue
            dropped += 1
            if dropped > self._drop_outs:
                raise found
            yield None

    def close(self) -> None:
        """Nothing is held."""

    def _ask(self, waiting: Mapping[int, _Waiting]) -> None:
        """Ask every client that is due."""
        for one in waiting.values():
            if self._clock() < one.since + one.again:
                continue
            if one.known_by:
                one.again *= 2.0
            values = {
                **_plain(Asked.of(one.part)),
                "run": self._run,
                "remembered": _remembered(one.part),
            }
            node = self._nodes[one.part.client]
            one.since = self._clock()
            if known_by := self._link.send(node, values, one.part.current.message):
                one.known_by.add(known_by)

    def _take(
        self, waiting: dict[int, _Waiting], arrived: dict[int, Answer | DpfedadamwError]
    ) -> None:
        """Take what has come; what comes a second time is not looked at."""
        assert self._expected is not None
        place_of = {name: place for place, one in waiting.items() for name in one.known_by}
        if not place_of:
            return
        for known_by, reply in self._link.replies(list(place_of), self._expected.size).items():
            one = waiting.get(place_of[known_by])
            if one is None:
                continue
            if reply.away:
                one.known_by.discard(known_by)
                one.why = reply.away
                # Its process may be starting; asked at once, it would be asked too often.
                one.since = min(one.since, self._clock() - one.again + 2.0)
                continue
            try:
                arrived[one.part.place] = self._answer(one.part, reply)
            except DpfedadamwError as error:
                arrived[one.part.place] = error
            del waiting[one.part.place]

    def _answer(self, part: Participation, reply: Reply) -> Answer:
        """What a client sent, once it is what such a run's clients send, and signed by it."""
        assert self._expected is not None
        whose = f"client {part.client}, round {part.current.index}"
        if reply.wrong:
            raise ArrivalError(f"{whose}: {reply.wrong}")
        if "refused" in reply.values:
            raise DeploymentError(f"{whose}: {told(reply.values['refused'])}")
        try:
            self._expected.check(reply.upload, whose)
            said = [reply.values[name] for name in ("steps", "queries", "remembers")]
            commitment = bytes.fromhex(reply.values["participation"])
            signature = bytes.fromhex(reply.values["signature"])
        except (KeyError, ValueError, TypeError) as error:
            raise ArrivalError(
                f"{whose}: its answer is not whole ({type(error).__name__})"
            ) from None
        digests = (
            hashlib.sha256(part.current.message).hexdigest(),
            hashlib.sha256(reply.upload).hexdigest(),
            commitment.hex(),
        )
        index, attempt = part.current.index, part.current.attempt
        shown = statement(self._run, part.client, index, attempt, digests)
        key = self._facts.keys[part.client]
        if len(commitment) != 32 or not is_signed(key, signature, UPLOAD, shown):
            raise ArrivalError(f"{whose}: its upload is not signed by its key")
        # No signature covers these: what was asked for is noted, never what an answer says of it.
        steps, remembers = part.current.broadcast.local_steps, self._remembers
        queries = steps * part.current.plan.queries_per_step
        if said != [steps, queries, remembers]:
            raise ArrivalError(
                f"{whose}: its answer says other steps, gradients or memory than it was asked for"
            )
        nothing = torch.zeros(0)
        memory = (
            {_REFERENCE: torch.from_numpy(np.asarray([index, attempt], np.int64))}
            if remembers
            else {}
        )
        result = LocalResult(
            upload=Upload(nothing, {}, memory),
            state={},
            steps=steps,
            queries=queries,
            evidence=None,
        )
        return Answer(message=reply.upload, result=result, commitment=commitment)


def _remembered(part: Participation) -> str:
    """ROUND-ATTEMPT of the participation whose memory a client goes on from."""
    if _REFERENCE not in part.memory:
        return ""
    index, attempt = part.memory[_REFERENCE].tolist()
    return f"{index}-{attempt}"


def _plain(asked: Asked) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in Asked.__dataclass_fields__}
