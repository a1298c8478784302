"""The tools of philschmid/code-sandbox-mcp: one sandbox for each call, deleted after it."""

import json
import logging
import os
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastmcp import FastMCP
from pydantic import Field

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.api.run_results import Language, RunResult
from sandpod_gateway.auth.current import current_owner
from sandpod_gateway.backends.base import ClaimRequest
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.mcp.compat.common import System, as_result, sentence, tool
from sandpod_gateway.runs.request import RunRequest

logger = logging.getLogger(__name__)

Code = Annotated[str, Field(description="The program. Print what you want to see.")]

_SHORTEST: Final = 4  # characters of a value that is masked: a shorter one would be found in all kinds of output
_MASK: Final = "****"


def _refused(error: SandpodError) -> str:
    return json.dumps({"exit_code": 1, "stderr": sentence(error), "stdout": ""})


@dataclass
class Philschmid(System):
    """Its tools, and its resource."""

    def __post_init__(self) -> None:
        self._env = {name: os.environ[name] for name in self.settings.pass_through_env if name in os.environ}
        for name in set(self.settings.pass_through_env) - self._env.keys():
            logger.warning("%s is to be passed to runs, but the server's environment does not have it", name)

    def register(self, mcp: FastMCP[None]) -> None:
        """Add the tools and the resource to a server."""
        super().register(mcp)

        @mcp.resource("sandbox://environments", mime_type="application/json")
        async def environments() -> str:
            """Images and libraries of the languages."""
            found = {}
            for language in (Language.PYTHON, Language.JAVASCRIPT):
                image = self.settings.place(language)[1]
                # Those of other images are not known.
                known = list(self.libraries) if image is None and language == Language.PYTHON else []
                found[language.value] = {"image": image or "default", "installed_libraries": known}
            return json.dumps(found)

    @tool("Run Python", _refused)
    async def run_python_code(self, code: Code) -> Any:
        """Run a Python program in a sandbox of its own and return what it prints."""
        return await self._run_once(Language.PYTHON, code)

    @tool("Run JavaScript", _refused, other_names=("run_js_code",))
    async def run_javascript_code(self, code: Code) -> Any:
        """Run a Node.js program in a sandbox of its own and return what it prints."""
        return await self._run_once(Language.JAVASCRIPT, code)

    async def _run_once(self, language: str, code: str) -> Any:
        language, image = self.settings.place(language)
        fresh = ClaimRequest(owner=current_owner(), template=await self._template(image))
        request = RunRequest(language=language, code=code, env=self._env)
        answer = await self.parts.runs.run(fresh.owner, request, fresh=fresh)
        return as_result(self._text(answer.result), answer.pictures)

    async def _template(self, image: str | None) -> str | None:
        if image is None:
            return None
        for template in await self.parts.sandboxes.templates():
            if template.image == image:
                return template.name
        message = f"No template of this server has the image {image}."
        step = "Tell the administrator to make a SandboxTemplate with it."
        raise SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)

    def _text(self, result: RunResult) -> str:
        out, err = self._masked(result.stdout), self._masked(result.stderr)
        if result.exit_code == 0:
            # Nothing printed is no failure: their own answer to that was an error.
            return out.strip()
        if result.hint:
            err = f"{err}\n{result.hint}".strip()
        return json.dumps({"exit_code": result.exit_code or 1, "stderr": err, "stdout": out}, ensure_ascii=False)

    def _masked(self, text: str) -> str:
        # The longest first: one may be a part of another.
        for value in sorted(self._env.values(), key=len, reverse=True):
            if len(value) >= _SHORTEST:
                text = text.replace(value, _MASK)
        return text
