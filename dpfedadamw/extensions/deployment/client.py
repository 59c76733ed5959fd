"""One client's process: charges its own ledger, computes, notes its evidence, signs what it sends.

It lives as long as the federation, next to Flower's SuperNode, whose processes come and go with
each message and only relay it (`dpfedadamw.federation.flower.relay`). Flower's apps are code that
the server sends; this process runs none of it, and it alone opens the records and the key.

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
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import cosine_learning_rate
from dpfedadamw.errors import PrivacyError
from dpfedadamw.evidence.commitments import BLAKE3
from dpfedadamw.experiment import Experiment
from dpfedadamw.extensions.deployment import pins
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts, Share, experiment_of
from dpfedadamw.extensions.deployment.identity import (
    INTRODUCTION,
    UPLOAD,
    public_of,
    read_key,
    sign,
)
from dpfedadamw.extensions.deployment.promise import sentences
from dpfedadamw.extensions.deployment.refusals import RefusalError
from dpfedadamw.extensions.deployment.site import Site, read_noted
from dpfedadamw.federation.arrivals import ArrivalError, Likeness
from dpfedadamw.federation.flower.arrays import HEADS
from dpfedadamw.federation.flower.frames import Limits
from dpfedadamw.federation.messages import pack, view
from dpfedadamw.federation.participation import Answer, ClientData
from dpfedadamw.federation.recorded import recorded
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.privacy.sampling import People
from dpfedadamw.run.computing import determinism, engine_of, performance_of, unit_of
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, write_atomically
from dpfedadamw.storage.lock import RunLock
from dpfedadamw.vectors.flat import FlatParameters
from dpfedadamw.vectors.packing import views

_SHARED = "shared."
_MOST_HEAD = 1 << 16
# ROUND-ATTEMPT.
_REMEMBERED = re.compile(r"(0|[1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
# What `_REMEMBERED` can name. An honest server counts how often a round was begun.
_MOST_ATTEMPT = 10**9 - 1
# No weight of a model that learns is larger; see `Client._check_broadcast`.
_LARGEST_PARAMETER = 1e3


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a client sends about a participation in addition to its upload.

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
        most_charges: Participations that its owner allows from now on, which the ledger then pins;
            None for what was pinned before.

    Attributes:
        notes: What its owner should know of this start, one line each.

    Raises:
        DpfedadamwError: If another process has the folder, it is not what the facts say, or not
            what it was at the client's first start.
    """

    def __init__(self, site: Site, most_charges: int | None = None) -> None:
        self._site, self._settings = site, site.settings()
        self.number = self._settings.client
        self.notes: list[str] = []
        # A participation that failed leaves what it noted of some queries in the unit.
        self._unfinished = False
        self._lock = RunLock(site.path)
        try:
            self._open(most_charges)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, most_charges: int | None) -> None:
        site = self._site
        self._key = read_key(site.key)
        self._facts = Facts.read(site.facts)
        share = Share.read(site.share)
        number, facts = self.number, self._facts
        if not 0 <= number < len(facts.keys) or public_of(self._key) != facts.keys[number]:
            raise DeploymentError(
                f"{site.key}: is not the key that federation.json names for client {number}"
            )
        if len(share.rows) != facts.records[number]:
            raise DeploymentError(
                f"{site.share}: has {len(share.rows)} records, but federation.json says "
                f"{facts.records[number]} for client {number}"
            )
        if hashlib.sha256(site.salt.read_bytes()).hexdigest() != facts.salt_sha256:
            raise DeploymentError(f"{site.salt}: is not the one whose digest federation.json has")
        # What is there is compared before the spec is made use of.
        before = Ledger(site.ledger) if site.ledger.is_file() else None
        entries = before.entries if before is not None else []
        spends = [entry for entry in entries if entry["kind"] == "spend"]
        pinned = pins.last(entries, self._key, site)
        found = pins.of_files(site, number, self._key)
        if pinned is not None:
            pins.check(site, pinned, found)
        pins.check_evidence(site, spends)
        spec = specs.load_filed(site.spec)
        experiment = experiment_of(spec, facts, None, {number: share})
        self._spec, self._experiment = spec, experiment
        self._spec_sha256 = found["spec_sha256"]
        found |= pins.of_plan(experiment.plan, number)
        if pinned is not None:
            pins.check(site, pinned, found)
        else:
            pins.check_spends(site, experiment.plan, number, spends)
        self.most_charges = self._allowed(pinned, most_charges)
        reproducible = spec.randomness.mode == "reproducible"
        promised = sentences(experiment.plan, self.most_charges, reproducible)
        held = ClientData(
            share.stored_among(facts, spec), _labels(share), _people(site, facts, share, experiment)
        )
        self._station = _station(experiment, site, {number: held})
        self._expected = _expected(experiment, self._station)
        if before is None:
            # Its SuperNode's user may enter the folder, and has no business in the ledger.
            DISK.close(DISK.create(site.ledger, PRIVATE_MODE))
            DISK.sync_folder(site.path)
        self.ledger = before if before is not None else Ledger(site.ledger)
        self._pin(pinned, {**found, pins.MOST: self.most_charges}, most_charges)
        self.notes += promised

    def _allowed(self, pinned: Mapping[str, Any] | None, stated: int | None) -> int:
        """How many participations the client pays for at most.

        Raises:
            DeploymentError: If site.json says more than was pinned.
        """
        noted = self._settings.most_charges
        if stated is not None:
            return stated
        if pinned is None:
            return noted
        if noted > pinned[pins.MOST]:
            raise DeploymentError(
                f"{self._site.path}: most_charges in site.json is {noted}, but this client's first "
                f"start pinned {pinned[pins.MOST]}; restore that number. Only its owner may allow "
                "more, by starting it with --most-charges"
            )
        return noted

    def _pin(
        self, pinned: Mapping[str, Any] | None, fields: Mapping[str, Any], stated: int | None
    ) -> None:
        """Write down what the client agrees to, at its first start and where its owner says so."""
        allowed = fields[pins.MOST]
        if pinned is None:
            self.ledger.append(pins.KIND, pins.signed(self._key, fields))
            if self._spends():
                self.notes.append(
                    f"this folder was used before anything was pinned. Its {len(self._spends())} "
                    f"charges fit spec.yaml, which is now pinned with at most {allowed} "
                    "participations"
                )
        elif stated is not None and stated != pinned[pins.MOST]:
            changed = {**pinned, pins.MOST: stated}
            self.ledger.append(pins.KIND, pins.signed(self._key, changed))
            self.notes.append(
                f"its owner now allows {stated} participations; before it was {pinned[pins.MOST]}"
            )
        if stated is not None and stated != self._settings.most_charges:
            self._site.allow(self.number, stated)

    @property
    def limits(self) -> Limits:
        """What a message of the run's server may have at most."""
        tensors, size = self._expected.tensors, self._expected.size
        return Limits(head=_MOST_HEAD, arrays=len(tensors), content=size + HEADS)

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()

    def reopen(self) -> None:
        """Read the ledger from the disk again: one that could not be appended to is not used.

        Raises:
            DpfedadamwError: If its chain is broken.
            OSError: If it cannot be read.
        """
        self.ledger = Ledger(self._site.ledger)

    def introduce(self, nonce: str) -> dict[str, Any]:
        """Who this is, signed over what the server has drawn.

        Args:
            nonce: The server's, hexadecimal.
        """
        shown = {"hello": nonce, "client": self.number, "spec_sha256": self._spec_sha256}
        return {**shown, "signature": sign(self._key, INTRODUCTION, shown).hex()}

    def take_part(self, run: str, asked: Asked, message: bytes, remembered: str) -> Sent:
        """Compute a participation, or send once more what was sent of it.

        Args:
            run: Identifier of the run.
            asked: What the client is asked to do.
            message: The round's broadcast.
            remembered: ROUND-ATTEMPT of the participation whose memory it goes on from; empty where
                it has none.

        Raises:
            RefusalError: If what it is asked is not what its spec says, or would cost more than its
                owner allows. Nothing is charged then.
            DpfedadamwError: If it cannot be computed.
        """
        self._check_whose(run, asked)
        broadcast = hashlib.sha256(message).hexdigest()
        before = self._sent(asked, broadcast)
        if before is not None:
            return before
        self._check_cost(asked)
        self._check_order(asked)
        self._check_broadcast(asked, message)
        memory = self._memory(asked, remembered)
        self._renew_unit()
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
        self._unfinished = True
        with determinism(self._spec):
            answer = self._station.answer(asked, message, memory, source)
        shared = self._station.worker.unit.take_shared()
        self._unfinished = False
        arrays = {**recorded(answer), **{f"{_SHARED}{k}": v for k, v in shared.items()}}
        noted = self._site.noted(asked.round, asked.attempt)
        write_arrays(noted, arrays)
        sent = self._site.sent(asked.round, asked.attempt)
        write_atomically(sent, answer.message, PRIVATE_MODE, settle=False)
        DISK.sync_folder(self._site.evidence)
        entry = self._statement(run, asked, broadcast, answer)
        signature = sign(self._key, UPLOAD, entry)
        self.ledger.append(
            "upload",
            {
                **entry,
                "signature": signature.hex(),
                "evidence_sha256": hashlib.sha256(noted.read_bytes()).hexdigest(),
            },
        )
        return _sent_of(answer.message, arrays, str(entry["participation"]), signature)

    def _renew_unit(self) -> None:
        """Forget what a participation noted that failed: it is no part of the next one's noise."""
        if self._unfinished:
            unit = _unit(self._experiment, self._site)
            worker = replace(self._station.worker, unit=unit)
            self._station = replace(self._station, worker=worker)
            self._unfinished = False

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
                raise RefusalError(
                    "again",
                    f"round {asked.round}, attempt {asked.attempt}: the server sends another "
                    "broadcast than before; a client answers each attempt once",
                )
            arrays = read_noted(self._site.noted(asked.round, asked.attempt))
            upload = self._site.sent(asked.round, asked.attempt).read_bytes()
            if hashlib.sha256(upload).hexdigest() != entry["upload_sha256"]:
                raise DeploymentError(f"round {asked.round}: the upload that was kept has changed")
            signature = bytes.fromhex(entry["signature"])
            return _sent_of(upload, arrays, entry["participation"], signature)
        return None

    def _check_whose(self, run: str, asked: Asked) -> None:
        """Refuse what is meant for another run, another client or no round of the spec."""
        plan, where = self._experiment.plan, self._where(asked)
        if any(entry["run"] != run for entry in self._spends()[-1:]):
            raise RefusalError(
                "run",
                f"{where}: this folder has taken part in another run, and what it spent there "
                "would not be counted",
            )
        if asked.client != self.number:
            raise RefusalError("client", f"{where}: it is meant for client {asked.client}")
        if not 0 <= asked.round < plan.rounds or asked.attempt < 1:
            raise RefusalError("round", f"{where}: the spec has rounds 0 to {plan.rounds - 1}")
        if asked.attempt > _MOST_ATTEMPT:
            raise RefusalError("round", f"{where}: no attempt has so high a number")
        fixed = plan.client_sampling == "fixed-size"
        least = plan.clients_per_round if fixed else 1
        most = plan.clients_per_round if fixed else len(plan.records)
        if not (0 <= asked.place < asked.cohort and least <= asked.cohort <= most):
            raise RefusalError("round", f"{where}: it has {most} clients")

    def _check_cost(self, asked: Asked) -> None:
        """Refuse what the spec does not say, or what costs more than the client's owner allows."""
        plan, scheduled = self._experiment.plan, self._experiment.algorithm.round_schedule
        spends, where = self._spends(), self._where(asked)
        if scheduled is None:
            given = (asked.local_steps, asked.noise_multiplier)
            if given != (plan.local_steps, plan.noise_multiplier):
                raise RefusalError(
                    "noise",
                    f"{where}: it asks for {asked.local_steps} steps with a noise multiplier of "
                    f"{asked.noise_multiplier:g}; the spec says {plan.local_steps} and "
                    f"{plan.noise_multiplier:g}",
                )
        else:
            taken = sum(int(one.get("steps", 0)) for one in spends)
            bound = plan.spending_bound
            try:
                bound.check(asked.round, asked.local_steps, asked.noise_multiplier, taken)
            except PrivacyError as error:
                raise RefusalError("noise", f"{where}: {error}") from None
        rate, most = self._rate(asked.round), asked.round * plan.spending_bound.most_local_steps
        # Another machine's cosine may end in another bit.
        same = math.isclose(asked.learning_rate, rate, rel_tol=1e-9)
        if not same or not 0 <= asked.earlier_steps <= most:
            raise RefusalError(
                "noise",
                f"{where}: it asks for a learning rate of {asked.learning_rate:g} after "
                f"{asked.earlier_steps} steps; the spec says {rate:g} after {most} at most",
            )
        if len(spends) >= self.most_charges:
            raise RefusalError(
                "spent",
                f"{where}: it has paid for {len(spends)} participations, as many as its owner "
                "allows (most_charges in site.json; its owner may allow more: --most-charges)",
            )

    def _check_order(self, asked: Asked) -> None:
        """Refuse a round that no honest server would ask for after those that were paid for.

        A server that was cut off goes on from one of its last two states, so that it may ask once
        more for the round before the last; each attempt has a higher number than the one before.
        """
        spends, where = self._spends(), self._where(asked)
        latest = max((int(entry["round"]) for entry in spends), default=0)
        if asked.round < latest - 1:
            raise RefusalError("order", f"{where}: round {latest} was paid for already")
        own = [entry for entry in spends if entry["round"] == asked.round]
        attempt = max((int(entry["attempt"]) for entry in own), default=1)
        if asked.attempt < attempt:
            raise RefusalError("order", f"{where}: attempt {attempt} was paid for already")
        most = 1 + max(1, self.most_charges - self._experiment.plan.rounds)
        if len(own) >= most:
            raise RefusalError(
                "attempts", f"{where}: it was paid for {len(own)} times, the most for one round"
            )

    def _check_broadcast(self, asked: Asked, message: bytes) -> None:
        """Refuse a broadcast that no server of the spec sends, before anything is charged.

        Gradients at parameters that are not finite count nothing, so that noise alone would be
        paid for. At very large ones a batch's size decides by rounding what each of its gradients
        is, and a record would move the sum by more than C: measured, 1.4 C from 1e8 on.
        """
        where = self._where(asked)
        try:
            self._expected.check(message, where, "the broadcast")
            parameters, _ = view(message, self._station.worker.flat.vector)
        except (ArrivalError, ValueError, KeyError, TypeError) as error:
            raise RefusalError("broadcast", f"{where}: {error}") from None
        if len(parameters) and float(parameters.abs().max()) > _LARGEST_PARAMETER:
            raise RefusalError(
                "broadcast", f"{where}: it has parameters beyond {_LARGEST_PARAMETER:g} in size"
            )

    def _where(self, asked: Asked) -> str:
        return f"client {self.number} refuses round {asked.round}"

    def _rate(self, index: int) -> float:
        """The learning rate of a round, as the spec has it."""
        algorithm = self._spec.algorithm
        if algorithm.schedule == "cosine":
            rounds = self._spec.federation.rounds
            return cosine_learning_rate(algorithm.learning_rate, index, rounds)
        return float(algorithm.learning_rate)

    def _source(self) -> RandomSource:
        """Where noise and batches come from: a key of this participation alone, or the seed.

        A key of release mode is never stored: what was drawn under it cannot be drawn again.
        """
        if self._spec.randomness.mode == "reproducible":
            return ReproducibleRandomness(self._spec.randomness.seed or 0)
        return ReleaseRandomness()

    def _memory(self, asked: Asked, remembered: str) -> Mapping[str, Tensor]:
        """What the client kept when it took part in an earlier round, which the server names.

        The server names the last one that it completed; a later one may have been in vain.
        """
        if not remembered:
            return {}
        where = self._where(asked)
        named = _REMEMBERED.fullmatch(remembered)
        part = (int(named[1]), int(named[2])) if named else (asked.round, 0)
        for entry in self.ledger.of_kind("upload"):
            if (entry["round"], entry["attempt"]) != part or part[0] >= asked.round:
                continue
            path = self._site.noted(*part)
            if hashlib.sha256(path.read_bytes()).hexdigest() != entry["evidence_sha256"]:
                raise DeploymentError(f"{path}: has changed since the ledger named it")
            kept = views(read_noted(path)["memory"].tobytes())
            return {name: one.clone() for name, one in kept.items()}
        raise RefusalError("memory", f"{where}: it names no earlier participation to go on from")


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


def _people(site: Site, facts: Facts, share: Share, experiment: Experiment) -> People | None:
    """Whom batches are drawn of; None where these are drawn of records.

    Raises:
        DeploymentError: If the share's people are not what the facts say of them.
    """
    if facts.people is None or share.whose is None:
        return None
    number, most = site.settings().client, experiment.plan.records_per_person
    try:
        facts.people.check_share(share.whose, share.rows, number, site.salt.read_bytes())
    except DeploymentError as error:
        raise DeploymentError(f"{site.share}: {error}; restore it") from None
    return None if most is None else share.whose.of(share.rows, most)


def _labels(share: Share) -> Tensor:
    import torch

    return torch.from_numpy(share.labels.astype(np.int64))


def _station(experiment: Experiment, site: Site, clients: Mapping[int, ClientData]) -> Station:
    """What computes participations in this process."""
    performance = performance_of(experiment, "auto")
    worker = Worker(
        rule=experiment.algorithm.local,
        unit=_unit(experiment, site),
        engine=engine_of(experiment, performance),
        flat=FlatParameters(experiment.model),
        # Each participation comes with its own.
        randomness=ReproducibleRandomness(0),
        performance=performance,
    )
    return Station(plan=experiment.plan, worker=worker, clients=clients)


def _unit(experiment: Experiment, site: Site) -> Unprotected:
    """What notes participations; it is opened in a folder of its own."""
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
    unit = unit_of(experiment.plan).rounds.open(setup)
    # Nothing is read from it once the unit is open.
    DISK.remove_tree(scratch)
    return unit


def _expected(experiment: Experiment, station: Station) -> Likeness:
    """What every broadcast of the run looks like: its server's first one."""
    state = experiment.algorithm.server.start(station.worker.flat.vector)
    return Likeness.of(pack(state.parameters, state.state))


def plain(sent: Sent) -> dict[str, Any]:
    """What a client sends in addition to its upload, as plain values."""
    fields = asdict(sent)
    fields.pop("upload")
    return {**fields, "signature": sent.signature.hex(), "uploaded": list(sent.uploaded)}
