"""Debian's Prometheus and Alertmanager as processes on this machine, which watch one release through the API server.

They reach it through `kubectl proxy`, so that no port of a pod is needed, and find its pods as they come and go.
"""

import asyncio
import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.cluster.reading import read
from support.ports import await_open, free_port


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Where both answer."""

    prometheus: str
    alertmanager: str

    async def firing(self) -> set[str]:
        """Return the alerts that Prometheus says fire now."""
        found = await self._get(f"{self.prometheus}/api/v1/alerts")
        return {each["labels"]["alertname"] for each in found["data"]["alerts"] if each["state"] == "firing"}

    async def sent(self) -> dict[str, dict[str, str]]:
        """Return the annotations of the alerts that have reached Alertmanager, by name."""
        found = await self._get(f"{self.alertmanager}/api/v2/alerts")
        return {each["labels"]["alertname"]: each["annotations"] for each in found}

    async def values(self, query: str) -> list[float]:
        """Return what a query gives now, a value for each series."""
        address = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        return [float(each["value"][1]) for each in (await self._get(address))["data"]["result"]]

    async def _get(self, address: str) -> Any:
        def read() -> Any:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - its own
                return json.load(answer)

        return await asyncio.to_thread(read)


@contextmanager
def monitoring(folder: Path, rules: str, namespace: str, node: str, others: dict[str, str]) -> Iterator[Monitoring]:
    """Run both, for the pods of a namespace, a node's kubelet, and others by the names of pods that they get."""
    proxy, own, manager, cluster = (free_port() for _ in range(4))
    base = f"127.0.0.1:{proxy}"
    targets = folder / "pods.json"
    pods = {
        "job_name": "pods",
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
        "honor_labels": True,
    }
    kubelet = {
        "job_name": "cadvisor",
        "scrape_interval": "5s",
        "scrape_timeout": "5s",
        "honor_labels": True,
        "metrics_path": f"/api/v1/nodes/{node}/proxy/metrics/cadvisor",
        "static_configs": [{"targets": [base]}],
        "metric_relabel_configs": [{"source_labels": ["container"], "regex": "sandbox", "action": "keep"}],
    }
    alone = {
        "job_name": "others",
        "static_configs": [
            {"targets": [address], "labels": {"namespace": namespace, "pod": pod}} for pod, address in others.items()
        ],
    }
    configuration = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]},
        "scrape_configs": [pods, kubelet, alone],
    }
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    (folder / "alertmanager.yaml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n", encoding="utf-8")
    commands = [
        ["kubectl", "proxy", f"--port={proxy}"],
        [
            *("prometheus-alertmanager", f"--config.file={folder}/alertmanager.yaml", f"--storage.path={folder}/am"),
            *(f"--web.listen-address=127.0.0.1:{manager}", f"--cluster.listen-address=127.0.0.1:{cluster}"),
        ],
        [
            *("prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb"),
            *(f"--web.listen-address=127.0.0.1:{own}", "--rules.alert.resend-delay=1s"),
        ],
    ]
    running: list[subprocess.Popen[bytes]] = []
    ended = threading.Event()
    finder = threading.Thread(target=_find_pods, args=(namespace, base, targets, ended))
    finder.start()
    try:
        for command, port in zip(commands, (proxy, manager, own), strict=True):
            with (folder / f"{command[0]}.log").open("wb") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
            await_open("127.0.0.1", port)
        yield Monitoring(f"http://127.0.0.1:{own}", f"http://127.0.0.1:{manager}")
    finally:
        ended.set()
        finder.join(60)
        for process in reversed(running):
            process.kill()
            process.wait(30)


def metrics_path(namespace: str, pod: str) -> str:
    """Return where the API server has the metrics of a gateway's or an operator's pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{pod}:8081/proxy/metrics"


def _find_pods(namespace: str, base: str, file: Path, ended: threading.Event) -> None:
    """Write down the pods that run as they come and go: Debian's Prometheus knows nothing of Kubernetes."""
    while not ended.is_set():
        found = [
            {
                "targets": [base],
                "labels": {
                    "namespace": namespace,
                    "pod": pod["metadata"]["name"],
                    "__metrics_path__": metrics_path(namespace, pod["metadata"]["name"]),
                },
            }
            for pod in read("pods", namespace)["items"]
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        half = file.with_suffix(".half")
        half.write_text(json.dumps(found), encoding="utf-8")
        half.replace(file)
        ended.wait(1)
