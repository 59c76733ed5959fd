"""The page of results: `python -m tests.specs.results_page docs/results.md` writes its tables.

Each command that stands alone between the page's marks is run, on the committed data, and what it
prints follows it. Nothing is trained.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpfedadamw.extensions.sweeps import cross_table, differences
from reports import run_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- printed by this command -->", "<!-- end -->"
_TABLE = re.compile(rf"{BEGIN}\n\n    (dpfedadamw [^\n]+)\n\n.*?{END}", re.DOTALL)
_SHARED = re.compile(
    r"(<!-- notes of every table -->\n).*?(<!-- end of notes of every table -->)", re.DOTALL
)
_KINDS: dict[str, Callable[[str], bool]] = {
    "Under every table": lambda command: True,
    "Under every table of accuracies": lambda command: "--against" not in command,
    "Under every table of differences": lambda command: "--against" in command,
}


def printed_by(command: str) -> str:
    """What a command prints to standard output.

    Raises:
        AssertionError: It does not end with 0.
    """
    from dpfedadamw.cli import main

    _, *arguments = shlex.split(command)
    raw = io.BytesIO()
    output = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    here, to = contextlib.chdir(ROOT), contextlib.redirect_stdout(output)
    with here, to, pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code, f"{command}: ended with {end.value.code}"
    return raw.getvalue().decode()


def head(stem: str) -> str:
    """The method that the page holds against every other of a file of data, in one family."""
    for command in commands(PAGE.read_text(encoding="utf-8")):
        words = shlex.split(command)
        method = words[words.index("--rows") + 1] == "method"
        if words[3] == f"docs/results/{stem}.csv" and method and "--against" in words:
            return words[words.index("--against") + 1]
    raise AssertionError(f"the page holds no method of {stem} against the others")


def differences_of(command: str) -> differences.DifferenceTable:
    """What a command with --against compares."""
    words = shlex.split(command)
    named = {word: words[place + 1] for place, word in enumerate(words) if word.startswith("--")}
    rows = run_rows.read_csv(ROOT / words[3])
    if "--where" in named:
        column, _, value = named["--where"].partition("!=")
        rows = [row for row in rows if str(row[column]) != value]
    table = cross_table.tabulate(rows, named["--rows"], named.get("--columns"))
    return differences.against(table, named["--against"])


def commands(page: str) -> list[str]:
    """The commands whose output the page shows."""
    return _TABLE.findall(page)


def written(page: str) -> str:
    """The page with the output of its commands, and no note twice.

    Notes that stand under every table, or under every table of a kind, are listed once, between
    marks of their own. A table of differences repeats no note of the accuracies that it is of.
    """
    printed = {command: _parts(printed_by(command)) for command in commands(page)}
    shared = {
        kind: _of_all([notes for command, (_, notes) in printed.items() if has(command)])
        for kind, has in _KINDS.items()
    }
    said: dict[str, list[str]] = {}

    def table(found: re.Match[str]) -> str:
        body, notes = printed[found[1]]
        data = shlex.split(found[1])[3]
        known = [*said.get(data, []), *itertools.chain(*shared.values())]
        if "--against" not in found[1]:
            said[data] = notes
        own = "".join(f"{note}\n" for note in notes if note not in known)
        return f"{BEGIN}\n\n    {found[1]}\n\n{body}\n\n{own}{own and chr(10)}{END}"

    lists, listed = "", set()
    for kind, notes in shared.items():
        lists += f"\n{kind}:\n\n" + "".join(f"* {note}\n" for note in notes if note not in listed)
        listed |= set(notes)
    page = _SHARED.sub(lambda found: f"{found[1]}{lists}\n{found[2]}", page)
    return _TABLE.sub(table, page)


def _parts(output: str) -> tuple[str, list[str]]:
    """A table, and the notes under it."""
    body, _, notes = output.partition("\n\n")
    return body, notes.splitlines()


def _of_all(tables: list[list[str]]) -> list[str]:
    """The notes that each of the tables has."""
    return [note for note in tables[0] if all(note in notes for notes in tables)]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
