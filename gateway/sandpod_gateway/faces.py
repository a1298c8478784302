"""What is reached over HTTP beside MCP: the REST API, E2B's API and the console, put together."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastmcp import FastMCP
from starlette.routing import BaseRoute, Mount

from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.audit.log import AuditLog
from sandpod_gateway.auth.callers import Caller
from sandpod_gateway.auth.links import Links
from sandpod_gateway.auth.sandbox_tokens import SandboxTokens
from sandpod_gateway.backends.base import Backend
from sandpod_gateway.console.app import Console
from sandpod_gateway.console.session import Sessions
from sandpod_gateway.e2b.app import E2b
from sandpod_gateway.e2b.calls import Calls
from sandpod_gateway.e2b.hosts import PREFIX as E2B_PREFIX
from sandpod_gateway.http.audit import RefusedRequests
from sandpod_gateway.http.limits import Requests
from sandpod_gateway.http.mcp.peers import Peers
from sandpod_gateway.http.routes import FileRoutes, with_any_name
from sandpod_gateway.mcp.toolbox import Parts
from sandpod_gateway.rest.app import Rest
from sandpod_gateway.rest.files import RestFiles
from sandpod_gateway.rest.operations import PREFIX as REST_PREFIX
from sandpod_gateway.rest.terminal import RestTerminals
from sandpod_gateway.sandboxes.administration import Administration
from sandpod_gateway.sandboxes.lifetimes import Lifetimes
from sandpod_gateway.settings import Settings
from sandpod_gateway.terminals.service import Terminals


@dataclass(frozen=True, kw_only=True)
class Faces:
    """The parts that they share; see `Settings` for `hosts` and `origins`."""

    settings: Settings
    servers: tuple[FastMCP[Any], FastMCP[Any]]  # of MCP's tools, and of the operations that REST alone has
    parts: Parts
    backend: Backend
    audit: AuditLog
    links: Links
    file_routes: FileRoutes
    peers: Peers
    requests: Requests
    refusals: RefusedRequests
    caller_of_key: Callable[[bytes], Caller | None]
    keys_of_owner: Callable[[str], Sequence[tuple[Caller, int | None]]]
    sessions: Sessions  # of the console
    hosts: list[str]
    origins: list[str] | None
    version: str
    ending: asyncio.Event

    def routes(self, sign_in: Sequence[BaseRoute]) -> list[BaseRoute]:
        """Return their routes; `sign_in` are those of a sign-in through the gateway."""
        settings, parts, requests = self.settings, self.parts, self.requests
        files = RestFiles(self.file_routes, settings.toolsets)
        terminals = Terminals(parts.sandboxes, settings.limits)
        shells = terminals, requests, self.audit, self.servers[0].auth
        rest = Rest(
            self.servers,
            parts.background,
            requests,
            files,
            terminals=RestTerminals(*shells, settings.toolsets),
            version=self.version,
            ending=self.ending,
        )
        guards: dict[str, Any] = {"hosts": self.hosts, "origins": self.origins, "refusals": self.refusals}
        found: list[BaseRoute] = [with_any_name(Mount(REST_PREFIX, rest.app(**guards)))]
        if settings.e2b.enabled:
            found.append(with_any_name(Mount(E2B_PREFIX, self._e2b(files, terminals).app(**guards))))
        if settings.console.enabled:
            console = Console(
                mcp=self.servers[0],
                call=rest.result,
                sandboxes=parts.sandboxes,
                administration=Administration(parts.sandboxes, self.backend),
                activities=parts.activities,
                toolsets=settings.toolsets,
                sessions=self.sessions,
                version=self.version,
                sign_in=sign_in,
            )
            found += console.routes(**guards)
        return found

    def _e2b(self, files: RestFiles, terminals: Terminals) -> E2b:
        settings = self.settings
        calls = Calls(
            mcp=self.servers[0],
            parts=self.parts,
            requests=self.requests,
            audit=self.audit,
            tokens=SandboxTokens(self.links, self.caller_of_key, self.keys_of_owner),
            lifetimes=Lifetimes(self.parts.sandboxes, self.backend),
            terminals=terminals,
            toolsets=settings.toolsets or ALL,
        )
        return E2b(calls, files, settings.limits, domain=settings.e2b.domain, peers=self.peers, ending=self.ending)
