"""The operator's settings: one frozen model, read once in `__main__`, passed by keyword.

Every field is `SANDPOD_OPERATOR_<NAME>` in the environment, which takes precedence over the settings file. No other
module reads the environment.
"""

import importlib.metadata
import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from sandpod_api.names import is_dns_label


def _api_server() -> str:
    """Return where the API server is, as Kubernetes sets it in every pod; that is also the address to probe."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    return f"{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}" if host else ""


class OperatorSettings(BaseSettings):
    """How the operator works. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix="SANDPOD_OPERATOR_", frozen=True)

    namespaces: Annotated[
        tuple[str, ...],
        NoDecode,
        Field(min_length=1, description="Namespaces whose sandboxes it manages, separated by commas."),
    ]
    namespace: Annotated[str, Field(description="Its own namespace, for the Lease of the active replica.")] = "default"
    identity: Annotated[str, Field(min_length=1, description="Its name in the Lease; unique for each process.")] = (
        # A restarted pod keeps its name, and must not take over its old Lease.
        Field(default_factory=lambda: f"{socket.gethostname()}-{secrets.token_hex(4)}")
    )

    host_users: Annotated[
        bool | None,
        Field(
            description="hostUsers of pods whose template does not set it. false gives each its own user namespace, "
            "true none; unset gives it if every node that may run the pod supports it. Never applied with a "
            "RuntimeClass, whose pods get one only if it has the annotation sandpod.dev/user-namespaces: true."
        ),
    ] = None
    runner_image: Annotated[
        str,
        Field(
            min_length=1,
            description="Sandpod's sandbox image: the runner comes from it for templates whose image has none.",
        ),
    ] = Field(default_factory=lambda: f"sandpod/sandbox:{importlib.metadata.version('sandpod')}")
    api_server: Annotated[
        str, Field(description="host:port of the API server that no sandbox may reach; from KUBERNETES_SERVICE_HOST.")
    ] = Field(default_factory=_api_server)
    cluster_dns: Annotated[
        str, Field(description="host:port of the cluster's DNS that no sandbox without DNS may reach; kubeadm's value.")
    ] = "10.96.0.10:53"
    peer: Annotated[
        str,
        Field(
            description="host:port of another pod that no sandbox may reach, unless a network profile of its template "
            "opens that address; the chart gives the operator's own."
        ),
    ] = ""
    more_probes: Annotated[
        str, Field(description="More host:port pairs, separated by commas, that no sandbox may reach.")
    ] = ""

    probe_interval: Annotated[
        int,
        Field(
            ge=0,
            description="Time between two checks by a running sandbox whether its network is closed; 0 means only at "
            "its start. One whose network stays open for that time, or for half a minute, ends.",
        ),
    ] = 300
    allow_open_network: Annotated[
        bool,
        Field(
            description="Whether a sandbox that finds its network open at its start is handed out anyway, with "
            "NetworkIsolated False. Off, it never is."
        ),
    ] = False

    retention: Annotated[
        float, Field(ge=0, description="Time that an expired or failed Sandbox is kept, so that its caller learns why.")
    ] = 600
    failed_pod_grace: Annotated[
        float, Field(ge=0, description="Time that a failed pod is kept, so that its log can be read.")
    ] = 30
    status_delay: Annotated[
        float,
        Field(
            ge=0,
            description="Time in which the status of a new Sandbox that is only starting is not written: it would be "
            "overwritten at once, since a pod starts in two seconds.",
        ),
    ] = 5
    refused_retry: Annotated[
        float, Field(gt=0, description="First wait before a refused pod is tried again; doubles up to a minute.")
    ] = 5
    pool_burst: Annotated[
        int, Field(ge=1, le=500, description="Most warm sandboxes that one pass over a pool creates.")
    ] = 25

    workers: Annotated[int, Field(ge=1, le=256, description="Objects worked on at once.")] = 16
    backoff_min: Annotated[float, Field(gt=0, description="Wait after an object's first error; doubles.")] = 0.5
    backoff_max: Annotated[float, Field(gt=0, description="Longest wait after errors.")] = 300
    sweep_interval: Annotated[float, Field(gt=0, description="Time between looks for orphans and due work.")] = 5
    orphan_grace: Annotated[
        float,
        Field(ge=0, description="Time that a pod without a Sandbox is left to Kubernetes' own garbage collector."),
    ] = 30
    resync_interval: Annotated[
        float, Field(gt=0, description="Time between full lists, which repair whatever a watch lost.")
    ] = 180
    watch_silence: Annotated[
        float,
        Field(
            gt=0,
            description="Time without an event of a watch after which it is reopened: its connection may be dead "
            "without notice. The API server sends something about once a minute.",
        ),
    ] = 70
    request_timeout: Annotated[float, Field(gt=0, description="Longest wait for one answer of the API server.")] = 30

    lease_duration: Annotated[
        int, Field(ge=2, description="Time after which an active replica that does not renew is replaced.")
    ] = 15
    lease_renew_deadline: Annotated[
        float, Field(gt=0, description="Time without renewal after which the active replica ends itself.")
    ] = 10
    lease_retry: Annotated[float, Field(gt=0, description="Time between tries to get or renew the Lease.")] = 2
    heartbeat_interval: Annotated[
        float, Field(gt=0, description="Time between the writes whose watch events prove that events arrive.")
    ] = 15
    heartbeat_timeout: Annotated[
        float, Field(gt=0, description="Time without such an event after which /healthz fails.")
    ] = 90

    http_host: Annotated[str, Field(description="Address of /healthz, /readyz and /metrics.")] = "0.0.0.0"
    http_port: Annotated[int, Field(ge=0, le=65535, description="Port of the same; 0 takes a free one.")] = 8081
    log_format: Annotated[Literal["console", "json"], Field(description="Log lines for people or for machines.")] = (
        "console"
    )
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], Field(description="Lowest level that is logged.")
    ] = "INFO"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - of the base class
        *_: PydanticBaseSettingsSource,
        **sources: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the environment before what the file says."""
        return sources["env_settings"], sources["init_settings"]

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("namespaces")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not is_dns_label(name):
                raise ValueError(f"{name!r} is not a namespace name; patterns are not supported")
        return tuple(dict.fromkeys(value))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lease_retry < self.lease_renew_deadline < self.lease_duration:
            raise ValueError("lease_retry, lease_renew_deadline and lease_duration must grow in this order")
        if self.heartbeat_timeout <= self.heartbeat_interval:
            raise ValueError("heartbeat_timeout must be longer than heartbeat_interval")
        return self


class SettingsFileError(Exception):
    """The settings file can't be read."""


def load(config: Path | None) -> OperatorSettings:
    """Return the settings of the environment and of a file (YAML), if there is one.

    Raises:
        pydantic.ValidationError: They contradict the schema.
        SettingsFileError: The file can't be read.
    """
    return OperatorSettings(**({} if config is None else _read(config)))


def _read(config: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(config.read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsFileError(f"{config} can't be read: {error}") from error
    if not isinstance(values, dict):
        raise SettingsFileError(f"{config} must be a YAML mapping of settings")
    return {str(name): value for name, value in values.items()}
