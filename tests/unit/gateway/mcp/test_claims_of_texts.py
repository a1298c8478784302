"""Every text that a model gets is proved: a test is marked `claim` with the text's place.

Places are the tool (`read_file`), an argument (`read_file(path)`), a field of the result (`read_file.content`), the URI
of a resource, the name of a prompt (`work_with_sandpod`, `work_with_sandpod.text`), and `instructions`. Of a text that
stands in several places one is enough.
"""

from collections import defaultdict
from typing import Any

from fastmcp import Client

from fakes.backend import FakeBackend
from pages import fields, marked
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings


async def texts(client: Client[Any]) -> dict[str, str]:
    """Return all descriptions that a client gets before it calls anything, by their place."""
    found = {"instructions": client.instructions}
    for tool in await client.list_tools():
        found[tool.name] = tool.description
        found |= {f"{tool.name}({path})": field.get("description") for path, field in fields(tool.input_schema)}
        found |= {f"{tool.name}.{path}": field.get("description") for path, field in fields(tool.output_schema or {})}
    for prompt in await client.list_prompts():
        found[prompt.name] = prompt.description
        found[f"{prompt.name}.text"] = getattr((await client.get_prompt(prompt.name)).messages[0].content, "text", "")
        found |= {f"{prompt.name}({each.name})": each.description for each in prompt.arguments or []}
    found |= {str(each.uri): each.description for each in await client.list_resources()}
    found |= {each.uri_template: each.description for each in await client.list_resource_templates()}
    return {place: text for place, text in found.items() if text}


async def test_every_text_has_a_test_that_proves_it() -> None:
    gateway = Gateway(Settings(), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        found = await texts(client)
    places = defaultdict(list)
    for place, text in found.items():
        places[text].append(place)
    claimed = marked("claim").keys()
    assert len(places) > 80
    assert [names[0] for names in places.values() if claimed.isdisjoint(names)] == [], "no test claims these"
    assert sorted(claimed - found.keys()) == [], "tests claim these, and they are gone"
