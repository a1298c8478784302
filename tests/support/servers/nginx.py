"""nginx in front of gateways, with the settings of examples/proxies/nginx.conf and a real chain of certificates."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509

from support.ports import free_port
from support.servers.certificates import make_chain

EXAMPLE: Final = Path(__file__).resolve().parents[3] / "examples" / "proxies" / "nginx.conf"
START_SECONDS: Final = 30.0

MAIN: Final = """
daemon off; master_process off; pid nginx.pid; error_log stderr error;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    {server}
}}
"""
"""What has the servers, of an nginx that writes into its own folder alone."""


@dataclass(frozen=True)
class Proxy:
    """A running nginx.

    Attributes:
        address: Where it serves over HTTPS.
        root: The root of its certificate's chain.
        trust: Trusts that root, and nothing else.
        folder: Where it would keep what it buffers.
    """

    address: str
    root: Path
    trust: ssl.SSLContext
    folder: Path


def find_nginx() -> str:
    """Return the path of the system's nginx; the test is left out without one, and fails where CI is set."""
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        assert "CI" not in os.environ, "no nginx on PATH"
        pytest.skip("no nginx on PATH: nothing was tried behind a proxy")
    return found


def configuration(
    listen: str,
    host: str,
    servers: tuple[str, ...],
    pair: tuple[Path, Path],
    *,
    patience: str = "1h",
    trusted: tuple[str, Path] | None = None,
) -> str:
    """Return the example's settings for those servers; `pair` is the chain of `host` and its key, else see `nginx`."""
    upstream = "".join(f"server {server}; " for server in servers)
    text = re.sub(r"(?:\s*server 10\.[^;]+;)+", f" {upstream}", EXAMPLE.read_text(encoding="utf-8"))
    for old, new in (
        ("listen 443", f"listen {listen}"),
        ("sandpod.example.com", host),
        ("/etc/nginx/tls/chain.pem", str(pair[0])),
        ("/etc/nginx/tls/key.pem", str(pair[1])),
        ("1h;", f"{patience};"),
    ):
        assert old in text
        text = text.replace(old, new)
    if trusted is not None:
        name, file = trusted
        verified = f"proxy_ssl_verify on; proxy_ssl_name {name}; proxy_ssl_trusted_certificate {file}"
        text = text.replace("proxy_pass http://sandpod;", f"proxy_pass https://sandpod; {verified};")
    return MAIN.format(server=text)


@contextmanager
def nginx(
    folder: Path,
    *servers: str,
    patience: str = "1h",
    address: str = "127.0.0.1",
    port: int | None = None,
    trusted: tuple[str, Path] | None = None,
) -> Iterator[Proxy]:
    """Serve those servers, each `address:port`, as the example does; nginx waits for them as long as `patience`.

    They use TLS where `trusted` is given: the name that their certificate must be for, and the root to trust. nginx
    serves at this machine's `address`, under the name localhost where that is the usual one, and a free port.
    """
    program, port = find_nginx(), port or free_port(address)
    folder.mkdir(exist_ok=True)
    host = "localhost" if address == "127.0.0.1" else address
    own = x509.DNSName(host) if host != address else x509.IPAddress(ip_address(address))
    root, chain, key = make_chain(folder, own)
    text = configuration(f"{address}:{port}", host, servers, (chain, key), patience=patience, trusted=trusted)
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    with subprocess.Popen([program, "-p", str(folder), "-c", "nginx.conf"]) as process:
        try:
            _await(process, address, port)
            yield Proxy(f"https://{host}:{port}", root, ssl.create_default_context(cafile=str(root)), folder)
        finally:
            process.terminate()


def _await(process: subprocess.Popen[bytes], address: str, port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection((address, port), timeout=1):
            return
        time.sleep(0.02)
    raise AssertionError(f"nginx does not listen; its status is {process.returncode}")
