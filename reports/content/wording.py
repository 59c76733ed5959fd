"""The report's standing sentences: verdicts, checks, accountants, and what no number here covers.

Plain data for the parts of a report and for the pages; no text here depends on a run. Numbers come
keyed by the accountants' names; one that is not described here is shown by its name.

What each of the auditor's checks would mean if it failed stands with the checks themselves, in the
package `audit`, which reports do not import; and an auditor's file could word it as it liked, also
with a private number. So the sentences are copied into ``check_meanings.json`` by
`tests.reports.check_meanings`, and a test holds the copy to them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

SEED_CAVEAT = "not a privacy guarantee to anyone who knows the seed"

VERDICTS = {
    "PASS": (
        "{Audit} passed {passed} of {applicable} applicable checks, including every critical one. "
        "A pass means that no check contradicts the claim. It is not a proof."
    ),
    "FAIL": "{Audit} contradicts the claim. Do not rely on this run's privacy guarantee.",
    "NOT VERIFIED": (
        "{Audit} could not verify what the guarantee depends on. Treat the claim as unproven."
    ),
    "NO CLAIM": (
        "This run claims no differential privacy. {Audit} confirms only that its files are intact."
    ),
    "NOT AUDITED": "There is no usable audit of this run. Treat the claim as unproven.",
}

# Why a PASS is not shown in green.
NO_GREEN = {
    "seed": "Not shown in green: anyone who knows the seed can draw the noise again.",
    "level": "Not shown in green: nothing was recomputed from the data.",
}

# "Independent" is said only where the auditor's key is known, and not the trainer's.
AUDITS = {True: "The independent audit", False: "The trainer’s own audit"}

FORMULAS = {
    "third_party_noble": "s·√(l·T·K·log(2/δ)·log(2T/δ)/N)/σ",
    "server_noble": "s·√(T·K·log(2/δ)·log(2T/δ))/σ",
    "equation_13": "s·√(T·K·log(2/δ)·log(2T/δ))/σ",
    "equation_14": "√(N/l) · equation (13)",
}
FORM_NAMES = {
    "third_party_noble": "Noble et al. 2022, third party",
    "server_noble": "Noble et al. 2022, server",
    "equation_13": "DP-FedAdamW, equation (13)",
    "equation_14": "DP-FedAdamW, equation (14)",
}
FORM_TOWARDS = {
    "third_party_noble": "third party",
    "server_noble": "server",
    "equation_13": "third party, as printed",
    "equation_14": "server, as printed",
}

OUTSIDE_BUDGET = [
    (
        "Test metrics",
        "Accuracy (also by class), loss and all further measures of the test records are released "
        "without noise. The guarantee does not cover test records, and choosing a round by them "
        "uses them.",
    ),
    (
        "Client sizes",
        "How many records each client holds is treated as public: the sampling rate is the "
        "expected batch size divided by it.",
    ),
    (
        "Preparing the data",
        "Any scaling, filtering or encoding that was fitted to private records before training "
        "is a release outside the budget.",
    ),
]
SIZES_AT_A_STATED_RATE = (
    "The spec states the sampling rate, so it does not follow from how many records each client "
    "holds. Reports publish the smallest, median and largest of these numbers and their total, "
    "without noise."
)
PRETRAINING_TITLE = "Pre-training"
VALIDATION_TITLE = "Public validation records"
VALIDATION = (
    "The spec declares a share of {fraction:g} of the held-out records public and sets it aside "
    "for tuning. They are evaluated without noise, and the guarantee does not cover them. Accuracy "
    "on them is {result}."
)
OUTSIDE_NOTHING = [
    (
        "Everything",
        "There is no budget: every update, metric and model of this run is released without noise.",
    ),
]

SAMPLERS = {
    "poisson": (
        "Within a client, every record enters a step's batch independently with probability "
        "q = {batch} / records (sampling: poisson); a batch may be empty."
    ),
    "poisson at a stated rate": (
        "Within a client, every record enters a step's batch independently with probability "
        "q = {rate}, as the spec states (sampling: poisson); a batch may be empty."
    ),
    "fixed-size": (
        "Within a client, each step draws exactly {batch} records without replacement (sampling: "
        "fixed-size)."
    ),
    "shuffled": (
        "Within a client, the records are shuffled and taken {batch} at a time, in a new order "
        "each epoch. Every participation begins a new epoch (sampling: shuffled). No amplification "
        "is claimed: each batch that a record can be in counts in full."
    ),
    "unstated": "How a client draws the records of a step is not stated.",
}

PRESENCE_NOT_HIDDEN = (
    "A record’s content is hidden, not its presence",
    "Neighbouring data sets have equally many records, and the content of one differs. The run may "
    "reveal how many records a client has.",
)
HAZARDS = [
    (
        "The unit is one record",
        "A person with k records is protected less: at the same δ, ε can exceed k·ε. "
        "Whole clients are not hidden.",
    ),
    (
        "Facts about groups stay learnable",
        "Differential privacy limits what taking part reveals. What the model learns from others "
        "may still say something about a person.",
    ),
    (
        "δ is a probability of failure",
        "Keep δ·n well below 1. With a probability of up to δ, ε need not hold.",
    ),
    (
        "Checks have limited power",
        "Each check states the smallest fault that it would notice. Smaller faults can pass.",
    ),
    (
        "Not covered",
        "Running times, memory, floating-point side channels, malicious clients and the "
        "security of the machines.",
    ),
    (
        "No legal conclusion",
        "This report does not decide whether the model is anonymous or the processing lawful. The "
        "people named under governance do.",
    ),
]
CLIENT_OUTSIDE_BUDGET = [
    OUTSIDE_BUDGET[0],
    (
        "Number and sizes of clients",
        "How many clients there are and how many records each holds is treated as public.",
    ),
    OUTSIDE_BUDGET[2],
]

CLIENT_HAZARDS = [
    (
        "The unit is one client",
        "One client with all its records is hidden among the others. Someone whose records are at "
        "k clients is protected less: at the same δ, ε can exceed k·ε.",
    ),
    HAZARDS[1],
    (
        "δ is a probability of failure",
        "Keep δ·N well below 1. With a probability of up to δ, ε need not hold.",
    ),
    (
        "Who took part must stay unknown",
        "The limit against a third party depends on participation by chance. It does not hold "
        "against someone who learns that a client took part in a round.",
    ),
    *HAZARDS[3:],
]

PERSON_HAZARDS = [
    (
        "The unit is one person",
        "One person with all of their records is hidden, at as many clients as the promise says. "
        "Someone at more clients is protected less. Whole clients are not hidden.",
    ),
    *HAZARDS[1:],
]

HAZARDS_NO_PRIVACY = [
    (
        "Membership and content can leak",
        "Without noise and clipping, models and updates can reveal who was in the training data, "
        "and sometimes the records themselves.",
    ),
    (
        "Federated is not private",
        "Records stay with their clients, but updates can still reveal them.",
    ),
    HAZARDS[-1],
]

# Each by its key below report in the spec.
GOVERNANCE = [
    ("governance.controller", "Controller"),
    ("purpose", "Purpose of the processing"),
    ("lawful_basis", "Lawful basis"),
    ("necessity", "Necessity and proportionality"),
    ("governance.data_categories", "Categories of data and of people"),
    ("governance.collection", "Collection of the data"),
    ("governance.access", "Access to records, evidence and internal report"),
    ("governance.retention", "Retention"),
    ("governance.recipients", "Recipients of model and reports"),
    ("governance.other_releases", "Other releases of the same data"),
    ("governance.reidentification", "What others know, and could link"),
    ("governance.trust_model", "Trust model"),
    ("governance.region", "Region of the data, or whose law applies"),
    ("governance.sector", "Sector"),
    ("governance.publication_date", "Date of publication"),
    ("governance.registry_authors", "Authors of an entry in a registry of deployments"),
    ("risks", "Risks to the people concerned"),
    ("measures", "Measures taken"),
    ("responsible", "Responsible for the processing"),
]

# Asked for by a registry of deployments alone, so that a report leaves them out where open.
FOR_A_REGISTRY = frozenset(
    {"governance.sector", "governance.publication_date", "governance.registry_authors"}
)

VERIFICATION = [
    "VERIFY.md next to this report has the exact commands. They need only sed, sha256sum and "
    "openssl.",
    "The trainer signs what was run (training.attestation.json). The auditor signs what was found, "
    "including this report (attestation.json).",
    "The PDF carries the auditor's certification signature, which forbids every change. pdfsig and "
    "PDF readers show it. They may call its certificate unknown: the key's fingerprint decides "
    "whose it is.",
    "Compare both keys' fingerprints with ones that you did not receive with these files.",
    "A signature by a key that the trainer also holds proves integrity, not independence.",
]


@dataclass(frozen=True, kw_only=True)
class Accountant:
    """How an accountant is presented.

    Attributes:
        label: Its name in columns and on axes.
        title: Its name as a way to convert into ε and δ.
        use: What its number is for.
        source: Where it is published.
    """

    label: str
    title: str
    use: str
    source: str


ACCOUNTANTS = {
    "pld": Accountant(
        label="PLD",
        title="PLD",
        use="Headline: numerical composition of privacy loss distributions, tight.",
        source="Koskela, Jälkö & Honkela 2020; Doroshenko et al. 2022",
    ),
    "rdp": Accountant(
        label="RDP",
        title="RDP, improved",
        use="For comparison: Rényi composition, improved conversion; never below the truth.",
        source="Mironov 2017; Canonne, Kamath & Steinke 2020",
    ),
    "rdp-classic": Accountant(
        label="RDP, classic",
        title="RDP, classic",
        use="Only to reproduce a paper's number: the original, looser conversion.",
        source="Mironov 2017, Proposition 3",
    ),
}


def accountant_named(name: str) -> Accountant:
    """Return how an accountant is presented; one that is not known by its name alone."""
    unknown = Accountant(
        label=name, title=name, use="Stated in the ledger with the others.", source="unstated"
    )
    return ACCOUNTANTS.get(name, unknown)


def in_order(names: Iterable[str]) -> list[str]:
    """Return names each once: those that are described in their order, then the others."""
    found = set(names)
    return [*(name for name in ACCOUNTANTS if name in found), *sorted(found - ACCOUNTANTS.keys())]


@functools.cache
def check_meanings(unit: str) -> Mapping[str, str]:
    """Return the sentences by the name of the check.

    Args:
        unit: "record", "person", "client", "none", or "loop" for a recorded loop.
    """
    text = resources.files("reports.content").joinpath("check_meanings.json").read_text("utf-8")
    meanings: dict[str, dict[str, str]] = json.loads(text)
    return meanings[unit]
