"""Where cells come from: a process that has loaded what every shard needs, of which each is a copy.

A cell is what one shard's job code can see: the programs of this machine read-only, one shard of
the data read-only, scratch space in memory, and one socket, which leads to the gate. It has no
network but its own loopback, and of the kernel it cannot call what would reach other cells. The
gate runs this as ``python -I cell.py FD TRAINER``; FD is a socket with
its orders, and TRAINER a module of the gate. No job's code is ever in this process, only in
copies of it that are in new namespaces and have given up every privilege. What builds a cell uses
the standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Of <sys/mount.h>, <sched.h>, <linux/prctl.h> and <net/if.h>.
_READ_ONLY, _NO_SUID, _NO_DEVICE, _NO_EXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096
_RECURSIVE, _PRIVATE, _DETACH = 16384, 1 << 18, 2
# Users, mounts, network, processes, shared memory, the host's name, control groups.
_NEW = 0x10000000 | 0x20000 | 0x40000000 | 0x20000000 | 0x8000000 | 0x4000000 | 0x2000000
_PARENT_DEATH, _SECCOMP, _DROP_BOUND, _NO_NEW_PRIVILEGES = 1, 22, 24, 38
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# Of <linux/audit.h>: what calls in the machine's own numbers state.
_CALLS_OF = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# In no namespace, or around this filter: keys (add_key, request_key, keyctl), the kernel's log,
# its programs (bpf), its counters (perf_event_open) and its queues of calls (io_uring_setup).
_FORBIDDEN = {
    "x86_64": (248, 249, 250, 103, 321, 298, 425),
    "aarch64": (217, 218, 219, 116, 280, 241, 425),
}
# socket and socketpair, of which AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK are in namespaces.
_SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}
_FAMILIES = (1, 2, 10, 16)
# Numbers of the ABI x32 begin here on x86_64; others have none so large.
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _NO_SUCH_CALL, _NO_SUCH_FAMILY = 0x7FFF0000, 0x00050000 | 38, 0x00050000 | 97
_CAPABILITIES = 64
# A job's processes and threads, so that all of them end in a moment.
_MOST_PROCESSES = 512
# Not 0, at which a program that takes the system's dumps would still get a job's memory.
_DUMPED = 1
_DEVICES = ("null", "zero", "full", "random", "urandom")
# What jobs use, and takes long to load.
_LIKELY = ("torch",)
_MOST_ORDER = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)

Program = Callable[[Sequence[str]], object]


def main() -> None:
    """Start a cell for each order, until the gate closes the socket or ends."""
    orders, program = socket.socket(fileno=int(sys.argv[1])), _program(sys.argv[2])
    # The system takes each cell's process away when it ends.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        told, files, _, _ = socket.recv_fds(orders, _MOST_ORDER, 2)
        if not told:
            return
        if os.fork() == 0:
            orders.close()
            _never_back(_hold, json.loads(told), *files, program)
        for one in files:
            os.close(one)


def _program(name: str) -> Program:
    """What a cell runs: a trainer's ``run``, or without a name what the order itself says."""
    if not name:
        return lambda words: os.execvpe(words[0], list(words), dict(os.environ))
    found: Program = importlib.import_module(name).run
    for one in _LIKELY:
        with contextlib.suppress(ImportError):
            importlib.import_module(one)
    return found


def _never_back(action: Callable[..., object], *given: Any) -> None:
    """Do something as all that this copy of the process ever does."""
    code = 1
    try:
        action(*given)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _hold(wanted: Mapping[str, Any], line: int, log: int, program: Program) -> None:
    """Make a cell, end it when the gate closes its line, and say then how its program ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for one, place in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(one, place)
    # Open in the cell's first process alone, so it is closed when that ends.
    ended, mark = os.pipe()
    _enter_namespaces()
    inside = os.fork()
    if inside == 0:
        _never_back(_live, wanted, mark, program)
    os.close(mark)
    select.select([line, ended], [], [])
    # All other processes of a cell end with its first one, before the wait is over.
    os.kill(inside, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    with contextlib.suppress(OSError):
        os.write(line, bytes([status != 0]))


def _enter_namespaces() -> None:
    """Enter new ones, as root of them; processes to come are in a new one too."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _live(wanted: Mapping[str, Any], mark: int, program: Program) -> None:
    """As the first process of a cell: build it, run the program in it once, and wait."""
    _libc.prctl(_PARENT_DEATH, signal.SIGKILL)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != mark:
            with contextlib.suppress(OSError):
                os.close(number)
    _build(wanted)
    _give_up()
    os.environ.clear()
    os.environ.update(wanted["environment"])
    job = os.fork()
    if job == 0:
        os.close(mark)
        if "numpy.random" in sys.modules:
            # Copies would else draw the same numbers; Python sees to its own.
            sys.modules["numpy.random"].seed()
        _never_back(program, wanted["program"])
    # A job's orphans are this process' children too.
    while True:
        one, status = os.wait()
        if one == job:
            sys.exit(max(0, os.waitstatus_to_exitcode(status)) or int(status != 0))


def _build(wanted: Mapping[str, Any]) -> None:
    """Make the file tree and enter it."""
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
    _limit(str(root / "proc"))
    (root / "etc/passwd").write_text("job:x:0:0::/tmp:/bin/sh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    os.chdir(root)
    if _libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"old"):
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    if _libc.umount2(b"/old", _DETACH):
        raise OSError(ctypes.get_errno(), "umount2")
    Path("/old").rmdir()
    _loopback()
    socket.sethostname("cell")
    os.chdir("/tmp")


def _limit(proc: str) -> None:
    """Limit what a job can use up or reach of the kernel, and mount /proc.

    Some files of /proc are the machine's own, and root may write to them without a capability. Its
    counters tell each cell what others have done. So a cell sees its own processes, read-only.
    """
    flags = _NO_SUID | _NO_DEVICE | _NO_EXEC
    _mount("proc", proc, "proc", flags)
    # In a user namespace of its own a job would have every capability again.
    Path(proc, "sys/user/max_user_namespaces").write_text("0")
    # Where memory is short, the job ends and not the gate.
    Path(proc, "self/oom_score_adj").write_text("1000")
    if _libc.umount2(os.fsencode(proc), 0):
        raise OSError(ctypes.get_errno(), "umount2")
    _mount("proc", proc, "proc", flags | _READ_ONLY, "subset=pid")
    resource.setrlimit(resource.RLIMIT_NPROC, (_MOST_PROCESSES, _MOST_PROCESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (_DUMPED, _DUMPED))


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
    """Give up every capability and some calls, for this process and all that it starts."""
    for one in range(_CAPABILITIES):
        # Fails for numbers that this kernel does not have.
        _libc.prctl(_DROP_BOUND, one, 0, 0, 0)
    if _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    head, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if _libc.capset(head, none):
        raise OSError(ctypes.get_errno(), "capset")
    lines = _filter(platform.machine())
    program = ctypes.create_string_buffer(b"".join(lines))
    # A length and a pointer, aligned as C does.
    told = struct.pack("HP", len(lines), ctypes.addressof(program))
    if _libc.prctl(_SECCOMP, 2, told, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _filter(machine: str) -> list[bytes]:
    """A program for seccomp (<linux/filter.h>) by which forbidden calls do not exist."""
    number, calls_of, first_argument = 0, 4, 16

    def line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    def unless(code: int, value: int, answer: int) -> list[bytes]:
        """Go on if the comparison fails."""
        return [line(code, value, 0, 1), line(_RETURN, answer)]

    # Each comparison that holds jumps to the last line.
    last = len(_FAMILIES)
    of_sockets = [line(_LOAD, first_argument)]
    of_sockets += [line(_EQUAL, one, last - place) for place, one in enumerate(_FAMILIES)]
    of_sockets += [line(_RETURN, _NO_SUCH_FAMILY), line(_RETURN, _ALLOW)]
    found = [line(_LOAD, calls_of), line(_EQUAL, _CALLS_OF[machine], 1)]
    found += [line(_RETURN, _NO_SUCH_CALL), line(_LOAD, number)]
    found += unless(_AT_LEAST, _X32, _NO_SUCH_CALL)
    for one in _FORBIDDEN[machine]:
        found += unless(_EQUAL, one, _NO_SUCH_CALL)
    for one in _SOCKETS[machine]:
        found += [line(_EQUAL, one, 0, len(of_sockets)), *of_sockets]
    return [*found, line(_RETURN, _ALLOW)]


if __name__ == "__main__":
    main()
