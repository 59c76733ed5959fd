"""Standard output that is full, closed, unread or not UTF-8 breaks no command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import call


@pytest.fixture
def output(monkeypatch):
    """Make standard output a file, as the operating system does, and give it back afterwards."""
    opened = []

    def give(target, **options):
        opened.append(open(target, "w", **{"encoding": "utf-8", **options}))  # noqa: SIM115 closed below
        monkeypatch.setattr(sys, "stdout", opened[0])

    yield give
    for stream in opened:
        stream.close()


def test_a_reader_that_went_away_is_no_error(output, capsys):
    reader, writer = os.pipe()
    output(writer)
    os.close(reader)
    for arguments in (("list", "algorithms"), ("list", "algorithms", "--json"), ("--help",)):
        assert call(*arguments) == 0
    assert call("spec", "validate", "no-such-spec") == 2
    assert "no-such-spec" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("list", "algorithms"), ("list", "algorithms", "--json"), ("--help",)]
)
def test_a_full_standard_output_is_one_line_and_exit_code_2(arguments, output, capsys):
    output("/dev/full")
    assert call(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: standard output cannot be written (No space left on device); everything else is "
        "done and saved"
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("arguments", [("--help",), ("list", "algorithms"), ("epsilon", "-h")])
def test_a_terminal_that_is_not_utf_8_shows_the_numbers_of_characters_it_lacks(
    arguments, encoding, output, tmp_path
):
    output(tmp_path / "shown", encoding=encoding)
    assert call(*arguments) == 0
    shown = (tmp_path / "shown").read_text(encoding=encoding)
    assert "dpfedadamw" in shown or "DP-FedAdamW" in shown
    if arguments == ("--help",):
        assert "accuracy, \\u03b5" in shown


def test_json_on_a_terminal_that_is_not_utf_8_says_the_same(output, tmp_path, capsys):
    assert call("spec", "schema", "--json") == 0
    expected = json.loads(capsys.readouterr().out)
    output(tmp_path / "shown", encoding="ascii")
    assert call("spec", "schema", "--json") == 0
    shown = (tmp_path / "shown").read_text(encoding="ascii")
    assert "\\u03b5" in shown
    assert json.loads(shown) == expected


def test_a_specs_yaml_is_utf_8_on_every_terminal(output, tmp_path):
    spec = tmp_path / "here.yaml"
    spec.write_bytes(
        "version: 1\nname: x\ndescription: é ε 🙂\ndata: {dataset: digits, clients: 10}\n"
        "model: {name: mlp}\nalgorithm: {name: fedavg}\nprivacy: {unit: none}\n".encode()
    )
    output(tmp_path / "shown", encoding="cp1252")
    assert call("spec", "show", str(spec)) == 0
    assert "é ε 🙂" in (tmp_path / "shown").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors as a shell of POSIX does")
def test_without_standard_streams_no_file_takes_their_place(tmp_path: Path):
    """A file that got number 2 would hold what libraries say on standard error."""
    program = (
        "import os, sys\n"
        "from dpfedadamw.cli.endings import steady\n"
        "with steady():\n"
        f"    handle = os.open({str(tmp_path / 'ledger')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "    print('said'); print('said', file=sys.stderr)\n"
        "    os.write(handle, str(handle).encode())\n"
    )
    command = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", command, sys.executable, program], check=True)
    assert int((tmp_path / "ledger").read_text()) > 2
