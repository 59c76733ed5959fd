"""The published table of faults: `python -m tests.faults.table docs/faults.md` runs them all.

What is written between the page's marks comes from the gallery and from the verdicts of these runs.
It takes a minute; `test_table` holds the page's rows to the gallery in milliseconds, and its
verdicts to fresh runs where slow tests are run.

With `--group` or `--fault`, only those named and those that the page does not have yet are run; the
verdicts of the others are taken over from the page.

`python -m tests.faults.table --large [--group NOISE] [--fault NAME]` runs the same faults, or some
of them, with a model of 19,210 parameters and says which are caught; it writes nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from audit.checks import checks_of
from audit.reading.units import CLIENT, RECORD
from tests.faults.fault import LARGE, Fault, failed, findings_of
from tests.faults.gallery import GALLERY, GROUPS

BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"
CHECK_ORDER = tuple(dict.fromkeys(check.name for check in (*checks_of(RECORD), *checks_of(CLIENT))))


def description(fault: Fault) -> str:
    """What the page says of a fault besides its name."""
    return f"{fault.breaks}. *Seen in {fault.seen}.*"


def verdicts(fault: Fault, fails: Sequence[str]) -> str:
    """The checks that say FAIL, in bold those that must."""
    seen = [check for check in CHECK_ORDER if check in fails]
    return ", ".join(f"**{check}**" if check in fault.caught_by else check for check in seen)


def tables(fails: Mapping[str, Sequence[str]]) -> str:
    """All groups as Markdown, one table each.

    Faults that stand next to each other and differ only in their names share a row.

    Args:
        fails: by a fault's name the checks that said FAIL.
    """
    parts = [f"{len(GALLERY)} faults, each caught by the check that should."]
    for group in GROUPS:
        lines = ["| fault | FAIL by |", "|---|---|"]
        rows = ((description(one), verdicts(one, fails[one.name]), one) for one in group.faults)
        for (text, said), alike in itertools.groupby(rows, key=lambda row: row[:2]):
            names = ", ".join(f"`{fault.name}`" for *_, fault in alike)
            lines.append(f"| {names}: {text} | {said} |")
        parts.append(f"## {group.title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def published(page: str) -> dict[str, tuple[str, list[str], list[str]]]:
    """Description, checks in bold and checks that say FAIL, by fault, as a page has them."""
    found: dict[str, tuple[str, list[str], list[str]]] = {}
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        if line.startswith("| `"):
            described, said = line.removesuffix(" |").rsplit(" | ", 1)
            names, _, text = described.removeprefix("| ").partition("`: ")
            checks = said.split(", ")
            bold = [check.strip("*") for check in checks if check.startswith("**")]
            row = text, bold, [check.strip("*") for check in checks]
            found |= dict.fromkeys((name.strip("`") for name in names.split(", ")), row)
    return found


def run_all(folder: Path, faults: Sequence[Fault] = GALLERY) -> dict[str, list[str]]:
    """Run every fault, or some; the checks that said FAIL, by name."""
    fails = {}
    for fault in faults:
        fails[fault.name] = failed(findings_of(fault, folder / fault.name))
        if not set(fault.caught_by) <= set(fails[fault.name]):
            raise SystemExit(f"{fault.name}: not caught by {', '.join(fault.caught_by)}")
        print(f"{fault.name}: {', '.join(fails[fault.name])}", file=sys.stderr)
    return fails


def missed(faults: Sequence[Fault], folder: Path, model: str) -> list[str]:
    """Run faults with a model of another size; the names of those that are not caught.

    Args:
        faults: Which ones.
        folder: Where the runs are written.
        model: As in `findings_of`.
    """
    names = []
    for fault in faults:
        findings = findings_of(fault, folder / fault.name, model)
        fails = failed(findings)
        if not set(fault.caught_by) <= set(fails):
            names.append(fault.name)
        caught = "MISSED" if fault.name in names else "caught"
        told = f"{findings['verdict']} by {', '.join(fails)}" if fails else findings["verdict"]
        print(f"{caught} {fault.name}: {told}", flush=True)
    return names


def main(arguments: Sequence[str]) -> int:
    """Run all faults and rewrite the tables of the page that is named, or run some and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.table")
    parser.add_argument("page", nargs="?", type=Path, help="page whose tables are rewritten")
    parser.add_argument("--large", action="store_true", help="with a model of 19,210 parameters")
    parser.add_argument("--group", default="", help="only groups whose title contains this")
    parser.add_argument("--fault", default="", help="only faults whose name contains this")
    asked = parser.parse_args(arguments)
    some = [
        fault
        for group in GROUPS
        for fault in group.faults
        if asked.group.lower() in group.title.lower() and asked.fault in fault.name
    ]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFEDADAMW_KEYS"] = f"{folder}/keys"
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        if asked.page is None:
            names = missed(some, Path(folder), LARGE if asked.large else "")
            print(f"{len(some) - len(names)} of {len(some)} faults are caught by the check meant")
            return 1 if names else 0
        page = asked.page.read_text(encoding="utf-8")
        known = {name: fails for name, (_, _, fails) in published(page).items()}
        fresh = [fault for fault in GALLERY if fault in some or fault.name not in known]
        text = tables({**known, **run_all(Path(folder), fresh)})
    before, rest = page.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    asked.page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
