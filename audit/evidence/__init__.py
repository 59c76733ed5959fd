"""What is wrong with the form of a run's ledger and evidence, before anything is judged.

For programs that write their own evidence: one sentence for each fault, with the file. Readable
evidence says nothing about privacy; only the audit does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from audit.errors import UntrustedFileError
from audit.evidence.schema import breaches
from audit.reading.bundle import MAXIMUM_LAYOUT_BYTES, MAXIMUM_LEDGER_BYTES, Bundle, open_bundle
from audit.reading.files import read_bytes
from audit.reading.units import LOOP
from audit.untrusted.documents import DocumentError, parse_json

_MOST = 50


def faults(run_dir: Path) -> list[str]:
    """Every fault of form in a run's ledger and evidence, up to fifty.

    Args:
        run_dir: The run directory; it is only read.

    Raises:
        RunDirectoryError: `run_dir` is not a directory.
    """
    bundle = open_bundle(run_dir)
    found = []
    for fault in _faults(bundle):
        if fault not in found:
            found.append(fault)
        if len(found) == _MOST:
            break
    return found


def _faults(bundle: Bundle) -> Iterator[str]:
    yield from map(str, bundle.problems)
    ledger = bundle.ledger
    if ledger is None:
        return
    for fault in ledger.faults:
        yield (
            f"ledger.jsonl:{fault.line} {fault.what}"
            if fault.line
            else (f"ledger.jsonl {fault.what}")
        )
    if ledger.header is None:
        yield "ledger.jsonl: there is no header, which must be its first line"
        return
    if ledger.header.unit is LOOP:
        yield from _of_schema(bundle)
    if ledger.claim is None:
        yield "ledger.jsonl: there is no claim, which is written when a recording is closed"
    if not ledger.header.unit.claims_privacy:
        return
    yield from _readable(bundle)


def _of_schema(bundle: Bundle) -> Iterator[str]:
    """Where lines of the ledger and the layout leave their schema."""
    try:
        raw = read_bytes(bundle.root, "ledger.jsonl", MAXIMUM_LEDGER_BYTES)
        for number, line in enumerate(raw.splitlines(), start=1):
            for breach in breaches("ledger", parse_json(line)):
                yield f"ledger.jsonl:{number} {breach}"
        layout = read_bytes(bundle.root, "evidence/layout.json", MAXIMUM_LAYOUT_BYTES)
        for breach in breaches("layout", parse_json(layout)):
            yield f"evidence/layout.json: {breach}"
    except (UntrustedFileError, DocumentError):
        # Reported by the code that reads the file's content.
        return


def _readable(bundle: Bundle) -> Iterator[str]:
    ledger, header = bundle.ledger, bundle.header
    assert ledger is not None
    try:
        layout = bundle.layout()
    except UntrustedFileError as error:
        # Without it no array can be understood.
        yield str(error)
        return
    if layout.round_files != header.rounds and ledger.claim is not None:
        yield (
            f"evidence/layout.json: per_round_files is {layout.round_files}, and the ledger ends "
            f"{header.rounds} files"
        )
    if layout.parameters != header.parameters:
        yield f"evidence/layout.json: parameters is not the {header.parameters} of the header"
    due: list[Callable[[], Any]] = [bundle.coordinate_sums, bundle.salt]
    if header.unit is LOOP:
        due.append(bundle.loop_end)
    for item in {one.round: one for one in ledger.rounds}.values():
        due.append(partial(bundle.evidence_of_round, item.round, header.unit))
    for read in due:
        try:
            read()
        except UntrustedFileError as error:
            yield str(error)
