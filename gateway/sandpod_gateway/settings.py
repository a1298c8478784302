"""All settings of the gateway: one schema for flags, environment and file.

They are read once and passed on by keyword; nothing here is global. Precedence, highest first: flags, environment
(`SANDPOD_...`, nested with two underscores), file, the defaults below.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, IPvAnyNetwork, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from yaml import YAMLError

from sandpod_api.fields import DAY
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.strict_model import StrictModel
from sandpod_gateway.api.toolsets import ALL, ToolsetName, expanded
from sandpod_gateway.audit.settings import AuditSettings
from sandpod_gateway.auth.key_management import MAX_DAYS
from sandpod_gateway.auth.oidc.settings import OidcSettings
from sandpod_gateway.backends.factory import BackendKind
from sandpod_gateway.backends.kubernetes.settings import KubernetesSettings
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.errors import StartError
from sandpod_gateway.http.mcp.peers import PeerSettings
from sandpod_gateway.limits import RunLimits
from sandpod_gateway.mcp.compat.settings import CompatSettings, from_environment
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.usage.settings import QuotaSettings, UsageSettings
from sandpod_telemetry.endpoint import PATTERN

MAX_SESSIONS: Final = 10_000
"""As many as the MCP SDK holds, which takes long to import."""


class AuthSettings(StrictModel):
    """Who may call."""

    keys_file: Path | None = None
    """File of hashed API keys; read again when it changes. Needed unless host is loopback, or see allow_anonymous."""
    allow_anonymous: bool = False
    """Whether a server without keys and sign-in may listen on more than loopback, for one that stands behind something
    that authenticates. Whoever reaches it is the same user, with all sandboxes and files, and an administrator."""
    oidc: OidcSettings | None = None
    """OpenID Connect provider where users sign in; API keys work beside it. Needs links.public_url."""
    change_keys: bool = False
    """Whether callers may make, rotate and revoke keys by the REST API: their own, with no more rights than they call
    with, and administrators those of others. Whoever takes over such a gateway can make keys of any user. In a cluster
    the chart's value auth.changeKeys sets it, with the right that it needs."""
    token_key_days: Annotated[int | None, Field(ge=1, le=MAX_DAYS)] = None
    """Days for which users who signed in at the provider may make keys; default: such a key ends with their token,
    often within the hour. A key goes on after its user has left: rotate or revoke it then."""
    allow_query_key: bool = False
    """Whether a key may stand in the address (?api_key=KEY), for clients that can send no header. Proxies log
    addresses."""


class TlsSettings(StrictModel):
    """TLS in the gateway itself; behind an Ingress with TLS leave it out. Renewed files are used without a restart."""

    cert: Path | None = None
    """PEM file with the certificate chain."""
    key: Path | None = None
    """PEM file with its private key."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls.cert and tls.key go together")
        return self


class LinkSettings(StrictModel):
    """Links to files. Sizes in bytes, times in seconds."""

    public_url: Annotated[str | None, Field(pattern=r"^https?://[^/?#]+$")] = None
    """Address that callers know this server by, as https://sandpod.example.com; default: the one that the request came
    to."""
    expires: Annotated[int, Field(ge=1, le=DAY)] = 3600
    """Time of a link that names none."""
    upload_bytes: Annotated[int, Field(ge=1)] = 2**30
    """Largest file that a link takes."""
    loopback: bool = True
    """Whether `sandpod stdio` serves links on a free port of 127.0.0.1, which programs of this machine alone reach;
    off, there are none unless public_url leads to a server of the same sandboxes."""
    in_content: bool = False
    """Whether a run's answer has a `resource_link` block for each file that the run left; some clients refuse an answer
    that has one."""


class E2bSettings(StrictModel):
    """E2B's API, below /e2b."""

    enabled: bool = True
    """Whether it is served. It gives nobody more than the tools do: it takes the same keys, with their scopes."""
    domain: Annotated[str | None, Field(pattern=r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$", max_length=200)] = None
    """Domain whose hosts lead to this server: PORT-SANDBOX.DOMAIN to a sandbox, api.DOMAIN to what manages them;
    default: none, so that clients need E2B_SANDBOX_URL."""


class ConsoleSettings(StrictModel):
    """The web console."""

    enabled: bool = True
    """Whether there is one, at /. It can do no more than the REST API, for the same callers."""


class ShutdownSettings(StrictModel):
    """How the server ends when it is asked to. Times in seconds."""

    drain: Annotated[int, Field(ge=0, le=DAY)] = 0
    """Without a new call, before it stops listening. Meanwhile everything is answered, and each answer closes its
    connection, so that clients and proxies connect to another server. If calls go on coming, it waits for half of
    `calls` more. It should be longer than proxies keep an idle connection."""
    calls: Annotated[int, Field(ge=1, le=DAY)] = 10
    """For calls in progress, from the end of `drain` on."""


class TraceSettings(StrictModel):
    """OpenTelemetry traces."""

    endpoint: Annotated[str | None, Field(max_length=500, pattern=PATTERN)] = None
    """Address of a collector that takes OTLP over HTTP, such as http://collector:4318; default: that of
    OTEL_EXPORTER_OTLP_ENDPOINT, and no traces without one. The other OTEL_... variables count, too."""
    ratio: Annotated[float | None, Field(ge=0, le=1)] = None
    """Share of the traces that begin here that is sent; a client decides about its own. Default: what
    OTEL_TRACES_SAMPLER says, or all."""


class LimitSettings(RunLimits):
    """Bounds of calls. Sizes in bytes, times in seconds."""

    max_sessions_per_owner: Annotated[int, Field(ge=1)] = 1000
    """MCP sessions that one caller may have open; idle ones end after half an hour."""
    max_sessions: Annotated[int, Field(ge=1, le=MAX_SESSIONS)] = MAX_SESSIONS
    """MCP sessions that all callers together may have open."""
    max_requests_per_owner: Annotated[int, Field(ge=1)] = 1000
    """Requests of one caller, waiting runs among them, that are handled at a time."""


class Settings(StrictModel, BaseSettings):
    """The gateway's settings."""

    model_config = SettingsConfigDict(
        env_prefix="SANDPOD_",
        env_nested_delimiter="__",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    backend: BackendKind = "local"
    """Where sandboxes come from."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""
    metrics_port: Annotated[int | None, Field(ge=0, le=65535)] = None
    """Port for /metrics, apart from the one that callers reach; default: none, and /metrics is on `port` only where no
    keys are needed."""
    allowed_hosts: list[str] | None = None
    """Host names that requests may be for; default: loopback only without keys, any with keys."""
    allowed_origins: list[str] = []
    """Web origins, besides the server's own, whose pages may call it, and send and read files by links."""
    trusted_proxies: list[IPvAnyNetwork] = []
    """Addresses and ranges (10.0.0.0/8) of proxies that may say in X-Forwarded-For and X-Forwarded-Proto who the client
    is and whether it used TLS. From anybody else these headers are ignored."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged."""
    log_format: Literal["console", "json"] = "console"
    """How logs are written (to stderr)."""
    auth: AuthSettings = AuthSettings()
    """Who may call."""
    tls: TlsSettings = TlsSettings()
    """TLS in the gateway itself."""
    limits: LimitSettings = LimitSettings()
    """Bounds of calls."""
    links: LinkSettings = LinkSettings()
    """Links to files."""
    packages: PackageSettings = PackageSettings()
    """Packages for sandboxes."""
    tools: list[ToolsetName] | None = None
    """Toolsets that are offered: core, background, sandboxes, files, links, contexts, account (keys, usage, audit and
    pools of the REST API), or all; a key and the address (/mcp?tools=core) can choose fewer. Tools of other systems are
    in none, and always offered. Default: all, or none if `compat.systems` is set."""
    libraries: list[str] = []
    """Python libraries that the default sandbox has, as the tool's description names them."""
    console: ConsoleSettings = ConsoleSettings()
    """The web console."""
    audit: AuditSettings = AuditSettings()
    """The audit log: who did what."""
    compat: CompatSettings = CompatSettings()
    """Tools of other systems."""
    e2b: E2bSettings = E2bSettings()
    """E2B's API, below /e2b."""
    shutdown: ShutdownSettings = ShutdownSettings()
    """How the server ends."""
    peers: PeerSettings = PeerSettings()
    """The other gateways of one installation."""
    local: LocalSettings = LocalSettings()
    """The local backend."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """The Kubernetes backend."""
    traces: TraceSettings = TraceSettings()
    """OpenTelemetry traces."""
    quotas: QuotaSettings = QuotaSettings()
    """Limits of use."""
    usage: UsageSettings = UsageSettings()
    """What is kept of use."""

    @property
    def toolsets(self) -> frozenset[str]:
        """The toolsets that are offered."""
        if self.tools is None:
            return frozenset() if self.compat.systems else ALL
        return expanded(self.tools)

    @property
    def url(self) -> str:
        """The MCP endpoint."""
        scheme = "https" if self.tls.cert is not None else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/mcp"

    @property
    def has_keys(self) -> bool:
        """Return whether callers need an API key or a token."""
        in_cluster = self.backend == "kubernetes" and self.kubernetes.keys_secret is not None
        return in_cluster or self.auth.keys_file is not None or self.auth.oidc is not None

    def require_keys_or_loopback(self) -> None:
        """Raise StartError if it would listen on more than loopback without keys, or tell clients no way to sign in."""
        if self.auth.oidc is not None and self.links.public_url is None:
            message = "auth.oidc needs the address by which clients know this server."
            step = "Set links.public_url, such as https://sandpod.example.com."
            raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        try:
            loopback = self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = False
        if self.auth.allow_anonymous and self.has_keys:
            message, step = "auth.allow_anonymous is for a server without keys and sign-in.", "Leave one of them out."
            raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step)
        if not (self.has_keys or loopback or self.auth.allow_anonymous):
            message = f"Without API keys the server listens on loopback only, not on {self.host}."
            step = "Make one: sandpod keys create --user NAME --file keys.yaml; then set --auth.keys-file."
            raise StartError(ErrorCode.UNAUTHORIZED, message, next_step=step)


# Nested flags with a short form: those that errors name, and those of another system.
_SHORT_FLAGS: Final = {
    "--unsafe-no-isolation": "--local.unsafe-no-isolation",
    "--no-libraries": "--no-local.libraries",
    "--python-image": "--compat.python-image",
    "--js-image": "--compat.js-image",
    "--pass-through-env": "--compat.pass-through-env",
}


def load(arguments: list[str], *, config: Path | None, program: str) -> Settings:
    """Return the settings of flags, environment and file (YAML); the help text calls the program so.

    Raises StartError: they can't be read or do not fit the schema; the message names the setting and the reason.
    """
    if config is not None and not config.is_file():
        raise StartError(ErrorCode.NOT_FOUND, f"There is no settings file {config}.", next_step="Correct --config.")
    parted = [argument.partition("=") for argument in arguments]
    flags = [f"{_SHORT_FLAGS.get(name, name)}{equals}{value}" for name, equals, value in parted]

    class _Sources(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                CliSettingsSource(settings_cls, cli_prog_name=program, cli_parse_args=flags),
                EnvSettingsSource(settings_cls),
                InitSettingsSource(settings_cls, from_environment()),
                YamlConfigSettingsSource(settings_cls, yaml_file=config),
            )

    try:
        return _Sources()
    except (OSError, TypeError, ValueError, YAMLError) as error:
        problem = " ".join(str(error).split())
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]  # without the value: it might be a secret
            problem = f"{'.'.join(map(str, first['loc'])) or 'they'}: {first['msg'].removeprefix('Value error, ')}"
        message, step = f"Settings are wrong: {problem}.", f"See `{program} --help`."
        raise StartError(ErrorCode.INVALID_ARGUMENT, message, next_step=step) from error
