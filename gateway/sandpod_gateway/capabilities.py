"""What this server offers and bounds, in one JSON text for the model."""

import json
from collections.abc import Iterable
from typing import Any, Final

from sandpod_gateway.api.run_results import Language
from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.auth.current import current_caller
from sandpod_gateway.backends.base import TemplateInfo
from sandpod_gateway.backends.local import environments
from sandpod_gateway.files.service import MAX_ENTRIES, MAX_READ
from sandpod_gateway.settings import Settings
from sandpod_runner.protocol import messages as protocol

_FOREIGN: Final = (
    "This image was not made for Sandpod. Those languages work whose program it has: python3 (3.9 or newer), node, sh, "
    "and what the template adds; contexts need python3 or node. Packages are the image's own. All else is as "
    "in other templates."
)


def facts(settings: Settings) -> dict[str, str]:
    """Return what the descriptions of tools say of this server, by name."""
    limits, libraries = settings.limits, settings.libraries
    if not libraries and settings.backend == "local" and (environment := environments.ready(settings.local)):
        libraries = environment.libraries()
    return {
        "timeout": f"{limits.run_timeout:g}",
        "max_timeout": f"{limits.max_run_timeout:g}",
        "max_output": str(limits.output_chars),
        "network": " No network by default.",
        "libraries": f" Installed: {', '.join(libraries)}." if libraries else "",
    }


def capabilities(settings: Settings, kind: str, templates: Iterable[TemplateInfo], *, toolsets: frozenset[str]) -> str:
    """Return limits, languages, templates and network profiles as JSON, for a caller who may use those toolsets.

    Sizes in bytes, times in seconds.
    """
    limits = settings.limits
    backend = settings.kubernetes if kind == "kubernetes" else settings.local
    template = settings.kubernetes.default_template if kind == "kubernetes" else settings.local.template
    template = (current_caller().templates or (template,))[0]
    shared = {"allow", "deny", "max_packages"}  # settings of Python's packages and of npm's
    return json.dumps(
        {
            "backend": kind,
            "toolsets": {"on": sorted(toolsets), "off": sorted(ALL - toolsets)},
            "languages": list(Language),
            "contexts": {"languages": [Language.PYTHON, Language.JAVASCRIPT], "max_per_sandbox": protocol.MAX_CONTEXTS},
            "templates": {"default": template, "available": [_template(each) for each in templates]},
            "cold_start": backend.cold_start,
            "image": "each template names its own; get_sandbox tells a sandbox's",
            "network": {"default": "none", "note": "no network unless the template has a profile that is asked for"},
            "packages": {
                **settings.packages.model_dump(include={"enabled", "max_bytes", "timeout", *shared}),
                "languages": [Language.PYTHON, Language.JAVASCRIPT],
                "npm": settings.packages.npm.model_dump(include=shared),
            },
            "limits": {
                "code_max_bytes": limits.code_bytes,
                "stdin_max_bytes": limits.stdin_bytes,
                "upload_max_bytes": limits.upload_bytes,
                "read_max_bytes": MAX_READ,
                "list_max_entries": MAX_ENTRIES,
                "run_timeout_default": limits.run_timeout,
                "run_timeout_max": limits.max_run_timeout,
                "output_default_chars": limits.output_chars,
                "output_kept_bytes": limits.output_cap,
                "output_max_bytes": limits.output_bytes,
                "sandboxes_max_per_caller": backend.max_sandboxes_per_owner,
            },
        }
    )


def _template(template: TemplateInfo) -> dict[str, Any]:
    return {
        "name": template.name,
        "languages": [*Language, *template.languages],
        "networks": template.networks,
        "workspace": {"max_bytes": template.workspace_max, "persistent": template.persistent}
        if template.workspace_max is not None
        else "its size is fixed, and it ends with its sandbox",
        **({"image": template.image} if template.image is not None else {}),
        **({"note": _FOREIGN} if template.foreign else {}),
    }
