"""Writes a bill of materials of a run: what it was made of, what is claimed of it, and why.

CycloneDX 1.7 as JSON (OWASP; ECMA-424). Model, data and software are components with versions and
digests. The run's claims are `declarations`: each check of the audit is evidence for the guarantee
where it passed, and counter-evidence where it did not; what no number covers is counter-evidence
too. The public one is made of the public report and withholds what that withholds.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from audit.protection import in_front
from reports import formatting
from reports.content.accounting import Accounting
from reports.content.assurance import Trust
from reports.content.audit import Audit
from reports.content.coverage import Hazards, OutsideBudget
from reports.content.findings import Check, Qualifications, Verdict
from reports.content.guarantee import Guarantee
from reports.content.identity import Governance, Identity
from reports.content.outcomes import Utility
from reports.content.parts import INTERNAL, Report
from reports.files import clean

FILE = "bom.cdx.json"
_SCHEMA = "http://cyclonedx.org/schema/bom-1.7.schema.json"
_MODEL, _DATA, _CODE, _BASE = "model", "training-data", "dpfedadamw", "pretrained-weights"
_STANDARD, _AUDITOR, _GUARANTEE = "audit", "auditor", "claim-guarantee"
_WITHHELD = "withheld: it would confirm a guess at the data; the internal bill of materials has it"
_TASKS = {
    "multi_label": "multi-label classification",
    "token_classification": "token classification",
    "causal_lm": "text generation",
}
_NAMESPACE = uuid.UUID("6f6a3c2e-0a2b-5d55-9a58-6b0b4a3f5b17")
# What an audit's verdict on a check is worth, between contradiction and conformance.
_SCORES = {"PASS": 1.0, "FAIL": 0.0}


def write(report: Report, licence: str = "unknown") -> bytes:
    """Return the bill of materials as JSON; same report, same bytes.

    Args:
        report: Of either audience. The internal one names the digests of data, ledger and audit.
        licence: The model's licence, for its component.
    """
    return (json.dumps(compose(report, licence), indent=2, ensure_ascii=False) + "\n").encode()


def compose(report: Report, licence: str) -> dict[str, Any]:
    """Return the bill of materials as JSON types."""
    identity = report[Identity]
    components = [_data(report), *_software(report), *_weights(identity), *_files(report)]
    model = _model(report, licence)
    digest = identity.digest("model.safetensors") or ""
    name = f"{identity.run} {digest} {report.audience}"
    return {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, name)}",
        "version": 1,
        "metadata": {
            **({"timestamp": identity.created} if identity.created else {}),
            "lifecycles": [{"phase": "post-build"}],
            "component": model,
        },
        "components": components,
        "dependencies": [
            {"ref": _MODEL, "dependsOn": [one["bom-ref"] for one in components]},
        ],
        "declarations": _declarations(report),
        "definitions": {"standards": [_standard(report)]},
    }


def _model(report: Report, licence: str) -> dict[str, Any]:
    identity, guarantee = report[Identity], report[Guarantee]
    digest = identity.digest("model.safetensors")
    stated: dict[str, Any] = {
        "unit": guarantee.unit,
        "adjacency": guarantee.adjacency,
        "towards": guarantee.towards,
        "audit": report[Verdict].value,
    }
    if guarantee.private and guarantee.epsilon is not None:
        stated["epsilon"] = formatting.epsilon(guarantee.epsilon)
        stated["delta"] = repr(guarantee.delta)
    known = clean(licence, 100)
    return {
        "type": "machine-learning-model",
        "bom-ref": _MODEL,
        "name": identity.name,
        "version": identity.run,
        **({"description": identity.description} if identity.description else {}),
        **({"hashes": [_sha256(digest)]} if digest else {}),
        **({"licenses": [{"license": {"name": known}}]} if known not in ("", "unknown") else {}),
        "modelCard": _card(report),
        "properties": [
            {"name": f"dpfedadamw:privacy:{name}", "value": value} for name, value in stated.items()
        ],
    }


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def _card(report: Report) -> dict[str, Any]:
    identity, utility = report[Identity], report[Utility]
    family = next((row.value for row in identity.model if row.name == "name"), "unknown")
    measured = [
        {"type": kind, "value": repr(value), "slice": "test records"}
        for kind, value in (
            ("accuracy", utility.final_accuracy),
            *((one.name.removeprefix("test_"), one.value) for one in utility.measures),
            ("loss", utility.final_loss),
        )
        if value is not None
    ]
    purpose = [one.text for one in report[Governance].root if one.field == "purpose" and one.text]
    limits = [*report[Guarantee].assumptions, *report[Qualifications].root]
    considered: dict[str, Any] = {
        "useCases": purpose,
        "technicalLimitations": limits,
        "ethicalConsiderations": [
            {"name": one.title, "mitigationStrategy": one.text} for one in report[Hazards].root
        ],
    }
    return {
        "modelParameters": {
            "approach": {"type": "supervised"},
            "task": _TASKS.get(utility.task, utility.task),
            "architectureFamily": family,
            "modelArchitecture": ", ".join(f"{row.name} {row.value}" for row in identity.model),
            "datasets": [{"ref": _DATA}],
        },
        "quantitativeAnalysis": {"performanceMetrics": measured},
        "considerations": {name: value for name, value in considered.items() if value},
    }


def _data(report: Report) -> dict[str, Any]:
    identity = report[Identity]
    said = {one.field: one.text for one in report[Governance].root if one.text}
    owner = said.get("governance.controller")
    category = said.get("governance.data_categories")
    described: dict[str, Any] = {
        "type": "dataset",
        "name": identity.dataset,
        **({"sensitiveData": [category]} if category else {}),
        **({"governance": {"owners": [{"organization": {"name": owner}}]}} if owner else {}),
    }
    known = report.audience == INTERNAL and identity.data_sha256 is not None
    found: dict[str, Any] = {
        "type": "data",
        "bom-ref": _DATA,
        "name": identity.dataset,
        "data": [described],
    }
    if known:
        found["hashes"] = [_sha256(str(identity.data_sha256))]
    else:
        found["properties"] = [{"name": "dpfedadamw:digest", "value": _WITHHELD}]
    return found


def _software(report: Report) -> list[dict[str, Any]]:
    """Return what trained, accounted and audited, with the versions that the run states.

    No run states a digest of its software, and that of what is installed here may be another's.
    """
    identity, accounting = report[Identity], report[Accounting]
    versions = {_CODE: identity.package}
    if accounting.library:
        versions.setdefault(accounting.library, accounting.version or "")
    for one in report[Audit].auditor:
        name = "dpfedadamw-audit" if one.name == "package" else one.name
        versions.setdefault(name, one.version)
    return [
        {
            "type": "library",
            "bom-ref": name,
            "name": name,
            **({"version": version} if version else {}),
        }
        for name, version in versions.items()
    ]


def _weights(identity: Identity) -> list[dict[str, Any]]:
    found = identity.pretrained
    if found is None:
        return []
    digest = found.weights_sha256
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": _BASE,
            "name": found.source,
            **({"version": found.revision} if found.revision else {}),
            **({"hashes": [_sha256(digest)]} if len(digest) == 64 else {}),
        }
    ]


def _files(report: Report) -> list[dict[str, Any]]:
    """Return the files that the report was made from, as far as its audience may know them."""
    return [
        {
            "type": "file",
            "bom-ref": f"file-{one.file}",
            "name": one.file,
            "hashes": [_sha256(one.sha256)],
        }
        for one in report[Identity].hashes
        if one.file != "model.safetensors"
    ]


def _standard(report: Report) -> dict[str, Any]:
    """Return the audit's checks as requirements, which its findings map onto."""
    return {
        "bom-ref": _STANDARD,
        "name": "Checks of the audit of dpfedadamw",
        "version": next(
            (one.version for one in report[Audit].auditor if one.name == "package"), "unknown"
        ),
        "requirements": [
            {
                "bom-ref": f"requirement-{one.name}",
                "identifier": one.name,
                "title": one.title,
                **({"text": one.meaning} if one.meaning else {}),
            }
            for one in report[Audit].checks
        ],
    }


def _declarations(report: Report) -> dict[str, Any]:
    checks = [one for one in report[Audit].checks if one.verdict != "NOT APPLICABLE"]
    trust, verdict = report[Trust], report[Verdict]
    evidence = [_evidence(one) for one in checks]
    outside = [
        {
            "bom-ref": f"outside-{index + 1}",
            "propertyName": "outside the guarantee",
            "description": f"{one.title}. {one.text}",
        }
        for index, one in enumerate(report[OutsideBudget].root)
    ]
    against = [f"evidence-{one.name}" for one in checks if one.verdict != "PASS"]
    claims = [
        {
            "bom-ref": _GUARANTEE,
            "target": _MODEL,
            "predicate": report[Guarantee].statement,
            "reasoning": " ".join(
                (verdict.statement, trust.again, trust.word and f"On trust: {trust.word}")
            ).strip(),
            "evidence": [f"evidence-{one.name}" for one in checks if one.verdict == "PASS"],
            "counterEvidence": [*against, *(str(one["bom-ref"]) for one in outside)],
        },
        *(_claim(one) for one in checks),
    ]
    found: dict[str, Any] = {"claims": claims, "evidence": [*evidence, *outside]}
    if trust.auditor == "nobody":
        return found
    independent = trust.auditor == "another key"
    named = trust.keys[0] if independent and trust.keys else "the trainer, who audited the run"
    return {
        "assessors": [
            {
                "bom-ref": _AUDITOR,
                "thirdParty": independent,
                "organization": {"name": f"Holder of the key {named}" if independent else named},
            }
        ],
        "attestations": [
            {
                "summary": in_front(
                    f"{verdict.value}: {verdict.explanation}", verdict.unprotected_against
                ),
                "assessor": _AUDITOR,
                "map": [_judged(one) for one in checks],
            }
        ],
        **found,
    }


def _claim(check: Check) -> dict[str, Any]:
    side = "evidence" if check.verdict == "PASS" else "counterEvidence"
    return {
        "bom-ref": f"claim-{check.name}",
        "target": _MODEL,
        "predicate": check.claim or check.title,
        **({"reasoning": check.meaning} if check.meaning else {}),
        side: [f"evidence-{check.name}"],
    }


def _evidence(check: Check) -> dict[str, Any]:
    told = {
        "verdict": check.verdict,
        "measurement": check.measurement,
        "tolerance": check.tolerance,
        "power": check.power,
        "limits": check.limits,
    }
    return {
        "bom-ref": f"evidence-{check.name}",
        "propertyName": f"audit check {check.name}",
        "description": check.title,
        "data": [
            {"name": name, "contents": {"attachment": {"content": text}}}
            for name, text in told.items()
            if text
        ],
    }


def _judged(check: Check) -> dict[str, Any]:
    claim = f"claim-{check.name}"
    against = check.verdict == "FAIL"
    score = _SCORES.get(check.verdict)
    return {
        "requirement": f"requirement-{check.name}",
        "counterClaims" if against else "claims": [claim],
        "conformance": {
            # Without a verdict nothing is said of how much conforms.
            **({"score": score} if score is not None else {}),
            "rationale": f"{check.verdict}. {check.meaning or ''}".strip(),
        },
    }
