"""The door: the one place where what a job computed leaves a site, noised and charged.

A proxy of a framework opens the gate once, runs the job's code on each shard, and passes the
replies to `Gate.release`. Only what `release` returns may be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Form:
    """Shape and type of one array that may leave.

    Attributes:
        shape: As NumPy's.
        dtype: "float32" or "float64".
    """

    shape: tuple[int, ...]
    dtype: str


class Gate:
    """An open gate, which holds the lock of its ledger until it is closed.

    Attributes:
        shards: K, how many shards the site's data are in; 1 where the unit is the site.
        model: Names, shapes and types of the arrays that may leave, in the order of gate.yaml.
    """

    shards: int
    model: Mapping[str, Form]

    @classmethod
    def open(cls, settings: Path) -> Gate:
        """Open the gate that a gate.yaml describes.

        Raises:
            GateError: If the settings are wrong, another process has the gate open, or the ledger
                is damaged or was rolled back.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Refuse early, before the shards compute, what the budget does not allow any more.

        Raises:
            Refused: If the budget allows no further release.
        """
        raise NotImplementedError

    def released(self, *, job: str, request: str) -> dict[str, NDArray[Any]] | None:
        """What was released for a request before, to be sent again; None if nothing was."""
        raise NotImplementedError

    def release(
        self, *, job: str, request: str, broadcast: Arrays, shards: Sequence[Arrays | None]
    ) -> dict[str, NDArray[Any]]:
        """Charge a release, then noise it. Threads may call it at once.

        Args:
            job: The job's identifier, from 1 to 128 letters, digits and `._:-`.
            request: The identifier of the request within the job, such as a message's; the same
                again is answered with the same bytes.
            broadcast: What the server sent, in the model's form.
            shards: The K replies, each the parameters after training. None, a wrong form and values
                that are not finite count as an update of zero.

        Returns:
            Arrays in the model's form.

        Raises:
            Refused: If the budget does not allow it, or the broadcast or an identifier is not in
                its form. The text is fixed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give the lock back."""
        raise NotImplementedError

    def __enter__(self) -> Gate:
        """Use the gate in a with statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
