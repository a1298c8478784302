"""The gateway's services, as the tools call them."""

from dataclasses import dataclass

from sandpod_gateway.files.links import LinkMaker
from sandpod_gateway.files.service import Files
from sandpod_gateway.metrics import Metrics
from sandpod_gateway.packages.installer import Installer
from sandpod_gateway.runs.background import BackgroundRuns
from sandpod_gateway.runs.service import Runs
from sandpod_gateway.sandboxes.service import Sandboxes


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the tools call."""

    runs: Runs
    background: BackgroundRuns
    sandboxes: Sandboxes
    files: Files
    links: LinkMaker
    installer: Installer
    metrics: Metrics
