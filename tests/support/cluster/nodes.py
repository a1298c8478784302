"""Commands on the nodes themselves, for faults that only a node can have. Called by the tests that make them.

Each is a privileged pod that enters the node's own mounts and network; no part of Sandpod could make such a one.
"""

import json

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
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }
    await cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))

    async def ended() -> bool:
        found = await cluster.get("pods", name, namespace=_NAMESPACE)
        if found["status"].get("phase") == "Failed":
            said = await cluster.kubectl("logs", name, "-n", _NAMESPACE, check=False)
            raise ClusterError(f"The script on {node} failed: {said[-1000:]} {found['status']}")
        return bool(found["status"].get("phase") == "Succeeded")

    try:
        await until(f"the script on {node} has ended", ended, within=60)
    except ClusterError as error:
        raise ClusterError(f"{error}; {await cluster.get('pods', name, namespace=_NAMESPACE)}") from None
    finally:
        await cluster.kubectl("delete", "pod", name, "-n", _NAMESPACE, "--now")
