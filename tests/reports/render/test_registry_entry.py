"""An entry for the registry of deployments: what it states and asks for, when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from reports.content.build import build
from reports.content.guarantee import Guarantee
from reports.content.parts import INTERNAL, PUBLIC
from reports.errors import ReportError
from reports.render import registry_entry
from tests.published import schema

MakeRun = Any  # the builder that conftest gives
STATED = {
    "purpose": "Reading postal codes.",
    "governance": {
        "controller": "Example Ltd.",
        "region": "European Union",
        "publication_date": "2026-01-31",
        "registry_authors": "A. Person; B. Person",
    },
}


@pytest.fixture
def run(make_run: MakeRun) -> Path:
    return Path(make_run(spec_extra={"report": STATED}))


def entry(run: Path, **stated: str) -> dict[str, Any]:
    found = registry_entry.write(build(run, PUBLIC), stated)
    return dict(yaml.safe_load(found))


def test_it_states_the_guarantee_towards_a_third_party_and_who_says_so(run: Path) -> None:
    found, guarantee = entry(run), build(run, PUBLIC)[Guarantee]
    assert found["status"] == "Draft"
    assert found["tier"] == 2
    deployment = found["deployment"]
    loss = deployment["privacy_loss"]["privacy_parameters"]
    assert guarantee.epsilon is not None
    assert guarantee.epsilon <= loss["epsilon"] < guarantee.epsilon + 0.01
    assert loss["delta"] == guarantee.delta
    assert deployment["privacy_loss"]["privacy_unit"] == "record"
    assert deployment["basic"]["data_curators"] == ["Example Ltd."]
    assert deployment["administrative"]["registry_authors"] == ["A. Person", "B. Person"]


def test_what_else_is_released_of_the_data_makes_it_complete(run: Path) -> None:
    found = entry(run, **{"governance.other_releases": "None."})
    assert found["tier"] == 3
    assert "None." in found["deployment"]["deployment_model"]["release_type_details"]


def test_what_nobody_states_is_asked_for_by_its_key(make_run: MakeRun) -> None:
    with pytest.raises(ReportError) as caught:
        entry(make_run())
    for name in registry_entry.NEEDED:
        assert f"report.{name}" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_date_that_is_none_is_refused(run: Path) -> None:
    with pytest.raises(ReportError, match=r"publication_date: '2026-02-31' is no date"):
        entry(run, **{"governance.publication_date": "2026-02-31"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"private": False}, "claims no differential privacy"),
        ({"verdict": "FAIL"}, "the audit says FAIL"),
        ({"verdict": "NOT VERIFIED"}, "the audit says NOT VERIFIED"),
        ({"audit": False}, "the audit says NOT AUDITED"),
    ],
)
def test_only_what_an_audit_passed_is_entered(
    make_run: MakeRun, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ReportError, match=words):
        entry(make_run(spec_extra={"report": STATED}, **options))


def test_an_internal_report_makes_no_entry(run: Path) -> None:
    with pytest.raises(ReportError, match="public audience"):
        registry_entry.write(build(run, INTERNAL))


def test_it_fits_the_published_schema(run: Path, make_client_run: MakeRun) -> None:
    checker = jsonschema.Draft7Validator.FORMAT_CHECKER
    validator = jsonschema.Draft7Validator(
        schema("deployments-schema.yaml"), format_checker=checker
    )
    sector = {"governance.sector": "Government", "governance.other_releases": "None."}
    clients = make_client_run("clients", noise_added_by="clients")
    flat = {**STATED, **{f"governance.{k}": v for k, v in STATED["governance"].items()}}
    del flat["governance"]
    for found in (entry(run), entry(run, **sector), entry(clients, **flat)):
        validator.validate(found)
    found["deployment"]["basic"]["publication_date"] = "31 January"
    assert not validator.is_valid(found)
