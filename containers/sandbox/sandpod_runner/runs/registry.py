"""All runs of the sandbox: which there are, whose they are, and which must end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from sandpod_runner.limits.usage import usage
from sandpod_runner.output.output_log import OutputLog, SpillFile, SpillFolder
from sandpod_runner.protocol.errors import Refusal, refusal_of
from sandpod_runner.protocol.fields import flag, run_name, whole
from sandpod_runner.protocol.messages import KEPT_OUTPUT, MAX_RUNS, ORPHAN_GRACE
from sandpod_runner.runs.delivery import Delivery, History, Owner
from sandpod_runner.runs.execution import ContextCell, FreshProcess
from sandpod_runner.runs.guard import Guard
from sandpod_runner.runs.request import RunRequest, Stop, parse_run
from sandpod_runner.runs.run import Run, Toolbox

LONG_LOG: Final = 1024 * 1024  # output in memory of runs that are remembered long, which have a file in addition
_CANCELLED: Final = Stop("cancelled", "It was cancelled.")
_ORPHANED: Final = Stop("cancelled", "The stream that it belonged to has gone.")
_RESTARTED: Final = Stop("cancelled", "Its context was restarted.", gentle=False)
_CLOSING: Final = Stop("sandbox_lost", "The sandbox was stopped while the program ran, and the program with it.")

_Make = Callable[[RunRequest, Delivery, Toolbox, str], Run]  # the last is the folder that it begins in


class Runs:
    """The live runs, by name, and what is remembered of ended ones."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, Run] = {}
        self._history = History()
        self._forgetting: asyncio.TimerHandle | None = None
        self._replays: set[Delivery] = set()  # of ended runs, to owners that have not got all of it
        self._orphans: dict[Run, asyncio.TimerHandle] = {}  # what ends a run that has lost its owner, unless one comes
        self._spills = SpillFolder(toolbox.storage.workspace.root)
        self._spills.clear()
        self._spills.make_room = self._history.drop_output
        self._tasks: set[asyncio.Task[None]] = set()
        self._guard = Guard(toolbox, self._live.values())
        self.channels: dict[str, Any] = {}  # by name, as the room `channels` has them

    @property
    def names(self) -> list[str]:
        """The names of the live runs."""
        return list(self._live)

    def start(self, header: dict[str, Any], code: bytes, owner: Owner) -> None:
        """Start a run, whose frames go to its owner; a used name or key starts nothing. Raises Refusal: It can't be."""
        box = self.toolbox
        request = parse_run(header, code, box.languages.versions, box.max_timeout, box.max_output)
        known = self._history.known(request)
        if known is not None:
            owner.send({"t": "known", "run": request.run, "as": known})
            return
        run = self.begin(request, owner, _run_of)
        owner.send({"t": "started", "run": request.run})
        if request.detached:
            run.delivery.owner = None  # nobody waits for it: its output would only fill the stream

    def knows(self, request: RunRequest) -> bool:
        """Return whether there is or was a run of that name or key."""
        return self._history.known(request) is not None

    def begin(self, request: RunRequest, owner: Owner | None, make: _Make) -> Run:
        """Start a run. Raises Refusal: It can't be."""
        box = self.toolbox
        if len(self._live) + len(self._replays) >= MAX_RUNS:
            raise Refusal("session_busy", f"The sandbox already runs {MAX_RUNS} programs, which is the maximum.")
        try:
            cwd = box.storage.workspace.folder_path(request.cwd)
        except OSError as error:
            raise refusal_of(error) from error
        log = OutputLog(LONG_LOG, SpillFile(self._spills)) if request.long else OutputLog(KEPT_OUTPUT)
        delivery = Delivery(request, log, owner)
        self._guard.begin()
        self._live[request.run] = run = make(request, delivery, box, cwd)
        self._history.begin(delivery)
        self._keep(self._see_through(run))
        return run

    def feed(self, header: dict[str, Any], data: bytes) -> None:
        """Pass input on to a run, unless it ended while the input was on the way. Raises Refusal: Malformed."""
        eof, run = flag(header, "eof"), self._live.get(run_name(header))
        if run is not None:
            run.feed(data, whole(header, "offset") if "offset" in header else None, last=eof)

    def cancel(self, name: str) -> None:
        """End a run. Raises Refusal: not_found."""
        run = self._live.get(name)
        if run is None:
            raise Refusal("not_found", "There is no live run of that name.")
        run.stop(_CANCELLED)

    def restart(self, name: Any, done: Callable[[], None]) -> None:
        """End a context's process and its cell; `done` is called afterwards. Raises Refusal: not_found."""
        context = self.toolbox.contexts.find(name)
        for run in self._live.values():
            if run.context is context and run.pid is not None:
                run.stop(_RESTARTED)
        self._keep(context.end()).add_done_callback(lambda _: done())

    def follow(self, header: dict[str, Any], owner: Owner) -> None:
        """Make a stream a run's owner, which gets its output from some offsets on and its end. Raises Refusal."""
        name = run_name(header)
        delivery = self.delivery(name)
        delivery.follow(owner, whole(header, "stdout"), whole(header, "stderr"), acks=flag(header, "acks"))
        run = self._live.get(name)
        if run is not None:
            self._adopt(run)
            run.streams.flow()
        elif delivery.owner is not None:
            self._replays.add(delivery)

    def acknowledge(self, header: dict[str, Any], owner: Owner) -> None:
        """Note how much a live run's owner has received. Raises Refusal: The offsets make no sense."""
        run = self._live.get(run_name(header))
        if run is not None and run.delivery.owner is owner:
            run.delivery.acknowledge(whole(header, "stdout"), whole(header, "stderr"))
            run.streams.flow()

    def delivery(self, name: str) -> Delivery:
        """Return the output of a run, live or remembered. Raises Refusal: not_found."""
        run = self._live.get(name)
        delivery = self._history.find(name) if run is None else run.delivery
        if delivery is None:
            raise Refusal("not_found", "There is no run of that name, or it was forgotten.")
        return delivery

    @property
    def hello(self) -> dict[str, Any]:
        """What the sandbox says of itself to a new stream."""
        box = self.toolbox
        return {
            "languages": dict(box.languages.versions),
            "workspace": box.storage.workspace.root,
            "memory_limit": box.memory.limit if box.memory else None,
            "packages_bytes": box.packages.limit if box.packages else None,
            "runs": self.names,
        }

    def describe(self) -> dict[str, list[dict[str, Any]]]:
        """Return a row for each run, live or remembered, oldest first, and one for each context."""
        rows = [each.describe() for each in (*self._history.ended, *(run.delivery for run in self._live.values()))]
        rows.sort(key=lambda row: float(row["started"]))
        return {"runs": rows, "contexts": self.toolbox.contexts.describe()}

    def usage(self) -> dict[str, Any]:
        """Return what the sandbox uses now."""
        return usage(self.toolbox.memory, self.toolbox.storage.workspace.root)

    def flow(self, owner: Owner) -> None:
        """Let the output of a stream's runs come, or leave it with the programs, as the stream can take it."""
        for run in self._live.values():
            if run.delivery.owner is owner:
                run.streams.flow()
        for channel in self.channels.values():
            channel.flow(owner)
        for delivery in [delivery for delivery in self._replays if delivery.owner is owner]:
            delivery.pump()
            if delivery.owner is None:
                self._replays.discard(delivery)

    def orphan(self, owner: Owner) -> None:
        """Note that a stream has gone: its runs wait for another one, and end soon, but for the detached ones."""
        for run in self._live.values():
            if run.delivery.owner is owner:
                run.delivery.owner = None
                run.streams.flow()
                if not run.request.detached:
                    self._orphans[run] = self._loop.call_later(ORPHAN_GRACE, run.stop, _ORPHANED)
        for channel in self.channels.values():
            channel.orphan(owner)
        self._replays = {delivery for delivery in self._replays if delivery.owner is not owner}

    async def close(self) -> None:
        """End all runs and wait until they have."""
        for run in self._live.values():
            run.stop(_CLOSING)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._spills.clear()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _see_through(self, run: Run) -> None:
        try:
            await run.live()
        finally:
            # Before the owner can ask for another run of that name: nothing is awaited between `end` and this.
            del self._live[run.request.run]
            self._adopt(run)
            self._history.end(run.delivery, self._loop.time())
            if run.delivery.owner is not None:
                self._replays.add(run.delivery)
            if self._forgetting is None:
                self._forget()
            del run.streams  # which know the run: its code would stay in memory until they are found

    def _adopt(self, run: Run) -> None:
        timer = self._orphans.pop(run, None)
        if timer is not None:
            timer.cancel()

    def _forget(self) -> None:
        wait = self._history.expire(self._loop.time())
        self._forgetting = None if wait is None else self._loop.call_later(wait, self._forget)


def _run_of(request: RunRequest, delivery: Delivery, toolbox: Toolbox, cwd: str) -> Run:
    if request.context is None:
        return FreshProcess(request, delivery, toolbox, cwd)
    context = toolbox.contexts.place(request.context, request.language)
    return ContextCell(request, delivery, toolbox, cwd, context)
