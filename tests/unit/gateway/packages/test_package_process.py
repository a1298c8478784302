"""Programs that pip and npm run as: what of the gateway and its machine they can reach."""

import asyncio
import json
import os
import resource
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import pytest

from sandpod_gateway.packages.process import guard, run_program
from sandpod_gateway.packages.settings import PackageSettings

SETTINGS = PackageSettings(max_bytes=2**20, timeout=20)
MEMORY: Final = ("RLIMIT_AS", 2**30)

# Says of each attempt, a piece of Python, how it ended.
TRIES = """
import json, os, sys
outcomes = {}
for text in json.loads(sys.argv[1]):
    try:
        outcomes[text] = str(eval(text))
    except OSError as error:
        outcomes[text] = type(error).__name__
print(json.dumps(outcomes))
"""


async def outcomes(scratch: Path, *attempts: str) -> list[str]:
    command = [sys.executable, "-I", "-c", TRIES, json.dumps(attempts)]
    status, output = await run_program(command, scratch, SETTINGS, memory=MEMORY, files=64)
    assert status == 0, output
    found = json.loads(output)
    return [found[attempt] for attempt in attempts]


async def test_neither_files_nor_memory_nor_environment_of_the_gateway_are_in_reach(tmp_path: Path) -> None:
    scratch, token = tmp_path / "scratch", tmp_path / "token"
    scratch.mkdir()
    token.write_text("secret")
    gateway = os.getpid()
    attempts = [
        f"open({str(token)!r}).read()",
        f"open({str(token)!r}, 'w')",
        f"os.listdir({str(tmp_path)!r})",
        "open('/etc/shadow')",
        "os.listdir('/var/run')",
        *(f"open('/proc/{gateway}/{name}', 'rb').read(1)" for name in ("environ", "maps", "mem")),
        f"os.kill({gateway}, 0)",
    ]
    assert await outcomes(scratch, *attempts) == ["PermissionError"] * len(attempts)
    assert token.read_text() == "secret"
    assert await outcomes(scratch, "open('mine', 'w').write('x')", "open('mine').read()") == ["1", "x"]


async def test_environment_holds_nothing_of_the_gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SANDPOD_SECRET", "secret")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    [names] = await outcomes(tmp_path, "' '.join(sorted(os.environ))")
    assert names == "HOME HTTPS_PROXY LANG PATH TMPDIR"


async def test_limits_of_the_kernel_hold(tmp_path: Path) -> None:
    limits = (
        *(resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE),
        *(resource.RLIMIT_CPU, resource.RLIMIT_CORE),
    )
    attempts = [f"__import__('resource').getrlimit({limit})[1]" for limit in limits]
    assert await outcomes(tmp_path, *attempts) == [str(each) for each in (2**30, 64, 2**20, 20, 0)]


async def test_all_that_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    # A pipe with a name is at its end when nobody has it open to write.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = "open('pipe', 'w').write('x'); import time; time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-u', '-c', \"{child}\"])"
    command = [sys.executable, "-I", "-c", code]
    running = asyncio.create_task(run_program(command, tmp_path, SETTINGS, memory=MEMORY, files=64))
    with await asyncio.to_thread(pipe.open, "rb") as file:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with asyncio.timeout(60):
            await asyncio.to_thread(file.read)


def test_addresses_of_this_machine_and_of_clouds_are_refused_in_every_way_of_writing_them() -> None:
    refused = [ip_network(each) for each in guard("https://pypi.org/simple")["refused"]]

    def is_refused(address: str) -> bool:
        return any(ip_address(address) in network for network in refused)

    for address in (
        *("127.0.0.1", "0.0.0.0", "169.254.169.254", "100.100.100.200", "168.63.129.16", "::1", "::", "fe80::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"),
    ):
        assert is_refused(address), address
    for address in ("10.0.0.1", "192.168.1.1", "151.101.0.223", "2a04:4e42::223", "64:ff9b::9765:df", "fd00::1"):
        assert not is_refused(address), address


def test_index_and_proxies_are_trusted_by_name_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy:3128")
    assert guard("http://user:word@127.0.0.1/simple")["trusted"] == ["127.0.0.1:80", "proxy:3128"]
    assert "secret" not in str(guard("https://pypi.org/simple"))
