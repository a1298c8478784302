"""A gateway over a fake backend, as callers of its tools see it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from fastmcp import Client

from fakes.backend import FakeBackend
from sandpod_gateway.api.run_results import RunResult
from sandpod_gateway.app import Gateway
from sandpod_gateway.auth import api_keys as auth

ERAS: Final = pytest.mark.parametrize("place", ["auto", "legacy"], indirect=True)
"""For tests of what the protocol carries: self-contained requests of its newer era, sessions of the older one."""


@dataclass
class Caller:
    """A client of the gateway under test, as one owner."""

    client: Client[Any]
    owner: str
    become: Callable[[str], None]

    async def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        self.become(self.owner)
        result = await self.client.call_tool(tool, arguments, raise_on_error=False)
        assert isinstance(result.structured_content, dict)
        assert result.is_error == ("error" in result.structured_content)
        return result.structured_content

    async def python(self, code: str, **arguments: Any) -> RunResult:
        return RunResult.model_validate(await self.call("run_python_code", code=code, **arguments))


@dataclass
class Place:
    """A gateway over a fake backend, and callers of it."""

    gateway: Gateway
    backend: FakeBackend
    connect: Callable[[str], AbstractAsyncContextManager[Caller]]

    def metric(self, name: str, **labels: str) -> float:
        return self.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


def keys_file(folder: Path, *users: str) -> tuple[Path, list[str]]:
    """Write a file with a key for each user; return its path and the keys."""
    made = [auth.make_key(user=user, name="test", days=None, now=datetime.now(UTC)) for user in users]
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": [entry.model_dump(mode="json") for _, entry in made]}))
    return path, [key for key, _ in made]
