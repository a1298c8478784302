"""Listens for others to reach it, by TCP and UDP, and prints its address once it has reached itself, until ended."""

import socket
import sys
import threading
import time

PORT = int(sys.argv[1])
SECONDS = 240.0  # no longer, whatever becomes of who started it


def answer(udp: socket.socket) -> None:
    """Send back whatever comes."""
    while True:
        data, who = udp.recvfrom(512)
        udp.sendto(data, who)


def main() -> None:
    """Listen."""
    server = socket.create_server(("0.0.0.0", PORT))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", PORT))
    threading.Thread(target=answer, args=(udp,), daemon=True).start()
    own = socket.gethostbyname(socket.gethostname())
    socket.create_connection((own, PORT), timeout=5).close()
    print(own, flush=True)
    end = time.monotonic() + SECONDS
    server.settimeout(5)
    while time.monotonic() < end:
        try:
            server.accept()[0].close()
        except OSError:
            pass


main()
