"""Keys, what they sign, and the certificates of a federation."""

from __future__ import annotations

import datetime
import ipaddress
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from dpfedadamw.extensions.deployment.certificates import Authority, make_node_key
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.identity import (
    INTRODUCTION,
    PIN,
    UPLOAD,
    is_signed,
    make_key,
    public_of,
    read_key,
    sealed,
    sign,
)


def test_a_key_is_its_owners_alone_and_read_again_as_it_was_made(tmp_path):
    path = tmp_path / "key"
    public = make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_of(read_key(path)) == public
    assert len(bytes.fromhex(public)) == 32
    assert make_key(tmp_path / "other") != public


@pytest.mark.parametrize(
    "content", [None, b"", b"zz" * 32, b"00" * 31, b"00" * 33, b"\xff" * 64, b"00" * 32 + b"x"]
)
def test_what_is_no_key_is_refused_in_one_line(content, tmp_path):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(DeploymentError, match="is not a readable signing key of a client"):
        read_key(tmp_path / "key")


def test_a_signature_holds_for_one_key_one_meaning_and_the_same_values_in_any_order(tmp_path):
    public, other = make_key(tmp_path / "one"), make_key(tmp_path / "other")
    said = {"run": "a", "round": 1}
    signature = sign(read_key(tmp_path / "one"), UPLOAD, said)
    assert is_signed(public, signature, UPLOAD, {"round": 1, "run": "a"})
    for refused in (
        (other, signature, UPLOAD, said),
        (public, signature, PIN, said),
        (public, signature, INTRODUCTION, said),
        (public, signature, UPLOAD, {**said, "round": 2}),
        (public, signature, UPLOAD, {**said, "more": None}),
        (public, signature[:-1], UPLOAD, said),
        (public, b"", UPLOAD, said),
        ("zz", signature, UPLOAD, said),
        (public[:-2], signature, UPLOAD, said),
    ):
        assert not is_signed(*refused)
    assert len({UPLOAD, PIN, INTRODUCTION}) == 3


def test_a_seal_is_the_same_for_one_key_and_content_alone(tmp_path):
    keys = []
    for name in ("one", "other"):
        make_key(tmp_path / name)
        keys.append(read_key(tmp_path / name))
    assert sealed(keys[0], b"records") == sealed(read_key(tmp_path / "one"), b"records")
    found = {sealed(key, content) for key in keys for content in (b"records", b"others")}
    assert len(found) == 4
    assert {len(bytes.fromhex(one)) for one in found} == {32}


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """An authority, and the folder of a server that it certified."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority.new()
    authority.write(folder / "ca.crt")
    authority.certify(
        ("link.example.org", "203.0.113.7", "::1"), folder / "server.crt", folder / "server.key"
    )
    return authority, folder


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def test_an_authority_signs_certificates_and_no_other_authority(certified):
    authority, folder = certified
    found = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    assert found == authority.certificate
    assert found.subject == found.issuer
    basic = extension(found, x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = extension(found, x509.KeyUsage)
    allowed = {
        name
        for name in (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
            "key_agreement", "key_cert_sign", "crl_sign",
        )
        if getattr(usage.value, name)
    }  # fmt: skip
    assert (usage.critical, allowed) == (True, {"digital_signature", "key_cert_sign", "crl_sign"})
    assert isinstance(found.public_key().curve, ec.SECP384R1)
    assert stat.S_IMODE((folder / "ca.crt").stat().st_mode) == 0o644
    # Nobody can sign by it later.
    assert sorted(one.name for one in folder.iterdir()) == ["ca.crt", "server.crt", "server.key"]


def test_a_server_is_certified_by_its_names_and_is_no_authority(certified):
    authority, folder = certified
    found = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    found.verify_directly_issued_by(authority.certificate)
    names = extension(found, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org"]
    addresses = [ipaddress.ip_address(one) for one in ("203.0.113.7", "::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    (name,) = found.subject
    assert name.value == "link.example.org"
    basic = extension(found, x509.BasicConstraints)
    assert (basic.critical, basic.value.ca) == (True, False)
    issuer = extension(found, x509.AuthorityKeyIdentifier).value.key_identifier
    assert issuer == extension(authority.certificate, x509.SubjectKeyIdentifier).value.digest
    key = load_pem_private_key((folder / "server.key").read_bytes(), None)
    assert key.public_key() == found.public_key()
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "server.crt").stat().st_mode) == 0o644


def test_a_certificate_holds_a_little_before_it_is_made_since_clocks_differ(certified):
    authority, folder = certified
    server = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    for found in (authority.certificate, server):
        early = datetime.datetime.now(datetime.UTC) - found.not_valid_before_utc
        assert datetime.timedelta(minutes=5) <= early < datetime.timedelta(minutes=10)


def test_a_name_that_is_longer_than_a_certificates_may_be_is_cut_there_alone(certified, tmp_path):
    authority, _ = certified
    host = "a" * 60 + ".example.org"
    authority.certify((host,), tmp_path / "crt", tmp_path / "key")
    found = x509.load_pem_x509_certificate((tmp_path / "crt").read_bytes())
    (name,) = found.subject
    assert name.value == host[:64]
    names = extension(found, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [host]


def test_a_supernodes_key_is_its_owners_alone_and_its_public_part_is_beside_it(tmp_path):
    make_node_key(tmp_path / "key")
    key = load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    public = (tmp_path / "key.pub").read_bytes()
    assert load_ssh_public_key(public) == key.public_key()
    assert isinstance(key.curve, ec.SECP384R1)
    assert public.count(b"\n") == 1
    assert public.endswith(b"\n")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "key.pub").stat().st_mode) == 0o644
