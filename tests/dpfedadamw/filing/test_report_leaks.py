"""Real runs: nothing that the auditor measured on private records stands in any file for others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.reading import leaks
from audit.verdict import Verdict
from dpfedadamw.errors import FilingError
from dpfedadamw.filing import after_training as filing
from dpfedadamw.rundir import RunDirectory
from reports import Auditing
from tests.runs import attest, small_spec, train

CLIENT_LEVEL = "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}"


def attested(algorithm: str, overrides: tuple[str, ...], folder: Path) -> RunDirectory:
    spec = small_spec(algorithm, rounds=2, clients_per_round=3, overrides=overrides)
    training, _ = train(spec, folder)
    attest(training)
    return training.run


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [("dp-fedadamw", ()), ("dp-fedsam", ()), ("dp-fedavg", (CLIENT_LEVEL,))],
)
def test_no_private_number_is_in_any_report(
    algorithm: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """By the auditor's own search; chance meetings are rarer than one run in a thousand."""
    run = attested(algorithm, overrides, tmp_path)
    signers = filing.load_signers(None, None)
    findings = filing.audit(run)
    filing.file_report(run, findings, signers.auditor)
    filing.file_report(run, findings, signers.auditor, "public")
    assert leaks.search(run.path) == ()
    assert filing.audit(run).named("disclosure").verdict is Verdict.PASS


def test_a_report_with_a_private_number_is_taken_back_before_it_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = attested("dp-fedadamw", (), tmp_path)
    with np.load(run.evidence / "round-00000.npz") as arrays:
        norm = float(arrays["raw_norms"].max())
    build = filing.reports.build_report

    def build_and_tell(path: Path, audience: str, signed: Auditing) -> object:
        files = build(path, audience, signed)
        files.html.write_text(files.html.read_text("utf-8") + f"largest norm {norm!r}", "utf-8")
        return files

    monkeypatch.setattr(filing.reports, "build_report", build_and_tell)
    key = filing.load_signers(None, None).auditor
    with pytest.raises(FilingError, match=r"report\.html would reveal .* .raw_norms of") as raised:
        filing.file_report(run, filing.audit(run), key)
    assert repr(norm)[:9] not in str(raised.value)
    assert not list(run.path.glob("report*"))
    assert not (run.path / "attestation.json").exists()
