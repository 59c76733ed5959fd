"""One client's folder: what it holds, and what it writes.

spec.yaml            the run's resolved spec
federation.json      what all know of the federation
site.json            which client this is, and how often it takes part at most
share.npz            its records (mode 0600)
key                  its signing key (mode 0600)
salt                 the secret that the clients share and the server lacks (mode 0600)
ledger.jsonl         what it was charged: its own, hash-chained, written ahead
evidence/            what it noted of each participation, for the auditor (mode 0700)
socket               where its process listens for the SuperNode of this machine
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.facts import Facts, Share
from dpfedadamw.deployment.identity import make_key
from dpfedadamw.storage.disk import (
    DISK,
    PRIVATE_MODE,
    PUBLIC_MODE,
    json_line,
    make_folders,
    write_atomically,
)

# Beyond a run's rounds: what crashes may cost a client before it asks its owner.
_SPARE = 30


@dataclass(frozen=True)
class Site:
    """Paths inside one client's folder.

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def spec(self) -> Path:
        """The resolved spec."""
        return self.path / "spec.yaml"

    @property
    def facts(self) -> Path:
        """What all know of the federation."""
        return self.path / "federation.json"

    @property
    def share(self) -> Path:
        """The client's records."""
        return self.path / "share.npz"

    @property
    def key(self) -> Path:
        """Its signing key."""
        return self.path / "key"

    @property
    def salt(self) -> Path:
        """The secret that the clients share."""
        return self.path / "salt"

    @property
    def ledger(self) -> Path:
        """Its own ledger."""
        return self.path / "ledger.jsonl"

    @property
    def evidence(self) -> Path:
        """What it noted."""
        return self.path / "evidence"

    @property
    def socket(self) -> Path:
        """Where its process listens."""
        return self.path / "socket"

    def noted(self, round_index: int, attempt: int) -> Path:
        """What it noted of one participation."""
        return self.evidence / f"participation-{round_index:05d}-{attempt}.npz"

    def sent(self, round_index: int, attempt: int) -> Path:
        """The upload of one participation."""
        return self.evidence / f"upload-{round_index:05d}-{attempt}.safetensors"

    def settings(self) -> Settings:
        """What ``site.json`` says.

        Raises:
            DeploymentError: If it says nothing of a client.
        """
        try:
            found = json.loads((self.path / "site.json").read_bytes())
            return Settings(int(found["client"]), int(found["most_charges"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise DeploymentError(
                f"{self.path}: is no client's folder: its site.json cannot be read ({kind}); make "
                "one with: dpfedadamw flower new SPEC DIR"
            ) from None


@dataclass(frozen=True)
class Settings:
    """What a client's owner decides.

    Attributes:
        client: Which client it is, from 0.
        most_charges: Participations that it pays for at most, repeated ones included.
    """

    client: int
    most_charges: int


def make_site(path: Path, client: int, rounds: int, salt: bytes) -> tuple[Site, str]:
    """Make a client's folder, with a key of its own; the folder and the public key."""
    site = Site(path)
    make_folders(path)
    path.chmod(0o700)
    DISK.make_folder(site.evidence)
    write_atomically(site.salt, salt, PRIVATE_MODE)
    settings = {"client": client, "most_charges": rounds + _SPARE}
    write_atomically(path / "site.json", json_line(settings), PUBLIC_MODE)
    return site, make_key(site.key)


def fill_site(site: Site, spec: bytes, facts: Facts, share: Share | None) -> None:
    """Write what is known once all clients have their keys."""
    write_atomically(site.spec, spec, PUBLIC_MODE)
    facts.write(site.facts)
    if share is not None:
        share.write(site.share)


def read_noted(path: Path) -> dict[str, NDArray[Any]]:
    """What a client noted of one participation; nothing is unpickled.

    Raises:
        DeploymentError: If it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise DeploymentError(f"{path}: cannot be read ({type(error).__name__})") from None
