"""The server's own certificate: renewed without a restart, and never half of a pair."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from sandpod_gateway.errors import StartError
from sandpod_gateway.http.certificates import Certificate
from sandpod_gateway.metrics import Metrics
from support.servers.certificates import make_certificate

ADDRESS = x509.IPAddress(ip_address("127.0.0.1"))


def pair(folder: Path, **how: int) -> tuple[Path, Path]:
    folder.mkdir()
    return make_certificate(folder, ADDRESS, **how)


@asynccontextmanager
async def served(certificate: Certificate) -> AsyncIterator[int]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def accepted(port: int, authority: Path) -> bool:
    """Return whether a client that trusts that authority alone connects."""
    try:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=ssl.create_default_context(cafile=str(authority))
        )
    except ssl.SSLCertVerificationError:
        return False
    writer.close()
    return True


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


async def test_renewed_certificate_is_served_to_new_connections(tmp_path: Path, metrics: Metrics) -> None:
    old, new = pair(tmp_path / "old"), pair(tmp_path / "new", hours=2)
    (chain, key) = [Path(shutil.copy(path, tmp_path)) for path in old]
    certificate = Certificate(chain, key, metrics)
    expiry = metrics.registry.get_sample_value("sandpod_certificate_expiry_timestamp_seconds")
    async with served(certificate) as port:
        assert await accepted(port, old[0])
        shutil.copy(new[0], chain)
        with pytest.raises(StartError, match="can't be used with the key"):
            await certificate.refresh()  # the key is still the old one
        assert await accepted(port, old[0])
        shutil.copy(new[1], key)
        await certificate.refresh()
        assert (await accepted(port, new[0]), await accepted(port, old[0])) == (True, False)
    renewed = metrics.registry.get_sample_value("sandpod_certificate_expiry_timestamp_seconds")
    assert expiry is not None
    assert renewed is not None
    assert renewed > expiry


async def test_certificate_whose_files_are_gone_or_broken_stays_in_use(tmp_path: Path, metrics: Metrics) -> None:
    chain, key = pair(tmp_path / "one")
    trusted = Path(shutil.copy(chain, tmp_path))
    certificate = Certificate(chain, key, metrics)
    async with served(certificate) as port:
        for text in (None, "", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
            chain.unlink(missing_ok=True)
            if text is not None:
                chain.write_text(text)
            with pytest.raises(StartError):
                await certificate.refresh()
            assert await accepted(port, trusted)


def test_certificate_that_cannot_be_used_is_refused_at_start_in_a_sentence(tmp_path: Path, metrics: Metrics) -> None:
    (chain, key), (_, foreign) = pair(tmp_path / "one"), pair(tmp_path / "two")
    for wrong in ((chain, foreign), (chain, tmp_path / "nowhere"), (key, key), (chain, chain)):
        with pytest.raises(StartError) as refused:
            Certificate(*wrong, metrics)
        assert "PEM files, of one pair" in refused.value.next_step
        assert refused.value.cause


def test_expired_certificate_is_used_and_said(
    tmp_path: Path, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    Certificate(*pair(tmp_path / "one", hours=-1), metrics)
    assert "clients refuse it until it is renewed" in caplog.text
