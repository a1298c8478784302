"""Sandboxes as the API server has them, and a small API server in memory, for the tests of the Kubernetes backend."""

import asyncio
import copy
import itertools
from typing import Any

from sandpod_api import names
from sandpod_api.types import Sandbox
from sandpod_kube.errors import NotFoundError, RefusedError
from sandpod_kube.resources import SECRETS

Json = dict[str, Any]

READY: Json = {"type": "Ready", "status": "True", "reason": "Ready"}


def not_ready(reason: str, message: str = "") -> Json:
    return {"type": "Ready", "status": "False", "reason": reason, "message": message}


def body(name: str, *, claim: Json | None = None, version: str = "1", conditions: list[Json] | None = None) -> Json:
    """Return a Sandbox: warm and Ready, or claimed."""
    state = names.STATE_CLAIMED if claim else names.STATE_WARM
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_STATE: state}
    if claim:
        labels[names.LABEL_OWNER] = names.label_value(claim["owner"])
        labels[names.LABEL_SESSION] = names.label_value(claim.get("session", ""))
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "labels": labels},
        "spec": {"templateRef": {"name": "default"}, **({"claim": claim} if claim else {})},
        "status": {"conditions": [READY] if conditions is None else conditions},
    }


def sandbox(name: str, **fields: Any) -> Sandbox:
    return Sandbox.model_validate(body(name, **fields))


def held_by(owner: str, session: str = "", time: str = "2026-01-01T00:00:00Z") -> Json:
    return {"owner": owner, "session": session, "time": time}


def patched(current: Json, operations: list[Json]) -> Json:
    """Return an object after a JSON patch whose first operation tests the version, as claims write it."""
    test, *changes = operations
    if test["value"] != current["metadata"]["resourceVersion"]:
        raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
    changed = copy.deepcopy(current)
    for change in changes:
        *path, last = (part.replace("~1", "/") for part in change["path"].split("/")[1:])
        place = changed
        for part in path:
            place = place[part]
        if change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
    return changed


class NoStreams:
    """No stream is open before its sandbox is claimed."""

    def names(self) -> set[str]:
        return set()

    def promise(self, name: str) -> None:
        pass


class MemoryApi:
    """Sandboxes with resource versions, as far as claims need them. Answers in the order of the requests."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.secrets: dict[str, Json] = {}
        self.requests: list[str] = []
        self.patches = 0  # that were tried
        self.templates: dict[str, Json] = {"default": {"spec": {"image": "x"}}}
        self.failures: dict[str, Exception] = {}
        self.answer_after: dict[str, asyncio.Event] = {}
        self._versions = itertools.count(100)

    def put(self, made: Json) -> Json:
        made["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[made["metadata"]["name"]] = made
        return copy.deepcopy(made)

    def set_conditions(self, name: str, *conditions: Json) -> Json:
        changed = copy.deepcopy(self.objects[name])
        changed["status"] = {"conditions": list(conditions)}
        return self.put(changed)

    async def get(self, plural: str, name: str) -> Json:
        await self._asked("get")
        found = (self.templates if plural == names.TEMPLATES else self.objects).get(name)
        if found is None:
            raise NotFoundError(404, "NotFound")
        return copy.deepcopy(found)

    async def list_page(self, plural: str, query: dict[str, str]) -> Json:
        assert plural == names.SANDBOXES
        wanted = dict(pair.split("=") for pair in query["labelSelector"].split(","))
        items = [o for o in self.objects.values() if wanted.items() <= o["metadata"]["labels"].items()]
        await self._asked("list")
        return {"items": copy.deepcopy(items), "metadata": {}}

    async def create(self, plural: str, made: Json) -> Json:
        if plural == SECRETS.plural:
            await self._asked("secret")
            self.secrets[made["metadata"]["name"]] = made
            return made
        assert plural == names.SANDBOXES
        fresh = copy.deepcopy(made)
        fresh["metadata"]["uid"] = f"uid-{fresh['metadata']['name']}"
        answer = self.put(fresh)
        await self._asked("create")
        return answer

    async def json_patch(self, plural: str, name: str, operations: list[Json]) -> Json:
        assert plural == names.SANDBOXES
        self.patches += 1
        current = self.objects.get(name)
        if current is None:
            raise NotFoundError(404, "NotFound")
        try:
            changed = patched(current, operations)
        except RefusedError:
            await self._asked("lost")
            raise
        answer = self.put(changed)
        await self._asked("patch")
        return answer

    async def merge_patch(self, plural: str, name: str, change: Json) -> Json:
        assert plural == names.SANDBOXES
        if name not in self.objects:
            raise NotFoundError(404, "NotFound")
        changed = copy.deepcopy(self.objects[name])
        changed["metadata"].setdefault("annotations", {}).update(change["metadata"].get("annotations", {}))
        changed["spec"].update(change.get("spec", {}))
        changed["metadata"]["generation"] = changed["metadata"].get("generation", 1) + ("spec" in change)
        answer = self.put(changed)
        await self._asked("merge")
        return answer

    async def delete(self, plural: str, name: str) -> None:
        assert plural == names.SANDBOXES
        await self._asked("delete")
        if self.objects.pop(name, None) is None:
            raise NotFoundError(404, "NotFound")

    async def _asked(self, kind: str) -> None:
        """The request has reached the server; its answer may take some time, or never come."""
        self.requests.append(kind)
        if kind in self.answer_after:
            await self.answer_after[kind].wait()
        await asyncio.sleep(0)
        if kind in self.failures:
            raise self.failures[kind]
