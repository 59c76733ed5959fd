"""Reads, resolves and writes specs."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

import specs
from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.rundir import RECORDED
from dpfedadamw.spec import checks, yamltext
from dpfedadamw.spec import overrides as override
from dpfedadamw.spec.data_section import DATA, DataSpec
from dpfedadamw.spec.document import SWEEP_KEYS, TUNE, TUNE_KEYS, Document, KeyPath, one_line
from dpfedadamw.spec.model_section import MODEL, ModelSpec
from dpfedadamw.spec.sections import Spec
from dpfedadamw.spec.task_section import TASK, TaskSpec
from dpfedadamw.storage.disk import DISK

_OF_A_LOOP = (
    "this folder is a recorded training loop of another program, which cannot be run again; only "
    "sign, audit, report, verify, bundle and erase accept it"
)
# The reader in C, where PyYAML was built with it.
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Read a spec from a file, or a shipped one by name.

    Args:
        path_or_name: A YAML file, or the name of a shipped spec (`quickstart`). A file of that name
            wins.
        overrides: `dotted.path=value` each, applied in order before anything is checked.

    Raises:
        SpecError: With all that is wrong.
    """
    document = read(path_or_name)
    override.apply(document, overrides)
    return specified(document)


def read(path_or_name: str | Path) -> Document:
    """Read the values of a file, or of a shipped spec by name; see `load`.

    Raises:
        SpecError: If there is no such file, or it is no YAML.
    """
    path = Path(path_or_name)
    resource = specs.find(str(path_or_name))
    if resource is not None and not path.is_file():
        name = str(path_or_name)
        return yamltext.parse(yamltext.decode(resource.read_bytes(), name), name)
    if resource is None and not os.path.lexists(path):
        raise SpecError([SpecProblem(one_line(str(path), 200), _no_such_file(path))])
    return yamltext.parse(yamltext.read_file(path), one_line(str(path), 200))


def load_filed(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """Read the resolved spec of a run, or of a client, as `load`; no link is followed.

    Args:
        path: The file, in a folder that anybody may have made.
        overrides: As in `load`.

    Raises:
        SpecError: With all that is wrong.
    """
    source = one_line(str(path), 200)
    try:
        content = DISK.read(path, yamltext.MAXIMUM_BYTES)
    except OSError as error:
        raise SpecError([SpecProblem(source, f"cannot be read ({error.strerror})")]) from None
    return loads(yamltext.decode(content, source), source, overrides)


def loads(text: str, source: str = "<string>", overrides: Sequence[str] = ()) -> Spec:
    """Read a spec from text.

    Args:
        text: One YAML document.
        source: What to call the text in messages.
        overrides: As in `load`.

    Raises:
        SpecError: With all that is wrong.
    """
    document = yamltext.parse(text, source)
    override.apply(document, overrides)
    return specified(document)


def from_mapping(mapping: Mapping[str, Any], overrides: Sequence[str] = ()) -> Spec:
    """Read a spec from what a YAML file would hold; it is not changed.

    Args:
        mapping: Dictionaries with text keys, lists or tuples, text, numbers, booleans and None.
        overrides: As in `load`.

    Raises:
        SpecError: With all that is wrong.
    """
    document = checks.from_mapping(mapping)
    override.apply(document, overrides)
    return specified(document)


def specified(document: Document) -> Spec:
    """Check a document and return the spec that it means.

    Raises:
        SpecError: With all that is wrong; also where it means several runs.
    """
    whole: Any = document.value if isinstance(document.value, dict) else {}
    if isinstance(whole.get(RECORDED), str):
        # What a recorder declares of somebody else's loop is no experiment that can be run.
        place = document.place((RECORDED,), key=True)
        raise SpecError([place.problem((RECORDED,), _OF_A_LOOP)])
    tune = whole.get(TUNE)
    searched: Any = tune if isinstance(tune, dict) else {}
    several: list[KeyPath] = [(name,) for name in SWEEP_KEYS if whole.get(name) is not None]
    several += [(TUNE, name) for name in TUNE_KEYS if searched.get(name) is not None]
    for path in several:
        source = document.place(()).source
        message = f"this spec means several runs; start them with: dpfedadamw sweep {source}"
        raise SpecError([document.place(path, key=True).problem(path, message)])
    return Spec.model_validate(_tuples(checks.check(document)))


def resolve(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Check a mapping and return it with every default and short form written out.

    Args:
        mapping: What a YAML spec would hold; it is not changed.

    Raises:
        SpecError: With all that is wrong.
    """
    return checks.check(checks.from_mapping(mapping))


def dump(spec: Spec) -> str:
    """Write a spec as YAML: every default written out, in the vocabulary's order.

    The text depends only on the spec, and `loads` reads an equal spec from it.
    """
    return yamltext.write(spec.to_mapping())


def filed(spec: Spec) -> str:
    """The text of `dump`, as a run keeps it: never more than this reader and the auditor accept.

    Raises:
        SpecError: If the spec is too large with every default written out.
    """
    text = dump(spec)
    values = yamltext.counted(spec.to_mapping())
    if len(text.encode()) > yamltext.MAXIMUM_BYTES or values > yamltext.MAXIMUM_NODES:
        message = (
            f"resolved, this has {values:,} values in {len(text.encode()):,} bytes, but a run "
            f"keeps at most {yamltext.MAXIMUM_NODES:,} in 1 MiB; shorten the longest list (numbers "
            "take less than columns)"
        )
        raise SpecError([SpecProblem(spec.name, message)])
    return text


def replace_noise_multiplier(spec: Spec, value: float) -> Spec:
    """Return the spec with the noise multiplier that was solved for its target ε.

    The target stays: a resolved spec with both says that the one was solved for the other.

    Args:
        spec: A spec of privacy unit "record" or "client".
        value: The noise multiplier σ, > 0.

    Raises:
        ValueError: If the spec has no privacy unit, or σ is not a positive finite number.
    """
    if spec.privacy.unit == "none":
        raise ValueError("a spec without privacy has no noise multiplier")
    if not 0 < value < math.inf:
        raise ValueError(f"a noise multiplier must be positive and finite, not {value}")
    return spec.replace(privacy=spec.privacy.replace(noise_multiplier=float(value)))


@dataclass(frozen=True)
class ShippedSpec:
    """A spec that comes with the package.

    Attributes:
        name: What `load` finds it by.
        title: The first comment line of its file.
        description: Its `description`.
        path: Its file.
    """

    name: str
    title: str
    description: str
    path: Traversable


def shipped() -> list[ShippedSpec]:
    """Return the specs of one run that come with the package, by name."""
    return _described(specs.spec_files())


def shipped_sweeps() -> list[ShippedSpec]:
    """Return the sweeps that come with the package, by name; each means many runs."""
    return _described(specs.sweep_files())


def _described(files: Mapping[str, Traversable]) -> list[ShippedSpec]:
    found = []
    for name, path in files.items():
        text = path.read_text(encoding="utf-8")
        title = text.partition("\n")[0].lstrip("# ").rstrip(". ")
        # They are ours: nothing in them needs to be checked, or to be told by line and column.
        description = yaml.load(text, _FASTEST).get("description", "")
        found.append(ShippedSpec(name, title, description, path))
    return found


def _no_such_file(path: Path) -> str:
    names = [*specs.spec_files(), *specs.sweep_files()]
    near = difflib.get_close_matches(str(path).removesuffix(".yaml").removesuffix(".yml"), names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"no such file, and no shipped spec of that name; {hint}dpfedadamw list specs names those "
        "that are shipped"
    )


def model_of(section: Mapping[str, Any]) -> ModelSpec:
    """The section ``model`` of a resolved mapping.

    Args:
        section: Complete and checked, as `resolve` returns it.
    """
    built = MODEL.build(_tuples(section))
    assert isinstance(built, ModelSpec)
    return built


def task_of(section: Mapping[str, Any]) -> TaskSpec:
    """The section ``task`` of a resolved mapping.

    Args:
        section: Complete and checked, as `resolve` returns it.
    """
    built = TASK.build(_tuples(section))
    assert isinstance(built, TaskSpec)
    return built


def data_of(section: Mapping[str, Any]) -> DataSpec:
    """The section ``data`` of a mapping that may lack keys which have a default.

    Raises:
        ValueError: If it has another key, or a value of another type.
    """
    built = DATA.build(_tuples(section))
    assert isinstance(built, DataSpec)
    return built


def _tuples(value: Any) -> Any:
    """Sections hold tuples, where YAML has lists."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
