"""Whatever ends a command, the user gets one line that says what and where, and an exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import typer

from dpfedadamw import cli
from dpfedadamw import spec as specs
from dpfedadamw.cli.endings import Passed, Stopped, ending_of, signals
from dpfedadamw.cli.terminal import refuse, resumable
from dpfedadamw.errors import DpfedadamwError
from tests.runs import call

OF_THE_MACHINE = {
    "ENOSPC": "no space is left",
    "EDQUOT": "quota is used up",
    "EIO": "input/output error",
    "EROFS": "read-only",
    "EMFILE": "ulimit -n",
    "ENFILE": "too many files are open on this machine",
}
OF_THE_FILE = {
    "EACCES": "no permission",
    "EPERM": "no permission",
    "ENOENT": "no such file",
    "EFBIG": "ulimit -f",
    "EISDIR": "Is a directory",
}


def failed(name: str, filename: str | None = None) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), filename)


@pytest.mark.parametrize(("name", "text"), [*OF_THE_MACHINE.items(), *OF_THE_FILE.items()])
def test_an_error_of_the_operating_system_is_one_line_with_the_file_and_never_our_bug(name, text):
    ending = ending_of(failed(name, "runs/small/ledger.jsonl"))
    assert ending.code == 2
    (line,) = ending.lines
    assert line.startswith("error: runs/small/ledger.jsonl: ")
    assert text in line
    assert "bug" not in line
    assert ending.bug is None


def test_both_files_of_a_failed_renaming_are_named():
    error = OSError(errno.ENOSPC, "No space left on device", "new", None, "old")
    assert "error: new → old: no space" in ending_of(error).lines[0]


def beneath(hidden: BaseException, shown: Exception, cause: bool) -> Exception:
    """The error that is shown, raised because of another or while that one was handled."""
    if cause:
        shown.__cause__ = hidden
    else:
        shown.__context__ = hidden
    return shown


@pytest.mark.parametrize("cause", [True, False])
@pytest.mark.parametrize("name", OF_THE_MACHINE)
def test_a_full_disk_beneath_a_librarys_own_error_is_not_our_bug(name, cause):
    ending = ending_of(beneath(failed(name, "report.pdf"), ValueError("failed to compile"), cause))
    assert ending.code == 2
    assert ending.lines[0].startswith("error: report.pdf: ")


def test_a_missing_file_beneath_another_error_does_not_excuse_our_bugs():
    assert ending_of(beneath(failed("ENOENT", "cache"), KeyError("missing"), True)).code == 70


def test_want_of_memory_names_what_helps():
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(2**58)
    exceptions = [
        MemoryError(),
        of_torch.value,
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        failed("ENOMEM"),
    ]
    for error in exceptions:
        ending = ending_of(error)
        assert ending.code == 2
        assert "compute.physical_batch_size" in ending.lines[0]
        assert len(ending.lines[0].splitlines()) == 1


def test_other_errors_are_our_bugs_in_one_line():
    for error in (RuntimeError("shape\nmismatch"), EOFError(), RecursionError("too deep")):
        ending = ending_of(error)
        assert ending.code == 70
        assert "This is a bug of dpfedadamw" in ending.lines[0]
        assert len(ending.lines[0].splitlines()) == 1
        assert ending.bug is error


ENDINGS = [
    (failed("ENOSPC", "model.safetensors"), 2),
    (failed("ENOSPC"), 2),
    (MemoryError(), 2),
    (DpfedadamwError("ledger.jsonl: the hash chain is broken"), 2),
    (ValueError("of ours"), 70),
    (KeyboardInterrupt(), 130),
    (Stopped(signal.SIGTERM), 143),
    (Stopped(signal.SIGHUP), 129),
]


@pytest.mark.parametrize(("error", "code"), ENDINGS, ids=lambda value: str(value)[:12])
def test_whatever_ends_a_run_in_progress_names_the_command_that_continues_it(error, code):
    with pytest.raises(type(error)) as caught, resumable(Path("runs/small")):
        raise error
    ending = ending_of(caught.value)
    assert ending.code == code
    (line,) = ending.lines
    assert line.endswith("; continue with: dpfedadamw run --resume runs/small")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_before_the_run_is_opened_names_the_command_that_was_given(
    number, monkeypatch, capsys
):
    def stopped(*_, **__):
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    monkeypatch.setattr(cli, "_commands", lambda: stopped)
    with pytest.raises(SystemExit):
        cli.main(["run", "--resume", "runs/my run", "--json"])
    said = capsys.readouterr().err
    assert said.endswith("; continue with: dpfedadamw run --resume 'runs/my run' --json\n")
    with pytest.raises(SystemExit):
        cli.main(["verify", "runs/small"])
    assert "continue with" not in capsys.readouterr().err


def test_an_error_without_a_file_is_said_to_be_in_the_runs_folder():
    with pytest.raises(OSError, match="small") as caught, resumable(Path("runs/small")):
        raise failed("ENOSPC")
    assert ending_of(caught.value).lines[0].startswith("error: runs/small: no space")


def test_what_a_command_decides_itself_is_not_called_resumable():
    with pytest.raises(typer.Exit) as caught, resumable(Path("runs/small")):
        refuse("the timestamp failed")
    assert ending_of(caught.value).lines == ("the timestamp failed",)
    with resumable(Path("runs/small")):
        pass


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_main_thread_in_order(name, request):
    number = getattr(signal, name)
    # Under nohup the tests would have inherited that it is ignored.
    before = signal.signal(number, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(number, before))
    put_in_order = []

    def work():
        try:
            os.kill(os.getpid(), number)
            # Another thread may be the one that is interrupted; this one is told soon after.
            for _ in range(1000):
                time.sleep(0.01)
        finally:
            put_in_order.append(True)

    with pytest.raises(Stopped) as caught, signals():
        work()
    assert put_in_order
    assert caught.value.code == 128 + number
    assert ending_of(caught.value).lines == (f"stopped by {name}",)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_may_run_in_a_thread_that_gets_no_signals():
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(call("spec", "validate", "quickstart")))
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (failed("ENOSPC", "small.yaml"), 2, "error: small.yaml: no space is left on the device"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe", "fifo"), 2, "error: fifo: Broken pipe"),
        (EOFError("of a file"), 70, "internal error: EOFError: of a file"),
        (KeyboardInterrupt(), 130, "stopped"),
        (Stopped(signal.SIGTERM), 143, "stopped by SIGTERM"),
        (Stopped(signal.SIGHUP), 129, "stopped by SIGHUP"),
        (Passed(), 70, "internal error: Passed"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_every_ending_passes_through_the_whole_command_line(error, code, line, monkeypatch, capsys):
    def load(*_arguments):
        raise error

    monkeypatch.setattr(specs, "load", load)
    assert call("spec", "validate", "small.yaml") == code
    printed = capsys.readouterr()
    assert printed.err.startswith(line)
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert call("spec", "validate", "small.yaml", "--json") == code
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "error": {"exit_code": code, "messages": [printed.err.rstrip("\n")]}
    }


def test_a_wrong_spec_is_told_to_machines_problem_by_problem(tmp_path, capsys):
    spec = tmp_path / "wrong.yaml"
    spec.write_text("version: 1\nname: x\nmodel: {name: mlp}\nfederation: {rounds: 0}\n")
    assert call("spec", "validate", str(spec), "--json") == 2
    told = json.loads(capsys.readouterr().out)["error"]
    rounds = next(one for one in told["problems"] if one["path"] == "federation.rounds")
    assert (rounds["source"], rounds["line"]) == (str(spec), 4)
    assert len(told["messages"]) == len(told["problems"]) > 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("trian",), "error: No such command 'trian'"),
        (("run", "--nonsense"), "error: No such option: --nonsense"),
        (("epsilon",), "error: Missing argument 'SPEC'"),
        (("list", "algorithm"), "error: Invalid value for 'kind': 'algorithm' is not one of"),
    ],
)
def test_wrong_use_is_one_line_that_says_where_help_is(arguments, line, capsys):
    assert call(*arguments) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(line)
    assert told.endswith("--help")


def test_without_a_command_the_help_is_all_that_is_shown(capsys):
    assert call() == 2
    printed = capsys.readouterr()
    assert "Usage: dpfedadamw" in printed.out
    assert printed.err == ""


def test_folders_of_the_user_are_not_taken_for_our_packages(tmp_path):
    """`python -m` looks in the working directory first."""
    for name in ("reports", "audit", "specs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "dpfedadamw", "verify", "audit"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: audit: neither ledger.jsonl nor spec.yaml is in it")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-c", "from dpfedadamw.__main__ import start; start()"], "error: the package reports of"),
        (["-c", "import dpfedadamw.api"], "ImportError: the package reports of"),
    ],
)
def test_another_package_of_a_name_of_ours_is_told_in_one_line(arguments, said, tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").touch()
    here = str(Path(cli.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path / "reports",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), here])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (2 if said.startswith("error") else 1)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(said)
    assert f"hidden by another package of that name ({tmp_path / 'reports'})" in last
    assert len(done.stderr.splitlines()) == 1 or said.startswith("ImportError")


def test_an_older_python_is_told_what_is_needed():
    code = "import sys; sys.version_info = (3, 10, 14); import dpfedadamw"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "error: dpfedadamw needs Python 3.11 or newer, and this is Python 3.10.14\n"
    )


def test_an_exit_within_a_command_is_somebody_elses_and_never_a_good_end(monkeypatch, capsys):
    def leave(*_arguments):
        sys.exit(0)

    monkeypatch.setattr("dpfedadamw.spec.load", leave)
    assert call("spec", "validate", "quickstart") == 70
    assert "internal error: SystemExit" in capsys.readouterr().err


def test_a_working_directory_that_is_gone_is_told(tmp_path, monkeypatch, capsys):
    here = Path.cwd()
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    try:
        assert call("verify", ".") == 2
    finally:
        os.chdir(here)
    assert "working directory is gone" in capsys.readouterr().err


def test_a_link_that_leads_to_itself_is_wrong_input(tmp_path, capsys):
    (tmp_path / "runs").symlink_to("runs")
    assert call("site", str(tmp_path / "runs"), str(tmp_path / "out")) == 2
    assert "internal error" not in capsys.readouterr().err
