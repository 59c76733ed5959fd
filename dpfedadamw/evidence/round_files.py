"""The evidence of a run's rounds, as far as it is the same whatever is protected.

A run's ``evidence/`` has one file a round (`round_file`), whose arrays ``layout.json`` explains;
participations that the auditor replays (`exchanges`); what the server made of rounds whose
participations are not all kept (`servers`); and sums of squared noise at each coordinate
(`coordinates`). `RoundFiles` opens all of them, and forgets what a run that was cut off left of
rounds that are run again. `record_level` and `client_level` say what the arrays of a round are.

All of it is private: it stays in ``evidence/`` (mode 0700, files 0600) and nothing outside reads it
but the auditor, who passes on verdicts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.evidence.coordinates import CoordinateSums
from dpfedadamw.evidence.exchanges import UploadRecorder
from dpfedadamw.evidence.records import Witness
from dpfedadamw.evidence.servers import ServerRecorder
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.disk import PRIVATE_MODE, write_json
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.vectors.flat import Blocks

# Samples of noise that are kept of a run, of all its noised vectors together, about.
_SAMPLED_NOISE_TOTAL = 400_000


@dataclass(frozen=True, kw_only=True)
class EvidenceSetup:
    """What the evidence of a run depends on.

    Attributes:
        directory: The run's ``evidence/``, which holds its salt.
        blocks: The measuring partition.
        unit: What is protected: "record", "person" or "client".
        clipping_norm: C.
        rounds: T.
        per_round: Noised participations of a round, or how many are expected; 1 at client level,
            where the round's release counts as one.
        queries: Noised gradients of one participation; 0 at client level.
        released: Coordinates of each noised vector: d, or k public ones.
        beta2: Decay of the second moment; None for rules without one.
        commitments: How participations are hashed, as the ledger's header says.
    """

    directory: Path
    blocks: Blocks
    unit: str
    clipping_norm: float
    rounds: int
    per_round: int
    queries: int
    released: int
    beta2: float | None
    commitments: str


class RoundFiles:
    """Writes a run's evidence, round by round.

    Args:
        setup: What it depends on.

    Attributes:
        uploads: Keeps participations for the auditor to replay.
        servers: Keeps what the server made of rounds; None where every participation is kept.
    """

    def __init__(self, setup: EvidenceSetup) -> None:
        directory, blocks = setup.directory, setup.blocks
        rounds, per_round = setup.rounds, setup.per_round
        self._setup = setup
        self._salt = read_salt(directory / "salt")
        # How many noised vectors a run has bounds how much noise is sampled from each.
        self._chosen = sampled_coordinates(
            setup.released, rounds * per_round * max(1, setup.queries)
        )
        self._coordinates = CoordinateSums.start(
            directory, blocks.sizes.new_empty(blocks.parameters)
        )
        self.uploads = UploadRecorder(
            directory,
            blocks,
            queries=setup.queries,
            rounds=rounds,
            per_round=per_round,
            sample=self._chosen,
        )
        self.servers: ServerRecorder | None = None
        if not self.uploads.complete:
            self.servers = ServerRecorder(
                directory, blocks.parameters, rounds=rounds, per_round=per_round
            )
        self._write_layout()

    def witness(self) -> Witness:
        """What notes a record of each batch of one client's part in a round."""
        return Witness(self._salt)

    def restore(self, completed_rounds: int) -> None:
        """Continue after a resume: delete what was left of rounds that will be run again."""
        self.uploads.forget_after(completed_rounds)
        if self.servers is not None:
            self.servers.forget_after(completed_rounds)
        self._coordinates.restore(completed_rounds)

    def _write(self, index: int, arrays: Mapping[str, NDArray[Any]], variance: float) -> None:
        """Write a round's file, and add its squared noise in units of the charged variance."""
        write_arrays(self._setup.directory / round_file(index), arrays)
        self._coordinates.close_round(variance)

    def _write_layout(self) -> None:
        """Write what the arrays of the rounds' files mean."""
        blocks = self._setup.blocks
        layout = {
            "format": 1,
            "unit": self._setup.unit,
            "parameters": blocks.parameters,
            "blocks": {
                "kind": blocks.kind,
                "names": list(blocks.names),
                "sizes": [int(size) for size in blocks.sizes.tolist()],
                "runs": [
                    {"name": run.name, "stop": run.stop, "blocks": run.blocks.tolist()}
                    for run in blocks.runs
                ],
            },
            "beta2": self._setup.beta2,
            "sample_coordinates": self._chosen.tolist(),
            "per_round_files": self._setup.rounds,
        }
        write_json(self._setup.directory / "layout.json", layout, PRIVATE_MODE)


def sampled_coordinates(size: int, vectors: int) -> NDArray[np.int64]:
    """Coordinates whose noise is kept: public and fixed, so that reuse of noise shows.

    Args:
        size: Of each noised vector.
        vectors: How many there are in a run.
    """
    count = min(size, max(8, min(256, _SAMPLED_NOISE_TOTAL // max(1, vectors))))
    return np.sort(np.random.default_rng(size).choice(size, count, replace=False))


def round_file(index: int) -> str:
    """Name of one round's file."""
    return f"round-{index:05d}.npz"
