"""How a site's gate answers NVFlare's tasks, as launcher and executor are told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `gate nvflare` writes into a site's resources.json.

    Attributes:
        settings: The gate.yaml.
        data: A folder with one folder a shard.
        keys: The folder of the gate's key.
        task: The name of the server's training task; all others are refused.
        reply_after: Seconds from a task's arrival to the reply's departure.
        at_once: Shards that train at the same time. With more than 1, a shard that takes all
            processors can make others late.
        scratch: Memory that a shard's files may take, as ``mount`` has it: ``1g``.
        logs: Folder for what jobs write; "" keeps nothing.
    """

    settings: str
    data: str
    keys: str
    task: str = "train"
    reply_after: float = 60.0
    at_once: int = 1
    scratch: str = "1g"
    logs: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `read_options` reads it."""
        return asdict(self)


def read_options(path: Path) -> Options:
    """Those in a file."""
    return Options(**json.loads(path.read_text(encoding="utf-8")))
