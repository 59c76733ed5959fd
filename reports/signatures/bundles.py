"""The model's own signature as an OpenSSF bundle (model.sig), for tools that know nothing of runs.

Made by the library model-signing with the trainer's key over model.safetensors and model.json, and
checked here without it: the bundle holds a DSSE envelope like ours. Source: OpenSSF Model Signing
v1.0 (predicate https://model_signing/signature/v1.0) in a Sigstore bundle v0.3.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, KeyFileError, ReportError, SourceError, local
from reports.files import Snapshot, clean, mapping, parse_json, sequence
from reports.signatures.dsse import check_signature, parse_signed
from reports.signatures.inventory import BUNDLE, Problem
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import secret_bytes
from reports.signatures.statements import MOST_BYTES

MODEL_FILES = ("model.json", "model.safetensors")
PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def sign_model(run_dir: Path, key: SigningKey, passphrase: str | None) -> bytes:
    """Return model.sig, the trainer's signature over the model alone.

    Args:
        run_dir: A finished run.
        key: The trainer's key; the library needs it in a file.
        passphrase: Of the key.

    Raises:
        KeyFileError: The key is in hardware, or the passphrase is none that a key can have.
        ReportError: The library is not installed, or cannot sign.
    """
    if key.location is None:
        raise KeyFileError(f"{BUNDLE}: model-signing needs a key in a file, not one in hardware")
    try:
        from model_signing import hashing, signing
    except ImportError as error:
        raise ReportError(
            f"{BUNDLE}: model-signing is not installed; pip install 'dpfedadamw[model-signing]'"
        ) from error

    # Where the optional library is absent, mypy knows no type of its base class. The files that it
    # hands to hash by name are not used, since ours are fixed.
    class ModelFiles(hashing.Config):  # type: ignore[misc, unused-ignore]
        """Takes the model's files alone; evidence and reports are not part of a model."""

        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Any:  # noqa: ARG002
            return super().hash(model_path, files_to_hash=[run_dir / name for name in MODEL_FILES])

    secret = secret_bytes(passphrase)
    with tempfile.TemporaryDirectory(prefix="dpfedadamw-model-") as folder:
        target = Path(folder) / BUNDLE
        try:
            config = signing.Config().use_elliptic_key_signer(
                private_key=key.location, password=secret
            )
            config.set_hashing_config(ModelFiles()).sign(run_dir, target)
        except (ValueError, TypeError, OSError) as error:
            raise ReportError(f"{BUNDLE}: cannot be made ({clean(str(error), 120)})") from error
        return target.read_bytes()


def check_bundle(files: Snapshot, key: ec.EllipticCurvePublicKey) -> list[Problem]:
    """Check a model's bundle against the trainer's key and the files.

    Args:
        files: The run directory's files.
        key: The trainer's key.

    Returns:
        What does not hold.
    """
    try:
        resources = _signed_resources(files, key)
        if resources.keys() != set(MODEL_FILES):
            raise EnvelopeError(f"{BUNDLE}: covers other files than {' and '.join(MODEL_FILES)}")
    except (SourceError, EnvelopeError) as error:
        return [Problem(BUNDLE, local(error, files.folder).removeprefix(f"{BUNDLE}: "))]
    problems = []
    for name, digest in resources.items():
        try:
            if files.sha256(name) != digest:
                problems.append(Problem(name, f"changed since {BUNDLE} was signed"))
        except SourceError as error:
            problems.append(Problem(name, local(error, files.folder).removeprefix(f"{name}: ")))
    return problems


def _signed_resources(files: Snapshot, key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    """Return file name to SHA-256 from a bundle whose signature holds."""
    bundle = mapping(parse_json(files.read(BUNDLE, MOST_BYTES), BUNDLE))
    envelope = parse_signed(mapping(bundle.get("dsseEnvelope")), BUNDLE)
    check_signature(envelope, key, BUNDLE)
    statement = mapping(parse_json(envelope.payload, BUNDLE))
    if statement.get("predicateType") != PREDICATE_TYPE:
        raise EnvelopeError(f"{BUNDLE}: predicateType must be {PREDICATE_TYPE}")
    resources: dict[str, str] = {}
    whole = hashlib.sha256()
    for raw in sequence(mapping(statement.get("predicate")).get("resources")):
        entry = mapping(raw)
        name, digest = clean(entry.get("name"), 200), str(entry.get("digest"))
        if entry.get("algorithm") != "sha256" or name in resources:
            raise EnvelopeError(f"{BUNDLE}: SHA-256 of every file once is needed")
        try:
            whole.update(bytes.fromhex(digest))
        except ValueError as error:
            raise EnvelopeError(f"{BUNDLE}: a digest is not hexadecimal") from error
        resources[name] = digest
    subjects = sequence(statement.get("subject"))
    stated = mapping(mapping(subjects[0] if len(subjects) == 1 else None).get("digest"))
    if stated.get("sha256") != whole.hexdigest():
        raise EnvelopeError(f"{BUNDLE}: its subject is not the files that it lists")
    return resources
