"""The faults of servers and weights in a model of which only a share is kept as evidence."""

from __future__ import annotations

import pytest

from tests.faults.fault import failed, findings_of
from tests.faults.server_faults import GROUP, larger
from tests.runs import failing


@pytest.mark.slow
@pytest.mark.parametrize("fault", map(larger, GROUP.faults), ids=lambda fault: fault.name)
def test_a_fault_is_caught_in_a_larger_model_too(fault, tmp_path):
    findings = findings_of(fault, tmp_path)
    assert findings["verdict"] == "FAIL"
    assert set(fault.caught_by) <= set(failed(findings)), failing(findings)
    said = {check["name"]: check["measurement"] for check in findings["checks"]}
    assert fault.says in said[fault.caught_by[0]]
