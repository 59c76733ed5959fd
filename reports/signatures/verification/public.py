"""Checks the public files of a run where nothing else is: what everybody who gets the model holds.

There is no ledger and no audit to compare with, so what the auditor signed is what counts: these
files and no others, by this key, about this run and model, with the verdict and the claims that the
public report states.
"""

from __future__ import annotations

from reports.errors import SourceError
from reports.files import Snapshot, clean, mapping, parse_json, sequence
from reports.signatures import signing
from reports.signatures.dsse import Statement
from reports.signatures.verification import contents
from reports.signatures.verification.contents import About
from reports.signatures.verification.results import Found

_REPORT = "report-public"
# Where one of these lies, it is a run directory, and must hold as one.
_RESTRICTED = (
    signing.RUN_ENVELOPE, signing.TRAINING_ENVELOPE, "ledger.jsonl", "audit.json", "evidence",
)  # fmt: skip


def is_public_alone(files: Snapshot) -> bool:
    """Return whether a folder holds a run's public files and none that others may not see."""
    return files.holds(signing.PUBLIC_ENVELOPE) and not any(map(files.holds, _RESTRICTED))


def check_contents(files: Snapshot, statement: Statement, found: Found) -> str:
    """Check that report and model are those that the statement speaks of.

    Returns:
        The run's identifier, as the statement says.
    """
    said = statement.predicate
    run, verdict = clean(said.get("run"), 200), clean(said.get("verdict"), 40)
    hashes = {
        name: digest
        for name, (_, digest) in statement.subjects.items()
        if name not in signing.PUBLIC_REPORTS
    }
    subject = About(run, verdict, hashes, complete=False)
    contents.check_reports(files, subject, found, (_REPORT,))
    _check_claim(files, mapping(said.get("claims")), found)
    contents.say_verdict(verdict, found)
    found.say(
        "These are the public files alone. That verdict and claims follow from ledger and evidence "
        "is the auditor's word; the trainer's attestation is not public."
    )
    return run


def _check_claim(files: Snapshot, claims: dict[str, object], found: Found) -> None:
    """Check that the report promises what the statement claims in the view that it leads with."""
    name = f"{_REPORT}.json"
    try:
        guarantee = mapping(mapping(parse_json(files.read(name), name)).get("guarantee"))
    except SourceError:
        return  # Named already.
    views = {
        clean(view.get("key"), 40): (view.get("epsilon"), view.get("delta"))
        for view in map(mapping, sequence(claims.get("views")))
    }
    stated = (guarantee.get("epsilon"), guarantee.get("delta"))
    if guarantee.get("unit") != claims.get("unit") or stated != views.get(
        clean(guarantee.get("view"), 40), (None, None)
    ):
        found.add(name, f"states another guarantee than {signing.PUBLIC_ENVELOPE}")
