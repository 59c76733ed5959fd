"""Which batches a loop's loader drew, which of them became a step, and which did not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader


@dataclass
class _Drawn:
    """A batch that the loader's sampler drew.

    Attributes:
        rows: Its records, [b].
        forwards: Passes through the model before it was drawn.
        iteration: Which pass over the loader drew it.
    """

    rows: NDArray[np.int64]
    forwards: int
    iteration: int


class Batches:
    """Batches of a loader, and what became of each.

    Args:
        loader: The loader of private records.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        # Worker processes draw ahead, so that the oldest batch is the one that came.
        self._ahead = getattr(loader, "num_workers", 0) > 0
        self._drawn: deque[_Drawn] = deque()
        self._forwards = self._iterations = 0

    def listen(self) -> Callable[[], None]:
        """Hear of every batch from now on; returns what undoes it."""
        return _listen_to(self._loader.batch_sampler, self._draw, self._begin_iteration)

    def forward(self) -> None:
        """Take note of a pass through the model."""
        self._forwards += 1

    def left_over(self) -> tuple[int, int]:
        """Batches since the last step that went through the model, and that were passed over."""
        return self._set_aside(list(self._drawn), ended=True)

    def of_step(self, records: int) -> tuple[NDArray[np.int64] | None, int, int]:
        """The records of a step of so many gradients, and batches drawn before and not used."""
        if not self._drawn:
            return None, 0, 0
        ahead = self._ahead
        used: list[_Drawn] = []
        while self._drawn and (not used or sum(len(one.rows) for one in used) < records):
            used.append(self._drawn.popleft() if ahead else self._drawn.pop())
        rest: list[_Drawn] = [] if ahead else list(self._drawn)
        if not ahead:
            self._drawn.clear()
        ordered = used if ahead else used[::-1]
        unused, skipped = self._set_aside([*rest, *([] if ahead else ordered[:1])])
        return np.concatenate([one.rows for one in ordered]), unused, skipped

    def _set_aside(self, drawn: list[_Drawn], ended: bool = False) -> tuple[int, int]:
        """Count batches without a step: looked at, and passed over. The last one given was used.

        A batch that the end of a pass over the loader left undone is neither.
        """
        if self._ahead:
            return 0, 0
        unused = skipped = 0
        ends = [(one.forwards, one.iteration) for one in drawn[1:]]
        if ended:
            # Another pass, whether it has begun or not.
            ends.append((self._forwards, -1))
        for one, (forwards, iteration) in zip(drawn, ends, strict=False):
            if forwards > one.forwards:
                unused += 1
            elif iteration == one.iteration:
                skipped += 1
        return unused, skipped

    def _begin_iteration(self) -> None:
        self._iterations += 1

    def _draw(self, rows: Sequence[int]) -> None:
        kept = np.asarray(rows, np.int64)
        self._drawn.append(_Drawn(kept, self._forwards, self._iterations))


def _listen_to(
    sampler: Any, drawn: Callable[[Sequence[int]], None], begun: Callable[[], None]
) -> Callable[[], None]:
    """Hear of every batch that a sampler draws; returns what undoes it."""
    kind = type(sampler)

    def listened(self: Any) -> Iterator[Any]:
        begun()
        for batch in kind.__iter__(self):
            drawn(batch)
            yield batch

    # Iteration is looked up on the class, and the loader may hand the sampler itself to others.
    sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": listened})

    def undo() -> None:
        sampler.__class__ = kind

    return undo
