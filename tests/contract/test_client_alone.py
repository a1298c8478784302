"""The client's distribution without the server's: built from this checkout, in an environment with what it asks for."""

import asyncio
import shutil
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

CLIENT = Path(__file__).resolve().parents[2] / "client"
TOOLS = Path(sys.executable).parent


async def run(*command: str | Path, **environment: str) -> tuple[int | None, str, str]:
    """Run a program with nothing of this environment; return its exit code and what it prints."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=CLIENT,
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def needed(name: str) -> dict[str, Distribution]:
    """Return what a distribution needs, and what that needs, as installed here: the locked versions."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        for asked in map(Requirement, distribution(waiting.pop()).requires or ()):
            if asked.name not in found and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
                found[asked.name] = distribution(asked.name)
                waiting.append(asked.name)
    return found


def install(here: Distribution, site: Path) -> None:
    """Copy a distribution's files, but for programs, which are outside of the folder."""
    for file in here.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), site / file)


@pytest.mark.usefixtures("alone")
async def test_client_alone_uses_a_server_and_says_what_needs_one_installed(address: str, tmp_path: Path) -> None:
    wheels, env = tmp_path / "wheels", tmp_path / "env"
    built = await run(TOOLS / "hatchling", "build", "--target", "wheel", "--directory", wheels)
    assert built[0] == 0, built
    [wheel] = wheels.iterdir()
    venv.create(env, symlinks=True)
    site = next(env.glob("lib/python3*/site-packages"))
    libraries = needed("sandpod-client")
    for each in libraries.values():
        install(each, site)
    python = env / "bin/python"
    pip = TOOLS / "python", "-m", "pip", "--disable-pip-version-check", "--python", python
    installed = await run(*pip, "install", "--no-index", "--no-deps", "--no-compile", wheel)
    assert installed[0] == 0, installed
    checked = await run(*pip, "check")
    assert checked[0] == 0, checked
    assert {path.name.partition("-")[0] for path in site.glob("sandpod*")} == {"sandpod", "sandpod_client"}

    program, home = env / "bin/sandpod", {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    code, out, err = await run(program, "--help", **home)
    assert (code, "run a program in a sandbox" in out, err) == (0, True, "")
    assert await run(program, "--version", **home) == (0, f"{distribution('sandpod-client').version}\n", "")

    there = {**home, "SANDPOD_URL": address}
    assert await run(program, "run", "-c", "print(6 * 7)", **there) == (0, "42\n", "")
    three_lines = "from sandpod import Sandbox\nwith Sandbox() as sandbox: print(sandbox.run('6 * 7').result)"
    assert await run(python, "-P", "-c", three_lines, **there) == (0, "42\n", "")
    code, out, _ = await run(program, "doctor", **there)
    assert (code, "It is not installed: pip install sandpod" in out, address in out) == (0, True, True)
    assert (await run(program, "usage", **there))[0] == 0

    # What needs the server says so in one sentence, with what to install.
    ours: list[tuple[str, ...]] = [("serve",), ("stdio",), ("setup",), ("verify",), ("run", "--local", "-c", "1")]
    ours += [("keys", "list", "--file", "k"), ("keys", "create", "--print")]
    ours += [("usage", "--directory", "u"), ("audit", "verify", "a")]
    told = await asyncio.gather(*(run(program, *command, **there) for command in ours))
    for command, (code, out, err) in zip(ours, told, strict=True):
        assert (code in {2, 125}, out, err.count("\n"), "pip install sandpod" in err) == (True, "", 1, True), command
    for command in (("ps",), ("keys", "create", "--user", "ann"), ("shell",)):
        code, out, err = await run(program, *command, **home)
        assert (code, out, err.count("\n"), err.startswith("sandpod: ")) == (2, "", 1, True), command
