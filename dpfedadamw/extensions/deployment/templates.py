"""The texts of a federation's project: its units, containers and instructions.

SuperLink, client and SuperNode are three users. A SuperNode's unit and container see its own folder
and the client's door, and nothing else of the project.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

_PROGRAM = "/opt/dpfedadamw/bin/dpfedadamw"
# Users and the group of the door inside containers.
_SUPERLINK, _CLIENT, _SUPERNODE, _DOOR = 10001, 10002, 10003, 10004

DOCKERFILE = f"""\
FROM python:3.12-slim@sha256:f77ac9e44ae96ef2c90b8053ea08c31f8be030f824196b0ae4db6d462c84e51f
# Build it where dpfedadamw's own folder is:
#   docker build -f PROJECT/Dockerfile -t dpfedadamw-flower DPFEDADAMW
COPY . /src
# Each package has one of the SHA-256 of requirements/*.txt, or the build ends.
RUN PIP_NO_CACHE_DIR=1 python /src/requirements/install.py flower && rm -r /src
# compose.yaml gives each service a user of its own.
USER {_CLIENT}:{_DOOR}
"""

SYSUSERS = """\
# systemd-sysusers - < FILE makes these.
u dpfedadamw-superlink - "SuperLink of a federation of dpfedadamw"
u dpfedadamw-client - "Client of a federation of dpfedadamw"
u dpfedadamw-supernode - "SuperNode of a federation of dpfedadamw"
# Those who may speak to a client's process: its SuperNode.
g dpfedadamw-door -
"""

# What all three units share: they can change only their own folder, and see no other process.
_CONFINED = """\
Environment=HOME=/tmp
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
# Their project may lie in a home folder: they see that part of it, and nobody else's.
ProtectHome=tmpfs
# By that line alone systemd 252 makes empty folders that everyone may fill, up to half the memory.
TemporaryFileSystem=/home:ro /root:ro /run/user:ro
# Both are shared by all services: ProtectProc leaves /run writable, PrivateDevices /dev/shm.
ReadOnlyPaths=/run
TemporaryFileSystem=/dev/shm:mode=1777
ProtectProc=invisible
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateIPC=yes
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@debug @privileged
SystemCallErrorNumber=EPERM
"""


def prepare(folder: str) -> str:
    """A script that gives each folder that is here to the user of its process."""
    return f"""\
#!/bin/sh
# Run it as root on each machine, once its folder is there and while nothing of it runs.
# For the units:  sh prepare
# For the containers of compose.yaml:  sh prepare {_SUPERLINK} {_CLIENT} {_SUPERNODE} {_DOOR}
set -eu
superlink=${{1:-dpfedadamw-superlink}} client=${{2:-dpfedadamw-client}}
supernode=${{3:-dpfedadamw-supernode}} door=${{4:-dpfedadamw-door}}
cd {_quoted(folder)}
chmod -R go= README.md Dockerfile compose.yaml prepare systemd 2>/dev/null || true
for one in . clients; do
    [ ! -d "$one" ] || chmod 711 "$one"
done
if [ -d server ]; then
    chown -R "$superlink:$superlink" server
    chmod 700 server
fi
for site in clients/*/; do
    [ -d "$site" ] || continue
    for one in "${{site%/}}" "$site/door" "$site/supernode"; do
        # Its owner could have root change a folder that is elsewhere.
        [ ! -L "$one" ] || {{ echo "$one: is a link; put the folder back" >&2; exit 2; }}
    done
    chown -R "$client:$client" "$site"
    find "$site" -maxdepth 1 -type f -exec chmod 600 {{}} +
    # The SuperNode's user passes through to two folders, and can read nothing else.
    chgrp "$door" "$site" "$site/door"
    chmod 710 "$site"
    chmod 2750 "$site/door"
    chown -R "$supernode:$supernode" "$site/supernode"
    chmod 700 "$site/supernode"
done
"""


def host_and_port(host: str, port: int) -> str:
    """Both in one word; an address of IPv6 in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def superlink_unit(folder: str, host: str, port: int) -> str:
    """A systemd unit for the SuperLink."""
    return f"""\
[Unit]
Description=SuperLink of a federation of dpfedadamw: leads the run
After=network-online.target
Wants=network-online.target

[Service]
User=dpfedadamw-superlink
ExecStart={_PROGRAM} flower superlink "{_argument(folder)}/server" {_listening(host, port)}
# Killed, it goes on. What it refuses (2) and its own faults (70) need its operator: each attempt
# costs privacy.
Restart=on-failure
RestartPreventExitStatus=2 70
RestartSec=2
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
TemporaryFileSystem="{_mount(folder)}:ro"
BindPaths="{_mount(folder)}/server"
{_CONFINED}
[Install]
WantedBy=multi-user.target
"""


def client_unit(folder: str) -> str:
    """A systemd unit for a client's own process, which alone reads records and keys."""
    return f"""\
[Unit]
Description=Client %i of a federation of dpfedadamw: its records, ledger, evidence and key

[Service]
User=dpfedadamw-client
ExecStart={_PROGRAM} flower client "{_argument(folder)}/clients/%i"
Restart=on-failure
RestartPreventExitStatus=2 70
RestartSec=2
# No network at all: it speaks to this machine's SuperNode by the socket in its folder.
RestrictAddressFamilies=AF_UNIX
PrivateNetwork=yes
TemporaryFileSystem="{_mount(folder)}:ro"
BindPaths="{_mount(folder)}/clients/%i"
{_CONFINED}
[Install]
WantedBy=multi-user.target
"""


def supernode_unit(folder: str) -> str:
    """A systemd unit for a client's SuperNode."""
    site = f"{_mount(folder)}/clients/%i"
    return f"""\
[Unit]
Description=SuperNode of client %i of a federation of dpfedadamw
After=network-online.target dpfedadamw-client@%i.service
Wants=network-online.target dpfedadamw-client@%i.service

[Service]
User=dpfedadamw-supernode
SupplementaryGroups=dpfedadamw-door
ExecStart={_PROGRAM} flower supernode "{_argument(folder)}/clients/%i/supernode"
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=2
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
# Of the client's folder it sees its own part and the door, and can change neither.
TemporaryFileSystem="{_mount(folder)}:ro"
BindReadOnlyPaths="{site}/supernode" "{site}/door"
{_CONFINED}
[Install]
WantedBy=multi-user.target
"""


def compose(host: str, port: int, clients: int) -> str:
    """A compose file: the SuperLink, and for each client its SuperNode and its own process."""
    confined = """\
    read_only: true
    tmpfs: ["/tmp"]
    environment: {HOME: /tmp}
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
"""
    restart = "    restart: on-failure\n"
    # Containers do not tell a kill from a refusal, so that the SuperLink is started again by hand:
    # each attempt costs privacy.
    services = [
        f"""\
  superlink:
    image: dpfedadamw-flower
    user: "{_SUPERLINK}:{_SUPERLINK}"
    command: {_list("superlink", "/server", "--port", str(port))}
    volumes: ["./server:/server"]
    ports: ["{port}:{port}"]
{confined}"""
    ]
    for client in range(clients):
        name = f"{client:02d}"
        where = () if not _local(host) else ("--superlink", f"superlink:{port}")
        site = f"./clients/{name}"
        services.append(
            f"""\
  client-{name}:
    image: dpfedadamw-flower
    user: "{_CLIENT}:{_CLIENT}"
    command: {_list("client", "/client")}
    network_mode: none
    volumes: ["{site}:/client"]
{confined}{restart}\
  supernode-{name}:
    image: dpfedadamw-flower
    user: "{_SUPERNODE}:{_DOOR}"
    command: {_list("supernode", "/client/supernode", *where)}
    volumes: ["{site}/supernode:/client/supernode:ro", "{site}/door:/client/door:ro"]
{confined}{restart}"""
        )
    return (
        "# All on one machine, for a first try; on several, each machine takes its services.\n"
        "# Before the first start, as root, in this folder:\n"
        f"#   sh prepare {_SUPERLINK} {_CLIENT} {_SUPERNODE} {_DOOR}\n"
        "services:\n" + "".join(services)
    )


def readme(folder: str, host: str, port: int, clients: int, agreed: Sequence[str]) -> str:
    """What is to be done, in order, as commands.

    Args:
        folder: The project's.
        host: Where the SuperLink is reached.
        port: Its port.
        clients: How many there are.
        agreed: What each client agrees to, in sentences (`promise.sentences`).
    """
    promise = "".join(f"* {one}\n" for one in agreed)
    return f"""\
# A federation of {clients} clients

Made by `dpfedadamw flower new`. What each command does is explained in dpfedadamw's docs/deploy.md.

    server/         for the machine of the SuperLink: spec, certificate, test records
    clients/00 …    for client 0 …: its records, keys and, later, its ledger and evidence;
                    in it supernode/, for its SuperNode, and door/, where the client listens
    systemd/        units for these machines        compose.yaml        the same as containers
    prepare         gives each folder to the user of its process

Every machine needs `pip install 'dpfedadamw[flower]'`. Send each client its own folder in a way
that only its owner can read, then delete it here: anyone who has `clients/NN/key` can sign as it.

Paths below begin in this folder: `cd {folder}` first. Each of the first three commands keeps its
terminal until the run is over.

A client that takes part agrees to this, and pins it in its ledger when it first starts:

{promise}
## 1. On the server's machine

    dpfedadamw flower superlink server {_listening(host, port)}

It waits until every client is there, leads the run, and ends with it. Open the port {port} (TCP) to
the clients' machines. It serves Flower's Fleet API to the SuperNodes whose keys lie in
`server/nodes/`, and nothing to anyone else: no one can send it an app or register with it.

## 2. On each client's machine, here that of client 0

    dpfedadamw flower client clients/00
    dpfedadamw flower supernode clients/00/supernode

The SuperNode connects to {host_and_port(host, port)} (`supernode.json`), and runs no code that the
server sends. The client's machine needs no open port. Both run until they are told to stop
(Ctrl-C): stop them once the server's command has ended.

## 3. The run

    cat server/status.json

The command of step 1 continues a run that was interrupted. The run is in `server/runs/`.

## 4. Afterwards

Each client decides what it submits: its folder without `key`; and without `share.npz` if nobody
may see its records, in which case some checks say that they lack it. The auditor then runs:

    dpfedadamw flower collect server clients/* --out judged
    dpfedadamw verify judged/latest

`collect` audits, reports and signs. If a client's folder comes later, collect once more, and name
the earlier collection: `--out judged-again --replaces judged/latest`.

## As services

With systemd, as root on each machine (dpfedadamw in `/opt/dpfedadamw`; the units name this folder,
{folder}; if it lies elsewhere, change them):

    systemd-sysusers - < systemd/dpfedadamw.sysusers
    sh prepare
    cp systemd/*.service /etc/systemd/system/ && systemctl daemon-reload
    systemctl enable --now dpfedadamw-superlink                              # the server
    systemctl enable --now dpfedadamw-client@00 dpfedadamw-supernode@00      # client 0
"""


def _list(*words: str) -> str:
    return json.dumps(["dpfedadamw", "flower", *words])


def _local(host: str) -> bool:
    return host in ("127.0.0.1", "::1", "localhost")


def _listening(host: str, port: int) -> str:
    """Options of the SuperLink's command: it listens on all addresses of the host's family."""
    return f"--host :: --port {port}" if ":" in host else f"--port {port}"


def _argument(path: str) -> str:
    """A path between the quotes of a unit's command."""
    return _mount(path).replace("$", "$$")


def _mount(path: str) -> str:
    """A path between the quotes of a unit's mounts."""
    return path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _quoted(path: str) -> str:
    """A path as one word of a shell."""
    return "'" + path.replace("'", "'\\''") + "'"
