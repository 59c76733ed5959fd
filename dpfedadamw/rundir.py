"""The run directory: its layout, its names, and writes that are whole or not there at all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DpfedadamwError

LATEST = "latest"
_RUN_NAME = re.compile(r".+-\d{8}T\d{6}Z-[0-9a-f]{8}$")


class RunDirectoryError(DpfedadamwError):
    """A run directory is missing or cannot be used."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside one run.

    Attributes:
        path: The run's folder; its name is the run's identifier.
    """

    path: Path

    @property
    def identifier(self) -> str:
        """NAME-TIMESTAMP-ID."""
        return self.path.name

    @property
    def spec(self) -> Path:
        """The resolved spec."""
        return self.path / "spec.yaml"

    @property
    def ledger(self) -> Path:
        """The privacy ledger (restricted)."""
        return self.path / "ledger.jsonl"

    @property
    def metrics(self) -> Path:
        """Public metrics, one line a round."""
        return self.path / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        """The trained parameters."""
        return self.path / "model.safetensors"

    @property
    def model_config(self) -> Path:
        """What is needed to rebuild the model around the weights."""
        return self.path / "model.json"

    @property
    def checkpoint(self) -> Path:
        """State after the last completed round."""
        return self.path / "checkpoint"

    @property
    def evidence(self) -> Path:
        """Private evidence for the auditor (mode 0700)."""
        return self.path / "evidence"


def create(name: str, parent: Path, created: datetime) -> RunDirectory:
    """Make a new run's folder and its private evidence folder.

    Args:
        name: The spec's name.
        parent: Folder that holds runs; made if missing.
        created: Time of creation, UTC.

    Raises:
        RunDirectoryError: If the folder cannot be made.
    """
    identifier = f"{name}-{created:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    path = parent / identifier
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # Ledger and internal report tell who took part how often: the folder is its owner's alone.
        path.mkdir(mode=0o700)
        (path / "evidence").mkdir(mode=0o700)
    except OSError as error:
        raise RunDirectoryError(
            f"--out {parent}: cannot make a run directory there ({error.strerror}); use a folder "
            "that you may write to"
        ) from None
    return RunDirectory(path)


def point_latest(run: RunDirectory) -> None:
    """Let ``latest`` beside the run point to it; skipped where the file system has no links."""
    link = run.path.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = link.with_name(f".{LATEST}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        temporary.symlink_to(run.path.name, target_is_directory=True)
        temporary.replace(link)


def open_existing(path: Path) -> RunDirectory:
    """A run directory that is there.

    Raises:
        RunDirectoryError: If the path is no run directory.
    """
    if not path.is_dir():
        raise RunDirectoryError(f"{path}: there is no such directory; give a run's folder")
    resolved = path.resolve()
    if not (resolved / "ledger.jsonl").exists() and not (resolved / "spec.yaml").exists():
        raise RunDirectoryError(
            f"{path}: neither ledger.jsonl nor spec.yaml is in it; give a run's folder, such as "
            "runs/latest"
        )
    return RunDirectory(resolved)


def newest(parent: Path) -> RunDirectory:
    """The newest run under a folder, by the time in its name.

    Raises:
        RunDirectoryError: If there is none.
    """
    runs = [
        entry
        for entry in (parent.iterdir() if parent.is_dir() else ())
        if entry.is_dir() and not entry.is_symlink() and _RUN_NAME.match(entry.name)
    ]
    if not runs:
        raise RunDirectoryError(
            f"{parent}: holds no run yet; start one with `dpfedadamw run quickstart` or give a "
            "run's folder"
        )
    return open_existing(max(runs, key=lambda run: (run.name.rsplit("-", 2)[1], _modified(run))))


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a half."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, Any], mode: int = 0o644) -> None:
    """Write indented JSON atomically; refuses numbers that are not finite."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode(), mode)


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one compact JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays, whole or not at all, for their owner alone."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue(), 0o600)
