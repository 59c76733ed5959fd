"""One client's process: charges its own ledger, computes, notes its evidence, signs what it sends.

It lives as long as the federation, beside Flower's SuperNode, whose processes come and go with each
message and hand on what they are told (`dpfedadamw.federation.flower.relay`). Flower's apps are
code that the server sends; this process runs none of it, and alone opens the records and the key.

The order of each participation is the house's, so that a crash may make the client's ledger count
too much, never too little:

1. The charge is on the disk.
2. The participation is computed; its noise is drawn.
3. Its evidence and the upload are on the disk.
4. The ledger says what is sent, with the signature. Only then does anything leave the process.

Asked the same again after step 4, it sends the same bytes again, and nothing is drawn or charged.
Asked the same again after a crash before it, it is charged again: of the first time nothing left.
So at most one upload of each attempt at a round is ever released, which the server's ledger counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw import spec as specs
from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.facts import Facts, Share, experiment_of
from dpfedadamw.deployment.identity import public_of, read_key, sign
from dpfedadamw.deployment.site import Site, read_noted
from dpfedadamw.evidence.commitments import BLAKE3
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import Answer, ClientData
from dpfedadamw.federation.recorded import recorded
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.run.computing import determinism, engine_of, performance_of
from dpfedadamw.run.units import unit_of
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, write_atomically
from dpfedadamw.storage.lock import RunLock
from dpfedadamw.vectors.flat import FlatParameters
from dpfedadamw.vectors.packing import views

_SHARED = "shared."


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a client sends of a participation beside its upload.

    Attributes:
        upload: Serialised.
        steps: Local steps taken.
        queries: Gradient queries made.
        uploaded: Names of further tensors of the upload, for the evidence.
        remembers: Whether it kept something for its next participation.
        participation: Its commitment to what passed in the participation, hexadecimal.
        signature: Over `statement`.
    """

    upload: bytes
    steps: int
    queries: int
    uploaded: tuple[str, ...]
    remembers: bool
    participation: str
    signature: bytes


def statement(
    run: str, client: int, round_index: int, attempt: int, digests: tuple[str, str, str]
) -> dict[str, Any]:
    """What a client signs.

    Args:
        run: Identifier of the run.
        client: Which it is.
        round_index: t, from 0.
        attempt: Which attempt at the round.
        digests: Sha256 of the broadcast and of the upload, and the participation's commitment.
    """
    broadcast, upload, participation = digests
    return {
        "run": run,
        "client": client,
        "round": round_index,
        "attempt": attempt,
        "broadcast_sha256": broadcast,
        "upload_sha256": upload,
        "participation": participation,
    }


class Client:
    """One client, which holds its folder until it is closed.

    Args:
        site: Its folder.

    Raises:
        DpfedadamwError: If another process has the folder, or it is not what the facts say.
    """

    def __init__(self, site: Site) -> None:
        self._site, self._settings = site, site.settings()
        self.number = self._settings.client
        self._lock = RunLock(site.path)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        site = self._site
        self._key = read_key(site.key)
        self._facts = Facts.read(site.facts)
        spec = specs.load(site.spec)
        share = Share.read(site.share)
        number, facts = self.number, self._facts
        if not 0 <= number < len(facts.keys) or public_of(self._key) != facts.keys[number]:
            raise DeploymentError(
                f"{site.key}: is not the key that federation.json names for client {number}"
            )
        if len(share.rows) != facts.records[number]:
            raise DeploymentError(
                f"{site.share}: has {len(share.rows)} records, and federation.json says "
                f"{facts.records[number]} of client {number}"
            )
        if hashlib.sha256(site.salt.read_bytes()).hexdigest() != facts.salt_sha256:
            raise DeploymentError(f"{site.salt}: is not the one whose digest federation.json has")
        experiment = experiment_of(spec, facts, None, {number: share})
        self._spec, self._experiment = spec, experiment
        self._spec_sha256 = hashlib.sha256(site.spec.read_bytes()).hexdigest()
        held = ClientData(share.stored_among(facts, spec), _labels(share))
        self._station = _station(experiment, site, {number: held})
        self.ledger = Ledger(site.ledger)

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()

    def introduce(self, nonce: str) -> dict[str, Any]:
        """Who this is, signed over what the server has drawn.

        Args:
            nonce: The server's, hexadecimal.
        """
        shown = {"hello": nonce, "client": self.number, "spec_sha256": self._spec_sha256}
        return {**shown, "signature": sign(self._key, shown).hex()}

    def take_part(self, run: str, asked: Asked, message: bytes, remembered: str) -> Sent:
        """Compute a participation, or send once more what was sent of it.

        Args:
            run: Identifier of the run.
            asked: What the client is asked to do.
            message: The round's broadcast.
            remembered: ROUND-ATTEMPT of the participation whose memory it goes on from; empty where
                it has none.

        Raises:
            DpfedadamwError: If the client refuses: what it is asked is not what its spec says, or
                would cost more than its owner allows.
        """
        broadcast = hashlib.sha256(message).hexdigest()
        before = self._sent(asked, broadcast)
        if before is not None:
            return before
        self._check(run, asked)
        source = self._source()
        current = self._station.round_of(asked, message)
        (line, *_) = self._station.worker.unit.charges(current)
        own = {"clients": [self.number]} if "clients" in line else {}
        begun = [one for one in self._spends() if _is_of(one, asked)]
        self.ledger.append(
            "spend",
            {
                **line,
                **own,
                "run": run,
                "repetition": 1 + len(begun),
                "broadcast_sha256": broadcast,
                "commitment": source.commitment,
            },
        )
        with determinism(self._spec):
            answer = self._station.answer(asked, message, self._memory(remembered), source)
        shared = self._station.worker.unit.take_shared()
        arrays = {**recorded(answer), **{f"{_SHARED}{k}": v for k, v in shared.items()}}
        noted = self._site.noted(asked.round, asked.attempt)
        write_arrays(noted, arrays)
        sent = self._site.sent(asked.round, asked.attempt)
        write_atomically(sent, answer.message, PRIVATE_MODE, settle=False)
        DISK.sync_folder(self._site.evidence)
        entry = self._statement(run, asked, broadcast, answer)
        signature = sign(self._key, entry)
        self.ledger.append(
            "upload",
            {
                **entry,
                "signature": signature.hex(),
                "evidence_sha256": hashlib.sha256(noted.read_bytes()).hexdigest(),
            },
        )
        return _sent_of(answer.message, arrays, str(entry["participation"]), signature)

    def _statement(self, run: str, asked: Asked, broadcast: str, answer: Answer) -> dict[str, Any]:
        noted = answer.result.evidence
        commitment = answer.commitment if noted is None else noted.commitment.digest()
        upload = hashlib.sha256(answer.message).hexdigest()
        digests = (broadcast, upload, commitment.hex())
        return statement(run, self.number, asked.round, asked.attempt, digests)

    def _spends(self) -> list[Mapping[str, Any]]:
        return self.ledger.of_kind("spend")

    def _sent(self, asked: Asked, broadcast: str) -> Sent | None:
        """What was sent of a participation; None where nothing was."""
        for entry in self.ledger.of_kind("upload"):
            if not _is_of(entry, asked):
                continue
            if entry["broadcast_sha256"] != broadcast:
                raise DeploymentError(
                    f"round {asked.round}, attempt {asked.attempt}: the server sends another "
                    "broadcast than before; a client answers each attempt once"
                )
            arrays = read_noted(self._site.noted(asked.round, asked.attempt))
            upload = self._site.sent(asked.round, asked.attempt).read_bytes()
            if hashlib.sha256(upload).hexdigest() != entry["upload_sha256"]:
                raise DeploymentError(f"round {asked.round}: the upload that was kept has changed")
            signature = bytes.fromhex(entry["signature"])
            return _sent_of(upload, arrays, entry["participation"], signature)
        return None

    def _check(self, run: str, asked: Asked) -> None:
        """Refuse what the spec does not say: the server is not believed.

        Raises:
            DeploymentError: With what is wrong.
        """
        plan, scheduled = self._experiment.plan, self._experiment.algorithm.round_schedule
        spends = self._spends()
        where = f"client {self.number} refuses round {asked.round}"
        if any(entry["run"] != run for entry in spends):
            raise DeploymentError(
                f"{where}: this folder has taken part in another run; what it spent there would "
                "not be counted"
            )
        if asked.client != self.number:
            raise DeploymentError(f"{where}: it is meant for client {asked.client}")
        if not 0 <= asked.round < plan.rounds or asked.attempt < 1:
            raise DeploymentError(f"{where}: the spec has rounds 0 to {plan.rounds - 1}")
        if not 0 <= asked.place < asked.cohort <= len(plan.records):
            raise DeploymentError(f"{where}: it has {asked.cohort} clients")
        if scheduled is None:
            given = (asked.local_steps, asked.noise_multiplier)
            if given != (plan.local_steps, plan.noise_multiplier):
                raise DeploymentError(
                    f"{where}: it asks for {asked.local_steps} steps with a noise multiplier of "
                    f"{asked.noise_multiplier:g}; the spec says {plan.local_steps} and "
                    f"{plan.noise_multiplier:g}"
                )
        else:
            taken = sum(int(one.get("steps", 0)) for one in spends)
            bound = plan.spending_bound
            bound.check(asked.round, asked.local_steps, asked.noise_multiplier, taken)
        if len(spends) >= self._settings.most_charges:
            raise DeploymentError(
                f"{where}: it has paid for {len(spends)} participations, as many as its owner "
                "allows (most_charges in site.json)"
            )

    def _source(self) -> RandomSource:
        """Where noise and batches come from: a key of this participation alone, or the seed.

        A key of release mode is never stored: what was drawn under it cannot be drawn again.
        """
        if self._spec.randomness.mode == "reproducible":
            return ReproducibleRandomness(self._spec.randomness.seed or 0)
        return ReleaseRandomness()

    def _memory(self, remembered: str) -> Mapping[str, Tensor]:
        """What the client kept when it last took part in a round that was completed."""
        if not remembered:
            return {}
        index, _, attempt = remembered.partition("-")
        if not (index.isdigit() and attempt.isdigit()):
            raise DeploymentError("the server names no participation to go on from")
        arrays = read_noted(self._site.noted(int(index), int(attempt)))
        return {name: one.clone() for name, one in views(arrays["memory"].tobytes()).items()}


def shared_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Of what a client noted, what is not its own evidence: sums over all clients of a round."""
    return {
        name.removeprefix(_SHARED): value
        for name, value in arrays.items()
        if name.startswith(_SHARED)
    }


def _is_of(entry: Mapping[str, Any], asked: Asked) -> bool:
    return (entry["round"], entry["attempt"]) == (asked.round, asked.attempt)


def _sent_of(
    upload: bytes, arrays: Mapping[str, NDArray[Any]], participation: str, signature: bytes
) -> Sent:
    steps, queries = (int(one) for one in arrays["counts"])
    return Sent(
        upload=upload,
        steps=steps,
        queries=queries,
        uploaded=tuple(str(name) for name in arrays["uploaded"]),
        remembers=bool(views(arrays["memory"].tobytes())),
        participation=participation,
        signature=signature,
    )


def _labels(share: Share) -> Tensor:
    import torch

    return torch.from_numpy(share.labels.astype(np.int64))


def _station(experiment: Experiment, site: Site, clients: Mapping[int, ClientData]) -> Station:
    """What computes participations in this process; it notes in a folder of its own."""
    performance = performance_of(experiment, "auto")
    scratch = site.path / "scratch"
    DISK.remove_tree(scratch)
    DISK.make_folder(scratch)
    write_atomically(scratch / "salt", site.salt.read_bytes(), PRIVATE_MODE, settle=False)
    setup = UnitSetup(
        experiment=experiment,
        directory=scratch,
        completed=0,
        # Each participation comes with its own.
        randomness=ReproducibleRandomness(0),
        commitments=BLAKE3,
    )
    engine = engine_of(experiment, performance)
    worker = Worker(
        rule=experiment.algorithm.local,
        unit=unit_of(experiment.plan).rounds.open(setup),
        engine=engine,
        flat=FlatParameters(experiment.model),
        randomness=setup.randomness,
        performance=performance,
    )
    # Nothing is read from it once the unit is open.
    DISK.remove_tree(scratch)
    return Station(plan=experiment.plan, worker=worker, clients=clients)


def plain(sent: Sent) -> dict[str, Any]:
    """What a client sends beside its upload, as plain values."""
    fields = asdict(sent)
    fields.pop("upload")
    return {**fields, "signature": sent.signature.hex(), "uploaded": list(sent.uploaded)}
