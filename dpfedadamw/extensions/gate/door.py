"""The door: the one place where what a job computed leaves a site, noised and charged.

A proxy of a framework opens the gate once, runs the job's code on each shard, and passes the
replies to `Gate.release`. Only what `release` returns may be sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.gate import book, mechanism, spending
from dpfedadamw.extensions.gate.book import Book
from dpfedadamw.extensions.gate.errors import GateError, Refused
from dpfedadamw.extensions.gate.settings import Form, Settings, read

__all__ = ["Form", "Gate", "Refused"]

Arrays = Mapping[str, NDArray[Any]]
_BROADCAST, _RELEASED = "broadcast.", "released."
_IDENTIFIER = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """An open gate. The ledger is locked for each operation, so that several may be open.

    Attributes:
        settings: What gate.yaml says.
        shards: K, how many shards the site's data are in; 1 where the unit is the site.
        model: Names, shapes and types of the arrays that may leave, in the order of gate.yaml.
    """

    def __init__(self, settings: Settings, key: book.Key, framework: str) -> None:
        """Take settings and key as they are; `open` also looks at the ledger."""
        self.settings = settings
        self.shards = settings.shards
        self.model: Mapping[str, Form] = settings.model
        self._key = key
        self._framework = framework
        self._known: Book | None = None
        # What this process has seen written, whatever fails afterwards.
        self._seen: book.Head | None = None
        # Each thread that waited for the lock on the disk would read the ledger in vain.
        self._turn = threading.Lock()

    @classmethod
    def open(cls, settings: Path, framework: str = "other") -> Self:
        """Open the gate that a gate.yaml describes.

        Args:
            settings: The gate.yaml.
            framework: Whose jobs come to this door, for the ledger, such as "flower".

        Raises:
            SpecError: If the settings are wrong.
            GateError: If the ledger is missing, damaged, rolled back or of other settings.
        """
        gate = cls(read(settings), book.load_key(), framework)
        with book.opened(gate.settings, gate._key) as found:
            gate._known, gate._seen = found, found.head
            return gate

    def release_seconds(self) -> float:
        """Twice what a release of K answers takes here, and a second at least for the disk."""
        ones = {name: np.ones(one.shape, one.dtype) for name, one in self.model.items()}
        sent = mechanism.flat(ones, self.model)
        assert sent is not None
        # Once to load what it needs, and once to measure.
        for _ in range(2):
            begin = time.monotonic()
            total = mechanism.clipped_sum(sent, [ones], self.model, self.settings.clip)
            clipped = time.monotonic()
            mechanism.noised_mean(sent, total, self.shards, 1.0, b"")
            noised = time.monotonic()
        return max(1.0, 2.0 * (self.shards * (clipped - begin) + noised - clipped))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other gate of this ledger ask its shards meanwhile; waits for one that does."""
        import fcntl

        with (self.settings.ledger / "windows.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def check(self) -> None:
        """Refuse early, before the shards compute, what the budget does not allow any more.

        Raises:
            Refused: If the budget allows no further release, or the ledger cannot be used.
        """
        with self._counted(), self._operation() as found:
            self._refuse_beyond(found)

    def released(self, *, job: str, request: str) -> dict[str, NDArray[Any]] | None:
        """What was released for a request before, to be sent again; None if nothing was.

        Raises:
            Refused: If the ledger cannot be used.
        """
        with self._counted(), self._operation() as found:
            return self._again(found, job, request)

    def release(
        self, *, job: str, request: str, broadcast: Arrays, shards: Sequence[Arrays | None]
    ) -> dict[str, NDArray[Any]]:
        """Charge a release, then noise it. Threads and processes may call it at once.

        Args:
            job: The job's identifier, from 1 to 128 letters, digits and `._:-`.
            request: The identifier of the request within the job, such as a message's; the same
                again is answered with the same bytes while these are kept, and charged after that.
            broadcast: What the server sent, in the model's form.
            shards: The K replies, each the parameters after training. None, a wrong form and values
                that are not finite count as an update of zero.

        Returns:
            Arrays in the model's form.

        Raises:
            Refused: If the budget does not allow it, the broadcast or an identifier is not in its
                form, or the ledger cannot be used. The text is fixed.
        """
        with self._counted():
            return self._released(job, request, broadcast, shards)

    def close(self) -> None:
        """Do what a with statement asks for; nothing is held between operations."""

    def __enter__(self) -> Self:
        """Use the gate in a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _released(
        self, job: str, request: str, broadcast: Arrays, shards: Sequence[Arrays | None]
    ) -> dict[str, NDArray[Any]]:
        for name, text in (("job", job), ("request", request)):
            if not isinstance(text, str) or _IDENTIFIER.fullmatch(text) is None:
                said = f"the {name}'s identifier is not 1 to 128 letters, digits and ._:-"
                raise Refused(said, "form")
        if len(shards) != self.shards:
            raise Refused(f"{len(shards)} replies of {self.shards} shards", "form")
        sent = mechanism.flat(broadcast, self.model)
        if sent is None:
            raise Refused("the broadcast's arrays are not those that gate.yaml lists", "form")
        total = mechanism.clipped_sum(sent, shards, self.model, self.settings.clip)
        with self._operation() as found:
            if (earlier := self._again(found, job, request)) is not None:
                return earlier
            self._refuse_beyond(found)
            return self._released_now(found, job, request, broadcast, sent, total)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a refusal; outside of the lock, which counting takes itself."""
        try:
            yield
        except Refused as error:
            book.count_refusal(self.settings, error.kind)
            raise

    @contextlib.contextmanager
    def _operation(self) -> Iterator[Book]:
        """The ledger, locked; all that goes wrong has the one text of a refusal."""
        with self._turn:
            known, self._known = self._known, None
            try:
                with book.opened(self.settings, self._key, known, self._seen) as found:
                    self._seen = found.head
                    try:
                        yield found
                    except Refused:
                        self._known = found
                        raise
                    # After any other error the disk may hold what this book does not.
                    self._known, self._seen = found, found.head
            except GateError as error:
                raise _refused(error) from error

    def _released_now(
        self,
        found: Book,
        job: str,
        request: str,
        broadcast: Arrays,
        sent: mechanism.Vector,
        total: mechanism.Vector,
    ) -> dict[str, NDArray[Any]]:
        from safetensors.numpy import save

        wanted = self.settings
        # Before any noise exists: whatever fails from here on costs, and gives nothing away.
        release = found.charge(
            {
                "framework": self._framework,
                "job": job,
                "request": request,
                "shards": wanted.shards,
                "clip": wanted.clip,
                "sensitivity": mechanism.SENSITIVITY * wanted.clip,
                "noise_multiplier": wanted.noise_multiplier,
                "broadcast_sha256": hashlib.sha256(
                    b"".join(broadcast[name].tobytes() for name in sorted(self.model))
                ).hexdigest(),
            }
        )
        deviation = mechanism.SENSITIVITY * wanted.clip * wanted.noise_multiplier
        mean = mechanism.noised_mean(sent, total, wanted.shards, deviation, found.history)
        arrays = mechanism.shaped(mean, self.model)
        # What came in lies next to what went out: together they show an auditor the noise.
        both = {_RELEASED + name: one for name, one in arrays.items()}
        both |= {_BROADCAST + name: broadcast[name] for name in self.model}
        found.keep(release, save(both))
        return arrays

    def _again(self, found: Book, job: str, request: str) -> dict[str, NDArray[Any]] | None:
        from safetensors.numpy import load

        reply = found.kept(self._framework, job, request)
        if reply is None:
            return None
        arrays = load(reply)
        return {name: arrays[_RELEASED + name] for name in self.model if _RELEASED + name in arrays}

    def _refuse_beyond(self, found: Book) -> None:
        wanted = self.settings
        with_this = Counter(found.spent)
        with_this[wanted.noise_multiplier] += 1
        if spending.epsilon_of(with_this, wanted.delta) > wanted.epsilon:
            said = f"the budget of ε = {wanted.epsilon:g} allows no further release"
            raise Refused(said, "budget")


def _refused(error: GateError) -> Refused:
    """The one text for everything that goes wrong; the operator finds the rest in `reason`."""
    return error if isinstance(error, Refused) else Refused(str(error), "ledger")
