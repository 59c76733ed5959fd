"""States between rounds that are kept for re-execution.

Any participation may be drawn to be computed again, and needs what its round began from: what the
server sent, and what the client had kept. The ledger names the digest of every round's state, and
this module keeps the states themselves, those of all rounds where they fit into a number of bytes,
else of every n-th. From a state that was kept, the rounds behind it can be run again.

Private, like all evidence: a state holds clients' memories.
"""

from __future__ import annotations

from pathlib import Path

from dpfedadamw.profiling import part
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, Disk, write_atomically

# Bytes of all kept states of a run, about.
CAPACITY_BYTES = 1 << 26


def stride(state_bytes: int, rounds: int) -> int:
    """Every how many rounds a state is kept, so that all of them fit.

    Args:
        state_bytes: Of one state, once every client has taken part.
        rounds: T.
    """
    return max(1, -(-rounds * state_bytes // CAPACITY_BYTES))


def state_file(round_index: int) -> str:
    """Name of the file with the state after a round (from 0)."""
    return f"state-{round_index:05d}.safetensors"


class StateKeeper:
    """Writes states into the evidence.

    Args:
        directory: The run's ``evidence/``.
        rounds: T.
        disk: Where it lies.
    """

    def __init__(self, directory: Path, rounds: int, disk: Disk = DISK) -> None:
        self._directory = directory
        self._rounds = rounds
        self._disk = disk

    @part("evidence")
    def keep(self, round_index: int, state: bytes, largest: int) -> bool:
        """Write the state after a round, if it is one of those that are kept.

        The state after the last round is not: it is the published model, and its digest is in the
        ledger.

        Args:
            round_index: t, from 0.
            state: Serialised.
            largest: Bytes that a state will have at most.

        Returns:
            Whether it is.
        """
        completed = round_index + 1
        kept = completed < self._rounds and completed % stride(largest, self._rounds) == 0
        if kept:
            path = self._directory / state_file(round_index)
            # The folder's names are synced when the round is completed (`run.journal`).
            write_atomically(path, state, PRIVATE_MODE, self._disk, settle=False)
        return kept
