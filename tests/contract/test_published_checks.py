"""Checks that another system publishes for itself, run against its tools here. `test_compat.py` has the others of them:
sessions and their files, refusals, timeout, truncation, busy, and the number of sessions."""

import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from support.gateway.peer import until
from support.gateway.served import LIBRARIES, LOCAL, Served, connected, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs_userns]

PNG = b"\x89PNG\r\n\x1a\n"
ROWS = """
import random
random.seed(1)
with open('sales.csv', 'w') as file:
    print('region,price,count', file=file)
    for i in range(50_000):
        print(random.choice('NESW'), round(random.uniform(1, 90), 2), random.randint(1, 9), sep=',', file=file)
"""
WRONG_COLUMN = "import pandas\nprint(pandas.read_csv('sales.csv')['prize'].sum())"
FALLBACK = """
try:
    import library_that_is_not_there
except ModuleNotFoundError:
    import matplotlib.pyplot as plotting
import pandas
table = pandas.read_csv('sales.csv')
table['sum'] = table['price'] * table['count']
print(len(table), sorted(table['region'].unique()))
figure, [[bars, dots], [heat, counts]] = plotting.subplots(2, 2)
table.groupby('region')['sum'].sum().plot.bar(ax=bars)
dots.scatter(table['price'][:500], table['sum'][:500])
heat.imshow(table[['price', 'count', 'sum']].corr())
table['count'].plot.hist(ax=counts)
figure.savefig('dashboard.png')
figure.savefig('report.pdf')
"""


class Place(Served):
    async def run(self, session: str, code: str) -> dict[str, Any]:
        return await self.call("sandbox_run_python", code=code, session_id=session)


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Place]:
    """A server with the other system's tools, and a caller of it."""
    flags = (*LOCAL, *LIBRARIES, "--tools", '["all"]', "--compat.systems", "gaiar", *flags)
    async with gateway(*flags) as address, connected(address, Place) as place:
        yield place


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place() -> AsyncIterator[Place]:
    async with serving("--links.upload-bytes", "4096") as started:
        yield started


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_output_exit_code_and_ids_have_their_forms(place: Place) -> None:
    ran = await place.call("sandbox_run_python", code="print(1 + 1)")
    assert (ran["stdout"], ran["stderr"], ran["exit_code"], ran["artifacts"]) == ("2\n", "", 0, [])
    assert re.fullmatch(r"sess_[0-9a-f]{12}", ran["session_id"])
    assert re.fullmatch(r"run_\d{8}T\d{6}Z_[0-9a-f]{4}", ran["run_id"])
    assert await place.call("sandbox_close_session", session_id=ran["session_id"]) == {"status": "closed"}


async def test_exception_exits_non_zero_with_its_traceback_in_stderr(place: Place) -> None:
    failed = await place.run("checks", "def f():\n    return 1 / 0\nprint('before')\nf()")
    assert (failed["exit_code"], failed["stdout"]) == (1, "before\n")
    for part in ("Traceback (most recent call last)", "line 2, in f", "return 1 / 0", "ZeroDivisionError"):
        assert part in failed["stderr"]


async def test_no_outbound_network(place: Place) -> None:
    code = (
        "import socket\n"
        "for host in ('192.0.2.1', '169.254.169.254', 'example.com'):\n"
        "    try:\n        socket.create_connection((host, 80), 3)\n"
        "    except OSError:\n        print('unreachable')\n"
    )
    assert (await place.run("checks", code))["stdout"] == "unreachable\n" * 3


async def test_data_folder_and_tmp_can_be_written_and_the_root_can_not(place: Place) -> None:
    code = (
        "import os\n"
        "for path in ('here', '/workspace/data', '/tmp/x', '/x', '/etc/x', '/usr/x', '/var/x'):\n"
        "    try:\n        open(path, 'w').close()\n        print('yes', path)\n"
        "    except OSError:\n        print('no', path)\n"
        "print(os.getuid() != 0)\n"
    )
    written = "yes here\nyes /workspace/data\nyes /tmp/x\nno /x\nno /etc/x\nno /usr/x\nno /var/x\nTrue\n"
    assert (await place.run("writes", code))["stdout"] == written
    assert await place.call("sandbox_close_session", session_id="writes") == {"status": "closed"}


async def test_session_ids_that_are_valid_are_taken(place: Place) -> None:
    for session in ("a", "abc-123_X", "x" * 64):
        assert (await place.run(session, "print(1)"))["session_id"] == session
        assert await place.call("sandbox_close_session", session_id=session) == {"status": "closed"}


@pytest.mark.parametrize("name", ["a", "data.csv", "a-b_c.tar.gz", ".hidden", "x" * 251 + ".txt"])
async def test_file_name_that_is_valid_is_taken_and_read_back_byte_for_byte(place: Place, name: str) -> None:
    data = bytes(range(256)) + b"\r\n\n\0"
    await place.call("sandbox_upload_file", filename=name, content_base64=coded(data), session_id="checks")
    read = await place.call("sandbox_read_artifact", session_id="checks", path=name)
    assert (base64.b64decode(read["content_base64"]), read["size_bytes"]) == (data, len(data))


async def test_text_file_makes_the_round_trip_with_every_character(place: Place) -> None:
    text = "naïve\t«日本» 🎉\r\nno newline at the end"
    up = {"filename": "text.txt", "content_base64": coded(text.encode()), "session_id": "checks"}
    assert "error" not in await place.call("sandbox_upload_file", **up)
    copied = await place.run("checks", "open('copy.txt', 'wb').write(open('text.txt', 'rb').read())")
    assert [artifact["filename"] for artifact in copied["artifacts"]] == ["copy.txt"]
    read = await place.call("sandbox_read_artifact", session_id="checks", path="copy.txt")
    assert (base64.b64decode(read["content_base64"]).decode(), read["mime_type"]) == (text, "text/plain")


async def test_bad_base64_creates_no_session(place: Place) -> None:
    bad = {"filename": "a.txt", "content_base64": "not base64!", "session_id": "never-made"}
    assert (await place.call("sandbox_upload_file", **bad))["error"] == "invalid_content"
    listed = await place.call("sandbox_list_artifacts", session_id="never-made")
    assert listed["error"] == "session_not_found"


async def test_download_has_bytes_and_content_type_and_ends_with_the_session(place: Place) -> None:
    code = f"open('p.png', 'wb').write({PNG!r})\nopen('t.csv', 'w').write('a,b')\nopen('w.html', 'w').write('<b>')"
    made = {each["filename"]: each for each in (await place.run("links", code))["artifacts"]}
    for name, kind, body in (
        ("p.png", "image/png", PNG),
        ("t.csv", "text/csv; charset=utf-8", b"a,b"),
        ("w.html", "text/html; charset=utf-8", b"<b>"),
    ):
        answer = await place.http.get(made[name]["download_url"])
        assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, kind, body)
    await place.call("sandbox_close_session", session_id="links")
    assert (await place.http.get(made["p.png"]["download_url"])).status_code == 404


async def test_http_404_of_a_file_that_is_gone_and_403_without_a_right_to_it(place: Place) -> None:
    [made] = (await place.run("checks", "open('gone.txt', 'w').write('1')"))["artifacts"]
    await place.run("checks", "import os\nos.remove('gone.txt')")
    gone = await place.http.get(made["download_url"])
    assert (gone.status_code, gone.json()["error"]) == (404, "not_found")
    other = await place.http.get(made["download_url"].replace("gone.txt", "other.txt"))
    assert (other.status_code, other.json()["error"]) == (403, "forbidden")
    assert (await place.http.get("/files/none")).status_code == 404


async def test_http_413_over_the_limit(place: Place) -> None:
    await place.run("checks", "print(1)")
    [sandbox, *_] = [each["sandbox"] for each in (await place.call("list_sandboxes"))["sandboxes"]]
    link = await place.call("create_link", path="large.bin", sandbox=sandbox, method="put")
    refused = await place.http.put(link["url"], content=bytes(4097))
    assert (refused.status_code, refused.json()["error"]) == (413, "upload_too_large")
    assert (await place.http.put(link["url"], content=bytes(4096))).status_code == 201


async def test_analysis_of_50_000_rows_from_error_to_picture_and_report(place: Place) -> None:
    await place.run("eda", ROWS)
    failed = await place.run("eda", WRONG_COLUMN)
    assert (failed["exit_code"], "KeyError: 'prize'" in failed["stderr"]) == (1, True)
    fixed = await place.run("eda", WRONG_COLUMN.replace("prize", "price"))
    assert (fixed["exit_code"], float(fixed["stdout"]) > 0) == (0, True)
    drawn = await place.run("eda", FALLBACK)
    assert (drawn["exit_code"], drawn["stdout"]) == (0, "50000 ['E', 'N', 'S', 'W']\n"), drawn["stderr"]
    beginnings = {}
    for artifact in drawn["artifacts"]:
        beginnings[artifact["filename"]] = (await place.http.get(artifact["download_url"])).content[:5]
    assert beginnings == {"dashboard.png": PNG[:5], "report.pdf": b"%PDF-"}
    listed = await place.call("sandbox_list_artifacts", session_id="eda")
    assert {each["filename"] for each in listed["artifacts"]} == {"sales.csv", *beginnings}
    assert await place.call("sandbox_close_session", session_id="eda") == {"status": "closed"}


async def test_session_ends_after_its_ttl_but_not_while_it_is_busy() -> None:
    async with serving("--local.idle-timeout", "2") as place:
        busy = "import time\nfor i in range(5):\n    print(i, flush=True)\n    time.sleep(0.5)"
        ran = await place.run("s", busy)
        assert (ran["exit_code"], ran["stdout"]) == (0, "0\n1\n2\n3\n4\n")

        async def over() -> bool:  # being listed is no use of it
            return [each["status"] for each in (await place.call("list_sandboxes"))["sandboxes"]] != ["Ready"]

        await until("the session has ended", over)
        listed = await place.call("sandbox_list_artifacts", session_id="s")
        assert listed["error"] == "session_not_found"


async def test_full_table_of_sessions_refuses_new_ones_and_serves_those_that_there_are() -> None:
    async with serving("--local.max-sandboxes-per-owner", "2") as place:
        for session in ("one", "two"):
            assert (await place.run(session, "print(1)"))["exit_code"] == 0
        refused = await place.run("three", "print(1)")
        assert (refused["error"], "message" in refused) == ("max_sessions", True)
        assert (await place.run("one", "print(2)"))["stdout"] == "2\n"
        assert await place.call("sandbox_close_session", session_id="two") == {"status": "closed"}
        assert (await place.run("three", "print(1)"))["exit_code"] == 0
