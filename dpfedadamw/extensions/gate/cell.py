"""A cell's first process: builds its file tree, gives up every privilege, runs its program once.

A cell is what one shard's job code can see: the programs of this machine read-only, one shard of
the data read-only, scratch space in memory, and one socket, which leads to the gate. It has no
network but its own loopback. Run by ``unshare`` as root of new namespaces, as ``python -I cell.py
SPEC``; SPEC is JSON. It uses the standard library only, so nothing of the job can replace a module.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

# Of <sys/mount.h>, <linux/prctl.h> and <net/if.h>.
_READ_ONLY, _NO_SUID, _NO_DEVICE, _NO_EXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_RECURSIVE, _PRIVATE, _DETACH = 16384, 1 << 18, 2
_DROP_BOUND, _NO_NEW_PRIVILEGES = 24, 38
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITIES = 64
_DEVICES = ("null", "zero", "full", "random", "urandom")
_PIECE = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Build the cell and run its program in it."""
    wanted = json.loads(sys.argv[1])
    root = Path(wanted["root"])
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("cell", str(root), "tmpfs", _NO_SUID | _NO_DEVICE, f"size={wanted['scratch']},mode=755")
    for name in ("tmp", "proc", "dev", "etc", "old", "dev/shm"):
        (root / name).mkdir()
    for name in _DEVICES:
        (root / "dev" / name).touch()
        _mount(f"/dev/{name}", str(root / "dev" / name), None, _BIND)
    for source, target in wanted["shown"]:
        _show(Path(source), root / target.lstrip("/"))
    (root / "etc/passwd").write_text("job:x:0:0::/tmp:/bin/sh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    _mount("proc", str(root / "proc"), "proc", _NO_SUID | _NO_DEVICE | _NO_EXEC)
    os.chdir(root)
    if _libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"old"):
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    if _libc.umount2(b"/old", _DETACH):
        raise OSError(ctypes.get_errno(), "umount2")
    Path("/old").rmdir()
    _loopback()
    socket.sethostname("cell")
    _give_up()
    _listen(wanted["port"], wanted["socket"])
    done = subprocess.run(wanted["program"], env=wanted["environment"], cwd="/tmp", check=False)
    sys.exit(done.returncode)


def _mount(source: str | None, target: str, kind: str | None, flags: int, more: str = "") -> None:
    words = [None if one is None else os.fsencode(one) for one in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), more.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _show(source: Path, target: Path) -> None:
    """Make a file or folder of the machine visible, read-only, under a path of the cell."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
        return
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(str(source), str(target), None, _BIND)
    # The kernel lets nobody drop a restriction that the place already has.
    kept = os.statvfs(source).f_flag & _NO_EXEC
    flags = _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICE | kept
    _mount(None, str(target), None, flags)


def _loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(one, _GET_FLAGS, asked))[1]
        fcntl.ioctl(one, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def _give_up() -> None:
    """Give up every capability, for this process and all that it starts."""
    for one in range(_CAPABILITIES):
        # Fails for numbers that this kernel does not have.
        _libc.prctl(_DROP_BOUND, one, 0, 0, 0)
    if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    head, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if _libc.capset(head, none):
        raise OSError(ctypes.get_errno(), "capset")


def _listen(port: int, place: str) -> None:
    """Pass connections to a port of the cell on to the gate's socket."""
    listener = socket.create_server(("127.0.0.1", port))

    def accept() -> None:
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(place)
            except OSError:
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
