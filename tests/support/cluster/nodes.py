"""Commands on the nodes themselves, for faults that only a node can have. Called by the tests that make them.

Each is a privileged pod that enters the node's own mounts and network; no part of Sandpod could make such a one. A
busy runtime sometimes can't start a container, which is no word on the script: then the kubelet starts it again.
"""

import json
from typing import Any

from support.cluster.cluster import Cluster, ClusterError, until
from support.operator.process import IMAGE

_NAMESPACE = "kube-system"


async def on_every_node(cluster: Cluster, script: str) -> None:
    """Run a shell script on each node that has a kubelet, one after the other.

    Raises:
        ClusterError: It failed on one.
    """
    for node in await cluster.items("nodes", namespace="default"):
        await _on_node(cluster, node["metadata"]["name"], script)


async def _on_node(cluster: Cluster, node: str, script: str) -> None:
    name = f"sandpod-fault-{node}"[:63].rstrip("-.")
    container = {
        "name": "fault",
        "image": IMAGE,
        "command": ["nsenter", "-t", "1", "-m", "-n", "sh", "-euc", script],
        "securityContext": {"privileged": True, "runAsUser": 0},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": {
            "nodeName": node,
            "hostPID": True,
            "restartPolicy": "OnFailure",
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }
    await cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    async def ended() -> bool:
        status = (await cluster.get("pods", name, namespace=_NAMESPACE))["status"]
        if _failed(status):
            said = await cluster.kubectl("logs", name, "-n", _NAMESPACE, check=False)
            raise ClusterError(f"The script on {node} failed: {said[-1000:]} {status}")
        return bool(status.get("phase") == "Succeeded")

    try:
        await until(f"the script on {node} has ended", ended, within=60)
    finally:
        await cluster.kubectl("delete", "pod", name, "-n", _NAMESPACE, "--now")


def _failed(status: dict[str, Any]) -> bool:
    """Return whether the pod's container ran, and ended with an error."""
    states = [each[state] for each in status.get("containerStatuses", ()) for state in ("state", "lastState")]
    return any(state.get("terminated", {}).get("reason") == "Error" for state in states)
