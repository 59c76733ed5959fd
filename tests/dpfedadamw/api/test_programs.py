"""The ten programs of docs/programs.md run as they are printed, each in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from audit.replay.base import Replay
from dpfedadamw.algorithms.registry import ALGORITHMS

PAGE = Path(__file__).parents[3] / "docs/programs.md"
SECTIONS = re.split(r"^## \d+\. ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
NEEDED = {
    "Clients in a data frame": ["pandas"],
    "Low-rank adapters on a transformer in a folder": ["transformers", "peft"],
    "A tracker": ["tensorboard"],
}
# What each prints last, as a pattern.
PRINTED = {
    "Quickstart": r"report\.pdf$",
    "A module and a loss of one's own": r"^PASS 0\.\d+$",
    "An algorithm of one's own, and its replay": r"^NOT VERIFIED 0\.\d+$",
    "Clients in a data frame": r"^PASS 0\.\d+$",
    "Low-rank adapters on a transformer in a folder": r"^PASS adapters$",
    "A run that was cut off": r"^PASS 5$",
    "A sweep": r"^\['0\.02', '0\.1'\] \['PASS', 'PASS'\]$",
    "A comparison": r"dp-fedavg",
    "A tracker": r"^PASS now",
    "An exported model": r"^torch\.Size\(\[1, 10\]\) True$",
}


def test_there_are_ten_of_five_to_forty_lines():
    assert [one.partition("\n")[0] for one in SECTIONS] == list(PRINTED)
    for section in SECTIONS:
        program = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)[0]
        assert 3 <= len([line for line in program.splitlines() if line.strip()]) <= 40


def _counted(text, mark="", kind="python"):
    """The lines of each program of a page, or its commands, blank ones left out."""
    block = rf"{mark}\s+((?:    [^\n]*\n)+)" if mark else rf"^```{kind}\n(.*?)^```"
    found = re.findall(block, text, re.M | re.S)
    return [len([line for line in one.splitlines() if line.strip()]) for one in found]


def test_the_table_says_how_many_lines_and_commands_each_user_needs():
    names = ("analyst", "opacus")
    pages = {name: (PAGE.parent / f"{name}.md").read_text("utf-8") for name in names}
    programs = [_counted(section) for section in SECTIONS]
    first = _counted(pages["opacus"], "<!-- commands -->")[0]
    analyst = sum(_counted(pages["analyst"], "<!-- commands -->"))
    assert _counted(pages["analyst"]) == []
    assert pages["opacus"].count("  # one") == pages["opacus"].count("  # three") == 1
    table = PAGE.read_text("utf-8").partition("| you have |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[2:] for line in table.splitlines()[2:]]
    assert [[one.strip(" |") for one in row] for row in rows] == [
        ["0", str(analyst)],
        # tests/dpfedadamw/api/test_serving_page.py counts them.
        ["34 in three files", "3"],
        [f"{programs[2][0]}, and {programs[2][1]} for its replay", "0"],
        ["3 around the loop", str(first)],
        [str(programs[4][0]), "0"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_a_program_runs_as_it_is_printed(section, tmp_path, monkeypatch):
    title = section.partition("\n")[0]
    for library in NEEDED.get(title, ()):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    # What a program registers is there for it alone.
    len(ALGORITHMS)
    monkeypatch.setattr(ALGORITHMS, "_entries", dict(ALGORITHMS._entries))
    monkeypatch.setattr(ALGORITHMS, "_origins", dict(ALGORITHMS._origins))
    monkeypatch.setattr(ALGORITHMS, "_edition", ALGORITHMS.edition)
    printed: list[str] = []
    for program in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S):
        names: dict[str, object] = {
            "__name__": "__main__",
            "print": lambda *values: printed.append(" ".join(map(str, values))),
        }
        exec(compile(program, str(PAGE), "exec"), names)
    assert re.search(PRINTED[title], printed[-1]), printed
    if "REPLAY" in names:
        assert isinstance(names["REPLAY"], Replay)
