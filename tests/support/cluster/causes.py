"""What makes alerts fire: objects that are wrong, rights that are taken away, and how all of it is put right again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sandpod_api.names import API_VERSION
from support.cluster import writing
from support.cluster.reading import call
from support.operator.process import now

Json = dict[str, Any]
NOWHERE: Final = "nowhere"
SHARED: Final = "sandpod-watched"
STUCK: Final = "stuck"
_RBAC: Final = "rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Causes:
    """Makes them in the namespace of a release's sandboxes."""

    space: str
    image: str

    async def apply(self, kind: str, name: str, version: str = API_VERSION, **rest: Any) -> Json:
        """Make or change an object."""
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}
        await asyncio.to_thread(writing.apply, made, self.space)
        return made

    async def remove(self, *manifests: Json) -> None:
        """Delete objects."""
        for each in manifests:
            await asyncio.to_thread(writing.remove, each, self.space)

    async def sandbox(self, name: str, template: str) -> Json:
        """Make a Sandbox that somebody holds."""
        claim = {"owner": "alice", "time": now()}
        return await self.apply("Sandbox", name, spec={"templateRef": {"name": template}, "claim": claim})

    async def no_node(self) -> tuple[Json, Json]:
        """Make a pool and a claim whose pods no node takes."""
        spec = {"image": self.image, "nodeSelector": {"sandpod.dev/nowhere": ""}}
        await self.apply("SandboxTemplate", NOWHERE, spec=spec)
        pool = await self.apply("SandboxPool", NOWHERE, spec={"templateRef": {"name": NOWHERE}, "replicas": 1})
        return pool, await self.sandbox("waits", NOWHERE)

    async def policy(self, *egress: Json) -> Json:
        """Make somebody's NetworkPolicy for all pods."""
        spec = {"podSelector": {}, "policyTypes": ["Egress"], "egress": list(egress)}
        return await self.apply("NetworkPolicy", "theirs", "networking.k8s.io/v1", spec=spec)

    async def shared_kernel(self) -> None:
        """Make a sandbox with a RuntimeClass that leads to the node's own kernel."""
        handler = await self.apply("RuntimeClass", SHARED, "node.k8s.io/v1", handler="runc")
        assert handler["handler"] == "runc"
        spec = {"image": self.image, "runtimeClassName": SHARED}
        await self.apply("SandboxTemplate", SHARED, spec=spec)
        await self.sandbox("shares", SHARED)

    @asynccontextmanager
    async def refused_status(self) -> AsyncIterator[None]:
        """Have the API server refuse each status of a Sandbox."""
        group = "admissionregistration.k8s.io/v1"
        rule = {
            "apiGroups": ["sandpod.dev"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["sandboxes/status"],
            "resourceNames": [STUCK],
        }
        policy = await self.apply(
            "ValidatingAdmissionPolicy",
            SHARED,
            group,
            spec={"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]},
        )
        where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.space}}}
        binding = await self.apply(
            "ValidatingAdmissionPolicyBinding",
            SHARED,
            group,
            spec={"policyName": SHARED, "validationActions": ["Deny"], "matchResources": where},
        )
        try:
            yield
        finally:
            await self.remove(binding, policy)

    @asynccontextmanager
    async def without_right(self, role: str, resource: str) -> AsyncIterator[None]:
        """Take a right from a Role, and give it back."""
        path = f"/apis/{_RBAC}/namespaces/{self.space}/roles/{role}"
        found = await asyncio.to_thread(call, "GET", path)
        left = [rule for rule in found["rules"] if resource not in rule["resources"]]
        assert len(left) < len(found["rules"])
        await self._set(path, left)
        try:
            yield
        finally:
            await self._set(path, found["rules"])

    async def _set(self, path: str, rules: list[Json]) -> None:
        change = {"rules": rules}
        await asyncio.to_thread(call, "PATCH", path, change, content_type="application/merge-patch+json")
