"""Toolsets: the groups in which a server, a key and an address choose tools."""

from collections.abc import Iterable
from typing import Final, Literal, get_args

Toolset = Literal["core", "background", "sandboxes", "files", "links", "contexts", "account"]
ToolsetName = Literal[Toolset, "all"]

TOOLS: Final = "tools"
"""The query parameter that names toolsets, separated by commas."""
ALL: Final[frozenset[str]] = frozenset(get_args(Toolset))


def expanded(names: Iterable[str]) -> frozenset[str]:
    """Return the sets that names stand for. Raises ValueError: a name is not a toolset."""
    chosen = {name.strip() for name in names if name.strip()}
    if unknown := chosen - set(get_args(ToolsetName)):
        raise ValueError(f"Unknown toolset: {', '.join(sorted(unknown))[:100]}.")
    return ALL if "all" in chosen else frozenset(chosen)
