"""What serves metrics to autoscalers, in the place of Prometheus and its adapter: those that the chart asks for.

It answers through the API server's aggregation, with what /metrics of operator or gateways says at that moment.
Prometheus tells how much was claimed in its last two minutes; here it is since a moment that the test chooses, so that
nothing depends on time.
"""

import asyncio
import base64
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from prometheus_client.parser import text_string_to_metric_families

from support.cluster import reading, writing
from support.cluster.cluster import until
from support.operator.process import now
from support.servers.https_server import Served, https_server

GROUP: Final = "external.metrics.k8s.io"
VERSION: Final = "v1beta1"
METRIC: Final = "sandpod_pool_claims_per_second"
NAME: Final = "metrics-adapter"
STREAMS: Final = "sandpod_open_streams"


class Answers(Protocol):
    """Who answers for one API."""

    @property
    def group(self) -> str: ...
    @property
    def version(self) -> str: ...

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return what the API says at a path; None where there is nothing."""


class OpenStreams:
    """Tells autoscalers how many streams each of the gateways has open, as `custom.metrics.k8s.io`."""

    group: Final = "custom.metrics.k8s.io"
    version: Final = "v1beta2"

    def __init__(self, namespace: str, pods: Callable[[], dict[str, str]]) -> None:
        self._namespace, self._pods = namespace, pods  # what each pod's /metrics says now

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return what the API says at a path; None where there is nothing."""
        root, api = f"/apis/{self.group}/{self.version}", f"{self.group}/{self.version}"
        address = unquote(urlsplit(path).path)
        if address == root:
            kind = {"name": f"pods/{STREAMS}", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
            return {**_typed("v1", "APIResourceList"), "groupVersion": api, "resources": [kind]}
        if address != f"{root}/namespaces/{self._namespace}/pods/*/{STREAMS}":
            return None
        items = [
            {
                "describedObject": {**_typed("v1", "Pod"), "name": name, "namespace": self._namespace},
                "metric": {"name": STREAMS},
                "timestamp": now(),
                "value": f"{_sum(text, STREAMS):g}",
            }
            for name, text in self._pods().items()
        ]
        return {**_typed(api, "MetricValueList"), "metadata": {}, "items": items}


def _sum(text: str, name: str) -> float:
    families = text_string_to_metric_families(text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


class Adapter:
    """Tells autoscalers how many claims there were of a pool since the last word of `quiet`."""

    group: Final = GROUP
    version: Final = VERSION

    def __init__(self, scrape: Callable[[], str]) -> None:
        self._scrape = scrape
        self._before: dict[tuple[str, str], float] = {}
        self.asked: list[str] = []

    def quiet(self) -> None:
        """Let all that was claimed up to now be long ago."""
        self._before = self._claims()

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return what the API says at a path; None where there is nothing."""
        address = urlsplit(path)
        if address.path == f"/apis/{GROUP}/{VERSION}":
            kind = {"name": METRIC, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            return {**_typed("v1", "APIResourceList"), "groupVersion": f"{GROUP}/{VERSION}", "resources": [kind]}
        place, _, metric = address.path.rpartition("/")
        if metric != METRIC:
            return None
        (selector,) = parse_qs(address.query)["labelSelector"]
        self.asked.append(selector)
        key = (place.rpartition("/")[2], selector.removeprefix("pool="))
        claims = self._claims().get(key)
        if claims is None:
            return None
        value = {
            "metricName": METRIC,
            "metricLabels": {"pool": key[1]},
            "timestamp": now(),
            "value": f"{claims - self._before.get(key, 0):g}",
        }
        return {**_typed(f"{GROUP}/{VERSION}", "ExternalMetricValueList"), "metadata": {}, "items": [value]}

    def _claims(self) -> dict[tuple[str, str], float]:
        """Return the claims by namespace and pool, whatever their origin."""
        found: dict[tuple[str, str], float] = {}
        for family in text_string_to_metric_families(self._scrape()):
            for sample in family.samples:
                if sample.name == "sandpod_pool_claims_total":
                    key = (sample.labels["namespace"], sample.labels["pool"])
                    found[key] = found.get(key, 0) + sample.value
        return found


def _typed(version: str, kind: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind}


@contextlib.contextmanager
def serving(adapter: Answers, namespace: str, folder: Path) -> Iterator[None]:
    """Let the API server ask the adapter. Whatever happens, it knows nothing of it afterwards.

    An API that does not answer holds up the deletion of every namespace, so it is there before the API server is told
    of it, and goes after that.

    Args:
        adapter: Who answers.
        namespace: Where the Service is made that stands for it.
        folder: Where its certificate is written.
    """

    def answer(path: str, _: bytes) -> dict[str, Any] | None:
        return adapter.answer(path)

    with https_server(answer, folder, f"{NAME}.{namespace}.svc") as served:
        service, api = _objects(namespace, served, adapter)
        try:
            for each in (service, api):
                writing.apply(each)

            async def available() -> bool:
                path = writing.path_for(api)
                conditions = (
                    (await asyncio.to_thread(reading.call, "GET", path)).get("status", {}).get("conditions", [])
                )
                return any((c["type"], c["status"]) == ("Available", "True") for c in conditions)

            asyncio.run(until("the adapter's API is available", available, within=60))
            yield
        finally:
            writing.remove(api)


def _objects(namespace: str, served: Served, adapter: Answers) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what leads the API server to a port of this machine.

    By an address and not by endpoints: those take a while to be known to the node, and until then what is sent to the
    Service goes to wherever the machine's network sends it, on a connection that the API server keeps.
    """
    place = {"name": NAME, "namespace": namespace}
    leads = {"type": "ExternalName", "externalName": served.host}
    service = {**_typed("v1", "Service"), "metadata": place, "spec": leads}
    api = {
        **_typed("apiregistration.k8s.io/v1", "APIService"),
        "metadata": {"name": f"{adapter.version}.{adapter.group}"},
        "spec": {
            "group": adapter.group,
            "version": adapter.version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {**place, "port": served.port},
            "caBundle": base64.b64encode(served.certificate).decode(),
        },
    }
    return service, api
