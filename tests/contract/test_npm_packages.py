"""npm packages in sandboxes without a network, from a registry on this machine: installed, found, refused."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.gateway.served import LOCAL, Served, connected, gateway
from support.servers.npm_registry import Registry, integrity, npm_registry

REQUIRE = "console.log(require('greet').VERSION)"
IMPORT = "import greet from 'greet';\nconsole.log(greet.VERSION);"

pytestmark = pytest.mark.needs_userns


class Place(Served):
    registry: Registry

    async def install(self, *packages: str, **arguments: Any) -> dict[str, Any]:
        call = {"packages": list(packages), "wait": 120, "language": "javascript", **arguments}
        return await self.call("install_packages", **call)


@asynccontextmanager
async def place(*flags: str, server: tuple[str, ...] = LOCAL) -> AsyncIterator[Place]:
    with npm_registry() as registry:
        async with (
            gateway(*server, "--packages.npm.registry-url", registry.url, *flags) as address,
            connected(address, Place) as here,
        ):
            here.registry = registry
            yield here


async def output(here: Place, command: str) -> str:
    return str((await here.shell(command))["stdout"])


@pytest.mark.claim("install_packages", "install_packages(packages)")
async def test_package_with_what_it_depends_on_is_found_by_require_and_import_from_anywhere(
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


@pytest.mark.claim("run_python_code(packages)")
async def test_run_installs_what_it_names_and_second_sandbox_gets_it_from_the_cache(
    server_flags: tuple[str, ...],
) -> None:
    async with place(server=server_flags) as here:
        here.registry.add("greet", "1.0.0")
        assert (await here.js(REQUIRE, packages=["greet"]))["stdout"] == "1.0.0\n"
        asked = len(here.registry.asked)
        assert (await here.js(REQUIRE, packages=["greet"]))["stdout"] == "1.0.0\n"
        assert (await here.js(IMPORT, packages=["greet"], fresh=True))["stdout"] == "1.0.0\n"
        assert len(here.registry.asked) == asked
        assert here.registry.downloads() == ["greet-1.0.0.tgz"]


async def test_versions_live_beside_each_other_and_are_replaced_when_another_is_asked_for() -> None:
    async with place() as here:
        # The outer package needs another version of greet than the program asks for.
        outer = {"package/index.js": "exports.INNER = require('greet').VERSION;\n"}
        here.registry.add("greet", "1.0.0", files={"package/old.js": ""})
        here.registry.add("greet", "2.0.0")
        here.registry.add("outer", "1.0.0", dependencies={"greet": "^1.0.0"}, files=outer)
        assert (await here.install("greet@2", "outer"))["status"] == "success"
        both = "console.log(require('greet').VERSION, require('outer').INNER)"
        assert (await here.js(both))["stdout"] == "2.0.0 1.0.0\n"
        assert (await here.install("greet@1.0.0"))["status"] == "success"
        assert (await here.js(both))["stdout"] == "1.0.0 1.0.0\n"
        assert await output(
            here, "ls $HOME/.local/lib/node_modules; ls -d $HOME/.local/lib/node_modules/outer/node_modules/greet"
        ) == ("greet\nouter\n")
        assert (await here.install("greet@>=2"))["status"] == "success"
        assert (await here.js("require('greet/old.js')"))["outcome"] == "error"
        assert (await here.js(both))["stdout"] == "2.0.0 1.0.0\n"


async def test_second_installation_keeps_what_the_first_one_brought() -> None:
    async with place() as here:
        here.registry.add("greet", "1.0.0")
        here.registry.add("other", "1.0.0", dependencies={"greet": "*"})
        assert (await here.install("greet"))["status"] == "success"
        here.registry.add("greet", "1.1.0")
        assert (await here.install("other"))["status"] == "success"
        assert (await here.js(REQUIRE))["stdout"] == "1.0.0\n"


async def test_same_installation_is_joined() -> None:
    async with place() as here:
        here.registry.add("greet", "1.0.0")
        here.registry.hold.clear()
        first = await here.install("greet", wait=0)
        second = await here.install("greet", wait=0)
        assert (first["status"], first["installation"]) == ("installing", second["installation"])
        waiting = asyncio.create_task(here.call("get_installation", installation=first["installation"], wait=120))
        here.registry.hold.set()
        assert (await waiting)["status"] == "success"


@pytest.mark.promise("npm-packages")
async def test_what_is_no_name_is_refused_before_anything_is_asked_or_made() -> None:
    names = (
        "git+ssh://x/y",
        "user/repo",
        "file:../x",
        "http://x/y.tgz",
        "x.tgz",
        "../x",
        "--registry=http://x",
        "a@npm:b",
    )
    async with place() as here:
        for name in (*names, "greet@git://x", "greet@../x", "greet; touch /tmp/pwn", "greet@user/repo"):
            assert (await here.install(name))["error"] == "invalid_argument"
            assert (await here.js("1", packages=[name]))["error"] == "invalid_argument"
        assert here.registry.asked == []
        assert (await here.call("list_sandboxes"))["sandboxes"] == []


@pytest.mark.promise("npm-packages")
async def test_failures_are_told_apart() -> None:
    lists = ("--packages.npm.deny", '["bad*"]', "--packages.max-bytes", "300000", "--packages.npm.max-packages", "3")
    async with place(*lists) as here:
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


async def test_only_allowed_names_are_taken_and_what_they_depend_on_comes_with_them() -> None:
    async with place("--packages.npm.allow", '["greet", "@made/*"]') as here:
        here.registry.add("greet", "1.0.0", dependencies={"helper": "*"})
        here.registry.add("helper", "1.0.0")
        here.registry.add("@made/one", "1.0.0")
        assert (await here.install("helper"))["error"] == "package_blocked"
        assert (await here.install("greet", "@made/one"))["status"] == "success"


async def test_record_that_a_program_has_changed_does_not_widen_what_is_allowed() -> None:
    async with place("--packages.npm.allow", '["greet", "other"]') as here:
        for name in ("greet", "other", "evil"):
            here.registry.add(name, "1.0.0")
        greet = {"version": "1.0.0", "dependencies": {"evil": "*"}, "peerDependencies": {"evil": "*"}}
        for forged in (
            {"dependencies": {"evil": "*", "greet": "npm:evil@1.0.0"}, "packages": {}},
            {"dependencies": {"greet": "1.0.0"}, "packages": {"node_modules/greet": greet}},
        ):
            own = {"sandbox": (await here.call("create_sandbox"))["sandbox"]}
            assert (await here.install("greet", **own))["status"] == "success"
            await here.shell(f"echo '{json.dumps(forged)}' > $HOME/.local/lib/npm.json", **own)
            assert (await here.install("other", **own))["status"] == "success"
            assert (await here.js("require('evil')", **own))["outcome"] == "error"
            assert (await here.js("console.log(require('other').VERSION)", **own))["stdout"] == "1.0.0\n"
        assert "evil-1.0.0.tgz" not in here.registry.downloads()


@pytest.mark.promise("npm-packages")
@pytest.mark.claim("install_packages")
async def test_scripts_of_packages_are_not_run_which_is_told_and_files_stay_where_they_belong() -> None:
    async with place() as here:
        files = {f"package/../../../../../../../workspace/out{number}.txt": "1" for number in range(2)}
        here.registry.add("greet", "1.0.0", scripts={"postinstall": "touch /workspace/ran"}, files=files)
        done = await here.install("greet")
        assert (done["status"], "not run: those of greet." in done["note"]) == ("success", True)
        assert (await here.js(REQUIRE))["stdout"] == "1.0.0\n"
        assert (await here.call("list_files"))["entries"] == []
        assert await output(here, "find $HOME/.local/lib/node_modules -type l") == ""


async def test_package_that_is_not_what_was_announced_is_not_installed() -> None:
    async with place() as here:
        here.registry.add("greet", "1.0.0")
        here.registry.files["greet-1.0.0.tgz"] = here.registry.add("other", "1.0.0")
        failed = await here.install("greet")
        assert (failed["error"], "not what the npm registry announced" in failed["message"]) == ("backend_error", True)
        assert (await here.js(REQUIRE))["outcome"] == "error"


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


async def test_record_that_a_program_has_spoilt_does_no_harm() -> None:
    async with place() as here:
        here.registry.add("greet", "1.0.0")
        here.registry.add("other", "1.0.0")
        assert (await here.install("greet"))["status"] == "success"
        spoil = '{"asked": 3, "dependencies": {"x": "file:/etc"}, "packages": {"../../x": {}}}'
        await output(here, f"echo '{spoil}' > $HOME/.local/lib/npm.json")
        assert (await here.install("other"))["status"] == "success"
        await output(
            here, 'sed -i \'s/"dependencies": {/"dependencies": {"x": "file:\\/etc", /\' $HOME/.local/lib/npm.json'
        )
        assert (await here.install("greet@1"))["error"] == "package_blocked"


async def test_package_announced_with_the_hash_of_another_one_does_not_take_its_place() -> None:
    async with place() as here:
        good = here.registry.add("greet", "1.0.0")
        evil = here.registry.add("evil", "1.0.0", files={"package/index.js": "exports.VERSION = 'evil';\n"})
        # npm itself is content with any hash of the strongest algorithm.
        both = f"{integrity(good)} {integrity(evil)}"
        here.registry.versions["evil"]["1.0.0"]["dist"]["integrity"] = both
        failed = await here.install("evil")
        assert (failed["error"], "exactly one valid hash of evil" in failed["message"]) == ("backend_error", True)
        second = (await here.call("create_sandbox"))["sandbox"]
        assert (await here.install("greet", sandbox=second))["status"] == "success"
        assert (await here.js(REQUIRE, sandbox=second))["stdout"] == "1.0.0\n"


async def test_hashes_that_a_sandbox_writes_into_its_record_decide_nothing() -> None:
    async with place() as here:
        good = here.registry.add("greet", "1.0.0")
        here.registry.add("evil", "1.0.0", files={"package/index.js": "exports.VERSION = 'evil';\n"})
        assert (await here.install("evil"))["status"] == "success"
        read = "$HOME/.local/lib/npm.json"
        record = json.loads(await output(here, f"cat {read}"))
        record["packages"]["node_modules/evil"]["integrity"] = integrity(good)
        record["packages"]["node_modules/greet"] = {**record["packages"]["node_modules/evil"], "sha256": "0" * 64}
        await output(here, f"echo '{json.dumps(record)}' > {read}")
        assert (await here.install("greet"))["status"] == "success"
        assert (await here.js(REQUIRE))["stdout"] == "1.0.0\n"
        assert "integrity" not in await output(here, f"cat {read}")


async def test_registry_that_is_not_there_is_told() -> None:
    async with place("--packages.npm.registry-url", "http://127.0.0.1:9/") as here:
        assert (await here.install("greet"))["error"] == "backend_unavailable"
