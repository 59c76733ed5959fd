"""gate.yaml: what the gate protects, how, and up to which ε; ten lines that an operator writes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.untrusted import UntrustedError, fields
from audit.untrusted.archives import MAXIMUM_HEADER_BYTES
from audit.untrusted.documents import parse_json
from audit.untrusted.files import read_chosen
from dpfedadamw.errors import SpecError
from dpfedadamw.spec import yamltext
from dpfedadamw.spec.document import Document, KeyPath
from dpfedadamw.spec.words import show

UNITS = ("record", "person", "site")
# Sums of so many clipped updates are exact in float64 (`mechanism`).
MOST_SHARDS = 4096
_KEYS = ("unit", "shards", "clip", "noise_multiplier", "budget", "model", "ledger", "anchor")
_MEANING = {
    "unit": "what the budget protects: one record, all records of one person, or the site",
    "shards": "K, the fixed parts that the data are in: dpfedadamw gate shards",
    "clip": "C, the largest norm of one shard's update",
    "noise_multiplier": "σ; the noise on the sum of updates has deviation 2Cσ",
    "budget": "of all jobs together",
    "model": "the arrays that may leave, and nothing else",
    "ledger": "the folder of the ledger",
    "anchor": "second copy of the ledger's signed head",
}
_BUDGET = ("epsilon", "delta")
_FORM = re.compile(r"(float32|float64)\[((?:\d{1,9}(?:, ?\d{1,9})*)?)\]")
_MOST_COORDINATES = 1 << 31
_MOST_AXES = 64
_SAFETENSORS = {"F32": "float32", "F64": "float64"}


@dataclass(frozen=True)
class Form:
    """Shape and type of one array that may leave.

    Attributes:
        shape: As NumPy's.
        dtype: "float32" or "float64".
    """

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """As gate.yaml writes it, float32[64, 10]."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A gate.yaml that was read.

    Attributes:
        path: The file.
        unit: What neighbouring data differ in: one "record", all records of one "person", or all
            data of the "site".
        shards: K, the fixed parts that the site's data are in; 1 where the unit is the site.
        clip: C, the largest L2 norm of a shard's update that counts, above 0.
        noise_multiplier: σ, the noise's standard deviation over 2C.
        epsilon: ε of the budget.
        delta: δ of the budget.
        model: The arrays that may leave, by name, in the order of the file.
        ledger: The ledger's folder.
        anchor: The copy of the signed head, outside the ledger's folder.
    """

    path: Path
    unit: str
    shards: int
    clip: float
    noise_multiplier: float
    epsilon: float
    delta: float
    model: Mapping[str, Form]
    ledger: Path
    anchor: Path


def read(path: Path) -> Settings:
    """Read a gate.yaml; its relative paths start from its own folder.

    Raises:
        SpecError: If it is not one; each problem has its line.
    """
    return parse(yamltext.read_file(path), path)


def parse(text: str, path: Path) -> Settings:
    """Read the text of a gate.yaml that is at a path, or will be.

    Raises:
        SpecError: As `read`.
    """
    return _Reader(yamltext.parse(text, str(path)), path).settings()


def write(values: Mapping[str, Any]) -> str:
    """The text of a gate.yaml, with a comment behind each of its keys."""
    lines = yamltext.write(values).splitlines()
    named = [(line, _MEANING.get(line.partition(":")[0], "")) for line in lines]
    return "".join(f"{line}  # {said}\n" if said else f"{line}\n" for line, said in named)


class _Reader:
    """Takes values out of a document and notes what is wrong with them."""

    def __init__(self, document: Document, path: Path) -> None:
        self._document = document
        self._path = path
        self._problems = list(document.problems)

    def settings(self) -> Settings:
        self._keys((), _KEYS)
        self._keys(("budget",), _BUDGET)
        unit = self._document.at(("unit",))
        if unit is not None and unit not in UNITS:
            self._wrong(("unit",), unit, "record, person or site")
        shards = self._document.at(("shards",))
        whole = isinstance(shards, int) and not isinstance(shards, bool)
        if shards is not None and not (whole and 1 <= shards <= MOST_SHARDS):
            self._wrong(("shards",), shards, f"an integer from 1 to {MOST_SHARDS}")
        elif unit == "site" and shards != 1:
            self._wrong(
                ("shards",), shards, "1 where the unit is the site, which is in every shard"
            )
        clip = self._number(("clip",), 1e-12, 1e12)
        noise = self._number(("noise_multiplier",), 0.01, 1e6)
        epsilon = self._number(("budget", "epsilon"), 1e-6, 1e6)
        delta = self._number(("budget", "delta"), 1e-10, 0.5)
        model = self._model()
        ledger, anchor = self._place("ledger"), self._place("anchor")
        if self._problems:
            raise SpecError(self._problems)
        if anchor.is_relative_to(ledger):
            self._wrong(
                ("anchor",),
                str(self._document.at(("anchor",))),
                "outside the ledger's folder: both would be rolled back together",
            )
            raise SpecError(self._problems)
        return Settings(
            path=self._path,
            unit=unit,
            shards=shards,
            clip=clip,
            noise_multiplier=noise,
            epsilon=epsilon,
            delta=delta,
            model=model,
            ledger=ledger,
            anchor=anchor,
        )

    def _say(self, path: KeyPath, message: str, key: bool = False) -> None:
        self._problems.append(self._document.place(path, key).problem(path, message))

    def _wrong(self, path: KeyPath, value: Any, right: str) -> None:
        self._say(path, f"found {show(value)}; must be {right}")

    def _keys(self, path: KeyPath, known: tuple[str, ...]) -> None:
        value = self._document.at(path)
        if path and value is None:
            return  # Said to be missing already.
        if not isinstance(value, dict):
            self._wrong(path, value, f"a mapping with the keys {', '.join(known)}")
            return
        for name in value:
            if name not in known:
                self._say((*path, name), f"unknown key; known are {', '.join(known)}", key=True)
        for name in known:
            if value.get(name) is None:
                self._say(path, f"the key {name} is missing")

    def _number(self, path: KeyPath, least: float, most: float) -> float:
        value = self._document.at(path)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(path, value, "a number")
        elif not least <= value <= most:
            self._wrong(path, value, f"from {least:g} to {most:g}")
        else:
            return float(value)
        return 0.0

    def _place(self, name: str) -> Path:
        value = self._document.at((name,))
        # A user who does not exist has no home.
        with contextlib.suppress(RuntimeError):
            if isinstance(value, str) and value:
                return (self._path.absolute().parent / Path(value).expanduser()).resolve()
        if value is not None:
            self._wrong((name,), value, "a path")
        return Path()

    def _model(self) -> dict[str, Form]:
        value = self._document.at(("model",))
        if isinstance(value, str):
            try:
                return model_of_file(self._path.absolute().parent / value)
            except ValueError as error:
                self._say(("model",), str(error))
                return {}
        if not isinstance(value, dict) or not value:
            if value is not None:
                self._wrong(("model",), value, "arrays by name, or a .safetensors file's path")
            return {}
        found = {}
        for name, text in value.items():
            matched = _FORM.fullmatch(text) if isinstance(text, str) else None
            if matched is None:
                self._wrong(("model", name), text, "a type and a shape such as float32[64, 10]")
                continue
            shape = tuple(int(one) for one in matched[2].split(",") if one.strip())
            found[name] = Form(shape, matched[1])
        if len(found) == len(value) and (said := _too_large(found)) is not None:
            self._say(("model",), said)
        return found


def model_of_file(path: Path) -> dict[str, Form]:
    """Names, shapes and types of a .safetensors file, whose values are not read.

    Raises:
        ValueError: If it cannot be read, or an array is not of floating-point numbers.
    """
    found = {}
    try:
        # The researcher made it: no more is read than its header may have, and no pipe is opened.
        start, _ = read_chosen(path, 8 + MAXIMUM_HEADER_BYTES)
        end = 8 + int.from_bytes(start[:8], "little")
        if not 8 < end <= len(start):
            raise UntrustedError("its header has another length than it says")
        header = parse_json(start[8:end])
        if not isinstance(header, dict):
            raise UntrustedError("its header is no mapping")
        for name, part in header.items():
            if name == "__metadata__":
                continue
            shape = fields.sequence(part, "shape", most=_MOST_AXES)
            extents = tuple(fields.as_integer(one, "shape", least=0) for one in shape)
            dtype = _SAFETENSORS.get(kind := fields.text(part, "dtype"))
            if dtype is None:
                raise ValueError(
                    f"{path}: the array {name} has the type {kind}; only F32 and F64 can be "
                    "noised: leave it out"
                )
            found[name] = Form(extents, dtype)
    except UntrustedError as error:
        raise ValueError(f"{path}: cannot be read as a .safetensors file ({error})") from None
    if (said := _too_large(found)) is not None:
        raise ValueError(f"{path}: {said}")
    return found


def _too_large(model: Mapping[str, Form]) -> str | None:
    size = sum(size_of(form) for form in model.values())
    if 1 <= size <= _MOST_COORDINATES:
        return None
    return f"has {size:,} coordinates; must have from 1 to {_MOST_COORDINATES:,}"


def size_of(form: Form) -> int:
    """How many numbers an array of this form has."""
    size = 1
    for extent in form.shape:
        size *= extent
    return size
