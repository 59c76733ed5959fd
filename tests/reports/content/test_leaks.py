"""Nothing private reaches any form of a report, and no public form tells who took part.

Evidence is planted with values that occur nowhere else; the files are searched as text, as bytes,
and, for the PDF, in every stream and attachment.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports import build_report
from tests.reports.changed_runs import change_participation
from tests.reports.data import data_of, write_comparison

pikepdf = pytest.importorskip("pikepdf", reason="pikepdf is not installed")

MakeRun = Any  # the builder that conftest gives
MARK = "PLANTED-8675309"
VALUE = 0.86753090424242
# The value as any of the report's formats could print it: plain, in percent, rounded up, as power.
PRINTED = ("0.8675309", "8.6753", "86.8 %", "0.8676", "0.86754", "0.87 ", ">0.87<")


def plant(run: Path) -> None:
    """Fill evidence, and whatever else the report has no business with, with the marks."""
    evidence = run / "evidence"
    np.savez(evidence / "round-00000.npz", raw_norms=np.full(50, VALUE), names=np.array([MARK]))
    private = {"noise-scale": {"kolmogorov_p_value": VALUE, "note": MARK}}
    (evidence / "findings.json").write_text(json.dumps({"private": private}))
    (evidence / f"{MARK}.json").write_text(json.dumps({MARK: VALUE}))
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / f"{MARK}.npz").write_bytes(MARK.encode())
    # Details of the audit that no form shows, and keys that the metrics should not have.
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    for check in audit["checks"]:
        check["details"] |= {"private": VALUE, "text": MARK, MARK: VALUE}
        check["private"] = {"value": VALUE, "text": MARK}
    audit["private"] = {MARK: VALUE}
    audit["inputs"].pop("metrics.jsonl")
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"train_loss": VALUE, "gradient_norm": VALUE, "who": MARK}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (run / "notes.txt").write_text(MARK)


def everything_in(path: Path) -> bytes:
    """A file's bytes; of a PDF also all streams, strings and attachments, unpacked."""
    parts = [path.read_bytes()]
    if path.suffix == ".pdf":
        with pikepdf.open(path) as document:
            for entry in document.objects:
                if isinstance(entry, pikepdf.Stream):
                    parts.append(entry.read_bytes())
                parts.append(repr(entry)[:20_000].encode("utf-8", "replace"))
            # On the page, text is glyph numbers; poppler turns them back.
            if shutil.which("pdftotext") is not None:
                command = ["pdftotext", str(path), "-"]
                parts.append(subprocess.run(command, capture_output=True, check=True).stdout)
            parts += [file.get_file().read_bytes() for file in document.attachments.values()]
    return b"\n".join(parts)


def assert_clean(path: Path) -> None:
    found = everything_in(path)
    assert MARK.encode() not in found, path.name
    assert MARK.encode("utf-16-be") not in found, path.name
    for text in PRINTED:
        assert text.encode() not in found, (path.name, text)
    for form in ("<d", ">d", "<f", ">f"):
        assert struct.pack(form, VALUE) not in found, path.name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("audience", ["internal", "public"])
@pytest.mark.parametrize("options", [{}, {"verdict": "FAIL"}, {"private": False}])
def test_planted_values_reach_no_form(
    make_run: MakeRun, options: dict[str, Any], audience: str
) -> None:
    run = make_run(**options)
    plant(run)
    files = build_report(run, audience)
    for path in (files.json, files.pdf, files.html):
        assert_clean(path)


def test_the_search_would_find_them(make_run: MakeRun) -> None:
    """Said in the open, the same values are found in all three forms."""
    run = make_run(spec_extra={"description": f"{MARK} and 0.8675309"})
    files = build_report(run)
    for path in (files.json, files.pdf, files.html):
        with pytest.raises(AssertionError):
            assert_clean(path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("noise", ["server", "clients"])
def test_planted_values_reach_no_form_of_a_client_level_run(
    make_client_run: MakeRun, noise: str
) -> None:
    run = make_client_run(noise_added_by=noise)
    plant(run)
    for audience in ("internal", "public"):
        files = build_report(run, audience)
        for path in (files.json, files.pdf, files.html):
            assert_clean(path)


def test_planted_values_reach_no_comparison(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(name, identifier=digits) for name, digits in
            (("a", "1a2b3c4d"), ("b", "2b3c4d5e"))]  # fmt: skip
    for run in runs:
        plant(run)
    for audience in ("internal", "public"):
        for path in write_comparison(runs, tmp_path / "out", audience).values():
            assert_clean(path)


def test_other_participation_leaves_the_same_public_bytes(make_run: MakeRun) -> None:
    first, second = make_run("a"), make_run("b")
    internal = data_of(second)
    change_participation(second)
    assert data_of(second) != internal
    left, right = (build_report(run, "public") for run in (first, second))
    for kind in ("json", "pdf", "html"):
        assert getattr(left, kind).read_bytes() == getattr(right, kind).read_bytes(), kind


def test_other_participation_leaves_the_same_public_comparison(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, other = make_run("a"), make_run("b", private=False, identifier="2b3c4d5e")
    before = write_comparison([run, other], tmp_path / "before", "public")
    kept = {kind: path.read_bytes() for kind, path in before.items()}
    change_participation(run)
    after = write_comparison([run, other], tmp_path / "after", "public")
    assert {kind: path.read_bytes() for kind, path in after.items()} == kept


def test_public_forms_name_no_client(make_run: MakeRun) -> None:
    files = build_report(make_run(), "public")
    for path in (files.json, files.html):
        shown = path.read_text("utf-8")
        assert not re.search(r"client[ _]\d|took part \d|particip\w* \d+ times", shown, re.I)
