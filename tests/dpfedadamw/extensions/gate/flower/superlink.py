"""A SuperLink and gated SuperNodes as processes of this machine."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

from dpfedadamw.extensions.deployment.certificates import Authority, make_node_key
from tests.dpfedadamw.extensions.gate.processes import Processes, free_port, seconds_of

APP = Path(__file__).parent / "app"
TRAINER = "dpfedadamw.extensions.gate.flower.trainer"


def seconds_of_a_message(count):
    """What a message to so many shards takes: each starts a process for it."""
    return 5.0 + 4.0 * seconds_of([sys.executable, "-c", f"import {TRAINER}"], count)


class Machines(Processes):
    """One SuperLink and all that joins it."""

    def __init__(self, place, python=sys.executable):
        super().__init__(
            place, python, FLWR_HOME=str(place / "flwr"), FLWR_TELEMETRY_ENABLED="0",
            FLWR_DISABLE_UPDATE_CHECK="1",
        )  # fmt: skip
        self.address = f"127.0.0.1:{free_port()}"
        self.authority = place / "ca.crt"
        (place / "flwr").mkdir(parents=True)

    def superlink(self, secure):
        """Start it; a secure one has TLS and admits SuperNodes by their keys alone."""
        (self.place / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n'
            + (f'root-certificates = "{self.authority}"\n' if secure else "insecure = true\n")
        )
        host, port = self.address.split(":")
        options = ["--insecure"]
        if secure:
            made, files = Authority.new(), [self.place / f"server.{end}" for end in ("crt", "key")]
            made.write(self.authority)
            made.certify([host], *files)
            options = [
                "--ssl-ca-certfile", self.authority, "--ssl-certfile", files[0],
                "--ssl-keyfile", files[1], "--enable-supernode-auth",
            ]  # fmt: skip
        self.start(
            "superlink", "flower-superlink", *map(str, options), "--host", host, "--port", port
        )
        self.wait(self.listens, "superlink")

    def register(self, name):
        """A new key, by which the SuperLink knows a SuperNode."""
        key = self.place / name
        make_node_key(key)
        self.flwr("supernode", "register", str(key.with_suffix(".pub")), "here")
        return key

    def listens(self):
        host, port = self.address.split(":")
        with socket.socket() as one:
            return one.connect_ex((host, int(port))) == 0

    def supernode(self, name, settings, data, *options, key=None):
        """Start a site's gate; it joins later."""
        known = ("--root-certificates", self.authority, "--key", key) if key else ("--insecure",)
        self.start(
            name, self.python, "-m", "dpfedadamw", "gate", "supernode", str(settings),
            "--superlink", self.address, *map(str, known), "--data", str(data),
            *map(str, options),
        )  # fmt: skip

    def joined(self, name, times=1):
        """Wait until a gate is in; each start says so once."""
        self.wait(lambda: self.log(name).count("connected to the SuperLink") == times, name)

    def run(self, name, steps, sites):
        out = self.place / f"{name}.json"
        told = f'plan="{",".join(steps)}" out="{out}" sites={sites} superlink="{self.address}"'
        self.flwr("run", str(APP), "here", "--run-config", told)

    def flwr(self, *words):
        return self.call("-m", "flwr.cli.app", *words)

    def found(self, name, seconds=900.0):
        done = self.place / f"{name}.done"
        self.wait(done.exists, "superlink", seconds)
        return json.loads((self.place / f"{name}.json").read_text())


@contextmanager
def machines(place, python=sys.executable, secure=False):
    one = Machines(place, python)
    try:
        one.superlink(secure)
        yield one
    finally:
        one.end()
