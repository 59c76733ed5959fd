"""Help texts: what a terminal breaks into lines has none of the source's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dpfedadamw import cli
from dpfedadamw.cli.commands import AllCommands


def described(command):
    """A command's help and that of all below it, by name."""
    yield command.name, command.help or ""
    for below in getattr(command, "commands", {}).values():
        yield from described(below)


def test_no_paragraph_of_any_command_keeps_the_line_breaks_of_its_source():
    found = dict(described(cli.every_command()))
    assert len(found) > 30
    broken = [
        (name, part)
        for name, text in found.items()
        for part in text.split("\n\n")
        if "\n" in part and "\n " not in f"\n{part}"
    ]
    assert broken == []
    assert "the budget spent on each data set" in found["site"]


def test_the_sentence_by_which_a_command_is_listed_is_the_first_of_its_own_help():
    listed = AllCommands(name="listed")
    loaded = cli.every_command().commands
    assert listed.list_commands(None) == list(loaded)
    for name, command in listed.commands.items():
        assert command.help == loaded[name].help.partition("\n\n")[0]
        assert command.name == loaded[name].name == name


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["--help"], set()),
        (["budget", "--help"], {"budget"}),
        (["compare", "--help"], {"comparison"}),
    ],
)
def test_a_call_loads_the_modules_of_its_own_command_alone(arguments, needed):
    program = (
        "import sys\nfrom dpfedadamw import cli\n"
        "try:\n    cli.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "names = [name.split('.') for name in sys.modules if name.startswith('dpfedadamw.')]\n"
        "print('loaded', *{n[2] for n in names if n[-1] == 'commands' and n[1] == 'extensions'},"
        " *({'audit', 'budget', 'cost', 'init', 'keys', 'run', 'spec'}"
        " & {n[2] for n in names if n[1] == 'cli' and len(n) > 2}))\n"
    )
    call = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()[1:]) == needed
