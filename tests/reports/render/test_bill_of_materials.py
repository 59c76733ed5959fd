"""The bill of materials: what it lists, which findings count for and against, what it withholds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

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
    declared = bill(make_run(audit=False))["declarations"]
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
