"""What can be reached. Places are host:port; all are tried at once, so that it takes seconds."""

import errno
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sandpod_gateway.verify.inside.tools import arguments, attempt, tell

SECONDS = 3.0
# A question for the name kubernetes.default.svc.cluster.local, which any name server answers.
QUESTION = (
    bytes.fromhex("123401000001000000000000")
    + b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\0"
    + bytes.fromhex("00010001")
)
RAW = {
    "raw ICMP": (socket.AF_INET, socket.SOCK_RAW, 1),
    "raw IP": (socket.AF_INET, socket.SOCK_RAW, 255),
    "raw ICMPv6": (socket.AF_INET6, socket.SOCK_RAW, 58),
    "packet": (17, socket.SOCK_RAW, 0),
    "cooked packet": (17, socket.SOCK_DGRAM, 0),
    "vsock": (40, socket.SOCK_STREAM, 0),
}


def split(place: str) -> "tuple[str, int, int]":
    """Return host, port and family."""
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    return host, int(port), socket.AF_INET6 if ":" in host else socket.AF_INET


def name_of(error: OSError) -> str:
    """Return the name of an error."""
    return "timeout" if isinstance(error, TimeoutError) else errno.errorcode.get(error.errno or 0, type(error).__name__)


def tcp(place: str) -> str:
    """Try to connect."""
    host, port, family = split(place)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as made:
            made.settimeout(SECONDS)
            made.connect((host, port))
    except OSError as error:
        return name_of(error)
    return "open"


def udp(place: str) -> str:
    """Send a question and wait for whatever answers."""
    host, port, family = split(place)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as made:
            made.settimeout(SECONDS)
            made.connect((host, port))
            made.send(QUESTION)
            made.recv(512)
    except OSError as error:
        return name_of(error)
    return "open"


def ping(host: str) -> str:
    """Send an echo request by the kind of socket that needs no capability, or else by a raw one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    protocol, kind = (58, 128) if family == socket.AF_INET6 else (1, 8)
    body = struct.pack(">BBHHH", kind, 0, 0, os.getpid() & 0xFFFF, 1) + b"sandpod!"
    words = struct.unpack(">%dH" % (len(body) // 2), body)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    body = body[:2] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + body[4:]
    said = ""
    for type_ in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            with socket.socket(family, type_, protocol) as made:
                made.settimeout(SECONDS)
                made.connect((host, 0))
                made.send(body)
                made.recv(512)
        except OSError as error:
            said = said or name_of(error)
        else:
            return "open"
    return said


def raw(kind: "tuple[int, int, int]") -> str:
    """Try to have a socket of a kind that can forge packets or reach the kernel's rarer code."""
    return attempt(lambda: socket.socket(*kind).close())


def main() -> None:
    """Tell it."""
    wanted: Any = arguments()
    acts = {"tcp": tcp, "udp": udp, "ping": ping}
    tries = [(way, place) for way in acts for place in wanted.get(way, [])]
    with ThreadPoolExecutor(max(len(tries), 1)) as pool:
        answers = list(pool.map(lambda each: acts[each[0]](each[1]), tries))
    found: Any = {way: {} for way in acts}
    for (way, place), answer in zip(tries, answers):
        found[way][place] = answer
    found["raw"] = {name: raw(kind) for name, kind in RAW.items()}
    found["name"] = attempt(socket.getaddrinfo, "kubernetes.default.svc.cluster.local", 443)
    found["interfaces"] = [name for _, name in socket.if_nameindex()]
    tell(found)


main()
