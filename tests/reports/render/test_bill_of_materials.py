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
from reports.content.guarantee import Guarantee
from reports.content.outcomes import utility as utility_of
from reports.content.parts import INTERNAL, PUBLIC
from reports.render import bill_of_materials
from reports.source import load
from tests.published import schema
from tests.reports.changed_runs import rewrite_header
from tests.reports.data import data_of, report_of

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


def test_a_claim_without_a_finite_epsilon_is_no_number_of_the_model(make_run: MakeRun) -> None:
    run = make_run()
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    claim = json.loads(lines[-1])
    for view in ("server", "server_worst_case", "third_party"):
        claim[view]["epsilon"]["pld"] = None
    (run / "ledger.jsonl").write_text("\n".join([*lines[:-1], json.dumps(claim)]) + "\n", "utf-8")
    report = build(run, PUBLIC)
    assert report[Guarantee].private
    found = json.loads(bill_of_materials.write(report))
    said = {one["name"].rpartition(":")[2] for one in found["metadata"]["component"]["properties"]}
    assert said == {"unit", "adjacency", "towards", "audit"}


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


@pytest.fixture(scope="module")
def read(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A public report as data, in which short texts stand for those of a run."""
    folder = tmp_path_factory.mktemp("bill") / "run"
    data = data_of(run_builder(folder, rounds=2), PUBLIC)
    data["identity"] |= {
        "name": "Letters", "description": "", "run": "letters-1", "created": "", "package": "0.9",
        "dataset": "letters", "data_sha256": "e" * 64, "pretrained": None,
        "model": [{"name": "name", "value": "mlp"}, {"name": "hidden", "value": "8"}],
        "hashes": [
            {"file": "spec.yaml", "sha256": "a" * 64},
            {"file": "model.safetensors", "sha256": "d" * 64},
        ],
    }  # fmt: skip
    data["guarantee"] |= {
        "statement": "It is private.", "epsilon": 1.001, "delta": 2.5e-6, "unit": "client",
        "adjacency": "leaving one out", "towards": "third parties", "assumptions": ["Assumed."],
    }  # fmt: skip
    data["accounting"] |= {"library": "some-library", "version": "1.2"}
    data["utility"] |= {
        "final_accuracy": 0.75, "final_loss": None,
        "measures": [{"name": "test_auc", "value": 0.5}],
    }  # fmt: skip
    check = data["audit"]["checks"][0] | {
        "claim": None, "measurement": None, "tolerance": None, "power": None, "limits": None,
    }  # fmt: skip
    data["audit"] |= {
        "auditor": [{"name": "package", "version": "auditor 2"}, {"name": "numpy", "version": "3"}],
        "checks": [
            check | {"name": "one", "title": "One?", "verdict": "PASS", "meaning": "Fine.",
                     "claim": "One is one.", "measurement": "One."},
            check | {"name": "two", "title": "Two?", "verdict": "FAIL", "meaning": None},
            check | {"name": "three", "title": "Three?", "verdict": "NOT APPLICABLE",
                     "meaning": None},
        ],
    }  # fmt: skip
    data["hazards"] = [data["hazards"][0] | {"title": "Hazard", "text": "Beware."}]
    data["outside_budget"] = [{"title": "Search", "text": "Trials cost."}]
    data["qualifications"] = ["Mind this."]
    data["governance"] = [{"field": "purpose", "label": "Purpose", "text": "Mail."}]
    data["verdict"] |= {
        "value": "FAIL", "statement": "Two fails.", "unprotected_against": "anyone",
    }  # fmt: skip
    data["trust"] |= {"auditor": "trainer", "again": "Nothing was recomputed.", "word": "A word."}
    return data


def test_the_whole_bill_of_a_public_report(read: dict[str, Any]) -> None:
    found = bill_of_materials.compose(report_of(read), " my\nlicence ")
    assert found.pop("serialNumber").startswith("urn:uuid:")
    components = [
        {
            "type": "data",
            "bom-ref": "training-data",
            "name": "letters",
            "data": [{"type": "dataset", "name": "letters"}],
            "properties": [
                {
                    "name": "dpfedadamw:digest",
                    "value": "withheld: it would confirm a guess at the data; the internal bill of "
                    "materials has it",
                }
            ],
        },
        *(
            {"type": "library", "bom-ref": name, "name": name, "version": version}
            for name, version in (
                ("dpfedadamw", "0.9"), ("some-library", "1.2"), ("dpfedadamw-audit", "auditor 2"),
                ("numpy", "3"),
            )
        ),
        {
            "type": "file",
            "bom-ref": "file-spec.yaml",
            "name": "spec.yaml",
            "hashes": [{"alg": "SHA-256", "content": "a" * 64}],
        },
    ]  # fmt: skip
    properties = {
        "unit": "client", "adjacency": "leaving one out", "towards": "third parties",
        "audit": "FAIL", "epsilon": "1.01", "delta": "2.5e-06",
    }  # fmt: skip
    stated = {"verdict": "PASS", "measurement": "One."}
    assert found == {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "post-build"}],
            "component": {
                "type": "machine-learning-model",
                "bom-ref": "model",
                "name": "Letters",
                "version": "letters-1",
                "hashes": [{"alg": "SHA-256", "content": "d" * 64}],
                "licenses": [{"license": {"name": "my\nlicence"}}],
                "modelCard": {
                    "modelParameters": {
                        "approach": {"type": "supervised"},
                        "task": "classification",
                        "architectureFamily": "mlp",
                        "modelArchitecture": "name mlp, hidden 8",
                        "datasets": [{"ref": "training-data"}],
                    },
                    "quantitativeAnalysis": {
                        "performanceMetrics": [
                            {"type": "accuracy", "value": "0.75", "slice": "test records"},
                            {"type": "auc", "value": "0.5", "slice": "test records"},
                        ]
                    },
                    "considerations": {
                        "useCases": ["Mail."],
                        "technicalLimitations": ["Assumed.", "Mind this."],
                        "ethicalConsiderations": [
                            {"name": "Hazard", "mitigationStrategy": "Beware."}
                        ],
                    },
                },
                "properties": [
                    {"name": f"dpfedadamw:privacy:{name}", "value": value}
                    for name, value in properties.items()
                ],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": "model", "dependsOn": [str(one["bom-ref"]) for one in components]}
        ],
        "declarations": {
            "assessors": [
                {
                    "bom-ref": "auditor",
                    "thirdParty": False,
                    "organization": {"name": "the trainer, who audited the run"},
                }
            ],
            "attestations": [
                {
                    "summary": "NO MEANINGFUL PROTECTION · FAIL: Two fails.",
                    "assessor": "auditor",
                    "map": [
                        {
                            "requirement": "requirement-one",
                            "claims": ["claim-one"],
                            "conformance": {"score": 1.0, "rationale": "PASS. Fine."},
                        },
                        {
                            "requirement": "requirement-two",
                            "counterClaims": ["claim-two"],
                            "conformance": {"score": 0.0, "rationale": "FAIL."},
                        },
                    ],
                }
            ],
            "claims": [
                {
                    "bom-ref": "claim-guarantee",
                    "target": "model",
                    "predicate": "It is private.",
                    "reasoning": "Two fails. Nothing was recomputed. On trust: A word.",
                    "evidence": ["evidence-one"],
                    "counterEvidence": ["evidence-two", "outside-1"],
                },
                {
                    "bom-ref": "claim-one",
                    "target": "model",
                    "predicate": "One is one.",
                    "reasoning": "Fine.",
                    "evidence": ["evidence-one"],
                },
                {
                    "bom-ref": "claim-two",
                    "target": "model",
                    "predicate": "Two?",
                    "counterEvidence": ["evidence-two"],
                },
            ],
            "evidence": [
                {
                    "bom-ref": "evidence-one",
                    "propertyName": "audit check one",
                    "description": "One?",
                    "data": [
                        {"name": name, "contents": {"attachment": {"content": text}}}
                        for name, text in stated.items()
                    ],
                },
                {
                    "bom-ref": "evidence-two",
                    "propertyName": "audit check two",
                    "description": "Two?",
                    "data": [
                        {"name": "verdict", "contents": {"attachment": {"content": "FAIL"}}}
                    ],
                },
                {
                    "bom-ref": "outside-1",
                    "propertyName": "outside the guarantee",
                    "description": "Search. Trials cost.",
                },
            ],
        },
        "definitions": {
            "standards": [
                {
                    "bom-ref": "audit",
                    "name": "Checks of the audit of dpfedadamw",
                    "version": "auditor 2",
                    "requirements": [
                        {
                            "bom-ref": "requirement-one", "identifier": "one", "title": "One?",
                            "text": "Fine.",
                        },
                        {"bom-ref": "requirement-two", "identifier": "two", "title": "Two?"},
                        {"bom-ref": "requirement-three", "identifier": "three", "title": "Three?"},
                    ],
                }
            ]
        },
    }  # fmt: skip


def test_the_data_have_their_digest_in_an_internal_bill_alone(read: dict[str, Any]) -> None:
    inside = {**read, "audience": INTERNAL}
    data = bill_of_materials.compose(report_of(inside), "unknown")["components"][0]
    assert data["hashes"] == [{"alg": "SHA-256", "content": "e" * 64}]
    assert "properties" not in data
    inside["identity"] = {**read["identity"], "data_sha256": None}
    data = bill_of_materials.compose(report_of(inside), "unknown")["components"][0]
    assert "hashes" not in data


def test_an_auditor_of_another_key_is_named_by_it_and_nobody_by_nothing(
    read: dict[str, Any],
) -> None:
    for auditor, keys, named in (
        ("another key", ["SHA256:x", "SHA256:y"], "Holder of the key SHA256:x"),
        ("trainer", ["SHA256:x"], "the trainer, who audited the run"),
    ):
        data = {**read, "trust": {**read["trust"], "auditor": auditor, "keys": keys}}
        declared = bill_of_materials.compose(report_of(data), "")["declarations"]
        assert declared["assessors"] == [
            {
                "bom-ref": "auditor",
                "thirdParty": auditor == "another key",
                "organization": {"name": named},
            }
        ]
    data = {**read, "trust": {**read["trust"], "auditor": "nobody", "word": ""}}
    declared = bill_of_materials.compose(report_of(data), "")["declarations"]
    assert set(declared) == {"claims", "evidence"}
    assert declared["claims"][0]["reasoning"] == "Two fails. Nothing was recomputed."


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("classification", "classification"),
        ("regression", "regression"),
        ("multi_label", "multi-label classification"),
        ("token_classification", "token classification"),
        ("causal_lm", "text generation"),
    ],
)
def test_the_bill_names_the_task_that_was_trained(
    read: dict[str, Any], make_run: MakeRun, kind: str, task: str
) -> None:
    utility = utility_of(load(make_run(rounds=1, spec_extra={"task": {"kind": kind}})), PUBLIC)
    data = {**read, "utility": utility.model_dump(by_alias=True)}
    model = bill_of_materials.compose(report_of(data), "")["metadata"]["component"]
    assert model["modelCard"]["modelParameters"]["task"] == task
