"""The one base error of the reports package.

Everything a user can cause while a report is built, signed or verified ends in a `ReportError` with
a single line: what is wrong, where, and what would be right.
"""

from __future__ import annotations

from pathlib import Path


class ReportError(Exception):
    """A report, key or attestation cannot be made or read; the message is one clear line."""


class SourceError(ReportError):
    """A run directory lacks a file, or holds one that cannot be read."""


class KeyFileError(ReportError):
    """A signing key is missing, unreadable, too widely readable, or of the wrong kind."""


class EnvelopeError(ReportError):
    """A signed envelope is malformed or its signature does not hold."""


class TimestampError(ReportError):
    """A timestamp cannot be had, or does not hold."""


class PdfSignatureError(ReportError):
    """A PDF cannot be signed, or its signature does not hold."""


def local(error: ReportError, folder: Path) -> str:
    """Return an error's text without the folder's path, which a reader of the run need not know."""
    return str(error).replace(f" in {folder}", "")
