"""Python code that a spec names: found without running it, its digest, and its import.

Nothing here looks for, imports or calls what the user did not allow (`permission`). A module is one
that is installed, or else a file of the current folder; what is imported from that folder is the
module and what its own source imports from there, so that no other file of it is ever run. No file
of a run directory is.

The digest covers the module's file and, of what that imports, every file below the same folder,
lazily or not. Of a package that is installed, where there may be thousands, it covers the module's
own file and the package's version.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from dpfedadamw.errors import ModelError
from dpfedadamw.models.own.permission import CodeNotAllowedError, permission, require
from dpfedadamw.rundir import holds_a_run

# Keys that name code.
TARGET, LOSS = "model.target", "model.loss"
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


def source_of(target: str, key: str = TARGET) -> PythonSource:
    """The source of a target ``package.module:Name``; none of it is run.

    Args:
        target: The target.
        key: The key that names it, dotted.

    Raises:
        CodeNotAllowedError: If the user did not name its module.
        ModelError: If it is not there, or lies in a run directory.
    """
    require(target, key)
    module = target.partition(":")[0]
    found = _find(module)
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        where = "not a file of Python source" if found is not None else "there is no such module"
        raise ModelError(
            f"{key}: {target}: {where}; modules are searched as Python does (installed packages, "
            "PYTHONPATH) and then in the current folder"
        )
    _refuse_closed(Path(found.origin), f"{key}: {target}")
    if _is_installed(Path(found.origin)):
        package = module.partition(".")[0]
        distributions = packages_distributions().get(package, [])
        versions = {f"{name} (package)": version(name) for name in sorted(set(distributions))}
        return PythonSource({module: _digest(Path(found.origin)), **versions})
    files: dict[str, str] = {}
    _collect(module, _root(module, Path(found.origin)), files, f"{key}: {target}")
    return PythonSource(files)


# What was imported here, with the digest that its files had: code in memory is older than a file
# that was edited since.
_imported: dict[str, str] = {}


def load(target: str, key: str = TARGET) -> Any:
    """Import a target ``package.module:Name`` as its files stand now; it is not called.

    Args:
        target: The target.
        key: The key that names it, dotted.

    Returns:
        A class, or a function, that an allowed module defines; a loss may be a module of torch too,
        as which many are written.

    Raises:
        CodeNotAllowedError: If the user did not name the module that defines it.
        ModelError: If it cannot be imported, has no such name, or is nothing that may be called.
    """
    module_name, _, qualified = target.partition(":")
    source = source_of(target, key)
    if _imported.get(module_name) != source.sha256:
        for name in source.files:
            if name in sys.modules and not _belongs_to_others(sys.modules[name]):
                del sys.modules[name]
    importlib.invalidate_caches()
    try:
        with _current_folder_last(source.files):
            found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ModelError(
            f"{key}: {target}: cannot be imported ({_said(error)}); fix the module"
        ) from error
    _imported[module_name] = source.sha256
    for part in qualified.split("."):
        try:
            found = getattr(found, part)
        except Exception as error:
            why = "" if isinstance(error, AttributeError) else f" ({_said(error)})"
            raise ModelError(f"{key}: {target}: {module_name} has no {qualified}{why}") from error
        if isinstance(found, ModuleType):
            # Names that a module imports lead to everything that Python can do.
            _require_defined(found.__name__, target, key)
    _refuse_what_is_no_model(found, target, key)
    return found


def _refuse_what_is_no_model(found: Any, target: str, key: str) -> None:
    """Refuse what is neither a class of modules nor a function, or is defined elsewhere."""
    from torch import nn

    if isinstance(found, type):
        if not issubclass(found, nn.Module):
            raise ModelError(f"{key}: {target}: is a class, but not a subclass of torch.nn.Module")
        _require_defined(found.__module__, target, key)
    elif isinstance(found, MethodType) and isinstance(found.__self__, type):
        _require_defined(found.__self__.__module__, target, key)
        _require_defined(getattr(found.__func__, "__module__", None), target, key)
    elif isinstance(found, FunctionType):
        _require_defined(found.__module__, target, key)
    elif not (key == LOSS and isinstance(found, nn.Module)):
        raise ModelError(
            f"{key}: {target}: is neither a class nor a function that returns a module; wrap it in "
            "a function of your own"
        )


def _require_defined(module: str | None, target: str, key: str) -> None:
    """Refuse what an allowed module has from another one, which the user did not name."""
    if module is None or not permission().covers(module):
        raise CodeNotAllowedError(
            key,
            target,
            f"{target} is defined in {module or 'no module of Python source'}, which was not "
            "allowed; name a class or a function of your own",
        )


def _belongs_to_others(module: Any) -> bool:
    """Whether a module that is loaded is an installed one, which stays as it is."""
    place = getattr(module, "__file__", None)
    return place is None or _is_installed(Path(place))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class _Beside(MetaPathFinder):
    """Finds modules of one folder by their names alone, after everything else was looked through.

    On the search path, the folder would answer for every name that is looked for meanwhile: for
    whatever a library tries to import and does not find, any file of it would be run.
    """

    def __init__(self, folder: str, names: Iterable[str]) -> None:
        self._folder, self._names = folder, frozenset(one.partition(".")[0] for one in names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of these names."""
        if path is not None or fullname not in self._names:
            return None
        return PathFinder.find_spec(fullname, [self._folder], target)


@contextlib.contextmanager
def _current_folder_last(names: Iterable[str]) -> Iterator[None]:
    """Find these modules in the current folder too, as scripts do and installed commands do not."""
    finder = _Beside(str(Path.cwd()), names)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)


def _find(module: str) -> ModuleSpec | None:
    """Where a module lies, in the order of an import, the current folder last; none is imported."""
    importlib.invalidate_caches()
    first, *rest = module.split(".")
    found = (
        PathFinder.find_spec(first)
        or _hooked(first)
        or PathFinder.find_spec(first, [str(Path.cwd())])
    )
    name = first
    for part in rest:
        if found is None:
            return None
        name = f"{name}.{part}"
        found = PathFinder.find_spec(name, found.submodule_search_locations or [])
    return found


def _hooked(name: str) -> ModuleSpec | None:
    """Where an import hook finds a module, such as that of an editable installation."""
    for hook in sys.meta_path:
        find = getattr(hook, "find_spec", None)
        if find is not None and hook is not PathFinder:
            found: ModuleSpec | None = find(name, None)
            if found is not None:
                return found
    return None


def _refuse_closed(place: Path, what: str) -> None:
    """Refuse a file of a run directory: anyone may have made the run and its files."""
    for path in {place.absolute(), place.resolve()}:
        for folder in path.parents:
            if holds_a_run(folder) or any(
                folder == one.absolute() or folder == one.resolve() for one in permission().closed
            ):
                raise ModelError(
                    f"{what}: is in {folder}, and files of a run directory, an exported model or a "
                    "client's folder are never run; run the command where your own module is"
                )


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


def _collect(module: str, root: Path, files: dict[str, str], what: str) -> None:
    """Add a module, the packages above it and what it imports from below the same root."""
    waiting, open_folders = [module], set[Path]()
    elsewhere = {module.partition(".")[0]: False}
    while waiting:
        name = waiting.pop()
        place = _file_of(name, root)
        if name in files or place is None:
            continue
        first = name.partition(".")[0]
        if first not in elsewhere:
            elsewhere[first] = _is_found_before(first, root)
        if elsewhere[first]:
            continue
        if place.parent not in open_folders:
            _refuse_closed(place, what)
            open_folders.add(place.parent)
        if len(files) >= _MOST_FILES:
            raise ModelError(
                f"{what}: {module} imports more than {_MOST_FILES} files of its folder; name "
                "a module that imports less"
            )
        files[name] = _digest(place)
        parents = name.split(".")[:-1]
        waiting += [".".join(parents[: depth + 1]) for depth in range(len(parents))]
        waiting += _imports(place, name, what)


def _is_found_before(name: str, root: Path) -> bool:
    """Whether Python's own library or an installed package answers for a name, not this folder."""
    if name in sys.builtin_module_names:
        return True
    found = PathFinder.find_spec(name)
    if found is None:
        return False
    places = [*(found.submodule_search_locations or ()), *([found.origin] if found.origin else [])]
    return not any(Path(one).resolve().is_relative_to(root) for one in places)


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    for place in (base / "__init__.py", base.with_name(f"{base.name}.py")):
        if place.is_file() and not _is_installed(place):
            return place
    return None


def _imports(place: Path, name: str, what: str) -> Iterator[str]:
    """Names that a file may import: modules, and what could be a module of a package."""
    try:
        tree = ast.parse(place.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ModelError(f"{what}: {name} is not Python ({_said(error)})") from None
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
