"""The sockets that the server listens on."""

import socket

from sandpod_gateway.cli import serve


def test_connections_do_not_hold_short_answers_back() -> None:
    with serve._listen("127.0.0.1", 0, flag="--port") as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
