"""Which commands there are; the module of each is loaded when it is called.

A command's name and first sentence are given here, and those of an extension in its `__init__`, so
that `--help`, completion and a run do not load the modules of all other commands. Extensions are
found by their folders and named nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dpfedadamw.cli.endings import Passed
from dpfedadamw.loading import loading

# Name: the place of its function below `dpfedadamw.cli`, and its docstring's first paragraph.
COMMANDS = {
    "init": (
        "init:init",
        "Write a spec to start from, asking for what the options leave out or using defaults.",
    ),
    "run": (
        "run:run",
        "Train, audit, report and sign: SPEC in; model, ledger, audit and signed report out.",
    ),
    "audit": (
        "audit:audit",
        "Judge a run by its evidence: PASS, FAIL or NOT VERIFIED, check by check.",
    ),
    "canaries": (
        "canaries:canaries",
        "Train a spec again with planted records and bound epsilon from below, as `audit "
        "--canaries`.",
    ),
    "replay": (
        "replay:replay",
        "Run a finished run again, from its data and its key or seed, and compare its public "
        "files.",
    ),
    "report": (
        "audit:report",
        "Write a run's report again (report.json, .pdf, .html) and sign it as the auditor.",
    ),
    "verify": (
        "signatures:verify",
        "Check every signature, timestamp and hash of a run, of a comparison or an annex, offline.",
    ),
    "sign": (
        "signatures:sign",
        "Sign a run again: with another key, with a timestamp, or with the model's own signature.",
    ),
    "export": (
        "export:export",
        "Write a run's model as transformers or peft load it, with a card and a bill of materials.",
    ),
    "predict": (
        "predict:predict",
        "Predict one line per record, in row order: its label and the probability of each label.",
    ),
    "bundle": (
        "handover:bundle",
        "Copy exactly what a reader may have out of a run, into a folder that verifies by itself.",
    ),
    "erase": (
        "handover:erase",
        "Delete a run's private evidence for good, and sign a record of it (erasure.json).",
    ),
    "epsilon": (
        "cost:epsilon",
        "Show what a spec will cost in privacy, before anything is trained.",
    ),
    "calibrate": (
        "cost:calibrate",
        "Find the noise, rounds, rate or local steps that meet a target ε, and write the spec.",
    ),
    "sign-off": (
        "handover:sign_off",
        "Write an annex on which a person signs off the report, here or with another program.",
    ),
    "list": (
        "spec:list_",
        "List what a spec can name: algorithms, models, datasets or shipped specs.",
    ),
}
GROUPS = {
    "spec": ("spec:app", "Check, show and explain specs."),
    "budget": ("budget:app", "Show what all runs on the same data spend."),
    "model": ("model:app", "Show how a model is trained record by record, before a run."),
    "evidence": ("evidence:app", "Check evidence that another program wrote."),
    "keys": ("keys:app", "Make, show, replace and revoke signing keys."),
    "challenge": (
        "challenge:app",
        "Let trainer and auditor fix a run's noise, and the part to open, so that neither can "
        "choose it.",
    ),
}

_EXTENSIONS = Path(__file__).parents[1] / "extensions"


class LaterCommand(TyperCommand):
    """A command known by its name and first sentence; its module is not loaded."""

    def __init__(self, name: str, module: str, attribute: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self._module, self._attribute = module, attribute

    def load(self) -> Any:
        """Import the module and make the command, or the group of commands, that it describes."""
        with loading(self._module):
            described = getattr(import_module(self._module), self._attribute)
        if isinstance(described, typer.Typer):
            found: Any = typer.main.get_group(described)
        else:
            found = _command_of(described)
        found.name = self.name
        break_lines_of_help(found)
        return found


class AllCommands(TyperGroup):
    """All commands, each loaded when called; every exception they raise reaches `main`.

    Typer's own behaviour is to print "Aborted." for a file that ends early (EOFError), to end
    silently when interrupted, and to exit with 1 when a pipe breaks.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._extended = False
        self.commands.update(_described("dpfedadamw.cli", COMMANDS | GROUPS))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            raise Passed from error

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # typer's signature
        """All names, as the help shows them: single commands first, then groups."""
        self._add_extensions()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, not loaded; a name that is not ours is looked up in the extensions."""
        if cmd_name not in self.commands:
            self._add_extensions()
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called or completed, which is loaded here and nowhere else."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, LaterCommand):
            command = self.commands[command.name or ""] = command.load()
        return name, command, rest

    def load_all(self) -> None:
        """Load every command, for code that describes them all."""
        self._add_extensions()
        for name, command in self.commands.items():
            if isinstance(command, LaterCommand):
                self.commands[name] = command.load()

    def _add_extensions(self) -> None:
        if self._extended:
            return
        self._extended = True
        single = {name: one for name, one in self.commands.items() if name not in GROUPS}
        groups = {name: one for name, one in self.commands.items() if name in GROUPS}
        for package in _extensions():
            described = vars(import_module(package))
            module = f"{package}.commands"
            for name, text in described.get("COMMANDS", {}).items():
                single[name] = LaterCommand(name, module, name, text)
            for name, text in described.get("GROUPS", {}).items():
                groups[name] = LaterCommand(name, module, "app", text)
        self.commands = single | groups


def break_lines_of_help(command: Any) -> None:
    """Let the terminal wrap the help of a command and of all commands below it.

    Typer joins the lines of a docstring's first paragraph but keeps those of all others as in the
    source, where they are longer than a terminal of 80 columns.
    """
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(
            # Indented text is kept as written.
            part if "\n " in f"\n{part}" else part.replace("\n", " ")
            for part in paragraphs
        )
    for below in getattr(command, "commands", {}).values():
        break_lines_of_help(below)


def _command_of(function: Callable[..., Any]) -> Any:
    """The command that a function's annotations and docstring describe."""
    alone = typer.Typer(
        add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
    )
    alone.command()(function)
    return typer.main.get_command(alone)


def _described(package: str, table: Mapping[str, tuple[str, str]]) -> dict[str, LaterCommand]:
    """The commands of a table, whose places are MODULE:ATTRIBUTE below a package."""
    found = {}
    for name, (place, text) in table.items():
        module, _, attribute = place.partition(":")
        found[name] = LaterCommand(name, f"{package}.{module}", attribute, text)
    return found


def _extensions() -> Iterator[str]:
    """The packages of all extensions that have commands, by name."""
    found = [*_EXTENSIONS.glob("*/commands.py"), *_EXTENSIONS.glob("*/commands/__init__.py")]
    for name in sorted(path.relative_to(_EXTENSIONS).parts[0] for path in found):
        yield f"dpfedadamw.extensions.{name}"
