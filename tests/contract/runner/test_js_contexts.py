"""Cells of JavaScript contexts: their variables, values, streams and ends."""

import json

import pytest

from sandpod_runner.protocol import messages as protocol
from support.runner.harness import Client, RefusedError
from support.runner.notebook import Notebook, value

LANGUAGE = "javascript"
BUSY = "const from = process.cpuUsage(); while (process.cpuUsage(from).user < 120_000) for (let i = 0; i < 1e6; i++);"
BLOCK = "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)"
FOREVER = "await new Promise(() => {})"


@pytest.mark.everywhere
async def test_variables_stay_and_the_last_value_comes_back(notebook: Notebook) -> None:
    first = await notebook.cell("const x = 20; function f() { return x * 2 }")
    second = await notebook.cell("console.log('text'); f() + 2")
    assert (first.outcome, first.exit_code, first.end["context_state"], value(first)) == ("ok", 0, "kept", {})
    assert (second.out, value(second)) == (b"text\n", {"text/plain": b"42", "application/json": b"42"})


@pytest.mark.claim("run_js_code")
async def test_a_name_can_be_declared_again(notebook: Notebook) -> None:
    for first, second in (
        ("const a = 1", "const a = 2; a"),
        ("const a = 1", "let a = 2; a"),
        ("let a = 1", "const a = 2; a"),
        ("var a = 1", "let a = 2; a"),
        ("function a() {}", "const a = 2; a"),
        ("const a = () => 1", "function a() { return 2 } a()"),
        ("class a {}", "let a = 2; a"),
        ("let a = 1", "class a { static b = 2 } a.b"),
        ("const { a, ...b } = { a: 1 }", "const [a = 2] = []; a"),
        ("import { sep as a } from 'node:path'", "const a = 2; a"),
        ("const crypto = 1", "const crypto = 2; crypto"),
    ):
        assert (await notebook.cell(first)).outcome == "ok", first
        assert await notebook.text(second) == "2", (first, second)
    # Without a value, the earlier one is forgotten.
    assert await notebook.text("let a; String(a)") == "'undefined'"
    # What is built in is hidden from cells alone.
    await notebook.cell("const Map = 5; const crypto = require('crypto')")
    assert await notebook.text("[Map, typeof crypto.createHash, globalThis.Map.name]") == "[ 5, 'function', 'Map' ]"


VALUES = {
    "({ a: [1, 'ü', null], b: { c: true } })": ("{ a: [ 1, 'ü', null ], b: { c: true } }", True),
    "{ a: 1 }": ("{ a: 1 }", True),
    "'text'": ("'text'", True),
    "null": ("null", True),
    "1.5;": ("1.5", True),
    "NaN": ("NaN", False),
    "10n": ("10n", False),
    "[undefined]": ("[ undefined ]", False),
    "[1, , 2]": ("[ 1, <1 empty item>, 2 ]", False),
    "new Map([[1, 2]])": ("Map(1) { 1 => 2 }", False),
    "({ get a() { return 1 } })": ("{ a: [Getter] }", False),
    "const loop = {}; loop.loop = loop; loop": ("<ref *1> { loop: [Circular *1] }", False),
    "class A { b = 1 } new A()": ("A { b: 1 }", False),
    "for (const i of [1, 2]) i * 2": ("4", True),
    "await Promise.resolve(7)": ("7", True),
    "(async () => 8)()": ("8", True),
}


HOSTILE = {
    # The value's text, or the error.
    "({ toJSON() { throw 1 } })": "{ toJSON: [Function: toJSON] }",
    "new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 2 }, ownKeys() { throw 3 } })": "{}",
    "({ __proto__: new Proxy({}, { getPrototypeOf() { throw 1 } }) })": "Uncaught 1",
    "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw 1 } })": "Uncaught 1",
    "throw new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 2 } })": "Uncaught 2",
    "throw Object.defineProperty(new Error('x'), 'stack', { get() { throw 1 } })": "an error that can not be shown",
    "10n ** 5000n": "1000000000",
    "Symbol('s')": "Symbol(s)",
    "globalThis": "<ref *1> Object [global] {",
    "Object.create(null)": "[Object: null prototype] {}",
    "new Array(1e9)": "[ <1000000000 empty items> ]",
    "let v = []; for (let i = 0; i < 100_000; i++) v = [v]; v": "[ [ [ [Array] ] ] ]",
    "({ then() { throw 1 } })": "{ then: [Function: then] }",
    # JSON of it would take longer than there is, and more memory.
    "new Array(50_000).fill('x'.repeat(100_000))": "[\n  'xxxx",
}


async def test_value_that_can_not_be_shown_is_told_and_harms_nothing(notebook: Notebook) -> None:
    await notebook.cell("const y = 41")
    for code, text in HOSTILE.items():
        result = await notebook.cell(code)
        told = value(result)["text/plain"] if result.outcome == "ok" else result.err
        assert told.decode().startswith(text), (code, result)
        assert len(told) <= protocol.MAX_RESULT
        assert (result.end["context_state"], await notebook.text("y")) == ("kept", "41"), code
    late = await notebook.cell("({ [Symbol.for('nodejs.util.inspect.custom')]() { for (;;); } })", timeout=0.5)
    assert (late.outcome, late.end["context_state"], await notebook.text("y")) == ("timeout", "kept", "41")


@pytest.mark.claim("run_js_code")
async def test_value_comes_as_text_and_where_it_is_plain_data_as_json(notebook: Notebook) -> None:
    for code, (text, data) in VALUES.items():
        forms = value(await notebook.cell(code))
        assert (forms["text/plain"].decode(), "application/json" in forms) == (text, data), code
        if data:
            json.loads(forms["application/json"])
    for code in ("const a = 1", "undefined", "", "// nothing", "console.log(1)", "import 'node:fs'"):
        result = await notebook.cell(code)
        assert (result.outcome, value(result)) == ("ok", {}), code


async def test_json_that_is_too_large_is_left_out_and_counted(notebook: Notebook) -> None:
    result = await notebook.cell("'x'.repeat(600_000)")
    assert (set(value(result)), result.end["displays_dropped"]) == ({"text/plain"}, 1)
    assert "application/json" in value(await notebook.cell("new Array(90_000).fill('a')"))
    text = value(await notebook.cell("({ [Symbol.for('nodejs.util.inspect.custom')]: () => 'ü'.repeat(500_000) })"))
    assert len(text["text/plain"]) <= protocol.MAX_RESULT
    assert text["text/plain"].decode().endswith("ü... (1000000 bytes in all)")


async def test_modules_are_imported_in_every_way_and_code_may_be_deep_and_long(notebook: Notebook) -> None:
    for code in (
        "import os from 'node:os'\ntypeof os.cpus",
        "import { cpus } from 'node:os'; typeof cpus",
        "import * as os from 'node:os'; typeof os.cpus",
        "import os, { cpus } from 'node:os'\ntypeof cpus",
        "import os, * as all from 'node:os'\ntypeof all.cpus",
        "const { cpus } = await import('node:os'); typeof cpus",
        "typeof require('os').cpus",
        "typeof (await (async () => (await import('node:os')).cpus)())",
    ):
        assert await notebook.text(code) == "'function'", code
    text = await notebook.text("const s = `\nimport a from 'b'`; s + /import(x)/.source")
    assert text == "\"\\nimport a from 'b'import(x)\"", "what only looks like an import is left alone"
    for code in (" + ".join(["1"] * 5000), "[" * 2000 + "]" * 2000 + ".length + 4999", "await 1;" * 5000 + "5000"):
        assert await notebook.text(code) == "5000"


async def test_globals_that_a_program_replaces_are_its_own_affair(notebook: Notebook) -> None:
    await notebook.cell("Buffer = JSON = setImmediate = process.argv = null")
    assert await notebook.text("[JSON, 5]") == "[ null, 5 ]"


async def test_files_and_packages_of_the_workspace_can_be_imported(notebook: Notebook) -> None:
    await notebook.client.upload("lib.mjs", b"export const a = 42")
    await notebook.client.upload("data.json", b'{"a": 43}')
    assert await notebook.text("import { a } from './lib.mjs'; a") == "42"
    assert await notebook.text("import data from './data.json' with { type: 'json' }; data.a") == "43"
    assert await notebook.text("require('./data.json').a") == "43"
    assert await notebook.text("[__dirname, import.meta.dirname].every((name) => name === process.cwd())") == "true"


async def test_types_are_stripped_and_plain_javascript_is_not_changed(notebook: Notebook) -> None:
    assert await notebook.text("interface A { b: number }\nconst a: A = { b: 1 }; a.b") == "1"
    assert await notebook.text("const f = 1, b = 3, c = 2; f<b>(c)") == "false"
    failed = await notebook.cell("type T = string\n\nthrow new Error('third' as T)")
    assert b"<cell-3>:3:7" in failed.err
    refused = await notebook.cell("enum A { B }")
    assert b"TypeScript enum is not supported" in refused.err


async def test_stack_shows_the_lines_of_all_cells_and_nothing_of_the_runner(notebook: Notebook) -> None:
    await notebook.cell(
        "\nfunction f() {\n  throw Object.assign(new Error('needle', { cause: new Error('deep') }), { code: 7 }) }"
    )
    result = await notebook.cell("\nf()")
    assert (result.outcome, result.exit_code, result.end["context_state"]) == ("error", 1, "kept")
    assert result.err.decode().splitlines() == [
        "Error: needle",
        "    at f (<cell-1>:3:23)",
        "    at <cell-2>:2:1 {",
        "  code: 7,",
        "  [cause]: Error: deep",
        "      at f (<cell-1>:3:52)",
        "      at <cell-2>:2:1",
        "}",
    ]


ERRORS = (
    ("x = 1\ny = ;", "<cell-1>:2\ny = ;\n    ^\n\nSyntaxError: Unexpected token ';'\n"),
    ("throw 5", "Uncaught 5\n"),
    ("throw undefined", "Uncaught undefined\n"),
    ("await Promise.reject()", "Uncaught undefined\n"),
    ("JSON.parse('{')", "SyntaxError: Expected property name"),
    ("Promise.reject(new Error('nobody'))", "Error: nobody\n    at <cell-6>:1:16\n"),
    (f"setTimeout(() => {{ throw new Error('late') }}); {FOREVER}", "Error: late\n    at Timeout"),
    ("({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no text') } })", "Error: no text"),
)


async def test_error_fails_the_cell_and_keeps_the_state(notebook: Notebook) -> None:
    for code, err in ERRORS:
        result = await notebook.cell(code)
        assert (result.outcome, result.exit_code, result.end["context_state"]) == ("error", 1, "kept"), code
        assert result.err.decode().startswith(err)
    assert await notebook.text("1") == "1"


EXITS = {
    "process.exit(3)": 3,
    "process.exit()": 0,
    "process.exitCode = 4": 4,
    "process.exit(256)": 0,
    "process.exit(-1)": 255,
    "await 1; process.exit(5)": 5,
    f"setTimeout(() => process.exit(6)); {FOREVER}": 6,
    "try { process.exit(7) } catch (error) { console.log('caught'); process.exit(1) }": 7,
}


async def test_exit_ends_the_cell_and_not_the_context(notebook: Notebook) -> None:
    await notebook.cell("const x = 5")
    for code, exit_code in EXITS.items():
        result = await notebook.cell(code)
        assert (result.exit_code, result.end["context_state"], result.out) == (exit_code, "kept", b""), code
    assert await notebook.text("x") == "5"


@pytest.mark.promise("process-exit")
async def test_process_exit_loses_no_output(notebook: Notebook) -> None:
    result = await notebook.cell('console.log("x".repeat(3 << 20)); console.error("err"); process.exit(0)')
    assert (len(result.out), result.err, result.exit_code) == ((3 << 20) + 1, b"err\n", 0)


async def test_timeout_and_cancel_interrupt_the_cell_and_keep_the_state(notebook: Notebook) -> None:
    await notebook.cell("const x = 5; const { execSync } = require('child_process')")
    late = await notebook.cell(FOREVER, timeout=1)
    assert (late.outcome, late.exit_code, late.end["context_state"]) == ("timeout", 1, "kept")
    assert late.end["detail"] == "It was stopped after 1 seconds. The context keeps its variables."
    assert late.err == b"Interrupted: the cell was stopped before its end.\n"
    child = "execSync('echo started; sleep 3031', { stdio: 'inherit' })"
    for code in ("for (;;);", "for (;;) console.log('x')", f"try {{ {FOREVER} }} finally {{ {FOREVER} }}", child):
        result = await notebook.cancelled(code if code == child else f"console.log('started'); {code}")
        assert (result.outcome, result.exit_code, result.end["context_state"]) == ("cancelled", 1, "kept"), code
        # The interrupt is not the next cell's.
        assert (await notebook.cell("execSync('sleep 0.05')")).outcome == "ok"
    assert await notebook.client.processes_with("sleep 3031") == []
    assert await notebook.text("x") == "5"


async def test_interrupt_that_comes_while_node_has_no_handler_for_it_keeps_the_state(notebook: Notebook) -> None:
    # Node takes its listeners away while it runs a cell, and adds them again: this holds that moment open.
    await notebook.cell("const x = 5, pause = new Int32Array(new SharedArrayBuffer(4))")
    slow = "console.log('started'); Atomics.wait(pause, 0, 0, 300)"
    await notebook.cell(f"process.prependListener('newListener', (name) => {{ if (name === 'SIGINT') {{ {slow} }} }})")
    result = await notebook.cancelled(FOREVER)
    assert (result.outcome, result.exit_code, result.end["context_state"]) == ("cancelled", 1, "kept")
    assert await notebook.text("x") == "5"


async def test_awaiting_what_can_never_come_outlives_a_garbage_collection(notebook: Notebook) -> None:
    await notebook.cell(
        "require('v8').setFlagsFromString('--expose-gc'); const gc = require('vm').runInNewContext('gc')"
    )
    often = "let n = 0; setInterval(() => { gc(); if (++n === 5) console.log('started') }, 1); "
    result = await notebook.cancelled(often + FOREVER)
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.text("1") == "1"


async def test_cell_that_does_not_listen_is_killed_and_the_loss_is_said(notebook: Notebook) -> None:
    await notebook.cell("const x = 5")
    deaf = f"require('child_process').spawn('sleep', ['3032']); console.log('deaf'); await 1; {BLOCK}"
    result = await notebook.cell(deaf, timeout=1)
    assert (result.outcome, result.out, result.end["context_state"]) == ("timeout", b"deaf\n", "lost")
    assert "variables are lost" in result.end["detail"]
    assert await notebook.client.processes_with("sleep 3032") == []
    again = await notebook.cell("typeof x")
    assert (value(again)["text/plain"], again.end["context_state"], again.end["detail"]) == (
        b"'undefined'",
        "kept",
        None,
    )


async def test_code_that_ends_the_process_or_breaks_its_channel_loses_the_state(notebook: Notebook) -> None:
    result = await notebook.cell("console.log('last words'); process.reallyExit(9)")
    assert (result.outcome, result.exit_code, result.out) == ("error", 9, b"last words\n")
    assert result.end["context_state"] == "lost"
    killed = await notebook.cell("process.kill(process.pid, 'SIGKILL')")
    assert (killed.end["signal"], killed.end["context_state"]) == ("SIGKILL", "lost")
    for code in ("require('fs').closeSync(4)", f"require('fs').writeSync(4, 'nonsense'); {FOREVER}"):
        result = await notebook.cell(code)
        assert (result.outcome, result.end["context_state"]) == ("error", "lost"), code
    assert await notebook.text("1") == "1"


async def test_process_that_died_between_cells_is_told_by_the_next(notebook: Notebook) -> None:
    for who in ("process.pid", "process.ppid"):
        pid = int((await notebook.cell(f"console.log({who})")).out)
        await notebook.client.run(f"kill -KILL {pid}", "shell")
        result = await notebook.cell("console.log('anew')")
        assert (result.outcome, result.out, result.end["context_state"]) == ("ok", b"anew\n", "lost"), who
        assert (await notebook.cell("1")).end["context_state"] == "kept"


async def test_environment_arguments_and_folder_of_a_cell_stay(notebook: Notebook) -> None:
    await notebook.client.upload("place/near.js", b"module.exports = 'near'")
    show = "console.log(process.env.MINE, process.argv.slice(2), require('path').basename(process.cwd()))"
    first = await notebook.cell(show)
    second = await notebook.cell(show, env={"MINE": "1"}, args=["a"], cwd="place")
    third = await notebook.cell(show)
    assert first.out.decode() == "undefined [] workspace\n"
    assert second.out.decode() == third.out.decode() == "1 [ 'a' ] place\n"
    assert await notebook.text("require('./near.js')") == "'near'"


async def test_input_is_each_cells_own_and_its_childrens(notebook: Notebook) -> None:
    read = "let text = ''; for await (const part of process.stdin) text += part; console.log(text)"
    first = await notebook.cell("require('fs').readSync(0, Buffer.alloc(3)); 1", input=b"one\nleft\n")
    second = await notebook.cell(read, input=b"two")
    third = await notebook.cell(read)
    fourth = await notebook.cell("console.log(require('fs').readFileSync(0, 'utf8'))", input=b"four")
    assert (first.outcome, second.out, third.out, fourth.out) == ("ok", b"two\n", b"\n", b"four\n")
    code = "require('child_process').execSync('cat; echo err >&2', { stdio: 'inherit' }); console.log('after')"
    for text in (b"one ", b"two "):
        result = await notebook.cell(code, input=text)
        assert (result.out, result.err) == (text + b"after\n", b"err\n")


async def test_child_that_a_cell_leaves_lives_and_its_output_is_not_the_next_cells(notebook: Notebook) -> None:
    child = "while read line; do echo noise; done; echo end >done.txt"
    spawn = f"const child = require('child_process').spawn('sh', ['-c', {child!r}], {{ stdio: ['pipe', 1, 2] }})"
    await notebook.cell(f"{spawn}; const over = new Promise((done) => child.on('exit', done))")
    result = await notebook.cell("child.stdin.end('x\\n'.repeat(1000)); console.log(await over)")
    assert (result.out, result.end["context_state"]) == (b"0\n", "kept")
    assert await notebook.text("require('fs').readFileSync('done.txt', 'utf8')") == "'end\\n'"
    # Neither is what a timer of an earlier cell writes.
    await notebook.cell("let go; const gone = new Promise((done) => { go = () => { console.log('timer'); done() } })")
    assert (await notebook.cell("setTimeout(go); await gone")).out == b"timer\n"


async def test_output_over_the_limit_keeps_the_state(notebook: Notebook) -> None:
    await notebook.cell("const x = 5")
    result = await notebook.cell("for (;;) console.log('y'.repeat(1000))", output_limit=10_000)
    assert (result.outcome, len(result.out), result.end["context_state"]) == ("output_limit", 10_000, "kept")
    assert await notebook.text("x") == "5"


async def test_figures_of_use_are_each_cells_own(notebook: Notebook) -> None:
    busy = await notebook.cell(BUSY)
    child = await notebook.cell("require('child_process').execSync('while [ $((i=i+1)) -lt 100000 ]; do :; done'); 1")
    idle = await notebook.cell("1")
    assert busy.end["cpu_ms"] >= 100
    assert child.end["cpu_ms"] >= 50
    assert idle.end["cpu_ms"] < 50
    assert idle.end["max_rss_bytes"] > 1_000_000


async def test_name_is_of_one_language_until_its_context_is_restarted(notebook: Notebook) -> None:
    await notebook.cell("1")
    with pytest.raises(RefusedError) as refused:
        await notebook.client.run("1", "python", context=notebook.name)
    assert refused.value.code == "invalid_argument"
    assert "runs javascript" in str(refused.value)
    await notebook.restart()
    assert (await notebook.client.run("print(1)", "python", context=notebook.name)).out == b"1\n"
    with pytest.raises(RefusedError):
        await notebook.cell("1")


async def test_contexts_are_listed_with_their_language_and_restart_ends_them(notebook: Notebook) -> None:
    await notebook.cell("const x = 1; require('child_process').spawn('sleep', ['3033'])")
    rows = (await notebook.client.ask("list")).header["contexts"]
    assert [(row["language"], row["state"]) for row in rows if row["name"] == notebook.name] == [("javascript", "idle")]
    await notebook.restart()
    assert await notebook.client.processes_with("sleep 3033") == []
    assert await notebook.text("typeof x") == "'undefined'"


@pytest.mark.everywhere
async def test_what_an_interrupted_cell_has_started_ends_with_it_and_what_an_earlier_one_left_stays(
    notebook: Notebook,
) -> None:
    server = "const { spawn } = require('child_process'); const server = spawn('sleep', ['3064']); 1"
    assert (await notebook.cell(server)).outcome == "ok"
    code = "sleep 3065 & echo started; sleep 3065"
    result = await notebook.cancelled(
        f"await new Promise((done) => spawn('bash', ['-c', '{code}'], {{ stdio: 'inherit' }}).on('exit', done))"
    )
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert await notebook.client.processes_with("sleep 3065") == []
    assert len(await notebook.client.processes_with("sleep 3064")) == 1
    assert (await notebook.cell("server.exitCode")).outcome == "ok"


async def test_second_interrupt_is_for_what_the_cell_has_started_alone(notebook: Notebook) -> None:
    server = "const child = require('child_process'); const server = child.spawn('sleep', ['3069']); 1"
    assert (await notebook.cell(server)).outcome == "ok"
    busy = "console.log('started'); child.execFileSync('sleep', ['3070'])"
    result = await notebook.cancelled(busy)
    assert (result.outcome, result.end["context_state"]) == ("cancelled", "kept")
    assert len(await notebook.client.processes_with("sleep 3069")) == 1


async def test_context_that_its_own_cell_has_damaged_works_or_says_that_it_was_lost(notebook: Notebook) -> None:
    other = Notebook(notebook.client, "other", LANGUAGE)
    await other.cell("const y = 41")
    await notebook.cell("const z = 1")
    gone = "console.log = null; process.exit = () => {}; process.env = null; globalThis.process = undefined"
    assert (await notebook.cell(gone)).outcome == "ok"
    late = await notebook.cell("while (true) {}", timeout=0.5)
    assert (late.outcome, late.end["context_state"], await notebook.text("z")) == ("timeout", "kept", "1")
    await notebook.cell("globalThis.console = undefined")
    assert await notebook.text("z") == "1"
    result = await notebook.cell("const fs = require('fs'); fs.openSync = fs.closeSync = fs.writeSync = null")
    assert (result.outcome, result.end["context_state"]) == ("error", "lost")
    assert (await notebook.cell("console.log('back')")).out == b"back\n"
    assert await other.text("y") == "41"
    await other.restart()


async def test_no_context_has_the_variables_of_another_nor_of_an_earlier_one_of_its_name(client: Client) -> None:
    books = [Notebook(client, f"book {number}", LANGUAGE) for number in range(4)]
    for first in (0, 10):
        for number, book in enumerate(books, first):
            assert await book.text("typeof value") == "'undefined'"
            assert await book.text(f"const value = {number}; value") == str(number)
        for number, book in enumerate(books, first):
            assert await book.text("value") == str(number)
        for book in books:
            await book.restart()


async def test_context_whose_folder_was_removed_goes_on_and_can_go_elsewhere(notebook: Notebook) -> None:
    code = "const fs = require('fs'); const home = process.cwd(); fs.mkdirSync('d/e', { recursive: true })"
    assert (await notebook.cell(f"{code}; process.chdir('d/e')")).outcome == "ok"
    assert (await notebook.cell("fs.rmSync(`${home}/d`, { recursive: true })")).outcome == "ok"
    assert (await notebook.cell("console.log(1)")).out == b"1\n"
    assert (await notebook.cell("process.chdir(home); console.log(process.cwd() === home)")).out == b"true\n"
