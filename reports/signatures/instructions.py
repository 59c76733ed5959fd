"""Writes VERIFY.md: how to check a signed run with sed, sha256sum, openssl and pdfsig alone.

The commands stand in fenced `sh` blocks of templates/VERIFY.md that also work one after the other
as a bash script; the test suite runs exactly these. They rely on the layout that `dsse` gives
envelopes and statements.
"""

from __future__ import annotations

import re
from importlib import resources

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import SourceError
from reports.reading.files import clean
from reports.signatures.keys import fingerprint

# The identifier stands inside shell commands.
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SAME_KEY = "\n**Both signatures are by one key: they prove integrity, not independence.**\n"


def write(run: str, trainer: ec.EllipticCurvePublicKey, auditor: ec.EllipticCurvePublicKey) -> str:
    """Return the text of VERIFY.md.

    Args:
        run: The run's identifier.
        trainer: The key that signed training.attestation.json.
        auditor: The key that will sign attestation.json.

    Raises:
        SourceError: The identifier has characters that a shell would not take literally.
    """
    if not _RUN.fullmatch(run):
        raise SourceError(f"ledger.jsonl: the run's identifier {clean(run, 60)!r} is not accepted")
    fingerprints = fingerprint(trainer), fingerprint(auditor)
    template = (
        resources.files("reports.signatures").joinpath("templates/VERIFY.md").read_text("utf-8")
    )
    return (
        template.replace("@TRAINER@", fingerprints[0])
        .replace("@AUDITOR@", fingerprints[1])
        .replace("@SAME@", _SAME_KEY if fingerprints[0] == fingerprints[1] else "")
        .replace("@RUN@", run)
    )
