"""Schemas that others publish, as they published them: what they are, whose, and their digests."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# https://github.com/CycloneDX/specification, schema/, at e02a34a: Apache-2.0 (LICENSE.cyclonedx).
# https://github.com/opendp/deployments-registry-data, schemas/, at 3e9c812: MIT (LICENSE.opendp).
SHA256 = {
    "bom-1.6.schema.json": "18f57f7482593bad9f21b4feed09084640cbeff419d62ad5090c5ceccca5b37d",
    "bom-1.7.schema.json": "73308edec3ab2d38bfffd993e96a042b594314143b6971a6e9ed98bbb6bd76ce",
    "spdx.schema.json": "ea6e844ee6fba1e93473d94834d0ee0996970533497935f932f73d488ffdf4a3",
    "jsf-0.82.schema.json": "8bae002c25e723db7ee1f26afde680ae1a2b1a8f6b4b4b0fd65dc3becb090aae",
    "cryptography-defs.schema.json": (
        "027b059a729a06d591bac79a584ef04f83fc32d91a826fdba6ad3c98a10e5b44"
    ),
    "deployments-schema.yaml": "9d607ad7e587fd440f5164d407e7a77089b46b8caa016f5d8c7d127cfc1d5291",
}


@cache
def schema(name: str) -> Any:
    """Return a schema, which must be the one that was published."""
    data = (Path(__file__).parent / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256[name], f"{name} was changed"
    return yaml.safe_load(data) if name.endswith(".yaml") else json.loads(data)
