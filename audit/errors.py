"""The errors of the auditor: one base, so that a caller needs to catch one class.

Every module of this package raises these; `auditor` turns `UnverifiedError` into the verdict
NOT VERIFIED and the command line turns any of them into one line and an exit code.
"""

from __future__ import annotations


class AuditError(Exception):
    """Base of every error that this package raises on purpose. The text is one clear line."""


class RunDirectoryError(AuditError):
    """The path given is not a run directory that can be audited at all."""


class UntrustedFileError(AuditError):
    """A file of the run is missing, oversized, malformed or not a plain file.

    Attributes:
        file: path relative to the run directory.
        what: what is wrong with it, in one line.
        missing: whether the file simply is not there.
    """

    def __init__(self, file: str, what: str, *, missing: bool = False) -> None:
        """Remember the file and the reason; the message joins them."""
        super().__init__(f"{file}: {what}")
        self.file = file
        self.what = what
        self.missing = missing


class UnverifiedError(AuditError):
    """A check lacks what it needs for a judgement, so its verdict is NOT VERIFIED."""


class ProbeError(AuditError):
    """The step under the active probe broke the probe's protocol."""
