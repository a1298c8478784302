"""Adds the compatibility tools that the settings ask for to a server."""

from collections.abc import Sequence
from typing import Final

from fastmcp import FastMCP

from sandpod_gateway.mcp.compat import settings as compat
from sandpod_gateway.mcp.compat.chrishayuk.charts import Charts
from sandpod_gateway.mcp.compat.chrishayuk.sandboxes import Chrishayuk
from sandpod_gateway.mcp.compat.chrishayuk.telnet import Telnet
from sandpod_gateway.mcp.compat.common import System
from sandpod_gateway.mcp.compat.gaiar import Gaiar
from sandpod_gateway.mcp.compat.johanli233 import Johanli
from sandpod_gateway.mcp.compat.philschmid import Philschmid
from sandpod_gateway.mcp.services import Parts

_SYSTEMS: Final[dict[compat.System, tuple[type[System], ...]]] = {
    "philschmid": (Philschmid,),
    "johanli233": (Johanli,),
    "chrishayuk": (Chrishayuk, Charts, Telnet),
    "gaiar": (Gaiar,),
}


def register(mcp: FastMCP[None], parts: Parts, settings: compat.CompatSettings, libraries: Sequence[str]) -> None:
    """Add the tools of the settings' systems; `libraries` are the Python libraries of the default sandbox."""
    for name in settings.systems:
        for system in _SYSTEMS[name]:
            system(parts, settings, libraries).register(mcp)
