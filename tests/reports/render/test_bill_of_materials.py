"""The bill of materials: what it lists, which findings count for and against, what it withholds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

from reports import Auditing
from reports.content.audit import Audit
from reports.content.build import build
from reports.content.parts import INTERNAL, PUBLIC
from reports.render import bill_of_materials
from tests.published import schema
from tests.reports.changed_runs import rewrite_header

MakeRun = Any  # the builder that conftest gives
KINDS: dict[str, dict[str, Any]] = {
    "good": {},
    "failed": {"verdict": "FAIL"},
    "open": {"verdict": "NOT VERIFIED"},
    "plain": {"private": False},
    "unaudited": {"audit": False},
}


def bill(run: Path, audience: str = PUBLIC) -> dict[str, Any]:
    return dict(json.loads(bill_of_materials.write(build(run, audience), "mit")))


def claim(found: dict[str, Any], reference: str) -> dict[str, Any]:
    return next(one for one in found["declarations"]["claims"] if one["bom-ref"] == reference)


def test_checks_that_passed_are_evidence_and_all_else_is_counter_evidence(
    make_run: MakeRun,
) -> None:
    found = bill(make_run(verdict="FAIL"))
    guarantee = claim(found, "claim-guarantee")
    assert "evidence-sensitivity" in guarantee["evidence"]
    assert "evidence-noise-scale" in guarantee["counterEvidence"]
    assert "evidence-noise-scale" not in guarantee["evidence"]
    assert any(name.startswith("outside-") for name in guarantee["counterEvidence"])
    assert claim(found, "claim-noise-scale").get("counterEvidence") == ["evidence-noise-scale"]
    judged = {one["requirement"]: one for one in found["declarations"]["attestations"][0]["map"]}
    assert judged["requirement-noise-scale"]["counterClaims"] == ["claim-noise-scale"]
    assert "claims" not in judged["requirement-noise-scale"]
    assert judged["requirement-noise-scale"]["conformance"]["score"] == 0.0
    assert judged["requirement-sensitivity"]["conformance"]["score"] == 1.0
    assert not any("canaries" in name for name in judged)


def test_what_was_not_verified_gets_no_score(make_run: MakeRun) -> None:
    found = bill(make_run(verdict="NOT VERIFIED"))
    judged = {one["requirement"]: one for one in found["declarations"]["attestations"][0]["map"]}
    assert "score" not in judged["requirement-noise-scale"]["conformance"]
    assert "evidence-noise-scale" in claim(found, "claim-guarantee")["counterEvidence"]


def test_a_run_that_nobody_audited_has_no_attestation(make_run: MakeRun) -> None:
    found = bill(make_run(audit=False))
    declared, (standard,) = found["declarations"], found["definitions"]["standards"]
    assert (standard["version"], standard["requirements"]) == ("unknown", [])
    assert "attestations" not in declared
    assert [one["bom-ref"] for one in declared["claims"]] == ["claim-guarantee"]


def test_the_public_one_withholds_what_would_confirm_a_guess(make_run: MakeRun) -> None:
    run = make_run()
    rewrite_header(run, data_sha256="d" * 64)
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    del audit["inputs"]["ledger.jsonl"]
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    assert "d" * 64 not in json.dumps(bill(run))
    names = {one["name"] for one in bill(run)["components"]}
    assert not {"ledger.jsonl", "audit.json"} & names
    inside = bill(run, INTERNAL)
    assert {"ledger.jsonl", "audit.json"} <= {one["name"] for one in inside["components"]}
    data = next(one for one in inside["components"] if one["bom-ref"] == "training-data")
    assert data["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}]


def test_model_and_software_have_their_digests_and_versions(make_run: MakeRun) -> None:
    run = make_run()
    found, report = bill(run), build(run, PUBLIC)
    model = found["metadata"]["component"]
    assert len(model["hashes"][0]["content"]) == 64
    assert model["licenses"] == [{"license": {"name": "mit"}}]
    versions = {one["name"]: one.get("version") for one in found["components"]}
    assert versions["dpfedadamw"] == "0.1.0"
    assert versions["dp-accounting"] == "0.6.0"
    assert versions["numpy"] == next(
        one.version for one in report[Audit].auditor if one.name == "numpy"
    )


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (
            {"revision": "a" * 40, "weights_sha256": "b" * 64},
            {
                "version": "a" * 40,
                "hashes": [{"alg": "SHA-256", "content": "b" * 64}],
            },
        ),
        ({}, {}),
        ({"weights_sha256": "b" * 63}, {}),
        ({"weights_sha256": "b" * 65}, {}),
    ],
)
def test_published_weights_are_a_component_with_what_is_known_of_them(
    make_run: MakeRun, known: dict[str, str], told: dict[str, Any]
) -> None:
    run = make_run()
    model = json.loads((run / "model.json").read_text("utf-8"))
    model["base"] = {"source": "somebody/vit", **known}
    (run / "model.json").write_text(json.dumps(model), "utf-8")
    found = bill(run)
    (base,) = [one for one in found["components"] if one["name"] == "somebody/vit"]
    assert base.pop("bom-ref") in found["dependencies"][0]["dependsOn"]
    assert base == {"type": "machine-learning-model", "name": "somebody/vit", **told}


def test_the_model_has_its_claim_its_scores_and_what_is_stated_of_the_processing(
    make_run: MakeRun,
) -> None:
    stated = {"controller": "Example Ltd.", "data_categories": "Visits of adults."}
    run = make_run(
        spec_extra={
            "description": "Reads digits.",
            "report": {"purpose": "Postal codes.", "governance": stated},
        }
    )
    found = bill(run)
    claim = json.loads((run / "ledger.jsonl").read_text("utf-8").splitlines()[-1])
    last = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    model = found["metadata"]["component"]
    kind = [found[key] for key in ("bomFormat", "specVersion", "version")]
    assert kind == ["CycloneDX", "1.7", 1]
    assert found["metadata"]["timestamp"] == "2026-11-21T09:21:27Z"
    assert (model["name"], model["description"]) == ("quickstart", "Reads digits.")
    assert model["version"] == "quickstart-20261121T092127Z-1a2b3c4d"
    said = {one["name"].rpartition(":")[2]: one["value"] for one in model["properties"]}
    loss = claim["third_party"]["epsilon"]["pld"]
    assert loss <= float(said.pop("epsilon")) < loss + 0.01
    assert float(said.pop("delta")) == 1e-5
    assert "third party" in said.pop("towards")
    assert said == {"unit": "record", "adjacency": "add-or-remove-one-record", "audit": "PASS"}
    card = model["modelCard"]
    scores = card["quantitativeAnalysis"]["performanceMetrics"]
    assert {one["type"]: float(one["value"]) for one in scores} == {
        "accuracy": last["test_accuracy"], "loss": last["test_loss"],
    }  # fmt: skip
    assert card["modelParameters"]["architectureFamily"] == "mlp"
    parts = card["modelParameters"]["modelArchitecture"].split(", ")
    assert set(parts) == {"name mlp", "hidden 32"}
    assert card["considerations"]["useCases"] == ["Postal codes."]
    assert "Client sizes are public metadata." in card["considerations"]["technicalLimitations"]
    assert card["considerations"]["ethicalConsiderations"]
    (data,) = (one for one in found["components"] if one["bom-ref"] == "training-data")
    assert data["data"] == [
        {
            "type": "dataset",
            "name": "digits",
            "sensitiveData": ["Visits of adults."],
            "governance": {"owners": [{"organization": {"name": "Example Ltd."}}]},
        }
    ]
    assert "withheld" in data["properties"][0]["value"]


def test_what_nobody_states_or_claims_is_left_out(make_run: MakeRun) -> None:
    run = make_run(private=False)
    found = json.loads(bill_of_materials.write(build(run, PUBLIC)))
    model = found["metadata"]["component"]
    said = {one["name"].rpartition(":")[2] for one in model["properties"]}
    assert said == {"unit", "adjacency", "towards", "audit"}
    assert not {"licenses", "description"} & set(model)
    assert "useCases" not in model["modelCard"]["considerations"]
    (data,) = (one for one in found["components"] if one["bom-ref"] == "training-data")
    assert data["data"] == [{"type": "dataset", "name": "digits"}]


def test_the_standard_is_the_auditors_version_with_its_checks(make_run: MakeRun) -> None:
    run = make_run()
    checks = json.loads((run / "audit.json").read_text("utf-8"))["checks"]
    (standard,) = bill(run)["definitions"]["standards"]
    assert standard["version"] == "dpfedadamw audit 0.1.0"
    assert [(one["identifier"], one["title"]) for one in standard["requirements"]] == [
        (check["name"], check["title"]) for check in checks
    ]


def test_each_model_and_each_audience_has_a_number_of_its_own(make_run: MakeRun) -> None:
    run, other = make_run(), make_run("other")
    number = bill(run)["serialNumber"]
    assert bill(run)["serialNumber"] == number
    assert bill(run, INTERNAL)["serialNumber"] != number
    (other / "model.safetensors").write_bytes(b"another model")
    assert bill(other)["serialNumber"] != number


@pytest.mark.parametrize(
    ("auditing", "third", "named"),
    [
        (None, False, "the trainer"),
        (Auditing("SHA256:theirs", "SHA256:ours", one_hand=True), False, "the trainer"),
        (Auditing("SHA256:theirs", "SHA256:ours", one_hand=False), True, "SHA256:theirs"),
    ],
)
def test_an_assessor_is_a_third_party_only_where_another_key_audited(
    make_run: MakeRun, auditing: Auditing | None, third: bool, named: str
) -> None:
    report = build(make_run(), PUBLIC, auditing)
    declared = json.loads(bill_of_materials.write(report))["declarations"]
    (assessor,) = declared["assessors"]
    assert assessor["thirdParty"] == third
    assert named in assessor["organization"]["name"]
    (attestation,) = declared["attestations"]
    assert attestation["assessor"] == assessor["bom-ref"]
    assert attestation["summary"].startswith("PASS: ")


def test_the_evidence_of_a_check_is_what_the_auditor_wrote_and_only_internally(
    make_run: MakeRun,
) -> None:
    run = make_run()
    told = {
        audience: {
            one["propertyName"]: {
                entry["name"]: entry["contents"]["attachment"]["content"] for entry in one["data"]
            }
            for one in bill(run, audience)["declarations"]["evidence"]
            if "data" in one
        }["audit check sensitivity"]
        for audience in (INTERNAL, PUBLIC)
    }
    (stated,) = (
        one
        for one in json.loads((run / "audit.json").read_text("utf-8"))["checks"]
        if one["name"] == "sensitivity"
    )
    parts = ("verdict", "measurement", "tolerance", "power", "limits")
    assert told[INTERNAL] == {part: stated[part] for part in parts}
    assert told[PUBLIC] == {"verdict": "PASS"}


def references(value: Any) -> Iterator[tuple[str, str]]:
    """Every name that something has or that is asked for, with the key that it stands under."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str):
                yield key, inner
            elif isinstance(inner, list) and all(isinstance(one, str) for one in inner):
                yield from ((key, one) for one in inner)
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


@pytest.mark.parametrize("kind", KINDS)
def test_every_reference_leads_somewhere_and_every_name_is_there_once(
    make_run: MakeRun, kind: str
) -> None:
    """The schema cannot say this."""
    found = list(references(bill(make_run(**KINDS[kind]))))
    names = [text for key, text in found if key == "bom-ref"]
    assert len(names) == len(set(names))
    links = {"target", "evidence", "counterEvidence", "claims", "counterClaims", "requirement",
             "assessor", "ref", "dependsOn"}  # fmt: skip
    assert {text for key, text in found if key in links} <= set(names)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("audience", [PUBLIC, INTERNAL])
@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_the_published_schema(make_run: MakeRun, kind: str, audience: str) -> None:
    whole = schema("bom-1.7.schema.json")
    registry: Any = referencing.Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}", referencing.Resource.from_contents(schema(name)))
        for name in (
            "spdx.schema.json", "jsf-0.82.schema.json", "cryptography-defs.schema.json"
        )
    )  # fmt: skip
    validator = jsonschema.Draft7Validator(whole, registry=registry)
    found = bill(make_run(**KINDS[kind]), audience)
    validator.validate(found)
    found["declarations"]["claims"][0]["because"] = "no such key"
    assert not validator.is_valid(found)
