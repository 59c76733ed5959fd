"""One writer at a time: a lock on a run directory, and its place for unfinished files.

While somebody writes to a run, ``.unfinished/`` lies in it, with the lock and every file that is
not whole yet. It is gone once nobody writes, and left behind by a writer that was killed; it is
never judged, signed or digested. The operating system gives a lock free when its process ends,
however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.storage.disk import FOLDER_MODE, PRIVATE_MODE, UNFINISHED

_LOCK = "lock"
_ATTEMPTS = 20


class LockedError(DpfedadamwError):
    """Somebody else is writing to the run directory, or it cannot be locked."""


class RunLock:
    """Holds a run directory for writing; a context manager that lets go of it.

    Args:
        folder: The run directory.

    Attributes:
        cut_off: Whether an earlier writer was killed while it wrote.

    Raises:
        LockedError: If another process holds it, or its file system has no locks.
        OSError: If the place for unfinished files cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = folder / UNFINISHED
        self.cut_off = os.path.lexists(self._place)
        self._descriptor: int | None = self._acquire()
        self._sweep()

    @property
    def held(self) -> bool:
        """Whether it was not let go of yet."""
        return self._descriptor is not None

    def moved(self, folder: Path) -> None:
        """Take note that the run directory has another name now."""
        self._folder = folder
        self._place = folder / UNFINISHED

    def release(self) -> None:
        """Remove the place for unfinished files and let others write.

        What the disk refuses of it stays, as after a crash.
        """
        with contextlib.suppress(OSError):
            self._let_go()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            self._sweep()
            # Windows cannot remove a file that is open; there an empty place is left.
            with contextlib.suppress(PermissionError):
                (self._place / _LOCK).unlink(missing_ok=True)
                self._place.rmdir()
        finally:
            os.close(descriptor)

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
        if getattr(self, "_descriptor", None) is not None:
            _close(self._descriptor)  # type: ignore[arg-type]  # None was looked for
            self._descriptor = None

    def _acquire(self) -> int:
        for _ in range(_ATTEMPTS):
            if self._place.is_symlink():
                raise LockedError(f"{self._place}: is a link; remove it")
            self._place.mkdir(mode=FOLDER_MODE, exist_ok=True)
            try:
                descriptor = os.open(
                    self._place / _LOCK,
                    os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0),
                    PRIVATE_MODE,
                )
            except FileNotFoundError:
                # Its last holder has just removed the place.
                continue
            try:
                if self._lock(descriptor):
                    self._sign(descriptor)
                    return descriptor
            except BaseException:
                _close(descriptor)
                raise
            _close(descriptor)
        raise LockedError(f"{self._folder}: other processes keep locking it; try again")

    def _lock(self, descriptor: int) -> bool:
        """Lock the open file; False if its holder has removed it meanwhile."""
        try:
            _exclusive(descriptor)
        except (BlockingIOError, PermissionError):
            raise LockedError(
                f"{self._folder}: another process is writing to this run"
                f"{self._holder(descriptor)}; wait until it has ended"
            ) from None
        except OSError as error:
            raise LockedError(
                f"{self._folder}: its file system cannot lock files ({error.strerror}), and two "
                "processes that write to one run would spend its budget twice; use a folder on "
                "another file system"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self._place / _LOCK))
        return False

    @staticmethod
    def _sign(descriptor: int) -> None:
        mine = {
            "process": os.getpid(),
            "machine": platform.node(),
            "started": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        }
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(mine).encode())

    @staticmethod
    def _holder(descriptor: int) -> str:
        try:
            found = json.loads(os.read(descriptor, 1000))
            who = f"process {int(found['process'])} on {found['machine']}, since {found['started']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return f" ({who})" if who.isprintable() else ""

    def _sweep(self) -> None:
        for entry in os.scandir(self._place):
            if entry.name == _LOCK:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _close(descriptor: int) -> None:
    """Close a lock, which gives it free even where closing fails: what else failed is told."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether some process holds the lock of a run directory at this moment."""
    try:
        descriptor = os.open(folder / UNFINISHED / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        _exclusive(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _exclusive(descriptor: int) -> None:
    """Lock an open file for this process alone, without waiting.

    Raises:
        OSError: If another holds it (BlockingIOError, on Windows PermissionError), or there are no
            locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        # Beyond what is written there, because a locked part cannot be read by others.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]  # on Windows
        os.lseek(descriptor, 0, os.SEEK_SET)
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
