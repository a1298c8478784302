"""The kinds of sandboxes that there are, and what isolates them."""

from sandpod_gateway.api.sandbox_states import TemplateList, TemplateSummary
from sandpod_gateway.mcp.toolbox import Toolbox
from sandpod_gateway.sandboxes.service import Sandboxes


def register(toolbox: Toolbox, sandboxes: Sandboxes, kind: str) -> None:
    """Add the operation; `kind` is the backend's."""

    @toolbox.tool("List templates", toolset="core", effect="read")
    async def list_templates() -> TemplateList:
        """List the templates that you may use, with what isolates their sandboxes."""
        return TemplateList(
            backend=kind,
            templates=[
                TemplateSummary(template=each.name, runtime_class=each.runtime_class, networks=list(each.networks))
                for each in await sandboxes.templates()
            ],
        )
