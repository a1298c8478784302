"""Packages in sandboxes without a network, from an index on this machine: installed, found, listed, refused."""

import asyncio
import hashlib
import json
import os
import re
import secrets
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from fastmcp import Client

from sandpod import AsyncSandbox, Sandbox, SandpodError
from support.cluster.server import serving
from support.gateway.fake_gateway import keys_file
from support.gateway.peers import until
from support.gateway.served import LOCAL, Served, connected, gateway
from support.servers.package_index import Index, package_index, wheel

VERSION = "import greet\nprint(greet.VERSION)"

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]


class Place(Served):
    index: Index
    stop_index: Callable[[], None]

    async def install(self, *packages: str, **arguments: Any) -> dict[str, Any]:
        call = {"packages": list(packages), "wait": 120, **arguments}
        return await self.call("install_packages", **call)


@asynccontextmanager
async def place(*flags: str, server: tuple[str, ...] = LOCAL) -> AsyncIterator[Place]:
    with ExitStack() as stack:
        index = stack.enter_context(package_index())
        async with (
            gateway(*server, "--packages.index-url", index.url, *flags) as address,
            connected(address, Place) as here,
        ):
            here.index, here.stop_index = index, stack.close
            yield here


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain() -> AsyncIterator[Place]:
    """For tests of packages that no other test names."""
    async with place() as here:
        yield here


async def test_python_client_installs_what_the_index_has_and_uses_it(plain: Place) -> None:
    plain.index.add("client-greets", "1.0", content=wheel("client-greets", "1.0", needs=("client-needs",)))
    plain.index.add("client-needs", "2.1")
    url = str(plain.http.base_url)
    async with AsyncSandbox(url=url) as sandbox:
        found = await sandbox.packages.install("client-greets")
        assert sorted((each.name, each.version) for each in found) == [
            ("client-greets", "1.0"),
            ("client-needs", "2.1"),
        ]
        code = "import client_greets, client_needs; client_greets.VERSION + client_needs.VERSION"
        assert (await sandbox.run(code, context="main")).result == "'1.02.1'"
        assert {"client-greets", "client-needs"} <= {each.name for each in await sandbox.packages.list()}
        with pytest.raises(SandpodError, match="no-such-package"):
            await sandbox.packages.install("no-such-package")

        def blocking() -> list[str]:
            with Sandbox.connect(sandbox.handle or "", url=url) as same:
                return [each.version for each in same.packages.install("client-needs")]

        assert await asyncio.to_thread(blocking) == ["2.1"]


@pytest.mark.claim("install_packages", "list_packages", "run_python_code(packages)")
async def test_package_with_what_it_depends_on_is_there_for_all_runs_and_comes_from_the_cache_then(
    server_flags: tuple[str, ...],
) -> None:
    async with place(server=server_flags) as here:
        main = here.index.add(
            "greet",
            "1.2",
            content=wheel(
                "greet",
                "1.2",
                needs=("helper>=1",),
                scripts="hi = greet.cli:main",
                files={"greet/cli.py": "def main():\n    import helper\n    print('hi', helper.VERSION)\n"},
            ),
        )
        here.index.add("helper", "1.0")
        # A context that looked for it in vain finds it later.
        assert (await here.python("import greet", context="c"))["outcome"] == "error"
        done = await here.install("greet>=1")
        assert done["status"] == "success"
        found = {package["name"]: package for package in done["packages"]}
        assert {name: package["version"] for name, package in found.items()} == {"greet": "1.2", "helper": "1.0"}
        assert found["greet"]["sha256"] == hashlib.sha256(main).hexdigest()
        assert (await here.python(VERSION))["stdout"] == "1.2\n"
        assert (await here.python(VERSION, context="c"))["stdout"] == "1.2\n"
        assert (await here.shell("hi"))["stdout"] == "hi 1.0\n"
        # Compiled once, and not for each run.
        compiled = "ls ~/.local/lib/python3*/site-packages/greet/__pycache__"
        assert "__init__.cpython" in (await here.shell(compiled))["stdout"]
        seen = await here.call("get_sandbox", sandbox=done["sandbox"])
        assert (seen["packages"], bool(seen["image"])) == (["greet 1.2", "helper 1.0"], True)
        listed = {package["name"]: package for package in (await here.call("list_packages"))["packages"]}
        assert (listed["greet"]["source"], listed["greet"]["sha256"]) == ("installed", found["greet"]["sha256"])
        assert {package["sha256"] for package in listed.values() if package["source"] == "image"} == {None}
        assert (await here.call("list_files"))["entries"] == []
        asked = len(here.index.asked)
        assert (await here.python(VERSION, packages=["greet"]))["stdout"] == "1.2\n"
        other = (await here.call("create_sandbox"))["sandbox"]
        assert (await here.install("greet>=1", sandbox=other))["status"] == "success"
        assert (await here.python(VERSION, sandbox=other))["stdout"] == "1.2\n"
        assert (await here.python(VERSION, packages=["greet>=1"], fresh=True))["stdout"] == "1.2\n"
        assert len(here.index.asked) == asked


@pytest.mark.claim("install_packages", "install_packages(wait)", "get_installation", "get_installation(installation)")
async def test_same_installation_is_joined_and_a_later_one_takes_the_place_of_its_version(plain: Place) -> None:
    plain.index.add("joined", "1.0", content=wheel("joined", "1.0", files={"joined/old.py": ""}))
    plain.index.add("joined", "2.0")
    plain.index.hold.clear()
    first = await plain.call("install_packages", packages=["joined==1.0"], wait=0)
    second = await plain.call("install_packages", packages=["joined==1.0"], wait=0)
    assert (first["status"], first["installation"]) == ("installing", second["installation"])
    waiting = asyncio.create_task(plain.call("get_installation", installation=first["installation"], wait=120))
    plain.index.hold.set()
    done = await waiting
    assert (done["status"], done["sandbox"], first["packages"]) == ("success", first["sandbox"], [])
    assert done["elapsed"] > second["elapsed"] >= first["elapsed"]
    again = await plain.call("get_installation", installation=done["installation"])
    assert (again["elapsed"], again["packages"]) == (done["elapsed"], done["packages"])
    assert (await plain.call("get_installation", installation="inst-of-before"))["error"] == "not_found"
    assert (await plain.python("import joined.old"))["outcome"] == "ok"
    # A file in the workspace that is called as a module does not disturb.
    await plain.call("write_file", path="zipfile.py", text="raise SystemExit(3)")
    assert (await plain.install("joined>=2"))["status"] == "success"
    await plain.call("delete_file", path="zipfile.py")
    assert (await plain.python("import joined; print(joined.VERSION)"))["stdout"] == "2.0\n"
    assert (await plain.python("import joined.old"))["outcome"] == "error"


@pytest.mark.promise("package-names")
@pytest.mark.claim("install_packages(language)", "get_installation")
async def test_what_is_no_name_is_refused_before_anything_is_asked_and_failures_are_told_apart() -> None:
    allowed = ["native", "greet", "other", "helper", "sly", "big", "bad*", "nowhere", "hiding"]
    lists = ("--packages.deny", '["bad*"]', "--packages.allow", json.dumps(allowed))
    async with place(*lists, "--packages.max-bytes", "300000") as here:
        for name in ("requests; touch /tmp/pwn", "--index-url=http://evil/simple", "-r/etc/passwd", "../x"):
            assert (await here.install(name))["error"] == "invalid_argument"
            assert (await here.python("1", packages=[name]))["error"] == "invalid_argument"
        assert here.index.asked == []
        assert (await here.call("list_sandboxes"))["sandboxes"] == []
        here.index.add("native", "1.0", tag="cp311-cp311-win_amd64")
        here.index.add("greet", "1.0", content=wheel("greet", "1.0", needs=("helper<1",)))
        here.index.add("other", "1.0", content=wheel("other", "1.0", needs=("helper>=1",)))
        here.index.add("helper", "0.5")
        here.index.add("helper", "1.0")
        here.index.add("sly", "1.0", content=wheel("sly", "1.0", needs=("bad-one",)))
        here.index.add("bad-one", "1.0")
        here.index.add("big", "1.0", content=wheel("big", "1.0") + bytes(400_000))

        async def failure(*packages: str) -> tuple[str, str]:
            failed = await here.install(*packages)
            assert (failed["status"], failed["packages"], bool(failed["next"])) == ("failed", [], True)
            return failed["error"], failed["message"]

        code, message = await failure("native")
        assert (code, "no wheel of native" in message) == ("not_found", True)
        code, message = await failure("helper==7")
        assert (code, "helper==7" in message) == ("not_found", True)
        assert (await failure("greet", "other"))[0] == "invalid_argument"
        assert await failure("sly") == (
            "package_blocked",
            "The package bad-one is on this server's list of blocked packages.",
        )
        assert (await failure("big"))[0] == "quota_exceeded"
        assert (await here.install("Bad.One"))["error"] == "package_blocked"
        failed = await here.python("1", packages=["nowhere"])
        assert (failed["error"], failed["message"]) == ("not_found", "The package index has no nowhere.")
        assert (await here.install("x", language="cobol"))["error"] == "unsupported_language"
        # What is not allowed comes with what depends on it.
        here.index.add("hiding", "1.0", content=wheel("hiding", "1.0", needs=("hidden",)))
        here.index.add("hidden", "1.0")
        assert (await here.install("hidden"))["error"] == "package_blocked"
        assert (await here.install("hiding"))["status"] == "success"
        here.stop_index()
        assert (await failure("other"))[0] == "backend_unavailable"


async def test_package_for_which_there_is_no_room_leaves_nothing_and_says_so() -> None:
    of_user = ("--quotas.per-user", '{"bytes_per_day": 40000}')
    async with place("--local.packages-size", "4Mi", *of_user) as here:
        content = wheel("greet", "1.0", files={"greet/data.bin": "0" * 6_000_000})
        here.index.add("greet", "1.0", content=content)
        failed = await here.install("greet")
        assert (failed["status"], failed["error"]) == ("failed", "quota_exceeded")
        assert failed["cause"] == "greet needs 6 MiB, and 4 MiB are free"
        assert "~/.local" in failed["message"]
        assert {"packagesSize", "local.packages_size"} <= set(re.findall(r"[\w.]+\w", failed["next"]))
        assert (await here.python("import greet"))["outcome"] == "error"
        # Nor one that fits, of a call whose others don't; all the room is there for what is asked for next.
        small = wheel("small", "1.0", files={"small/data.bin": "0" * 3_000_000})
        here.index.add("small", "1.0", content=small)
        here.index.add("other", "1.0", content=wheel("other", "1.0", files={"other/data.bin": "0" * 3_000_000}))
        failed = await here.install("small", "other")
        assert failed["cause"] in {f"{name} needs 3 MiB, and 1 MiB are free" for name in ("small", "other")}
        find = "find ~/.local/ /tmp -xdev -type f ! -name .lock; du -sm ~/.local/ | cut -f1"
        assert int((await here.shell(find))["stdout"]) <= 1
        assert (await here.install("small"))["status"] == "success"
        # What was brought in counts as other bytes do, and nothing else of the packages.
        here.index.add(
            "large", "1.0", content=wheel("large", "1.0", files={"large/data.txt": secrets.token_hex(40_000)})
        )
        failed = await here.install("large")
        left = re.search("over the ([0-9]+) bytes that are left", failed["message"])
        assert (failed["error"], left is not None) == ("quota_exceeded", True), failed
        assert left is not None
        assert 40_000 - 2 * len(small) < int(left[1]) <= 40_000 - len(small)


async def test_packages_larger_than_tmp_and_memory_have_room_of_their_own() -> None:
    async with place("--local.tmp-size", "4Mi", "--local.memory", "128Mi", "--local.packages-size", "512Mi") as here:
        for name in ("one", "two"):
            here.index.add(name, "1.0", content=wheel(name, "1.0", files={f"{name}/data.bin": "0" * 70_000_000}))
        assert (await here.install("one", "two"))["status"] == "success"
        assert (await here.python("import one, two\nprint(len(bytes(40 << 20)))"))["stdout"] == f"{40 << 20}\n"
        assert (await here.python("open('/tmp/own.bin', 'wb').write(bytes(3 << 20))"))["outcome"] == "ok"
        assert (await here.call("list_files"))["entries"] == []


async def test_package_with_files_outside_of_its_folder_is_refused(plain: Place) -> None:
    for name, path in (("above", "../../../../../workspace/out.txt"), ("absolute", "/workspace/out.txt")):
        plain.index.add(name, "1.0", content=wheel(name, "1.0", files={path: "1"}))
        failed = await plain.install(name)
        assert (failed["error"], failed["next"]) == ("execution_failed", "Ask for another version of it.")
        assert (await plain.python(f"import {name}"))["outcome"] == "error"
    assert (await plain.call("list_files"))["entries"] == []


async def test_no_more_than_eight_installations_of_one_caller_go_on_at_once(plain: Place) -> None:
    plain.index.hold.clear()
    begun = [await plain.install(f"one{number}", wait=0) for number in range(8)]
    assert {each["status"] for each in begun} == {"installing"}
    refused = await plain.install("one-more", wait=0)
    assert (refused["error"], "get_installation" in refused["next"]) == ("rate_limited", True)
    await plain.close()  # so that the others have nowhere to go
    plain.index.hold.set()
    for each in begun:
        gone = await plain.call("get_installation", installation=each["installation"], wait=120)
        assert gone["error"] == "not_found"


async def test_slow_installations_of_one_owner_leave_one_of_two_slots_to_another(tmp_path: Path) -> None:
    path, keys = keys_file(tmp_path, "alice", "bob")
    with package_index() as index:
        for name in ("slow0", "slow1", "quick"):
            index.add(name, "1.0")
        flags = ("--packages.index-url", index.url, "--packages.concurrency", "2", "--auth.keys-file", str(path))
        async with (
            gateway(*LOCAL, *flags) as address,
            httpx2.AsyncClient() as http,
            Client(f"{address}/mcp", auth=keys[0]) as first,
            Client(f"{address}/mcp", auth=keys[1]) as second,
        ):
            alice, bob = Place(first, http), Place(second, http)
            boxes = [(await alice.call("create_sandbox"))["sandbox"] for _ in range(2)]
            index.hold.clear()
            begun = [await alice.install(f"slow{number}", sandbox=box, wait=0) for number, box in enumerate(boxes)]
            # Either may have its turn first: each asks its sandbox before that.
            slow = {"/simple/slow0/", "/simple/slow1/"}
            await until(lambda: not slow.isdisjoint(index.asked))
            mine = await bob.install("quick", wait=0)
            await until(lambda: "/simple/quick/" in index.asked)
            assert len(slow.intersection(index.asked)) == 1
            assert {each["status"] for each in (*begun, mine)} == {"installing"}
            await alice.close()  # so that hers have nowhere to go
            index.hold.set()
            ended = await bob.call("get_installation", installation=mine["installation"], wait=120)
            assert ended["status"] == "success"
            await bob.close()


async def test_process_of_the_same_user_can_not_read_the_gateways_memory() -> None:
    # root without its capabilities: an ordinary user has none.
    plain = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()

    async def readable(pid: int) -> list[str]:
        found = []
        for name in ("environ", "maps", "auxv", "mem"):
            command = [*plain, "head", "-c", "1", f"/proc/{pid}/{name}"]
            process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=PIPE)
            if b"Permission denied" not in (await process.communicate())[1]:
                found.append(name)
        return found

    other = await asyncio.create_subprocess_exec(*plain, "cat", stdin=PIPE, stdout=PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write(b"x")
    await other.stdout.readexactly(1)
    assert await readable(other.pid) == ["environ", "maps", "auxv", "mem"]
    other.stdin.close()
    await other.wait()
    async with serving(*LOCAL, "--unsafe-no-isolation", prefix=plain) as (_, pid):
        assert await readable(pid) == []
