"""What callers get of a run: made of what was recorded of it and of how it ended, within what clients accept. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

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
    hint: str | None = None


class _Room(NamedTuple):
    """How much of a run an answer holds: characters of output, displays, artifacts."""

    output: int
    displays: int
    artifacts: int


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
    """Return as much of a run as fits into an answer."""
    for room in _rooms(end, most):
        result = _build_result(end, room)
        pictures = end.recorder.showing.pictures[: sum(rich.mime_type in PICTURES for rich in result.displays)]
        answer = Answer(wrap(result, room.output), pictures)
        if answer_size(answer.result, answer.pictures) <= MAX_ANSWER:
            break
    return answer


def _rooms(end: RunEnd, most: int) -> Iterator[_Room]:
    """Yield less and less: first less output, then fewer displays, then fewer artifacts."""
    room = _Room(most, len(end.recorder.showing.displays), len(end.ended.artifacts))
    yield room
    while room.output > LEAST_OUTPUT or room.displays or room.artifacts:
        if room.output > LEAST_OUTPUT:
            room = room._replace(output=room.output // 2)
        elif room.displays:
            room = room._replace(displays=room.displays - 1)
        else:
            room = room._replace(artifacts=room.artifacts // 2)
        yield room


def _build_result(end: RunEnd, room: _Room) -> RunResult:
    recorder, ended, showing = end.recorder, end.ended, end.recorder.showing
    out, err = recorder.shared(room.output)
    received, name = recorder.received, run_id(end.sandbox, end.run)
    dropped = showing.dropped + ended.displays_dropped + len(showing.displays) - room.displays
    rest = about_rest(name, out.total + err.total) if out.truncated or err.truncated else None
    return RunResult(
        **ended.model_dump(include=_AS_REPORTED),
        sandbox=end.sandbox,
        run_id=name,
        stdout=out.text,
        stdout_bytes=max(received["stdout"], ended.stdout_bytes),
        stdout_truncated=out.truncated or not recorder.is_complete("stdout", ended.stdout_bytes),
        stderr=err.text,
        stderr_bytes=max(received["stderr"], ended.stderr_bytes),
        stderr_truncated=err.truncated or not recorder.is_complete("stderr", ended.stderr_bytes),
        result=showing.value or None,
        displays=showing.displays[: room.displays],
        displays_dropped=dropped,
        artifacts=[entry.artifact() for entry in ended.artifacts[: room.artifacts]],
        artifacts_omitted=ended.artifacts_more + len(ended.artifacts) - room.artifacts,
        duration_ms=round(ended.duration_ms, 3),
        cpu_ms=round(ended.cpu_ms, 3),
        progress_dropped_bytes=recorder.progress_dropped,
        hint=" ".join(filter(None, (end.hint, about_dropped(dropped), rest))) or None,
    )
