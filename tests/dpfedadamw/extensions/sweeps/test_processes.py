"""Processes that are forked from one that has the libraries: what they say, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from dpfedadamw.extensions.sweeps.processes import Processes


def command(arguments: list[str]) -> None:
    print("what nobody asked for")
    print(os.getcwd(), *arguments, file=sys.stderr)
    if "forever" in arguments:
        signal.pause()
    sys.exit(int(arguments[-1]))


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes(command)


def test_it_runs_here_tells_its_file_and_ends_with_its_code(
    processes, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    started = processes.start(["run", "3"], tmp_path / "told")
    assert started.wait(60) == started.poll() == 3
    assert (tmp_path / "told").read_text() == f"{tmp_path} run 3\n"
    assert capfd.readouterr() == ("", "")


def test_it_is_no_part_of_what_a_ctrl_c_reaches(processes, tmp_path):
    told = tmp_path / "told"
    started = processes.start(["forever"], told)
    until = time.monotonic() + 60
    while not (told.exists() and told.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    assert started.poll() is None
    assert started.wait(0.01) is None
    assert os.getpgid(started._process.pid) != os.getpgid(0)
    started.terminate()
    assert started.wait(60) == -signal.SIGTERM


def test_it_has_what_was_loaded_before(tmp_path):
    # One process serves all that are forked, so that this one is asked in a process of its own.
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from dpfedadamw.extensions.sweeps.processes import Processes\n"
        "def command(arguments):\n"
        "    sys.exit(5 if 'wave' in sys.modules else 6)\n"
        "if __name__ == '__main__':\n"
        "    print(Processes(command, ('wave',)).start([], Path('told')).wait(60))\n"
    )
    said = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == "5\n"
