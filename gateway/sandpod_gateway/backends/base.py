"""What a backend must give: sandboxes that can be claimed, found and deleted, and a byte stream to their runners.

The gateway knows backends by this protocol alone, and `tests/contract` holds the one suite that all of them pass. A
backend runs no code itself: that is the runner's work, at the other end of the stream.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol

from sandpod_api.conditions import Condition
from sandpod_api.types import PoolClaims
from sandpod_gateway.auth.key_source import KeySource
from sandpod_gateway.auth.links import SecretStore
from sandpod_gateway.auth.oidc.places import StatePlaces
from sandpod_gateway.backends.refusals import invalid
from sandpod_gateway.secrets.values import Secret, SecretSource
from sandpod_gateway.usage.stores import DocumentStore

MAX_TEMPLATES: Final = 100

Status = Literal["Pending", "Ready", "Failed", "Expired", "Suspended"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkspaceRequest:
    """What a caller wants of a sandbox's workspace, where it is not what the template gives."""

    size: int | None = None  # bytes; None for the template's
    persistent: bool = False  # files outlive the pod, so that the sandbox can be suspended and resumed


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimRequest:
    """What a caller wants of a sandbox. None stands for the default."""

    owner: str  # the caller, who alone may use it
    session: str = ""  # the owner's own name for it: unique among the owner's live sandboxes unless empty
    template: str | None = None
    network: str = "none"  # a network profile of the template
    ttl: int | None = None  # seconds from claim to end
    idle_timeout: int | None = None  # seconds without use to the end
    workspace: WorkspaceRequest | None = None  # other than the template's, which no warm sandbox has
    cold_start: bool | None = None  # whether one may be made while none is warm; None for what the server allows
    secrets: tuple[Secret, ...] = ()  # for its runs, in addition to the template's
    metadata: tuple[tuple[str, str], ...] = ()  # what the caller notes of it: names with texts

    def may_make(self, *, allowed: bool) -> bool:
        """Return whether a sandbox may be made for the claim: the caller's choice within what the server allows.

        What can't be had is refused even while a warm one is ready: a caller should not learn of it from a drained
        pool.

        Raises:
            SandpodError: invalid_argument, for a cold start on a server that makes none, or a claim that no warm
                sandbox meets and that rules one out.
        """
        if self.cold_start and not allowed:
            raise invalid(
                "This server makes no sandbox on demand: it hands out warm ones alone.",
                "Leave cold_start out. While none is warm the answer is pool_exhausted: try again then.",
            )
        may = allowed if self.cold_start is None else self.cold_start
        if self.workspace is not None and not may:
            raise invalid(
                "A workspace other than the template's takes a new sandbox, and none may be made for this claim.",
                "Leave workspace or cold_start out." if allowed else "Leave workspace out.",
            )
        return may


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxRecord:
    """A claimed sandbox as the backend knows it."""

    name: str
    owner: str
    session: str
    template: str
    network: str
    status: Status
    created: datetime
    ttl: int
    idle_timeout: int
    image: str | None = None
    reason: str | None = None  # one of `sandpod_api.conditions.Reason`
    message: str | None = None
    last_activity: datetime | None = None
    expires: datetime | None = None
    persistent: bool = False  # the workspace outlives a suspension
    resumed: datetime | None = None  # when the last suspension ended
    has_secrets: bool = False  # whether its claim came with some
    refers_to_secrets: bool = False  # whether its claim refers to some
    metadata: tuple[tuple[str, str], ...] = ()  # what its caller noted of it
    conditions: tuple[Condition, ...] = field(default=(), repr=False, compare=False)  # as written so far
    fresh: bool = field(default=False, compare=False)  # of a claim's answer: whether it was claimed by that very call
    warm: bool = field(default=False, compare=False)  # of a fresh one: whether it waited in a pool


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxEvent:
    """Something that happened to a sandbox."""

    time: datetime | None  # the last time that it did
    reason: str
    message: str
    is_warning: bool = False
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TemplateInfo:
    """A kind of sandbox that a claim may name."""

    name: str
    image: str | None = None
    languages: tuple[str, ...] = ()  # in addition to Python, JavaScript and shell
    networks: tuple[str, ...] = ("none",)
    foreign: bool = False  # the image was not made for this: what it runs is known only once it does
    workspace_max: int | None = None  # bytes of the largest workspace for a claim; None where the size is fixed
    persistent: bool = False  # a claim may ask for a persistent workspace
    memory: int = 0  # bytes that a sandbox may use; 0 where that is not known
    runtime_class: str | None = None  # by which each has a kernel of its own; None where they share their machine's


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolRecord:
    """Sandboxes of one template that wait for a claim."""

    name: str
    template: str
    replicas: int  # that are wanted
    existing: int  # that there are, those that start among them
    ready: int  # that can be claimed
    reason: str | None = None  # why it is not full
    conditions: tuple[Condition, ...] = ()
    claims: PoolClaims = field(default_factory=PoolClaims)


class ByteStream(Protocol):
    """A two-way stream of bytes to a sandbox's runner."""

    async def read(self) -> bytes:
        """Return the next bytes, at most 1 MiB; empty when the other side is gone, however it went.

        Nothing is read ahead beyond a bounded buffer, so that a slow reader slows the sandbox.
        """

    async def write(self, data: bytes) -> None:
        """Send the bytes, all of them or, when it raises or is cancelled, none: frames are never cut.

        Waits while the other side does not take what was sent before. Raises ConnectionError: the stream is closed.
        """

    async def close(self) -> None:
        """Close both directions. May be called more than once, and while `read` waits: `read` then returns empty."""


class Backend(Protocol):
    """Sandboxes of one kind. All methods raise `errors.SandpodError` with a code, a message and a next step.

    Names, owners and sessions are data: a backend never lets them become options, paths or selectors unchecked. A name
    that is malformed is one that does not exist. Records of ended sandboxes (Expired, Failed) stay for some time, so
    that a later call learns why.
    """

    kind: str
    """`kubernetes` or `local`."""

    async def start(self) -> None:
        """Open what the backend needs.

        Raises:
            SandpodError: backend_unavailable, when sandboxes can't be had; says what to do.
        """

    async def close(self) -> None:
        """Close what `start` opened. A backend whose sandboxes live in this process ends them."""

    async def check(self) -> None:
        """Return when sandboxes could be claimed now. Raises SandpodError: backend_unavailable."""

    async def claim(self, request: ClaimRequest) -> SandboxRecord:
        """Give the caller a sandbox that is Ready, warm where there is one.

        When the owner has a live sandbox of that session already (also when two calls race), that one is returned.

        Raises:
            SandpodError: max_sessions, pool_exhausted, image_pull_failed, unschedulable, quota_exceeded,
                invalid_argument (no such template or profile, a cold start that is not made), forbidden (no such
                tenant), backend_unavailable, backend_error. Nothing is left behind then.
        """

    async def get(self, name: str) -> SandboxRecord | None:
        """Return the claimed sandbox of that name, whosever it is, or None. Costs no request to a server, nor a wait.

        Raises:
            SandpodError: backend_unavailable, where it may be one of a tenant that is not available yet. Callers who
                may not know of that tenant must not see this.
        """

    async def list(self, owner: str) -> list[SandboxRecord]:
        """Return the owner's sandboxes, oldest first. Costs no request to a server."""

    async def every(self) -> tuple[SandboxRecord, ...]:
        """Return the sandboxes of all owners, oldest first, for administrators. Costs no request to a server."""

    async def events(self, name: str) -> tuple[SandboxEvent, ...]:
        """Return what is still known to have happened to a sandbox, oldest first; nothing where nobody keeps it.

        Raises SandpodError: backend_unavailable.
        """

    async def templates(self, owner: str) -> tuple[TemplateInfo, ...]:
        """Return the templates that an owner's claims may name, by name; the first `MAX_TEMPLATES` of more.

        Raises SandpodError: backend_unavailable, or as `claim` for the owner's tenant.
        """

    def link_store(self) -> SecretStore | None:
        """Return where all gateways over these sandboxes keep what they sign links with; None when there is only one.

        It works while the backend is started.
        """

    def sign_in_places(self) -> StatePlaces | None:
        """Return where all gateways over these sandboxes keep what sign-ins through them leave; None as above."""

    def sign_in_key_store(self) -> SecretStore | None:
        """Return where they keep the key of sign-ins; None as above."""

    def key_source(self) -> KeySource | None:
        """Return where all gateways over these sandboxes find callers' API keys; None when there is no such place.

        It works while the backend is started.
        """

    def usage_store(self) -> DocumentStore | None:
        """Return where all gateways over these sandboxes keep what was used; None when there is no such place.

        It works while the backend is started.
        """

    def secret_source(self) -> SecretSource:
        """Return where all gateways over these sandboxes find the secrets of these.

        It works while the backend is started. What a claim comes with is there before the claim's answer, outlives a
        suspension, and is gone with the sandbox.
        """

    def warm(self) -> dict[tuple[str, str], int]:
        """Return how many Ready sandboxes wait for a claim, by tenant and template. Costs no request to a server."""

    async def pools(self, owner: str) -> tuple[PoolRecord, ...]:
        """Return the pools of the owner's tenant, by name. Raises SandpodError: as `templates`."""

    async def scale_pool(self, owner: str, name: str, replicas: int) -> None:
        """Let a pool of the owner's tenant have so many warm sandboxes.

        Raises SandpodError: not_found, forbidden where that is not for callers, invalid_argument for a number that
        can't be, backend_unavailable.
        """

    async def wake(self, name: str) -> SandboxRecord | None:
        """Return the sandbox once it is Ready: a suspended one is resumed, one that starts is waited for.

        Calls at once resume it once. One that has ended is returned as it is; None where there is none.

        Raises:
            SandpodError: max_sessions, unschedulable, quota_exceeded, image_pull_failed, backend_unavailable or
                backend_error: why it does not start. It stays as it is, and can be tried again.
        """

    async def suspend(self, name: str) -> None:
        """Stop a sandbox whose workspace is persistent: its files are kept until it is woken, or ends."""

    async def set_lifetime(self, name: str, *, ttl: int, idle_timeout: int) -> SandboxRecord:
        """Change the seconds from claim to end, and those without use. Raises SandpodError: session_not_found."""

    async def delete(self, name: str) -> None:
        """End the sandbox and all that runs in it. No-op when there is none."""

    async def touch(self, name: str) -> None:
        """Note that the sandbox is in use now. May be called on every use; writes are bounded by the backend."""

    async def keep_busy(self, name: str, seconds: float) -> None:
        """Note that a background run may go on in the sandbox for so many seconds: until then it is not idle.

        The note holds without this gateway. A shorter one never replaces a longer one; the ttl bounds it. It is not
        made where this raises backend_unavailable.
        """

    async def open_stream(self, name: str) -> ByteStream:
        """Open a stream to the sandbox's runner.

        Raises:
            SandpodError: sandbox_lost, session_not_found, backend_unavailable.
        """
