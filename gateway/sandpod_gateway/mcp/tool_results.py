"""From results of the gateway to what an MCP client gets: structured content, text for the model, pictures.

The text is what a person would want to read, and nothing that is as expected. Output comes first, as the program wrote
it; then, in square brackets, only what matters next: how the run failed, what was cut, which files there are, a hint.
"""

import base64
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, ParamSpec, TypeVar

from fastmcp.tools.base import ToolResult
from mcp_types import ImageContent, ResourceLink, TextContent
from pydantic import BaseModel

from sandpod_gateway.api import results
from sandpod_gateway.api.run_results import Outcome, Rich, RunOutput, RunResult
from sandpod_gateway.audit.act import note
from sandpod_gateway.content import Answer, Picture
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.masking.current import Call
from sandpod_gateway.metrics import Metrics
from sandpod_telemetry import tracing

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Result = BaseModel | Answer[BaseModel]  # what a tool's function returns

SHOWN_FILES: Final = 20  # files of a run that are named; list_artifacts names all

_PLAIN: Final = ("text/plain", "text/markdown", "text/latex", "application/json")
_SOURCES: Final = ("installed", "image")  # of a sandbox's packages
_STEP: Final = "Try again. Report it to the administrator if it happens again."
BUG: Final = SandpodError(results.ErrorCode.BACKEND_ERROR, "The server failed; its log says how.", next_step=_STEP)


def tool_result(answer: Answer[BaseModel], *, is_error: bool = False, link_files: bool = False) -> ToolResult:
    """Return a result as structured content, text and pictures; with `link_files`, links to files that it names."""
    model = answer.result
    run = model.result if isinstance(model, RunOutput) else model
    files = run.artifacts[:SHOWN_FILES] if link_files and isinstance(run, RunResult | results.ArtifactList) else []
    links = [
        ResourceLink(type="resource_link", uri=file.url, name=file.path, mime_type=file.mime_type, size=file.size)
        for file in files
        if file.url
    ]
    content = [TextContent(type="text", text=text_of(model)), *images(answer.pictures), *links]
    return ToolResult(content=content, structured_content=model.model_dump(mode="json"), is_error=is_error)


def count_refusal(metrics: Metrics, error: SandpodError) -> None:
    """Count a refusal, and note it for the audit log and the trace."""
    tracing.fail(error.code)
    metrics.refusals.labels(error.code).inc()
    note(error=error.code)


def refuse(metrics: Metrics, error: SandpodError) -> ToolResult:
    """Count a refused call and return its result."""
    count_refusal(metrics, error)
    return tool_result(Answer(error.problem()), is_error=True)


def mask_result(result: ToolResult, call: Call) -> ToolResult:
    """Return a result with the values of secrets masked in all its texts: those of the sandboxes that it is about."""
    if not call.maskers:
        return result
    shown = {"text", "uri", "name"}
    content = [
        block.model_copy(update=call.masked(block.model_dump(mode="json", include=shown))) for block in result.content
    ]
    update = {"content": content, "structured_content": call.masked(result.structured_content)}
    return result.model_copy(update=update)


def answering(
    function: Callable[P, Awaitable[T]],
    answered: Callable[[T], ToolResult],
    refused: Callable[[SandpodError], ToolResult],
) -> Callable[P, Awaitable[ToolResult]]:
    """Return a function as a tool whose every call gives a result.

    An error that is not ours is a bug: it is logged whole, and the caller gets no word of its text.
    """

    @functools.wraps(function)
    async def tool(*args: P.args, **kwargs: P.kwargs) -> ToolResult:
        try:
            return answered(await function(*args, **kwargs))
        except SandpodError as error:
            return refused(error)
        except Exception:
            logger.exception("A tool failed: %s", function.__name__)
            return refused(BUG)

    # FastMCP reads types and the docstring from the wrapper; what it returns is not what the function returns. Without
    # a signature of its own it would look through the wrapper, and make a schema of the result that nothing uses.
    tool.__annotations__ = {**function.__annotations__, "return": ToolResult}
    tool.__signature__ = inspect.signature(function).replace(return_annotation=ToolResult)  # type: ignore[attr-defined]
    return tool


def images(pictures: Iterable[Picture]) -> list[ImageContent]:
    """Return pictures as blocks of a result."""
    return [
        ImageContent(type="image", data=base64.b64encode(picture.data).decode("ascii"), mime_type=picture.mime_type)
        for picture in pictures
    ]


def text_of(model: BaseModel) -> str:
    """Return a result as text."""
    match model:
        case results.Problem():
            cause = f" ({model.cause.rstrip('.')})" if model.cause else ""
            text = f"Error {model.error}: {model.message}{cause}\nNext: {model.next}"
        case RunResult():
            text = _lines([*_output(model), *_value(model), *_ending(model)]) or "(no output)"
        case RunOutput():
            text = _lines([*_output(model), *_state(model)])
        case results.FileContent():
            end = model.offset + model.bytes
            more = f"; read on with offset={end}" if model.truncated else ""
            part = f"\n[bytes {model.offset} to {end} of {model.size}{more}]" if model.truncated or model.offset else ""
            text = model.content + part
        case results.FileList():
            text = _listing(model.entries, model.truncated) or "(empty)"
        case results.ArtifactList():
            text = _listing(model.artifacts, model.truncated) or "(none)"
        case results.ArtifactContent():
            more = f"\n[the file has {model.size} bytes; read_file reads on]" if model.truncated else ""
            shown = model.content is not None and model.encoding != "base64"
            text = f"{model.content}{more}" if shown else f"{model.path}: {model.mime_type}, {size_text(model.size)}"
        case results.Installation():
            text = f"{_state_of_installation(model)}\n{model.note}" if model.note else _state_of_installation(model)
        case results.PackageList():
            sources = {kind: _names(each for each in model.packages if each.source == kind) for kind in _SOURCES}
            text = _lines(f"{source}: {names or 'none'}" for source, names in sources.items())
        case _:
            text = model.model_dump_json(exclude_defaults=True, exclude_none=True)
    return text


def _state_of_installation(model: results.Installation) -> str:
    if model.status == "installing":
        return f'installing; call get_installation(installation="{model.installation}", wait=60)'
    if model.status == "failed":
        return f"failed: {' '.join(filter(None, (model.message, model.cause, model.next)))}"
    return f"installed: {_names(model.packages)}"


def _names(packages: Iterable[results.Package]) -> str:
    return ", ".join(f"{package.name} {package.version}" for package in packages)


def size_text(size: int) -> str:
    """Return a size in bytes as people say it."""
    if size < 1000:  # noqa: PLR2004 - the units' own factor
        return f"{size} B"
    for unit in ("kB", "MB", "GB"):
        size, rest = divmod(size, 1000)
        if size < 1000:  # noqa: PLR2004 - as above
            return f"{size}.{rest // 100} {unit}" if size < 10 else f"{size} {unit}"  # noqa: PLR2004 - two digits
    return f"{size // 1000} TB"


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(part.removesuffix("\n") for part in parts)


def _listing(files: Sequence[results.Artifact | results.FileEntry], truncated: bool) -> str:  # noqa: FBT001
    return _lines([*map(_file, files), *(["[there are more]"] if truncated else [])])


def _file(file: results.Artifact | results.FileEntry) -> str:
    if not isinstance(file, results.FileEntry):
        return f"{file.path} ({size_text(file.size)})"
    shown = f"{file.path}/" if file.kind == "directory" else f"{file.path} ({size_text(file.size)})"
    return f"{shown} (can't be read)" if file.unreadable else shown


def _output(model: RunResult | RunOutput) -> Iterable[str]:
    if model.stdout:
        yield model.stdout
    if model.stderr:
        yield f"[stderr]\n{model.stderr}"


def _state(model: RunOutput) -> Iterable[str]:
    if model.dropped_bytes:
        yield f"[{model.dropped_bytes} earlier bytes are no longer kept]"
    if model.result is None:
        yield f"[{model.state}; next cursor: {model.cursor}]"
    else:
        yield from [*_value(model.result), *(_ending(model.result) or ["[ended: ok]"])]


def _value(result: RunResult) -> Iterable[str]:
    """Yield the last value and what was shown, each in the one form that reads best."""
    if result.result:
        kind = next((kind for kind in _PLAIN if kind in result.result), None)
        yield result.result[kind] if kind else f"[the value is in `result`: {', '.join(result.result)}]"
    by_index: dict[int, list[Rich]] = {}
    for rich in result.displays:
        by_index.setdefault(rich.index, []).append(rich)
    for forms in by_index.values():
        plain = next((form for kind in _PLAIN for form in forms if form.mime_type == kind and form.text), None)
        if plain is not None and plain.text is not None:
            yield plain.text
        elif not any(form.mime_type.startswith("image/") for form in forms):
            yield f"[shown: {', '.join(form.mime_type for form in forms)}]"


def _ending(result: RunResult) -> list[str]:
    """Return what is not as expected of a run that has ended."""
    lines = []
    if result.outcome != Outcome.OK:
        how = [str(result.outcome).replace("_", " ")]
        if result.exit_code is not None and result.outcome == Outcome.ERROR:
            how.append(f"exit code {result.exit_code}")
        if result.signal is not None:
            how.append(result.signal)
        lines.append(f"[{', '.join(how)}]")
    if result.context_state == "lost":
        lines.append(f"[the variables of context {result.context!r} are lost]")
    if result.artifacts:
        named = ", ".join(map(_file, result.artifacts[:SHOWN_FILES]))
        more = max(0, len(result.artifacts) - SHOWN_FILES) + result.artifacts_omitted
        lines.append(f"[files: {named}{f' and {more} more' if more else ''}; read_artifact reads one]")
    if result.hint:
        lines.append(f"[hint: {result.hint}]")
    return lines
