"""The tools of JohanLi233/mcp-sandbox.

Files are in /workspace, where programs start; paths below /app/results mean files in it. In the
default image and the local backend that folder is a link to /workspace.
"""

import asyncio
import posixpath
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from fastmcp import FastMCP

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.package_results import Installation
from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.auth.api_keys import current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.artifact_links import linked_answer
from sandpod_gateway.mcp.compat.common import CHANGE, READ, Sessions, in_workspace, sentence, speaking, spoken
from sandpod_gateway.mcp.compat.settings import CompatSettings
from sandpod_gateway.mcp.services import Parts
from sandpod_gateway.runs.request import RunRequest

_HOME: Final = "/app/results"
_WAIT: Final = 5.0  # seconds that its package tools wait
_REMEMBERED: Final = 1000  # installations


def _failed(error: SandpodError) -> dict[str, Any]:
    return {"error": True, "message": sentence(error)}


def _not_run(error: SandpodError) -> dict[str, Any]:
    return {"stdout": "", "stderr": sentence(error), "exit_code": -1, "error": sentence(error)}


def _not_installed(error: SandpodError) -> dict[str, Any]:
    return {"success": False, "status": "error", "message": sentence(error), "complete": True}


class _Johanli:
    def __init__(self, parts: Parts, settings: CompatSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._sessions = Sessions(parts.sandboxes)
        self._installations: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    async def list(self) -> list[dict[str, Any]]:
        owner = current_owner()
        return [await self._described(owner, record) for record in await self._sessions.all(owner)]

    async def _described(self, owner: str, record: SandboxRecord) -> dict[str, Any]:
        try:
            listed = await self._parts.installer.listed(owner, sandbox=record.name, language=Language.PYTHON)
            packages = [{"name": package.name, "version": package.version} for package in listed.packages]
        except SandpodError:
            packages = []  # an image without Python, or a sandbox that is just ending
        return {
            "sandbox_id": record.name,
            "name": record.session or record.name,
            "status": "active",
            "installed_packages": packages,
        }

    async def create(self, name: str | None) -> dict[str, Any]:
        owner = current_owner()
        name = name or f"Sandbox {len(await self._sessions.all(owner)) + 1}"
        record = await self._parts.sandboxes.create(ClaimRequest(owner=owner, session=name))
        return {"sandbox_id": record.name, "user_id": owner, "name": name, "status": "active"}

    async def run(self, language: str, sandbox_id: str, code: str) -> Any:
        owner = current_owner()
        record = await self._sessions.need(owner, sandbox_id)
        request = RunRequest(language=language, code=code)
        answer = await self._parts.runs.run(owner, request, sandbox=record.name)
        answer = linked_answer(self._parts.links, answer)
        told = _ran(answer.result)
        if language == Language.PYTHON:
            artifacts = answer.result.artifacts
            told["files"] = [f"{WORKSPACE}/{artifact.path}" for artifact in artifacts]
            told["file_links"] = [artifact.url for artifact in artifacts if artifact.url]
        return spoken(told, answer.pictures)

    async def upload(self, sandbox_id: str, local_file_path: str, dest_path: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self._sessions.need(owner, sandbox_id)
        name, data = await asyncio.to_thread(self._read, local_file_path)
        self._parts.files.check_upload(data)
        where = posixpath.join(in_workspace(dest_path, _HOME), name)
        await self._parts.files.write(owner, where, data, sandbox=record.name, overwrite=True)
        return {"success": True, "message": f"Uploaded {name} to {posixpath.join(WORKSPACE, where)}."}

    def _read(self, path: str) -> tuple[str, bytes]:
        """Return a file's name and content, or of one that is too large just enough for that to be seen."""
        source = self._readable(path)
        with source.open("rb") as file:
            return source.name, file.read(self._parts.files.max_upload + 1)

    def _readable(self, path: str) -> Path:
        """Return a file of the server that callers may have: their own system let them have any."""
        folder = self._settings.upload_dir
        source = Path(path)
        try:
            if folder is not None:
                found = (folder / source).resolve(strict=True)
                if found.is_relative_to(folder.resolve(strict=True)) and found.is_file():
                    return found
        except (OSError, ValueError):
            pass  # whether such a file exists elsewhere is not disclosed
        raise SandpodError(
            ErrorCode.FORBIDDEN,
            "This server does not read that file for a sandbox.",
            next_step="Upload it with upload_file or create_link, or ask the administrator for compat.upload_dir.",
        )

    async def install(self, sandbox_id: str, package: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self._sessions.need(owner, sandbox_id)
        begun = await self._parts.installer.install(
            owner, [package], language=Language.PYTHON, sandbox=record.name, wait=_WAIT
        )
        self._installations[owner, record.name, package] = begun.installation
        self._installations.move_to_end((owner, record.name, package))
        while len(self._installations) > _REMEMBERED:
            self._installations.popitem(last=False)
        return _installed(begun, package)

    async def status(self, sandbox_id: str, package: str) -> dict[str, Any]:
        owner = current_owner()
        record = await self._sessions.need(owner, sandbox_id)
        name = self._installations.get((owner, record.name, package))
        try:
            if name is not None:
                return _installed(await self._parts.installer.get(owner, name, wait=_WAIT), package)
        except SandpodError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
        message = f"No installation of {package} is known in this sandbox."
        return {"success": False, "status": "not_found", "message": message, "complete": True}


def _ran(result: RunResult) -> dict[str, Any]:
    told: dict[str, Any] = {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": -1 if result.exit_code is None else result.exit_code,
    }
    if result.outcome not in {Outcome.OK, Outcome.ERROR}:
        told["error"] = result.hint or f"The run ended with {result.outcome}."
    return told


def _installed(installation: Installation, package: str) -> dict[str, Any]:
    if installation.status == "installing":
        return {
            "success": None,
            "status": "installing",
            "message": f"{package} is being installed; call check_package_installation_status.",
            "complete": False,
            "elapsed_seconds": installation.elapsed,
        }
    if installation.status == "success":
        message = f"{package} is installed."
        return {
            "success": True,
            "status": "success",
            "message": message,
            "complete": True,
            "end_time": installation.elapsed,
        }
    return {
        "success": False,
        "status": "failed",
        "message": f"{package} was not installed: {installation.message}",
        "stderr": " ".join(filter(None, (installation.message, installation.cause, installation.next))),
        "complete": True,
        "end_time": installation.elapsed,
    }


def register(mcp: FastMCP[None], parts: Parts, settings: CompatSettings) -> None:
    """Add the tools to a server."""
    tools = _Johanli(parts, settings)
    _register_sandboxes(mcp, parts, tools)
    _register_packages(mcp, parts, tools)
    runs = speaking(parts.metrics, _not_run)

    @mcp.tool(annotations={"title": "Run Python in a sandbox", **CHANGE}, output_schema=None)
    @runs
    async def execute_python_code(sandbox_id: str, code: str) -> Any:
        """Run Python in a sandbox; `file_links` lead to the files that it made."""
        return await tools.run(Language.PYTHON, sandbox_id, code)

    @mcp.tool(annotations={"title": "Run a command in a sandbox", **CHANGE}, output_schema=None)
    @runs
    async def execute_terminal_command(sandbox_id: str, command: str) -> Any:
        """Run a shell command in a sandbox."""
        return await tools.run(Language.SHELL, sandbox_id, command)


def _register_sandboxes(mcp: FastMCP[None], parts: Parts, tools: _Johanli) -> None:
    speak = speaking(parts.metrics, _failed)

    @mcp.tool(annotations={"title": "List sandboxes", **READ}, output_schema=None)
    @speak
    async def list_sandboxes() -> Any:
        """List your sandboxes with their packages."""
        return await tools.list()

    @mcp.tool(annotations={"title": "Create a sandbox", **CHANGE}, output_schema=None)
    @speak
    async def create_sandbox(name: str | None = None) -> Any:
        """Make a sandbox and return its id."""
        return await tools.create(name)

    @mcp.tool(annotations={"title": "Upload a file of the server", **CHANGE}, output_schema=None)
    @speak
    async def upload_file_to_sandbox(sandbox_id: str, local_file_path: str, dest_path: str = _HOME) -> Any:
        """Put a file from the server's upload folder into a sandbox."""
        return await tools.upload(sandbox_id, local_file_path, dest_path)


def _register_packages(mcp: FastMCP[None], parts: Parts, tools: _Johanli) -> None:
    speak = speaking(parts.metrics, _not_installed)

    @mcp.tool(annotations={"title": "Install a package in a sandbox", **CHANGE}, output_schema=None)
    @speak
    async def install_package_in_sandbox(sandbox_id: str, package_name: str) -> Any:
        """Install a Python package in a sandbox; it may go on after some seconds."""
        return await tools.install(sandbox_id, package_name)

    @mcp.tool(annotations={"title": "Look at an installation", **READ}, output_schema=None)
    @speak
    async def check_package_installation_status(sandbox_id: str, package_name: str) -> Any:
        """Return the status of a package's installation."""
        return await tools.status(sandbox_id, package_name)
