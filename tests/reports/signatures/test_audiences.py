"""What of a run each audience may hold: named file by file, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.untrusted.files import FileError, Refusal
from reports.errors import EnvelopeError, SourceError
from reports.signatures import copies, signing
from reports.signatures.dsse import (
    PUBLIC_TYPE,
    RUN_TYPE,
    SHA256,
    Envelope,
    Statement,
    write_envelope,
    write_statement,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with private evidence and a public attestation."""
    folder = tmp_path / "run"
    for name in ("spec.yaml", "ledger.jsonl", "model.json", "evidence/salt", "evidence/a/b"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    attested(folder, "model.json")
    return folder


def attested(folder: Path, *names: str, kind: str = PUBLIC_TYPE) -> None:
    """Attest files for the public; that the signature holds is for `verify` to say."""
    payload = write_statement(Statement(dict.fromkeys(names, (SHA256, "0" * 64)), kind, {}))
    envelope = write_envelope(Envelope(payload, "key", b"signed"))
    (folder / signing.PUBLIC_ENVELOPE).write_bytes(envelope)


def test_there_are_three_audiences() -> None:
    assert copies.AUDIENCES == ("public", "auditor", "archive")


def test_the_archive_holds_all_but_evidence_and_the_auditor_that_too(run: Path) -> None:
    kept = ("attestation-public.json", "ledger.jsonl", "model.json", "spec.yaml")
    assert copies.files_for(run, "archive") == kept
    assert copies.files_for(run, "auditor") == (
        "attestation-public.json", "evidence/a/b", "evidence/salt", *kept[1:],
    )  # fmt: skip


def test_the_public_holds_what_was_attested_for_it_and_the_attestation(run: Path) -> None:
    name = "attestation-public.json"
    assert copies.files_for(run, "public") == (name, "model.json")
    (run / f"{name}.tsr").write_bytes(b"stamp")
    assert copies.files_for(run, "public") == (name, f"{name}.tsr", "model.json")
    everything = {*signing.PUBLIC_FILES, *signing.PUBLIC_EXTRAS}
    attested(run, *everything)
    assert copies.files_for(run, "public") == tuple(sorted({*everything, name, f"{name}.tsr"}))


def test_what_is_withheld_is_not_public_whoever_attested_it(run: Path) -> None:
    attested(run, "model.json", "spec.yaml", "ledger.jsonl")
    with pytest.raises(EnvelopeError, match=r"json: names ledger\.jsonl, which is not public$"):
        copies.files_for(run, "public")
    attested(run, "model.json", kind=RUN_TYPE)
    with pytest.raises(EnvelopeError, match="predicateType must be"):
        copies.files_for(run, "public")
    (run / signing.PUBLIC_ENVELOPE).unlink()
    with pytest.raises(SourceError, match="missing; the auditor writes it with the public report"):
        copies.files_for(run, "public")
    (run / signing.PUBLIC_ENVELOPE).symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"^(?!.*the auditor writes it)"):
        copies.files_for(run, "public")


def test_a_link_in_a_run_or_its_evidence_is_handed_to_nobody(run: Path) -> None:
    (run / "evidence" / "link").symlink_to("salt")
    assert "spec.yaml" in copies.files_for(run, "archive")
    with pytest.raises(SourceError, match=r"^evidence/link: "):
        copies.files_for(run, "auditor")
    (run / "link").symlink_to("spec.yaml")
    for audience in ("archive", "auditor"):
        with pytest.raises(SourceError, match=r"^link: is a link; a run holds regular files only$"):
            copies.files_for(run, audience)  # type: ignore[arg-type] # Literals.


def test_an_auditor_needs_evidence_that_can_be_listed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Path) -> None:
        raise FileError("salt", Refusal.CANNOT_LIST, "Permission denied")

    monkeypatch.setattr(copies, "list_files", refuses)
    with pytest.raises(SourceError, match="salt"):
        copies.files_for(run, "auditor")
    (run / "evidence").rename(run.parent / "away")
    with pytest.raises(SourceError, match=r"^evidence: missing; without it nothing can be audited"):
        copies.files_for(run, "auditor")
