"""Every program of docs/python.md runs as it is printed, one after another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpfedadamw import api

PAGE = Path(__file__).parents[3] / "docs/python.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def followed(programs):
    """What programs of the page leave behind in the working directory, and what they print."""
    names: dict[str, object] = {}
    printed: list[tuple[object, ...]] = []
    names["print"] = lambda *values: printed.append(values)
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), names)
    return names, printed


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What the page's programs of a cost and of a run from a dictionary leave behind."""
    imported, cost, run = PROGRAMS[0].splitlines()[0], PROGRAMS[1], PROGRAMS[3]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        yield followed([imported, cost, run])


@pytest.mark.thorough
def test_every_program_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = followed(PROGRAMS)
    assert len(PROGRAMS) == 8
    assert names["noise"][1] < names["noise"][5]
    verdict, accuracy, epsilon, delta = printed[0]
    assert verdict in ("PASS", "FAIL")
    assert accuracy > 0.85
    assert (round(epsilon, 3), delta) == (7.081, 1e-5)
    assert printed[1][0] > epsilon
    assert 2.98 < printed[2][0] <= 3.0
    assert [line[0] for line in printed[3:8]] == [1, 2, 3, 4, 5]
    assert printed[8][0] == "PASS"
    assert "GroupNorm" in str(printed[8][1])
    assert printed[9] == ("PASS",)
    verdict, measures = printed[10]
    assert verdict in ("PASS", "NOT VERIFIED")
    assert measures["test_rmse"] < 1.0
    assert "dp-fedadamw" in printed[11][0]
    assert "dp-fedavg" in printed[11][0]


def test_what_is_printed_of_a_run_is_what_its_files_hold(page):
    run = page[0]["run"]
    assert isinstance(run, api.Run)
    assert run.claim["server_worst_case"]["epsilon"]["pld"] == run.epsilon
    assert run.epsilon <= 4
    assert run.metrics[-1]["test_accuracy"] == run.accuracy
    assert "profile" not in run.claim
    assert "clients" not in run.claim["server"]


def test_a_run_verifies_reports_to_the_public_and_exports_what_loads_again(page):
    run = page[0]["run"]
    assert run.verify().outcome.value == "ALL HOLD"
    public = run.report("public")
    assert public.name == "report-public.pdf"
    assert public.read_bytes().startswith(b"%PDF")
    assert run.verify().outcome.value == "ALL HOLD"
    folder = run.export("exported")
    trained, loaded = run.model.state_dict(), api.load_model(folder).state_dict()
    assert all((loaded[name] == value).all() for name, value in trained.items())
    assert run.audit().verdict.value == run.verdict


def test_a_finished_run_is_resumed_into_itself(page):
    run = page[0]["run"]
    before = sorted(path.name for path in run.path.iterdir())
    assert api.resume(run.path).verdict == run.verdict
    assert sorted(path.name for path in run.path.iterdir()) == before


def test_a_notebook_shows_a_run_with_its_claim_rounded_up(page):
    run = page[0]["run"]
    shown = run._repr_html_()
    assert f"<th>audit</th><td>{run.verdict}</td>" in shown
    assert f"<th>ε</th><td>{-(-run.epsilon * 1000 // 1) / 1000:.3f}</td>" in shown
    assert page[0]["cost"]._repr_html_().count("<tr>") == 3
    assert run.metrics._repr_html_().count("<tr>") == 7
