"""Adds the compatibility tools that the settings ask for to a server."""

from collections.abc import Sequence

from fastmcp import FastMCP

from sandpod_gateway.mcp.compat import gaiar, johanli233, philschmid
from sandpod_gateway.mcp.compat.chrishayuk import charts, telnet
from sandpod_gateway.mcp.compat.chrishayuk import sandboxes as chrishayuk
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.mcp.services import Parts


def register(mcp: FastMCP[None], parts: Parts, settings: CompatSettings, libraries: Sequence[str]) -> None:
    """Add the tools, in place of ours where a name is taken.

    Args:
        mcp: The server.
        parts: What the tools call.
        settings: Which tools.
        libraries: Python libraries that the default sandbox has.
    """
    for system in settings.systems:
        if system == "philschmid":
            philschmid.register(mcp, parts, settings, libraries)
        elif system == "johanli233":
            johanli233.register(mcp, parts, settings)
        elif system == "chrishayuk":
            chrishayuk.register(mcp, parts)
            charts.register(mcp, parts)
            telnet.register(mcp, parts, settings)
        else:
            gaiar.register(mcp, parts)
