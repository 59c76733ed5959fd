"""What sections of a spec are made of: typed keys, each defined once, at the field.

A section is a frozen class. Of its fields are made the JSON Schema (`vocabulary`), the reference
page, the defaults and the messages; nothing else has to know a key.

    class FederationSpec(Section, title="Federation"):
        \"\"\"Rounds and who takes part in them.\"\"\"

        rounds: int = key(20, "Number of rounds T.", unit="rounds", ge=1, le=1_000_000)

The class's docstring and title are the section's; a key without a title is called after its name.

An algorithm, a model or a data set has a section of its own, in the file that registers it. This
package stands below those files, and finds them through their registries (`Registered`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from dpfedadamw.registration import LAST
from dpfedadamw.spec.document import KeyPath, dotted

_Value = TypeVar("_Value")

# All readers of JSON agree on whole numbers up to this one, 2^53 - 1.
LARGEST_SEED = 9_007_199_254_740_991


class Section(BaseModel):
    """A section of a spec: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    # Of the keys of such a section exactly one is given, and the others are None.
    exactly_one: ClassVar[bool] = False
    # The keys that stand first, where their order is not that of the fields.
    key_order: ClassVar[tuple[str, ...]] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Return the section with every default written out, keys in the vocabulary's order."""
        found = {name: _plain(getattr(self, name)) for name in keys_of(type(self))}
        if self.exactly_one:
            return {name: value for name, value in found.items() if value is not None}
        return found

    def replace(self, **changes: Any) -> Self:
        """Return the section with other values for some keys."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**values, **changes})

    def part(self, kind: type[_Value]) -> _Value | None:
        """Return the subsection of this class, or None where this section has none."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, kind):
                return value
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_mapping()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def key(
    default: Any,
    description: str,
    *,
    title: str | None = None,
    unit: str | None = None,
    examples: Iterable[Any] | None = None,
    why: str | None = None,
    expected: str | None = None,
    default_by_unit: Mapping[str, Any] | None = None,
    **constraints: Any,
) -> Any:
    """Define a key, as the value of its field or, in `Annotated`, of a type that keys share.

    Args:
        default: What holds where the spec says nothing; `...` for a key that it must say.
        description: What it means: whole sentences.
        title: A heading; the key's name by default.
        unit: What it counts: "rounds". By default "1", a plain number, where it has bounds, and
            "none" where it has not.
        examples: Values to show; the default by default.
        why: Why nothing else is allowed, for the message on a wrong value.
        expected: What must be there, in words, where the constraints do not say it.
        default_by_unit: Other defaults under single privacy units.
        constraints: `ge`, `gt`, `le`, `lt`, `min_length`, `max_length` and `pattern`.
    """
    bounded = not constraints.keys().isdisjoint(("ge", "gt", "le", "lt"))
    extra: dict[str, Any] = {"x-unit": unit or ("1" if bounded else "none")}
    extra |= {"x-why": why} if why else {}
    extra |= {"x-expected": expected} if expected else {}
    extra |= {"x-default-by-unit": dict(default_by_unit)} if default_by_unit else {}
    return Field(
        default,
        title=title,
        description=description,
        examples=None if examples is None else list(examples),
        json_schema_extra=extra,
        **constraints,
    )


# Keys and values that somebody else's code is given, as YAML has them: nothing here knows them.
# Lists in it are tuples, as in all sections, until `to_mapping` writes them out.
Free = dict[str, Any]


class Absent:
    """Marks a field that code may ask of every section of a union, where this one lacks the key."""


AbsentText = Annotated[str | None, Absent()]
AbsentTexts = Annotated[tuple[str, ...] | None, Absent()]
AbsentIntegers = Annotated[tuple[int, ...], Absent()]
AbsentInteger = Annotated[int | None, Absent()]
AbsentNumber = Annotated[float | None, Absent()]
AbsentNumbers = Annotated[tuple[float, ...], Absent()]


@dataclass(frozen=True)
class OneOf:
    """Marks the type of a section that is one of several, told apart by the value of one key.

    Attributes:
        key: The key that tells them apart.
        choices: Returns the section's class for each value of that key, in order.
        short_form: Whether the bare value may stand for the section.
        names: Returns the values in words, which stand for `{names}` in the key's description.
        find: Returns the class of one value, without a look at the others; None to go by `choices`.
    """

    key: str
    choices: Callable[[], Mapping[str, type[Section]]]
    short_form: bool = False
    names: Callable[[], str] = str
    find: Callable[[str], type[Section]] | None = None

    def build(self, section: Mapping[str, Any]) -> Section:
        """Make the section that a mapping means, which is complete and checked."""
        value = section[self.key]
        chosen = self.choices()[value] if self.find is None else self.find(value)
        return chosen.model_validate(section)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let a mapping be read as the section that it means."""

        def read(value: Any) -> Any:
            return self.build(value) if isinstance(value, Mapping) else value

        return core_schema.no_info_before_validator_function(read, handler(source))


def one_of(name: str, *classes: type[Section], short_form: bool = False) -> OneOf:
    """Say that a section is one of these classes.

    Args:
        name: The key that tells them apart; each class lists its values as a `Literal`.
        classes: In their order.
        short_form: Whether the key's bare value may stand for the section.
    """
    choices = {
        value: each for each in classes for value in get_args(each.model_fields[name].annotation)
    }
    *others, last = choices
    return OneOf(name, lambda: choices, short_form, lambda: f"{', '.join(others)} or {last}")


def marker(info: FieldInfo, kind: type[_Value]) -> _Value | None:
    """Return what marks a field's type, if anything of that class does."""
    return next((each for each in info.metadata if isinstance(each, kind)), None)


def keys_of(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the keys of a section, in order, without those that it lacks."""
    fields = section.model_fields
    names = [*section.key_order, *(name for name in fields if name not in section.key_order)]
    return {name: fields[name] for name in names if marker(fields[name], Absent) is None}


Contradictions = Iterator[tuple[KeyPath, str]]


class Values:
    """What a check of several keys reads: resolved values; one that is bad reads as None.

    Algorithms, models and data sets are registered with such a check of their own.

    Attributes:
        bad: Paths of the values that are wrong by themselves, which was said already.

    Args:
        given: The spec as it was written.
        resolved: The spec with every default.
        bad: As above.
    """

    def __init__(self, given: Any, resolved: Any, bad: set[KeyPath]) -> None:
        self._given, self._resolved, self.bad = given, resolved, bad

    def __call__(self, *path: str | int) -> Any:
        """The value at a path; None where there is none, or it is bad."""
        if any(path[:length] in self.bad for length in range(len(path) + 1)):
            return None
        return _at(self._resolved, path)

    def shown(self, *path: str) -> str:
        """Path and value in words, for another key's message."""
        return f"{dotted(path)} is {self(*path)}{self._default(path)}"

    def found(self, *path: str) -> str:
        """The value in words, for the key's own message."""
        return f"found {self(*path)}{self._default(path)}"

    def is_bad(self, *path: str | int) -> bool:
        """Whether this very value is wrong by itself."""
        return path in self.bad

    def _default(self, path: KeyPath) -> str:
        return "" if _at(self._given, path) is not None else " (the default)"


Check = Callable[[Values], Contradictions]


def nothing_to_check(get: Values) -> Contradictions:
    """The check of what contradicts nothing."""
    del get
    yield from ()


def multiple_of(unit: int, value: int) -> str:
    """Say that a value must be a multiple, and which are near."""
    below = value - value % unit
    near = f"{below} or {below + unit}" if below else f"{unit}"
    return f"must be a multiple of {unit}, such as {near}"


def _at(value: Any, path: KeyPath) -> Any:
    for part in path:
        item = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if not item and not (isinstance(value, dict) and part in value):
            return None
        value = value[part]
    return value


Keys = TypeVar("Keys", bound=Section)


@dataclass(frozen=True, kw_only=True)
class Registered(Generic[Keys]):
    """What is known of an algorithm, a model or a data set alike.

    Attributes:
        name: What a spec calls it.
        keys: Its section of a spec; several names may share one.
        summary: What it is, in one line.
        check: Finds what its keys contradict, each other or keys of other sections.
        place: Where it stands in lists; what other packages bring stands last.
    """

    name: str
    keys: type[Keys]
    summary: str
    check: Check = nothing_to_check
    place: int = LAST


@functools.cache
def registry(package: str, name: str) -> Any:
    """Return the registry of that name which a package of `dpfedadamw` has."""
    return getattr(importlib.import_module(f"dpfedadamw.{package}.registry"), name)


def one_registered(
    key: str,
    registered: Callable[[], Mapping[str, Registered[Any]]],
    names: Callable[[], str] = str,
) -> OneOf:
    """Say that a section is that of whatever is registered under the value of its key.

    Args:
        key: The key that holds the name.
        registered: Returns what is registered, by name.
        names: Returns the names in words, which stand for `{names}` in the key's description.
    """
    return OneOf(
        key,
        lambda: {name: entry.keys for name, entry in registered().items()},
        names=names,
        find=lambda name: registered()[name].keys,
    )
