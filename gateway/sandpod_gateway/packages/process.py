"""Runs pip and npm as processes: in a folder of their own, with few of the gateway's rights (`limited.py`), watched."""

import asyncio
import contextlib
import ctypes
import json
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.settings import PackageSettings

_LIMITED: Final = Path(__file__).with_name("limited.py")
_PR_SET_DUMPABLE: Final = 4
_LOOK_EVERY: Final = 0.25  # seconds between looks at how much has been downloaded
_OUTPUT_TAIL: Final = 256 * 1024  # bytes
_PORTS: Final = {"http": 80, "https": 443}

# Loopback, link-local, multicast, reserved, and the metadata addresses of clouds: Alibaba, Azure, Oracle; IPv6 of AWS
# and Google.
_V4: Final = (
    *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"),
    *("100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
)
_V6: Final = ("::/127", "fe80::/10", "ff00::/8", "fd00:ec2::254/128", "fd20:ce::254/128")
# IPv4 addresses written as IPv6: mapped, and by way of NAT64 (RFC 6052).
_EMBEDDED: Final = [int(IPv6Address(prefix)) for prefix in ("::ffff:0:0", "64:ff9b::")]
_REFUSED: Final = [
    *(*_V4, *_V6),
    *(
        str(IPv6Network((prefix + int(network.network_address), 96 + network.prefixlen)))
        for prefix in _EMBEDDED
        for network in map(IPv4Network, _V4)
    ),
]
_PASSED_ON: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


logger = logging.getLogger(__name__)


def shield_memory() -> None:
    """Keep processes of the same user from reading this one's memory and environment, keys included.

    pip and npm could read them where the kernel has no Landlock, and so could any program of a sandbox without
    isolation. Processes that this one starts are not shielded.
    """
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        logger.warning("other processes of this user can read the server's memory: %s", os.strerror(ctypes.get_errno()))


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """Yield a folder that is removed when the block is left."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="sandpod-packages-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def run_program(
    command: list[str],
    scratch: Path,
    settings: PackageSettings,
    *,
    memory: tuple[str, int],
    files: int,
    copies: int = 1,
    threads: int = 1,
    readable: Collection[str] = (),
) -> tuple[int | None, str]:
    """Run a program to its end with few rights, and return its status and the end of its output.

    It works in `scratch`, the only folder that it may write to, and reads the system's files, Python's and `readable`.
    `memory` is the kernel's limit and its bytes, `files` the most open files; it writes what it downloads `copies`
    times, and at most `threads` of it are busy at once. Raises quota_exceeded, timeout.
    """
    bounds = {
        memory[0]: memory[1],
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": threads * math.ceil(settings.timeout),
        "RLIMIT_FSIZE": settings.max_bytes,
        "RLIMIT_NOFILE": files,
    }
    ca_file = [str(settings.ca_file)] if settings.ca_file is not None else []
    rights = {"limits": bounds, "readable": [*readable, *ca_file], "writable": [str(scratch)]}
    try:
        async with asyncio.timeout(settings.timeout):
            process = await _started(command, rights, scratch)
            try:
                output = await _watched(process, scratch, copies * settings.max_bytes)
            finally:
                # Its session is a process group: what it has started ends with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    except TimeoutError as error:
        message = "The packages were not resolved and downloaded in time."
        step = "Try again: what was downloaded is kept; or ask for fewer packages."
        raise SandpodError(ErrorCode.TIMEOUT, message, next_step=step) from error
    if process.returncode == -signal.SIGXFSZ:
        raise Failure.TOO_LARGE.error(settings.max_bytes)
    return process.returncode, output


async def _started(command: list[str], rights: dict[str, Any], scratch: Path) -> asyncio.subprocess.Process:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_LIMITED), json.dumps(rights), *command),
        env={**passed, "PATH": os.defpath, "HOME": str(scratch), "TMPDIR": str(scratch), "LANG": "C.UTF-8"},
        cwd=scratch,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


async def _watched(process: asyncio.subprocess.Process, scratch: Path, max_bytes: int) -> str:
    """Return the end of a process's output when it ends. Raises quota_exceeded: it has written too much."""
    reading = asyncio.create_task(_tail(process))
    try:
        while not (await asyncio.wait({reading}, timeout=_LOOK_EVERY))[0]:
            if await asyncio.to_thread(_size, scratch) > max_bytes:
                raise Failure.TOO_LARGE.error(max_bytes)
    finally:
        reading.cancel()
    await process.wait()
    return reading.result()


async def _tail(process: asyncio.subprocess.Process) -> str:
    kept = b""
    while process.stdout is not None and (piece := await process.stdout.read(64 * 1024)):
        kept = (kept + piece)[-_OUTPUT_TAIL:]
    return kept.decode("utf-8", "replace")


def _size(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed or removed meanwhile
                total += (Path(where) / name).lstat().st_size
    return total


def guard(url: str) -> dict[str, list[str]]:
    """Return which addresses a process may not connect to, whatever an index, a registry or a package names.

    The process checks that itself, after a name was resolved: `refused` are networks, `trusted` names and ports that
    are exempt. Those are the configured index or registry at `url`, which may be anywhere, and the proxies of the
    environment, which resolve the names themselves.
    """
    proxies = [value if "://" in value else f"http://{value}" for value in getproxies_environment().values() if value]
    places = [(parts.hostname, parts.port or _PORTS.get(parts.scheme)) for parts in map(urlsplit, (url, *proxies))]
    return {"refused": _REFUSED, "trusted": sorted(f"{host}:{port}" for host, port in places if host and port)}
