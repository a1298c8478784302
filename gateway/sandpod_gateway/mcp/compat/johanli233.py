"""The tools of JohanLi233/mcp-sandbox.

Files are in /workspace, where programs start; paths below /app/results mean files in it. In the
default image and the local backend that folder is a link to /workspace.
"""

import asyncio
import posixpath
from typing import Any, Final

from sandpod_api.names import WORKSPACE
from sandpod_gateway.api.results import ErrorCode, Installation
from sandpod_gateway.api.run_results import Language, Outcome, RunResult
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import ClaimRequest, SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.compat.common import READ, System, as_result, in_workspace, refusal, tool

_HOME: Final = "/app/results"
_WAIT: Final = 5.0  # seconds that its package tools wait

_failed: Final = refusal(error=True, message=...)
_not_run: Final = refusal(stdout="", stderr=..., exit_code=-1, error=...)
_not_installed: Final = refusal(success=False, status="error", message=..., complete=True)


class Johanli(System):
    """Its tools."""

    @tool("List sandboxes", _failed, READ)
    async def list_sandboxes(self) -> Any:
        """List your sandboxes with their packages."""
        return [await self._described(record) for record in await self.sessions()]

    async def _described(self, record: SandboxRecord) -> dict[str, Any]:
        try:
            listed = await self.parts.installer.listed(record.owner, sandbox=record.name, language=Language.PYTHON)
            packages = [{"name": package.name, "version": package.version} for package in listed.packages]
        except SandpodError:
            packages = []  # an image without Python, or a sandbox that is just ending
        name = record.session or record.name
        return {"sandbox_id": record.name, "name": name, "status": "active", "installed_packages": packages}

    @tool("Create a sandbox", _failed)
    async def create_sandbox(self, name: str | None = None) -> Any:
        """Make a sandbox and return its id."""
        owner = current_owner()
        name = name or f"Sandbox {len(await self.sessions()) + 1}"
        record = await self.parts.sandboxes.create(ClaimRequest(owner=owner, session=name))
        return {"sandbox_id": record.name, "user_id": owner, "name": name, "status": "active"}

    @tool("Upload a file of the server", _failed)
    async def upload_file_to_sandbox(self, sandbox_id: str, local_file_path: str, dest_path: str = _HOME) -> Any:
        """Put a file from the server's upload folder into a sandbox."""
        record = await self.need(sandbox_id)
        name, data = await asyncio.to_thread(self._read, local_file_path)
        self.parts.files.check_upload(data)
        where = posixpath.join(in_workspace(dest_path, _HOME), name)
        await self.write(record, where, data)
        return {"success": True, "message": f"Uploaded {name} to {posixpath.join(WORKSPACE, where)}."}

    def _read(self, path: str) -> tuple[str, bytes]:
        """Return name and content of a file that callers may have: their own system let them have any of the server's.

        Of one that is too large, the content is just enough for that to be seen.
        """
        folder = self.settings.upload_dir
        try:
            if folder is not None:
                found = (folder / path).resolve(strict=True)
                if found.is_relative_to(folder.resolve(strict=True)) and found.is_file():
                    with found.open("rb") as file:
                        return found.name, file.read(self.parts.files.max_upload + 1)
        except (OSError, ValueError):
            pass  # whether such a file exists elsewhere is not disclosed
        message = "This server does not read that file for a sandbox."
        step = "Upload it with upload_file or create_link, or ask the administrator for compat.upload_dir."
        raise SandpodError(ErrorCode.FORBIDDEN, message, next_step=step)

    @tool("Install a package in a sandbox", _not_installed)
    async def install_package_in_sandbox(self, sandbox_id: str, package_name: str) -> Any:
        """Install a Python package in a sandbox; it may go on after some seconds."""
        record = await self.need(sandbox_id)
        return _installed(await self.install(record, package_name, _WAIT), package_name)

    @tool("Look at an installation", _not_installed, READ)
    async def check_package_installation_status(self, sandbox_id: str, package_name: str) -> Any:
        """Return the status of a package's installation."""
        record = await self.need(sandbox_id)
        try:
            found = await self.parts.installer.latest(record, [package_name], Language.PYTHON, wait=_WAIT)
            return _installed(found, package_name)
        except SandpodError as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
        message = f"No installation of {package_name} is known in this sandbox."
        return {"success": False, "status": "not_found", "message": message, "complete": True}

    @tool("Run Python in a sandbox", _not_run)
    async def execute_python_code(self, sandbox_id: str, code: str) -> Any:
        """Run Python in a sandbox; `file_links` lead to the files that it made."""
        answer = await self.run(await self.need(sandbox_id), code)
        artifacts = answer.result.artifacts
        files = [f"{WORKSPACE}/{artifact.path}" for artifact in artifacts]
        links = [artifact.url for artifact in artifacts if artifact.url]
        return as_result({**_ran(answer.result), "files": files, "file_links": links}, answer.pictures)

    @tool("Run a command in a sandbox", _not_run)
    async def execute_terminal_command(self, sandbox_id: str, command: str) -> Any:
        """Run a shell command in a sandbox."""
        answer = await self.run(await self.need(sandbox_id), command, Language.SHELL)
        return as_result(_ran(answer.result), answer.pictures)


def _ran(result: RunResult) -> dict[str, Any]:
    code = -1 if result.exit_code is None else result.exit_code
    fields: dict[str, Any] = {"stdout": result.stdout, "stderr": result.stderr, "exit_code": code}
    if result.outcome not in {Outcome.OK, Outcome.ERROR}:
        fields["error"] = result.hint or f"The run ended with {result.outcome}."
    return fields


def _installed(installation: Installation, package: str) -> dict[str, Any]:
    if installation.status == "installing":
        message = f"{package} is being installed; call check_package_installation_status."
        going = {"complete": False, "elapsed_seconds": installation.elapsed}
        return {"success": None, "status": "installing", "message": message, **going}
    ended = {"complete": True, "end_time": installation.elapsed}
    if installation.status == "success":
        return {"success": True, "status": "success", "message": f"{package} is installed.", **ended}
    message = f"{package} was not installed: {installation.message}"
    stderr = " ".join(filter(None, (installation.message, installation.cause, installation.next)))
    return {"success": False, "status": "failed", "message": message, "stderr": stderr, **ended}
