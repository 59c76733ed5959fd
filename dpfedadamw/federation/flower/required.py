"""Flower itself: whether it is here, and what it may not do by itself."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from dpfedadamw.errors import DpfedadamwError

INSTALL = "pip install 'dpfedadamw[flower]'"

# Flower and Ray report their use to their makers, and look for newer versions, unless they are told
# not to: a private run tells nobody that it takes place.
_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Else Ray's own handler of SIGTERM ends the process before the run has put its files in order.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    # Else Ray prints what it notices, such as a machine that is lost, among a run's own output.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
    # Else Ray warns of a change to come that concerns no client.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class FlowerError(DpfedadamwError):
    """Flower is not here, or a part of it has failed."""


def require(simulation: bool = False) -> None:
    """Make sure that Flower can be imported, before its first module is.

    Args:
        simulation: Whether its simulation is needed too.

    Raises:
        FlowerError: If it is not installed; the message says how it is. If the simulation is to use
            a cluster that asks for no token.
    """
    needed = ("flwr", "ray") if simulation else ("flwr",)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise FlowerError(
            f"federation.engine: flower needs {' and '.join(missing)}, which "
            f"{'are' if missing[1:] else 'is'} not installed here; install with: {INSTALL}"
        )
    # Read when Flower is imported.
    os.environ.update(_SETTINGS)
    if not simulation:
        return
    if cluster() is not None:
        # The token is the cluster's own, from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or Ray's file.
        if os.environ.get("RAY_AUTH_MODE") != "token":
            raise FlowerError(
                "RAY_ADDRESS: anyone who reaches a cluster without a token can run code on it. Set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH for ray start and for this command, "
                "or unset RAY_ADDRESS to use this machine alone"
            )
    elif "ray" not in sys.modules:
        # Ray's processes listen on ports of all networks, and run what they are sent by anyone who
        # names their token, which Ray reads as it is imported.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)


def cluster() -> str | None:
    """The Ray cluster that ``RAY_ADDRESS`` names, HOST:PORT; None where this machine is to be used.

    Raises:
        FlowerError: If it names something else.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        return None
    if not re.fullmatch(r"[^\s/@]+:[0-9]{1,5}", address):
        raise FlowerError(
            f"RAY_ADDRESS: {address!r} is no HOST:PORT; give what ray start --head printed, or "
            "unset it to use this machine alone"
        )
    return address


def quiet() -> None:
    """Keep Flower's log, once it is imported, off the terminal.

    What goes wrong is said by this package, once and without private values.
    """
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def guard(client: Any, most: int) -> None:
    """Have Flower's client ask the SuperLink alone, and read no response that is too long.

    Flower's follows a redirect, by which a lying server would have it post into this network. A
    response that is compressed or too long raises a ValueError.

    Args:
        client: What Flower's client of the Fleet API sends by, an `httpx.Client`.
        most: Bytes that one response may have.
    """
    import httpx

    class Bounded(httpx.SyncByteStream):  # type: ignore[misc]  # untyped without Flower
        def __init__(self, stream: httpx.SyncByteStream) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self._stream:
                size += len(part)
                if size > most:
                    raise ValueError("a response is too long")
                yield part

        def close(self) -> None:
            self._stream.close()

    def bound(response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            # A short one may be long once it is unpacked.
            raise ValueError("a response is compressed")
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = Bounded(response.stream)

    client.follow_redirects = False
    client.headers["accept-encoding"] = "identity"
    client.event_hooks = {"response": [bound]}
