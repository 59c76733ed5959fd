"""pyHanko's parts that sign and check, loaded without its HTTP client.

pyHanko imports aiohttp wherever it checks a signature, which takes a fifth of `verify`. While it is
loaded a stand-in takes aiohttp's place; it passes every later use on to aiohttp, so that only a
request for a timestamp loads it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_CLIENT = "aiohttp"


class _Later(ModuleType):
    """Stands for a module: for names in annotations now, for the module itself later."""

    loading = True

    def __getattr__(self, name: str) -> Any:
        """Return any class while pyHanko's functions are defined, then what the module has."""
        return object if self.loading else getattr(import_module(self.__name__), name)


@contextmanager
def _without_client() -> Iterator[None]:
    """Leave the HTTP client unloaded by what is imported here."""
    if _CLIENT in sys.modules:
        yield
        return
    stand_in = sys.modules[_CLIENT] = _Later(_CLIENT)
    try:
        yield
    finally:
        stand_in.loading = False
        del sys.modules[_CLIENT]


with _without_client():
    from pyhanko.pdf_utils import generic
    from pyhanko.pdf_utils.incremental_writer import IncrementalPdfFileWriter
    from pyhanko.pdf_utils.reader import PdfFileReader
    from pyhanko.sign import diff_analysis, fields, signers
    from pyhanko.sign.timestamps import HTTPTimeStamper, TimeStamper
    from pyhanko.sign.validation import async_validate_pdf_signature, async_validate_pdf_timestamp
    from pyhanko.sign.validation.generic_cms import (
        extract_certs_for_validation,
        validate_tst_signed_data,
    )
    from pyhanko.sign.validation.status import SignatureCoverageLevel, TimestampSignatureStatus
    from pyhanko_certvalidator import ValidationContext
    from pyhanko_certvalidator.registry import SimpleCertificateStore

__all__ = [
    "HTTPTimeStamper",
    "IncrementalPdfFileWriter",
    "PdfFileReader",
    "SignatureCoverageLevel",
    "SimpleCertificateStore",
    "TimeStamper",
    "TimestampSignatureStatus",
    "ValidationContext",
    "async_validate_pdf_signature",
    "async_validate_pdf_timestamp",
    "diff_analysis",
    "extract_certs_for_validation",
    "fields",
    "generic",
    "signers",
    "validate_tst_signed_data",
]
