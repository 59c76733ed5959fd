"""A run that was announced to an auditor: what its trainer promised, and the nonce that answered.

The promise fixes spec, data and keys before the nonce is known (`cli.challenge` signs it as an
intent). Before such a run spends anything, it is compared with what is about to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedadamw import spec as specs
from dpfedadamw.data.digests import client_digests
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin, data_commitment
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness


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
            f"another digest, {found.spec_sha256[:12]}… instead of {promised.spec_sha256[:12]}…); "
            "run the spec that was announced, with the same --set, or announce this one"
        )
    if (found.root, found.rounds, found.clients) != (
        promised.root,
        promised.rounds,
        promised.clients,
    ):
        raise RunError(
            f"--escrow: holds another key than the intent of {challenged.run} committed to; give "
            "the file that was written with the intent"
        )
    if found.data != promised.data:
        changed = sum(one != other for one, other in zip(found.data, promised.data, strict=True))
        raise RunError(
            f"the data are not those of the intent of {challenged.run}: {changed} of "
            f"{found.clients} clients hold other records; put them back, or announce the run anew"
        )


def coin_of(header: Mapping[str, Any]) -> PublicCoin:
    """What the streams of a run are bound to, as its ledger's header has it."""
    coin = header.get("public_coin")
    return NO_COIN if coin is None else PublicCoin(bytes.fromhex(coin["nonce"]), coin["run"])


def challenged_again(header: Mapping[str, Any], escrow: Path | None) -> ReleaseRandomness | None:
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
            "--escrow FILE: an auditor has challenged this run, so it goes on with the key that "
            "its intent committed to; give the file that was written with the intent"
        )
    randomness = ReleaseRandomness.from_escrow(escrow, coin_of(header))
    if randomness.commitment != header["commitment"]:
        raise RunError(f"--escrow {escrow}: holds another key than the run began with")
    return randomness
