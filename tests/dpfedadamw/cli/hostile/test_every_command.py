"""Every command of the command line on files that a stranger made.

Nothing is executed, read or written outside; every call ends soon, in little memory, with a
documented exit code, and prints no traceback and nothing that steers a terminal.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from dpfedadamw import cli
from dpfedadamw.cli import terminal
from tests.dpfedadamw.cli.hostile import calls
from tests.dpfedadamw.cli.hostile.calls import Answer, called
from tests.dpfedadamw.cli.hostile.inputs import (
    CODE,
    ESCAPES,
    INPUTS,
    SECRET,
    TEXTS,
    Around,
    Input,
    kind_of,
)
from tests.dpfedadamw.cli.hostile.recipes import ARGUMENT, RECIPES, Recipe

LEAST = 30
TELLS = "TELLS WHAT LIES OUTSIDE"
# A spec says where the data lie, and that may be anywhere: links to them are followed.
FOLLOWED = ("table.csv", "records.npz")
_DEPTH = 12


def commands() -> list[str]:
    """The names of all commands, as the command line itself knows them."""

    def below(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        found = getattr(command, "commands", None)
        if found is None:
            yield " ".join(path)
            return
        for name, one in found.items():
            yield from below(one, (*path, name))

    return list(below(cli.every_command(), ()))


@dataclass(frozen=True)
class Case:
    """One call: a recipe of a command, one of its files, and what stands in its place."""

    command: str
    recipe: Recipe
    file: str
    given: Input

    def __str__(self) -> str:
        return f"{' '.join(self.recipe.arguments)} | {self.file} | {self.given.name}"


def cases(good: Path, command: str) -> list[Case]:
    """All cases of a command, in an order that mixes files and inputs."""
    found = [
        Case(command, recipe, file, given)
        for recipe in RECIPES[command]
        for file in recipe.files
        if file == ARGUMENT or (good / file).exists()
        for kind in (kind_of(good / file),)
        for given in INPUTS
        if given.fits(kind)
    ]
    random.Random(command).shuffle(found)
    return found


def play(case: Case, good: Path, place: Path) -> list[str]:
    """Play a case in a folder of its own; what is wrong with how it ended."""
    try:
        return _played(case, good, place)
    finally:
        # Python's own removal calls itself for each level of folders.
        subprocess.run(["rm", "-rf", "--", str(place)], check=True)


def _played(case: Case, good: Path, place: Path) -> list[str]:
    here, outside, scratch = place / "here", place / "outside", place / "scratch"
    for folder in (here, outside, scratch):
        folder.mkdir(parents=True)
    for name in sorted({*case.recipe.needed, case.recipe.keys} & set(os.listdir(good))):
        source = good / name
        if source.is_dir():
            shutil.copytree(source, here / name, symlinks=True)
        else:
            shutil.copy2(source, here / name)
    (outside / "secret").write_text(SECRET)
    around = Around(here, outside, place / "CANARY")
    case.given.spoil(here / case.file, around)
    before = seen(here), seen(outside)
    environment = {
        "DPFEDADAMW_KEYS": str(here / case.recipe.keys),
        "HOME": str(scratch / "home"),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(scratch / "cache")),
    }
    words = (case.given.name,) if case.file == ARGUMENT else ()
    answer = called((*case.recipe.arguments, *words), here, environment, scratch)
    wrong = wrong_with(answer, case.recipe.codes)
    if case.file in FOLLOWED:
        wrong = [one for one in wrong if one != TELLS]
    if around.canary.exists() or (here / "CANARY").exists():
        wrong.append("EXECUTED")
    # A folder of keys that the user names may be a link, as with ssh-keygen: it is what was named.
    named = case.file in case.recipe.writes and (here / case.file).is_symlink()
    if seen(outside) != before[1] and not named:
        wrong.append("WROTE OUTSIDE")
    after = seen(here)
    changed = {
        name.split("/")[0]
        for name in {*before[0], *after}
        if before[0].get(name) != after.get(name)
    }
    left = changed - {*case.recipe.writes, case.recipe.keys}
    if left:
        wrong.append(f"wrote {sorted(left)}")
    return [f"{one}: {answer.text[-600:]!r}" for one in wrong]


def seen(folder: Path) -> dict[str, tuple[int, ...]]:
    """What lies below a folder, as far down as anybody would write; no link is followed."""
    found: dict[str, tuple[int, ...]] = {}
    folders = [(folder, 0)]
    while folders:
        above, depth = folders.pop()
        for entry in os.scandir(above):
            status = entry.stat(follow_symlinks=False)
            place = os.path.relpath(entry.path, folder)
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and depth < _DEPTH:
                folders.append((Path(entry.path), depth + 1))
            found[place] = (
                (status.st_mode,)
                if is_folder
                else (status.st_mode, status.st_mtime_ns, status.st_size)
            )
    return found


def wrong_with(answer: Answer, codes: Sequence[int]) -> list[str]:
    """What is wrong with how a command ended, one line each."""
    wrong = []
    if answer.code is None:
        wrong.append("does not end")
    elif answer.seconds > calls.SECONDS:
        wrong.append(f"takes {answer.seconds:.0f} s of processor time")
    elif answer.code not in codes:
        wrong.append(f"exit code {answer.code}")
    if answer.grown > calls.BYTES:
        wrong.append(f"takes {answer.grown >> 20} MB")
    if "Traceback" in answer.text or "internal error" in answer.text:
        wrong.append("traceback")
    if "not enough memory" in answer.text:
        wrong.append("takes all memory that it may have")
    steering = [one for one in answer.text if _steers(one)]
    if steering:
        wrong.append(f"prints {steering[0]!r}")
    if SECRET in answer.text or "root:x:0" in answer.text:
        wrong.append(TELLS)
    return wrong


def _steers(character: str) -> bool:
    steering = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    # The joiners shape Arabic and Indic words.
    return steering and character not in "\n\t\u200c\u200d"


def test_every_command_has_a_recipe() -> None:
    assert sorted(RECIPES) == sorted(commands())


def test_every_command_has_at_least_thirty_hostile_inputs(good: Path) -> None:
    for command in commands():
        assert len({case.given.name for case in cases(good, command)}) >= LEAST, command


def _answered(chosen: Sequence[Case], good: Path, folder: Path) -> None:
    wrong = {str(case): play(case, good, folder / "p") for case in chosen}
    told = [f"{case} -> {'; '.join(found)}" for case, found in wrong.items() if found]
    assert not told, "\n".join(told)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("command", sorted(RECIPES))
def test_a_hostile_file_is_answered(command: str, good: Path, tmp_path: Path) -> None:
    """One in the normal suite; the test below has all."""
    _answered(cases(good, command)[:1], good, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(RECIPES))
def test_every_hostile_input_and_every_file_is_answered(
    command: str, good: Path, tmp_path: Path
) -> None:
    """Each input once and each file of each recipe once; all pairs of them would take a day."""
    inputs, files, chosen = set(), set(), []
    for case in cases(good, command):
        file = (case.recipe, case.file)
        if case.given.name not in inputs or file not in files:
            inputs.add(case.given.name)
            files.add(file)
            chosen.append(case)
    _answered(chosen, good, tmp_path)


def test_good_files_are_answered_as_ever(good: Path, tmp_path: Path) -> None:
    as_it_is = Input("good", ("any",), lambda _path, _around: None)
    for command in ("spec validate", "verify", "compare", "sweep table", "budget show"):
        recipe = RECIPES[command][0]
        exactly = replace(recipe, codes=(recipe.good,))
        assert play(Case(command, exactly, recipe.files[0], as_it_is), good, tmp_path / "p") == []


def _with_code(good: Path) -> list[Case]:
    """Every spec that a command reads, its own or a run's, naming a model that runs a command."""
    return [
        Case(command, recipe, file, given)
        for command, recipes in RECIPES.items()
        for recipe in recipes
        for file in recipe.files
        if (good / file).is_file() and file.endswith(("spec.yaml", "matrix.yaml", "table.yaml"))
        for given in CODE
    ]


def test_code_that_a_spec_names_does_not_run(good: Path, tmp_path: Path) -> None:
    chosen = [
        case
        for case in _with_code(good)
        if case.command in ("spec validate", "epsilon") and case.given is CODE[0]
    ]
    _answered(chosen, good, tmp_path)


@pytest.mark.slow
def test_no_code_that_any_spec_names_runs(good: Path, tmp_path: Path) -> None:
    every = _with_code(good)
    _answered(every, good, tmp_path)


def test_what_anybody_wrote_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for text in TEXTS.values():
        hostile = text.encode("utf-8", "replace").decode() + ESCAPES
        terminal.out.print(Text(hostile))
        terminal.print_json({hostile: [hostile]})
        printed = capsys.readouterr().out
        assert not any(map(_steers, printed))
        value = json.loads(printed[printed.index("{\n") :])
        assert value == {hostile: [hostile]}
