"""The tools for links to files, for data that should not pass through a model. Registered by `server.py`."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_request
from pydantic import Field

from sandpod_api.base import rfc3339
from sandpod_api.fields import DAY
from sandpod_api.results import Artifact, ErrorCode, FileLink, WorkspaceLink
from sandpod_gateway.auth import current_maker, current_owner
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files import check_path
from sandpod_gateway.links import Links
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.answers import answering, output_schema
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.running import RunAnswer
from sandpod_gateway.sandboxes import Sandboxes
from sandpod_gateway.settings import LinkSettings
from sandpod_gateway.showing import Reading

MethodName = Annotated[
    Literal["get", "put"], Field(description="get to download the file, put to upload one there (HTTP PUT).")
]
Expires = Annotated[int | None, Field(ge=1, le=DAY, description="Seconds until the link ends.")]

_MAKE = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}
_LOOK = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}


MAX_URLS: Final = 32 * 1024
"""Characters of all links of one answer."""


class LinkMaker:
    """Makes links for callers, to files of their own sandboxes."""

    def __init__(self, sandboxes: Sandboxes, links: Links, settings: LinkSettings) -> None:
        self._sandboxes = sandboxes
        self._links = links
        self._settings = settings

    async def make(
        self, owner: str, path: str, *, sandbox: str | None, method: Literal["get", "put"], expires: int | None
    ) -> FileLink:
        """Return a link.

        Args:
            owner: The caller.
            path: The file, which need not exist yet.
            sandbox: A handle, or None for the default sandbox.
            method: What it allows.
            expires: Seconds until it ends, or None for the setting.

        Raises:
            SandpodError: invalid_path, session_not_found, invalid_argument where nobody could open it, or
                backend_unavailable where there is nothing to sign it with.
        """
        check_path(path)
        inside = arguments.inside_workspace(path)
        base = self._base()
        record = await self._sandboxes.resolve(owner, sandbox, make=method == "put")
        seconds = expires if expires is not None else self._settings.expires
        link, end = self._links.make(current_maker(), method, record.name, inside, seconds=seconds)
        time = rfc3339(datetime.fromtimestamp(end, UTC))
        return FileLink(sandbox=record.name, path=inside, method=method, url=f"{base}{link}", expires_at=time)

    async def workspace(self, owner: str, *, sandbox: str | None) -> WorkspaceLink:
        """Return a link to all that is in a sandbox's workspace.

        Raises:
            SandpodError: session_not_found, invalid_argument where nobody could open it, or backend_unavailable where
                there is nothing to sign it with.
        """
        base = self._base()
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        link, end = self._links.make(current_maker(), "archive", record.name, "", seconds=self._settings.expires)
        return WorkspaceLink(
            sandbox=record.name, url=f"{base}{link}", expires_at=rfc3339(datetime.fromtimestamp(end, UTC))
        )

    def url(self, sandbox: str, path: str) -> str | None:
        """Return a link to a file of a sandbox that was resolved, or None where no link would lead here."""
        try:
            link, _ = self._links.make(current_maker(), "get", sandbox, path, seconds=self._settings.expires)
            return self._base() + link
        except SandpodError:
            return None

    def linked(self, sandbox: str, artifacts: list[Artifact]) -> list[Artifact]:
        """Return artifacts with links, as far as those have room in an answer."""
        room, told = MAX_URLS, []
        for artifact in artifacts:
            url = self.url(sandbox, artifact.path) if room > 0 else None
            room -= len(url or "")
            told.append(artifact.model_copy(update={"url": url if room >= 0 else None}))
        return told

    def complete(self, answer: RunAnswer) -> RunAnswer:
        """Return a run's answer with links to its artifacts."""
        result = answer.result
        if not result.artifacts:
            return answer
        told = {"artifacts": self.linked(result.sandbox, result.artifacts)}
        return RunAnswer(result.model_copy(update=told), answer.pictures)

    def complete_reading(self, reading: Reading) -> Reading:
        """Return what was read of a background run with links to its artifacts."""
        result = reading.result.result
        if result is None or not result.artifacts:
            return reading
        told = result.model_copy(update={"artifacts": self.linked(result.sandbox, result.artifacts)})
        return Reading(reading.result.model_copy(update={"result": told}), reading.pictures)

    def _base(self) -> str:
        if self._settings.public_url is not None:
            return self._settings.public_url
        try:
            return str(get_http_request().base_url).rstrip("/")
        except RuntimeError:
            raise SandpodError(
                ErrorCode.INVALID_ARGUMENT,
                "This server is reached over standard input and output, so no link would lead to it.",
                next_step="Use read_file and write_file.",
            ) from None


def register(mcp: FastMCP[None], maker: LinkMaker, metrics: Metrics) -> None:
    """Add the tools to a server."""

    @mcp.tool(annotations={"title": "Link to a file", **_MAKE}, output_schema=output_schema(FileLink))
    @answering(metrics)
    async def create_link(
        *,
        path: arguments.Path,
        sandbox: arguments.Sandbox = None,
        method: MethodName = "get",
        expires: Expires = None,
    ) -> FileLink:
        """Make a link to a file of a sandbox, to download it or to upload one past the model: no key is needed.

        It is for this one path, and ends after a while, with the sandbox or with your API key.
        """
        return await maker.make(current_owner(), path, sandbox=sandbox, method=method, expires=expires)

    @mcp.tool(annotations={"title": "Fetch the workspace", **_LOOK}, output_schema=output_schema(WorkspaceLink))
    @answering(metrics)
    async def fetch_workspace(*, sandbox: arguments.Sandbox = None) -> WorkspaceLink:
        """Make a link to download all files of a sandbox's workspace as one tar.gz: no key is needed."""
        return await maker.workspace(current_owner(), sandbox=sandbox)
