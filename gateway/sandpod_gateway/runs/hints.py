"""What to do about a run that failed, where its end says so."""

from typing import Final

from sandpod_api.names import NETWORK_NONE
from sandpod_gateway.api.run_results import Language, Outcome
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runner.messages import Ended
from sandpod_gateway.runs.causes import NO_NETWORK, Place, about_network, about_pip, downloads, from_stderr
from sandpod_gateway.runs.recorder import Recorder
from sandpod_gateway.runs.request import RunRequest
from sandpod_gateway.sandboxes.service import Sandboxes
from sandpod_runner.protocol import messages as protocol

_BY_OUTCOME: Final = {
    Outcome.TIMEOUT: "The program was stopped at its timeout: pass a longer one as `timeout`, or do less in one run.",
    Outcome.OUT_OF_MEMORY: "Work on the data in parts.",
    Outcome.OUTPUT_LIMIT: "Write large output to a file.",
    Outcome.SANDBOX_LOST: "Its files are lost, unless get_sandbox tells that it is Suspended; a call without its "
    "handle gets a sandbox that works.",
}


async def find_hint(
    sandboxes: Sandboxes,
    record: SandboxRecord,
    recorder: Recorder,
    ended: Ended,
    request: RunRequest | None = None,
    *,
    fresh: bool = False,
) -> str | None:
    """Return a few sentences for the caller, or None.

    `request` is what was asked for, where this call asked for it. The network profiles of the run's template are looked
    up only where they matter.
    """
    stdout, stderr = recorder.read("stdout").text, recorder.read("stderr").text
    command = request.code if request is not None and request.language == Language.SHELL else ""
    silent = not stdout and not stderr and record.network == NETWORK_NONE and downloads(command)
    place = Place(
        sandbox=None if fresh else record.name,
        template=record.template,
        network=record.network,
        networks=await _networks(sandboxes, record.template) if silent or NO_NETWORK.search(stderr) else None,
        context=ended.context is not None,
    )
    if silent and ended.outcome in {Outcome.OK, Outcome.ERROR}:
        return about_network(place)
    if ended.outcome == Outcome.OK and place.context:
        return about_pip(f"{stdout}\n{stderr}", place)
    return hint_for(ended.outcome, ended.detail, stderr, place)


def hint_for(outcome: str, detail: str | None, stderr: str, place: Place) -> str | None:
    """Return a few sentences for the caller, or None; `detail` is what the runner said of the end."""
    if outcome in _BY_OUTCOME:
        return " ".join(filter(None, (detail, _BY_OUTCOME[Outcome(outcome)])))
    if outcome != Outcome.ERROR:
        return detail
    return detail or from_stderr(stderr, place)


def about_dropped(count: int) -> str | None:
    """Return a sentence on what a run showed that is not in its result, or None."""
    if count == 0:
        return None
    things = "1 thing that it showed was" if count == 1 else f"{count} things that it showed were"
    return f"{things} too much to come back here: write such things to files, or show less."


def about_rest(run: str, written: int) -> str:
    """Return where the rest of a run's output is that was cut, of so many bytes in both streams."""
    if written <= protocol.KEPT_OUTPUT:
        return f'The output was cut: read_run(run_id="{run}") returns all of it, in parts.'
    return (
        f'The output was cut: read_run(run_id="{run}") returns the last {protocol.KEPT_OUTPUT // 1000} kB. Write large '
        "output to a file."
    )


async def _networks(sandboxes: Sandboxes, template: str) -> tuple[str, ...] | None:
    try:
        templates = await sandboxes.templates()
    except SandpodError:
        return None
    return next((each.networks for each in templates if each.name == template), None)
