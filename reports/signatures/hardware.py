"""Keys in hardware: PKCS#11 tokens, smart cards and security modules, through pyHanko.

The key never leaves the token; this package hands it digests to sign. Named by a PKCS#11 address
(RFC 7512): pkcs11:token=NAME;object=LABEL?module-path=/path/to/module.so
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, NoReturn
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import KeyFileError
from reports.files import clean
from reports.signatures.certificates import Chain, check_chain

MODULE_VARIABLE = "DPFEDADAMW_PKCS11_MODULE"
_KNOWN = ("token", "object", "module-path")


class HardwareKey(ec.EllipticCurvePrivateKey):
    """A private key that signs inside a token."""

    def __init__(self, handle: Any, public: ec.EllipticCurvePublicKey) -> None:
        """Keep what the token lends.

        Args:
            handle: python-pkcs11's private key object, its session open.
            public: The public half.
        """
        self._handle, self._public = handle, public

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """Return an ECDSA signature with SHA-256 over data, DER.

        Raises:
            KeyFileError: Another algorithm is asked for, or the token does not sign.
        """
        import pkcs11
        from pkcs11.util.ec import encode_ecdsa_signature

        if not isinstance(signature_algorithm.algorithm, hashes.SHA256):
            raise KeyFileError("pkcs11: only ECDSA with SHA-256 is used")
        # The digest is taken here: few tokens offer ECDSA with hashing.
        digest = hashlib.sha256(bytes(data)).digest()
        try:
            raw = self._handle.sign(digest, mechanism=pkcs11.Mechanism.ECDSA)
        except pkcs11.PKCS11Error as error:
            raise KeyFileError(f"pkcs11: the token does not sign ({_said(error)})") from error
        return bytes(encode_ecdsa_signature(raw))

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """Return the public half."""
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        """P-256."""
        return self._public.curve

    @property
    def key_size(self) -> int:
        """256 bits."""
        return self._public.key_size

    def exchange(self, *_: Any, **__: Any) -> bytes:
        """Refused: this key signs only."""
        return self._stays()

    def private_numbers(self) -> ec.EllipticCurvePrivateNumbers:
        """Refused: the key stays in its token."""
        return self._stays()

    def private_bytes(self, *_: Any, **__: Any) -> bytes:
        """Refused: the key stays in its token."""
        return self._stays()

    def __copy__(self) -> HardwareKey:
        """Return the key itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> HardwareKey:
        """Return the key itself."""
        return self

    def _stays(self) -> NoReturn:
        raise KeyFileError("pkcs11: the private key cannot leave its token")


def open_key(address: str, pin: str | None) -> tuple[HardwareKey, Chain]:
    """Open a token and find a P-256 key on it.

    Args:
        address: A PKCS#11 address with token and object.
        pin: The token's PIN, if it needs one.

    Returns:
        The key, and its certificate if the token holds one under the same label, else nothing.

    Raises:
        KeyFileError: The address, the module, the token, the PIN or the key is not usable.
    """
    try:
        import pkcs11
    except ImportError as error:
        raise KeyFileError(
            "pkcs11: not installed; pip install 'dpfedadamw[pkcs11]' to use hardware keys"
        ) from error
    fields = parse_address(address)
    where = f"pkcs11:token={fields['token']};object={fields['object']}"
    module = fields.get("module-path") or os.environ.get(MODULE_VARIABLE)
    if not module:
        raise KeyFileError(
            f"{where}: give ?module-path=/path/to/module.so, or set {MODULE_VARIABLE}"
        )
    try:
        session = _open(module, fields["token"], pin)
        handle = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, label=fields["object"])
        chain = _certificates(session, fields["object"])
        public = _public(session, fields["object"], chain)
    except pkcs11.PKCS11Error as error:
        hint = "" if pin else "; no PIN was given (DPFEDADAMW_PIN)"
        raise KeyFileError(f"{where}: {_said(error)}{hint}") from error
    except (OSError, RuntimeError) as error:
        raise KeyFileError(f"{where}: {module} is no usable PKCS#11 module") from error
    if chain:
        check_chain(chain, public, where)
    return HardwareKey(handle, public), chain


def _open(module: str, token: str, pin: str | None) -> Any:
    """Open a session; a token that this process has unlocked already is not unlocked again."""
    import pkcs11
    from pyhanko.config.pkcs11 import TokenCriteria
    from pyhanko.sign.pkcs11 import open_pkcs11_session

    criteria = TokenCriteria(label=token)
    try:
        return open_pkcs11_session(module, token_criteria=criteria, user_pin=pin)
    except pkcs11.UserAlreadyLoggedIn:
        return open_pkcs11_session(module, token_criteria=criteria)


def _certificates(session: Any, label: str) -> Chain:
    import pkcs11

    found = session.get_objects(
        {
            pkcs11.Attribute.CLASS: pkcs11.ObjectClass.CERTIFICATE,
            pkcs11.Attribute.LABEL: label,
        }
    )
    ders = [bytes(entry[pkcs11.Attribute.VALUE]) for entry in found]
    return tuple(x509.load_der_x509_certificate(der) for der in ders[:1])


def _public(session: Any, label: str, chain: Chain) -> ec.EllipticCurvePublicKey:
    """Return the public half from the token's certificate, or else from its public key object.

    Raises:
        KeyFileError: It is no P-256 key.
    """
    import pkcs11
    from pkcs11.util.ec import encode_ec_public_key

    if chain:
        key: Any = chain[0].public_key()
    else:
        found = session.get_key(pkcs11.ObjectClass.PUBLIC_KEY, label=label)
        try:
            key = serialization.load_der_public_key(encode_ec_public_key(found))
        except (ValueError, KeyError, pkcs11.PKCS11Error) as error:
            raise KeyFileError(f"pkcs11: {label} is no P-256 key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise KeyFileError(f"pkcs11: {label} is no P-256 key")
    return key


def _said(error: Exception) -> str:
    """Return a token's error in words; most come without any."""
    return (
        clean(str(error), 160) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    )


def parse_address(address: str) -> dict[str, str]:
    """Return the parts of a PKCS#11 address that are used: token, object, module-path.

    Raises:
        KeyFileError: It lacks token or object, or has other parts, such as a PIN in the open.
    """
    body, _, query = address.removeprefix("pkcs11:").partition("?")
    fields: dict[str, str] = {}
    for part in [*body.split(";"), *query.split("&")]:
        if not part:
            continue
        name, _, value = part.partition("=")
        if name not in _KNOWN or not value:
            raise KeyFileError(f"pkcs11: {name!r} is not used; give {', '.join(_KNOWN)}")
        fields[name] = unquote(value)
    for name in ("token", "object"):
        if name not in fields:
            raise KeyFileError(f"pkcs11: the address lacks {name}=…")
    return fields
