"""Sees every operation by which a process changes files, just before it happens.

`Watch` puts itself in the place of the functions of `os` and of `open`, for good: it is meant for a
process that was forked for one command. Reading is not watched; a kill or a failure there leaves on
the disk what the operation before it left.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_BY_DESCRIPTOR = ("write", "fsync", "fdatasync", "ftruncate", "fchmod")
_BY_PATH = ("mkdir", "rmdir", "unlink", "remove", "chmod", "truncate")
_BY_TWO_PATHS = ("rename", "replace", "link", "symlink")


@dataclass(frozen=True)
class Operation:
    """One operation on a file or a folder.

    Attributes:
        number: Its place in the process's course, from 1.
        call: The function's name.
        path: What it changes; of a renaming, the old name.
        target: Of a renaming or a link, the new name.
    """

    number: int
    call: str
    path: str
    target: str | None = None

    def __str__(self) -> str:
        where = self.path if self.target is None else f"{self.path} → {self.target}"
        return f"operation {self.number}: {self.call} {where}"


@dataclass
class _Opened:
    path: str
    flags: int


class Watch:
    """Calls back before each operation on anything in some folders.

    Args:
        folders: What lies in them, and they themselves, is watched.
        before: What is called. What it raises, the operation raises. Closing has happened when it
            is called: a descriptor is free even where closing it fails.
    """

    def __init__(self, folders: tuple[Path, ...], before: Callable[[Operation], None]) -> None:
        self._folders = tuple(map(str, folders))
        self._before = before
        self._seen = 0
        self._pausing = False
        self._opened: dict[int, _Opened] = {}
        self._real = {
            name: getattr(os, name)
            for name in ("open", "close", *_BY_DESCRIPTOR, *_BY_PATH, *_BY_TWO_PATHS)
        }
        self._real_open = io.open

    def install(self) -> None:
        """Begin; there is no end."""
        os.open, os.close = self._open, self._close
        for name in _BY_DESCRIPTOR:
            setattr(os, name, self._by_descriptor(name))
        for name in _BY_PATH:
            setattr(os, name, self._by_path(name))
        for name in _BY_TWO_PATHS:
            setattr(os, name, self._by_two_paths(name))
        io.open = builtins.open = self._open_stream

    def reopen(self) -> None:
        """Let every open file be the one that lies at its path now, as far as it had been written.

        For a process that was forked into a copy of the folders.
        """
        for descriptor, opened in self._opened.items():
            flags = opened.flags & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            place = 0
            if not flags & getattr(os, "O_DIRECTORY", 0):
                place = os.lseek(descriptor, 0, os.SEEK_CUR)
            try:
                copy = self._real["open"](opened.path, flags)
            except FileNotFoundError:
                continue
            os.dup2(copy, descriptor)
            self._real["close"](copy)
            if place:
                os.lseek(descriptor, place, os.SEEK_SET)

    def locks(self) -> list[int]:
        """Descriptors of files that are called `lock`."""
        return [number for number, one in self._opened.items() if Path(one.path).name == "lock"]

    def _step(self, call: str, path: str, target: str | None = None) -> None:
        if self._pausing:
            return
        self._seen += 1
        self._pausing = True
        try:
            self._before(Operation(self._seen, call, path, target))
        finally:
            self._pausing = False

    def _watched(self, path: Any, folder: Any = None) -> str | None:
        """The whole path, if it is watched."""
        try:
            name = os.fsdecode(path)
        except TypeError:
            return None
        if folder is not None:
            if folder not in self._opened:
                return None
            name = os.path.join(self._opened[folder].path, name)
        name = os.path.abspath(name)
        inside = any(name == one or name.startswith(one + os.sep) for one in self._folders)
        return name if inside else None

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = None if self._pausing else self._watched(path, dir_fd)
        if name is not None and flags & _WRITES:
            self._step("open", name)
        descriptor: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if name is not None:
            self._opened[descriptor] = _Opened(name, flags)
        return descriptor

    def _close(self, descriptor: int) -> None:
        opened = self._opened.pop(descriptor, None)
        self._real["close"](descriptor)
        if opened is not None and opened.flags & _WRITES:
            self._step("close", opened.path)

    def _by_descriptor(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def watched(descriptor: int, *rest: Any) -> Any:
            opened = self._opened.get(descriptor)
            if opened is not None:
                self._step(name, opened.path)
            return real(descriptor, *rest)

        return watched

    def _by_path(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def watched(path: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> Any:
            found = self._watched(path, dir_fd)
            if found is not None:
                self._step(name, found)
            if dir_fd is not None:
                more["dir_fd"] = dir_fd
            return real(path, *rest, **more)

        return watched

    def _by_two_paths(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def watched(old: Any, new: Any, *rest: Any, **more: Any) -> Any:
            # What a symbolic link names is a text; where it lies comes second, as for a new name.
            found = self._watched(new)
            before = os.fsdecode(old) if name == "symlink" else self._watched(old)
            if found is not None or (before is not None and name != "symlink"):
                self._step(name, before or os.fsdecode(old), found or os.fsdecode(new))
            result = real(old, new, *rest, **more)
            if before is not None and name in ("rename", "replace"):
                self._moved(before, os.path.abspath(os.fsdecode(new)))
            return result

        return watched

    def _moved(self, old: str, new: str) -> None:
        for opened in self._opened.values():
            if opened.path == old or opened.path.startswith(old + os.sep):
                opened.path = new + opened.path.removeprefix(old)

    def _open_stream(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """As `open`; a stream that writes to what is watched does so in the open."""
        name = None
        if not self._pausing and any(letter in mode for letter in "wax+"):
            if isinstance(file, int):
                name = self._opened[file].path if file in self._opened else None
            else:
                name = self._watched(file)
        if name is None:
            if isinstance(file, int):
                # Read from here on, and closed where nobody sees it.
                self._opened.pop(file, None)
            return self._real_open(
                file, mode, buffering, encoding, errors, newline, closefd, opener
            )
        if "+" in mode or buffering not in (-1, 0) or (buffering == 0 and "b" not in mode):
            raise NotImplementedError(f"open({name}, {mode!r}) is not watched yet; add it here")
        if not isinstance(file, int):
            self._step("open", name)
        raw = _Raw(self, name, file, mode.replace("b", "").replace("t", ""), closefd)
        if buffering == 0:
            return raw
        stream = io.BufferedWriter(raw)
        return stream if "b" in mode else io.TextIOWrapper(stream, encoding, errors, newline)

    def opened_by_stream(self, descriptor: int, path: str) -> None:
        """Take note of a file that `open` opened."""
        self._opened.setdefault(descriptor, _Opened(path, os.O_WRONLY))

    def wrote(self, path: str) -> None:
        """A stream is about to write."""
        self._step("write", path)

    def closed_by_stream(self, descriptor: int, path: str) -> None:
        """A stream has closed its file."""
        self._opened.pop(descriptor, None)
        self._step("close", path)


class _Raw(io.FileIO):
    def __init__(self, watch: Watch, path: str, file: Any, mode: str, closefd: bool) -> None:
        super().__init__(file, mode, closefd=closefd)
        self._watch, self._path, self._number = watch, path, self.fileno()
        watch.opened_by_stream(self._number, path)

    def write(self, content: Any) -> int:
        self._watch.wrote(self._path)
        return super().write(content) or 0

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._watch.closed_by_stream(self._number, self._path)


def failure(number: int, operation: Operation) -> OSError:
    """The error that the operating system would give; of a descriptor it knows no name."""
    if operation.call in (*_BY_DESCRIPTOR, "close"):
        return OSError(number, os.strerror(number))
    return OSError(number, os.strerror(number), operation.path, None, operation.target)


ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EROFS")}
