"""What a sweep from Python asks of the command, and what it makes of the command's answers."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from dpfedadamw import api
from dpfedadamw.api import sweeping

ROWS = [{"cell": "one", "audit": "PASS"}, {"cell": "two", "audit": "FAIL"}]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the command answer; returns the arguments that it was called with."""

    def answer(code: int, out: object, err: str = "") -> list[str]:
        called: list[str] = []

        def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
            called.extend(command)
            text = out if isinstance(out, str) else json.dumps(out)
            return subprocess.CompletedProcess(command, code, text, err)

        monkeypatch.setattr(sweeping.subprocess, "run", run)
        return called

    return answer


def test_every_argument_is_an_option_of_the_command(answered: Any) -> None:
    called = answered(0, {"results": ROWS})
    api.sweep(
        "s.yaml",
        changes=["a=1", "b=2"],
        out="there",
        jobs=3,
        only=["x=y"],
        smoke=True,
        allow_code=["one", "two"],
    )
    after = called[called.index("sweep") + 1 :]
    assert after[0] == "s.yaml"
    options = ["--jobs=3", "--json", "--set=a=1", "--set=b=2", "--only=x=y", "--smoke"]
    options += ["--out=there", "--allow-code=one", "--allow-code=two"]
    assert sorted(after[1:]) == sorted(options)


def test_what_is_not_given_is_left_to_the_command(answered: Any) -> None:
    called = answered(0, {"results": ROWS})
    api.sweep("s.yaml")
    assert sorted(called[called.index("sweep") + 2 :]) == ["--jobs=1", "--json"]
    called = answered(0, {"results": ROWS})
    api.sweep("s.yaml", allow_code="one.module")
    assert [one for one in called if one.startswith("--allow")] == ["--allow-code=one.module"]


@pytest.mark.parametrize("code", [0, 1])
def test_cells_that_did_not_pass_are_rows_like_the_others(answered: Any, code: int) -> None:
    answered(code, {"results": ROWS, "failed": {"three": "no data"}})
    assert api.sweep("s.yaml").column("audit") == ["PASS", "FAIL"]


@pytest.mark.parametrize(
    ("code", "out", "err", "said"),
    [
        (2, {"error": {"messages": ["a is wrong", "b is wrong"]}}, "", "^a is wrong\nb is wrong$"),
        (1, {"results": [], "failed": {"one": "no data", "two": "no room"}}, "", "no data\nno roo"),
        (1, {"results": []}, " it broke \n", "^it broke$"),
        (2, {"results": ROWS}, "it is wrong", "^it is wrong$"),
        (70, "no JSON", "a bug\n", "^a bug$"),
        (0, {"results": []}, "", "the sweep failed"),
    ],
    ids=["a wrong spec", "no cell ran", "neither", "rows all the same", "a bug", "no word"],
)
def test_a_sweep_without_a_cell_is_an_error_with_what_the_command_says(
    answered: Any, code: int, out: object, err: str, said: str
) -> None:
    answered(code, out, err)
    with pytest.raises(api.DpfedadamwError, match=said):
        api.sweep("s.yaml")
