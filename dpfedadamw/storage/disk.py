"""What was synced survives a crash, and a file is replaced whole or not at all.

What a crash leaves behind is decided by these steps and their order: content is on the disk after
`Disk.sync`, a name after `Disk.sync_folder`. Everything that a run must not lose goes through here,
so that tests can put a disk in its place that forgets what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.untrusted import files
from audit.untrusted.files import FileError, Refusal

# Of a file of which nothing more is known; the largest are states of large models.
MOST_BYTES = 1 << 32
UNFINISHED = ".unfinished"
PUBLIC_MODE, PRIVATE_MODE, FOLDER_MODE = 0o644, 0o600, 0o700

# Windows knows no folders as files and translates line ends unless told.
_WHOLE_BYTES = getattr(os, "O_BINARY", 0)
_FOLDER = getattr(os, "O_DIRECTORY", None)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# Folders of a run or of a client. Their author may have put a link there; the folders above are the
# user's choice.
_PARTS = ("checkpoint", "evidence")


@dataclass(frozen=True)
class OpenFile:
    """A file that is being written.

    Attributes:
        path: Where it lies, for messages.
        descriptor: The operating system's number for it.
    """

    path: Path
    descriptor: int


class Disk:
    """The operating system's own files.

    Every method raises OSError with the file's name in it.
    """

    def create(self, path: Path, mode: int) -> OpenFile:
        """Open a file that does not exist yet, with these permission bits whatever the umask."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _WHOLE_BYTES, mode)
        try:
            if hasattr(os, "fchmod"):
                with _named(path):
                    os.fchmod(descriptor, mode)
        except BaseException:
            # On a disk that fails for good this fails too, and would hide what failed first.
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return OpenFile(path, descriptor)

    def open(self, path: Path) -> OpenFile:
        """Open a file that exists, to write in it; no link."""
        return OpenFile(path, os.open(path, os.O_WRONLY | _NO_LINK | _WHOLE_BYTES))

    def open_or_create(self, path: Path, mode: int) -> OpenFile:
        """Open a file to write in it, made with these permission bits if missing; no link."""
        flags = os.O_RDWR | os.O_CREAT | _NO_LINK | _WHOLE_BYTES
        return OpenFile(path, os.open(path, flags, mode))

    def write(self, file: OpenFile, content: bytes, offset: int = 0) -> None:
        """Write all of the content from an offset on; it may be lost until `sync`.

        Because the place is given, a write that something below repeats changes nothing.
        """
        rest = memoryview(content)
        with _named(file.path):
            os.lseek(file.descriptor, offset, os.SEEK_SET)
            while rest:
                rest = rest[os.write(file.descriptor, rest) :]

    def sync(self, file: OpenFile) -> None:
        """Wait until the file's content is on the disk."""
        with _named(file.path):
            os.fsync(file.descriptor)

    def close(self, file: OpenFile) -> None:
        """Close the file."""
        with _named(file.path):
            os.close(file.descriptor)

    def cut(self, path: Path, size: int) -> None:
        """Cut a file to its first bytes, and wait until that is on the disk."""
        file = OpenFile(path, os.open(path, os.O_RDWR | _NO_LINK | _WHOLE_BYTES))
        try:
            with _named(path):
                os.ftruncate(file.descriptor, size)
            self.sync(file)
        finally:
            self.close(file)

    def lock(self, file: OpenFile) -> None:
        """Lock an open file for its holder alone, without waiting, until it is closed.

        Raises:
            OSError: If another holds it (BlockingIOError, on Windows PermissionError), or there are
                no locks.
        """
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            # Beyond what is written there, because a locked part cannot be read by others.
            os.lseek(file.descriptor, 1 << 20, os.SEEK_SET)
            lock = msvcrt.locking  # type: ignore[attr-defined]  # on Windows
            lock(file.descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]  # on Windows
            return
        fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_named(self, file: OpenFile) -> bool:
        """Whether the file that was opened still has its name."""
        try:
            return os.path.samestat(os.fstat(file.descriptor), os.stat(file.path))
        except FileNotFoundError:
            return False

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or a folder another name, in the place of a file that has it."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def make_folder(self, path: Path, private: bool = True) -> None:
        """Make a folder: for its owner alone whatever the umask, or as the umask says."""
        if not private:
            path.mkdir()
            return
        path.mkdir(mode=FOLDER_MODE)
        path.chmod(FOLDER_MODE)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all in it, as far as that can be done."""
        shutil.rmtree(path, ignore_errors=True)

    def sync_folder(self, path: Path) -> None:
        """Wait until the folder's names are on the disk, where the operating system can."""
        if _FOLDER is None:
            return
        descriptor = os.open(path, os.O_RDONLY | _FOLDER)
        try:
            with _named(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: Path, most: int = MOST_BYTES) -> bytes:
        """Return the content of a plain file of at most so many bytes.

        The folder's author may have put anything there: no link is followed, and no pipe or device
        is opened.
        """
        folder, name = path.parent, path.name
        if folder.name in _PARTS:
            folder, name = folder.parent, f"{folder.name}/{name}"
        try:
            return files.read_bytes(folder, name, most)
        except FileError as error:
            if error.refusal is Refusal.MISSING:
                raise FileNotFoundError(errno.ENOENT, error.detail, str(path)) from None
            raise OSError(errno.EINVAL, error.what, str(path)) from None

    def size(self, path: Path) -> int:
        """Return how many bytes a file has."""
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        """Whether there is anything of that name, be it a link to nowhere."""
        return os.path.lexists(path)

    def is_link(self, path: Path) -> bool:
        """Whether there is a link."""
        return self._kind(path, stat.S_ISLNK)

    def is_file(self, path: Path) -> bool:
        """Whether there is a plain file, not a link."""
        return self._kind(path, stat.S_ISREG)

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder, not a link."""
        return self._kind(path, stat.S_ISDIR)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; none where there is no folder."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    @staticmethod
    def _kind(path: Path, test: Any) -> bool:
        try:
            return bool(test(path.lstat().st_mode))
        except FileNotFoundError:
            return False


DISK = Disk()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors of calls that know no more of it than a number."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_atomically(
    path: Path,
    content: bytes,
    mode: int = PUBLIC_MODE,
    disk: Disk = DISK,
    *,
    settle: bool = True,
    lasting: bool = True,
) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a half.

    The new content is written to the run's place for unfinished files, `UNFINISHED`, if the file
    belongs to a run that is being written, else in the file's own folder.

    Args:
        path: The file; what is there is replaced.
        content: Its bytes.
        mode: Its permission bits, whatever the umask.
        disk: Where it is written.
        settle: Whether to wait until the name, too, is on the disk. A caller that writes many files
            may do so once, by `Disk.sync_folder`, before anything relies on them.
        lasting: False for a file that nobody reads once the power has gone, which is then waited
            for in no way. Processes that run see it whole or not at all.

    Raises:
        OSError: It cannot be written; its `filename` is `path`.
    """
    temporary = _place(path, disk) / f".{path.name}-{secrets.token_hex(4)}"
    try:
        file = disk.create(temporary, mode)
        try:
            disk.write(file, content)
            if lasting:
                disk.sync(file)
        finally:
            disk.close(file)
        disk.rename(temporary, path)
    except BaseException as error:
        # Where even this fails, the next writer of the run sweeps it up.
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        if isinstance(error, OSError):
            # The name that the reader of a message knows.
            error.filename, error.filename2 = str(path), None
        raise
    if settle and lasting:
        disk.sync_folder(path.parent)


def _place(path: Path, disk: Disk) -> Path:
    """The folder for the unfinished file: a run's files lie in its folder or one below it."""
    for folder in (path.parent, path.parent.parent):
        if disk.is_folder(folder / UNFINISHED):
            return folder / UNFINISHED
    return path.parent


def append(path: Path, content: bytes, end: int, disk: Disk = DISK) -> None:
    """Write at the end of a file that exists, and wait until that is on the disk.

    Args:
        path: The file.
        content: What is added.
        end: How many bytes the file has, as its one writer knows. What lies behind them was torn
            from an earlier append, and is written over.
        disk: Where it lies.
    """
    file = disk.open(path)
    try:
        disk.write(file, content, end)
        disk.sync(file)
    finally:
        disk.close(file)


def settle(path: Path, disk: Disk = DISK) -> None:
    """Wait until a file is on the disk as it is read: its last writer may have been killed."""
    file = disk.open(path)
    try:
        disk.sync(file)
    finally:
        disk.close(file)


def make_folders(path: Path, disk: Disk = DISK) -> None:
    """Make a folder and those above it where they are missing, and wait until they are on the disk.

    Permissions are as the umask says.
    """
    missing = [folder for folder in (path, *path.parents) if not disk.exists(folder)]
    # The last that is there may have been made by somebody who was killed before it was synced.
    there = missing[-1].parent if missing else path
    # Where the folder above cannot be read, it was not made by us.
    with contextlib.suppress(PermissionError):
        disk.sync_folder(there.parent)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            disk.make_folder(folder, private=False)
        disk.sync_folder(folder.parent)


def write_json(path: Path, content: Mapping[str, Any], mode: int = PUBLIC_MODE) -> None:
    """Write indented JSON atomically; refuses numbers that are not finite."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode(), mode)


def json_line(content: Mapping[str, Any]) -> bytes:
    """One compact line of JSON; refuses numbers that are not finite."""
    return (json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n").encode()
