"""What a model is told: each sentence of it is in `tests/claims.md`, with the tests that fail where it is not so."""

import re
from collections.abc import Iterator
from typing import Any

from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.settings import Settings
from unit.gateway.mcp.test_descriptions import described
from unit.test_project import NAMED_TEST, ROOT, ids_above_tests

ROW = re.compile(r"^\| (.+) \| ([^|]+) \|$", re.MULTILINE)


def sentences(text: str) -> Iterator[str]:
    """Give the sentences of a text, without line breaks and the numbers of a list."""
    for part in re.split(r"\n\n|\n(?=\d+\. )", text.strip()):
        words = re.sub(r"^\d+\. ", "", " ".join(part.split()))
        yield from re.split(r"(?<=[.!?]) (?=\S)", words)


async def texts(client: Client[Any]) -> list[str]:
    """Return all that a client is told in words before it calls anything, what fields of results mean included."""
    found = [client.instructions or ""]
    for tool in await client.list_tools():
        schemas = [tool.input_schema, tool.output_schema]
        found += [tool.description or "", *(text for _, text in described(schemas))]
    for prompt in await client.list_prompts():
        got = (await client.get_prompt(prompt.name)).messages[0].content
        found += [prompt.description or "", getattr(got, "text", "")]
        found += [argument.description or "" for argument in prompt.arguments or []]
    found += [each.description or "" for each in await client.list_resources()]
    found += [each.description or "" for each in await client.list_resource_templates()]
    return found


def claims() -> dict[str, set[tuple[str, str]]]:
    """Return the tests of each sentence in the table."""
    rows = ROW.findall((ROOT / "tests/claims.md").read_text(encoding="utf-8"))
    said = [sentence for sentence, tests in rows if "::" in tests]
    assert len(said) == len(set(said)), "a sentence stands there twice"
    return {sentence: set(NAMED_TEST.findall(tests)) for sentence, tests in rows if "::" in tests}


async def test_every_sentence_that_a_model_is_told_is_in_the_table_and_no_other() -> None:
    gateway = Gateway(Settings(), FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        told = {sentence for text in await texts(client) for sentence in sentences(text)} - {""}
    assert sorted(told - claims().keys()) == [], "these are in no row"
    assert sorted(claims().keys() - told) == [], "nobody says these any more"


def test_every_claim_names_tests_that_exist() -> None:
    known = {file: ids_above_tests(file) for file in {file for tests in claims().values() for file, _ in tests}}
    missing = {test for tests in claims().values() for test in tests if test[1] not in known[test[0]]}
    assert missing == set()
    assert all(claims().values()), "a sentence has no test"


def test_text_is_taken_apart_into_its_sentences() -> None:
    text = "One thing. Another\nline: `it` is so. `code` begins it.\n\n1. A list's. 2.5 is a number."
    told = ["One thing.", "Another line: `it` is so.", "`code` begins it.", "A list's.", "2.5 is a number."]
    assert list(sentences(text)) == told
