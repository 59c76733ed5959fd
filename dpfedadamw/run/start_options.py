"""What a run is started with besides its spec, and whether that goes with the spec.

A key that is kept; canaries; an auditor's challenge; a trial of a private selection; clients that
hold their records themselves. Any of these that promises something is checked before anything is
charged:

* A trainer's intent fixes spec, data and keys before the auditor's nonce is known (`cli.challenge`
  signs it). `check_promise` compares it with what is about to run.
* What drew the number of trials of a private selection is in the run's evidence; the ledger's
  header commits to it, and says how many trials there are and which of them this is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw import spec as specs
from dpfedadamw.accounting.selection import SECRET_BYTES, commitment
from dpfedadamw.data.digests import client_digests
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin, data_commitment
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.storage.foreign import read_mapping

if TYPE_CHECKING:
    from dpfedadamw.canaries.engine import CanaryOrder
    from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
    from dpfedadamw.federation.worker import ClientRunner, Worker
    from dpfedadamw.rundir import RunDirectory

SECRET = "tuning"


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a trainer commits to before an auditor draws a nonce.

    Attributes:
        spec_sha256: Digest of the resolved spec.
        root: Root (sha256 hex) of the tree over the leaf keys.
        rounds: T, of the tree.
        clients: K, of the tree.
        data: The commitment (sha256 hex) to each client's records, by client.
    """

    spec_sha256: str
    root: str
    rounds: int
    clients: int
    data: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Challenged:
    """What a run is started with that an auditor has challenged.

    Attributes:
        run: Identifier that the intent gave the run.
        promise: What the intent promised.
        randomness: The escrowed key, bound to the auditor's nonce.
        header: What the ledger's header says of intent and challenge.
        files: Intent and challenge as they were signed, by name: they lie in the run directory.
    """

    run: str
    promise: Promise
    randomness: ReleaseRandomness
    header: Mapping[str, Any]
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Trial:
    """Which trial a run is.

    Attributes:
        secret: The 32 bytes that drew how many there are, and what each tries.
        number: Its number, from 1.
        trials: How many there are.
    """

    secret: bytes
    number: int
    trials: int

    @property
    def header(self) -> dict[str, Any]:
        """What the ledger's header says of it."""
        return {
            "trial": self.number,
            "trials": self.trials,
            "commitment": commitment(self.secret),
        }

    def to_plain(self) -> dict[str, Any]:
        """The trial as JSON types; private."""
        return {"secret": self.secret.hex(), "trial": self.number, "trials": self.trials}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is different of a run whose clients hold their records and their evidence themselves.

    Attributes:
        experiment: What is run, as far as it is known here: without clients' records.
        header: What the ledger's header says of the clients; it takes the place of what would be
            noted of one who has all evidence.
        unit: Opens what the rounds protect, without clients' evidence.
        runner: Runs the clients of a round.
    """

    experiment: Experiment
    header: Mapping[str, Any]
    unit: Callable[[UnitSetup], Unprotected]
    runner: Callable[[RunDirectory, Worker], ClientRunner]


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What a new run is started with besides its spec; nothing of it by default.

    Attributes:
        created: Time to write down; now where it is None.
        escrow: A new file for the noise key, mode 0600; None keeps the key in memory alone.
        canaries: Makes it an audit run with planted canaries, which is named and marked as such.
        challenged: Intent, challenge and escrowed key of a run that an auditor knows of.
        trial: Which trial of a private selection the run is.
        deployment: What is different where clients hold their records themselves.
    """

    created: datetime | None = None
    escrow: Path | None = None
    canaries: CanaryOrder | None = None
    challenged: Challenged | None = None
    trial: Trial | None = None
    deployment: Deployment | None = None


def promise(experiment: Experiment, randomness: ReleaseRandomness) -> Promise:
    """What would be promised of an experiment under a key.

    Raises:
        RunError: If its streams come from no key, or no privacy is claimed.
        PrivacyError: If it has too many rounds and clients for one tree.
    """
    spec, plan = experiment.spec, experiment.plan
    if not plan.private:
        raise RunError(
            "privacy.unit: this spec claims no privacy, so there is nothing to challenge"
        )
    if spec.randomness.mode != "release":
        raise RunError(
            f"randomness.mode: {spec.randomness.mode} draws its noise from a published seed; an "
            "intent commits to secret keys, so use release"
        )
    clients = len(plan.records)
    tree = randomness.tree(plan.rounds, clients)
    digests = client_digests(experiment.dataset.train, experiment.owner, clients)
    return Promise(
        spec_sha256=hashlib.sha256(specs.dump(spec).encode()).hexdigest(),
        root=tree.root,
        rounds=plan.rounds,
        clients=clients,
        data=tuple(
            data_commitment(randomness.data_salt(client), client, digest)
            for client, digest in enumerate(digests)
        ),
    )


def check_promise(experiment: Experiment, challenged: Challenged) -> None:
    """Refuse an experiment that is not the one that was announced.

    Raises:
        RunError: With what differs.
    """
    promised, found = challenged.promise, promise(experiment, challenged.randomness)
    if found.spec_sha256 != promised.spec_sha256:
        raise RunError(
            f"the spec is not the one of the intent of {challenged.run} (its resolved form has "
            f"another digest, {found.spec_sha256[:12]}… instead of {promised.spec_sha256[:12]}…). "
            "Run the spec that was announced, with the same --set, or announce this one"
        )
    if (found.root, found.rounds, found.clients) != (
        promised.root,
        promised.rounds,
        promised.clients,
    ):
        raise RunError(
            f"--escrow: holds a different key from the one that the intent of {challenged.run} "
            "committed to; give the file that was written with the intent"
        )
    if found.data != promised.data:
        changed = sum(one != other for one, other in zip(found.data, promised.data, strict=True))
        raise RunError(
            f"the data are not those of the intent of {challenged.run}: {changed} of "
            f"{found.clients} clients hold other records; restore them, or announce a new run"
        )


def coin_of(header: Mapping[str, Any]) -> PublicCoin:
    """What the streams of a run are bound to, as its ledger's header has it."""
    coin = header.get("public_coin")
    return NO_COIN if coin is None else PublicCoin(bytes.fromhex(coin["nonce"]), coin["run"])


def challenged_key(header: Mapping[str, Any], escrow: Path | None) -> ReleaseRandomness | None:
    """The streams of a challenged run that was cut off; None for a run without a challenge.

    Args:
        header: The ledger's.
        escrow: The key's file.

    Raises:
        RunError: If the key is missing, or is not the one that was committed to.
        PrivacyError: If the file cannot be read.
    """
    if header.get("public_coin") is None:
        return None
    if escrow is None:
        raise RunError(
            "--escrow FILE: an auditor has challenged this run, so it continues with the key that "
            "its intent committed to; give the file that was written with the intent"
        )
    randomness = ReleaseRandomness.from_escrow(escrow, coin_of(header))
    if randomness.commitment != header["commitment"]:
        raise RunError(f"--escrow {escrow}: holds a different key from the run's")
    return randomness


def read_trial(path: Path) -> Trial:
    """Read what a sweep wrote for a trial.

    Raises:
        RunError: If it cannot be read.
    """
    try:
        found = read_mapping(path)
        trial = Trial(bytes.fromhex(found["secret"]), int(found["trial"]), int(found["trials"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"--trial {path}: not a trial that a sweep drew") from None
    if len(trial.secret) != SECRET_BYTES:
        raise RunError(f"--trial {path}: not a trial that a sweep drew")
    return trial


def check_trial(experiment: Experiment, trial: Trial | None) -> None:
    """Refuse a run by itself of a spec whose claim is that of a selection, and the reverse.

    Raises:
        RunError: If spec and trial do not go together.
    """
    law = experiment.plan.trials
    if law is None and trial is None:
        return
    if trial is None:
        raise RunError(
            "tune.selection: private, but a single trial is not a selection; use `dpfedadamw sweep "
            "SPEC` on the spec with tune.grid, which draws the number of trials, runs them and "
            "publishes one"
        )
    if law is None:
        raise RunError("--trial: tune.selection of this spec is not private")
    if trial.trials != law.drawn(trial.secret) or not 1 <= trial.number <= trial.trials:
        raise RunError("--trial: was not drawn from the distribution that the spec states")
