"""What a spec goes by of the algorithms, models and data sets that are registered.

This package stands below the files that register them, and finds them through their registries when
the first spec is read.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dpfedadamw.registration import LAST
from dpfedadamw.spec.section import OneOf, Section
from dpfedadamw.spec.values import Check, nothing_to_check

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
