"""Writes the gate into a site's startup kit: its launcher in place of NVFlare's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate.nvflare.options import Options
from dpfedadamw.storage.disk import PUBLIC_MODE, write_atomically

LAUNCHER = "dpfedadamw.extensions.gate.nvflare.launcher.GateLauncher"
_ID = "gate_launcher"
_RESOURCES = "resources.json"
# NVFlare reads more resources of a site from files of these names, in both folders.
_MORE = "*__*resources.json"
_MOST = 1 << 20


class KitError(DpfedadamwError):
    """A folder is no startup kit of a client, or one that the gate cannot be put in."""


def install(kit: Path, options: Options, private: Sequence[Path]) -> Path:
    """Write local/resources.json with the gate's launcher, and return its path.

    Args:
        kit: The startup kit of the site, with the folders startup and local.
        options: The gate's.
        private: Files and folders that must not lie in the kit.

    Raises:
        KitError: If it is no kit, its files start jobs elsewhere, or it holds what is private.
    """
    if not (kit / "startup" / "fed_client.json").is_file():
        raise KitError(f"{kit}: has no startup/fed_client.json; name a client's startup kit")
    for path in private:
        if path.resolve().is_relative_to(kit.resolve()):
            raise KitError(f"{path}: lies in {kit}, which the server writes to; move it elsewhere")
    for path in sorted(one for part in ("startup", "local") for one in (kit / part).glob(_MORE)):
        if any(_launches(one) for one in _components(path, _read(path))):
            raise KitError(f"{path}: starts jobs in another way; take its launcher out of it")
    target = kit / "local" / _RESOURCES
    source = target if target.is_file() else target.with_name(f"{_RESOURCES}.default")
    found = _read(source)
    kept = [one for one in _components(source, found) if not _launches(one)]
    gate = {"id": _ID, "path": LAUNCHER, "args": options.to_json()}
    text = json.dumps({**found, "components": [*kept, gate]}, indent=2) + "\n"
    write_atomically(target, text.encode(), PUBLIC_MODE)
    return target


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.read(_MOST))
    except OSError as error:
        raise KitError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise KitError(f"{path}: is no JSON; put back what was provisioned") from None
    if not isinstance(found, dict):
        raise KitError(f"{path}: is no mapping; put back what was provisioned")
    return found


def _components(path: Path, found: dict[str, Any]) -> list[dict[str, Any]]:
    parts = found.get("components", [])
    if not isinstance(parts, list) or not all(isinstance(one, dict) for one in parts):
        raise KitError(f"{path}: components: is no list of mappings; put back what was provisioned")
    return parts


def _launches(part: dict[str, Any]) -> bool:
    return any("launcher" in str(part.get(key, "")).lower() for key in ("id", "path"))
