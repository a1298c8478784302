"""What callers get of a run: made of what was recorded of it and of how it ended, within what clients accept. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel

from sandpod_gateway.api.run_results import RunOutput, RunResult
from sandpod_gateway.content import PICTURES, Answer, Picture, json_size
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runner.run_ids import run_id
from sandpod_gateway.runs.hints import about_dropped, about_rest
from sandpod_gateway.runs.recorder import Recorder

MAX_ANSWER: Final = 900 * 1024  # bytes of an answer as it is sent: clients refuse an event of 1 MiB
LEAST_OUTPUT: Final = 4 * 1024  # characters of output that a result has however large the rest of it is

_AS_REPORTED: Final = {"outcome", "exit_code", "signal", "context", "context_state", "max_rss_bytes"}

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """A run that has ended, and what to do about that."""

    sandbox: str
    run: str  # its name, as the runner knows it
    recorder: Recorder
    ended: Ended
    hints: tuple[str | None, ...] = ()  # sentences


def build_answer(end: RunEnd, most: int) -> Answer[RunResult]:
    """Return the answer of a call that waited for a run, with at most so many characters of both streams together."""
    return _fit(end, most, lambda result, _: result)


def build_reading(output: RunOutput, recent: Recorder, end: RunEnd | None, most: int) -> Answer[RunOutput]:
    """Return `output` with what was read, at most so many characters, and the result of a run that has ended."""

    def build(result: RunResult | None, room: int) -> RunOutput:
        out, err = recent.shared(room)
        return output.model_copy(update={"stdout": out.text, "stderr": err.text, "result": result})

    return Answer(build(None, most)) if end is None else _fit(end, most, build)


def answer_size(model: BaseModel, pictures: list[Picture]) -> int:
    """Return the most bytes that an answer takes on the wire: as JSON, as text beside it, and its pictures."""
    encoded = sum(4 * -(-len(picture.data) // 3) for picture in pictures)
    return encoded + 2 * json_size(model.model_dump(mode="json"))


def _fit(end: RunEnd, most: int, wrap: Callable[[RunResult, int], _Model]) -> Answer[_Model]:
    """Return as much of a run as fits into an answer: first with less output, then fewer displays, then fewer files."""
    output, displays, artifacts = most, len(end.recorder.displays), len(end.ended.artifacts)
    while True:
        result = _build_result(end, output, displays, artifacts)
        pictures = end.recorder.pictures[: sum(rich.mime_type in PICTURES for rich in result.displays)]
        answer = Answer(wrap(result, output), pictures)
        if answer_size(answer.result, answer.pictures) <= MAX_ANSWER:
            return answer
        if output > LEAST_OUTPUT:
            output //= 2
        elif displays:
            displays -= 1
        elif artifacts:
            artifacts //= 2
        else:
            return answer


def _build_result(end: RunEnd, output: int, displays: int, artifacts: int) -> RunResult:
    """Return the result with at most so many characters of output, displays and artifacts."""
    recorder, ended, name = end.recorder, end.ended, run_id(end.sandbox, end.run)
    out, err = recorder.shared(output)
    stdout, stderr = recorder.streams["stdout"], recorder.streams["stderr"]
    dropped = recorder.dropped + ended.displays_dropped + len(recorder.displays) - displays
    rest = about_rest(name, out.total + err.total) if out.truncated or err.truncated else None
    return RunResult(
        **ended.model_dump(include=_AS_REPORTED),
        sandbox=end.sandbox,
        run_id=name,
        stdout=out.text,
        stdout_bytes=max(stdout.received, ended.stdout_bytes),
        stdout_truncated=out.truncated or not stdout.is_complete(ended.stdout_bytes),
        stderr=err.text,
        stderr_bytes=max(stderr.received, ended.stderr_bytes),
        stderr_truncated=err.truncated or not stderr.is_complete(ended.stderr_bytes),
        result=recorder.value or None,
        displays=recorder.displays[:displays],
        displays_dropped=dropped,
        artifacts=[entry.artifact() for entry in ended.artifacts[:artifacts]],
        artifacts_omitted=ended.artifacts_more + len(ended.artifacts) - artifacts,
        duration_ms=round(ended.duration_ms, 3),
        cpu_ms=round(ended.cpu_ms, 3),
        progress_dropped_bytes=recorder.progress_dropped,
        hint=" ".join(filter(None, (*end.hints, about_dropped(dropped), rest))) or None,
    )
