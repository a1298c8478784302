"""Tries in sandboxes what is the same for all kinds of them, and makes the sandboxes that it takes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from sandpod_gateway.backends.base import Backend, ClaimRequest, SandboxRecord
from sandpod_gateway.backends.local.seccomp import REFUSED
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.demux import ConnectionLostError
from sandpod_gateway.verify.attacks import ATTACKS
from sandpod_gateway.verify.model import GONE, Facts, Status, Untried, judged
from sandpod_gateway.verify.programs import Programs, programs, source
from sandpod_gateway.verify.rows.identity import ROWS as IDENTITY
from sandpod_gateway.verify.rows.syscalls import CALLS

logger = logging.getLogger(__name__)

OWNER: Final = "user:sandpod-verify"
LIFETIME: Final = 1800  # seconds, after which a sandbox ends though nobody deletes it
LISTEN_PORTS: Final = (8765, 8766)
_DELETE_SECONDS: Final = 20.0
# Rows without which a program that attacks its sandbox would reach what is beside it.
_WALLS: Final = ("user-not-root", "capabilities-none", "processes-own", "ipc-own", "interfaces-own")
_TRIES: Final = 4  # to open a stream to a sandbox that is attacked by its own programs
_MORE: Final = 64 * 2**20  # bytes over a limit that are tried
_MOST_MEMORY: Final = 4 * 2**30  # bytes that are tried at most, so that a wrong limit does not cost the node
_MOST_PROCESSES: Final = 3000


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a sandbox may take by its settings; 0 where that is not bounded by the sandbox itself."""

    memory: int
    processes: int
    open_files: int
    folders: dict[str, int]


@asynccontextmanager
async def sandbox(backend: Backend, **wish: Any) -> AsyncIterator[SandboxRecord]:
    """Make a sandbox and delete it at the end, whatever the end is. Raises SandpodError: there can be none."""
    request = ClaimRequest(owner=OWNER, ttl=LIFETIME, idle_timeout=LIFETIME, **wish)
    made = await backend.claim(request)
    try:
        yield made
    finally:
        await _delete(backend, made.name)


async def _delete(backend: Backend, name: str) -> None:
    """Delete a sandbox, also while this task is cancelled: a second Ctrl-C leaves it to its lifetime."""
    deleting = asyncio.ensure_future(backend.delete(name))
    try:
        async with asyncio.timeout(_DELETE_SECONDS):
            await asyncio.shield(deleting)
    except (SandpodError, TimeoutError) as error:
        logger.warning("the sandbox %s was not deleted, and ends by itself: %s", name, error)


async def look(inside: Programs) -> dict[str, Facts | Untried]:
    """Return what the programs tell that only look, or try what harms nobody."""
    return {
        "identity": await inside.facts("identity"),
        "files": await inside.facts("files"),
        "syscalls": await inside.facts("syscalls", {"calls": {name: REFUSED[name] for name in CALLS}}),
        "escapes": await inside.facts("escapes"),
        "capabilities": await inside.facts("capabilities"),
        "links": await links(inside),
    }


async def links(inside: Programs) -> Facts | Untried:
    """Return what comes of reading and writing files by links that lead out of the workspace."""
    made = await inside.facts("links")
    if isinstance(made, Untried):
        return made
    answers: dict[str, str] = {}
    for path in made.get("made", {}):
        for op, fields in (("read", {"offset": 0, "limit": 4096}), ("list", {}), ("stat", {})):
            target = f"{path}/etc" if path.endswith("root") else path
            answers[f"{op} {path}"] = await _asked(inside, {"op": op, "path": target, **fields})
    return {"answers": answers, "made": made["made"]}


async def _asked(inside: Programs, fields: dict[str, Any]) -> str:
    try:
        reply = await inside.connection.ask("file", fields)
    except SandpodError as error:
        return error.code.value
    except ConnectionLostError as error:
        return f"lost: {error}"
    # What a link itself is may be told, and not what is at its end.
    return "link" if reply.header.get("kind") == "symlink" else "done"


def dangers(identity: Facts | Untried) -> list[str]:
    """Return why programs that attack or take all they can get must not be run: they would hurt the node itself."""
    if isinstance(identity, Untried):
        return ["it is not known who the code is"]
    found = [judged(row, "kubernetes", {"identity": identity}) for row in IDENTITY if row.id in _WALLS]
    return [finding.row.promise for finding in found if finding.verdict.status is not Status.PASS]


async def strain(
    backend: Backend, inside: Programs, attacker: str, limits: Bounds, identity: Facts | Untried
) -> dict[str, Facts | Untried]:
    """Return what comes of taking too much, and of attacks: only where nothing but sandboxes can be hurt."""
    if why := dangers(identity):
        untried = Untried(f"It was left out, since it could hurt the node. This does not hold: {' '.join(why)}")
        return dict.fromkeys(("bounds", "memory", "attacks"), untried)
    return {**await bounds(inside, limits), "attacks": await attack(backend, attacker, inside)}


async def bounds(inside: Programs, limits: Bounds) -> dict[str, Facts | Untried]:
    """Return what comes of taking more than the bounds; the sandbox must answer afterwards."""
    wanted = {
        "files": min(limits.open_files + 64, 100_000),
        "processes": min(limits.processes + 64, _MOST_PROCESSES),
        "folders": {place: size + _MORE for place, size in limits.folders.items() if size},
    }
    return {"bounds": await inside.facts("bounds", wanted), "memory": await memory(inside, limits.memory)}


async def memory(inside: Programs, limit: int) -> Facts | Untried:
    """Return what comes of taking more memory than there is."""
    if not limit or limit + _MORE > _MOST_MEMORY:
        return Untried("The limit is larger than what is tried (4 GiB).", applicable=False)
    try:
        outcome, output = await inside.run(source("memory"), {"bytes": limit + 4 * _MORE})
        _, after = await inside.run("print('alive')")
    except (SandpodError, ConnectionLostError, TimeoutError) as error:
        return {"outcome": f"lost: {error}", "taken": False, "after": False}
    return {"outcome": outcome, "taken": '"taken"' in output, "after": after == "alive\n"}


async def attack(backend: Backend, attacker: str, victim: Programs) -> Facts | Untried:
    """Return what becomes of a sandbox while programs attack the runner of another one."""
    mark = "open('sandpod-verify-kept', 'w').write('mine')"
    outcomes: dict[str, str] = {}
    try:
        await victim.run(mark)
        for name, code in ATTACKS.items():
            outcomes[name] = await _attacked(backend, attacker, code)
        _, kept = await victim.run("print(open('sandpod-verify-kept').read())")
    except (SandpodError, ConnectionLostError, TimeoutError) as error:
        return {"outcomes": outcomes, "kept": False, "why": str(error) or "no answer"}
    return {"outcomes": outcomes, "kept": kept == "mine\n"}


async def _attacked(backend: Backend, sandbox: str, code: str) -> str:
    """Return how an attack ended. Each has a stream of its own: some end the process that carries it."""
    why = ""
    for _ in range(_TRIES):
        try:
            async with programs(backend, sandbox) as inside:
                return await _ended(inside, code)
        except (SandpodError, ConnectionLostError) as error:
            why = str(error)
    return f"{GONE} {why}"


async def _ended(inside: Programs, code: str) -> str:
    try:
        outcome, _ = await inside.run(code, seconds=30)
    except (ConnectionLostError, TimeoutError):
        return "stream lost"
    return outcome


@asynccontextmanager
async def opened(backend: Backend, **wish: Any) -> AsyncIterator[tuple[SandboxRecord, Programs]]:
    """Make a sandbox with a stream to it. Raises SandpodError or ConnectionLostError."""
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(sandbox(backend, **wish))
        yield made, await stack.enter_async_context(programs(backend, made.name))
