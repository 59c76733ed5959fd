"""One client's folder: what it holds, and what it writes.

spec.yaml            the run's resolved spec
federation.json      what all know of the federation
site.json            which client this is, and how often it takes part at most
share.npz            its records, and digests of whom they are about (mode 0600)
key                  its signing key (mode 0600)
salt                 the secret that the clients share and the server lacks (mode 0600)
ledger.jsonl         what it was charged: its own, hash-chained, written ahead; its first line pins
                     what the client agreed to (`pins`)
refusals.json        what it refused, counted
evidence/            what it noted of each participation, for the auditor (mode 0700)
door/socket          where its process listens for the SuperNode of this machine
supernode/           its SuperNode's key and settings; the SuperNode needs nothing else
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts, Share
from dpfedadamw.extensions.deployment.identity import make_key
from dpfedadamw.storage.disk import (
    DISK,
    PRIVATE_MODE,
    PUBLIC_MODE,
    json_line,
    make_folders,
    write_atomically,
)
from dpfedadamw.storage.foreign import read_arrays, read_mapping

# What a client pays for beyond a run's rounds before it asks its owner: a fifth of them, because a
# longer run is cut off more often, and no more than ten.
_RESERVED = (5, 2, 10)


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
        return self.path / "door" / "socket"

    @property
    def refusals(self) -> Path:
        """What it refused."""
        return self.path / "refusals.json"

    def noted(self, round_index: int, attempt: int) -> Path:
        """What it noted of one participation."""
        return self.evidence / f"participation-{round_index:05d}-{attempt}.npz"

    def sent(self, round_index: int, attempt: int) -> Path:
        """The upload of one participation."""
        return self.evidence / f"upload-{round_index:05d}-{attempt}.safetensors"

    def allow(self, client: int, most_charges: int) -> None:
        """Write ``site.json``."""
        settings = {"client": client, "most_charges": most_charges}
        write_atomically(self.path / "site.json", json_line(settings), PUBLIC_MODE)

    def settings(self) -> Settings:
        """What ``site.json`` says.

        Raises:
            DeploymentError: If it says nothing of a client.
        """
        try:
            found = read_mapping(self.path / "site.json")
            numbers = (found["client"], found["most_charges"])
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("numbers that are none")
            return Settings(*numbers)
        except (OSError, ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise DeploymentError(
                f"{self.path}: is not a client's folder: its site.json cannot be read ({kind}); "
                "make one with: dpfedadamw flower new SPEC DIR"
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


def reserve(rounds: int) -> int:
    """Participations that a client pays for beyond a run's rounds, unless its owner says more.

    A crash, and each time that the server goes on with a run that was cut off, may cost one.
    """
    part, least, most = _RESERVED
    return min(most, max(least, -(-rounds // part)))


def make_site(path: Path, client: int, rounds: int, salt: bytes) -> tuple[Site, str]:
    """Make a client's folder, with a key of its own; the folder and the public key."""
    site = Site(path)
    make_folders(path)
    path.chmod(0o700)
    DISK.make_folder(site.evidence)
    DISK.make_folder(site.socket.parent)
    write_atomically(site.salt, salt, PRIVATE_MODE)
    site.allow(client, rounds + reserve(rounds))
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
        return read_arrays(path)
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{path}: cannot be read ({type(error).__name__})") from None
