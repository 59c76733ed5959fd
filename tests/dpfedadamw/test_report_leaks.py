"""Real runs: nothing that the auditor measured on private records stands in any report file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.cli import filing
from dpfedadamw.probe import probe_of
from tests.runs import small_spec, train

# Arrays of the evidence that no noise covers, by any part of their names.
PRIVATE = ("norm", "noise", "clean", "batch", "inclusion", "loss")
DIGITS = 12
MOST = 4_000


def private_values(evidence: Path) -> list[float]:
    """Numbers from the evidence with enough digits to be known by them."""
    found: list[float] = []
    for path in sorted(evidence.glob("*.npz")):
        with np.load(path) as arrays:
            for name in arrays.files:
                if any(part in name for part in PRIVATE) and arrays[name].dtype.kind == "f":
                    found += [float(value) for value in arrays[name].ravel()]
    findings = json.loads((evidence / "findings.json").read_text("utf-8"))["private"]
    found += [float(text) for text in re.findall(r"-?\d+\.\d{8,}", json.dumps(findings))]
    told = [value for value in found if np.isfinite(value) and len(digits_of(value)) >= DIGITS]
    keep = np.random.default_rng(0).permutation(len(told))[:MOST]
    return [told[index] for index in keep]


def digits_of(value: float) -> str:
    """The significant digits of a number as Python and JSON print it."""
    text = f"{abs(value):.17e}" if value else "0"
    mantissa, _, _ = repr(float(text)).partition("e")
    return mantissa.replace(".", "").lstrip("0")


CLIENT_LEVEL = "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}"


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [("dp-fedadamw", ()), ("dp-fedsam", ()), ("dp-fedavg", (CLIENT_LEVEL,))],
)
def test_no_private_number_is_in_any_report(
    algorithm: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """By their first 12 digits; 4,000 numbers meet a million others by chance in 0.4 % of runs."""
    spec = small_spec(algorithm, overrides=overrides)
    training, _ = train(spec, tmp_path)
    signers = filing.load_signers(None, None)
    filing.attest_training(training.run, probe_of(training), signers)
    findings = filing.audit(training.run)
    filing.file_report(training.run, findings, signers.auditor)
    filing.file_report(training.run, findings, signers.auditor, "public")
    values = private_values(training.run.evidence)
    assert len(values) > 500
    names = [f"report{kind}.{form}" for kind in ("", "-public") for form in ("json", "html")]
    for name in names:
        text = re.sub(r"[.,]", "", (training.run.path / name).read_text("utf-8"))
        shown = set()
        for run_of_digits in re.findall(r"\d{12,}", text):
            digits = run_of_digits.lstrip("0")
            shown |= {digits[:DIGITS]} if len(digits) >= DIGITS else set()
        assert not shown & {digits_of(value)[:DIGITS] for value in values}, name
    # The same search finds what is there: the report's own losses.
    report = json.loads((training.run.path / "report.json").read_text("utf-8"))
    loss = report["guarantee"]["epsilon"]
    text = re.sub(r"[.,]", "", (training.run.path / "report.json").read_text("utf-8"))
    assert digits_of(loss)[:DIGITS] in text
