"""Run folders that hypothesis spoils: replaced, cut, linked, swapped, nested, other values."""

from __future__ import annotations

import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dpfedadamw.cli.hostile import material
from tests.dpfedadamw.cli.hostile.calls import called
from tests.dpfedadamw.cli.hostile.inputs import (
    INPUTS,
    TEXTS,
    VALUES,
    Around,
    at,
    kind_of,
    lines_of,
    places,
    put,
    relinked,
)
from tests.dpfedadamw.cli.hostile.recipes import RUN, SECOND
from tests.dpfedadamw.cli.hostile.test_every_command import SECRET, seen, wrong_with

COMMANDS = (
    (("verify", RUN), (0, 1, 2, 3)),
    (("audit", RUN), (0, 1, 2)),
    (("compare", RUN, SECOND, "--json"), (0, 1, 2)),
    (("evidence", "check", RUN), (0, 2)),
    (("report", RUN), (0, 1, 2)),
    (("figures", RUN, "--out", "out", "--figure", "second-moment-variance"), (0, 1, 2)),
    (("export", RUN, "--output", "model"), (0, 1, 2)),
)


@dataclass(frozen=True)
class Run:
    """A copy of a good run that is being spoilt.

    Attributes:
        path: The copy.
        good: The run itself, which stays as it is.
    """

    path: Path
    good: Path

    def plain(self, data: Any, of: Callable[[Path], bool] = lambda _: True) -> Path:
        """One of its plain files: nothing is written through a link that was put there before."""
        found = [one for one in sorted(self.path.rglob("*")) if _is_plain(one) and of(one)]
        return data.draw(st.sampled_from(found), label="file")

    def untouched(self, data: Any, of: Callable[[Path], bool] = lambda _: True) -> Path:
        """One that is as it was, for what is made of the content of a good file."""

        def as_it_was(path: Path) -> bool:
            before = self.good / path.relative_to(self.path)
            return of(path) and before.is_file() and before.read_bytes() == path.read_bytes()

        return self.plain(data, as_it_was)


def _is_plain(path: Path) -> bool:
    status = path.lstat()
    # One of 100 GB, which an input has put there, is not read into memory.
    return stat.S_ISREG(status.st_mode) and status.st_size < 1 << 28


Spoiling = Callable[[Run, Around, Any], None]


def _an_input(run: Run, around: Around, data: Any) -> None:
    """One of the inputs that every command is given."""
    path = run.untouched(data)
    fitting = [one for one in INPUTS if one.fits(kind_of(path)) and "100 MB" not in one.name]
    chosen = data.draw(st.sampled_from(fitting), label="input")
    chosen.spoil(path, around)


def _cut(run: Run, _around: Around, data: Any) -> None:
    path = run.plain(data)
    os.truncate(path, data.draw(st.integers(0, path.stat().st_size), label="bytes"))


def _flip(run: Run, _around: Around, data: Any) -> None:
    path = run.plain(data)
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=8)):
        if content:
            content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)


def _swap(run: Run, _around: Around, data: Any) -> None:
    one, other = run.plain(data), run.plain(data)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _nest(run: Run, _around: Around, data: Any) -> None:
    path = run.plain(data)
    moved = path.with_name("nested")
    path.replace(moved)
    path.mkdir()
    moved.replace(path / path.name)


def _value(run: Run, _around: Around, data: Any) -> None:
    """Another value anywhere in a file of JSON; the ledger's chain is made to fit."""
    path = run.untouched(data, lambda one: kind_of(one) in ("json", "jsonl"))
    lines = lines_of(path.read_bytes())
    index = data.draw(st.integers(0, len(lines) - 1), label="line")
    everywhere = [(), *places(lines[index])]
    place = data.draw(st.sampled_from(everywhere), label="place")
    new = data.draw(
        st.sampled_from([*VALUES.values(), *TEXTS.values(), float("nan"), at(lines[0], ())]),
        label="value",
    )
    lines[index] = put(lines[index], place, new)
    path.write_bytes(relinked(lines, path.name == "ledger.jsonl"))


SPOILING: tuple[Spoiling, ...] = (_an_input, _an_input, _value, _value, _cut, _flip, _swap, _nest)


def _spoilt_run_is_answered(good: Path, data: Any) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        here, outside, scratch = place / "here", place / "outside", place / "scratch"
        for folder in (here, outside, scratch):
            folder.mkdir()
        for name in ("runs", "keys"):
            shutil.copytree(good / name, here / name)
        (outside / "secret").write_text(SECRET)
        run = Run(here / RUN, good / RUN)
        around = Around(here, outside, place / "CANARY")
        for spoil in data.draw(st.lists(st.sampled_from(SPOILING), min_size=1, max_size=3)):
            spoil(run, around, data)
        again = data.draw(st.booleans(), label="signed again")
        before = seen(outside)
        for arguments, codes in COMMANDS:
            answer = called(
                arguments,
                here,
                {"DPFEDADAMW_KEYS": str(here / "keys"), "HOME": str(scratch)},
                scratch,
                functools.partial(material.sign_again, here / RUN, here / "keys")
                if again
                else None,
            )
            assert wrong_with(answer, codes) == [], (arguments, answer.text[-600:])
            assert not around.canary.exists()
            assert not (here / "CANARY").exists()
        assert seen(outside) == before


_SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=2, **_SETTINGS)
@given(data=st.data())
def test_a_few_spoilt_runs_are_answered(good: Path, data: Any) -> None:
    _spoilt_run_is_answered(good, data)


@pytest.mark.slow
@settings(max_examples=500, **_SETTINGS)
@given(data=st.data())
def test_five_hundred_spoilt_runs_are_answered(good: Path, data: Any) -> None:
    _spoilt_run_is_answered(good, data)
