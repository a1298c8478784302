"""E2B's asynchronous Python client, and OpenAI's Agents SDK over it, as their quick starts use them."""

import asyncio
import io
from pathlib import Path
from typing import Any

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType
from e2b_code_interpreter import AsyncSandbox


async def sandbox() -> None:
    sandbox = await AsyncSandbox.create(envs={"NAME": "world"})
    lines = []
    execution = await sandbox.run_code("print('hello')\n6 * 7", on_stdout=lambda message: lines.append(message.line))
    assert (execution.text, lines) == ("42", ["hello\n"])

    seen: asyncio.Queue[Any] = asyncio.Queue()
    watch = await sandbox.files.watch_dir("/home/user", on_event=seen.put_nowait, recursive=True)
    await sandbox.files.write("a/b.txt", "x")
    kinds = set()
    while (FilesystemEventType.WRITE, "a/b.txt") not in kinds:
        event = await asyncio.wait_for(seen.get(), 30)
        kinds.add((event.type, event.name))
    await watch.stop()

    result, cat = await asyncio.gather(
        sandbox.commands.run("echo $NAME"), sandbox.commands.run("cat", background=True, stdin=True)
    )
    assert result.stdout == "world\n"
    await cat.send_stdin("in\n")
    await cat.close_stdin()
    assert (await cat.wait()).stdout == "in\n"
    assert (await sandbox.files.read("a/b.txt"), [each.name for each in await sandbox.files.list(".")]) == ("x", ["a"])
    assert [each.sandbox_id for each in await AsyncSandbox.list().next_items()].count(sandbox.sandbox_id) == 1
    assert await (await AsyncSandbox.connect(sandbox.sandbox_id)).is_running()
    assert await sandbox.kill()
    assert not await sandbox.is_running()


async def agents_sdk() -> None:
    options = E2BSandboxClientOptions(sandbox_type="e2b_code_interpreter", envs={"NAME": "world"})
    async with await E2BSandboxClient().create(options=options) as session:
        await session.write(Path("notes/a.txt"), io.BytesIO(b"hello"))
        assert (await session.read(Path("notes/a.txt"))).read() == b"hello"
        result = await session.exec("cat notes/a.txt; echo $NAME; exit 3")
        assert (result.exit_code, result.stdout) == (3, b"helloworld\n")


async def main() -> None:
    await asyncio.gather(sandbox(), agents_sdk())


if __name__ == "__main__":
    asyncio.run(main())
