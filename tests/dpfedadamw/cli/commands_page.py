"""Writes docs/commands.md: every command with its arguments and options, from the command line.

python -m tests.dpfedadamw.cli.commands_page docs/commands.md
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpfedadamw import cli

_INTRODUCTION = """\
# Commands

This page is written from the command line itself by
`python -m tests.dpfedadamw.cli.commands_page docs/commands.md`; do not edit it by hand.
`dpfedadamw COMMAND --help` prints the same text, and `dpfedadamw --install-completion` makes the
shell complete commands, specs, the keys of `--set` and run directories.

"""
_EXIT_CODES = {
    "0": "success",
    "1": "the audit says FAIL or NOT VERIFIED; training diverged; a signature does not hold; the "
    "level of assurance is lower than `verify --require-level` asks for; or `epsilon --check` "
    "finds a larger ε than the one stated",
    "2": "the input is wrong, or the machine could not do it: full disk, no memory, no permission. "
    "One line says what and where. If a run was interrupted, it also gives the command that "
    "continues it",
    "3": "`verify` only: no file was changed, but the signer's key is known from the run alone",
    "70": "a bug in dpfedadamw; please report it",
    "129, 130, 143": "stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM; files are consistent",
}
_OUTPUT = """\
Closing the pipe early (`| head`) has no effect on a run. If standard output cannot be written, the
command finishes its work and exits with 2. With `--json`, errors are also printed on standard
output, as `{"error": {"exit_code": 2, "messages": [...]}}`.
"""
# Where the documentation says more.
_MORE = {
    "init": "analyst.md",
    "run": "tutorial.md",
    "audit": "detection.md",
    "canaries": "canaries.md",
    "replay": "reexecution.md",
    "report": "report.md",
    "verify": "signatures.md",
    "sign": "signatures.md",
    "export": "serving.md",
    "predict": "serving.md",
    "bundle": "signatures.md#the-public-files",
    "epsilon": "privacy.md",
    "calibrate": "people.md",
    "sign-off": "sign-off.md",
    "list": "spec.md",
    "claim": "claims.md",
    "compare": "compare.md",
    "figures": "figures.md",
    "site": "site.md",
    "new": "serving.md#a-project-to-start-from",
    "spec": "spec.md",
    "budget": "privacy.md#a-budget-for-all-runs-on-the-same-data",
    "model": "models.md#a-model-of-your-own",
    "evidence": "evidence.md",
    "keys": "signatures.md",
    "challenge": "challenge.md",
    "flower": "deploy.md#clients-on-machines-of-their-own",
    "sweep": "sweeps.md",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that is shown, by its whole name, in the order of the help."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if path and not getattr(command, "hidden", False):
            yield " ".join(path), command
        for name, one in getattr(command, "commands", {}).items():
            yield from below(one, (*path, name))

    return below(cli.every_command(), ())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _usage(name: str, command: Any) -> str:
    words = [f"dpfedadamw {name}"]
    if getattr(command, "commands", None):
        words.append("COMMAND")
    for one in command.params:
        if one.param_type_name == "argument":
            shown = (one.metavar or one.name.upper()) + ("..." if one.nargs == -1 else "")
            words.append(shown if one.required else f"[{shown}]")
    return " ".join(words)


def _default(one: Any) -> str:
    """The default of an option, where it is a plain value that says something."""
    value = one.default
    if isinstance(value, bool) or value in (None, "") or not isinstance(value, str | int | float):
        return ""
    return f" Default: `{value}`."


# An option that so many commands describe in the same words is described once.
_SHARED_BY = 5


def _row(one: Any) -> str:
    """A parameter's row: how it is written, what it means, its default."""
    if one.param_type_name == "argument":
        name = one.metavar or one.name.upper()
    else:
        names = " / ".join((*one.opts, *one.secondary_opts))
        name = f"{names} {one.metavar}" if one.metavar else names
    return f"| `{_cell(name)}` | {_cell(one.help or '')}{_default(one)} |"


def _shown(command: Any) -> list[Any]:
    """The parameters of a command that its help shows."""
    return [
        one
        for one in command.params
        if not getattr(one, "hidden", False) and one.name not in ("help", "install_completion")
    ]


def _table(rows: list[str]) -> Iterator[str]:
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")


def _parameters(command: Any, shared: list[str]) -> Iterator[str]:
    rows = [_row(one) for one in _shown(command)]
    yield from _table([row for row in rows if row not in shared])
    also = [row.split("|")[1].strip() for row in rows if row in shared]
    if also:
        yield from (f"[Shared](#shared-options): {', '.join(also)}.", "")


def page() -> str:
    """The page as it should be."""
    found = list(commands())
    lines = ["| command | |", "|---|---|"]
    for name, command in found:
        if " " not in name:
            first = inspect.cleandoc(command.help).split("\n\n")[0]
            lines.append(f"| [`{name}`](#{name}) | {_cell(first)} |")
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES.items()]
    lines += ["", *_OUTPUT.split("\n")]
    counts = Counter(_row(one) for _, command in found for one in _shown(command))
    shared = [row for row, times in counts.items() if times >= _SHARED_BY]
    lines += ["## Shared options", "", *_table(shared)]
    for name, command in found:
        level = "##" if " " not in name else "###"
        lines += [f"{level} {name}", "", f"    {_usage(name, command)}", ""]
        lines += [inspect.cleandoc(command.help), "", *_parameters(command, shared)]
        if name in _MORE:
            lines += [f"More: [{_MORE[name].partition('#')[0]}]({_MORE[name]})", ""]
    return _INTRODUCTION + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
