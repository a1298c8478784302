"""A result as text for a model: what a person would want to read, and nothing that is as expected.

Output comes first, as the program wrote it; then, in square brackets, only what matters next: how the run failed, what
was cut, which files there are, a hint. The whole result is in the structured content beside it.
"""

from collections.abc import Iterable
from functools import singledispatch
from typing import Final

from pydantic import BaseModel

from sandpod_gateway.api.results import (
    Artifact,
    ArtifactContent,
    ArtifactList,
    FileContent,
    FileEntry,
    FileList,
    Installation,
    PackageList,
    Problem,
)
from sandpod_gateway.api.run_results import Outcome, Rich, RunOutput, RunResult

SHOWN_FILES: Final = 20  # files of a run that are named; list_artifacts names all

_PLAIN: Final = ("text/plain", "text/markdown", "text/latex", "application/json")


@singledispatch
def text_of(model: BaseModel) -> str:
    """Return a result as text."""
    return model.model_dump_json(exclude_defaults=True, exclude_none=True)


@text_of.register
def _(model: Problem) -> str:
    cause = f" ({model.cause.rstrip('.')})" if model.cause else ""
    return f"Error {model.error}: {model.message}{cause}\nNext: {model.next}"


@text_of.register
def _(model: RunResult) -> str:
    return _lines([*_output(model.stdout, model.stderr), *_value(model), *_ending(model)]) or "(no output)"


@text_of.register
def _(model: RunOutput) -> str:
    lines = list(_output(model.stdout, model.stderr))
    if model.dropped_bytes:
        lines.append(f"[{model.dropped_bytes} earlier bytes are no longer kept]")
    if model.result is None:
        lines.append(f"[{model.state}; next cursor: {model.cursor}]")
    else:
        lines += [*_value(model.result), *(_ending(model.result) or ["[ended: ok]"])]
    return _lines(lines)


@text_of.register
def _(model: FileContent) -> str:
    if not model.truncated and model.offset == 0:
        return model.content
    end = model.offset + model.bytes
    more = f"; read on with offset={end}" if model.truncated else ""
    return f"{model.content}\n[bytes {model.offset} to {end} of {model.size}{more}]"


@text_of.register
def _(model: FileList) -> str:
    return _listing([_folder_or_file(entry) for entry in model.entries], model.truncated) or "(empty)"


@text_of.register
def _(model: ArtifactList) -> str:
    return _listing([_file(artifact.path, artifact.size) for artifact in model.artifacts], model.truncated) or "(none)"


@text_of.register
def _(model: ArtifactContent) -> str:
    if model.content is None or model.encoding == "base64":
        return f"{model.path}: {model.mime_type}, {size_text(model.size)}"
    more = f"\n[the file has {model.size} bytes; read_file reads on]" if model.truncated else ""
    return model.content + more


@text_of.register
def _(model: Installation) -> str:
    note = f"\n{model.note}" if model.note else ""
    if model.status == "installing":
        return f'installing; call get_installation(installation="{model.installation}", wait=60){note}'
    if model.status == "failed":
        return f"failed: {' '.join(filter(None, (model.message, model.cause, model.next)))}{note}"
    return "installed: " + ", ".join(f"{package.name} {package.version}" for package in model.packages) + note


@text_of.register
def _(model: PackageList) -> str:
    named: dict[str, list[str]] = {"installed": [], "image": []}
    for each in model.packages:
        named[each.source].append(f"{each.name} {each.version}")
    return _lines(f"{source}: {', '.join(names) or 'none'}" for source, names in named.items())


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


def _listing(lines: list[str], truncated: bool) -> str:  # noqa: FBT001
    return _lines([*lines, "[there are more]"] if truncated else lines)


def _folder_or_file(entry: FileEntry) -> str:
    line = f"{entry.path}/" if entry.kind == "directory" else _file(entry.path, entry.size)
    return f"{line} (can't be read)" if entry.unreadable else line


def _file(path: str, size: int) -> str:
    return f"{path} ({size_text(size)})"


def _output(stdout: str, stderr: str) -> Iterable[str]:
    if stdout:
        yield stdout
    if stderr:
        yield f"[stderr]\n{stderr}"


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
        lines.append(_files(result.artifacts, result.artifacts_omitted))
    if result.hint:
        lines.append(f"[hint: {result.hint}]")
    return lines


def _files(artifacts: list[Artifact], omitted: int) -> str:
    named = ", ".join(_file(artifact.path, artifact.size) for artifact in artifacts[:SHOWN_FILES])
    more = len(artifacts) - SHOWN_FILES + omitted if len(artifacts) > SHOWN_FILES else omitted
    return f"[files: {named}{f' and {more} more' if more > 0 else ''}; read_artifact reads one]"
