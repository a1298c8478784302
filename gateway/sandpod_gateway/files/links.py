"""Links to files of callers' own sandboxes, at the address that callers know this server by."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel

from sandpod_api.base import rfc3339
from sandpod_gateway.api.results import Artifact, ArtifactContent, ArtifactList, ErrorCode, FileLink, WorkspaceLink
from sandpod_gateway.api.run_results import RunOutput, RunResult
from sandpod_gateway.auth.api_keys import current_maker
from sandpod_gateway.auth.links import Links, Method
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import check_path, inside_workspace
from sandpod_gateway.files.service import Files

_Model = TypeVar("_Model", bound=BaseModel)

MAX_URLS: Final = 32 * 1024  # characters of all links of one answer


@dataclass(frozen=True, slots=True)
class LinkMaker:
    """Makes links to files of callers' own sandboxes, valid for `expires` seconds unless a call says otherwise.

    `address` returns the address that the caller knows this server by, or None where links can't lead here.
    """

    files: Files
    links: Links
    expires: int
    address: Callable[[], str | None]

    async def make(
        self, owner: str, path: str, *, sandbox: str | None, method: Literal["get", "put"], expires: int | None
    ) -> FileLink:
        """Return a link to a file; one to upload need not exist yet.

        Raises invalid_path, session_not_found, not_found (no file to download), invalid_argument (nobody could open
        it), or backend_unavailable (no key to sign it with).
        """
        check_path(path)
        inside, base = inside_workspace(path), self._base()
        if method == "put":
            name = (await self.files.sandboxes.resolve(owner, sandbox)).name
        else:
            name, reply = await self.files.ask(owner, sandbox, {"op": "stat", "path": path})
            if reply.header.get("kind") == "directory":
                step = "Link to a file in it, or call fetch_workspace for all files."
                raise SandpodError(ErrorCode.INVALID_PATH, "The path is a folder.", next_step=step)
        return FileLink(path=inside, method=method, **self._signed(base, method, name, inside, expires))

    async def workspace(self, owner: str, *, sandbox: str | None, form: str) -> WorkspaceLink:
        """Return a link to an archive of a sandbox's workspace; `form` is tar.gz or zip.

        Raises session_not_found, invalid_argument (nobody could open it), or backend_unavailable (no key to sign it
        with).
        """
        base = self._base()
        record = await self.files.sandboxes.resolve(owner, sandbox, make=False)
        return WorkspaceLink(**self._signed(base, "archive", record.name, form))

    def _signed(self, base: str, method: Method, sandbox: str, path: str, seconds: int | None = None) -> dict[str, str]:
        link, end = self.links.make(current_maker(), method, sandbox, path, seconds=seconds or self.expires)
        return {"sandbox": sandbox, "url": base + link, "expires_at": rfc3339(datetime.fromtimestamp(end, UTC))}

    def url(self, sandbox: str, path: str) -> str | None:
        """Return a link to a file of a sandbox that was resolved, or None where links can't lead here."""
        try:
            return self._signed(self._base(), "get", sandbox, path)["url"]
        except SandpodError:
            return None

    def linked(self, model: _Model) -> _Model:
        """Return a result with links to its files."""
        update: dict[str, Any] = {}
        if isinstance(model, RunOutput) and model.result is not None:
            update["result"] = self.linked(model.result)
        elif isinstance(model, RunResult | ArtifactList):
            update["artifacts"] = self._linked(model.sandbox, model.artifacts)
        elif isinstance(model, ArtifactContent):
            update["url"] = self.url(model.sandbox, model.path)
        return model.model_copy(update=update) if update else model

    def _linked(self, sandbox: str, artifacts: list[Artifact]) -> list[Artifact]:
        """Return artifacts with links, as far as these fit into an answer."""
        room, linked = MAX_URLS, []
        for artifact in artifacts:
            url = self.url(sandbox, artifact.path) if room > 0 else None
            room -= len(url or "")
            linked.append(artifact.model_copy(update={"url": url if room >= 0 else None}))
        return linked

    def _base(self) -> str:
        if (base := self.address()) is None:
            message = "This server was told to serve no links over standard input and output."
            step = "Use read_file and write_file, or ask for the setting links.loopback."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        return base
