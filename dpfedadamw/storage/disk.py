"""The few steps by which a run reaches the disk, and whole writes made of them.

What a crash leaves behind is decided by these steps and their order: content is on the disk after
`Disk.sync`, a name after `Disk.sync_folder`. Everything that a run must not lose goes through here,
so that tests can put a disk in its place that forgets what was not synced.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished"
PUBLIC_MODE, PRIVATE_MODE, FOLDER_MODE = 0o644, 0o600, 0o700

# Windows knows no folders as files and translates line ends unless told.
_WHOLE_BYTES = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = getattr(os, "O_DIRECTORY", None)


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
            os.close(descriptor)
            raise
        return OpenFile(path, descriptor)

    def open_end(self, path: Path) -> OpenFile:
        """Open a file that exists, to write at its end."""
        return OpenFile(path, os.open(path, os.O_WRONLY | os.O_APPEND | _WHOLE_BYTES))

    def write(self, file: OpenFile, content: bytes) -> None:
        """Write all of the content; it may be lost until `sync`."""
        rest = memoryview(content)
        with _named(file.path):
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
        file = OpenFile(path, os.open(path, os.O_RDWR | _WHOLE_BYTES))
        try:
            with _named(path):
                os.ftruncate(file.descriptor, size)
            self.sync(file)
        finally:
            self.close(file)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or a folder another name, in the place of a file that has it."""
        old.replace(new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """Make a folder for its owner alone, whatever the umask."""
        path.mkdir(mode=FOLDER_MODE)
        path.chmod(FOLDER_MODE)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

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

    def read(self, path: Path) -> bytes:
        """Return a file's content."""
        return path.read_bytes()

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
    path: Path, content: bytes, mode: int = PUBLIC_MODE, disk: Disk = DISK, settle: bool = True
) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a half.

    The new content is written to the run's place for unfinished files, `UNFINISHED`, if the file
    belongs to a run that is being written, else beside it.

    Args:
        path: The file; what is there is replaced.
        content: Its bytes.
        mode: Its permission bits, whatever the umask.
        disk: Where it is written.
        settle: Whether to wait until the name, too, is on the disk. Whoever writes many files may
            do so once, by `Disk.sync_folder`, before anything that relies on them.

    Raises:
        OSError: It cannot be written; its `filename` is `path`.
    """
    temporary = _place(path, disk) / f".{path.name}-{secrets.token_hex(4)}"
    try:
        file = disk.create(temporary, mode)
        try:
            disk.write(file, content)
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
    if settle:
        disk.sync_folder(path.parent)


def _place(path: Path, disk: Disk) -> Path:
    """The folder for the unfinished file: a run's files lie in its folder or one below it."""
    for folder in (path.parent, path.parent.parent):
        if disk.is_folder(folder / UNFINISHED):
            return folder / UNFINISHED
    return path.parent


def append(path: Path, content: bytes, disk: Disk = DISK) -> None:
    """Write at the end of a file that exists, and wait until that is on the disk."""
    file = disk.open_end(path)
    try:
        disk.write(file, content)
        disk.sync(file)
    finally:
        disk.close(file)


def write_json(path: Path, content: Mapping[str, Any], mode: int = PUBLIC_MODE) -> None:
    """Write indented JSON atomically; refuses numbers that are not finite."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, text.encode(), mode)


def json_line(content: Mapping[str, Any]) -> bytes:
    """One compact line of JSON; refuses numbers that are not finite."""
    return (json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n").encode()
