"""The quickstart keeps what README promises: private, useful, and passed by the audit."""

from __future__ import annotations

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.filing import after_training
from tests.runs import failing, train


@pytest.fixture(scope="module", params=[0, 1])
def finished(request, tmp_path_factory):
    """A trained quickstart, and what came of it."""
    # A fixed seed, so that the bar is not met or missed by luck; six seeds reached 86.6 to 91.6 %.
    changes = [f"randomness={{mode: reproducible, seed: {request.param}}}"]
    return train(specs.load("quickstart", changes), tmp_path_factory.mktemp("quickstart"))


@pytest.mark.sampled(2)
def test_the_quickstart_learns_within_its_budget(finished):
    _, outcome = finished
    assert outcome.accuracy is not None
    assert outcome.accuracy >= 0.85
    assert outcome.claim["delta"] == 1e-5
    assert 0 < outcome.claim["server"]["epsilon"]["pld"] <= 8


@pytest.mark.thorough
@pytest.mark.parametrize("finished", [0], indirect=True)
def test_the_quickstart_passes_its_audit(finished):
    training, _ = finished
    after_training.attest_training(training.run, after_training.load_signers(None, None))
    findings = after_training.audit(training.run).to_json()
    assert findings["verdict"] == "PASS", failing(findings)
