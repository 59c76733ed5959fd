"""How many faults of the gallery the second verifier sees by itself.

``python -m tests.conformance.gallery docs/faults.md`` runs them all and writes the sentence between
the page's marks. It sees what shows in spec, ledger, claim, noise and batch sizes; clipping,
uploads and weights are for the auditor.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from tests.faults.fault import findings_of
from tests.faults.gallery import GALLERY, GROUPS

BEGIN, END = "<!-- second verifier -->", "<!-- end of second verifier -->"
JUDGE = Path(__file__).with_name("judge.mjs")


def seen(folder: Path) -> set[str]:
    """Names of the faults that it sees.

    Args:
        folder: Where runs are written, one after another.
    """
    found = set()
    for fault in GALLERY:
        findings_of(fault, folder)
        # A fault that needs another run before it has the later one judged.
        ledgers = (one / "ledger.jsonl" for one in folder.iterdir() if one.is_dir())
        run = max((one for one in ledgers if one.exists()), key=lambda one: one.stat().st_mtime)
        given = json.dumps([str(run.parent)])
        done = subprocess.run(
            ["node", str(JUDGE), "folders"], input=given, capture_output=True, text=True, check=True
        )
        if json.loads(done.stdout)[str(run.parent)]["claim"] == "CONTRADICTED":
            found.add(fault.name)
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    return found


def sentence(names: set[str]) -> str:
    """What the page says of them."""
    parts = [
        f"{sum(fault.name in names for fault in group.faults)} of {len(group.faults)} in "
        f"*{group.title}*"
        for group in GROUPS
        if any(fault.name in names for fault in group.faults)
    ]
    return (
        f"The [second verifier](format.md#a-page-that-verifies) sees {len(names)} of the "
        f"{len(GALLERY)} by itself: {', '.join(parts)}."
    )


def main(page: Path) -> None:
    """Run all faults and rewrite the sentence of a page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFEDADAMW_KEYS"] = f"{folder}/keys"
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        runs = Path(folder) / "runs"
        runs.mkdir()
        text = sentence(seen(runs))
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", "utf-8")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
