"""JavaScript runs as `node file` would run it, whichever kind of module it is."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from sandpod_runner.ipc import process_tree
from support.gateway.peers import until
from support.runner.harness import Client, Runner

OUTPUTS = {
    'import fs from "node:fs"; console.log(typeof fs.readFileSync)': b"function\n",
    'const fs=require("fs"); console.log(typeof fs.readFileSync)': b"function\n",
    'const os=require("os"); await 1; console.log("both")': b"both\n",
    'import os from "os"; await 1; console.log(typeof require("fs").read, typeof os.cpus)': b"function function\n",
    'await import("node:fs"); console.log("dynamic")': b"dynamic\n",
    'import("node:fs").then(() => console.log("then"))': b"then\n",
    "console.log(require.main === module, __filename === process.argv[1])": b"true true\n",
    "#!/usr/bin/env node\nconsole.log('hashbang')": b"hashbang\n",
    "undeclared = 1; console.log(undeclared)": b"1\n",
    "export const x = 1; console.log(typeof import.meta.url)": b"string\n",
    # Types are stripped where plain JavaScript does not parse.
    "const x: number = 1; console.log(x)": b"1\n",
    "const x: number = await 2; console.log(x)": b"2\n",
    "import os from 'os'; const x: string = typeof os.cpus; console.log(x)": b"function\n",
    "import type { A } from 'nowhere'; export type B = A; console.log(3 satisfies number)": b"3\n",
    "interface A { b: number }\nconst f = <T,>(a: T): T => a; console.log(f<A>({ b: 4 }).b)": b"4\n",
    # Both are JavaScript, whatever TypeScript makes of them.
    "const f = 1, b = 3, c = 2; console.log(f<b>(c))": b"false\n",
    "import 'fs'; const f = 1, b = 3, c = 2; console.log(f<b>(c))": b"false\n",
}
ENDS = {
    "process.exit(7)": (7, b""),
    "process.exitCode = 3; console.log('x')": (3, b""),
    "process.exit(255)": (255, b""),
    "process.exit(256)": (0, b""),
    "process.exit(-1)": (255, b""),
    "process.exit('4')": (4, b""),
    "process.exit('x')": (1, b"ERR_INVALID_ARG_TYPE"),
    "await 1; process.exit(0)": (0, b""),
    "import 'fs'; process.exit(5)": (5, b""),
    "throw new Error('needle')": (1, b"Error: needle"),
    "await 1; throw new Error('needle')": (1, b"Error: needle"),
    "import 'fs'; throw new Error('needle')": (1, b"Error: needle"),
    "Promise.reject(new Error('needle'))": (1, b"Error: needle"),
    "import 'fs'; Promise.reject(new Error('needle'))": (1, b"Error: needle"),
    "(async () => { await 1; throw new Error('needle') })()": (1, b"Error: needle"),
    "let a = ;": (1, b"SyntaxError"),
    "import fs from 'fs'; let a = ;": (1, b"SyntaxError"),
    "require('nosuch')": (1, b"Cannot find module 'nosuch'"),
    "import 'nosuch'": (1, b"Cannot find package 'nosuch'"),
    "await new Promise(() => {})": (13, b"never settled"),
}


@pytest.mark.promise("module-kinds")
@pytest.mark.claim("run_js_code(code)")
async def test_commonjs_modules_await_and_types_all_work_without_flags(client: Client) -> None:
    for code, out in OUTPUTS.items():
        result = await client.run(code, "javascript")
        assert (result.out, result.err, result.exit_code) == (out, b"", 0), code


@pytest.mark.promise("exit-codes")
@pytest.mark.claim("run_js_code")
async def test_exit_codes_and_errors_are_those_of_node(client: Client) -> None:
    for code, (exit_code, err) in ENDS.items():
        result = await client.run(code, "javascript")
        assert (result.exit_code, err in result.err) == (exit_code, True), (code, result.err)
        assert b"bootstrap.cjs" not in result.err


@pytest.mark.promise("process-exit")
async def test_no_end_loses_output(client: Client) -> None:
    for stream, end in (
        ("out", "process.exit(1)"),
        ("err", "process.exit(1)"),
        ("out", "throw 1"),
        ("err", "process.exitCode = 1"),
        ("out", "Promise.reject(1)"),
    ):
        result = await client.run(f"process.std{stream}.write('x'.repeat(3 << 20)); {end}", "javascript")
        assert ((result.out or result.err).count(b"x" * (3 << 20)), result.exit_code) == (1, 1), (stream, end)


async def test_lines_are_right_in_stacks_of_typescript(client: Client) -> None:
    types = "interface A {\n  b: number\n}\nfunction f(a: A): never {\n  throw new Error('fifth') }\n"
    for first in ("", "import 'fs'; "):
        result = await client.run(f"{first}{types}f({{ b: 1 }})", "javascript")
        assert result.exit_code == 1
        assert re.search(rb"at f \(.*:5:9\)\n +at .*:6:1", result.err)
    refused = await client.run("let a = 1\nenum B { C }", "javascript")
    assert (refused.exit_code, b":2\n" in refused.err, b"bootstrap" in refused.err) == (1, True, False)
    assert b"TypeScript enum is not supported in strip-only mode" in refused.err


@pytest.mark.everywhere
async def test_global_packages_are_found_by_require_and_import(client: Client) -> None:
    for name, file, text in (
        ("everywhere", "index.js", "exports.a = 44"),
        ("modern", "package.json", '{"exports": {"./part": {"import": "./part.mjs"}}}'),
        ("modern", "part.mjs", "export const a = 44"),
    ):
        await client.upload(f"lib/node_modules/{name}/{file}", text.encode())
    folder = f"{client.hello['workspace']}/lib/node_modules"
    for code in (
        "console.log(require('everywhere').a)",
        "import { a } from 'everywhere'; console.log(a)",
        "{ const { a } = await import('everywhere'); console.log(a) }",
        "import('everywhere').then(({ a }) => console.log(a))",
        "import { a } from 'modern/part'; console.log(a)",
    ):
        for context in (None, "global packages"):
            result = await client.run(code, "javascript", env={"NODE_PATH": folder}, context=context)
            assert (result.out, result.err) == (b"44\n", b""), (code, context)
    await client.ask("restart", context="global packages")


async def test_a_spare_process_is_ready_and_one_that_died_is_replaced(runner: Runner, client: Client) -> None:
    tell = "console.log(process.pid)"
    # A program that is over is told before its process has gone, so that one is still among Node's.
    pid = await spare(runner, besides=int((await client.run(tell, "javascript")).out))
    assert int((await client.run(tell, "javascript")).out) == pid
    pid = await spare(runner, besides=pid)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not process_tree.exists(pid))
    assert (await client.run("console.log(1)", "javascript")).out == b"1\n"
    await until(lambda: len(spares(runner)) == 1)


async def spare(runner: Runner, *, besides: int) -> int:
    """Return the one process of Node that waits for a program, once it is there."""
    found: list[int] = []

    def there() -> bool:
        found[:] = [pid for pid in spares(runner) if pid != besides]
        return len(found) == 1

    await until(there)
    return found[0]


def spares(runner: Runner) -> list[int]:
    """Return the processes of Node that wait for a program."""
    tree = process_tree.trees([runner.pid], process_tree.parents())
    found = []
    for pid in tree:
        with contextlib.suppress(OSError):
            if b"bootstrap.cjs" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.claim("run_python_code(args)", "run_python_code(env)")
async def test_arguments_environment_and_input_reach_the_program(client: Client) -> None:
    code = (
        "console.log(JSON.stringify(process.argv.slice(2)), process.env.MY_VAR, process.env.SANDPOD_WORKSPACE, "
        "require('fs').readFileSync(0, 'utf8'))"
    )
    result = await client.run(code, "javascript", args=["q", "é"], env={"MY_VAR": "v"}, input=b"in")
    assert result.out.decode() == '["q","é"] v undefined in\n'


@pytest.mark.promise("input")
@pytest.mark.claim("run_python_code(stdin)")
async def test_input_without_any_given_is_at_its_end(client: Client) -> None:
    result = await client.run("process.stdin.on('data', () => {}).on('end', () => console.log('end'))", "javascript")
    assert result.out == b"end\n"


@pytest.mark.everywhere
async def test_files_and_packages_of_the_workspace_can_be_imported(client: Client) -> None:
    await client.upload("lib.mjs", b"export const a = 42")
    await client.upload("lib.cjs", b"exports.a = 42")
    await client.upload("node_modules/pack/index.js", b"exports.a = 42")
    for code in (
        "import { a } from './lib.mjs'; console.log(a)",
        "console.log(require('./lib.cjs').a)",
        "import { a } from 'pack'; console.log(a)",
        "console.log(require('pack').a)",
    ):
        assert (await client.run(code, "javascript")).out == b"42\n", code


async def test_working_directory_is_the_one_asked_for(client: Client) -> None:
    await client.file("mkdir", path="sub")
    result = await client.run("console.log(process.cwd(), __dirname === process.cwd())", "javascript", cwd="sub")
    assert result.out.decode() == f"{client.hello['workspace']}/sub true\n"


@pytest.mark.everywhere
async def test_worker_threads_can_run_the_programs_own_file(client: Client) -> None:
    code = (
        "const { Worker, isMainThread, parentPort } = require('worker_threads')\n"
        "if (isMainThread) new Worker(__filename).on('message', m => console.log(m))\n"
        "else parentPort.postMessage('from a worker')\n"
    )
    assert (await client.run(code, "javascript")).out == b"from a worker\n"


async def test_runs_one_after_the_other_share_nothing(client: Client) -> None:
    for _ in range(3):
        result = await client.run("console.log(globalThis.left); globalThis.left = 1", "javascript")
        assert result.out == b"undefined\n"


async def test_no_file_of_a_run_is_left_in_the_workspace(client: Client) -> None:
    before = await client.run("ls -A", "shell")
    await client.run("import 'fs'", "javascript")
    await client.run("require('fs')", "javascript")
    assert (await client.run("ls -A", "shell")).out == before.out


async def test_busy_loop_can_be_stopped(client: Client) -> None:
    name = await client.start("console.log('busy'); for (;;);", "javascript")
    await client.until_output(name, b"busy\n")
    await client.send({"t": "cancel", "run": name})
    result = await client.finish(name)
    assert (result.outcome, result.end["signal"]) == ("cancelled", "SIGTERM")
