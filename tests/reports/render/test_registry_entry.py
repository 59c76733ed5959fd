"""An entry for the registry of deployments: what it states and asks for, when there is none."""

from __future__ import annotations

import copy
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
from tests.reports.data import data_of, report_of

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


@pytest.fixture(scope="module")
def read(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A public report as data, in which short texts stand for those of a run."""
    folder = tmp_path_factory.mktemp("registry") / "run"
    data = data_of(run_builder(folder, rounds=2, spec_extra={"report": STATED}), PUBLIC)
    data["identity"] |= {
        "name": "Postal Codes!", "run": "codes-20261121T092127Z-1A2B3C4D", "package": "0.9",
        "description": "Reads postal codes.", "dataset": "letters",
        "hashes": [{"file": "model.safetensors", "sha256": "d" * 64}],
    }  # fmt: skip
    data["guarantee"] |= {
        "statement": "It is private.", "epsilon": 1234.5, "delta": 2.5e-6, "unit": "client",
        "adjacency": "leaving one client out", "composition": "By composition",
        "assumptions": ["First.", "Second.", "Third."],
    }  # fmt: skip
    view = data["accounting"]["views"][0]
    data["accounting"] |= {
        "library": "some-library",
        "version": "1.2",
        "views": [
            view | {"towards": "the server", "epsilon": 2.001, "delta": 1e-5},
            view | {"towards": "nobody", "epsilon": None, "delta": None},
        ],
    }
    data["sampling"] |= {"clients": 1500, "statement": "Clients are drawn."}
    data["mechanism"] |= {"statement": "Noise is added.", "noise_added_by": "server"}
    who = data["readers"][0]
    data["readers"] = [
        who | {"who": "The server", "protected": True, "why": "It sees noise."},
        who | {"who": "A thief", "protected": False, "why": "Evidence is plain."},
    ]
    data["outside_budget"] = [
        {"title": "Search", "text": "Trials cost more."},
        {"title": "Sizes", "text": "They are public."},
    ]
    data["trust"] |= {"again": "Nothing was recomputed.", "checked": "By the trainer."}
    data["verdict"] |= {"unprotected_against": "the server"}
    data["qualifications"] = ["Mind this.", "And that."]
    return data


def composed(data: dict[str, Any], **stated: str) -> dict[str, Any]:
    return registry_entry.compose(report_of(data), stated)


def test_each_field_says_what_the_run_and_its_curator_say(read: dict[str, Any]) -> None:
    outside = "- Search: Trials cost more.\n- Sizes: They are public."
    actors = "- The server: protected. It sees noise.\n- A thief: not protected. Evidence is plain."
    found = composed(read)
    deployment = found.pop("deployment")
    assert found == {"url_slug": "postal-codes-1a2b3c4d", "status": "Draft", "tier": 2}
    explained = read["verdict"]["statement"]
    control = deployment["implementation"].pop("justification")
    assert control.endswith(
        "its verdict on this run: NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS. "
        f"{explained} Nothing was recomputed."
    )
    assert deployment == {
        "basic": {
            "name": "Postal Codes!",
            "data_curators": ["Example Ltd."],
            "description": "Reads postal codes. Trained by federated learning with differential "
            "privacy.",
            "intended_use": "Reading postal codes.",
            "data_product_type": "Machine learning model",
            "data_product_region": "European Union",
            "publication_date": "2026-01-31",
        },
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": "All data sets of the form of letters, divided among 1,500 clients. "
            "First. Second.",
            "unprotected_quantities": outside,
        },
        "privacy_loss": {
            "privacy_unit": "client",
            "privacy_unit_details": "Data sets are adjacent by leaving one client out.",
            "privacy_parameters": {"epsilon": 1235.0, "delta": 2.5e-6},
            "privacy_parameters_details": "It is private.\n- against the server: ε = 2.01, "
            "δ = 10⁻⁵\nIt holds under these assumptions:\n- First.\n- Second.\n- Third.",
        },
        "deployment_model": {
            "model_name": "Federated",
            "model_name_details": "Records stay with the clients; the server sees uploads. Noise "
            "is added by the server.",
            "actors": actors,
            "release_type": "One release",
            "release_type_details": "One trained model and its test metrics of each round.",
            "data_source_type": "Static",
            "data_source_type_details": "The records are fixed before training begins.",
            "access_type": "Non-interactive",
            "access_type_details": "The model is handed out; the records answer no queries.",
        },
        "accounting": {
            "post_processing": "Server optimiser, averaging and evaluation work on noised values.",
            "composition": "By composition. Library: some-library 1.2.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": outside,
            "mechanisms": "Noise is added. Clients are drawn. Implemented by dpfedadamw 0.9.",
        },
        "administrative": {
            "notes": f"- Run codes-20261121T092127Z-1A2B3C4D; SHA-256 of the model: {'d' * 64}.\n"
            "- By the trainer.\n- Mind this.\n- And that.",
            "registry_authors": ["A. Person", "B. Person"],
        },
    }


def test_what_the_curator_states_besides_stands_with_what_the_run_says(
    read: dict[str, Any],
) -> None:
    plain = copy.deepcopy(read)
    plain["identity"] |= {"description": ""}
    plain["accounting"] |= {"library": "", "version": ""}
    plain["mechanism"] |= {"noise_added_by": None}
    found = composed(
        plain,
        **{
            "purpose": "Another purpose.",
            "governance.sector": "Government",
            "governance.trust_model": "The post office trusts nobody.",
            "governance.other_releases": "A table.",
            "governance.publication_date": " 2026-02-28 ",
            "governance.registry_authors": " C. Person ;; ",
        },
    )
    deployment = found["deployment"]
    assert found["tier"] == 3
    basic, model = deployment["basic"], deployment["deployment_model"]
    assert basic["data_product_sector"] == "Government"
    assert basic["intended_use"] == "Another purpose."
    assert basic["publication_date"] == "2026-02-28"
    assert basic["description"].startswith("A model, Postal Codes!. Trained by ")
    assert model["actors"].splitlines()[2:] == [
        "- Stated by the curator: The post office trusts nobody."
    ]
    assert model["release_type_details"].endswith(", as the curator states: A table.")
    assert model["model_name_details"] == (
        "Records stay with the clients; the server sees uploads."
    )
    assert deployment["accounting"]["composition"] == "By composition. Library: unstated."
    assert deployment["administrative"]["registry_authors"] == ["C. Person"]


def test_the_file_has_the_fields_in_the_order_of_the_form_and_signs_as_they_are(
    read: dict[str, Any],
) -> None:
    text = registry_entry.write(report_of(read)).decode("utf-8")
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert keys == ["url_slug", "status", "tier", "deployment"]
    assert "ε = 2.01, δ = 10⁻⁵" in text
    assert yaml.safe_load(text) == composed(read)


@pytest.mark.parametrize(
    ("name", "run", "slug"),
    [
        ("Study 3/B", "x-0000ABCD", "study-3-b-0000abcd"),
        ("Größe", "x-12345678", "gr-e-12345678"),
        ("--", "x-12345678", "12345678"),
    ],
)
def test_the_address_of_an_entry_is_the_experiments_name_and_the_end_of_the_runs(
    read: dict[str, Any], name: str, run: str, slug: str
) -> None:
    changed = copy.deepcopy(read)
    changed["identity"] |= {"name": name, "run": run}
    assert composed(changed)["url_slug"] == slug


def test_a_run_whose_loss_has_no_bound_makes_no_entry(read: dict[str, Any]) -> None:
    changed = copy.deepcopy(read)
    changed["guarantee"] |= {"epsilon": None}
    with pytest.raises(ReportError, match="there is no entry"):
        composed(changed)
