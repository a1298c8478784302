"""Which tools of other systems there are, and what arguments they take."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from pydantic import ValidationError

from fakes.backend import FakeBackend
from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.local.bwrap import WORKSPACE_LINKS
from sandpod_gateway.e2b.paths import HOME
from sandpod_gateway.mcp.compat import gaiar, johanli233
from sandpod_gateway.settings import Settings


async def told(*systems: str, tools: list[str] | None = None) -> dict[str, tuple[Any, ...]]:
    settings = Settings.model_validate({"tools": tools, "compat": {"systems": list(systems)}})
    async with Client(Gateway(settings, FakeBackend()).mcp) as client:
        return {tool.name: (tool.description, tool.input_schema) for tool in await client.list_tools()}


async def test_tools_of_other_systems_are_there_alone_or_take_the_place_of_ours() -> None:
    theirs = {
        "philschmid": {"run_python_code", "run_javascript_code", "run_js_code"},
        "johanli233": {
            *("list_sandboxes", "create_sandbox", "execute_python_code", "execute_terminal_command"),
            *("install_package_in_sandbox", "check_package_installation_status", "upload_file_to_sandbox"),
        },
        "chrishayuk": {
            *("create_sandbox", "close_sandbox", "get_sandbox_status", "execute_code", "install_package"),
            *("create_run_close", "list_files", "read_file", "write_file", "upload_file", "delete_file"),
            *("get_file_metadata", "generate_line_chart", "generate_bar_chart", "generate_scatter_plot"),
            *("generate_heatmap", "generate_interactive_chart"),
            *("connect", "send_command", "disconnect", "list_connections"),
        },
        "gaiar": {
            *("sandbox_run_python", "sandbox_upload_file", "sandbox_read_artifact", "sandbox_list_artifacts"),
            "sandbox_close_session",
        },
    }
    own = await told()
    assert not {name for names in theirs.values() for name in names if name.startswith(("sandbox_", "execute_"))} & set(
        own
    )
    for system, names in theirs.items():
        assert set(await told(system)) == names
        found = await told(system, tools=["all"])
        assert set(found) == set(own) | names
        assert {name for name in found if found[name] != own.get(name)} == names


async def test_arguments_are_theirs() -> None:
    found = await told("philschmid", "johanli233", "chrishayuk", "gaiar", tools=["all"])

    def arguments(tool: str) -> tuple[list[str], list[str]]:
        schema = found[tool][1]
        return list(schema["properties"]), schema.get("required", [])

    assert arguments("run_python_code") == (["code"], ["code"])
    assert arguments("sandbox_run_python") == (["code", "session_id"], ["code"])
    upload = ["filename", "content_base64", "session_id", "overwrite"]
    assert arguments("sandbox_upload_file") == (upload, upload[:2])
    assert arguments("sandbox_read_artifact") == (["session_id", "path"], ["session_id", "path"])
    assert arguments("execute_python_code") == (["sandbox_id", "code"], ["sandbox_id", "code"])
    assert arguments("install_package_in_sandbox")[1] == ["sandbox_id", "package_name"]
    assert arguments("upload_file_to_sandbox")[0] == ["sandbox_id", "local_file_path", "dest_path"]
    assert arguments("execute_code") == (["session_id", "code"], ["session_id", "code"])
    assert arguments("connect") == (["host", "port", "timeout"], ["host", "port"])
    assert arguments("send_command") == (["session_id", "command", "timeout"], ["session_id", "command"])
    assert arguments("disconnect") == (["session_id"], ["session_id"])
    assert arguments("list_connections") == ([], [])
    # A name that several have is the last one's.
    assert arguments("create_sandbox") == (["session_id"], ["session_id"])
    assert arguments("upload_file")[0] == ["session_id", "file_name", "file_content", "destination_path"]


def test_system_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValidationError, match="systems"):
        Settings.model_validate({"compat": {"systems": ["nobody"]}})


async def test_environments_name_the_libraries_that_the_settings_do() -> None:
    settings = Settings.model_validate(
        {"libraries": ["numpy", "pandas"], "compat": {"systems": ["philschmid"], "js_image": "other"}}
    )
    async with Client(Gateway(settings, FakeBackend()).mcp) as client:
        (content,) = await client.read_resource("sandbox://environments")
    assert json.loads(getattr(content, "text", "")) == {
        "python": {"image": "default", "installed_libraries": ["numpy", "pandas"]},
        "javascript": {"image": "other", "installed_libraries": []},
    }


async def uploaded(folder: Path, name: str) -> dict[str, Any]:
    """Return the answer to the upload of a file of the server's folder."""
    settings = Settings.model_validate({"compat": {"systems": ["johanli233"], "upload_dir": folder}})
    gateway = Gateway(settings, FakeBackend())
    async with gateway.running(), Client(gateway.mcp) as client:
        made = await client.call_tool("create_sandbox", {"name": "a"})
        assert made.structured_content is not None
        arguments = {"sandbox_id": made.structured_content["sandbox_id"], "local_file_path": name}
        answer = await client.call_tool("upload_file_to_sandbox", arguments)
    content: dict[str, Any] | None = answer.structured_content
    assert content is not None
    return content


async def test_upload_reads_no_more_than_may_be_uploaded_and_not_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "uploads"
    folder.mkdir()
    with (folder / "large").open("wb") as file:
        file.truncate(2**40)  # sparse: nobody can read it whole
    threads: list[int] = []
    read = johanli233.Johanli._read

    def watched(self: Any, path: str) -> Any:
        threads.append(threading.get_ident())
        return read(self, path)

    monkeypatch.setattr(johanli233.Johanli, "_read", watched)
    assert "The content is over" in (await uploaded(folder, "large"))["message"]
    assert threads != [threading.get_ident()]


async def test_upload_of_a_file_that_the_server_cannot_open_is_refused_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").write_text("secret")
    opened = Path.open

    def denied(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", denied)
    answer = await uploaded(tmp_path, "locked")
    assert answer["message"].startswith("This server does not read that file for a sandbox.")


def test_folders_of_other_systems_are_links_to_the_workspace_everywhere() -> None:
    assert {johanli233._HOME, gaiar._HOME, HOME} == set(WORKSPACE_LINKS)
    dockerfile = (Path(__file__).parents[4] / "containers/sandbox/Dockerfile").read_text(encoding="utf-8")
    for path in WORKSPACE_LINKS:
        assert f"ln -s /workspace {path} " in dockerfile
