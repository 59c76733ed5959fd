"""Writes a federation's project: the server's folder, one for each client, and how to run them.

The Flower app, which is sent to every machine, lies in a folder of its own, ``app/``, so that no
key and no record can be packed with it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw import spec as specs
from dpfedadamw.deployment import templates
from dpfedadamw.deployment.certificates import LOCAL, Authority, make_node_key
from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.facts import Facts, facts_of
from dpfedadamw.deployment.site import Site, fill_site, make_site
from dpfedadamw.experiment import Experiment
from dpfedadamw.privacy.units.none import Nothing
from dpfedadamw.storage.disk import DISK, PUBLIC_MODE, make_folders, write_atomically

SUPERLINK_PORT = 9092
_NODE_PORT = 9100


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
    def app(self) -> Path:
        """The Flower app."""
        return self.path / "app"

    @property
    def server(self) -> Path:
        """The server's folder."""
        return self.path / "server"

    def site(self, client: int) -> Site:
        """One client's folder."""
        return Site(self.path / "clients" / f"{client:02d}")


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the SuperLink is reached, and on which ports processes listen.

    Attributes:
        host: The SuperLink's name or address.
        port: Its port.
        node_ports: The port of each SuperNode's own interface, on its machine alone, by client.
    """

    host: str = "127.0.0.1"
    port: int = SUPERLINK_PORT
    node_ports: tuple[int, ...] = ()

    def node_port(self, client: int) -> int:
        """The port of one SuperNode's own interface."""
        return self.node_ports[client] if self.node_ports else _NODE_PORT + client


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
        raise DeploymentError(f"{path}: is there already, and not empty; give a new folder")
    if isinstance(plan.unit, Nothing):
        raise DeploymentError(
            "privacy.unit: none: clients on machines of their own would send what their records "
            "give in the clear; use record or client"
        )
    if spec.budget.file is not None or spec.tune.selection == "private":
        raise DeploymentError(
            "budget and tune: count what is spent on one machine's data; leave them out"
        )
    clients, salt = len(plan.records), secrets.token_bytes(32)
    project = Project(path.resolve(), clients)
    made = [
        make_site(project.site(client).path, client, plan.rounds, salt) for client in range(clients)
    ]
    facts, test, shares = facts_of(experiment, [key for _, key in made], salt)
    text = specs.dump(spec).encode()
    for (site, _), share in zip(made, shares, strict=True):
        fill_site(site, text, facts, share)
    make_folders(project.server)
    project.server.chmod(0o700)
    write_atomically(project.server / "spec.yaml", text, PUBLIC_MODE)
    facts.write(project.server / "federation.json")
    test.write(project.server / "test.npz")
    _write_certificates(project, addresses)
    _write_app(project, spec.name)
    _write_instructions(project, addresses, facts)
    return project


def _write_certificates(project: Project, addresses: Addresses) -> None:
    authority = Authority.new()
    authority.write(project.server / "ca.crt")
    # The last is its name among the containers of compose.yaml.
    hosts = tuple(dict.fromkeys((addresses.host, *LOCAL, "superlink")))
    authority.certify(hosts, project.server / "superlink.crt", project.server / "superlink.key")
    make_folders(project.server / "nodes")
    for client in range(project.clients):
        folder = project.site(client).path
        authority.write(folder / "ca.crt")
        authority.certify(LOCAL, folder / "node.crt", folder / "node.tls.key")
        make_node_key(folder / "node")
        public = (folder / "node.pub").read_bytes()
        write_atomically(project.server / "nodes" / f"{client:02d}.pub", public, PUBLIC_MODE)


def _write_app(project: Project, name: str) -> None:
    package = project.app / "federation_app"
    make_folders(package)
    home = str(project.server)
    texts = {
        project.app / "pyproject.toml": templates.pyproject(name, home),
        package / "__init__.py": templates.PACKAGE,
        package / "client.py": templates.CLIENT_APP,
        package / "server.py": templates.SERVER_APP,
    }
    for path, text in texts.items():
        write_atomically(path, text.encode(), PUBLIC_MODE)


def _write_instructions(project: Project, addresses: Addresses, facts: Facts) -> None:
    systemd = project.path / "systemd"
    make_folders(systemd)
    folder = str(project.path)
    texts = {
        project.path / "README.md": templates.readme(
            folder, addresses.host, addresses.port, len(facts.keys), addresses.node_port(0)
        ),
        project.path / "compose.yaml": templates.compose(
            addresses.host, addresses.port, len(facts.keys)
        ),
        project.path / "Dockerfile": templates.DOCKERFILE,
        systemd / "dpfedadamw-superlink.service": templates.superlink_unit(folder, addresses.port),
        systemd / "dpfedadamw-client@.service": templates.client_unit(folder),
        systemd / "dpfedadamw-supernode@.service": templates.supernode_unit(
            folder, addresses.host, addresses.port
        ),
        project.server / "config.toml": templates.flower_config(
            addresses.host, addresses.port, str(project.server / "ca.crt")
        ),
    }
    for path, text in texts.items():
        write_atomically(path, text.encode(), PUBLIC_MODE)
    DISK.sync_folder(project.path)


def superlink_command(project: Project, port: int) -> list[str]:
    """The command that starts the SuperLink."""
    server = project.server
    return templates.superlink(str(server), port)


def supernode_command(project: Project, client: int, addresses: Addresses) -> list[str]:
    """The command that starts one client's SuperNode."""
    folder = project.site(client).path
    where = f"{addresses.host}:{addresses.port}"
    return templates.supernode(str(folder), where, addresses.node_port(client))
