"""A synthetic run as another would have written it; needs no optional package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.reports.conftest import write_ledger


def rewrite_header(run: Path, **changes: Any) -> None:
    """Change the ledger's first line, as another run would have written it."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text("utf-8").splitlines()]
    rows = [{k: v for k, v in row.items() if k not in ("digest", "previous")} for row in lines]
    rows[0] |= changes
    write_ledger(run / "ledger.jsonl", rows)


def change_participation(run: Path) -> None:
    """The same run, had other clients taken part: more often, at a larger loss of each."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text("utf-8").splitlines()]
    for line in lines:
        if line["kind"] == "round":
            line["clients"] = [*line["clients"][::-1][:-1], 0]
        elif line["kind"] == "spend":
            line["client"] = 9 - line["client"]
    for row in lines[-1]["server"]["clients"]:
        row["participations"] += 1
        for name in row["epsilon"]:
            row["epsilon"][name] *= 1.25
    lines[-1]["server"]["epsilon"]["pld"] *= 1.25
    lines[-1]["profile"] = [[2 * e, d] for e, d in lines[-1]["profile"]]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (run / "ledger.jsonl").write_text(text, "utf-8")
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    audit["inputs"].pop("ledger.jsonl")
    for check in audit["checks"]:
        check["measurement"] += " Client 2 took part 11 times."
        for row in check["details"].get("over_rounds", []):
            row["server"] *= 1.25
        if "quantiles" in check["details"]:
            widths = check["details"]["quantiles"]
            widths["low"] = [value * 1.1 for value in widths["low"]]
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
