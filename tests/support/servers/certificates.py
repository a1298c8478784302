"""Certificates for servers that tests start. Called by the tests of this folder only."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class _Signer:
    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def make_certificate(folder: Path, server: x509.GeneralName, *, hours: int = 1) -> tuple[Path, Path]:
    """Write a certificate for a server that signs itself, and its key; it expires after so many hours."""
    own = _signer("sandpod test")
    certificate = _signed(own, own, ca=True, server=server, hours=hours)
    return _written(folder, [certificate], own.key)


def make_chain(folder: Path, server: x509.GeneralName, *, another: Path | None = None) -> tuple[Path, Path, Path]:
    """Write the certificate of a root, and of a server that an authority between the two has signed, with its key.

    In the folder `another`, the same authority's certificate of another key for the same server.

    Returns:
        The files of the root, of the server's chain without it, and of the server's key.
    """
    root, between, last = (
        _signer(f"sandpod test {part} of {server.value}") for part in ("root", "intermediate", "server")
    )
    own = _signed(last, between, ca=False, server=server)
    chain, key = _written(folder, [own, _signed(between, root, ca=True)], last.key)
    if another is not None:
        last = _signer(f"sandpod test server of {server.value}")
        _written(another, [_signed(last, between, ca=False, server=server), _signed(between, root, ca=True)], last.key)
    (folder / "root.crt").write_bytes(_signed(root, root, ca=True).public_bytes(serialization.Encoding.PEM))
    return folder / "root.crt", chain, key


def _signer(name: str) -> _Signer:
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return _Signer(named, ec.generate_private_key(ec.SECP256R1()))


def _signed(
    own: _Signer, by: _Signer, *, ca: bool, server: x509.GeneralName | None = None, hours: int = 1
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own.name)
        .issuer_name(by.name)
        .public_key(own.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(hours=hours))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if server is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([server]), critical=False)
    return builder.sign(by.key, hashes.SHA256())


def _written(folder: Path, chain: list[x509.Certificate], key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(b"".join(each.public_bytes(pem) for each in chain))
    (folder / "tls.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder / "tls.crt", folder / "tls.key"
