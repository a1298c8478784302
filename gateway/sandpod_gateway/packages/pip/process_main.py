"""Runs pip for another Python than this one. Started by `pip.py` as a program, with few rights; never imported.

pip asks its own Python for what conditions of dependencies (`python_version < "3.12"`) depend on, whatever Python it
is told to download for: the answers are put right here. `--only-binary` does not bind what is required by its address,
so such a requirement is refused before anything is fetched, and so are source packages and programs of any kind.
"""

import ipaddress
import json
import socket
import sys
from typing import Any

import pip
from pip._internal.cli.main import main
from pip._internal.distributions.sdist import SourceDistribution
from pip._internal.exceptions import InstallationError
from pip._internal.network import session
from pip._internal.resolution.resolvelib.factory import Factory
from pip._vendor.packaging import markers as _markers

told = json.loads(sys.argv[1])
refused = [ipaddress.ip_network(each) for each in told["guard"]["refused"]]
trusted = frozenset(told["guard"]["trusted"])

_own = _markers.default_environment
_markers.default_environment = lambda: {**_own(), **told["markers"]}  # type: ignore[assignment, return-value, unused-ignore]

_make = Factory._make_requirements_from_install_req  # noqa: SLF001 - there is no other place to ask at
_resolve = socket.getaddrinfo


def of_the_index(self: Any, ireq: Any, requested_extras: Any) -> Any:
    """Make requirements as pip does, but none by an address."""
    if ireq.link and ireq.match_markers(requested_extras):
        raise InstallationError(f"required by address: {ireq.name};")
    return _make(self, ireq, requested_extras)


def no_source(self: Any, *_: Any, **__: Any) -> None:
    """Refuse to prepare a source package."""
    raise InstallationError(f"source package: {self.req.name};")


def is_refused(address: str) -> bool:
    """Return whether nothing is fetched from an address."""
    return any(ipaddress.ip_address(address) in network for network in refused)


def resolve(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
    """Resolve a name, and leave out addresses that are not connected to."""
    found = _resolve(host, port, *arguments, **more)
    if f"{host}:{port}" in trusted:
        return found
    kept = [
        each for each in found if not any(ipaddress.ip_address(str(each[4][0]).split("%")[0]) in one for one in refused)
    ]
    if not kept:
        raise socket.gaierror(socket.EAI_FAIL, "refused address")
    return kept


def start_nothing(event: str, _: Any) -> None:
    """Refuse to start a program: nothing but wheels is taken, and those need none."""
    if event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "os.forkpty"}:
        raise PermissionError("no program is started here")


Factory._make_requirements_from_install_req = of_the_index  # type: ignore[method-assign]  # noqa: SLF001 - as above
SourceDistribution.prepare_distribution_metadata = no_source  # type: ignore[method-assign]
socket.getaddrinfo = resolve
# pip's own looks at files and programs of this machine, and tells the index of them.
session.user_agent = lambda: f"pip/{pip.__version__}"  # type: ignore[assignment]
sys.addaudithook(start_nothing)

sys.exit(main(sys.argv[2:]))
