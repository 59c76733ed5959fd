"""A time-stamping authority on 127.0.0.1, for tests: it answers over HTTP as RFC 3161 says."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from asn1crypto import keys as asn1_keys
from asn1crypto import tsp
from asn1crypto import x509 as asn1_x509
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pyhanko.sign.timestamps.dummy_client import DummyTimeStamper

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
YEAR = datetime.timedelta(days=365)


# What RFC 3161 asks of an authority's certificate: (critical, purposes).
FOR_TIMESTAMPS = (True, (ExtendedKeyUsageOID.TIME_STAMPING,))


def _certificate(name, key, issuer, issuer_key, authority, until, purpose=FOR_TIMESTAMPS):
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 20 * YEAR)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if authority:
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    elif purpose is not None:
        critical, purposes = purpose
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=critical)
    return builder.sign(issuer_key, hashes.SHA256())


class LocalAuthority:
    """Root, certificate and key of an authority; `moment` is what its clock shows."""

    def __init__(
        self,
        folder: Path,
        name: str = "Test Authority",
        until=NOW + YEAR,
        purpose=FOR_TIMESTAMPS,
    ) -> None:
        root_key = rsa.generate_private_key(65537, 2048)
        key = rsa.generate_private_key(65537, 2048)
        root = _certificate(f"{name} Root", root_key, f"{name} Root", root_key, True, NOW + YEAR)
        leaf = _certificate(name, key, f"{name} Root", root_key, False, until, purpose)
        self.root = folder / f"{name}.pem"
        self.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))
        self.moment: datetime.datetime | None = None
        self.answer: bytes | None = None  # said instead of a timestamp
        self.encoding: str | None = None  # of the answer, as its header says
        self.status = 200
        self.requests = 0
        self.fails_after: int | None = None
        private = key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._key = asn1_keys.PrivateKeyInfo.load(private)
        self._leaf = asn1_x509.Certificate.load(leaf.public_bytes(serialization.Encoding.DER))

    def respond(self, body: bytes) -> bytes:
        """The reply to a request."""
        self.requests += 1
        if self.answer is not None:
            return self.answer
        stamper = DummyTimeStamper(
            self._leaf,
            self._key,
            [self._leaf],
            fixed_dt=self.moment or datetime.datetime.now(datetime.UTC),
        )
        return stamper.request_tsa_response(tsp.TimeStampReq.load(body)).dump()

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Answer at the URL that is given, until the block ends."""
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                late = authority.fails_after is not None
                failing = late and authority.requests >= authority.fails_after
                data = authority.respond(body)
                self.send_response(503 if failing else authority.status)
                self.send_header("Content-Type", "application/timestamp-reply")
                if authority.encoding is not None:
                    self.send_header("Content-Encoding", authority.encoding)
                self.end_headers()
                # The one that asked may have read enough.
                with suppress(ConnectionError):
                    self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Stay quiet."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
