"""Certificates and keys by which Flower's processes know each other.

A federation has an authority of its own, which signs the SuperLink's certificate and that of each
SuperNode's own interface on its machine. Each SuperNode proves itself by a key on the curve P-384,
which the SuperLink is told before.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from dpfedadamw.storage.disk import PRIVATE_MODE, PUBLIC_MODE, write_atomically

_CURVE = ec.SECP384R1
# The authority's key is never written, so that no certificate can be made again: ten years.
_DAYS = 3652
LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Authority:
    """Signs certificates; its key is in memory alone.

    Attributes:
        key: Signs.
        certificate: By which others know it.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> Authority:
        """An authority that nobody knew before."""
        key = ec.generate_private_key(_CURVE())
        name = _name("dpfedadamw federation")
        builder = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(True, 0), True)
            .add_extension(_usage(signs_certificates=True), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    def write(self, path: Path) -> None:
        """Write its certificate, which is public."""
        write_atomically(path, self.certificate.public_bytes(Encoding.PEM), PUBLIC_MODE)

    def certify(self, hosts: Sequence[str], certificate: Path, key: Path) -> None:
        """Write the certificate of a server that is reached by these names, and its key.

        Args:
            hosts: Names and addresses.
            certificate: The certificate's new file.
            key: The key's new file, mode 0600.
        """
        own = ec.generate_private_key(_CURVE())
        authority = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority.value)
        builder = (
            _builder(_name(hosts[0]), self.certificate.subject, own)
            .add_extension(x509.BasicConstraints(False, None), True)
            .add_extension(x509.SubjectAlternativeName([_alternative(one) for one in hosts]), False)
            .add_extension(issuer, False)
        )
        signed = builder.sign(self.key, hashes.SHA256())
        write_atomically(certificate, signed.public_bytes(Encoding.PEM), PUBLIC_MODE)
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomically(key, own.private_bytes(*form), PRIVATE_MODE)


def make_node_key(path: Path) -> None:
    """Draw a SuperNode's key into a new file of mode 0600, the public one into PATH.pub."""
    key = ec.generate_private_key(_CURVE())
    form = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_atomically(path, key.private_bytes(*form), PRIVATE_MODE)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(path.with_suffix(".pub"), public + b"\n", PUBLIC_MODE)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of several machines differ.
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
