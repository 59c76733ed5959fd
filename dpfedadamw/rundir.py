"""The run directory: its layout, its name, and how it comes to be there whole."""

from __future__ import annotations

import contextlib
import io
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, Disk, make_folders, write_atomically
from dpfedadamw.storage.lock import LockedError, RunLock

if TYPE_CHECKING:
    from numpy.typing import NDArray

LATEST = "latest"
# Stands in spec.yaml where a recorder declares a training loop of somebody else's there.
RECORDED = "recorded"
_STARTING = ".starting"
_ATTEMPTS = 5
_RUN_NAME = re.compile(r".+-\d{8}T\d{6}Z-[0-9a-f]{8}$")


class RunDirectoryError(DpfedadamwError):
    """A run directory is missing or cannot be used."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside one run.

    Attributes:
        path: The run's folder; its name is the run's identifier.
        disk: Where it lies.
    """

    path: Path
    disk: Disk = DISK

    @property
    def identifier(self) -> str:
        """NAME-TIMESTAMP-ID."""
        return self.path.name.removeprefix(".").removesuffix(_STARTING)

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
        """What a run that is cut off goes on from; gone once its claim is in the ledger."""
        return self.path / "checkpoint"

    @property
    def evidence(self) -> Path:
        """Private evidence for the auditor (mode 0700)."""
        return self.path / "evidence"

    @property
    def stations(self) -> Path:
        """Where clients in other processes note what they do; gone once training is over.

        In the evidence, because it is as private.
        """
        return self.evidence / "stations"


@contextlib.contextmanager
def starting(
    name: str,
    parent: Path,
    created: datetime,
    disk: Disk = DISK,
    identifier: str | None = None,
) -> Iterator[tuple[RunDirectory, RunLock]]:
    """Make a new run's folder, which appears under its own name only once it is whole.

    What the caller writes into it is on the disk before the name is. A crash before that leaves a
    hidden folder, in which nothing is charged and nothing drawn; the next start removes it.

    Args:
        name: The spec's name.
        parent: Folder that holds runs; made if missing.
        created: Time of creation, UTC.
        disk: Where it lies.
        identifier: The run's name, where an intent gave it one.

    Yields:
        The folder, for its first files, and its lock. After the block it lies at `appeared`.

    Raises:
        RunDirectoryError: If the folder cannot be made, or a run of this name is there.
    """
    try:
        make_folders(parent, disk)
        _sweep_starts(parent, disk)
        if identifier is not None and disk.exists(parent / identifier):
            raise RunDirectoryError(
                f"{parent / identifier}: this run was already started, and an intent is for one "
                "run; finish it with --resume, or announce another with: dpfedadamw challenge "
                "intent"
            )
        hidden, lock = _hidden(lambda: identifier or new_identifier(name, created), parent, disk)
    except OSError as error:
        raise RunDirectoryError(
            f"--out {parent}: cannot make a run directory there ({error.strerror}); use a folder "
            "that you may write to"
        ) from None
    try:
        disk.make_folder(hidden.evidence)
        disk.make_folder(hidden.checkpoint)
        yield hidden, lock
        for folder in (hidden.evidence, hidden.checkpoint, hidden.path):
            disk.sync_folder(folder)
        disk.rename(hidden.path, appeared(hidden).path)
        lock.moved(appeared(hidden).path)
        disk.sync_folder(parent)
    except BaseException as error:
        lock.release()
        run = appeared(hidden)
        if disk.is_folder(run.path):
            mark_resumable(error, run.path, identifier is not None)
        else:
            disk.remove_tree(hidden.path)
        raise


def mark_resumable(error: BaseException, folder: Path, escrow: bool) -> None:
    """Let an exception that ends a run in progress name the command that continues it.

    It is a note (PEP 678), which is told with the exception itself. An I/O error that names no file
    is said to be in the run's folder.
    """
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(folder)
    # A challenged run goes on with the key that was committed to; another's further key is kept.
    key = " --escrow FILE" if escrow else ""
    error.add_note(f"continue with: dpfedadamw run --resume {folder}{key}")


def appeared(hidden: RunDirectory) -> RunDirectory:
    """Where a folder that `starting` made lies once it is whole."""
    return replace(hidden, path=hidden.path.with_name(hidden.identifier))


def new_identifier(name: str, created: datetime) -> str:
    """NAME-TIMESTAMP-ID: a run's identifier that no other has."""
    return f"{name}-{created:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def _hidden(
    identifier: Callable[[], str], parent: Path, disk: Disk
) -> tuple[RunDirectory, RunLock]:
    """Make a run's folder under a name that no other has, and lock it."""
    for attempt in range(1, _ATTEMPTS + 1):
        hidden = RunDirectory(parent / f".{identifier()}{_STARTING}", disk)
        # Ledger and internal report tell who took part how often: the folder is its owner's alone.
        try:
            disk.make_folder(hidden.path)
            return hidden, RunLock(hidden.path, disk)
        except FileExistsError:
            raise
        except BaseException as error:
            disk.remove_tree(hidden.path)
            # Another start may have taken it for one that was killed, and sweep it up.
            swept = isinstance(error, LockedError | FileNotFoundError)
            if not swept or attempt == _ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _sweep_starts(parent: Path, disk: Disk) -> None:
    """Remove what starts left that were killed before their run appeared."""
    for name in disk.names(parent):
        began, folder = name.removesuffix(_STARTING), parent / name
        if began == name or not _RUN_NAME.match(began) or not disk.is_folder(folder):
            continue
        # Another start may be at work in it.
        with contextlib.suppress(LockedError, OSError), RunLock(folder, disk):
            disk.remove_tree(folder)


def point_latest(run: RunDirectory) -> None:
    """Let ``latest`` in the folder above point to it; skipped where there are no links."""
    link = run.path.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    with contextlib.suppress(OSError):
        # What a process left that was killed between the next two steps.
        for stray in link.parent.glob(f".{LATEST}-*"):
            if stray.is_symlink():
                stray.unlink(missing_ok=True)
        temporary = link.with_name(f".{LATEST}-{secrets.token_hex(4)}")
        try:
            temporary.symlink_to(run.path.name, target_is_directory=True)
            temporary.replace(link)
        finally:
            temporary.unlink(missing_ok=True)


def open_existing(path: Path) -> RunDirectory:
    """A run directory that is there.

    Raises:
        RunDirectoryError: If the path is no run directory.
    """
    if path.is_symlink() and not path.exists():
        gone = path.readlink()
        raise RunDirectoryError(
            f"{path}: points to {gone}, which was renamed, moved or removed; give the run's folder"
        )
    if not path.is_dir():
        raise RunDirectoryError(f"{path}: there is no such directory; give a run's folder")
    resolved = path.resolve()
    if not (resolved / "ledger.jsonl").exists() and not (resolved / "spec.yaml").exists():
        raise RunDirectoryError(
            f"{path}: neither ledger.jsonl nor spec.yaml is in it; give a run's folder, such as "
            "runs/latest"
        )
    return RunDirectory(resolved)


# One of these sets of names is in every folder of a run, of an exported model or of a client.
_SIGNS = (
    ("ledger.jsonl",),
    ("attestation.json",),
    ("model.json", "model.safetensors"),
    ("federation.json", "spec.yaml"),
)


def holds_a_run(folder: Path) -> bool:
    """Whether a folder is a run's, or was made of one: its files may be anybody's."""
    return any(all((folder / name).exists() for name in names) for names in _SIGNS)


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
        renamed = sorted(parent.glob("*/ledger.jsonl"))
        if renamed:
            raise RunDirectoryError(
                f"{parent}: runs in it were renamed, so the newest cannot be found by the time in "
                f"its name; give a run's folder, such as {renamed[0].parent}"
            )
        raise RunDirectoryError(
            f"{parent}: holds no run yet; start one with `dpfedadamw run quickstart` or give a "
            "run's folder"
        )
    return open_existing(max(runs, key=lambda run: (run.name.rsplit("-", 2)[1], _modified(run))))


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], lasting: bool = True) -> None:
    """Write named arrays, whole or not at all, for their owner alone.

    The folder's names are synced when the round is completed (`run.journal`).

    Args:
        path: The file.
        arrays: By name.
        lasting: As for `write_atomically`.
    """
    # Commands that only ask where a run is are spared it.
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue(), PRIVATE_MODE, settle=False, lasting=lasting)
