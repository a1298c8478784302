"""What frames about channels ask for: which there are, and how each kind is opened."""

from dataclasses import replace
from functools import partial
from typing import Any

from sandpod_runner.channels.channel import Channel
from sandpod_runner.channels.pseudo_terminal import PseudoTerminal
from sandpod_runner.channels.terminal import TerminalRun
from sandpod_runner.protocol.errors import Refusal, refusal_of
from sandpod_runner.protocol.fields import require, run_name
from sandpod_runner.protocol.frames import Frame
from sandpod_runner.protocol.messages import MAX_CHANNELS
from sandpod_runner.runs.delivery import Owner
from sandpod_runner.runs.registry import Runs
from sandpod_runner.runs.request import MAX_TEXT, parse_run


def take(runs: Runs, frame: Frame, owner: Owner) -> None:
    """Do what a frame about a channel asks for. Raises Refusal: It can't be opened, or the frame is malformed."""
    name = run_name(frame.header, "channel")
    channel = runs.channels.get(name)
    if frame.kind == "open":
        if channel is None:
            channel = _new(runs, name, frame.header, frame.payload)
        channel.open(frame.header, owner)
    elif channel is not None:
        if frame.kind == "resize" and isinstance(channel, PseudoTerminal):
            channel.resize(frame.header)
        channel.take(frame.kind, frame.header, frame.payload, owner)


def _new(runs: Runs, name: str, header: dict[str, Any], command: bytes) -> Channel:
    kind = header.get("kind")
    if kind is None:
        raise Refusal("not_found", "There is no channel of that name.")
    require(kind == "terminal", "Unknown kind of channel.")
    if len(runs.channels) >= MAX_CHANNELS and (
        spare := next((each for each in runs.channels.values() if each.spare), None)
    ):
        spare.close()
    if len(runs.channels) >= MAX_CHANNELS:
        raise Refusal("session_busy", f"The sandbox has {MAX_CHANNELS} channels, which is the most.")
    require(len(command) < MAX_TEXT, f"The command of a terminal has less than {MAX_TEXT} bytes.")
    fields = {field: header.get(field) for field in ("env", "cwd", "timeout")}
    box = runs.toolbox
    request = parse_run(
        {**fields, "run": name, "language": "shell", "detached": True}, command, box.languages.versions, box.max_timeout
    )
    request = replace(request, terminal=True)
    if runs.knows(request):
        raise Refusal("not_found", "That channel has ended, or its name was used otherwise.")
    try:
        terminal = PseudoTerminal(name, lambda each: runs.channels.pop(each, None))
    except OSError as error:
        raise refusal_of(error) from error
    try:
        terminal.resize(header)
        runs.begin(request, None, partial(TerminalRun, terminal=terminal))
    except BaseException:
        terminal.discard()
        raise
    runs.channels[name] = terminal
    return terminal
