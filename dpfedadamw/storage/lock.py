"""A run directory has one writer at a time.

While somebody writes to a run, ``.unfinished/`` lies in it, with the lock and every file that is
not whole yet. It is gone once nobody writes, and left behind by a writer that was killed; it is
never judged, signed or digested. The operating system gives a lock free when its process ends,
however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, UNFINISHED, Disk, OpenFile

_LOCK = "lock"
_ATTEMPTS = 20
_SIGNATURE_BYTES = 400
_SIGNING_SECONDS = 0.01


class LockedError(DpfedadamwError):
    """Somebody else is writing to the run directory, or it cannot be locked."""


class HeldError(LockedError):
    """Somebody else is writing to the run directory."""


class RunLock:
    """Holds a run directory for writing; a context manager that lets go of it.

    Args:
        folder: The run directory.
        disk: Where it lies.

    Attributes:
        cut_off: Whether an earlier writer was killed while it wrote.

    Raises:
        LockedError: If another process holds it, or its file system has no locks.
        OSError: If the place for unfinished files cannot be made.
    """

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self._folder = folder
        self._disk = disk
        self._place = folder / UNFINISHED
        self.cut_off = disk.exists(self._place)
        self._file: OpenFile | None = self._acquire()
        self._sweep()

    @property
    def held(self) -> bool:
        """Whether it was not let go of yet."""
        return self._file is not None

    def moved(self, folder: Path) -> None:
        """Take note that the run directory has another name now."""
        self._folder = folder
        self._place = folder / UNFINISHED
        if self._file is not None:
            self._file = replace(self._file, path=self._place / _LOCK)

    def release(self) -> None:
        """Remove the place for unfinished files and let others write.

        What the disk refuses of it stays, as after a crash.
        """
        with contextlib.suppress(OSError):
            self._let_go()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            # A process that was clearing the folder may have removed this lock; another's lock is
            # not ours.
            if self._disk.is_named(file):
                self._sweep()
                # Windows cannot remove a file that is open; there an empty place is left.
                with contextlib.suppress(PermissionError):
                    self._disk.remove(self._place / _LOCK)
                    self._remove_place()
            elif not self._disk.exists(self._place / _LOCK):
                self._remove_place()
        finally:
            self._close(file)

    def _remove_place(self) -> None:
        try:
            self._disk.remove_folder(self._place)
        except FileNotFoundError:
            pass
        except OSError as error:
            # The next holder may have made a lock there already.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def __enter__(self) -> Self:
        """Return the lock, which is held already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go, however the work ended.

        Raises:
            OSError: If the place cannot be removed after work that ended well: what is left there
                looks like work that was cut off.
        """
        if error is None:
            self._let_go()
        else:
            self.release()

    def __del__(self) -> None:
        """Let go when nobody refers to it any more; what is unfinished stays, as after a crash."""
        file = getattr(self, "_file", None)
        if file is not None:
            self._file = None
            self._close(file)

    def _acquire(self) -> OpenFile:
        for _ in range(_ATTEMPTS):
            for path in (self._folder / name for name in self._disk.names(self._folder)):
                # What is written behind it would lie wherever the maker of the run likes.
                if self._disk.is_link(path):
                    raise LockedError(f"{path}: is a link; replace it with the file it points to")
            try:
                with contextlib.suppress(FileExistsError):
                    self._disk.make_folder(self._place)
                file = self._disk.open_or_create(self._place / _LOCK, PRIVATE_MODE)
            except FileNotFoundError:
                if not self._disk.is_folder(self._folder):
                    raise
                # Its last holder has just removed the place.
                continue
            try:
                if self._lock(file):
                    self._sign(file)
                    return file
            except BaseException:
                self._close(file)
                raise
            self._close(file)
        raise LockedError(f"{self._folder}: other processes keep locking it; try again")

    def _close(self, file: OpenFile) -> None:
        """Close a lock, which gives it free even where closing fails: what else failed is told."""
        with contextlib.suppress(OSError):
            self._disk.close(file)

    def _lock(self, file: OpenFile) -> bool:
        """Lock the open file; False if its holder has removed it meanwhile."""
        try:
            self._disk.lock(file)
        except (BlockingIOError, PermissionError):
            raise HeldError(
                f"{self._folder}: another process is writing to this run"
                f"{self._holder()}; wait until it has ended"
            ) from None
        except OSError as error:
            raise LockedError(
                f"{self._folder}: its file system cannot lock files ({error.strerror}), and two "
                "processes that write to one run would spend its budget twice; use a folder on "
                "another file system"
            ) from None
        return self._disk.is_named(file)

    def _sign(self, file: OpenFile) -> None:
        mine = {
            "process": os.getpid(),
            "machine": platform.node(),
            "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        }
        # Padded, it covers whatever an earlier holder wrote.
        self._disk.write(file, json.dumps(mine).encode().ljust(_SIGNATURE_BYTES))

    def _holder(self) -> str:
        for _ in range(_ATTEMPTS):
            try:
                found = json.loads(self._disk.read(self._place / _LOCK)[:_SIGNATURE_BYTES])
                process, machine = int(found["process"]), found["machine"]
                who = f"process {process} on {machine}, since {found['started']}"
            except (OSError, ValueError, KeyError, TypeError):
                return ""
            if machine != platform.node() or _lives(process):
                return f" ({who})" if who.isprintable() else ""
            # It was killed, and the process that now has the lock is about to write its name there.
            time.sleep(_SIGNING_SECONDS)
        return ""

    def _sweep(self) -> None:
        for name in self._disk.names(self._place):
            if name == _LOCK:
                continue
            if self._disk.is_folder(self._place / name):
                self._disk.remove_tree(self._place / name)
            else:
                self._disk.remove(self._place / name)


def is_held(folder: Path) -> bool:
    """Whether some process holds the lock of a run directory at this moment."""
    try:
        file = DISK.open(folder / UNFINISHED / _LOCK)
    except OSError:
        return False
    try:
        DISK.lock(file)
    except OSError:
        return True
    finally:
        DISK.close(file)
    return False


def _lives(process: int) -> bool:
    """Whether a process of this machine runs; where that cannot be asked, it is taken to."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
