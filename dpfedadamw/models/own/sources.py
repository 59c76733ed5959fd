"""Python code that a spec names: found without running it, its digest, and its import.

The digest covers the module's file and, of what that imports, every file below the same folder,
lazily or not. Of a package that is installed, where there may be thousands, it covers the module's
own file and the package's version.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from dpfedadamw.models.errors import ModelError

# More files than any model has: what imports more is no source of a model.
_MOST_FILES = 10_000


@dataclass(frozen=True)
class PythonSource:
    """The code behind a target.

    Attributes:
        files: Digest (sha256, hexadecimal) of each file by its module's name; the version of an
            installed package by its name.
    """

    files: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Digest of all of it, as of several files of data: sha256sum lines, by name."""
        lines = (f"{digest}  {name}\n" for name, digest in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def changed_from(self, before: Mapping[str, str]) -> list[str]:
        """What differs from the files of an earlier time, by name: changed, missing or new."""
        names = sorted({*before, *self.files})
        return [name for name in names if before.get(name) != self.files.get(name)]


def source_of(target: str) -> PythonSource:
    """The source of a target ``package.module:Name``; none of it is run.

    Raises:
        ModelError: If it is not there.
    """
    module = target.partition(":")[0]
    found = _find(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        where = "not a file of Python source" if found is not None else "there is no such module"
        raise ModelError(
            f"model.target: {target}: {where}; it is looked for as Python does (installed "
            "packages, PYTHONPATH) and then in the folder where the command is run"
        )
    if _is_installed(Path(found.origin)):
        package = module.partition(".")[0]
        distributions = packages_distributions().get(package, [])
        versions = {f"{name} (package)": version(name) for name in sorted(set(distributions))}
        return PythonSource({module: _digest(Path(found.origin)), **versions})
    files: dict[str, str] = {}
    _collect(module, _root(module, Path(found.origin)), files)
    return PythonSource(files)


# What was imported here, with the digest that its files had: code in memory is older than a file
# that was edited since.
_imported: dict[str, str] = {}


def load(target: str) -> Any:
    """Import a target ``package.module:Name`` as its files stand now.

    Raises:
        ModelError: If it cannot be imported, or has no such name.
    """
    module_name, _, qualified = target.partition(":")
    source = source_of(target)
    if _imported.get(module_name) != source.sha256:
        for name in source.files:
            if name in sys.modules and not _belongs_to_others(sys.modules[name]):
                del sys.modules[name]
    importlib.invalidate_caches()
    try:
        with _current_folder_last():
            found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ModelError(
            f"model.target: {target}: does not import ({_said(error)}); mend the module"
        ) from error
    _imported[module_name] = source.sha256
    for part in qualified.split("."):
        if not hasattr(found, part):
            raise ModelError(f"model.target: {target}: {module_name} has no {qualified}")
        found = getattr(found, part)
    return found


def _belongs_to_others(module: Any) -> bool:
    """Whether a module that is loaded is an installed one, which stays as it is."""
    place = getattr(module, "__file__", None)
    return place is None or _is_installed(Path(place))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@contextlib.contextmanager
def _current_folder_last() -> Iterator[None]:
    """Look in the current folder too, as scripts do and installed commands do not."""
    folder = str(Path.cwd())
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _find(module: str) -> ModuleSpec | None:
    """Where a module lies; nothing is imported unless only an import hook of others knows it."""
    with _current_folder_last():
        importlib.invalidate_caches()
        search: Any = None
        name, found = "", None
        for part in module.split("."):
            name = f"{name}.{part}" if name else part
            found = PathFinder.find_spec(name, search)
            if found is None:
                break
            search = found.submodule_search_locations or []
        if found is not None:
            return found
        try:
            return importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            return None


def _root(module: str, place: Path) -> Path:
    """The folder from which a module's dotted name leads to its file."""
    depth = len(module.split(".")) - (0 if place.name == "__init__.py" else 1)
    return place.resolve().parents[depth]


def _is_installed(place: Path) -> bool:
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    return any(place.resolve().is_relative_to(Path(one).resolve()) for one in folders)


def _digest(place: Path) -> str:
    try:
        return hashlib.sha256(place.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(f"{place}: cannot be read ({error.strerror})") from None


def _collect(module: str, root: Path, files: dict[str, str]) -> None:
    """Add a module, the packages above it and what it imports from below the same root."""
    waiting = [module]
    while waiting:
        name = waiting.pop()
        place = _file_of(name, root)
        if name in files or place is None:
            continue
        if len(files) >= _MOST_FILES:
            raise ModelError(
                f"model.target: {module} imports more than {_MOST_FILES} files of its folder; name "
                "a module that imports less"
            )
        files[name] = _digest(place)
        parents = name.split(".")[:-1]
        waiting += [".".join(parents[: depth + 1]) for depth in range(len(parents))]
        waiting += _imports(place, name)


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    for place in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if place.is_file() and not _is_installed(place):
            return place
    return None


def _imports(place: Path, name: str) -> Iterator[str]:
    """Names that a file may import: modules, and what could be a module of a package."""
    try:
        tree = ast.parse(place.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ModelError(f"model.target: {name} is not Python ({_said(error)})") from None
    package = name.split(".") if place.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
