"""An HTTPS server beside a test that the cluster's API server can reach, for what it asks: metrics, admission.

Called by the other modules of this folder. It trusts nobody and asks for no credentials: what it answers is no secret.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509

from support.cluster.reading import read
from support.servers.certificates import make_certificate

Answer = Callable[[str, bytes], dict[str, Any] | None]


@dataclass(frozen=True)
class Served:
    """Where the server is, and the certificate that it signed itself, as PEM."""

    host: str
    port: int
    certificate: bytes


@contextmanager
def https_server(answer: Answer, folder: Path, name: str = "") -> Iterator[Served]:
    """Serve on the address of this machine that the nodes reach, until the block is left.

    Args:
        answer: Returns the JSON object for a path and a request's body, or None where there is nothing. It runs in a
            thread of its own for each request.
        folder: Where the certificate is written.
        name: The DNS name that the certificate is for, instead of the address.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer one request."""
            found = answer(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            body = json.dumps(found or {}).encode()
            # Who asked may have waited long enough.
            with suppress(OSError):
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def do_POST(self) -> None:
            """Answer one request."""
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing of the API server's looks."""

    host = _address_for_the_cluster()
    certificate, key = make_certificate(folder, x509.DNSName(name) if name else x509.IPAddress(ip_address(host)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer((host, 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        # As a daemon: should the API server not be there to forget it, the tests end all the same.
        threading.Thread(target=server.serve_forever, name="https-server", daemon=True).start()
        try:
            yield Served(host, server.server_port, certificate.read_bytes())
        finally:
            server.shutdown()


def _address_for_the_cluster() -> str:
    """Return the address of this machine that the nodes reach: the one that it reaches them from."""
    addresses = read("nodes", "")["items"][0]["status"]["addresses"]
    node = next(each["address"] for each in addresses if each["type"] == "InternalIP")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, 9))
        address: str = probe.getsockname()[0]
        return address
