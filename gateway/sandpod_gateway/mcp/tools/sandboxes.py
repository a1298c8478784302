"""The toolset `sandboxes`: create, list, get, close."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from sandpod_api.names import NETWORK_NONE, is_dns_label
from sandpod_gateway.api.results import Closed, ErrorCode, SandboxInfo, SandboxList
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import ClaimRequest, WorkspaceRequest
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.limits import check_text
from sandpod_gateway.mcp import arguments
from sandpod_gateway.mcp.toolbox import Parts, Toolbox
from sandpod_gateway.runs.request import OTHER_NAMES
from sandpod_gateway.sandboxes.describing import info_of
from sandpod_gateway.secrets.values import parse_secrets

_AS_TEMPLATE: Final = arguments.WorkspaceArgument()
MAX_NAME = 128  # characters; names are hashed before they become labels

Name = Annotated[
    str | None,
    Field(description=f"Your name for it, up to {MAX_NAME} characters; the same name returns the same sandbox."),
]
Template = Annotated[arguments.Name, Field(description="Template to make it from.")]
Lifetime = Annotated[
    arguments.LifetimeArgument | None, BeforeValidator(arguments.parsed), Field(description="How long it lives.")
]
Workspace = Annotated[
    arguments.WorkspaceArgument | None,
    BeforeValidator(arguments.parsed),
    Field(description="A workspace other than the template's; no warm sandbox has one, so starting takes seconds."),
]
Network = Annotated[str, Field(description="Network profile of the template; none is no network.")]
Secrets = Annotated[
    dict[str, Any] | None,
    BeforeValidator(arguments.parsed),
    Field(
        description="Environment variables of its runs that are masked in output: name to value, or to {value, tools, "
        "languages} for those runs only; {secret, key} in place of value for one that the administrator keeps."
    ),
]
Force = Annotated[bool, Field(description="End it even while something runs in it.")]


def register(toolbox: Toolbox, parts: Parts) -> None:
    """Add the tools."""
    sandboxes = parts.sandboxes

    @toolbox.tool("Create a sandbox", toolset="sandboxes", effect="make")
    async def create_sandbox(
        *,
        name: Name = None,
        template: Template = None,
        lifetime: Lifetime = None,
        network: Network = NETWORK_NONE,
        workspace: Workspace = None,
        cold_start: arguments.ColdStart = None,
        secrets: Secrets = None,
    ) -> SandboxInfo:
        """Create a sandbox with its own files and processes, and return its handle.

        Your default sandbox needs no call. Use this for a second one, another template, a network or another lifetime:
        sandpod://capabilities lists what there is.
        """
        request = ClaimRequest(
            owner=current_owner(),
            session=_session(name),
            template=_label(template, "template") if template is not None else None,
            network=_label(network, "network profile"),
            **(lifetime or arguments.LifetimeArgument()).model_dump(),
            workspace=WorkspaceRequest(**workspace.model_dump()) if workspace != _AS_TEMPLATE and workspace else None,
            cold_start=cold_start,
            secrets=parse_secrets(secrets or {}, arguments.RUN_TOOLS, OTHER_NAMES),
        )
        return info_of(await sandboxes.create(request), sandboxes)

    @toolbox.tool("List sandboxes", toolset="sandboxes", effect="read")
    async def list_sandboxes() -> SandboxList:
        """List your sandboxes with status and expiry, oldest first."""
        records = await sandboxes.list(current_owner())
        return SandboxList(sandboxes=[info_of(record, sandboxes) for record in records])

    @toolbox.tool("Get a sandbox", toolset="sandboxes", effect="read")
    async def get_sandbox(sandbox: arguments.RequiredSandbox) -> SandboxInfo:
        """Return a sandbox's status, age, packages and expiry, and why it can't be used if so."""
        record = await sandboxes.find(current_owner(), sandbox)
        return info_of(record, sandboxes).model_copy(update={"packages": parts.installer.added(record.name)})

    @toolbox.tool("Close a sandbox", toolset="sandboxes", effect="write")
    async def close_sandbox(*, sandbox: arguments.RequiredSandbox, force: Force = False) -> Closed:
        """End a sandbox: its processes are stopped and its files deleted."""
        return Closed(sandbox=await sandboxes.delete(current_owner(), sandbox, force=force))


def _session(name: str | None) -> str:
    if not name:
        return ""
    check_text(name, "name")
    if name.strip().lower() == arguments.DEFAULT:
        message = f"The name {arguments.DEFAULT!r} is your default sandbox's, which needs no call."
        raise SandpodError(ErrorCode.INVALID_SESSION_ID, message, next_step="Choose another name.")
    if len(name) > MAX_NAME or not name.isprintable():
        message = f"A name has at most {MAX_NAME} characters, and no control characters."
        raise SandpodError(ErrorCode.INVALID_SESSION_ID, message, next_step="Choose a shorter or simpler name.")
    return name


def _label(text: str, what: str) -> str:
    if not is_dns_label(text):
        message = f"That is no name of a {what}: small letters, digits and hyphens, at most 63."
        step = "Read sandpod://capabilities for those that exist."
        raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
    return text
