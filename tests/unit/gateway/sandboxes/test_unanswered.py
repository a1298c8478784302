"""A sandbox that does not answer is lost only where its record says so: it may be there, on a busy node."""

import pytest

from sandpod_api.conditions import Reason
from sandpod_gateway.runner import connection as runner_connection
from support.gateway.fake_gateway import Caller, Place


class Silent:
    """A stream of a runner that says nothing, or something that no runner says."""

    def __init__(self, said: bytes = b"") -> None:
        self._said = said

    async def write(self, data: bytes) -> None:
        pass

    async def read(self) -> bytes:
        said, self._said = self._said, b""
        return said

    async def close(self) -> None:
        pass


@pytest.fixture
async def sandbox(alice: Caller, place: Place) -> str:
    sandbox = (await alice.python("print(1)")).sandbox
    assert sandbox is not None
    await alice.call("write_file", path="kept", text="kept", sandbox=sandbox)
    await place.backend.drop_streams(sandbox)
    return sandbox


async def test_one_that_is_there_is_told_as_busy_and_serves_again_with_its_files(
    alice: Caller, place: Place, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        async def silent(_: str) -> Silent:
            return Silent()

        patched.setattr(place.backend, "open_stream", silent)
        patched.setattr(runner_connection, "HELLO_TIMEOUT", 0.01)
        refused = await alice.call("read_file", path="kept", sandbox=sandbox)
        assert (refused["error"], refused["message"]) == ("backend_unavailable", "The sandbox does not answer now.")
    assert (await alice.call("read_file", path="kept", sandbox=sandbox))["content"] == "kept"


async def test_one_that_has_ended_meanwhile_is_told_as_what_it_is(
    alice: Caller, place: Place, sandbox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(name: str) -> Silent:
        await place.backend.lose(name, Reason.EVICTED)
        return Silent()

    monkeypatch.setattr(place.backend, "open_stream", ended)
    refused = await alice.call("read_file", path="kept", sandbox=sandbox)
    assert (refused["error"], refused["message"]) == ("sandbox_lost", "The sandbox is lost, with the files in it.")
