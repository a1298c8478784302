"""Artifacts: the files that runs created or changed.

The runner knows which these are; its answers are checked here, and reads are bounded.
"""

from typing import Annotated, Final

from pydantic import Field

from sandpod_gateway.api.results import ArtifactContent, ArtifactList, ErrorCode
from sandpod_gateway.content import MAX_PICTURES, PICTURES, Answer, Picture, as_text, mime_type
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.files.paths import shown_path
from sandpod_gateway.files.service import MAX_READ, Files
from sandpod_gateway.runner.messages import ArtifactEntry, Message, checked
from sandpod_gateway.runner.run_ids import split_run_id

MAX_LISTED: Final = 500
MAX_ARTIFACT: Final = 128 * 2**20  # bytes of an artifact that is read at all; a link gives larger ones


class _Listing(Message):
    entries: Annotated[list[ArtifactEntry], Field(max_length=2000)] = Field(default_factory=list)
    truncated: bool = False


class Artifacts:
    """Lists and reads artifacts of callers' sandboxes."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def list(self, owner: str, *, sandbox: str | None, since: str | None) -> ArtifactList:
        """List the files that runs created or changed since the run `since` began, and that still exist.

        Without `sandbox` it is that run's, or the default one. Raises not_found (the run), or what `Sandboxes.resolve`
        raises.
        """
        fields = {}
        if since is not None:
            place, run = split_run_id(since)
            if sandbox is not None and sandbox != place:
                raise SandpodError(
                    ErrorCode.NOT_FOUND, "That run is of another sandbox.", next_step="Leave the sandbox out."
                )
            sandbox, fields = place, {"since": run}
        name, reply = await self._files.ask(owner, sandbox, "artifacts", fields)
        listing = checked(_Listing, reply)
        found = [entry.artifact() for entry in listing.entries[:MAX_LISTED]]
        return ArtifactList(
            sandbox=name, artifacts=found, truncated=listing.truncated or len(listing.entries) > MAX_LISTED
        )

    async def read(self, owner: str, path: str, *, sandbox: str | None) -> Answer[ArtifactContent]:
        """Read an artifact: an image as such, anything else as text or base64 up to the limit of a result.

        Raises invalid_path, not_found, artifact_too_large.
        """
        kind = mime_type(path)
        limit = MAX_PICTURES if kind in PICTURES else MAX_READ
        name, size, data = await self._files.part(owner, path, sandbox=sandbox, limit=limit)
        if size > MAX_ARTIFACT or (kind in PICTURES and size > limit):
            raise SandpodError(
                ErrorCode.ARTIFACT_TOO_LARGE,
                f"The file has {size} bytes, which is too large to be read here.",
                next_step="Make a link to it with create_link, or read parts of it with read_file.",
            )
        common = {"sandbox": name, "path": shown_path(path), "size": size, "mime_type": kind}
        if kind in PICTURES:
            return Answer(ArtifactContent(**common, encoding="image"), [Picture(kind, data)])
        encoding, content = as_text(data, None)
        return Answer(ArtifactContent(**common, encoding=encoding, content=content, truncated=len(data) < size))
