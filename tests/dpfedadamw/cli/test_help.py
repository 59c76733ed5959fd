"""Help texts: what a terminal breaks into lines has none of the source's own."""

from __future__ import annotations

from dpfedadamw import cli


def described(command):
    """A command's help and that of all below it, by name."""
    yield command.name, command.help or ""
    for below in getattr(command, "commands", {}).values():
        yield from described(below)


def test_no_paragraph_of_any_command_keeps_the_line_breaks_of_its_source():
    found = dict(described(cli._commands()))
    assert len(found) > 30
    broken = [
        (name, part)
        for name, text in found.items()
        for part in text.split("\n\n")
        if "\n" in part and "\n " not in f"\n{part}"
    ]
    assert broken == []
    assert "what was spent of each data set" in found["site"]
