"""Trusted time: RFC 3161 timestamps, asked for by URL and checked offline.

A timestamp shows that bytes existed at a time that the signer could not choose. It matters when a
key is revoked or its certificate expires later: what was signed before still holds. A time is
trusted only under an authority's certificate that the reader brings along.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from asn1crypto import cms, tsp, x509
from cryptography.hazmat.primitives import serialization

from reports.errors import TimestampError
from reports.files import clean
from reports.signatures.certificates import load_chain
from reports.signatures.library import (
    HTTPTimeStamper,
    TimeStamper,
    TimestampSignatureStatus,
    ValidationContext,
    extract_certs_for_validation,
    validate_tst_signed_data,
)

MOST_BYTES = 65_536
_SECONDS = 20.0
_DIGESTS = ("sha256", "sha384", "sha512")
_Result = TypeVar("_Result")
_GRANTED = tsp.PKIStatusInfo({"status": "granted"}).dump()
# What the library has to say of a bad signature is said as a problem that names the file.
logging.getLogger("pyhanko").setLevel(logging.CRITICAL)
logging.getLogger("pyhanko_certvalidator").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Timestamp:
    """A timestamp whose signature holds over the bytes it was checked against.

    Attributes:
        time: When the bytes existed, UTC, as the authority says.
        authority: The authority's name in its certificate.
        trusted: Whether a certificate that the reader gave stands behind it.
    """

    time: datetime
    authority: str
    trusted: bool


class _Client(HTTPTimeStamper):
    """Takes no timestamp that no reader would believe, and reads no more than one has."""

    async def async_request_tsa_response(self, req: tsp.TimeStampReq) -> tsp.TimeStampResp:
        """Return what the authority answers.

        Raises:
            OSError: It does not answer, or says that it failed.
            ValueError: What it answers is no timestamp, or longer than one.
        """
        # Loaded by the first request alone, as in `library`.
        import aiohttp

        # The library reads without a bound, and unpacks: 300 kB of an answer became 300 MB.
        headers = {**self.request_headers(), "Accept-Encoding": "identity"}
        answer = b""
        try:
            async with (
                aiohttp.ClientSession(auto_decompress=False) as session,
                session.post(
                    self.url,
                    data=req.dump(),
                    headers=headers,
                    raise_for_status=True,
                    timeout=aiohttp.ClientTimeout(total=self.timeout),
                ) as response,
            ):
                kind = response.content_type
                while len(answer) <= MOST_BYTES:
                    piece = await response.content.read(MOST_BYTES)
                    if not piece:
                        break
                    answer += piece
        except aiohttp.ClientError as error:
            raise OSError("no answer") from error
        if kind != "application/timestamp-reply" or len(answer) > MOST_BYTES:
            raise ValueError
        return tsp.TimeStampResp.load(answer)

    async def async_timestamp(self, message_digest: bytes, md_algorithm: str) -> cms.ContentInfo:
        """Return a timestamp by an authority whose certificate is for that.

        Raises:
            TimestampError: It is not.
        """
        token = await super().async_timestamp(message_digest, md_algorithm)
        if not is_for_timestamps(extract_certs_for_validation(token["content"]).signer_cert):
            raise TimestampError(
                f"timestamp: the certificate of {self.url} is not for timestamps alone"
            )
        return token


class Authority:
    """A time-stamping authority that answers at a URL."""

    def __init__(self, url: str) -> None:
        """Prepare requests; nothing is sent yet.

        Args:
            url: An http or https address.

        Raises:
            TimestampError: The address is none.
        """
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise TimestampError(
                f"timestamp: {clean(url, 100)!r} is no http or https address"
            ) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TimestampError(f"timestamp: {clean(url, 100)!r} is no http or https address")
        if parts.username or parts.password:
            raise TimestampError("timestamp: an address with a password in it is not accepted")
        self.url = url

    def client(self) -> TimeStamper:
        """Return a client for the PDF's signature."""
        return _Client(self.url, timeout=_SECONDS)

    def stamp(self, data: bytes) -> bytes:
        """Return the authority's answer over bytes, checked, as a DER TimeStampResp.

        Raises:
            TimestampError: The authority cannot be reached, refuses, or answers something else.
        """
        digest = hashlib.sha256(data).digest()
        token = self.guard(self.client().async_timestamp(digest, "sha256"))
        answer = tsp.TimeStampResp({"status": {"status": "granted"}, "time_stamp_token": token})
        response = bytes(answer.dump())
        check(response, data, (), "timestamp")
        return response

    def guard(self, request: Coroutine[Any, Any, _Result]) -> _Result:
        """Run what asks the authority, with one clear line when it fails."""
        try:
            return run(request)
        except OSError as error:
            cause = error.__cause__ or error
            reason = clean(str(cause) or type(cause).__name__, 120)
            raise TimestampError(f"timestamp: no answer from {self.url} ({reason})") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TimestampError(
                f"timestamp: {self.url} does not answer as an RFC 3161 authority does"
            ) from error


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, also where an event loop runs already (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def load_roots(paths: Iterable[Path]) -> tuple[x509.Certificate, ...]:
    """Read certificates of authorities that the reader trusts.

    Raises:
        KeyFileError: A file is missing or holds no certificate in PEM form.
    """
    roots: list[x509.Certificate] = []
    for path in paths:
        roots += [to_asn1(entry) for entry in load_chain(path)]
    return tuple(roots)


def to_asn1(certificate: Any) -> x509.Certificate:
    """Return a certificate as the PDF library takes it."""
    return x509.Certificate.load(certificate.public_bytes(serialization.Encoding.DER))


def validation_context(
    roots: tuple[x509.Certificate, ...], extra: Iterable[x509.Certificate] = ()
) -> ValidationContext:
    """Return what certificates are checked against: given roots only, and no network."""
    return ValidationContext(trust_roots=list(roots), other_certs=list(extra), allow_fetching=False)


def check(
    response: bytes, data: bytes, roots: tuple[x509.Certificate, ...], where: str
) -> Timestamp:
    """Check a timestamp over bytes, at the present time.

    Args:
        response: DER of an RFC 3161 TimeStampResp.
        data: What it must be over.
        roots: Certificates that the reader trusts; without any, only the signature is checked.
        where: Named in the error.

    Raises:
        TimestampError: It is no timestamp, over other bytes, or its signature does not hold.
    """
    try:
        answer = tsp.TimeStampResp.load(response, strict=True)
        if answer["status"].dump() != _GRANTED:
            raise TimestampError(f"{where}: the authority did not grant it")
        return _check_token(answer["time_stamp_token"]["content"], data, roots, where)
    except TimestampError:
        raise
    # The parsers of ASN.1 and CMS meet hostile bytes here and have no common error.
    except Exception as error:
        raise TimestampError(f"{where}: is no valid RFC 3161 timestamp") from error


def _check_token(
    signed: cms.SignedData, data: bytes, roots: tuple[x509.Certificate, ...], where: str
) -> Timestamp:
    def imprint(algorithm: str) -> bytes:
        if algorithm not in _DIGESTS:
            raise TimestampError(f"{where}: uses {clean(algorithm, 20)}, which is not accepted")
        return hashlib.new(algorithm, data).digest()

    found = run(validate_tst_signed_data(signed, validation_context(roots), imprint))
    status = TimestampSignatureStatus(**found)
    if not status.intact:
        raise TimestampError(f"{where}: is over other bytes, or was changed")
    if not status.valid or not _plain(signed, status.signing_cert):
        raise TimestampError(f"{where}: its signature does not hold")
    if not is_for_timestamps(status.signing_cert):
        raise TimestampError(f"{where}: its authority's certificate is not for timestamps alone")
    return from_status(status, roots)


def is_for_timestamps(certificate: x509.Certificate) -> bool:
    """Whether a certificate is for timestamps and nothing else, and says so as critical.

    RFC 3161, 2.3 asks for it, and openssl as well. A key that signs other things too could be
    brought to sign something that reads as a time.
    """
    purposes = [
        extension
        for extension in certificate["tbs_certificate"]["extensions"]
        if extension["extn_id"].native == "extended_key_usage"
    ]
    return [(one["critical"].native, one["extn_value"].parsed.native) for one in purposes] == [
        (True, ["time_stamping"])
    ]


def _plain(signed: cms.SignedData, certificate: x509.Certificate) -> bool:
    """Whether what stands around the signature, and is not signed, is as RFC 3161 and 5652 ask."""
    (entry,) = signed["signer_infos"]
    algorithm = entry["digest_algorithm"]
    name = entry["sid"].chosen
    by_name = isinstance(name, cms.IssuerAndSerialNumber)
    return (
        signed["version"].native == "v3"
        and entry["version"].native == ("v1" if by_name else "v3")
        and (not by_name or name["issuer"].dump() == certificate.issuer.dump())
        and algorithm["parameters"].dump() in (b"", b"\x05\x00")
        and [one.dump() for one in signed["digest_algorithms"]] == [algorithm.dump()]
    )


def from_status(status: TimestampSignatureStatus, roots: tuple[x509.Certificate, ...]) -> Timestamp:
    """Return a timestamp from what the PDF library found; its signature must hold."""
    name = status.signing_cert.subject.native.get("common_name", "unnamed")
    trusted = bool(roots) and status.trusted
    return Timestamp(status.timestamp.astimezone(UTC), clean(name, 80), trusted)
