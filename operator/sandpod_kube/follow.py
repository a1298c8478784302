"""All objects of a query, kept up to date by a watch: for few of them, which are wanted whole at each change."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from sandpod_kube.client import KubeClient
from sandpod_kube.resources import Resource


async def follow(
    client: KubeClient, resource: Resource, namespace: str, query: dict[str, str], *, silence: float
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield all objects, now and at each change. A watch without an event for `silence` seconds counts as dead.

    Raises ClusterError: the cluster refused, or can't be reached.
    """
    while True:
        page = await client.list_page(resource, namespace, query)
        objects = {item["metadata"]["name"]: item for item in page.get("items") or []}
        yield list(objects.values())
        watch = client.watch(resource, namespace, query, page["metadata"]["resourceVersion"], silence=silence)
        async with aclosing(watch) as events:
            async for event in events:
                if event["type"] == "ERROR":
                    break  # the version is too old: begin anew
                if event["type"] == "BOOKMARK":
                    continue
                name = event["object"]["metadata"]["name"]
                objects.pop(name, None)
                if event["type"] != "DELETED":
                    objects[name] = event["object"]
                yield list(objects.values())
