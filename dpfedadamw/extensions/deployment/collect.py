"""What clients hand in, and what the server received, as one run directory that can be judged.

Each round is written down as the run itself would have: from each client's noted answer, by the
same code (`took_part`, `close`). Where a client's evidence of a round is not handed in, neither
that round nor any after it can be written: the auditor then says which checks it cannot make.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import Broadcast, ServerState, Upload
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.commitments import commitments_of
from dpfedadamw.evidence.inputs import write_inputs, write_partition
from dpfedadamw.evidence.records import write_records
from dpfedadamw.extensions.deployment.client import shared_of
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts, Share, experiment_of
from dpfedadamw.extensions.deployment.leading import is_finished
from dpfedadamw.extensions.deployment.noted import NotedError, check_noted
from dpfedadamw.extensions.deployment.people import Whose
from dpfedadamw.extensions.deployment.refusals import REASONS, read_counts
from dpfedadamw.extensions.deployment.server_rounds import Received
from dpfedadamw.extensions.deployment.site import Site, read_noted
from dpfedadamw.federation.client import ClientLevel, Combined, evidence_of, public_coordinates
from dpfedadamw.federation.messages import unpack_update, view
from dpfedadamw.federation.participation import Answer, Participation, Round
from dpfedadamw.federation.recorded import answered
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.privacy.ledger import GENESIS, Ledger, canonical
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.run.computing import divided, unit_of
from dpfedadamw.rundir import RunDirectory, open_existing, point_latest, write_arrays
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, write_atomically
from dpfedadamw.storage.foreign import MOST_TEXT_BYTES, parse, read_arrays, read_salt
from dpfedadamw.vectors.packing import views

_ENVELOPES = ("training.attestation.json", "attestation.json")
_FILES = ("spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "model.json")


@dataclass(frozen=True)
class Collected:
    """What was put together.

    Attributes:
        run: The run directory.
        missing: What was not handed in, or not as it was, one line each.
        refused: What clients say that they refused, one line for each that refused anything.
    """

    run: RunDirectory
    missing: tuple[str, ...]
    refused: tuple[str, ...] = ()


def collect(
    led: RunDirectory,
    home: Path,
    sites: Sequence[Path],
    parent: Path,
    earlier: Path | None = None,
) -> Collected:
    """Make one run directory of a federation's.

    Args:
        led: The run as the server has it, finished.
        home: The server's folder.
        sites: Folders of the clients that consent, whole or without their records.
        parent: Folder that gets the run directory.
        earlier: An earlier collection of the same run, whose signatures the new ones supersede.

    Raises:
        DeploymentError: If the run is not finished, or a folder belongs to another.
    """
    target = RunDirectory(parent.resolve() / led.identifier)
    if target.path.exists():
        raise DeploymentError(
            f"{target.path}: exists already; to collect again with other folders, give another "
            f"--out and --replaces {target.path}"
        )
    if not is_finished(led):
        raise DeploymentError(
            f"{led.path}: the run is not finished; restart the SuperLink: dpfedadamw flower "
            f"superlink {home}"
        )
    envelopes = {} if earlier is None else _envelopes(earlier, led)
    facts, spec = Facts.read(home / "federation.json"), specs.load_filed(led.spec)
    found = _by_client(sites, facts)
    missing = [
        f"client {client}: nothing was handed in"
        for client in range(len(facts.keys))
        if client not in found
    ]
    shares = {}
    for client, site in found.items():
        if site.share.is_file():
            shares[client] = Share.read(site.share)
        else:
            missing.append(f"client {client}: its records were not handed in")
    parent.mkdir(parents=True, exist_ok=True)
    hidden = RunDirectory(parent.resolve() / f".{led.identifier}.collecting")
    shutil.rmtree(hidden.path, ignore_errors=True)
    try:
        hidden.path.mkdir(mode=0o700)
        hidden.evidence.mkdir(mode=0o700)
        for name in _FILES:
            if not (led.path / name).is_file():
                raise DeploymentError(f"{led.path / name}: is missing; restore it")
            (hidden.path / name).write_bytes(DISK.read(led.path / name))
        for name, content in envelopes.items():
            (hidden.path / name).write_bytes(content)
        _copy_evidence(led, hidden)
        if found:
            missing += _Writer(hidden, led, home, spec, facts, found, shares).write()
        hidden.path.rename(target.path)
        point_latest(target)
    except BaseException:
        shutil.rmtree(hidden.path, ignore_errors=True)
        raise
    return Collected(target, tuple(missing), _refused(found))


def _by_client(sites: Sequence[Path], facts: Facts) -> dict[int, Site]:
    found: dict[int, Site] = {}
    for path in sites:
        site = Site(path)
        client = site.settings().client
        if Facts.read(site.facts) != facts:
            raise DeploymentError(f"{path}: belongs to another federation")
        if client in found:
            raise DeploymentError(f"{path}: client {client} is handed in twice")
        found[client] = site
    return dict(sorted(found.items()))


def _refused(sites: Mapping[int, Site]) -> tuple[str, ...]:
    """What clients refused, as they say it: not from an honest server, if there is much of it."""
    lines = []
    for client, site in sites.items():
        counts = read_counts(site.refusals)
        if counts:
            each = ", ".join(f"{REASONS[reason]} ({count})" for reason, count in counts.items())
            lines.append(f"client {client} refused {sum(counts.values())} messages: {each}")
    return tuple(lines)


def _envelopes(earlier: Path, led: RunDirectory) -> dict[str, bytes]:
    """The signatures of an earlier collection: what is signed now counts on from their numbers.

    Raises:
        DeploymentError: If they are not there, or of another run.
    """
    run = open_existing(earlier)
    if run.identifier != led.identifier:
        raise DeploymentError(f"--replaces {earlier}: is another run than {led.identifier}")
    found = {name: run.path / name for name in _ENVELOPES}
    for path in found.values():
        if not path.is_file():
            raise DeploymentError(f"--replaces {path}: is missing; nothing was signed there")
    return {name: DISK.read(path, MOST_TEXT_BYTES) for name, path in found.items()}


def _copy_evidence(led: RunDirectory, target: RunDirectory) -> None:
    """What the server noted itself: on what it computed, states, the probe of its step."""
    for path in sorted(led.evidence.iterdir()):
        if path.name.startswith(("environment-", "state-", "probe.")):
            write_atomically(target.evidence / path.name, DISK.read(path), PRIVATE_MODE)


class _Writer:
    """Writes a run's evidence.

    Args:
        target: The run directory that gets it.
        led: The run as the server has it.
        home: The server's folder.
        spec: The resolved spec.
        facts: The federation's.
        sites: Folders of clients that consent, by client.
        shares: Their records, as far as they are handed in.
    """

    def __init__(
        self,
        target: RunDirectory,
        led: RunDirectory,
        home: Path,
        spec: specs.Spec,
        facts: Facts,
        sites: Mapping[int, Site],
        shares: Mapping[int, Share],
    ) -> None:
        self._target, self._sites, self._facts = target, sites, facts
        self._received = Received.of(led.evidence)
        self._test, self._shares = Share.read(home / "test.npz"), shares
        self._whole = len(shares) == len(facts.keys)
        self._experiment = experiment_of(spec, facts, self._test, shares if self._whole else {})
        self._entries = Ledger(target.ledger).entries
        self._device = torch.device("cpu")
        self._digests = {client: _noted_digests(site) for client, site in sites.items()}

    def write(self) -> list[str]:
        """Write what can be; what could not, one line each."""
        missing, evidence = [], self._target.evidence
        salt = read_salt(next(iter(self._sites.values())).salt)
        if hashlib.sha256(salt).hexdigest() != self._facts.salt_sha256:
            raise DeploymentError("the clients' salt is not the one whose digest the facts have")
        write_atomically(evidence / "salt", salt, PRIVATE_MODE)
        missing += self._other_people(salt)
        if self._whole:
            self._write_records()
        missing += self._write_clients()
        setup = UnitSetup(
            experiment=self._experiment,
            directory=evidence,
            completed=0,
            # Nothing is drawn.
            randomness=ReproducibleRandomness(0),
            commitments=commitments_of(self._entries[0]),
        )
        unit = unit_of(self._experiment.plan).rounds.open(setup)
        # Of a round that was run again, what was sent the last time.
        ends = {int(one["round"]): one for one in self._entries if one["kind"] == "round"}
        over = list(ends.values())
        memories: dict[int, dict[str, torch.Tensor]] = {}
        for entry in over:
            try:
                self._write_round(unit, entry, memories, last=entry is over[-1])
            except DeploymentError as error:
                missing.append(
                    f"round {entry['round']} and all after it: {error}; they cannot be judged"
                )
                break
        DISK.sync_folder(evidence)
        return missing

    def _write_records(self) -> None:
        experiment, evidence = self._experiment, self._target.evidence
        train, owner = experiment.dataset.train, experiment.owner
        clients = divided(experiment, train, owner, len(self._facts.records))
        held = [one.inputs for one in clients if isinstance(one.inputs, StoredRecords)]
        write_partition(evidence, owner, held)
        write_records(
            evidence, train.inputs, experiment.dataset.strata, experiment.dataset.test.inputs
        )
        write_inputs(evidence, held)
        if self._facts.people is not None:
            self._write_people()

    def _other_people(self, salt: bytes) -> list[str]:
        """Who hands in other people than it was given, one line each: the audit will fail."""
        people = self._facts.people
        if people is None:
            return []
        return [
            f"client {client}: its share.npz does not say whom its records were about at the "
            "division"
            for client, share in self._shares.items()
            if share.whose is None or share.whose.commitment(salt) != people.shares_sha256[client]
        ]

    def _write_people(self) -> None:
        """Whom records are about, as far as shares and the server's test records say it."""
        parts, arrays = [share.whose for share in self._shares.values()], {}
        if self._experiment.spec.data.test_fraction is None:
            # Test records of their own have numbers of their own.
            arrays["test"] = _digests([self._test.whose], len(self._test.rows))
        else:
            parts.append(self._test.whose)
        arrays["stored"] = _digests(parts, self._facts.stored[0])
        write_arrays(self._target.evidence / "people.npz", arrays)

    def _write_clients(self) -> list[str]:
        """Each client's own ledger, for the check that holds it against the server's."""
        missing = []
        for client, site in self._sites.items():
            if not site.ledger.is_file():
                missing.append(f"client {client}: its ledger was not handed in")
                continue
            path = self._target.evidence / f"client-{client:05d}.jsonl"
            write_atomically(path, DISK.read(site.ledger, MOST_TEXT_BYTES), PRIVATE_MODE)
        return missing

    def _write_round(
        self,
        unit: Any,
        entry: Mapping[str, Any],
        memories: dict[int, dict[str, torch.Tensor]],
        *,
        last: bool,
    ) -> None:
        current = self._round(entry, last)
        answers, uploads = [], []
        for place, client in enumerate(current.chosen):
            answer, arrays = self._answer(unit, current, client)
            unit.add_shared(shared_of(arrays))
            part = Participation(
                current=current, place=place, client=client, memory=memories.get(client, {})
            )
            unit.took_part(part, answer)
            if kept := answer.result.upload.memory:
                memories[client] = dict(kept)
            uploads.append(answer.message)
            answers.append(replace(answer, result=answer.result.without_vectors()))
        current = replace(current, answers=tuple(answers))
        if isinstance(unit, ClientLevel):
            combined = self._combined(current)
            rows = [answer.result.rows for answer in answers]
            release = evidence_of(current, combined)
            seen = [answer.result.seen for answer in answers]
            unit.evidence.write_round(
                current.index, current.attempt, current.chosen, release, rows, seen
            )
            current = replace(current, uploads=(Upload(combined.released),))
        unit.close(current)

    def _round(self, entry: Mapping[str, Any], last: bool) -> Round:
        index = int(entry["round"])
        spends = [one for one in self._entries if one["kind"] == "spend" and one["round"] == index]
        plan = self._experiment.plan
        attempt = max((int(one["attempt"]) for one in spends), default=1)
        own = [one for one in spends if one["attempt"] == attempt]
        if own:
            steps = own[0].get("steps", plan.local_steps)
            plan = replace(plan, noise_multiplier=own[0]["noise_multiplier"], local_steps=steps)
        message = _read(self._received.broadcast(index))
        following = _read(self._received.broadcast(index + 1))
        parameters, state = view(message, torch.zeros(0))
        return Round(
            index=index,
            attempt=attempt,
            plan=plan,
            chosen=tuple(int(client) for client in entry["clients"]),
            # What evidence needs of it; rates and steps of clients are in what they noted.
            broadcast=Broadcast(
                parameters=parameters,
                state=state,
                learning_rate=0.0,
                local_steps=plan.local_steps,
                earlier_steps=0,
            ),
            message=message,
            following=following,
            state=ServerState(parameters, state),
            last=last,
        )

    def _answer(
        self, unit: Any, current: Round, client: int
    ) -> tuple[Answer, Mapping[str, np.ndarray[Any, Any]]]:
        """What a client noted of its part, with the upload that the server received."""
        if client not in self._sites:
            raise DeploymentError(f"client {client} handed in nothing")
        site = self._sites[client]
        noted = site.noted(current.index, current.attempt)
        arrays = read_noted(noted)
        if _sha256(noted) != self._digests[client].get((current.index, current.attempt)):
            raise DeploymentError(f"what client {client} noted is not what its ledger names")
        message = _read(self._received.upload(current.index, client))
        plan, collector = current.plan, unit.evidence_of_client()
        sparse, whole = plan.sparsification, len(current.broadcast.parameters)
        try:
            check_noted(
                arrays,
                collector,
                (plan.local_steps, plan.local_steps * plan.queries_per_step),
                whole if sparse is None else sparse.released,
            )
        except NotedError as error:
            raise DeploymentError(f"what client {client} noted is not whole: {error}") from None
        return answered(message, arrays, collector, self._device), arrays

    def _combined(self, current: Round) -> Combined:
        """What the server made of a round's uploads."""
        path = self._received.release(current.index)
        try:
            found = read_arrays(path)
            noisy, released = (torch.from_numpy(found[name]) for name in ("noisy", "released"))
        except (OSError, ValueError, KeyError) as error:
            raise DeploymentError(f"{path}: cannot be read ({type(error).__name__})") from None
        plan, broadcast = current.plan, current.broadcast
        kept = public_coordinates(plan.sparsification, current.index, broadcast.state, self._device)
        uploads = [
            unpack_update(answer.message, len(noisy), broadcast.parameters)
            for answer in current.answers
        ]
        by_server = plan.noise_added_by == "server" or not uploads
        return Combined(
            uploads=uploads, noisy=noisy, released=released, kept=kept, by_server=by_server
        )


def _digests(parts: Sequence[Whose | None], records: int) -> NDArray[np.uint8]:
    """The person of each record, [records, 16]; 0 of those of whom nobody says it."""
    found = np.zeros((records, 16), np.uint8)
    for part in parts:
        if part is not None:
            known = part.rows < records
            found[part.rows[known]] = part.digests[known]
    return found


def _noted_digests(site: Site) -> dict[tuple[int, int], str]:
    """The digest of evidence that a client's ledger names for each round and attempt.

    Lines count as far as their chain holds: anybody can append one that continues no other.
    """
    found: dict[tuple[int, int], str] = {}
    raw = DISK.read(site.ledger, MOST_TEXT_BYTES) if site.ledger.is_file() else b""
    previous = GENESIS
    for line in raw.splitlines():
        try:
            entry = parse(line, site.ledger.name)
            unsigned = {name: value for name, value in entry.items() if name != "digest"}
            digest = hashlib.sha256(canonical(unsigned)).hexdigest()
            if (entry["previous"], entry["digest"]) != (previous, digest):
                break
            if entry["kind"] == "upload":
                part = (int(entry["round"]), int(entry["attempt"]))
                # It answers each attempt once.
                found.setdefault(part, str(entry["evidence_sha256"]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            break
        previous = hashlib.sha256(line).hexdigest()
    return found


def _sha256(path: Path) -> str:
    return hashlib.sha256(DISK.read(path)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        content = DISK.read(path)
        views(content)
    except (OSError, ValueError, KeyError) as error:
        kind = type(error).__name__
        raise DeploymentError(f"what the server received cannot be read: {path} ({kind})") from None
    return content
