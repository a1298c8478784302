"""A small web server beside a test, for what asks one as it would any other: package clients, a browser."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def web_server(answer: Callable[[str], tuple[str, bytes] | None]) -> Iterator[str]:
    """Serve until the block is left, and give the address.

    Args:
        answer: Returns the type and the content of a path, or None where there is nothing. It runs in a thread.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answer(self.path)
            kind, data = found or ("text/plain", b"")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
