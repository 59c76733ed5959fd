"""Writes VERIFY.md: how to check a signed run with sed, sha256sum, openssl and pdfsig alone.

The commands are one script, templates/verify.sh, in the one fenced block of the page; the test
suite runs exactly that. It relies on the layout that `dsse` gives envelopes and statements. It is
fed to a bash of its own, so that it may be pasted into any shell: that shell's options, aliases and
variables do not reach it, and a failure ends nothing but the check.
"""

from __future__ import annotations

import re
from importlib import resources

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import SourceError
from reports.files import clean
from reports.signatures.keys import fingerprint

# The identifier stands inside shell commands.
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SAME_KEY = "\n**Both signatures are by one key: they prove integrity, not independence.**\n"


def write(
    run: str,
    trainer: ec.EllipticCurvePublicKey,
    auditor: ec.EllipticCurvePublicKey,
    public: bool = False,
) -> str:
    """Return the text of VERIFY.md, or of VERIFY-public.md.

    Args:
        run: The run's identifier.
        trainer: The key that signed training.attestation.json.
        auditor: The key that will sign attestation.json.
        public: For whoever holds the public files alone.

    Raises:
        SourceError: The identifier has characters that a shell would not take literally.
    """
    if not _RUN.fullmatch(run):
        raise SourceError(f"ledger.jsonl: the run's identifier {clean(run, 60)!r} is not accepted")
    fingerprints = fingerprint(trainer), fingerprint(auditor)
    page, kind = ("VERIFY-public.md", "public") if public else ("VERIFY.md", "run")
    return (
        _template(page)
        .replace("@SCRIPT@", _template("verify.sh").replace("@KIND@", kind))
        .replace("@TRAINER@", fingerprints[0])
        .replace("@AUDITOR@", fingerprints[1])
        .replace("@SAME@", _SAME_KEY if fingerprints[0] == fingerprints[1] else "")
        .replace("@RUN@", run)
    )


def _template(name: str) -> str:
    folder = resources.files("reports.signatures").joinpath("templates")
    return folder.joinpath(name).read_text("utf-8")
