"""What a job's code can reach from its cell: each attempt works outside one, and fails inside."""

from __future__ import annotations

import json
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dpfedadamw.extensions.gate import cell as first_process
from dpfedadamw.extensions.gate.cells import SOCKET, Cell, CellError, Cells, check
from tests.dpfedadamw.extensions.gate.processes import needs_cells

ROOT = Path(__file__).parents[4]
# Each attempt is done by the same lines inside and outside.
PROBE = r"""
import json, os, socket, sys
told = json.loads(sys.argv[1])

def does(action):
    try:
        action()
    except Exception:
        return False
    return True

def connects(family, place):
    with socket.socket(family) as one:
        one.settimeout(3)
        one.connect(place)

def child(*words):
    import subprocess
    subprocess.run(words, check=True, capture_output=True)

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name))

found = {
    "network": does(lambda: connects(socket.AF_INET, ("127.0.0.1", told["port"]))),
    "abstract socket": does(lambda: connects(socket.AF_UNIX, "\0" + told["abstract"])),
    "socket file": does(lambda: connects(socket.AF_UNIX, told["socket"])),
    "other shard": does(lambda: open(told["other"]).read()),
    "shared memory": does(lambda: open(told["shared"]).read()),
    "temporary file": does(lambda: open(told["temporary"]).read()),
    "gate's process": does(lambda: os.kill(told["process"], 0)),
    "gate's environment": any(
        does(lambda: open(f"/proc/{one}/environ", "rb").read().index(told["secret"].encode()))
        for one in os.listdir("/proc")
    ),
    "write own data": does(lambda: open(told["own"], "a").close()),
    "read own data": does(lambda: open(told["own"]).read()),
    "gate": does(lambda: connects(socket.AF_UNIX, told["gate"])),
    # Of one that is open only while they are listed.
    "open files": len(os.listdir("/proc/self/fd")) > 4,
    "mount": does(lambda: child("unshare", "--user", "--map-root-user", "--mount", "true")),
    # They count what all processes of the machine do.
    "counters": does(lambda: open("/proc/stat").read()),
    "write to /proc": does(lambda: open("/proc/self/comm", "w").write("x")),
}
print(json.dumps(found), flush=True)
print(status("CapEff"), status("CapBnd"), status("NoNewPrivs"), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def possible(tmp_path_factory):
    """Cells can be made here; the gate has a secret before any of their processes begins."""
    needs_cells(tmp_path_factory.mktemp("possible"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATE_SECRET", "a secret of the gate")
        yield


def lines_of(path, count, seconds=60.0):
    last = time.monotonic() + seconds
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < last, path.read_text() if path.exists() else "nothing written"
        time.sleep(0.1)
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def cells(possible):
    with Cells() as made:
        yield made


@pytest.fixture(scope="module")
def trainers(possible, tmp_path_factory):
    """Cells as copies of a process that has loaded a trainer, which runs the code it is told."""
    folder = tmp_path_factory.mktemp("trainer")
    (folder / "loaded.py").write_text(
        "import sys, numpy.random\n"
        "def run(words):\n"
        "    sys.argv = ['loaded', *words[1:]]\n"
        "    exec(compile(words[0], 'loaded', 'exec'), {'__name__': 'loaded'})\n"
    )
    (folder / "begin.py").write_text(
        f"import runpy, sys\nsys.path.append({str(folder)!r})\n"
        f"runpy.run_path({first_process.__file__!r}, run_name='__main__')\n"
    )
    with Cells("loaded") as made:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first_process, "__file__", str(folder / "begin.py"))
            made._begun()
        yield made


@pytest.fixture
def shards(tmp_path):
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "records").write_text("31337")
    return tmp_path / "mine", tmp_path / "other"


@pytest.mark.parametrize("way", ["cells", "trainers"])
def test_a_cell_reaches_its_own_shard_and_the_gate_and_nothing_that_its_job_reaches_outside(
    way, shards, tmp_path, request
):
    mine, other = shards
    made = request.getfixturevalue(way)
    shared = Path("/dev/shm") / f"cell-test-{os.getpid()}"
    shared.write_text("31337")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        abstract.bind("\0cell-test")
        abstract.listen()
        named.bind(str(tmp_path / "named"))
        named.listen()
        port = listener.getsockname()[1]
        told = {
            "port": port, "abstract": "cell-test", "socket": str(tmp_path / "named"),
            "other": str(other / "records"), "shared": str(shared),
            "temporary": str(tmp_path / "named.txt"), "process": os.getpid(),
            "gate": str(tmp_path / "named"),
            "secret": "a secret of the gate", "own": str(mine / "records"),
        }  # fmt: skip
        Path(told["temporary"]).write_text("31337")
        command = [sys.executable, "-c", PROBE, json.dumps(told)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60,
            pass_fds=[listener.fileno()],
        )  # fmt: skip
        outside = json.loads(done.stdout.splitlines()[0])
        assert outside == dict.fromkeys(outside, True)

        told |= {"own": "/data/records", "gate": SOCKET}
        log = tmp_path / "log"
        words = [PROBE, json.dumps(told)]
        if way == "cells":
            words = [sys.executable, "-c", *words]
        cell = Cell(made, mine, tmp_path / "work", words, log=log)
        with socket.socket(socket.AF_UNIX) as gate:
            gate.bind(str(cell.socket))
            gate.listen()
            cell.start()
            try:
                first, rights, *_ = lines_of(log, 2)
            finally:
                cell.end()
    shared.unlink()
    reached = {name for name, true in json.loads(first).items() if true}
    assert reached == {"read own data", "gate"}
    assert [int(one, 16) for one in rights.split()] == [0, 0, 1]


CALLS = r"""
import ctypes, json, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def fails(number):
    libc.syscall(number, 0, 0, 0, 0, 0)
    return ctypes.get_errno() == 38

def opens(family, kind=socket.SOCK_STREAM):
    try:
        socket.socket(family, kind).close()
        return True
    except OSError as error:
        return error.errno != 97

print(json.dumps({
    "forbidden": [fails(one) for one in json.loads(sys.argv[1])],
    "families": [one for one in range(64) if opens(one) or opens(one, socket.SOCK_RAW)],
    "dumped": resource.getrlimit(resource.RLIMIT_CORE),
    "processes": resource.getrlimit(resource.RLIMIT_NPROC),
}), flush=True)
"""


def test_a_job_cannot_call_what_the_kernel_shares_between_cells(cells, shards, tmp_path):
    forbidden = first_process._FORBIDDEN[platform.machine()]
    command = [sys.executable, "-c", CALLS, json.dumps(forbidden)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    outside = json.loads(done.stdout)
    assert not any(outside["forbidden"][:3])
    cell = Cell(cells, shards[0], tmp_path / "work", command, log=tmp_path / "log")
    cell.start()
    assert cell.ended(60)
    cell.end()
    inside = json.loads((tmp_path / "log").read_text())
    assert inside["forbidden"] == [True] * len(forbidden)
    assert set(inside["families"]) <= {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16}
    # A limit of 1 is what no dump fits into, and what a program that takes dumps is not given.
    assert (inside["dumped"], inside["processes"]) == ([1, 1], [512, 512])


def test_calls_by_the_numbers_of_another_architecture_do_not_exist():
    for machine in ("x86_64", "aarch64"):
        program = first_process._filter(machine)
        assert all(len(one) == 8 for one in program)
        for calls_of, number, argument, answer in [
            (first_process._CALLS_OF[machine], 0, 0, first_process._ALLOW),
            (0x40000003, 0, 0, first_process._NO_SUCH_CALL),
            (first_process._CALLS_OF[machine], 0x40000000, 0, first_process._NO_SUCH_CALL),
            *(
                (first_process._CALLS_OF[machine], one, 0, first_process._NO_SUCH_CALL)
                for one in first_process._FORBIDDEN[machine]
            ),
            *(
                (
                    first_process._CALLS_OF[machine], one, family,
                    first_process._ALLOW if family in (1, 2, 10, 16)
                    else first_process._NO_SUCH_FAMILY,
                )
                for one in first_process._SOCKETS[machine] for family in range(64)
            ),
        ]:  # fmt: skip
            told = {0: number, 4: calls_of, 16: argument}
            assert carried_out(program, told) == answer, (machine, number, argument)


LOOKS_AROUND = r"""
import json, os, pathlib, pwd, socket, stat
user = pwd.getpwuid(os.getuid())
with socket.create_server(("localhost", 0)) as server:
    with socket.create_connection(("localhost", server.getsockname()[1]), timeout=5):
        reached = server.getsockname()[0]
for place in ("/tmp/file", "/dev/shm/file"):
    pathlib.Path(place).write_text("31337")
print(json.dumps({
    "user": [user.pw_name, user.pw_dir, os.environ["HOME"]],
    "host": [socket.gethostname(), reached],
    "root": sorted({"tmp", "proc", "dev", "etc", "data", "gate", "old"} & {*os.listdir("/")}),
    "devices": sorted(
        one for one in os.listdir("/dev") if stat.S_ISCHR(os.stat(f"/dev/{one}").st_mode)
    ),
    "nothing": [open("/dev/null").read(), len(open("/dev/urandom", "rb").read(8))],
    "folder": os.getcwd(),
}), flush=True)
"""


def test_a_job_finds_what_programs_expect_of_a_machine(cells, shards, tmp_path):
    command = [sys.executable, "-c", LOOKS_AROUND]
    cell = Cell(cells, shards[0], tmp_path / "work", command, log=tmp_path / "log")
    cell.start()
    ended = cell.ended(60)
    cell.end()
    assert ended, (tmp_path / "log").read_text()
    assert json.loads((tmp_path / "log").read_text()) == {
        "user": ["job", "/tmp", "/tmp"],
        "host": ["cell", "127.0.0.1"],
        "root": ["data", "dev", "etc", "gate", "proc", "tmp"],
        "devices": ["full", "null", "random", "urandom", "zero"],
        "nothing": ["", 8],
        "folder": "/tmp",
    }


# From each architecture's unistd.h, and <linux/audit.h>.
BY_NAME = {
    "x86_64": {
        "add_key": 248, "request_key": 249, "keyctl": 250, "syslog": 103, "bpf": 321,
        "perf_event_open": 298, "io_uring_setup": 425,
    },
    "aarch64": {
        "add_key": 217, "request_key": 218, "keyctl": 219, "syslog": 116, "bpf": 280,
        "perf_event_open": 241, "io_uring_setup": 425,
    },
}  # fmt: skip
SOCKETS = {
    "x86_64": {"socket": 41, "socketpair": 53},
    "aarch64": {"socket": 198, "socketpair": 199},
}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, NO_SUCH_CALL, NO_SUCH_FAMILY = 0x7FFF0000, 0x50000 + 38, 0x50000 + 97


@pytest.mark.parametrize("machine", sorted(BY_NAME))
def test_the_calls_that_do_not_exist_in_a_cell_are_those_that_leave_namespaces(machine):
    program, architecture = first_process._filter(machine), ARCHITECTURE[machine]
    answers = {
        number: carried_out(program, {0: number, 4: architecture, 16: 1}) for number in range(512)
    }
    refused = {number for number, answer in answers.items() if answer != ALLOWED}
    assert refused == {*BY_NAME[machine].values()}
    assert {answers[number] for number in refused} == {NO_SUCH_CALL}
    of_families = {
        number
        for number in range(512)
        if carried_out(program, {0: number, 4: architecture, 16: 40}) == NO_SUCH_FAMILY
    }
    assert of_families == {*SOCKETS[machine].values()}


def carried_out(program, told):
    """What a program of <linux/filter.h> answers to a call, in three of its instructions."""
    value, place = 0, 0
    while True:
        code, if_true, if_false, number = struct.unpack("HBBI", program[place])
        place += 1
        if code == 0x20:
            value = told[number]
        elif code == 0x06:
            return number
        else:
            holds = {0x15: value == number, 0x35: value >= number}[code]
            place += if_true if holds else if_false


USES_ITS_LOG = r"""
import os
for action in (os.ftruncate, lambda file, at: os.lseek(file, at, 0)):
    try:
        action(1, 0)
        print("did it", flush=True)
    except OSError:
        pass
print("x" * (1 << 20), flush=True)
"""


def test_a_log_is_kept_up_to_its_limit_and_its_job_has_no_file_of_it(cells, shards, tmp_path):
    log, program = tmp_path / "log", [sys.executable, "-c", USES_ITS_LOG]
    cell = Cell(cells, shards[0], tmp_path / "work", program, log=log)
    log.write_text("before")
    for before in ("before", ""):
        cell.start()
        assert cell.ended(60)
        cell.end()
        assert log.read_text() == before + "x" * (1 << 18)


def test_a_log_that_cannot_be_written_costs_the_log_alone(cells, shards, tmp_path):
    (tmp_path / "log").mkdir()
    cell = Cell(cells, shards[0], tmp_path / "work", ["sh", "-c", "echo on"], log=tmp_path / "log")
    cell.start()
    assert cell.ended(60)
    cell.end()


TALKER = r"""
import os, socket, sys, time
place = ("127.0.0.1", 5151)
if sys.argv[1] == "tells":
    open("/tmp/told", "w").write("31337")
    open("/dev/shm/told", "w").write("31337")
    one, two = socket.create_server(place), socket.socket(socket.AF_UNIX)
    two.bind("\0told")
    two.listen()
    print("told", flush=True)
    time.sleep(600)
for _ in range(20):
    found = [path for path in ("/tmp/told", "/dev/shm/told") if os.path.exists(path)]
    for family, where in ((socket.AF_INET, place), (socket.AF_UNIX, "\0told")):
        try:
            with socket.socket(family) as one:
                one.connect(where)
            found.append(where)
        except OSError:
            pass
    time.sleep(0.05)
print(found, flush=True)
"""


def test_two_shards_of_one_job_cannot_pass_each_other_anything(cells, shards, tmp_path):
    both = []
    for name, data in zip(("tells", "hears"), shards, strict=True):
        program = [sys.executable, "-c", TALKER, name]
        work = tmp_path / f"work-{name}"
        both.append(Cell(cells, data, work, program, log=tmp_path / name))
    try:
        both[0].start()
        assert lines_of(tmp_path / "tells", 1) == ["told"]
        both[1].start()
        assert lines_of(tmp_path / "hears", 1)[0] == "[]"
    finally:
        for cell in both:
            cell.end()


MARK = f"600.{os.getpid()}"


def sleepers():
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [one] if MARK.encode() in one.read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found


def sleeping(count):
    last = time.monotonic() + 20
    while len(sleepers()) != count:
        assert time.monotonic() < last, sleepers()
        time.sleep(0.05)


def test_nothing_of_a_cell_runs_once_it_is_ended(cells, shards, tmp_path):
    program = ["sh", "-c", f"sleep {MARK} & echo on; sleep {MARK}"]
    cell = Cell(cells, shards[0], tmp_path / "work", program, log=tmp_path / "log")
    cell.start()
    lines_of(tmp_path / "log", 1)
    sleeping(2)
    cell.end()
    assert not sleepers()


def test_who_ends_a_cell_does_not_wait_for_its_program(cells, shards, tmp_path):
    cell = Cell(cells, shards[0], tmp_path / "work", ["sleep", MARK])
    cell.start()
    sleeping(1)
    started = time.monotonic()
    cell.end(30.0)
    assert time.monotonic() - started < 15.0
    assert not sleepers()


GATE = """
import sys, time
from pathlib import Path
from dpfedadamw.extensions.gate.cells import Cell, Cells

data, work, log, mark = sys.argv[1:]
cells = Cells()
program = ["sh", "-c", f"sleep {mark} & echo on; sleep {mark}"]
cell = Cell(cells, Path(data), Path(work), program, log=Path(log))
cell.start()
time.sleep(600)
"""


def test_nothing_of_a_cell_outlives_a_gate_that_is_killed(shards, tmp_path):
    places = [str(one) for one in (shards[0], tmp_path / "work", tmp_path / "log")]
    with subprocess.Popen([sys.executable, "-c", GATE, *places, MARK]) as gate:
        try:
            lines_of(tmp_path / "log", 1)
            sleeping(3)
        finally:
            gate.kill()
    sleeping(0)


def test_how_a_program_ended_is_told_and_a_process_that_was_killed_is_started_again(
    cells, shards, tmp_path
):
    for number, (program, good) in enumerate(
        [(["true"], True), (["false"], False), (["sh", "-c", "kill -9 $$"], False), (["no"], False)]
    ):
        cell = Cell(cells, shards[0], tmp_path / f"{number}", program)
        for _ in range(2):
            cell.start()
            assert cell.ended(20) is good, program
            cell.end()
            cells._process.kill()
            cells._process.wait()


def test_a_program_that_fails_is_told_so_while_others_of_its_cell_are_still_being_ended(
    cells, shards, tmp_path
):
    # The cell's first process is there until the system has taken all of them away.
    program = f"for one in $(seq 100); do sleep {MARK} & done; exit 1"
    cell = Cell(cells, shards[0], tmp_path / "work", ["sh", "-c", program])
    cell.start()
    assert cell.ended(60) is False
    cell.end()
    assert not sleepers()


def test_shards_draw_different_numbers_though_they_are_copies_of_one_process(
    trainers, shards, tmp_path
):
    draw = "import random, numpy as np; print(random.random(), np.random.rand(), flush=True)"
    for name in ("one", "two"):
        cell = Cell(trainers, shards[0], tmp_path / name, [draw], log=tmp_path / f"{name}.txt")
        cell.start()
        assert cell.ended(60)
        cell.end()
    drawn = [*lines_of(tmp_path / "one.txt", 1), *lines_of(tmp_path / "two.txt", 1)]
    assert len({number for line in drawn for number in line.split()}) == 4


NOBODY = 65534
CHECK = """
import sys
from pathlib import Path
from dpfedadamw.extensions.gate.cells import check
check([], Path(sys.argv[1]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="all tests run without rights then")
def test_a_user_without_any_rights_can_isolate_shards():
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, NOBODY, NOBODY)
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHECK, place], user=NOBODY, group=NOBODY, extra_groups=[],
                capture_output=True, text=True, check=False, timeout=60, cwd="/",
                env={"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        except PermissionError:
            pytest.skip("Python lies where no other user can read it")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_machine_without_namespaces_is_told_what_it_lacks(tmp_path, monkeypatch):
    (tmp_path / "begin.py").write_text(
        "from dpfedadamw.extensions.gate import cell\ncell._NEW = 1\ncell.main()\n"
    )
    monkeypatch.setattr(first_process, "__file__", str(tmp_path / "begin.py"))
    (tmp_path / "work").mkdir()
    with pytest.raises(CellError) as told:
        check([], tmp_path / "work")
    assert str(told.value) == (
        "shards cannot be isolated here (OSError: [Errno 22] unshare); it needs Linux 5.8 or newer "
        "with user namespaces, and no container that forbids them"
    )


def test_a_ledger_that_jobs_could_read_is_refused(tmp_path):
    private = Path(sys.prefix) / "ledger"
    with pytest.raises(CellError, match=f"{private}: lies under .*, which every job can read"):
        check([private], tmp_path)
