"""How the gateway uses a cluster: the settings of the Kubernetes backend."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from sandpod_api.fields import Name
from sandpod_gateway.api.strict_model import StrictModel

SecretReference = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}$")]
"""A Secret, as namespace/name."""
UsageReference = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""Usage documents, as namespace/name: the name is the beginning of those of their ConfigMaps."""


class KubernetesSettings(StrictModel):
    """Settings of the Kubernetes backend. Times are seconds."""

    namespace: Name | None = None
    """Namespace of the sandboxes. Unset: the gateway's own in a cluster, else the kubeconfig context's, else `default`.
    It is the default tenant's; `tenants` have others. The gateway's rights end in these namespaces."""
    tenants: Annotated[dict[Name, Name], Field(max_length=100)] = Field({})
    """Namespace of each tenant: callers whose key or token is of a tenant have their sandboxes there, and those of a
    tenant that isn't listed are refused, unless it is made on first use. A namespace that can't be used is tried again
    every few seconds; only its own tenant's callers are affected."""
    tenant_required: bool = False
    """Whether callers without a tenant are refused. Otherwise they are the default tenant's."""
    first_use_namespace: Name | None = None
    """Namespace of the SandboxTenant resources by which tenants that aren't listed are made when their first caller
    comes; the chart sets it (tenantsOnFirstUse). Unset: such callers are refused."""
    first_use_limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """Most tenants that there may be of these; the chart sets it."""
    first_use_timeout: Annotated[float, Field(gt=0, le=600)] = 30
    """Longest time for which a caller waits until its tenant's sandboxes are available, seconds. The answer is then
    `backend_unavailable`, and the tenant is made nevertheless."""
    kubeconfig: Path | None = None
    """Kubeconfig file. Unset: the service account in a cluster, else $KUBECONFIG or ~/.kube/config; set it where a
    pod's own service account is not the one to use."""
    context: str | None = None
    """Context of the kubeconfig. Unset: its current one, which others may switch."""
    link_secret: SecretReference | None = None
    """Secret (namespace/name) with what links are signed with, for all gateways of the namespace; it must be there, and
    the gateway fills it. Unset: links work at the gateway that made them, until it ends."""
    sign_in_secrets: Annotated[tuple[SecretReference, ...], Field(max_length=100)] = ()
    """Secrets (namespace/name) with what sign-ins through the gateways leave (auth.oidc.proxy), sealed; they must be
    there, and link_secret holds the key. Each has room for about a hundred clients. Unset: a sign-in works at the
    gateway where it began, until it ends."""
    keys_secret: SecretReference | None = None
    """Secret (namespace/name) with callers' API keys, in its entry keys.yaml. It is watched: a change takes effect at
    once, at all gateways. Use this or auth.keys_file."""
    usage: UsageReference | None = None
    """Where usage is kept, and limits are shared with other gateways, as namespace/name: in ConfigMaps of this
    namespace whose names begin with this name. Unset: see usage.directory."""
    usage_owner: Name | None = None
    """ConfigMap of that namespace with which these ConfigMaps are deleted. Unset: they stay until somebody deletes
    them."""
    secrets: bool = False
    """Whether sessions and templates may have secrets; the chart sets it. Their values are Secrets in the sandboxes'
    namespace, which the gateway needs the right to create and to read by name."""
    scale_pools: bool = False
    """Whether administrators may scale pools by the REST API. In the chart this also gives the gateway the right to
    patch the pools' subresource `scale`, and no more of them; an autoscaler or the next upgrade may set another
    number."""
    default_template: Name = "default"
    """SandboxTemplate of callers that name none; the chart's own template has this name."""
    cold_start: bool = True
    """Whether a sandbox is made when no warm one is ready: the caller waits some seconds for its pod, unless it chose
    `cold_start=false`. Off, the answer is `pool_exhausted` at once, callers can't ask for more, and only pools decide
    how many pods there are."""
    cold_start_timeout: Annotated[float, Field(gt=0, le=3600)] = 120
    """Longest wait for a pod's start, seconds. Failures that are known come much sooner; this is for a large image on a
    new node."""
    max_sandboxes_per_owner: Annotated[int, Field(ge=1)] = 20
    """Live sandboxes of one caller, so that no caller takes all. Several gateways can pass it by the number of claims
    that they work on at the same moment."""
    max_sandboxes: Annotated[int, Field(ge=1)] = 200
    """Live sandboxes of all of a tenant's callers together: set it below what nodes and quota carry, so that the answer
    comes before any pod is made."""
    touch_interval: Annotated[float, Field(gt=0)] = 30
    """Seconds between two records of a sandbox's use. Each is one write to the API server; the idle timeout is exact
    to this."""
    watch_silence: Annotated[float, Field(gt=0)] = 90
    """Seconds without an event from a watch after which it is opened anew: its connection may be dead
    without a sign. The API server sends one about once a minute."""
    warm_streams: Annotated[int, Field(ge=0, le=100)] = 2
    """Streams kept open to warm sandboxes: opening one takes about 0.1 s, which the first run of a fresh sandbox then
    does not pay. Each costs a process of a few MB in its pod."""
