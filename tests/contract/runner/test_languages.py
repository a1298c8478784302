"""Languages that a template adds run as the others do; what the machine's shell can do stands in for an interpreter."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runner.harness import Client, RefusedError, Runner, running

LANGUAGES = [
    {"name": "strict", "command": ["sh", "-eu", "{file}"], "extension": ".sh"},
    # A compiler and its program, as one line for a shell.
    {"name": "built", "command": ["sh", "-c", 'cp {file} made && sh made "$@"', "{file}"]},
    {"name": "nowhere", "command": ["no-such-program", "{file}"]},
]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with running(tmp_path_factory.mktemp("runner"), SANDPOD_LANGUAGES=json.dumps(LANGUAGES)) as started:
        yield started


async def test_hello_names_those_whose_program_is_there(client: Client) -> None:
    assert {"strict", "built", "python", "shell"} <= client.hello["languages"].keys()
    assert "nowhere" not in client.hello["languages"]


async def test_program_gets_its_file_arguments_input_variables_and_folder(client: Client, runner: Runner) -> None:
    code = 'echo "$0|$*|$A|$PWD"; cat; echo err >&2; exit 3'
    name = await client.start(code, "strict", args=["a b", "$x"], env={"A": "1"}, stdin=True)
    await client.send({"t": "stdin", "run": name, "eof": True}, b"in")
    result = await client.finish(name)
    file, *rest = result.out.decode().split("|")
    assert (Path(file).suffix, rest) == (".sh", ["a b $x", "1", f"{runner.workspace}\nin"])
    assert (result.exit_code, result.err) == (3, b"err\n")
    assert (await client.run(f"test -e {file}", "shell")).exit_code == 1


async def test_command_may_be_a_line_for_a_shell(client: Client, runner: Runner) -> None:
    result = await client.run('echo "made of $1"', "built", args=["it"])
    assert (result.exit_code, result.out) == (0, b"made of it\n")
    assert (runner.workspace / "made").exists()


async def test_what_the_code_is_does_not_matter(client: Client) -> None:
    for code in (b"", b"\0\xff", b"printf '\\377'; $(", b"x" * 1_000_000):
        result = await client.run(code, "strict")
        assert result.outcome in {"ok", "error"}
    assert (await client.run("echo on", "strict")).out == b"on\n"


async def test_cancel_ends_all_of_it(client: Client) -> None:
    name = await client.start("echo begun; sleep 312 & sleep 312", "strict")
    await client.until_output(name, b"begun\n")
    await client.send({"t": "cancel", "run": name})
    assert (await client.finish(name)).outcome == "cancelled"
    assert await client.processes_with("sleep 312") == []


async def test_another_language_is_refused_with_those_that_there_are(client: Client) -> None:
    for language in ("nowhere", "ruby", "../strict", ""):
        with pytest.raises(RefusedError, match=r"built, .*python, shell, strict") as refused:
            await client.run("1", language)
        assert refused.value.code == "unsupported_language"


async def test_context_is_for_python_alone(client: Client) -> None:
    with pytest.raises(RefusedError, match="Only Python and JavaScript have contexts"):
        await client.run("1", "strict", context="c")
