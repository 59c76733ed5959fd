"""Flower's SuperNode, which is heard of every ten seconds in place of thirty.

The SuperLink takes a killed one back after two of these times: twenty kills would take longer than
everything else together. Run as ``python -m tests.dpfedadamw.deployment.hooked_supernode ...``.
"""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode

if __name__ == "__main__":
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
    flower_supernode()
