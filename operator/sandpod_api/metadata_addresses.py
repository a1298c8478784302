"""The addresses of clouds' metadata services, which no sandbox may reach."""

from typing import Final

# Where clouds tell machines and pods who they are, credentials among it.
METADATA: Final = (
    "169.254.169.254:80",  # nearly all clouds
    "[fd00:ec2::254]:80",  # Amazon EC2 over IPv6
    "[fd20:ce::254]:80",  # Google over IPv6
    "169.254.169.252:988",  # Google: GKE's own metadata server on each node
    "169.254.170.2:80",  # Amazon ECS: credentials of tasks
    "169.254.170.23:80",  # Amazon EKS: credentials of pods
    "[fd00:ec2::23]:80",  # the same over IPv6
    "168.63.129.16:80",  # Azure: the host's agent
    "100.100.100.200:80",  # Alibaba
    "169.254.0.23:80",  # Tencent
    "169.254.42.42:80",  # Scaleway
    "[fd00:42::42]:80",  # the same over IPv6
    "192.0.0.192:80",  # Oracle Cloud Classic
)
