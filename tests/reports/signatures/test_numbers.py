"""Names, types, limits and times that signed files rest on.

Strangers read these files years later, by docs/signatures.md and with other programs, so each name
and limit stands here a second time: a change is a decision, and the old form must stay readable.
"""

from __future__ import annotations

import re
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from reports.signatures import (
    audiences,
    bundles,
    challenges,
    comparisons,
    dsse,
    handing_over,
    intent_log,
    inventory,
    keys,
    pades,
    sequence,
    signing,
)
from reports.signatures.trust import (
    certificates,
    hardware,
    inspection,
    revocations,
    signer,
    statements,
    timestamps,
    transparency,
)
from reports.signatures.verification import comparisons as verified_comparisons
from reports.signatures.verification import contents, envelopes, public, remembered

OURS = "urn:dpfedadamw:attestation"
OLD = "https://dpfedadamw.org/attestation"

TABLE: list[tuple[ModuleType, str, Any]] = [
    # Types of statements, as the in-toto framework and DSSE call them.
    (dsse, "PAYLOAD_TYPE", "application/vnd.in-toto+json"),
    (dsse, "STATEMENT_TYPE", "https://in-toto.io/Statement/v1"),
    (dsse, "TRAINING_TYPE", f"{OURS}:training:v2"),
    (dsse, "RUN_TYPE", f"{OURS}:run:v2"),
    (dsse, "PUBLIC_TYPE", f"{OURS}:public:v1"),
    (dsse, "COMPARISON_TYPE", f"{OURS}:comparison:v1"),
    (
        dsse,
        "_EARLIER",
        {f"{OURS}:training:v2": f"{OLD}/training/v1", f"{OURS}:run:v2": f"{OLD}/run/v1"},
    ),
    (challenges, "INTENT_TYPE", f"{OURS}:intent:v1"),
    (challenges, "CHALLENGE_TYPE", f"{OURS}:challenge:v1"),
    (challenges, "DRAW_TYPE", f"{OURS}:draw:v1"),
    (statements, "ROTATION_TYPE", f"{OURS}:key-rotation:v1"),
    (statements, "REVOCATION_TYPE", f"{OURS}:key-revocation:v1"),
    (bundles, "PREDICATE_TYPE", "https://model_signing/signature/v1.0"),
    (transparency, "_FORMAT", "c2sp.org/tlog-proof@v1"),
    (transparency, "_ED25519", b"\x01"),
    # Names of digests: plain, and with the salt of what must not be guessed.
    (dsse, "SHA256", "sha256"),
    (dsse, "SALTED", "hmacSha256"),
    (timestamps, "_DIGESTS", ("sha256", "sha384", "sha512")),
    (inspection, "_ALGORITHM", "ECDSA P-256, SHA-256"),
    (inspection, "_ENCRYPTED", b"-----BEGIN ENCRYPTED PRIVATE KEY-----"),
    # Files of a run.
    (signing, "TRAINING_ENVELOPE", "training.attestation.json"),
    (signing, "RUN_ENVELOPE", "attestation.json"),
    (signing, "PUBLIC_ENVELOPE", "attestation-public.json"),
    (signing, "TRAINER_KEY", "trainer.pub"),
    (signing, "TRAINER_ROTATIONS", "trainer.rotations.json"),
    (signing, "AUDITOR_KEY", "auditor.pub"),
    (signing, "AUDITOR_ROTATIONS", "auditor.rotations.json"),
    (signing, "INSTRUCTIONS", "VERIFY.md"),
    (signing, "PUBLIC_INSTRUCTIONS", "VERIFY-public.md"),
    (signing, "STAMP_SUFFIX", ".tsr"),
    (signing, "PROOF_SUFFIX", ".tlog"),
    (signing, "SIGNED_PAGES", frozenset({"report.pdf", "report-public.pdf"})),
    (
        signing,
        "TRAINED_FILES",
        (
            "spec.yaml",
            "ledger.jsonl",
            "metrics.jsonl",
            "model.safetensors",
            "model.json",
            "trainer.pub",
        ),
    ),
    (
        signing,
        "ANNOUNCED_FILES",
        ("intent.json", "intent.json.tsr", "intent.json.tlog", "challenge.json"),
    ),
    (
        signing,
        "PUBLIC_REPORTS",
        ("report-public.json", "report-public.pdf", "report-public.html"),
    ),
    (
        signing,
        "PUBLIC_FILES",
        (
            "model.safetensors",
            "model.json",
            "metrics.jsonl",
            "report-public.json",
            "report-public.pdf",
            "report-public.html",
            "trainer.pub",
            "auditor.pub",
            "VERIFY-public.md",
        ),
    ),
    (
        signing,
        "PUBLIC_EXTRAS",
        (
            "model.sig",
            "trainer.rotations.json",
            "auditor.rotations.json",
            "intent.json",
            "intent.json.tsr",
            "intent.json.tlog",
            "challenge.json",
        ),
    ),
    (
        public,
        "_RESTRICTED",
        ("attestation.json", "training.attestation.json", "ledger.jsonl", "audit.json", "evidence"),
    ),
    (public, "_REPORT", "report-public"),
    (contents, "REPORTS", ("report", "report-public")),
    (contents, "_MODEL", "model.safetensors"),
    (
        envelopes,
        "_KEY_FILES",
        (
            ("trainer", "trainer.pub", "trainer.rotations.json"),
            ("auditor", "auditor.pub", "auditor.rotations.json"),
        ),
    ),
    (envelopes, "_TRAINING", ("trainer", "training.attestation.json", f"{OURS}:training:v2")),
    (envelopes, "_RUN", ("auditor", "attestation.json", f"{OURS}:run:v2")),
    (envelopes, "_PUBLIC", ("auditor", "attestation-public.json", f"{OURS}:public:v1")),
    (bundles, "BUNDLE", "model.sig"),
    (bundles, "MODEL_FILES", ("model.json", "model.safetensors")),
    (challenges, "INTENT", "intent.json"),
    (challenges, "CHALLENGE", "challenge.json"),
    (challenges, "DRAW", "draw.json"),
    (challenges, "_SPEC", "spec.yaml"),
    (challenges, "_LEDGER", "ledger.jsonl"),
    (challenges, "_TRAINING", "training.attestation.json"),
    (comparisons, "STEMS", {"internal": "comparison", "public": "comparison-public"}),
    (
        comparisons,
        "ENVELOPES",
        {
            "internal": "comparison.attestation.json",
            "public": "comparison-public.attestation.json",
        },
    ),
    (comparisons, "KINDS", ("json", "pdf", "html")),
    (verified_comparisons, "_ATTACHMENT", "comparison.json"),
    (handing_over, "ERASURE", "erasure.json"),
    (handing_over, "_FORMAT", 1),
    (intent_log, "FILE", "intents.jsonl"),
    (intent_log, "_GENESIS", 64 * "0"),
    (inventory, "EVIDENCE", "evidence"),
    (inventory, "CHECKPOINT", "checkpoint"),
    (inventory, "SALT", "salt"),
    (inventory, "_FINDINGS", "findings.json"),
    (remembered, "FILE", "verified.json"),
    (signer, "CERTIFICATE_SUFFIX", ".crt"),
    (signer, "ROTATIONS_SUFFIX", ".rotations.json"),
    (signer, "HARDWARE_SCHEME", "pkcs11:"),
    (hardware, "MODULE_VARIABLE", "DPFEDADAMW_PKCS11_MODULE"),
    (hardware, "_KNOWN", ("token", "object", "module-path")),
    # Of a signed PDF.
    (pades, "FIELD", "Auditor"),
    (pades, "SIGN_OFF_FIELD", "Signed off"),
    (pades, "ATTACHMENT", "report.json"),
    (pades, "_ESIC", "ESIC"),
    # Who signs, who reads, and why a key ends.
    (keys, "ROLES", ("trainer", "auditor")),
    (audiences, "AUDIENCES", ("public", "auditor", "archive")),
    (
        statements,
        "REASONS",
        ("key-compromise", "superseded", "cessation-of-operation", "unspecified"),
    ),
    # The number of points of P-256 (FIPS 186-5, by SEC 2 version 2, section 2.4.2): half of it is
    # the largest s of a signature that has one form.
    (
        keys,
        "_ORDER",
        2**256 - 2**224 + 2**192 - 0x4319055258E8617B0C46353D039CDAAF,
    ),
    # Bytes and pieces that are read at most, before anything is known of them.
    (keys, "_KEY_LIMIT", 16 * 1024),
    (challenges, "MOST_BYTES", 16 * 1024**2),
    (certificates, "MOST_BYTES", 1_000_000),
    (certificates, "_MOST_CERTIFICATES", 8),
    (revocations, "_MOST_BYTES", 4_000_000),
    (statements, "MOST_BYTES", 1_000_000),
    (statements, "MOST_STATEMENTS", 64),
    (timestamps, "MOST_BYTES", 64 * 1024),
    (transparency, "MOST_BYTES", 64 * 1024),
    # A number in JSON that every reader keeps exactly.
    (sequence, "_MOST", 2**53 - 1),
    # Times: of a certificate that one signs for oneself, of clocks that differ, of an authority
    # that does not answer.
    (certificates, "VALID_DAYS", 3650),
    (certificates, "_CLOCK_SKEW", timedelta(minutes=5)),
    (challenges, "CLOCKS", timedelta(minutes=5)),
    (timestamps, "_SECONDS", 20.0),
    # A nonce as long as the digest that it is drawn through.
    (challenges, "NONCE_BYTES", 32),
]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    TABLE,
    ids=[f"{one.__name__.removeprefix('reports.signatures.')}.{name}" for one, name, _ in TABLE],
)
def test_what_signed_files_rest_on_is_what_this_table_says(module, name, value):
    found = getattr(module, name)
    assert type(found) is type(value)
    assert found == value


def test_a_request_was_granted_if_its_status_is_zero():
    """A sequence of one integer in DER (RFC 3161, section 2.4.2): 30 03 02 01 00."""
    assert bytes([0x30, 3, 2, 1, 0]) == timestamps._GRANTED


def test_the_order_of_the_curve_is_that_of_the_key_that_is_made():
    """No scalar as large as the order is a key, and the one below it is."""
    ec.derive_private_key(keys._ORDER - 1, ec.SECP256R1())
    with pytest.raises(ValueError, match=r"."):
        ec.derive_private_key(keys._ORDER, ec.SECP256R1())


@pytest.mark.parametrize("module", [challenges, dsse, remembered])
def test_a_digest_is_sixty_four_small_hexadecimal_digits(module):
    pattern = next(
        getattr(module, name)
        for name in ("_HEX", "_HEXADECIMAL", "_DIGEST")
        if hasattr(module, name)
    )
    assert re.fullmatch(pattern, "0123456789abcdef" * 4)
    for wrong in ("0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 63 + "\n"):
        assert not re.fullmatch(pattern, wrong)


def test_the_name_of_a_run_has_letters_digits_points_and_dashes_and_is_not_longer_than_200():
    for good in ("a", "7", "run-3_b.c", "a" * 200):
        assert re.fullmatch(challenges._RUN, good)
    for wrong in ("", ".a", "-a", "_a", "a" * 201, "a b", "a/b", "a\n"):
        assert not re.fullmatch(challenges._RUN, wrong)


def test_a_number_of_a_proof_is_written_in_one_way_and_below_ten_to_the_eighteen():
    for good in ("0", "7", "10", "9" * 18):
        assert transparency._NUMBER.fullmatch(good)
    for wrong in ("", "00", "07", "-1", "+1", "1" + "0" * 18, "1 "):
        assert not transparency._NUMBER.fullmatch(wrong)
