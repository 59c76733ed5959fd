"""``--allow-code``: the option of every command that may run code named in a file.

A command without this option runs no such code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from dpfedadamw.errors import DpfedadamwError, SpecError

_Command = TypeVar("_Command", bound=Callable[..., None])
_Option = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="MODULE",
        help="Allow the spec to name code in this Python module or below it (model.target, "
        "model.loss); without it, no code is imported. Repeatable.",
    ),
]
# Arguments of commands by which a user names run directories, or a client's folder.
_FOLDERS = ("run_dir", "run_dirs", "subject", "resume", "folder", "server", "clients")


def may_run_named_code(command: _Command) -> _Command:
    """Give a command the option, and let what it names be imported while the command runs."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    parameters = [
        one.replace(annotation=hints.get(one.name, one.annotation))
        for one in signature.parameters.values()
    ]
    before = next((at for at, one in enumerate(parameters) if one.name == "as_json"), None)
    option = inspect.Parameter(
        "allow_code", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=_Option
    )
    parameters.insert(len(parameters) if before is None else before, option)

    @functools.wraps(command)
    def allowed(allow_code: Sequence[str] | None = None, **given: Any) -> None:
        from dpfedadamw.filing.allowed_code import listed
        from dpfedadamw.models.own.permission import OPTION, CodeNotAllowedError, allowing

        try:
            with allowing(allow_code or (), listed, _folders(given), OPTION):
                command(**given)
        except CodeNotAllowedError as error:
            raise _placed(error, given) from error

    found: Any = allowed
    found.__signature__ = signature.replace(parameters=parameters)
    found.__annotations__ = {**hints, "allow_code": _Option}
    return found  # type: ignore[no-any-return]  # it takes what the command takes


def handed_on() -> list[str]:
    """The option, as passed on to another command that this one starts."""
    from dpfedadamw.models.own.permission import OPTION, permission

    return [f"{OPTION}={name}" for name in permission().handed_on()]


def _folders(given: Mapping[str, Any]) -> Iterator[Path]:
    """Folders that the user named as runs, or that others made."""
    for name in _FOLDERS:
        value = given.get(name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Path):
                yield one


def _placed(error: Any, given: Mapping[str, Any]) -> DpfedadamwError:
    """The refusal with file, line and column, where a spec that the user named holds the target."""
    from dpfedadamw.spec import overrides, reading

    named: list[tuple[str, Sequence[str]]] = []
    if isinstance(given.get("spec"), str):
        named.append((given["spec"], given.get("changes") or ()))
    for one in _folders(given):
        named.append((str(one if one.is_file() else one / "spec.yaml"), ()))
    path = tuple(error.key.split("."))
    for source, changes in named:
        try:
            document = reading.read(source)
            overrides.apply(document, changes)
        except DpfedadamwError:
            continue
        if document.at(path) == error.named:
            return SpecError([document.place(path).problem(path, error.message)])
    return error  # type: ignore[no-any-return]  # a DpfedadamwError
