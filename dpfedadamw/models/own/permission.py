"""Which code that a file names may run: what the user named, and nothing else.

A spec, or a run directory, may come from anyone, and to import a module is to run it. So a module
that a file names is looked for, imported and called only while a `Permission` lasts that covers it.
Commands make one of ``--allow-code`` and the user's own list, functions of `api` of ``allow_code``.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from dpfedadamw.errors import ModelError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}(\.[A-Za-z_][A-Za-z0-9_]{0,99})*")
OF_PYTHON = "of Python's own library, which holds no model"
# How a function of `api` is given names, and a command.
ARGUMENT, OPTION = "allow_code", "--allow-code"


def _nothing() -> tuple[str, ...]:
    return ()


class CodeNotAllowedError(ModelError):
    """A file names code that the user did not.

    Attributes:
        key: The key that names it, dotted: "model.target".
        named: What it names: "nets:Net".
        message: What is said of it, without the key.
    """

    def __init__(self, key: str, named: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key, self.named, self.message = key, named, message


@dataclass
class Permission:
    """The modules that may run, and where none may come from.

    Attributes:
        modules: Dotted names; each covers the module and all below it.
        listed: Reads the user's own list; asked only where `modules` do not cover a name.
        closed: Folders of which no file is imported: run directories that a command was given.
        given_as: `ARGUMENT` or `OPTION`: what a refusal tells the user to add.
    """

    modules: tuple[str, ...] = ()
    listed: Callable[[], Iterable[str]] = _nothing
    closed: tuple[Path, ...] = ()
    given_as: str = ARGUMENT
    _read: tuple[str, ...] | None = field(default=None, init=False)

    def covers(self, module: str) -> bool:
        """Whether a module may run.

        Raises:
            DpfedadamwError: If the user's own list cannot be read, or others may write it.
        """
        if _covered(module, self.modules):
            return True
        if self._read is None:
            self._read = checked(self.listed(), "the list of allowed code")
        return _covered(module, self._read)

    def handed_on(self) -> tuple[str, ...]:
        """The names that another process of this command is given, as far as they were needed."""
        return (*self.modules, *(self._read or ()))


_current: ContextVar[Permission | None] = ContextVar("code that may run", default=None)


@contextlib.contextmanager
def allowing(
    modules: Iterable[str],
    listed: Callable[[], Iterable[str]] = _nothing,
    closed: Iterable[Path] = (),
    given_as: str = ARGUMENT,
) -> Iterator[None]:
    """Let files name code of these modules, for as long as this lasts.

    Args:
        modules: Dotted names: ``nets`` is the module or package and all below it.
        listed: Returns further names, of the user's own list.
        closed: Folders of which no file is imported.
        given_as: `ARGUMENT` or `OPTION`, for messages.

    Raises:
        ModelError: If a name is none of a module, or one of Python's own library.
    """
    given = checked(modules, given_as)
    token = _current.set(Permission(given, listed, tuple(closed), given_as))
    try:
        yield
    finally:
        _current.reset(token)


def permission() -> Permission:
    """The permission that holds here; that of nothing where there is none."""
    return _current.get() or Permission()


def require(target: str, key: str) -> None:
    """Refuse a target ``package.module:Name`` whose module the user did not name.

    Nothing is imported or looked for to find out.

    Args:
        target: The target.
        key: The key that names it, dotted.

    Raises:
        CodeNotAllowedError: If she did not, or it is of Python's own library.
    """
    module = target.partition(":")[0]
    if of_python(module):
        raise CodeNotAllowedError(key, target, f"{target} is {OF_PYTHON}")
    here = permission()
    if not here.covers(module):
        add = f"add {OPTION} {module}"
        if here.given_as == ARGUMENT:
            add = f'give {ARGUMENT}=["{module}"]'
        message = f"{target} is code named in this file; to run it {add}"
        raise CodeNotAllowedError(key, target, message)


def checked(modules: Iterable[str], place: str) -> tuple[str, ...]:
    """Names of modules, each once.

    Raises:
        ModelError: If one is no dotted name, or of Python's own library.
    """
    if isinstance(modules, str):
        modules = (modules,)
    found = tuple(dict.fromkeys(modules))
    for name in found:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ModelError(
                f"{place}: {str(name)[:60]!r} is not a module name; write nets, or "
                "my_package.models"
            )
        if of_python(name):
            raise ModelError(f"{place}: {name} is {OF_PYTHON}")
    return found


def _covered(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def of_python(module: str) -> bool:
    """Whether a module is of Python's own library."""
    return module.partition(".")[0] in sys.stdlib_module_names
