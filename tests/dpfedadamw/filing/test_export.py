"""What people state besides a run's spec, for an entry in a registry or an annex."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import FilingError
from dpfedadamw.filing.export import read_statements
from dpfedadamw.rundir import RunDirectory

OWN = {"purpose": "Reading.", "language": "de", "governance": {"region": "EU"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run whose spec states its purpose and region."""
    folder = tmp_path_factory.mktemp("run")
    spec = {**specs.load("quickstart").to_mapping(), "report": OWN}
    (folder / "spec.yaml").write_text(specs.dump(specs.from_mapping(spec)))
    return RunDirectory(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", {}),
        ("risks: Few.", {"risks": "Few."}),
        ("{risks: null, measures: Noise.}", {"measures": "Noise."}),
        # What the spec says may be said again, and how a report looks is no statement.
        ("{purpose: Reading., language: de, paper: a4}", {"purpose": "Reading."}),
        (
            "{risks: Few., governance: {region: EU, sector: Finance, access: null}}",
            {"risks": "Few.", "governance.region": "EU", "governance.sector": "Finance"},
        ),
    ],
)
def test_what_is_stated_is_told_by_its_key_and_nothing_else_is(
    text: str, said: dict[str, str], run: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "said.yaml").write_text(text)
    assert read_statements(run, tmp_path / "said.yaml") == said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("purpose: Writing.", "said.yaml: purpose: the run's signed spec"),
        ("governance: {region: US}", "said.yaml: governance.region: the run's signed spec"),
        ("paper: letter", "said.yaml: paper: the run's signed spec"),
        ("governance: {sector: Farming}", "governance.sector"),
        ("governance: a text", "governance"),
        ("governance: [region]", "governance"),
        ("risk: Few.", "risk"),
        ("- risks", "said.yaml"),
        ("{", "said.yaml"),
        (None, "said.yaml"),
    ],
)
def test_what_contradicts_the_spec_or_is_no_statement_is_one_line_with_the_file(
    text: str | None, part: str, run: RunDirectory, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "said.yaml").write_text(text)
    with pytest.raises(FilingError) as error:
        read_statements(run, tmp_path / "said.yaml")
    assert part in str(error.value)
    assert "said.yaml" in str(error.value)
    assert "\n" not in str(error.value)
