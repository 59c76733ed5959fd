"""Writes an entry for OpenDP's registry of deployments (registry.opendp.org), as its schema asks.

Status Draft: the sender answers for it. It is made of the public report; what no run can
know is taken from what people state in the spec (`report`, `report.governance`). The tier is the
highest of which every field is there.

Source: opendp/deployments-registry-data, schemas/deployments-schema.yaml (MIT), at 3e9c812.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Any

import yaml

from audit.protection import in_front
from reports import formatting
from reports.content.accounting import Accounting
from reports.content.assurance import Trust
from reports.content.coverage import OutsideBudget, Readers
from reports.content.findings import Qualifications, Verdict
from reports.content.guarantee import Guarantee
from reports.content.identity import Governance, Identity
from reports.content.mechanism import Mechanism, Sampling
from reports.content.parts import PUBLIC, Report
from reports.errors import ReportError

# The registry asks for lower case, digits and underscores.
FILE = "registry_entry.yaml"
# What the first tier needs and no run knows, by the key of the spec's section report.
NEEDED = (
    "purpose",
    "governance.controller",
    "governance.region",
    "governance.publication_date",
    "governance.registry_authors",
)
_CONTROL = (
    "The second program that audits a run is not the one that trains it; its verdict on this run: "
    "{verdict}. {statement} {again}"
)


def write(report: Report, stated: Mapping[str, str] | None = None) -> bytes:
    """Return the entry as YAML; same report and statements, same bytes.

    Args:
        report: What `content.build` returned for the public audience.
        stated: What people state besides what stands in the spec, by key of its section report.

    Raises:
        ReportError: The report is not public, the run has no privacy or no PASS, or something that
            the registry requires is stated nowhere.
    """
    text = yaml.safe_dump(
        compose(report, stated or {}), sort_keys=False, allow_unicode=True, width=100
    )
    return text.encode()


def compose(report: Report, stated: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry as YAML types; see `write`."""
    if report.audience != PUBLIC:
        raise ReportError("registry: needs the report for the public audience")
    guarantee, verdict = report[Guarantee], report[Verdict]
    if not guarantee.private or guarantee.epsilon is None:
        raise ReportError("registry: the run claims no differential privacy; there is no entry")
    if verdict.value != "PASS":
        raise ReportError(
            f"registry: the audit says {verdict.value}, so that what an entry would state is not "
            "shown to hold"
        )
    said = {one.field: one.text for one in report[Governance].root if one.text} | dict(stated)
    missing = [name for name in NEEDED if not said.get(name)]
    if missing:
        named = ", ".join(f"report.{name}" for name in missing)
        raise ReportError(
            f"registry: nobody states {named}; write them into the spec before a run, or into a "
            "file that --statements names"
        )
    deployment = {
        "basic": _basic(report, said),
        "dp_variant": _variant(report),
        "privacy_loss": _loss(report),
        "deployment_model": _model(report, said),
        "accounting": _accounting(report),
        "implementation": _implementation(report),
        "administrative": _administrative(report, said),
    }
    # All of tier 3 follows from the run but what else is released of the same data.
    full = bool(said.get("governance.other_releases"))
    return {
        "url_slug": _slug(report[Identity]),
        "status": "Draft",
        "tier": 3 if full else 2,
        "deployment": deployment,
    }


def _slug(identity: Identity) -> str:
    words = re.findall(r"[a-z0-9]+", f"{identity.name}-{identity.run[-8:]}".lower())
    return "-".join(words)


def _basic(report: Report, said: Mapping[str, str]) -> dict[str, Any]:
    identity = report[Identity]
    published = said["governance.publication_date"].strip()
    try:
        date.fromisoformat(published)
    except ValueError as error:
        raise ReportError(
            f"registry: report.governance.publication_date: {published!r} is no date; write it as "
            "2026-01-31"
        ) from error
    sector = said.get("governance.sector")
    described = identity.description or f"A model, {identity.name}"
    return {
        "name": identity.name,
        "data_curators": [said["governance.controller"]],
        "description": f"{described.rstrip('.')}. Trained by federated learning with "
        "differential privacy.",
        "intended_use": said["purpose"],
        "data_product_type": "Machine learning model",
        "data_product_region": said["governance.region"],
        "publication_date": published,
        **({"data_product_sector": sector} if sector else {}),
    }


def _variant(report: Report) -> dict[str, Any]:
    identity, guarantee = report[Identity], report[Guarantee]
    outside = "\n".join(f"- {one.title}: {one.text}" for one in report[OutsideBudget].root)
    return {
        "variant_name": "Approximate DP",
        "data_domain": f"All data sets of the form of {identity.dataset}, divided among "
        f"{formatting.count(report[Sampling].clients)} clients. "
        + " ".join(guarantee.assumptions[:2]),
        "unprotected_quantities": outside,
    }


def _loss(report: Report) -> dict[str, Any]:
    guarantee = report[Guarantee]
    views = [
        f"- against {view.towards}: ε = {formatting.epsilon(view.epsilon)}, δ = "
        f"{formatting.power(view.delta)}"
        for view in report[Accounting].views
        if view.epsilon is not None
    ]
    assumed = "\n".join(f"- {text}" for text in guarantee.assumptions)
    return {
        "privacy_unit": guarantee.unit,
        "privacy_unit_details": f"Data sets are adjacent by {guarantee.adjacency}.",
        "privacy_parameters": {
            # Never rounded down.
            "epsilon": float(formatting.epsilon(guarantee.epsilon).replace(",", "")),
            "delta": guarantee.delta,
        },
        "privacy_parameters_details": "\n".join(
            [guarantee.statement, *views, "It holds under these assumptions:", assumed]
        ),
    }


def _model(report: Report, said: Mapping[str, str]) -> dict[str, Any]:
    mechanism = report[Mechanism]
    by = f" Noise is added by the {mechanism.noise_added_by}." if mechanism.noise_added_by else ""
    actors = "\n".join(
        f"- {one.who}: {'protected' if one.protected else 'not protected'}. {one.why}"
        for one in report[Readers].root
    )
    trusted = said.get("governance.trust_model")
    other = said.get("governance.other_releases")
    return {
        "model_name": "Federated",
        "model_name_details": f"Records stay with the clients; the server sees uploads.{by}",
        "actors": f"{actors}\n- Stated by the curator: {trusted}" if trusted else actors,
        "release_type": "One release",
        "release_type_details": "One trained model and its test metrics of each round."
        + (f" Other releases of the same data, as the curator states: {other}" if other else ""),
        "data_source_type": "Static",
        "data_source_type_details": "The records are fixed before training begins.",
        "access_type": "Non-interactive",
        "access_type_details": "The model is handed out; the records answer no queries.",
    }


def _accounting(report: Report) -> dict[str, Any]:
    accounting = report[Accounting]
    library = " ".join(part for part in (accounting.library, accounting.version) if part)
    return {
        "post_processing": "Server optimiser, averaging and evaluation work on noised values.",
        "composition": f"{report[Guarantee].composition}. Library: {library or 'unstated'}.",
    }


def _implementation(report: Report) -> dict[str, Any]:
    verdict, trust = report[Verdict], report[Trust]
    outside = "\n".join(f"- {one.title}: {one.text}" for one in report[OutsideBudget].root)
    identity = report[Identity]
    return {
        "preprocessing_and_hyperparameter_tuning": outside,
        "mechanisms": f"{report[Mechanism].statement} {report[Sampling].statement} "
        f"Implemented by dpfedadamw {identity.package}.",
        "justification": _CONTROL.format(
            verdict=in_front(verdict.value, verdict.unprotected_against),
            statement=verdict.explanation,
            again=trust.again,
        ).strip(),
    }


def _administrative(report: Report, said: Mapping[str, str]) -> dict[str, Any]:
    identity = report[Identity]
    digest = identity.digest("model.safetensors")
    notes = [f"Run {identity.run}; SHA-256 of the model: {digest}.", report[Trust].checked]
    authors = [one.strip() for one in said["governance.registry_authors"].split(";")]
    return {
        "notes": "\n".join(f"- {text}" for text in (*notes, *report[Qualifications].root)),
        "registry_authors": [one for one in authors if one],
    }
