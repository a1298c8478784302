"""What the capabilities tell of templates and languages."""

import json
from typing import Any

import pytest

from sandpod_api.names import API_VERSION
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.toolsets import ALL
from sandpod_gateway.backends.base import TemplateInfo
from sandpod_gateway.backends.kubernetes.cache.records import template_info
from sandpod_gateway.capabilities import capabilities
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.metrics import language_label
from sandpod_gateway.packages.settings import NpmSettings, PackageSettings
from sandpod_gateway.settings import Settings
from support.gateway.fake_gateway import Caller, Place

BUILT_IN = ["python", "javascript", "shell"]


def template(**spec: Any) -> dict[str, Any]:
    body = {"image": "ruby:3.3", **spec}
    return {"apiVersion": API_VERSION, "kind": "SandboxTemplate", "metadata": {"name": "ruby"}, "spec": body}


@pytest.mark.claim(
    "run_shell_command(language)",
    "create_sandbox(template)",
    "create_sandbox(network)",
    "create_sandbox(workspace)",
    "sandpod://capabilities",
)
def test_template_tells_its_image_languages_and_networks() -> None:
    ruby = {"name": "ruby", "command": ["ruby", "{file}"]}
    profiles = [{"name": "web"}]
    info = template_info(
        template(runner="Injected", languages=[ruby], networkProfiles=profiles, runtimeClassName="gvisor")
    )
    assert info == TemplateInfo(
        name="ruby",
        image="ruby:3.3",
        languages=("ruby",),
        networks=("none", "web"),
        foreign=True,
        workspace_max=2**28,
        memory=2**29,
        runtime_class="gvisor",
    )
    [told] = json.loads(capabilities(Settings(), "kubernetes", [info], toolsets=ALL))["templates"]["available"]
    assert (told["image"], told["languages"], told["networks"]) == ("ruby:3.3", [*BUILT_IN, "ruby"], ["none", "web"])
    assert "python3" in told["note"]
    assert told["workspace"] == {"max_bytes": 2**28, "persistent": False}


def test_template_of_ours_has_no_note_and_one_of_a_later_version_is_left_out() -> None:
    info = template_info(template())
    assert info is not None
    [told] = json.loads(capabilities(Settings(), "kubernetes", [info], toolsets=ALL))["templates"]["available"]
    assert (told["languages"], "note" in told) == (BUILT_IN, False)
    assert template_info(template(languages="all of them")) is None


async def told(caller: Caller) -> dict[str, Any]:
    [content] = await caller.client.read_resource("sandpod://capabilities")
    result: dict[str, Any] = json.loads(content.text)  # type: ignore[union-attr]  # it is text
    return result


async def test_capabilities_are_told_even_when_the_templates_can_not_be_listed(alice: Caller, place: Place) -> None:
    [fixed] = (await told(alice))["templates"]["available"]
    assert (fixed["name"], fixed["workspace"]) == ("default", "its size is fixed, and it ends with its sandbox")

    async def refuse(owner: str) -> tuple[TemplateInfo, ...]:
        del owner
        raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "Not now.", next_step="Try again.")

    place.backend.templates = refuse  # type: ignore[method-assign]  # a fault that this backend can't have
    assert (await told(alice))["templates"] == {"default": "default", "available": []}


async def test_language_that_the_sandbox_has_not_is_refused_with_those_that_it_has(alice: Caller) -> None:
    answer = await alice.call("run_shell_command", command="1", language="ruby")
    assert answer["error"] == ErrorCode.UNSUPPORTED_LANGUAGE
    assert "It has: " in answer["next"]
    assert (await alice.call("run_shell_command", command="1", language="No Such"))["error"] == answer["error"]


def test_callers_words_are_no_labels() -> None:
    assert [language_label(name) for name in ("python", "shell", "ruby", "x" * 32)] == [
        "python",
        "shell",
        "other",
        "other",
    ]


def test_capabilities_tell_for_which_languages_there_are_packages_and_which_ones() -> None:
    settings = Settings(packages=PackageSettings(npm=NpmSettings(allow=["@made/*"])))
    told = json.loads(capabilities(settings, "local", [], toolsets=ALL))["packages"]
    assert told["languages"] == ["python", "javascript"]
    assert told["npm"] == {"allow": ["@made/*"], "deny": [], "max_packages": 500}
