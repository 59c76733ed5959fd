"""Published schemas that others own: fetched by hand, known by their digests, not kept here.

`tox run -e schemas` fetches them from where they are published, at the commits below, and runs the
tests that need them; elsewhere PUBLISHED_SCHEMAS names a folder that holds them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

_CYCLONEDX = (
    "https://raw.githubusercontent.com/CycloneDX/specification/"
    "e02a34ae42a48239f54e04f75280b9000b29f1fb/schema/"
)
_REGISTRY = (
    "https://raw.githubusercontent.com/opendp/deployments-registry-data/"
    "3e9c812a924cf01d228f26f6c462c59c391c3f2a/schemas/"
)
# Name, where it is published, SHA-256. CycloneDX: Apache-2.0; the registry: MIT.
SCHEMAS = (
    (
        "bom-1.6.schema.json",
        _CYCLONEDX,
        "18f57f7482593bad9f21b4feed09084640cbeff419d62ad5090c5ceccca5b37d",
    ),
    (
        "bom-1.7.schema.json",
        _CYCLONEDX,
        "73308edec3ab2d38bfffd993e96a042b594314143b6971a6e9ed98bbb6bd76ce",
    ),
    (
        "spdx.schema.json",
        _CYCLONEDX,
        "ea6e844ee6fba1e93473d94834d0ee0996970533497935f932f73d488ffdf4a3",
    ),
    (
        "jsf-0.82.schema.json",
        _CYCLONEDX,
        "8bae002c25e723db7ee1f26afde680ae1a2b1a8f6b4b4b0fd65dc3becb090aae",
    ),
    (
        "cryptography-defs.schema.json",
        _CYCLONEDX,
        "027b059a729a06d591bac79a584ef04f83fc32d91a826fdba6ad3c98a10e5b44",
    ),
    (
        "deployments-schema.yaml",
        _REGISTRY,
        "9d607ad7e587fd440f5164d407e7a77089b46b8caa016f5d8c7d127cfc1d5291",
    ),
)
FOLDER = os.environ.get("PUBLISHED_SCHEMAS", "")
needs_schemas = pytest.mark.skipif(
    not FOLDER, reason="PUBLISHED_SCHEMAS names no folder (tox run -e schemas)"
)


def schema(name: str) -> Any:
    """Return a schema, which must be the one that is meant."""
    data = (Path(FOLDER) / name).read_bytes()
    wanted = next(digest for known, _, digest in SCHEMAS if known == name)
    assert hashlib.sha256(data).hexdigest() == wanted, f"{name} is another one"
    return yaml.safe_load(data) if name.endswith(".yaml") else json.loads(data)


def fetch(folder: Path) -> None:
    """Fetch what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, place, _ in SCHEMAS:
        if not (folder / name).exists():
            with urllib.request.urlopen(place + name) as answer:
                (folder / name).write_bytes(answer.read())


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
