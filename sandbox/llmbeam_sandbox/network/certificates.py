"""The certificate authority of a running proxy, and the certificates that it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import CertificateBuilder, Name

LIFETIME = timedelta(days=30)
_SKEW = timedelta(days=1)


class CertificateAuthority:
    """Signs a certificate for any host; only clients that trust `file` accept it.

    The extensions are those that OpenSSL requires under `X509_STRICT`, the default of Python 3.13.

    Args:
        directory: Directory of the certificates; the key of the authority is never written.
    """

    def __init__(self, directory: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._directory = directory
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("llmbeam sandbox, not a real authority")
        self._key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
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
        builder = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(self._key_id, critical=False)
        )
        self.file = directory / "ca.pem"
        self.file.write_bytes(self._signed(builder))

    def context(self, host: str, *, has_http2: bool = False) -> ssl.SSLContext:
        """Returns the TLS context of a server for `host`.

        Args:
            host: Name of the host.
            has_http2: Whether clients may choose HTTP/2, as those of gRPC do, besides HTTP/1.1.
        """
        if host not in self._contexts:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate(host))
            context.set_alpn_protocols(["h2", "http/1.1"] if has_http2 else ["http/1.1"])
            self._contexts[host] = context
        return self._contexts[host]

    def _certificate(self, host: str) -> Path:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_id)
        server = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
        builder = (
            # A common name holds 64 characters; clients read the alternative name.
            _builder(_name(host[:64]), self._name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(server, critical=False)
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._directory / f"{len(self._contexts)}.pem"
        file.write_bytes(private + self._signed(builder))
        return file

    def _signed(self, builder: CertificateBuilder) -> bytes:
        from cryptography.hazmat.primitives import hashes, serialization

        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def _builder(subject: Name, issuer: Name, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + LIFETIME)
    )
