"""Runs pip for another Python than this one; a program with few rights that nothing imports.

pip can be given the Python to download for, but evaluates environment markers (`python_version < "3.12"`) for its own.
`--only-binary` does not apply to direct URLs, so such a requirement is refused before anything is fetched. Nothing can
be built: no program may be started.
"""

import email
import email.message
import ipaddress
import json
import logging
import os
import re
import socket
import sys
from typing import Any

import pip
from pip._internal.cli.main import main
from pip._internal.exceptions import InstallationError
from pip._internal.network import session
from pip._internal.resolution.resolvelib.factory import Factory
from pip._vendor.packaging import markers

job = json.loads(sys.argv[1])
refused = [ipaddress.ip_network(each) for each in job["guard"]["refused"]]
trusted = frozenset(job["guard"]["trusted"])

environment = {**markers.default_environment(), **job["markers"]}
make_requirements = Factory._make_requirements_from_install_req  # noqa: SLF001 - there is no other place to ask at
getaddrinfo = socket.getaddrinfo
message_from_string = email.message_from_string


def requirements_of_the_index(self: Any, ireq: Any, requested_extras: Any) -> Any:
    """Make requirements as pip does, but none by a direct URL."""
    if ireq.link and ireq.match_markers(requested_extras):
        raise InstallationError(f"required by address: {ireq.name};")
    return make_requirements(self, ireq, requested_extras)


def metadata_of_bounded_size(text: str) -> email.message.Message:
    """Parse a package's metadata, unless it is so large that it must be an attack."""
    if len(text) > job["metadata"]:
        name = re.search(r"^Name: (\S+)$", text[:4096], re.MULTILINE)
        raise InstallationError(f"too much metadata: {name[1] if name else 'unknown'};")
    return message_from_string(text)


def permitted_addresses(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
    """Resolve a name, without the refused addresses."""
    found = getaddrinfo(host, port, *arguments, **more)
    kept = [each for each in found if f"{host}:{port}" in trusted or not is_refused(str(each[4][0]))]
    if not kept:
        raise socket.gaierror(socket.EAI_FAIL, "refused address")
    return kept


def is_refused(address: str) -> bool:
    """Return whether nothing is fetched from an address."""
    return any(ipaddress.ip_address(address.partition("%")[0]) in network for network in refused)


def start_nothing(event: str, _: Any) -> None:
    """Refuse to start a program."""
    if event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "os.forkpty"}:
        raise PermissionError("no program is started here")


os.environ["PIP_CONFIG_FILE"] = os.devnull
markers.default_environment = lambda: dict(environment)  # type: ignore[assignment, return-value]
Factory._make_requirements_from_install_req = requirements_of_the_index  # type: ignore[method-assign]  # noqa: SLF001 - as above
email.message_from_string = metadata_of_bounded_size  # type: ignore[assignment]
socket.getaddrinfo = permitted_addresses
# pip's own reads files and starts programs of this machine, and describes it to the index.
session.user_agent = lambda: f"pip/{pip.__version__}"  # type: ignore[assignment]
# Its output distinguishes a package without a suitable file from one that the index does not have.
logging.getLogger("pip._internal.index.collector").addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger("pip._internal.index.collector").setLevel(logging.DEBUG)
sys.addaudithook(start_nothing)

sys.exit(main(sys.argv[2:]))
