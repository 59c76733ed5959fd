"""docs/commands.md says of every command what the command line says."""

from __future__ import annotations

from pathlib import Path

from dpfedadamw.cli import terminal
from tests.dpfedadamw.cli.commands_page import commands, page

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_page_is_the_one_that_the_command_line_makes():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_command_and_every_exit_code_is_on_it():
    text = page()
    for name, command in commands():
        assert f"# {name}\n\n    dpfedadamw {name}" in text
        assert command.help.split("\n")[0] in text
    codes = {value for name, value in vars(terminal).items() if name.startswith("EXIT_")}
    assert len(codes) > 3
    table = text.partition("## Exit codes")[2].partition("\n\n## ")[0]
    for code in codes:
        assert str(code) in table
