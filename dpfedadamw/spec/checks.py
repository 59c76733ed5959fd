"""Checks plain values against the schema and hands out the resolved mapping, or all problems.

What a single key may hold is in the JSON Schema alone; what keys mean to each other is in
`crosschecks` alone. Here both are run, and their findings become messages with a place.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec.crosschecks import contradictions
from dpfedadamw.spec.document import MAXIMUM_DEPTH, Document, KeyPath, Place, bad_character, dotted
from dpfedadamw.spec.vocabulary import (
    Edition,
    Schema,
    discriminators,
    edition,
    fill_defaults,
    names_in,
    of_names,
    paths_of,
    pick_branch,
    resolve_reference,
    the_schema,
)
from dpfedadamw.spec.words import absent_key, expected, key_of, mismatch, one_of, remark, show

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_UNKNOWN = "unknown key"


def check(document: Document) -> dict[str, Any]:
    """Check a document and resolve it.

    Args:
        document: What was read.

    Returns:
        The mapping with every default written out, keys in the vocabulary's order.

    Raises:
        SpecError: With all problems, in the order of the file.
    """
    problems = list(document.problems)
    unreadable = set(document.unreadable)
    value = document.value
    if isinstance(value, dict) and not (problems or unreadable):
        resolved = _resolved_by_names(value)
        if resolved is not None:
            return resolved
    if () in unreadable:
        pass
    elif value is None:
        problems.append(document.place(()).problem((), "the spec is empty; see quickstart for one"))
    elif not isinstance(value, dict):
        message = f"found {show(value)}; a spec is a section with keys such as data and model"
        problems.append(document.place(()).problem((), message))
    else:
        problems_of_schema = list(_schema_problems(value, unreadable))
        bad = {path for path, _, _, _ in problems_of_schema} | unreadable
        leftovers = _left_by_overrides(document, problems_of_schema)
        problems += leftovers.values()
        found = [
            (path, message, key)
            for path, message, key, chooser in problems_of_schema
            if message and (chooser is None or path[:-1] not in leftovers)
        ]
        resolved = fill_defaults(value)
        found += [(path, message, False) for path, message in contradictions(value, resolved, bad)]
        problems += [document.place(path, key).problem(path, text) for path, text, key in found]
        if not problems:
            return resolved
    raise SpecError(sorted(problems, key=_order))


def _resolved_by_names(value: dict[str, Any]) -> dict[str, Any] | None:
    """A spec resolved by the sections that it names alone; None where something is wrong with it.

    So a right spec loads one algorithm, one model and one data set.
    """
    named = names_in(value)
    if named is None:
        return None
    with of_names(named):
        if next(_schema_problems(value, set()), None) is not None:
            return None
        resolved = fill_defaults(value)
    return None if next(contradictions(value, resolved, set()), None) is not None else resolved


def _left_by_overrides(
    document: Document, found: Sequence[tuple[KeyPath, str, bool, str | None]]
) -> dict[KeyPath, SpecProblem]:
    """Problems of sections whose kind an override chose, and whose keys are still the file's.

    The file is right for what it chose itself: the override is named, with what to write instead.
    """
    problems = {}
    for path, _, _, chooser in found:
        section = path[:-1]
        if chooser is None or section in problems:
            continue
        chosen = document.place((*section, chooser))
        if chosen.line is not None or document.place(path, key=True).line is None:
            continue
        left = [one[-1] for one, _, _, key in found if key is not None and one[:-1] == section]
        name = functools.reduce(lambda inner, part: inner[part], section, document.value)[chooser]
        message = (
            f"{', '.join(map(str, left))} of {document.place(path, key=True).source} "
            f"{'is' if len(left) == 1 else 'are'} not used when {chooser} is {name}; replace the "
            f"whole section: --set '{dotted(section)}={{{chooser}: {name}}}'"
        )
        problems[section] = chosen.problem((), message)
    return problems


def _order(problem: SpecProblem) -> tuple[bool, int, int]:
    return problem.line is None, problem.line or 0, problem.column or 0


def from_mapping(mapping: Mapping[str, Any], source: str = "<mapping>") -> Document:
    """Make a document of values that never were a file.

    Args:
        mapping: Dictionaries with text keys, lists or tuples, text, integers, floats, booleans and
            None; nothing in it is changed.
        source: What to call it in messages.
    """
    document = Document(None, {(): Place(source)})
    document.value = _plain(mapping, (), document)
    return document


def _plain(value: Any, path: KeyPath, document: Document) -> Any:
    reason = None
    if len(path) > MAXIMUM_DEPTH:
        reason = f"nested deeper than {MAXIMUM_DEPTH} levels"
    elif isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(item, (*path, key), document) for key, item in value.items()}
        reason = "every key must be text"
    elif isinstance(value, (list, tuple)):
        return [_plain(item, (*path, index), document) for index, item in enumerate(value)]
    elif isinstance(value, str):
        reason = bad_character(value)
    elif isinstance(value, float) and not math.isfinite(value):
        reason = f"{value} is not a finite number; give a finite one"
    elif not (value is None or isinstance(value, (bool, int, float))):
        reason = f"a spec cannot hold a value of type {type(value).__name__}"
    if reason:
        document.problems.append(document.place(()).problem(path, reason))
        document.unreadable.add(path)
        return None
    return value


@functools.lru_cache(maxsize=64)
def _validator(edition: Edition) -> Any:
    del edition
    # Code that reads the vocabulary alone (`list`) does not pay for it.
    import jsonschema

    base = jsonschema.Draft202012Validator
    types = base.TYPE_CHECKER.redefine_many(
        {
            # The standard takes 5.0 for an integer; a spec that says 5.0 clients is a mistake.
            "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
            "number": lambda _, value: (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and (isinstance(value, int) or math.isfinite(value))
            ),
        }
    )
    rules = {
        "oneOf": lambda validator, _, value, schema: _one_of(validator, value, schema),
        "required": lambda _, names, value, schema: _required(names, value, schema),
        "additionalProperties": lambda _, __, value, schema: _closed(value, schema),
    }
    extend: Any = jsonschema.validators.extend
    return extend(base, rules, type_checker=types)(the_schema())


def _schema_problems(
    value: Mapping[str, Any], unreadable: set[KeyPath]
) -> Iterator[tuple[KeyPath, str, bool, str | None]]:
    """Yield (path, message, whether the key is meant rather than the value, chooser), one a path.

    The chooser is the key in the same section whose value makes this key unused, or None. Without a
    message, a value could not be checked, because the section's kind is unknown.
    """
    seen = set(unreadable)
    for error in _validator(edition()).iter_errors(value):
        path = tuple(error.absolute_path)
        if any(path[:length] in seen for length in range(len(path) + 1)):
            continue
        seen.add(path)
        ours = error.validator in ("oneOf", "required", "additionalProperties")
        message = error.message if ours else mismatch(error.instance, error.schema)
        if message == _UNKNOWN:
            message = f"{_UNKNOWN}; {_hint(path, error.schema)}"
        chooser = error.validator_value if ours and isinstance(error.validator_value, str) else None
        yield path, message, error.validator == "additionalProperties", chooser


def _error(message: str, **place: Any) -> ValidationError:
    """What jsonschema reports of a value."""
    from jsonschema.exceptions import ValidationError

    return ValidationError(message, **place)


def _one_of(validator: Any, value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Validate against the one branch that is meant, instead of reporting on all of them."""
    if isinstance(value, str) and "x-short-form" in schema:
        if value not in discriminators(schema):
            yield _error(mismatch(value, {"enum": [*discriminators(schema)]}))
        return
    if not isinstance(value, dict):
        yield _error(mismatch(value, schema))
        return
    branch = pick_branch(schema, value)
    if branch is not None:
        yield from _keys_of_other_branches(schema, branch, value)
        yield from validator.descend(value, branch)
    elif "x-exactly-one" in schema:
        yield from _exactly_one(value, schema["x-exactly-one"])
    else:
        key = schema["x-discriminator"]
        choices = list(discriminators(schema))
        if key not in value:
            message = f"missing; must be {one_of(choices)}"
            yield _error(message, path=[key], validator="required")
        else:
            yield _error(mismatch(value[key], _choice_schema(schema, choices)), path=[key])
        yield from _keys_of_no_branch(validator, schema, value)


def _keys_of_no_branch(
    validator: Any, schema: Schema, value: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Validate what means the same in every branch, where it is unknown which one is meant."""
    key = schema["x-discriminator"]
    first, *others = (branch["properties"] for branch in discriminators(schema).values())
    for name in value.keys() - {key}:
        if name in first and all(other.get(name) == first[name] for other in others):
            yield from validator.descend(value[name], first[name], path=name)
        else:
            yield _error("", path=[name], validator="oneOf")


def _exactly_one(value: Mapping[str, Any], choices: Sequence[str]) -> Iterator[ValidationError]:
    yield from _closed(value, {"properties": dict.fromkeys(choices)})
    given = [key for key in value if key in choices]
    wanted = f"exactly one of {' and '.join(choices)}"
    if len(given) > 1:
        message = f"given together with {given[0]}; give {wanted}"
        yield _error(message, path=[given[-1]], validator="additionalProperties")
        for name in given[:-1]:
            yield _error("", path=[name], validator="oneOf")
    elif not value:
        yield _error(f"found an empty section; give {wanted}")


def _choice_schema(schema: Schema, choices: Sequence[str]) -> Schema:
    branch = next(iter(discriminators(schema).values()))
    first = branch["properties"][schema["x-discriminator"]]
    why = {"x-why": first["x-why"]} if "x-why" in first else {}
    return {"enum": list(choices), **why}


def _keys_of_other_branches(
    schema: Schema, branch: Schema, value: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Say of a key that only another choice has why it is refused here."""
    key = schema.get("x-discriminator")
    if key is None:
        return
    branches = [resolve_reference(other) for other in schema["oneOf"]]
    known = {name for other in branches for name in other.get("properties", {})}
    used = [name for name in branch["properties"] if name != key]
    for name in value:
        if name in known and name not in branch["properties"]:
            uses = f"it uses {', '.join(used)}" if used else "it takes no other key"
            message = f"not used when {key} is {value[key]} ({uses}); remove it"
            yield _error(
                message, path=[name], validator="additionalProperties", validator_value=key
            )


def _required(names: Sequence[str], value: Any, schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for name in names:
            if name not in value:
                part = resolve_reference(schema["properties"][name])
                yield _error(f"missing; must be {expected(part)}", path=[name])


def _closed(value: Any, schema: Schema) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    for name in value:
        if name not in schema["properties"]:
            yield _error(_UNKNOWN, path=[name], schema=schema)


def _hint(path: KeyPath, schema: Schema) -> str:
    """What may have been meant by an unknown key of a section with this schema."""
    name, known = str(path[-1]), list(schema["properties"])
    near = difflib.get_close_matches(name, known, 1)
    meant, absent = key_of(name), absent_key(name, known)
    if absent is not None:
        return absent
    if meant in known:
        return f"did you mean {meant}{remark(name)}?"
    if near:
        return f"did you mean {near[0]}?"
    if meant is not None and meant != "name":
        elsewhere = sorted(paths_of(meant) - {dotted(path)})
        if 0 < len(elsewhere) <= 3:
            return f"did you mean {' or '.join(elsewhere)}{remark(name)}?"
    # Where another choice of this section has the key, it is not meant elsewhere.
    elsewhere = sorted(paths_of(name) - {dotted(path)})
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(known)}"
