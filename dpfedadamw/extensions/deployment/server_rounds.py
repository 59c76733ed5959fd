"""The rounds of a run as its server has them: without any client's evidence.

The server charges and combines as ever. In place of evidence it keeps what it received and sent,
uploads with their signatures and broadcasts, below ``evidence/received/``: `collect` makes the
run's evidence of them and of what clients hand in.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.evidence.commitments import digest_of_commitments
from dpfedadamw.evidence.exchanges import digest_of_all, extent, vector_digest
from dpfedadamw.evidence.servers import ServerRecorder
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.federation.client import ClientLevel, combine_updates
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.participation import Answer, Participation, Round
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, write_atomically
from dpfedadamw.units.client import WholeClients
from dpfedadamw.units.record import SingleRecords


@dataclass(frozen=True)
class Received:
    """What the server keeps of a run's rounds.

    Attributes:
        folder: Below the run's ``evidence/``.
    """

    folder: Path

    @classmethod
    def of(cls, evidence: Path) -> Received:
        """That of a run's ``evidence/``."""
        return cls(evidence / "received")

    def broadcast(self, round_index: int) -> Path:
        """A round's broadcast; that of the round after the last holds the published weights."""
        return self.folder / f"broadcast-{round_index:05d}.safetensors"

    def upload(self, round_index: int, client: int) -> Path:
        """One client's upload."""
        return self.folder / f"upload-{round_index:05d}-{client:05d}.safetensors"

    def release(self, round_index: int) -> Path:
        """At client level, the noised sum and the mean that was released."""
        return self.folder / f"release-{round_index:05d}.npz"

    def write(self, path: Path, content: bytes) -> None:
        """Write a message; a round that is run again has its own."""
        if not DISK.is_folder(self.folder):
            DISK.make_folder(self.folder)
        write_atomically(path, content, PRIVATE_MODE, settle=False)


@dataclass(frozen=True, kw_only=True)
class _ServerRounds(Unprotected):
    """What both units share.

    Attributes:
        received: What is kept of the rounds.
        pieces: Notes the roots of vectors where not all of a run can be kept; None where it can.
    """

    received: Received
    pieces: ServerRecorder | None

    @classmethod
    def open(cls, setup: UnitSetup) -> Self:
        """The unit of a run whose directory is there, ready for its next round."""
        plan, parameters = setup.experiment.plan, setup.blocks.parameters
        whole = isinstance(plan.unit, WholeClients)
        queries = 0 if whole else plan.local_steps * plan.queries_per_step
        per_round = 1 if whole else plan.clients_per_round
        kept = extent(parameters, queries, plan.rounds * per_round)
        complete = kept.share == 1.0 and kept.coordinates is None
        pieces = None
        if not complete:
            # The roots depend on no key. What this run's own draws is not used: `collect` draws.
            pieces = ServerRecorder(
                setup.directory, parameters, rounds=plan.rounds, per_round=per_round
            )
        return cls(received=Received.of(setup.directory), pieces=pieces, **cls._own(setup))

    @classmethod
    def _own(cls, _setup: UnitSetup) -> dict[str, Any]:
        return {}

    def took_part(self, part: Participation, answer: Answer) -> None:
        """Keep one client's upload."""
        self.received.write(self.received.upload(part.current.index, part.client), answer.message)

    def _closed(
        self, current: Round, uploads: list[bytes], digests: Mapping[str, object]
    ) -> Mapping[str, object]:
        received = self.received
        received.write(received.broadcast(current.index), current.message)
        received.write(received.broadcast(current.index + 1), current.following)
        noted: Mapping[str, object] = {}
        if self.pieces is not None:
            messages = (current.message, current.following)
            noted = self.pieces.combined(current.index, messages, uploads, last=current.last)
        DISK.sync_folder(received.folder)
        return {
            "broadcast_sha256": hashlib.sha256(current.message).hexdigest(),
            **digests,
            "participations_sha256": digest_of_commitments(
                [answer.commitment for answer in current.answers]
            ),
            **noted,
        }


@dataclass(frozen=True, kw_only=True)
class ServerRecordRounds(_ServerRounds):
    """Single records are protected: uploads are noised before they leave a client."""

    @staticmethod
    def charges(current: Round) -> list[dict[str, object]]:
        """One line for each client of the round."""
        return RecordLevel.charges(current)

    @staticmethod
    def traffic(current: Round) -> tuple[int | None, int | None]:
        """Bytes up and down of all that were asked: who dropped out is not published."""
        up, down = Unprotected.traffic(current)
        if not current.answers or up is None or current.plan.participants_hidden:
            return up, down
        asked = len(current.chosen) + len(current.dropped)
        return len(current.answers[0].message) * asked, len(current.message) * asked

    def close(self, current: Round) -> Mapping[str, object]:
        """Keep the broadcasts; digests of what travelled."""
        uploads = [answer.message for answer in current.answers]
        found = [hashlib.sha256(upload).digest() for upload in uploads]
        return self._closed(current, uploads, {"uploads_sha256": digest_of_all(found)})


@dataclass(frozen=True, kw_only=True)
class ServerClientRounds(_ServerRounds):
    """Whole clients are protected: one noised mean update a round is released.

    Attributes:
        setup: What the rounds were made from.
    """

    setup: UnitSetup
    moved_by_empty_rounds: ClassVar[bool] = True

    @staticmethod
    def charges(current: Round) -> list[dict[str, object]]:
        """One line for the round."""
        return ClientLevel.charges(current)

    @staticmethod
    def likeness(current: Round, upload: Upload) -> bytes:
        """A serialised upload of the types and shapes that a round's clients send."""
        return ClientLevel.likeness(current, upload)

    @staticmethod
    def traffic(current: Round) -> tuple[int | None, int | None]:
        """Bytes up and down of S clients."""
        return ClientLevel.traffic(current)

    def probed(self) -> Unprotected:
        """The unit as a client has it, which notes nothing that stays."""
        with tempfile.TemporaryDirectory(prefix="dpfedadamw-probe-") as folder:
            scratch = Path(folder)
            write_atomically(scratch / "salt", secrets.token_bytes(32), PRIVATE_MODE)
            return ClientLevel.open(replace(self.setup, directory=scratch, completed=0))

    @classmethod
    def _own(cls, setup: UnitSetup) -> dict[str, Any]:
        return {"setup": setup}

    def receive(self, current: Round) -> list[Upload]:
        """The noised mean update, as the one upload that the server rule sees."""
        noise = current.stream(self.setup.randomness, "release noise", SERVER)
        combined = combine_updates(current, noise)
        received = self.received
        if not DISK.is_folder(received.folder):
            DISK.make_folder(received.folder)
        arrays = {"noisy": _numpy(combined.noisy), "released": _numpy(combined.released)}
        write_arrays(received.release(current.index), arrays)
        return [Upload(combined.released)]

    def close(self, current: Round) -> Mapping[str, object]:
        """Keep the broadcasts; digests of what is public, no single upload's."""
        (upload,) = current.uploads
        digests = {"released_sha256": vector_digest(upload.update).hex()}
        return self._closed(current, [pack(upload.update, {})], digests)


def server_rounds(setup: UnitSetup) -> Unprotected:
    """The rounds of a run as its server has them.

    Raises:
        DeploymentError: If the run protects nothing.
    """
    match setup.experiment.plan.unit:
        case SingleRecords():
            return ServerRecordRounds.open(setup)
        case WholeClients():
            return ServerClientRounds.open(setup)
        case _:
            raise DeploymentError(
                "privacy.unit: none: clients on separate machines would send unprotected updates; "
                "use record, person or client"
            )


def _numpy(vector: Tensor) -> np.ndarray[Any, Any]:
    return vector.detach().cpu().numpy()
