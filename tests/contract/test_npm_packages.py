"""npm packages in sandboxes without a network, from a registry on this machine: installed, found, refused."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from support.gateway.served import LOCAL, Served, connected, gateway
from support.servers.npm_registry import Registry, integrity, npm_registry

REQUIRE = "console.log(require('greet').VERSION)"
IMPORT = "import greet from 'greet';\nconsole.log(greet.VERSION);"

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


class Place(Served):
    registry: Registry
    stop_registry: Callable[[], None]

    async def install(self, *packages: str, **arguments: Any) -> dict[str, Any]:
        call = {"packages": list(packages), "wait": 120, "language": "javascript", **arguments}
        return await self.call("install_packages", **call)


@asynccontextmanager
async def place(*flags: str, server: tuple[str, ...] = LOCAL) -> AsyncIterator[Place]:
    with ExitStack() as stack:
        registry = stack.enter_context(npm_registry())
        async with (
            gateway(*server, "--packages.npm.registry-url", registry.url, *flags) as address,
            connected(address, Place) as here,
        ):
            here.registry, here.stop_registry = registry, stack.close
            yield here


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain() -> AsyncIterator[Place]:
    """For tests of packages that no other test names."""
    async with place() as here:
        yield here


async def output(here: Place, command: str, **arguments: Any) -> str:
    return str((await here.shell(command, **arguments))["stdout"])


@pytest.mark.claim("install_packages", "install_packages(packages)", "run_python_code(packages)")
async def test_package_with_what_it_depends_on_is_found_from_anywhere_and_comes_from_the_cache_then(
    server_flags: tuple[str, ...],
) -> None:
    async with place(server=server_flags) as here:
        program = "#!/usr/bin/env node\nconsole.log('hi', require('@made/helper').VERSION);\n"
        main = here.registry.add(
            "greet", "1.2.0", dependencies={"@made/helper": "^1.0.0"}, bin="cli.js", files={"package/cli.js": program}
        )
        here.registry.add("@made/helper", "1.0.0")
        # Contexts that looked for it in vain find it later.
        assert (await here.js("require('greet')", context="c"))["outcome"] == "error"
        assert (await here.js("await import('greet')", context="d"))["outcome"] == "error"
        done = await here.install("greet@1")
        assert (done["status"], "note" in done) == ("success", False)
        found = {package["name"]: package for package in done["packages"]}
        assert {name: package["version"] for name, package in found.items()} == {
            "greet": "1.2.0",
            "@made/helper": "1.0.0",
        }
        assert found["greet"]["sha256"] == hashlib.sha256(main).hexdigest()
        assert (await here.js(REQUIRE))["stdout"] == "1.2.0\n"
        assert (await here.js(IMPORT))["stdout"] == "1.2.0\n"
        assert (await here.js("import('greet').then((found) => console.log(found.default.VERSION))"))["stdout"] == (
            "1.2.0\n"
        )
        assert (await here.js(REQUIRE, context="c"))["stdout"] == "1.2.0\n"
        assert (await here.js("(await import('greet')).VERSION", context="d"))["result"]["text/plain"] == "'1.2.0'"
        assert (await here.js("const greet = await import('greet'); greet.VERSION", context="e"))["outcome"] == "ok"
        assert await output(here, "greet") == "hi 1.0.0\n"
        elsewhere = f'mkdir -p /tmp/x && cd /tmp/x && echo "{IMPORT}" > a.mjs && echo "{REQUIRE}" > b.cjs'
        assert await output(here, f"{elsewhere} && node a.mjs && node b.cjs") == "1.2.0\n1.2.0\n"
        listed = {
            package["name"]: package
            for package in (await here.call("list_packages", language="javascript"))["packages"]
        }
        assert (listed["greet"]["source"], listed["greet"]["sha256"]) == ("installed", found["greet"]["sha256"])
        assert (await here.call("list_files"))["entries"] == []
        asked = len(here.registry.asked)
        assert (await here.js(REQUIRE, packages=["greet@1"]))["stdout"] == "1.2.0\n"
        assert (await here.js(IMPORT, packages=["greet@1"], fresh=True))["stdout"] == "1.2.0\n"
        assert len(here.registry.asked) == asked
        assert sorted(here.registry.downloads()) == ["@made-helper-1.0.0.tgz", "greet-1.2.0.tgz"]


async def test_versions_live_beside_each_other_and_are_replaced_when_another_is_asked_for(plain: Place) -> None:
    add, own = plain.registry.add, {"sandbox": (await plain.call("create_sandbox"))["sandbox"]}
    # The outer package needs another version of inner than the program asks for.
    outer = {"package/index.js": "exports.INNER = require('inner').VERSION;\n"}
    add("inner", "1.0.0", files={"package/old.js": ""})
    add("inner", "2.0.0")
    add("outer", "1.0.0", dependencies={"inner": "^1.0.0"}, files=outer)
    # An installation that goes on already is joined.
    plain.registry.hold.clear()
    first, second = [await plain.install("inner@2", "outer", wait=0, **own) for _ in range(2)]
    assert (first["status"], first["installation"]) == ("installing", second["installation"])
    waiting = asyncio.create_task(plain.call("get_installation", installation=first["installation"], wait=120))
    plain.registry.hold.set()
    assert (await waiting)["status"] == "success"
    both = "console.log(require('inner').VERSION, require('outer').INNER)"
    assert (await plain.js(both, **own))["stdout"] == "2.0.0 1.0.0\n"
    assert (await plain.install("inner@1.0.0", **own))["status"] == "success"
    assert (await plain.js(both, **own))["stdout"] == "1.0.0 1.0.0\n"
    assert await output(
        plain, "ls $HOME/.local/lib/node_modules; ls -d $HOME/.local/lib/node_modules/outer/node_modules/inner", **own
    ) == ("inner\nouter\n")
    assert (await plain.install("inner@>=2", **own))["status"] == "success"
    assert (await plain.js("require('inner/old.js')", **own))["outcome"] == "error"
    assert (await plain.js(both, **own))["stdout"] == "2.0.0 1.0.0\n"
    # What is there is kept, although there is a later one.
    add("inner", "2.1.0")
    add("user-of-inner", "1.0.0", dependencies={"inner": "*"})
    assert (await plain.install("user-of-inner", **own))["status"] == "success"
    assert (await plain.js(both, **own))["stdout"] == "2.0.0 1.0.0\n"


NO_NAMES = (
    *("git+ssh://x/y", "user/repo", "file:../x", "http://x/y.tgz", "x.tgz", "../x", "--registry=http://x", "a@npm:b"),
    *("greet@git://x", "greet@../x", "greet; touch /tmp/pwn", "greet@user/repo"),
)


@pytest.mark.promise("npm-packages")
async def test_what_is_no_name_is_refused_before_anything_is_asked_and_failures_are_told_apart() -> None:
    lists = ("--packages.npm.deny", '["bad*"]', "--packages.max-bytes", "300000", "--packages.npm.max-packages", "3")
    async with place(*lists) as here:
        for name in NO_NAMES:
            assert (await here.install(name))["error"] == "invalid_argument"
            assert (await here.js("1", packages=[name]))["error"] == "invalid_argument"
        assert here.registry.asked == []
        assert (await here.call("list_sandboxes"))["sandboxes"] == []
        add = here.registry.add
        add("old", "1.0.0", engines={"node": ">=1000"})
        add("mac", "1.0.0", os=["darwin"], cpu=["arm"])
        add("maybe", "1.0.0", optionalDependencies={"mac": "1.0.0"})
        add("helper", "1.0.0")
        add("helper", "2.0.0")
        add("plugin", "1.0.0", peerDependencies={"helper": "^1.0.0"})
        add("sly", "1.0.0", dependencies={"bad-one": "*"})
        add("bad-one", "1.0.0")
        for number, source in enumerate(("git+ssh://git@127.0.0.1/x.git", f"{here.registry.url}x.tgz", "file:../x")):
            add(f"outside{number}", "1.0.0", dependencies={"x": source})
        add("many", "1.0.0", dependencies={f"one{number}": "*" for number in range(3)})
        for number in range(3):
            add(f"one{number}", "1.0.0")
        add("big", "1.0.0", files={"package/data": hashlib.shake_128(b"").hexdigest(400_000)})

        async def failure(*packages: str) -> tuple[str, str]:
            failed = await here.install(*packages)
            assert (failed["status"], failed["packages"], bool(failed["next"])) == ("failed", [], True)
            return failed["error"], failed["message"]

        code, message = await failure("helper@7")
        assert (code, "helper@7" in message) == ("not_found", True)
        code, message = await failure("old")
        assert (code, "old@1.0.0 is for Node.js >=1000; this sandbox has" in message) == ("not_found", True)
        code, message = await failure("mac")
        assert (code, "other systems or processors" in message) == ("not_found", True)
        code, message = await failure("plugin", "helper@2")
        assert (code, "exclude each other" in message) == ("invalid_argument", True)
        assert await failure("sly") == (
            "package_blocked",
            "The package bad-one is on this server's list of blocked packages.",
        )
        for number in range(3):
            code, message = await failure(f"outside{number}")
            assert (code, "only packages of the registry" in message) == ("package_blocked", True)
        assert (await failure("many"))[0] == "quota_exceeded"
        assert (await failure("big"))[0] == "quota_exceeded"
        assert (await here.install("bad-two"))["error"] == "package_blocked"
        failed = await here.js("1", packages=["@no/where"])
        assert (failed["error"], failed["message"]) == ("not_found", "The npm registry has no @no/where.")
        # What is optional and for another machine is left out.
        done = await here.install("maybe")
        assert (done["status"], [package["name"] for package in done["packages"]]) == ("success", ["maybe"])
        here.stop_registry()
        assert (await failure("one0"))[0] == "backend_unavailable"


async def test_only_allowed_names_are_taken_whatever_a_program_writes_into_the_record() -> None:
    async with place("--packages.npm.allow", '["greet", "@made/*"]') as here:
        for name in ("helper", "@made/one", "evil"):
            here.registry.add(name, "1.0.0")
        here.registry.add("greet", "1.0.0", dependencies={"helper": "*"})
        assert (await here.install("helper"))["error"] == "package_blocked"
        greet = {"version": "1.0.0", "dependencies": {"evil": "*"}, "peerDependencies": {"evil": "*"}}
        for forged in (
            {"dependencies": {"evil": "*", "greet": "npm:evil@1.0.0"}, "packages": {}},
            {"dependencies": {"greet": "1.0.0"}, "packages": {"node_modules/greet": greet}},
        ):
            own = {"sandbox": (await here.call("create_sandbox"))["sandbox"]}
            # What it depends on comes with it.
            assert (await here.install("greet", **own))["status"] == "success"
            assert (await here.js("require('helper')", **own))["outcome"] == "ok"
            await here.shell(f"echo '{json.dumps(forged)}' > $HOME/.local/lib/npm.json", **own)
            assert (await here.install("@made/one", **own))["status"] == "success"
            assert (await here.js("require('evil')", **own))["outcome"] == "error"
            assert (await here.js("console.log(require('@made/one').VERSION)", **own))["stdout"] == "1.0.0\n"
        assert "evil-1.0.0.tgz" not in here.registry.downloads()


@pytest.mark.promise("npm-packages")
@pytest.mark.claim("install_packages")
async def test_scripts_of_packages_are_not_run_which_is_told_and_files_stay_where_they_belong(plain: Place) -> None:
    files = {f"package/../../../../../../../workspace/out{number}.txt": "1" for number in range(2)}
    plain.registry.add("scripted", "1.0.0", scripts={"postinstall": "touch /workspace/ran"}, files=files)
    done = await plain.install("scripted")
    assert (done["status"], "not run: those of scripted." in done["note"]) == ("success", True)
    assert (await plain.js("console.log(require('scripted').VERSION)"))["stdout"] == "1.0.0\n"
    assert (await plain.call("list_files"))["entries"] == []
    assert await output(plain, "find $HOME/.local/lib/node_modules -type l") == ""


async def test_package_that_is_not_what_was_announced_is_not_installed(plain: Place) -> None:
    plain.registry.add("announced", "1.0.0")
    plain.registry.files["announced-1.0.0.tgz"] = plain.registry.add("in-its-place", "1.0.0")
    failed = await plain.install("announced")
    assert (failed["error"], "not what the npm registry announced" in failed["message"]) == ("backend_error", True)
    assert (await plain.js("require('announced')"))["outcome"] == "error"


async def test_package_for_which_there_is_no_room_leaves_nothing_and_says_so() -> None:
    async with place("--local.packages-size", "4Mi") as here:
        here.registry.add("greet", "1.0.0", files={"package/data": "0" * 6_000_000})
        failed = await here.install("greet")
        assert (failed["status"], failed["error"]) == ("failed", "quota_exceeded")
        assert failed["cause"] == "greet needs 6 MiB, and 4 MiB are free"
        assert (await here.js(REQUIRE))["outcome"] == "error"
        assert await output(here, "du -sm ~/.local/ | cut -f1") in {"0\n", "1\n"}
        here.registry.add("small", "1.0.0")
        assert (await here.install("small"))["status"] == "success"


async def test_record_that_a_program_has_changed_decides_nothing_and_does_no_harm(plain: Place) -> None:
    own, record = {"sandbox": (await plain.call("create_sandbox"))["sandbox"]}, "$HOME/.local/lib/npm.json"
    good = plain.registry.add("real", "1.0.0")
    plain.registry.add("fake", "1.0.0", files={"package/index.js": "exports.VERSION = 'fake';\n"})
    assert (await plain.install("fake", **own))["status"] == "success"
    forged = json.loads(await output(plain, f"cat {record}", **own))
    # The hash of another package's content, for the one that is there and for one that is to come.
    forged["packages"]["node_modules/fake"]["integrity"] = integrity(good)
    forged["packages"]["node_modules/real"] = {**forged["packages"]["node_modules/fake"], "sha256": "0" * 64}
    await output(plain, f"echo '{json.dumps(forged)}' > {record}", **own)
    assert (await plain.install("real", **own))["status"] == "success"
    assert (await plain.js("console.log(require('real').VERSION)", **own))["stdout"] == "1.0.0\n"
    assert "integrity" not in await output(plain, f"cat {record}", **own)
    # What makes no sense.
    spoilt = '{"asked": 3, "dependencies": {"x": "file:/etc"}, "packages": {"../../x": {}}}'
    await output(plain, f"echo '{spoilt}' > {record}", **own)
    assert (await plain.install("fake@1", **own))["status"] == "success"
    # A source that is no registry.
    script = 's/"dependencies": {/"dependencies": {"x": "file:\\/etc", /'
    await output(plain, f"sed -i '{script}' {record}", **own)
    assert (await plain.install("real@1", **own))["error"] == "package_blocked"


async def test_package_announced_with_the_hash_of_another_one_does_not_take_its_place(plain: Place) -> None:
    good = plain.registry.add("hashed", "1.0.0")
    evil = plain.registry.add("evil", "1.0.0", files={"package/index.js": "exports.VERSION = 'evil';\n"})
    # npm itself is content with any hash of the strongest algorithm.
    both = f"{integrity(good)} {integrity(evil)}"
    plain.registry.versions["evil"]["1.0.0"]["dist"]["integrity"] = both
    failed = await plain.install("evil")
    assert (failed["error"], "exactly one valid hash of evil" in failed["message"]) == ("backend_error", True)
    second = (await plain.call("create_sandbox"))["sandbox"]
    assert (await plain.install("hashed", sandbox=second))["status"] == "success"
    assert (await plain.js("console.log(require('hashed').VERSION)", sandbox=second))["stdout"] == "1.0.0\n"
