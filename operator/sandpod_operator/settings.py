"""The operator's settings: one frozen model, read once in `__main__`, passed by keyword.

Every field is `SANDPOD_OPERATOR_<NAME>` in the environment, which takes precedence over the settings file. No other
module reads the environment.
"""

import importlib.metadata
import os
import re
import secrets
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from sandpod_api.names import is_dns_label
from sandpod_telemetry.endpoint import PATTERN


def _api_server() -> str:
    """Return where the API server is, as Kubernetes sets it in every pod; that is also the address to probe."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    return f"{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}" if host else ""


class OperatorSettings(BaseSettings):
    """How the operator works. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix="SANDPOD_OPERATOR_", frozen=True)

    namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        min_length=1, description="Namespaces whose sandboxes it manages, separated by commas."
    )
    namespace: str = Field("default", description="Its own namespace, for the Lease of the active replica.")
    lease_owner: str = Field("", description="ConfigMap of its own namespace with which that Lease is deleted.")
    identity: str = Field(
        # A restarted pod keeps its name, and must not take over its old Lease.
        default_factory=lambda: f"{socket.gethostname()}-{secrets.token_hex(4)}",
        min_length=1,
        description="Its name in the Lease; unique for each process.",
    )

    tenant_manifests: Path | None = Field(
        None,
        description="File with what the namespace of a tenant holds that is made on first use; the chart mounts it. "
        "Unset: none are made.",
    )
    tenant_prefix: str = Field(
        "", pattern=r"^([a-z0-9][-a-z0-9]{0,61})?$", description="Beginning of the names of such namespaces."
    )
    max_tenants: int = Field(100, ge=1, le=1000, description="Most tenants that are made on first use.")

    host_users: bool | None = Field(
        None,
        description="hostUsers of pods whose template does not set it. false gives each its own user namespace, "
        "true none; unset gives it if every node that may run the pod supports it. Never applied with a "
        "RuntimeClass, whose pods get one only if it has the annotation sandpod.dev/user-namespaces: true.",
    )
    runner_image: str = Field(
        default_factory=lambda: f"sandpod/sandbox:{importlib.metadata.version('sandpod')}",
        min_length=1,
        description="Sandpod's sandbox image: the runner comes from it for templates whose image has none.",
    )
    api_server: str = Field(
        default_factory=_api_server,
        description="host:port of the API server that no sandbox may reach; from KUBERNETES_SERVICE_HOST.",
    )
    cluster_dns: str = Field(
        "10.96.0.10:53",
        description="host:port of the cluster's DNS that no sandbox without DNS may reach; kubeadm's value.",
    )
    peer: str = Field(
        "",
        description="host:port of another pod that no sandbox may reach, unless a network profile of its template "
        "opens that address; the chart gives the operator's own.",
    )
    more_probes: str = Field("", description="More host:port pairs, separated by commas, that no sandbox may reach.")

    probe_interval: int = Field(
        300,
        ge=0,
        description="Time between two checks by a running sandbox whether its network is closed; 0 means only at "
        "its start. One whose network stays open for that time, or for half a minute, ends.",
    )
    allow_open_network: bool = Field(
        False,
        description="Whether a sandbox that finds its network open at its start is handed out anyway, with "
        "NetworkIsolated False. Off, it never is.",
    )

    retention: float = Field(
        600, ge=0, description="Time that an expired or failed Sandbox is kept, so that its caller learns why."
    )
    failed_pod_grace: float = Field(
        30, ge=0, description="Time that a failed pod is kept, so that its log can be read."
    )
    status_delay: float = Field(
        5,
        ge=0,
        description="Time in which the status of a new Sandbox that is only starting is not written: it would be "
        "overwritten at once, since a pod starts in two seconds.",
    )
    refused_retry: float = Field(
        5, gt=0, description="First wait before a refused pod is tried again; doubles up to a minute."
    )
    pool_burst: int = Field(25, ge=1, le=500, description="Most warm sandboxes that one pass over a pool creates.")

    workers: int = Field(16, ge=1, le=256, description="Objects worked on at once.")
    backoff_min: float = Field(0.5, gt=0, description="Wait after an object's first error; doubles.")
    backoff_max: float = Field(300, gt=0, description="Longest wait after errors.")
    sweep_interval: float = Field(5, gt=0, description="Time between searches for pods without a Sandbox.")
    orphan_grace: float = Field(
        30, ge=0, description="Time that a pod without a Sandbox is left to Kubernetes' own garbage collector."
    )
    resync_interval: float = Field(
        180, gt=0, description="Time between full lists, which repair whatever a watch lost."
    )
    watch_silence: float = Field(
        70,
        gt=0,
        description="Time without an event of a watch after which it is reopened: its connection may be dead "
        "without notice. The API server sends something about once a minute.",
    )
    request_timeout: float = Field(
        35,
        gt=0,
        description="Longest wait for one answer of the API server. It waits up to 30 s for an admission webhook, and "
        "then names it.",
    )

    lease_duration: int = Field(
        15, ge=2, description="Time after which an active replica that does not renew is replaced."
    )
    lease_renew_deadline: float = Field(
        10, gt=0, description="Time without renewal after which the active replica ends itself."
    )
    lease_retry: float = Field(2, gt=0, description="Time between tries to get or renew the Lease.")
    heartbeat_interval: float = Field(
        15, gt=0, description="Time between the writes whose watch events prove that events arrive."
    )
    heartbeat_timeout: float = Field(90, gt=0, description="Time without such an event after which /healthz fails.")

    http_host: str = Field("0.0.0.0", description="Address of /healthz, /readyz and /metrics.")
    http_port: int = Field(8081, ge=0, le=65535, description="Port of the same; 0 takes a free one.")
    traces_endpoint: str | None = Field(
        None,
        max_length=500,
        pattern=PATTERN,
        description="Address of an OpenTelemetry collector that takes OTLP over HTTP, such as http://collector:4318; "
        "unset: that of OTEL_EXPORTER_OTLP_ENDPOINT, and no traces without one.",
    )
    traces_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of reconciles that is sent; unset: what OTEL_TRACES_SAMPLER says, or all.",
    )
    log_format: Literal["console", "json"] = Field("console", description="Log lines for people or for machines.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Lowest level that is logged.")

    def refused_wait(self, times: int) -> timedelta:
        """Return how long to wait after that many refusals or failures before the last one: doubled for each."""
        return timedelta(seconds=min(self.backoff_max, self.refused_retry * 2 ** min(times, 16)))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - of the base class
        *_: PydanticBaseSettingsSource,
        **sources: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the environment before what the file says."""
        return sources["env_settings"], sources["init_settings"]

    @field_validator("api_server", "cluster_dns", "peer", "more_probes")
    @classmethod
    def _endpoints(cls, value: str) -> str:
        for each in filter(None, map(str.strip, value.split(","))):
            host, _, port = each.rpartition(":")
            if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
                raise ValueError(f"{each!r} is not host:port, such as 192.0.2.1:443")
        return value

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
        if self.tenant_manifests is not None and not self.tenant_prefix:
            raise ValueError("tenant_prefix is needed with tenant_manifests")
        if not self.lease_retry < self.lease_renew_deadline < self.lease_duration:
            raise ValueError("lease_retry, lease_renew_deadline and lease_duration must grow in this order")
        if self.heartbeat_timeout <= self.heartbeat_interval:
            raise ValueError("heartbeat_timeout must be longer than heartbeat_interval")
        return self
