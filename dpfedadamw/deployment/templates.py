"""The texts of a federation's project: its Flower app, its commands, units and instructions."""

from __future__ import annotations

PACKAGE = '"""The Flower app of a federation of dpfedadamw; all of it is in that package."""\n'
CLIENT_APP = PACKAGE + (
    "\nfrom dpfedadamw.federation.flower.relay import client_app\n\napp = client_app()\n"
)
SERVER_APP = PACKAGE + (
    "\nfrom dpfedadamw.filing.federated import server_app\n\napp = server_app()\n"
)

# What of a client's folder its SuperNode has no business with: files that are there from the
# beginning, and what is written later.
_SECRETS = ("share.npz", "key", "salt")
_NOTES = ("evidence", "ledger.jsonl")

DOCKERFILE = """\
FROM python:3.11-slim
# Build it where dpfedadamw's own folder is:
#   docker build -f PROJECT/Dockerfile -t dpfedadamw-flower DPFEDADAMW
COPY . /src
RUN pip install --no-cache-dir -c /src/constraints-flower.txt '/src[flower]'
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
"""


def pyproject(name: str, home: str) -> str:
    """The Flower app's own description; ``home`` is the server's folder, on its machine."""
    safe = "".join(one if one.isalnum() else "-" for one in name).strip("-").lower() or "run"
    return f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation-{safe}"
version = "1.0.0"
description = "A federation of dpfedadamw"
license = "Apache-2.0"
# Every machine has installed dpfedadamw[flower] itself: nothing is installed at run time.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "dpfedadamw"

[tool.flwr.app.components]
serverapp = "federation_app.server:app"
clientapp = "federation_app.client:app"

[tool.flwr.app.config]
# The server's folder, on the machine of the SuperLink.
home = "{home}"
# Seconds: until a client is asked again; for a round; until all clients are there.
again-seconds = 30.0
answer-seconds = 3600.0
meeting-seconds = 600.0
"""


def superlink(server: str, port: int) -> list[str]:
    """The command that starts the SuperLink."""
    return [
        "flower-superlink",
        "--host", "0.0.0.0",
        "--port", str(port),
        "--ssl-ca-certfile", f"{server}/ca.crt",
        "--ssl-certfile", f"{server}/superlink.crt",
        "--ssl-keyfile", f"{server}/superlink.key",
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def supernode(folder: str, superlink_address: str, port: int) -> list[str]:
    """The command that starts a SuperNode."""
    return [
        "flower-supernode",
        "--superlink", superlink_address,
        "--root-certificates", f"{folder}/ca.crt",
        "--auth-supernode-private-key", f"{folder}/node",
        "--node-config", f'site="{folder}"',
        "--host", "127.0.0.1",
        "--port", str(port),
        "--ssl-certfile", f"{folder}/node.crt",
        "--ssl-keyfile", f"{folder}/node.tls.key",
        "--ssl-ca-certfile", f"{folder}/ca.crt",
    ]  # fmt: skip


def flower_config(host: str, port: int, authority: str) -> str:
    """Flower's own settings, by which ``flwr`` finds the SuperLink."""
    return f"""\
[superlink]
default = "federation"

[superlink.federation]
address = "{host}:{port}"
root-certificates = "{authority}"
"""


def superlink_unit(folder: str, port: int) -> str:
    """A systemd unit for the SuperLink."""
    command = " ".join(superlink(f"{folder}/server", port))
    return f"""\
[Unit]
Description=SuperLink of a federation of dpfedadamw
After=network-online.target
Wants=network-online.target

[Service]
User=dpfedadamw
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME={folder}/server
Environment=PATH=/opt/dpfedadamw/bin:/usr/bin
ExecStart=/opt/dpfedadamw/bin/{command}
Restart=on-failure
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}/server
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def client_unit(folder: str) -> str:
    """A systemd unit for a client's own process, which alone reads records and keys."""
    return f"""\
[Unit]
Description=Client %i of a federation of dpfedadamw: its records, ledger, evidence and key

[Service]
User=dpfedadamw
Environment=PATH=/opt/dpfedadamw/bin:/usr/bin
ExecStart=/opt/dpfedadamw/bin/dpfedadamw flower client {folder}/clients/%i
Restart=always
RestartSec=2
# No network at all: it speaks to this machine's SuperNode by the socket in its folder.
RestrictAddressFamilies=AF_UNIX
PrivateNetwork=yes
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}/clients/%i
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def supernode_unit(folder: str, host: str, port: int) -> str:
    """A systemd unit for a client's SuperNode."""
    words = supernode(f"{folder}/clients/%i", f"{host}:{port}", 9100)
    # Systemd takes quotes away unless they are quoted.
    command = " ".join(f"'{word}'" if '"' in word else word for word in words)
    hidden = " ".join(f"-{folder}/clients/%i/{name}" for name in (*_SECRETS, *_NOTES))
    return f"""\
[Unit]
Description=SuperNode of client %i of a federation of dpfedadamw
After=network-online.target dpfedadamw-client@%i.service
Wants=network-online.target dpfedadamw-client@%i.service
# Killed, it is taken back by the SuperLink only after a minute; until then each start fails.
StartLimitIntervalSec=0

[Service]
User=dpfedadamw
Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
Environment=FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
Environment=FLWR_HOME={folder}/clients/%i/flower
Environment=PATH=/opt/dpfedadamw/bin:/usr/bin
ExecStart=/opt/dpfedadamw/bin/{command}
Restart=always
RestartSec=5
NoNewPrivileges=yes
# It runs code that the server sends: that sees the socket, and none of what lies behind it.
InaccessiblePaths={hidden}
SystemCallFilter=~@debug
ProtectSystem=strict
ReadWritePaths={folder}/clients/%i
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""


def compose(host: str, port: int, clients: int) -> str:
    """A compose file: the SuperLink, and for each client its SuperNode and its own process."""
    services = [
        f"""\
  superlink:
    image: dpfedadamw-flower
    command: {_list(superlink("/server", port))}
    environment: {{FLWR_HOME: /server}}
    volumes: ["./server:/server"]
    ports: ["{port}:{port}"]
"""
    ]
    covered = [f"/dev/null:/client/{name}:ro" for name in _SECRETS]
    for client in range(clients):
        name = f"{client:02d}"
        node = supernode("/client", f"superlink:{port}" if _local(host) else f"{host}:{port}", 9100)
        services.append(
            f"""\
  client-{name}:
    image: dpfedadamw-flower
    command: ["dpfedadamw", "flower", "client", "/client"]
    network_mode: none
    restart: always
    volumes: ["./clients/{name}:/client"]
  supernode-{name}:
    image: dpfedadamw-flower
    command: {_list(node)}
    environment: {{FLWR_HOME: /client/flower}}
    restart: always
    # It runs code that the server sends: that sees the socket, and none of what lies behind it.
    volumes: {_list(["./clients/" + name + ":/client", *covered])}
    tmpfs: ["/client/evidence"]
"""
        )
    return (
        "# All on one machine, for a first try. On machines of their own, each takes its two\n"
        "# services, and supernode's --superlink names the SuperLink's machine. A run begins with\n"
        "#   flwr run app federation --run-config 'home=\"/server\"'\n"
        "services:\n" + "".join(services)
    )


def readme(folder: str, host: str, port: int, clients: int, node_port: int) -> str:
    """What is to be done, in order, as commands."""
    last = f"{clients - 1:02d}"
    link = " \\\n    ".join(_pairs(superlink("server", port)))
    node = " \\\n    ".join(_pairs(supernode("clients/00", f"{host}:{port}", node_port)))
    return f"""\
# A federation of {clients} clients

Made by `dpfedadamw flower new`. What each command does is explained in dpfedadamw's docs/deploy.md.

    app/            the Flower app: code alone, sent to every machine
    server/         for the machine of the SuperLink: spec, certificate, test records
    clients/00 …    for client 0 …: its records, keys and, later, its ledger and evidence
    systemd/        units for these machines        compose.yaml        the same as containers

Every machine needs `pip install 'dpfedadamw[flower]'`. Give each client its own folder over a way
that only its owner can read, then delete it here: whoever has `clients/NN/key` can sign as it.

## 1. On the server's machine

    cd {folder}
    export FLWR_HOME=$PWD/server FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
    {link}

In another terminal, with the same two lines before it, once:

    for key in server/nodes/*.pub; do flwr supernode register $key federation; done

## 2. On each client's machine, here that of client 0

    dpfedadamw flower client clients/00
    FLWR_HOME=$PWD/clients/00/flower \\
    {node}

## 3. The run, from the server's machine

    flwr run app federation
    cat server/status.json

A run that was cut off goes on when it is asked for again. Its state is in `server/runs/`.

## 4. Afterwards

Each client decides what it hands in: its folder without `key`; and without `share.npz` where its
records are not to be seen, which some checks then say they lack. Whoever judges:

    dpfedadamw flower collect server clients/00 … clients/{last} --out judged
"""


def _pairs(command: list[str]) -> list[str]:
    """A command's words, an option and its value together."""
    lines: list[str] = []
    for word in command:
        if lines and not word.startswith("--") and lines[-1].startswith("--"):
            quoted = f"'{word}'" if '"' in word else word
            lines[-1] += f" {quoted}"
        else:
            lines.append(word)
    return lines


def _list(command: list[str]) -> str:
    import json

    return json.dumps(command)


def _local(host: str) -> bool:
    return host in ("127.0.0.1", "localhost")
