"""A registry: names that a spec can choose, each with what is registered under it.

Algorithms, models, data sets and accountants are found in the same way: each file of the package
registers what it holds when it is imported, and so does any installed package that names a module
of its own under the entry points' group, which is called after the package:

    [project.entry-points."dpfedadamw.algorithms"]
    my-algorithm = "my_package.my_algorithm"

A file is imported when a name that it registers is asked for, not before: a registry has a table of
its files with the names that each registers. Everything is imported where the registry is looked at
as a whole, where a name is asked for that the table does not have (a file needs no line in it to be
found), or where another package brings entries, which may clash with ours. An entry may say by a
number, its `place`, where it stands among the others; of one place, the table's order holds.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pkgutil
import threading
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar

from dpfedadamw.errors import DpfedadamwError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class MissingExtensionError(DpfedadamwError):
    """What was asked for belongs to an extension whose folder is not there."""


def extension(module: str, wanted: str) -> ModuleType:
    """A module of an extension, which nothing imports by name because its folder may be deleted.

    Args:
        module: Its full name, ``"dpfedadamw.extensions.trackers.tracking"``.
        wanted: What the user asked for, in the message.

    Raises:
        MissingExtensionError: If the extension's folder is not there.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (said := missing_extension(error)) is None:
            raise
        raise MissingExtensionError(f"{wanted}: {said}") from None


def missing_extension(error: ModuleNotFoundError) -> str | None:
    """What is said where the folder of an extension was deleted; None if no folder is missing."""
    package, *below = (error.name or "").split(".")
    ours = package in ("dpfedadamw", "audit", "reports")
    if not ours or below[:1] != ["extensions"] or len(below) > 2:
        return None
    folder = "/".join((package, *below))
    return f"needs {folder}, which was removed here; install the whole package"


class RegistrationError(DpfedadamwError):
    """Something cannot be registered: its name is taken, or the package that has it is broken."""


class Named(Protocol):
    """What can be registered."""

    @property
    def name(self) -> str:
        """What a spec calls it."""
        ...


_Entry = TypeVar("_Entry", bound=Named)
# The place of what says nothing of it: behind all that does.
LAST = 1000
# Each edition of any registry has a number of its own.
_EDITIONS = itertools.count(1)


class Registry(Mapping[str, _Entry]):
    """Everything of one kind by name: first the package's own, then that of other packages.

    Attributes:
        kind: What is registered, in messages: "algorithm".
        package: The package whose modules register.
        group: The entry points' group, called after the package unless another is given.
        entry: The class of what is registered.
        files: Modules of the package with the names that each registers, in the order in which
            names are listed; one that is not here is imported with all others alone.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        entry: type[_Entry],
        group: str | None = None,
        files: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.kind = kind
        self.package = package
        self.group = group or package
        self.entry = entry
        self.files = files or {}
        self._file_of = {name: file for file, names in self.files.items() for name in names}
        self._ranks = {name: rank for rank, name in enumerate(self._file_of)}
        self._entries: dict[str, _Entry] = {}
        self._origins: dict[str, str] = {}
        self._origin = ""
        # Files that are imported, and names of theirs that the table does not have.
        self._imported: set[str] = set()
        self._unlisted: set[str] = set()
        self._alone: bool | None = None
        self._complete = self._loading = False
        self._lock = threading.RLock()
        self._edition = next(_EDITIONS)

    @property
    def edition(self) -> int:
        """A number that is another one whenever other entries are registered."""
        self._load()
        return self._edition

    def register(self, entry: _Entry, *more: _Entry) -> _Entry:
        """Add an entry, and perhaps more of the same file; return the first.

        Raises:
            RegistrationError: If something else has its name.
        """
        for each in (entry, *more):
            self._add(each)
        return entry

    @contextlib.contextmanager
    def lent(self, entry: _Entry | None) -> Iterator[None]:
        """Let a name mean an entry for as long as this lasts; None lends nothing.

        For what is handed over in Python: a notebook's cell that is run again makes another entry
        of the same name, which no registration could replace.

        Raises:
            RegistrationError: If it is no entry of this registry, or something registered has its
                name.
        """
        if entry is None:
            yield
            return
        if not isinstance(entry, self.entry):
            raise RegistrationError(
                f"{self.kind}: {type(entry).__name__} is no {self.entry.__name__}; give one, "
                f"as {self.package}.registry describes it"
            )
        self._load()
        known = entry.name in self._entries
        self.register(entry)
        try:
            yield
        finally:
            if not known:
                del self._entries[entry.name], self._origins[entry.name]
                self._edition = next(_EDITIONS)

    def _add(self, entry: _Entry) -> None:
        if self._entries.get(entry.name) is entry:
            return
        if entry.name in self._entries:
            first = self._origins[entry.name] or "dpfedadamw"
            raise RegistrationError(
                f"the {self.kind} {entry.name} is registered twice: by {first} and by "
                f"{self._origin or 'dpfedadamw'}; rename one, or uninstall its package"
            )
        self._edition = next(_EDITIONS)
        self._entries[entry.name] = entry
        self._origins[entry.name] = self._origin
        order = sorted(self._entries.values(), key=self._rank)
        self._entries = {one.name: one for one in order}

    def _rank(self, entry: _Entry) -> tuple[int, int]:
        """By its place, then as the table has it: whichever file was imported first."""
        return getattr(entry, "place", LAST), self._ranks.get(entry.name, len(self._ranks))

    def origin(self, name: str) -> str:
        """The distribution and version that a name comes from, empty for our own."""
        self._load_named(name)
        return self._origins[name]

    def __getitem__(self, name: str) -> _Entry:
        self._load_named(name)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    # A mapping would look up each name by itself; a spec's check goes through all entries often.

    def values(self) -> ValuesView[_Entry]:
        """The entries in their order."""
        self._load()
        return self._entries.values()

    def items(self) -> ItemsView[str, _Entry]:
        """The entries in their order, by name."""
        self._load()
        return self._entries.items()

    def _load_named(self, name: str) -> None:
        """Import the file that registers a name, or everything where only that tells."""
        if self._complete:
            return
        file = self._file_of.get(name)
        if file is None or not self._is_alone():
            self._load()
            return
        with self._load_once() as begun:
            # Somebody else may have registered a name of a file that is still to be imported.
            taken = {self._file_of[one] for one in self._entries if one in self._file_of}
            for each in sorted({file, *taken} - self._imported) if begun else ():
                self._import(each)
            if begun:
                self._compare_with_table([name])

    def _load(self) -> None:
        if self._complete:
            return
        with self._load_once() as begun:
            if not begun:
                return
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                self._import(module.name)
            self._compare_with_table(self._file_of)
            for point in self._points():
                self._load_foreign(point)
            self._complete = True

    @contextlib.contextmanager
    def _load_once(self) -> Iterator[bool]:
        """Whether to load: a file may look into the registry while it is being imported.

        It sees what is there; another thread waits.
        """
        with self._lock:
            if self._loading:
                yield False
                return
            self._loading = True
            try:
                yield not self._complete
            finally:
                self._loading = False

    def _import(self, file: str) -> None:
        known = set(self._entries)
        importlib.import_module(f"{self.package}.{file}")
        self._imported.add(file)
        if file in self.files:
            self._unlisted |= self._entries.keys() - known - self._file_of.keys()

    def _compare_with_table(self, names: Iterable[str]) -> None:
        """Refuse files that register other names than the table says: they would not be found."""
        table = f"the table in {self.package}"
        if self._unlisted:
            raise RegistrationError(
                f"{self.kind} {', '.join(sorted(self._unlisted))}: registered by a file whose line "
                f"in {table} does not list it; add it there"
            )
        for name in names:
            if name not in self._entries:
                raise RegistrationError(
                    f"{self.kind} {name}: {self.package}.{self._file_of[name]} does not register "
                    f"it, but has it in {table}; correct one of them"
                )

    def _is_alone(self) -> bool:
        """Whether no other package brings entries."""
        if self._alone is None:
            self._alone = not self._points()
        return self._alone

    def _points(self) -> list[EntryPoint]:
        # Loaded by what looks at a registry, which most commands do not.
        from importlib.metadata import entry_points

        return sorted(entry_points(group=self.group), key=lambda p: (p.name, p.value))

    def _load_foreign(self, point: EntryPoint) -> None:
        distribution = point.dist
        who = (
            f"{distribution.name} {distribution.version}" if distribution else "an unknown package"
        )
        self._origin = who
        try:
            found = point.load()
            # The value is a module that registers, or the entry itself.
            if isinstance(found, self.entry):
                self.register(found)
            elif not isinstance(found, ModuleType):
                raise TypeError(f"it is no module and no {self.entry.__name__}")
        except RegistrationError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise RegistrationError(
                f"the {self.kind} {point.name} of {who} ({point.value}) does not load: {reason}; "
                "repair or uninstall that package"
            ) from error
        finally:
            self._origin = ""
