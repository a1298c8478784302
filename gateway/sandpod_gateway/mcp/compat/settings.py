"""Settings of the compatibility tools."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.api.strict_model import StrictModel

System = Literal["philschmid", "johanli233", "chrishayuk", "gaiar"]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class CompatSettings(StrictModel):
    """Tools of other systems."""

    systems: list[System] = Field([])
    """Whose tools are offered: philschmid/code-sandbox-mcp, JohanLi233/mcp-sandbox, chrishayuk/mcp-code-sandbox,
    gaiar/mcp-code-sandbox. Where a name is taken, theirs replaces ours, the later one's the earlier's."""
    python_image: str | None = None
    """Image of philschmid's Python runs: that of a template. Also --python-image."""
    js_image: str | None = None
    """Image of philschmid's JavaScript runs, as above. Also --js-image."""
    container_image: str | None = None
    """Image of philschmid's runs in container_language. Also CONTAINER_IMAGE in the environment."""
    container_language: str | None = None
    """The language that container_image is for. Also CONTAINER_LANGUAGE in the environment."""
    pass_through_env: list[EnvName] = Field([])
    """Variables of the server's environment that philschmid's runs get; their values are masked in the output. Also
    --pass-through-env A,B, and PASSTHROUGH_ENV in the environment."""
    upload_dir: Path | None = None
    """Folder of the server that johanli233's upload_file_to_sandbox may read; without it, none."""
    telnet_network: str = NETWORK_NONE
    """Network profile of the sandboxes that chrishayuk's telnet connections are made from: one of the default template;
    none reaches nothing."""

    def place(self, language: str) -> tuple[str, str | None]:
        """Return the language that a tool's runs really have, and the image that they are to have, or None for any.

        `container_image` is for the tool of its language; where none has that language, for all.
        """
        own = {"python": self.python_image, "javascript": self.js_image}
        image, other = self.container_image, self.container_language
        if image is None or (other in own and other != language):
            return language, own.get(language)
        return (language if other is None else other), own.get(language) or image


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what the environment sets by names that are the other system's own."""
    names = {"container_image": "CONTAINER_IMAGE", "container_language": "CONTAINER_LANGUAGE"}
    found: dict[str, Any] = {field: environment[name] for field, name in names.items() if environment.get(name)}
    passed = [name.strip() for name in environment.get("PASSTHROUGH_ENV", "").split(",") if name.strip()]
    if passed:
        found["pass_through_env"] = passed
    return {"compat": found} if found else {}
