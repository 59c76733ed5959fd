"""Writes a federation's project: the server's folder, one for each client, and how to run them.

A client's folder has two others in it: ``supernode/``, all that its SuperNode needs, and ``door/``,
where its own process listens. So the two can be two users of the machine, and the SuperNode's sees
neither records nor keys.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw import spec as specs
from dpfedadamw.experiment import Experiment
from dpfedadamw.extensions.deployment import templates
from dpfedadamw.extensions.deployment.certificates import LOCAL, Authority, make_node_key
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import facts_of
from dpfedadamw.extensions.deployment.promise import sentences
from dpfedadamw.extensions.deployment.site import Site, fill_site, make_site, reserve
from dpfedadamw.extensions.deployment.supernode import NodeFolder
from dpfedadamw.storage.disk import DISK, PUBLIC_MODE, make_folders, write_atomically
from dpfedadamw.units.none import Nothing

SUPERLINK_PORT = 9092
# Of a broadcast: several vectors as long as the model, in float32; plain values.
_MOST_BYTES_PER_NUMBER = 64
_BESIDE = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Project:
    """Paths inside a project.

    Attributes:
        path: Its folder.
        clients: How many clients it has.
    """

    path: Path
    clients: int

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.path / "server"

    def site(self, client: int) -> Site:
        """One client's folder."""
        return Site(self.path / "clients" / f"{client:02d}")

    def supernode(self, client: int) -> NodeFolder:
        """One client's SuperNode's folder."""
        return NodeFolder(self.site(client).path / "supernode")


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the SuperLink is reached.

    Attributes:
        host: Its name or address.
        port: Its port.
    """

    host: str = "127.0.0.1"
    port: int = SUPERLINK_PORT

    def __post_init__(self) -> None:
        """Refuse what no certificate can be made for.

        Raises:
            DeploymentError: If the host is neither a name nor an address.
        """
        if not _NAME.fullmatch(self.host) and not _is_address(self.host):
            raise DeploymentError(
                f"--host {self.host!r}: is neither an address nor a name of letters, digits, '-' "
                "and '.'; write any other name in its ASCII form (xn--…), and the port by --port"
            )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def make_project(experiment: Experiment, path: Path, addresses: Addresses) -> Project:
    """Write a project for a spec whose data are here, divided as the spec says.

    Args:
        experiment: What is run.
        path: A new or empty folder.
        addresses: Where the SuperLink is reached.

    Raises:
        DeploymentError: If the folder holds something, or the spec cannot be run so.
    """
    plan, spec = experiment.plan, experiment.spec
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DeploymentError(f"{path}: exists already and is not empty; give a new folder")
    if isinstance(plan.unit, Nothing):
        raise DeploymentError(
            "privacy.unit: none: clients on separate machines would send unprotected updates; use "
            "record, person or client"
        )
    if experiment.plan.column_queries is not None:
        raise DeploymentError(
            "data.columns: bounds cannot be learnt in a federation of machines yet; leave "
            "learn_quantiles out and give low and high yourself"
        )
    if spec.budget.file is not None or spec.tune.selection == "private":
        raise DeploymentError("budget and tune: cover the data of one machine only; leave them out")
    clients, salt = len(plan.records), secrets.token_bytes(32)
    project = Project(path.resolve(), clients)
    made = [
        make_site(project.site(client).path, client, plan.rounds, salt) for client in range(clients)
    ]
    facts, test, shares = facts_of(experiment, [key for _, key in made], salt)
    text = specs.filed(spec).encode()
    for (site, _), share in zip(made, shares, strict=True):
        fill_site(site, text, facts, share)
    make_folders(project.server)
    project.server.chmod(0o700)
    project.path.chmod(0o700)
    write_atomically(project.server / "spec.yaml", text, PUBLIC_MODE)
    facts.write(project.server / "federation.json")
    test.write(project.server / "test.npz")
    _write_certificates(project, addresses, _MOST_BYTES_PER_NUMBER * _numbers(experiment) + _BESIDE)
    reproducible = spec.randomness.mode == "reproducible"
    agreed = sentences(plan, plan.rounds + reserve(plan.rounds), reproducible)
    _write_instructions(project, addresses, agreed)
    return project


def _write_certificates(project: Project, addresses: Addresses, most_bytes: int) -> None:
    authority = Authority.new()
    # The last is its name among the containers of compose.yaml.
    hosts = tuple(dict.fromkeys((addresses.host, *LOCAL, "superlink")))
    authority.certify(hosts, project.server / "superlink.crt", project.server / "superlink.key")
    make_folders(project.server / "nodes")
    where = templates.host_and_port(addresses.host, addresses.port)
    for client in range(project.clients):
        node = project.supernode(client)
        DISK.make_folder(node.path)
        authority.write(node.authority)
        make_node_key(node.key)
        node.write_settings(where, "../door/socket", most_bytes)
        public = project.server / "nodes" / f"{client:02d}.pub"
        write_atomically(public, node.public.read_bytes(), PUBLIC_MODE)


def _numbers(experiment: Experiment) -> int:
    return sum(one.numel() for one in experiment.model.state_dict().values())


def _write_instructions(project: Project, addresses: Addresses, agreed: Sequence[str]) -> None:
    systemd = project.path / "systemd"
    make_folders(systemd)
    folder, clients = str(project.path), project.clients
    host, port = addresses.host, addresses.port
    texts = {
        project.path / "README.md": templates.readme(folder, host, port, clients, agreed),
        project.path / "compose.yaml": templates.compose(host, port, clients),
        project.path / "Dockerfile": templates.DOCKERFILE,
        systemd / "dpfedadamw-superlink.service": templates.superlink_unit(folder, host, port),
        systemd / "dpfedadamw-client@.service": templates.client_unit(folder),
        systemd / "dpfedadamw-supernode@.service": templates.supernode_unit(folder),
        systemd / "dpfedadamw.sysusers": templates.SYSUSERS,
    }
    for path, text in texts.items():
        write_atomically(path, text.encode(), PUBLIC_MODE)
    write_atomically(project.path / "prepare", templates.prepare(folder).encode(), 0o755)
