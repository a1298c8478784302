"""The telnet tools of chrishayuk/mcp-code-sandbox.

A connection is made by a context of the caller's sandbox for them, under its network profile, and never from here: so
it reaches what the caller's programs reach. Nothing is kept here either; a context's name says which connection it is.
"""

import json
import re
import secrets
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.compat.common import OPEN_WORLD, READ, System, refusal, tool

_CODE: Final = Path(__file__).with_name("telnet_program.py").read_text(encoding="utf-8")
_SESSION: Final = "telnet"  # the sandbox's name, and the first word of a connection's context
_CONTEXT: Final = re.compile(rf"{_SESSION} ([0-9a-f]{{16}}) ([0-9]{{1,5}}) (.+)")  # of a connection
_MAX_HOST: Final = 90  # bytes; a context's name has room for no more
_GREETING_SECONDS: Final = 5
_GREETING_BYTES: Final = 1024
_ANSWER_BYTES: Final = 4096
_OVERHEAD_SECONDS: Final = 5

_not_connected: Final = refusal(connected=False, error=...)
_failed: Final = refusal(success=False, error=...)

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(ge=1, le=300)]


class _Reply(BaseModel):
    """What the program says, which is as untrusted as any that runs there."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=_ANSWER_BYTES)] = ""
    problem: Literal["unreachable", "refused", "timeout", "closed"] | None = None
    detail: Annotated[str, Field(max_length=1000)] = ""


class _Connection(NamedTuple):
    record: SandboxRecord  # the sandbox that it is made from
    session_id: str
    host: str
    port: int

    @property
    def context(self) -> str:
        return f"{_SESSION} {self.session_id} {self.port} {self.host}"


class Telnet(System):
    """Its tools for telnet."""

    @tool("Connect by telnet", _not_connected, OPEN_WORLD)
    async def connect(self, host: str, port: Port, timeout: Seconds = 30) -> Any:  # noqa: ASYNC109 - their argument
        """Connect to a telnet server from a sandbox of yours, which reaches what its network profile allows."""
        if not host.isprintable() or not host or " " in host or len(host.encode()) > _MAX_HOST:
            message = f"A host is a name or an address of at most {_MAX_HOST} bytes."
            raise SandpodError(ErrorCode.INVALID_ARGUMENT, message, next_step="Correct it, or use the host's address.")
        record = await self.make(_SESSION, network=self.settings.telnet_network)
        connection = _Connection(record, secrets.token_hex(8), host, port)
        order = {"host": host, "port": port, "limit": _GREETING_BYTES, "greeting": _GREETING_SECONDS, "command": None}
        try:
            reply = await self._order(connection, {**order, "timeout": timeout})
            if reply.problem is not None:
                raise _no_connection(connection, reply)
        except SandpodError:
            await self._end(connection)
            raise
        session = {"session_id": connection.session_id, "connected": True, "host": host, "port": port}
        return {**session, "initial_response": reply.text}

    @tool("Send a line", _failed, OPEN_WORLD)
    async def send_command(self, session_id: str, command: str, timeout: Seconds = 10) -> Any:  # noqa: ASYNC109 - as above
        """Send a line on a connection and return what is answered."""
        connection = await self._connection(session_id)
        reply = await self._order(connection, {"command": command, "limit": _ANSWER_BYTES, "timeout": timeout})
        if reply.problem is None:
            return {"success": True, "response": reply.text}
        if reply.problem == "timeout":
            message = f"{connection.host} said nothing within {timeout} seconds."
            raise SandpodError(ErrorCode.TIMEOUT, message, next_step="Send the next command, or allow more time.")
        step = "Call disconnect, and connect again."
        raise SandpodError(ErrorCode.EXECUTION_FAILED, f"{connection.host} has closed the connection.", next_step=step)

    @tool("Disconnect", _failed, OPEN_WORLD)
    async def disconnect(self, session_id: str) -> Any:
        """Close a connection."""
        await self._end(await self._connection(session_id))
        return {"success": True, "message": f"Connection {session_id} closed successfully"}

    @tool("List connections", _failed, READ)
    async def list_connections(self) -> Any:
        """List your connections."""
        found = [{"session_id": each.session_id, "host": each.host, "port": each.port} for each in await self._open()]
        return {"count": len(found), "connections": found}

    async def _open(self) -> list[_Connection]:
        record = await self.find(_SESSION)
        if record is None:
            return []
        contexts = (await self.parts.background.list_contexts(record.owner, sandbox=record.name)).contexts
        matches = [_CONTEXT.fullmatch(context.name) for context in contexts if context.state != "lost"]
        return [_Connection(record, match[1], match[3], int(match[2])) for match in matches if match is not None]

    async def _connection(self, session_id: str) -> _Connection:
        for connection in await self._open():
            if connection.session_id == session_id:
                return connection
        message = f"No active connection with session ID {session_id[:64]!r}."
        raise SandpodError(ErrorCode.SESSION_NOT_FOUND, message, next_step="Use one that is open, or connect again.")

    async def _order(self, connection: _Connection, order: dict[str, Any]) -> _Reply:
        timeout = order["timeout"] + _GREETING_SECONDS + _OVERHEAD_SECONDS
        stdin, context = json.dumps(order), connection.context
        result = (await self.run(connection.record, _CODE, stdin=stdin, context=context, timeout=timeout)).result
        if result.outcome == Outcome.TIMEOUT:
            return _Reply(problem="timeout")
        try:
            return _Reply.model_validate_json(result.stdout)
        except ValidationError as error:
            message = f"The connection's program failed in the sandbox: {result.hint or result.outcome}."
            step = "Call disconnect, and connect again."
            raise SandpodError(ErrorCode.EXECUTION_FAILED, message, next_step=step) from error

    async def _end(self, connection: _Connection) -> None:
        record = connection.record
        try:
            await self.parts.background.restart_context(record.owner, connection.context, sandbox=record.name)
        except SandpodError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise


def _no_connection(connection: _Connection, reply: _Reply) -> SandpodError:
    record = connection.record
    where = f"{connection.host}, port {connection.port}"
    if record.network == NETWORK_NONE and reply.problem in {"unreachable", "timeout"}:
        return SandpodError(
            ErrorCode.FORBIDDEN,
            f"{where} can't be reached: the sandbox that connections are made from has no network.",
            next_step="Ask the administrator to set compat.telnet_network to a network profile of the template, then "
            f"close the sandbox {record.name}.",
        )
    why = {
        "refused": "nothing listens there, or it refuses",
        "timeout": "it did not answer in time",
        "closed": "it closed the connection at once",
    }.get(str(reply.problem), reply.detail or "it can't be reached")
    step = f"Correct host and port, and see that the network profile {record.network!r} allows them."
    return SandpodError(ErrorCode.EXECUTION_FAILED, f"There is no connection to {where}: {why}.", next_step=step)
