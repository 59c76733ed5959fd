"""A registry: names that a spec can choose, each with what is registered under it.

Algorithms, models, data sets and accountants are found in the same way: each file of the package
registers what it holds when it is imported, and so does any installed package that names a module
of its own under the entry points' group, which is called after the package:

    [project.entry-points."dpfedadamw.algorithms"]
    my-algorithm = "my_package.my_algorithm"

The files are imported when the registry is first looked into, not before. An entry may say by a
number, its `place`, where it stands among the others.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import pkgutil
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Protocol, TypeVar

from dpfedadamw.errors import DpfedadamwError


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
    """

    def __init__(
        self, kind: str, package: str, entry: type[_Entry], group: str | None = None
    ) -> None:
        self.kind = kind
        self.package = package
        self.group = group or package
        self.entry = entry
        self._entries: dict[str, _Entry] = {}
        self._origins: dict[str, str] = {}
        self._origin = ""
        self._complete = self._loading = False
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
                f"{self.kind}: {type(entry).__name__} is no {self.entry.__name__}; give one, as "
                f"{self.package}.registry describes it"
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
        order = sorted(self._entries.values(), key=lambda one: getattr(one, "place", LAST))
        self._entries = {one.name: one for one in order}

    def origin(self, name: str) -> str:
        """The distribution and version that a name comes from, empty for our own."""
        self._load()
        return self._origins[name]

    def __getitem__(self, name: str) -> _Entry:
        self._load()
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

    def _load(self) -> None:
        # A module may look into the registry while it is being imported; it sees what is there.
        if self._complete or self._loading:
            return
        self._loading = True
        try:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            for point in sorted(entry_points(group=self.group), key=lambda p: (p.name, p.value)):
                self._load_foreign(point)
            self._complete = True
        finally:
            self._loading = False

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
