"""Mutants of the second verifier: `python -m tests.mutation.second_verifier [--sample N]`.

`reports/verifier/verify.mjs` is JavaScript, so its mutants come from its tokens and not from a
syntax tree. Each is tried by the tests that run the verifier, in a copy of the sources. The
folders that these tests judge are written once, and the package's own verifier judges them once.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.mutation import __main__ as command
from tests.mutation import processes, selection
from tests.mutation.mutants import Mutant

PATH: Final = "reports/verifier/verify.mjs"
_GATE: Final = "tests/audit/extensions/gate/test_gate.py::test_"
TESTS: Final = (
    "tests/conformance/test_conformance.py",
    f"{_GATE}the_second_verifier_says_the_same",
    f"{_GATE}on_small_changes_both_verifiers_agree",
    f"{_GATE}a_ledger_rolled_back_with_its_head_passes_only_where_no_anchor_was_given",
    "tests/reports/verifier/test_verify.py",
    "tests/reports/verifier/test_evidence.py",
    "tests/audit/test_protection.py::test_the_second_verifier_has_the_same_limit",
)
# Any change of the verifier's text would fail it, whatever the verifier then says.
_LEFT_OUT: Final = "test_the_page_is_made_of_the_verifier_and_allows_nothing_else"
_LAST: Final = ("verifiers_agree", "it_spells", "say_of_every_folder")
_SECONDS: Final = 240

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<number>(?:0x[\da-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)n?)|(?P<word>[\w$]+)
    |(?P<sign>>>>|[=!]==|\*\*|=>|<<=|>>=|[<>=!]=|<<|>>|&&=|\|\|=|\?\?=|&&|\|\||\?\?|\?\.|\+\+|--
    |[-+*/%&|^]=|\.\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)
_REGEX: Final = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
_OTHER: Final = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "===": "!==", "!==": "===", "==": "!=", "!=": "==",
    "&&": "||", "||": "&&", "??": "&&", "+": "-", "-": "+", "*": "/", "/": "*", "%": "*",
    "**": "*", "<<": ">>", ">>": "<<", ">>>": "<<", "&": "|", "|": "&", "^": "&", "+=": "-=",
    "-=": "+=", "*=": "/=", "++": "--", "--": "++", "true": "false", "false": "true",
    "min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "some": "every",
    "every": "some", "break": "continue", "continue": "break", "throw": "void",
}  # fmt: skip
# What refuses or tells is left out as a whole; the words inside are for people.
_TELLS: Final = {"refuse", "fail", "fails", "contradict", "say"}

Token = tuple[str, int, int, str]


def tokens(text: str) -> list[Token]:
    """Return kind, start, end and text of what stands in a script, but for spaces and comments."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        one = _TOKEN.match(text, at)
        assert one is not None
        kind, end = str(one.lastgroup), one.end()
        if text[at] == "`":
            kind, end = "template", _end_of_template(text, at)
        elif text[at] == "/" and kind == "sign" and not (found and _is_operand(found[-1])):
            regex = _REGEX.match(text, at)
            assert regex is not None, text[at : at + 40]
            kind, end = "template", regex.end()
        if kind != "skip":
            found.append((kind, at, end, text[at:end]))
        at = end
    return found


def _end_of_template(text: str, at: int) -> int:
    """Where a template literal ends; its fields may hold others."""
    at, depth = at + 1, 0
    while depth or text[at] != "`":
        if text.startswith("${", at) and not depth:
            at, depth = at + 2, 1
        elif depth and text[at] == "`":
            at = _end_of_template(text, at)
        else:
            depth += {"{": 1, "}": -1}.get(text[at], 0) if depth else 0
            at += 2 if text[at] == "\\" else 1
    return at + 1


def _is_operand(token: Token) -> bool:
    """Whether a value can end with a token, so that an operator follows."""
    kind, _, _, text = token
    return text in (")", "]") or (
        kind != "sign" and text not in ("return", "of", "in", "typeof", "void")
    )


def mutants_of(source: bytes) -> list[Mutant]:
    """Return the mutants of a script, in the order of their places; a few do not parse."""
    text = source.decode()
    place = [0, *itertools.accumulate(len(one.encode()) for one in text)]
    return [
        Mutant(PATH, place[start], place[end], new, text.count("\n", 0, start) + 1, operator)
        for start, end, new, operator in _edits(text, tokens(text))
    ]


def _edits(text: str, found: Sequence[Token]) -> Iterator[tuple[int, int, str, str]]:
    closed_by, open_ones = {}, []
    for place, (_, _, _, word) in enumerate(found):
        if word in ("(", "[", "{"):
            open_ones.append(place)
        elif word in (")", "]", "}"):
            closed_by[open_ones.pop()] = place
    told_until = 0
    for place, (kind, start, end, word) in enumerate(found[:-1]):
        if start < told_until:
            continue
        before, after = found[place - 1], found[place + 1]
        if kind == "word" and after[3] == "(":
            inner = found[place + 2 : closed_by[place + 1]]
            close = found[closed_by[place + 1]]
            pushed = word == "push" and found[place - 2][3].lower().endswith("faults")
            if (word in _TELLS and before[3] != ".") or pushed:
                told_until = close[2]
                yield found[place - 2][1] if pushed else start, close[2], "null", "not told"
                continue
            if word in ("if", "while") and not _is_turned_round([one[3] for one in inner]):
                test = text[after[2] : close[1]]
                yield after[2], close[1], f"!({test})", "condition"
        if word == "!" and after[3] != "=":
            yield start, end, "", "no negation"
        elif word == "-" and not _is_operand(before):
            yield start, end, "", "no sign"
        elif word in _OTHER and not (word in "+-" and "text" in (before[0][-4:], after[0][-4:])):
            yield start, end, _OTHER[word], "operator or word"
        elif kind == "number":
            big = "n" if word.endswith("n") else ""
            yield start, end, f"({word} + 1{big})", "constant"
            if word not in ("0", "1"):
                yield start, end, f"({word} - 1{big})", "constant"
        elif kind == "text" and word != '""' and " " not in word:
            yield start, end, f'"X{word[1:]}', "text"


def _is_turned_round(test: Sequence[str]) -> bool:
    """Whether another change already turns a condition round."""
    return not {"&&", "||", "??", "<", "<=", ">", ">="} & {*test} and (
        test[0] == "!" or bool({"===", "!=="} & {*test})
    )


_PARSES: Final = """
const { SourceTextModule } = require("node:vm");
const { source, edits } = JSON.parse(require("node:fs").readFileSync(0));
const bytes = Buffer.from(source), parses = ([start, end, text]) => {
  try {
    return Boolean(new SourceTextModule(bytes.subarray(0, start) + text + bytes.subarray(end)));
  } catch {
    return false;
  }
};
console.log(JSON.stringify(edits.map(parses)));
"""


def that_parse(mutants: Sequence[Mutant], source: bytes) -> list[Mutant]:
    """Return those that Node can read."""
    edits = [(one.start, one.end, one.text) for one in mutants]
    done = subprocess.run(
        ["node", "--experimental-vm-modules", "--no-warnings", "-e", _PARSES],
        input=json.dumps({"source": source.decode(), "edits": edits}),
        capture_output=True,
        text=True,
        check=True,
    )
    parse = json.loads(done.stdout)
    return [one for one, holds in zip(mutants, parse, strict=True) if holds]


class _Order:
    """The quick tests first."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [one for one in items if one.name != _LEFT_OUT]
        items.sort(key=lambda one: any(word in one.name for word in _LAST))


def _pytest() -> int:
    import pytest

    arguments = processes.pytest_arguments(processes.ROOT, TESTS)
    return int(pytest.main(["-x", *arguments], plugins=[_Order()]))


def _write_once(module: Any) -> None:
    """Have a module's `write` fill its folder once, and lead later callers there."""
    write, kept = module.write, processes.ROOT / ".kept" / module.__name__ / "folders"
    made: list[Any] = []

    def again(folder: Path, *given: Any) -> Any:
        own, keys = folder.with_name("keys"), kept.with_name("keys")
        if not made:
            made.append(write(kept, *given))
            shutil.copytree(own, keys)
        shutil.copytree(keys, own, dirs_exist_ok=True)
        folder.symlink_to(kept)
        return made[0]

    module.write = again


def _judge_once() -> None:
    """Have the package's own verifier, which no mutant changes, judge each folder once."""
    verification: Any = importlib.import_module("reports.signatures.verification")
    verify, known = verification.verify, {}

    def again(path: Path, *given: Any, **named: Any) -> Any:
        if given or named or not path.is_relative_to(processes.ROOT / ".tests"):
            return verify(path, *given, **named)
        # The tests' folders have other places each time, and the same names.
        if path.name not in known:
            known[path.name] = verify(path)
        return known[path.name]

    verification.verify = again


def _outcome(mutant: Mutant, source: bytes) -> str:
    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(_pytest())

    (processes.ROOT / PATH).write_bytes(mutant.apply(source))
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    (processes.ROOT / PATH).write_bytes(source)
    return command.KILLED if child.exitcode else command.SURVIVED


def main() -> int:
    """Run the command; return 0 if every mutant that was tried was noticed, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="try so many, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after so long")
    parser.add_argument("--in-copy", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.in_copy:
        with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
            copy = processes.copy_sources(Path(scratch))
            again = [sys.executable, "-m", "tests.mutation.second_verifier", *sys.argv[1:]]
            environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
            return subprocess.run([*again, "--in-copy"], cwd=copy, env=environment).returncode
    source = (processes.ROOT / PATH).read_bytes()
    sources = {PATH: source}
    every = that_parse(mutants_of(source), source)
    mutants = command.without_equivalents(every, sources)
    chosen = selection.sampled(mutants, arguments.sample, arguments.seed)
    print(f"{len(mutants):,} mutants, {len(every) - len(mutants)} more are equivalent", flush=True)
    _judge_once()
    for name in ("tests.conformance", "tests.audit.extensions.gate.forgeries"):
        _write_once(importlib.import_module(name))
    if _pytest():
        sys.exit("error: the tests fail as they are")
    results: list[command.Result] = []
    until = time.monotonic() + 60.0 * arguments.minutes
    for mutant in chosen:
        if time.monotonic() > until:
            break
        results.append(command.Result(mutant, "", _outcome(mutant, source), 0))
        if results[-1].outcome == command.SURVIVED:
            print(command.shown(results[-1], sources), flush=True)
    print(f"\n{command.table(results, {PATH: len(mutants)})}\n")
    return int(any(one.outcome == command.SURVIVED for one in results))


if __name__ == "__main__":
    raise SystemExit(main())
