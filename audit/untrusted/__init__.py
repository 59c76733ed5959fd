"""Reading of hostile files: bounded, strict, without links, and never a traceback.

The auditor and the reports both open run directories that may come from anybody. This package is
what they share, and all that they share: it knows no run, no claim and no verdict, and judges only
whether bytes can be read safely. Every refusal is an `UntrustedError`, which its callers turn into
errors of their own.
"""

from __future__ import annotations


class UntrustedError(ValueError):
    """Something that was read cannot be accepted; the message says why in one line."""
