"""Installations: started by calls, joined by equal ones, and read by any gateway.

Nothing is kept here but the work: an installation's name says in which sandbox it is, and a run there says how far it
is and how it ended. The sandbox lets one install at a time, whichever gateways do it.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

from cachetools import LRUCache

from sandpod_gateway.api.results import ErrorCode, Installation, PackageList
from sandpod_gateway.api.run_results import Language
from sandpod_gateway.backends.base import SandboxRecord
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages import installation
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import Channel, FairSlots
from sandpod_gateway.packages.errors import Failure
from sandpod_gateway.packages.npm.packages import NpmPackages
from sandpod_gateway.packages.pip.packages import PythonPackages
from sandpod_gateway.packages.settings import PackageSettings
from sandpod_gateway.packages.talk import Talk
from sandpod_gateway.runner.messages import ListedRun, Listing, checked
from sandpod_gateway.runner.run_ids import split_run_id
from sandpod_gateway.sandboxes.requests import ask_runner
from sandpod_gateway.sandboxes.service import Sandboxes

logger = logging.getLogger(__name__)

IN_PROGRESS: Final = 8  # installations in one sandbox at once, and of one caller at one gateway
LONGEST: Final = 3600.0  # seconds of an installation, with all that it waits for
_LAST_WORDS: Final = 5.0  # seconds in which sandboxes can be told that their installations are interrupted
_REMEMBERED: Final = 256  # sandboxes whose added packages are


@dataclass(frozen=True, slots=True)
class _Request:
    """What a caller wants in a sandbox."""

    record: SandboxRecord
    language: str
    wanted: list[Any]
    key: str  # what equal requests have in common


class Installer:
    """Installs packages in callers' sandboxes. Each step of an installation may take `timeout` seconds."""

    def __init__(self, sandboxes: Sandboxes, settings: PackageSettings) -> None:
        self._sandboxes = sandboxes
        self._settings = settings
        self.timeout = settings.timeout
        self._cache = FileCache(settings.cache_dir, settings.cache_bytes)
        shared = (sandboxes, settings, self._cache, FairSlots(settings.concurrency))
        self._channels: dict[str, Channel[Any, Any]] = {
            Language.PYTHON: PythonPackages(*shared),
            Language.JAVASCRIPT: NpmPackages(*shared),
        }
        self._work: dict[asyncio.Task[None], str] = {}  # what goes on here, and whose it is
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._added: LRUCache[str, dict[str, str]] = LRUCache(_REMEMBERED)

    def open(self) -> None:
        """Open the cache."""
        self._cache.open()

    async def finish(self, seconds: float) -> bool:
        """Wait so many seconds for what goes on here, and return whether all has ended."""
        if self._work:
            await asyncio.wait(self._work, timeout=seconds)
        return not self._work

    async def close(self) -> None:
        """Interrupt what goes on here, which its sandboxes learn, and close the cache."""
        for task in self._work:
            task.cancel()
        await self.finish(_LAST_WORDS)
        self._cache.close()

    def check(self, packages: list[str], language: str) -> list[Any]:
        """Return the requirements. Raises unsupported_language, invalid_argument, package_blocked."""
        channel = self._channel(language)
        if not self._settings.enabled:
            message, step = "This server installs no packages.", "Use a template whose image has them."
            raise SandpodError(ErrorCode.PACKAGE_BLOCKED, message, next_step=step)
        return channel.parse(packages)

    async def install(
        self, owner: str, packages: list[str], *, language: str, sandbox: str | None, wait: float
    ) -> Installation:
        """Start an installation, or join an equal one, and wait at most `wait` seconds for its end.

        Raises what `check`, `Sandboxes.resolve` and `Talk.begin` raise, or rate_limited.
        """
        wanted = self.check(packages, language)
        record = await self._sandboxes.resolve(owner, sandbox)
        # As a run with a key it is remembered long, after its sandbox has run many other programs too.
        name = await self._begin(self._request(record, wanted, language), keep=True)
        return await self._read(record, name, wait)

    async def require(self, record: SandboxRecord, packages: list[str], language: str) -> None:
        """Install what a run needs. Raises as `install` does, or what the installation failed with."""
        request = self._request(record, self.check(packages, language), language)
        name = await self._begin(request, keep=False)
        reading = await installation.read(self._sandboxes, record, name, LONGEST)
        if (error := reading.error) is not None:
            raise error
        if reading.ended is None:
            raise Failure.SANDBOX_SLOW.error()

    async def get(self, owner: str, name: str, *, wait: float) -> Installation:
        """Return an installation, at its end or after `wait` seconds. Raises not_found, or sandbox_lost."""
        try:
            sandbox, run = split_run_id(name)
            if not installation.is_of(run):
                raise _no_such()
            return await self._read(await self._sandboxes.resolve(owner, sandbox), run, wait)
        except SandpodError as error:
            if error.code in {ErrorCode.SESSION_NOT_FOUND, ErrorCode.NOT_FOUND}:
                raise _no_such() from error
            raise

    async def latest(self, record: SandboxRecord, packages: list[str], language: str, *, wait: float) -> Installation:
        """Return the latest installation of these packages in a sandbox, as `get` does. Raises as `get` and `check`."""
        request = self._request(record, self.check(packages, language), language)
        names = [run.run for run in await self._listed_runs(record) if installation.is_of(run.run, request.key)]
        if not names:
            raise _no_such()
        return await self._read(record, names[-1], wait)

    def added(self, sandbox: str) -> list[str]:
        """Return the packages that were added to a sandbox, as far as this server has seen, with their versions."""
        return [f"{name} {version}" for name, version in sorted(self._added.get(sandbox, {}).items())]

    async def listed(self, owner: str, *, sandbox: str | None, language: str) -> PackageList:
        """Return the packages of a sandbox, the image's own last.

        Raises unsupported_language, or what `Sandboxes.resolve` and `Program.report` raise.
        """
        channel = self._channel(language)
        record = await self._sandboxes.resolve(owner, sandbox, make=False)
        return PackageList(sandbox=record.name, language=language, packages=await channel.listed(record))

    def _channel(self, language: str) -> Channel[Any, Any]:
        if language not in self._channels:
            message, step = "There are no packages for that language.", "Use language python or javascript."
            raise SandpodError(ErrorCode.UNSUPPORTED_LANGUAGE, message, next_step=step)
        return self._channels[language]

    def _request(self, record: SandboxRecord, wanted: list[Any], language: str) -> _Request:
        return _Request(record, language, wanted, installation.request_of(language, wanted))

    async def _read(self, record: SandboxRecord, name: str, wait: float) -> Installation:
        reading = await installation.read(self._sandboxes, record, name, wait)
        result = reading.as_result(record.name, name)
        if result.packages:
            self._added.setdefault(record.name, {}).update((each.name, each.version) for each in result.packages)
        return result

    async def _listed_runs(self, record: SandboxRecord) -> list[ListedRun]:
        """Return the installations that a sandbox knows, the oldest first."""
        frame = await ask_runner(self._sandboxes, record, lambda connection: connection.ask("list"), again=True)
        return [run for run in checked(Listing, frame).runs if installation.is_of(run.run)]

    async def _begin(self, request: _Request, *, keep: bool) -> str:
        """Return the name of an equal installation that goes on, of whichever gateway, or of one that is begun."""
        record = request.record
        async with self._locks.setdefault(record.name, asyncio.Lock()):
            live = [run.run for run in await self._listed_runs(record) if run.state == "live"]
            for name in live:
                if installation.is_of(name, request.key):
                    return name
            if len(live) >= IN_PROGRESS or sum(owner == record.owner for owner in self._work.values()) >= IN_PROGRESS:
                message = f"{IN_PROGRESS} of your installations are in progress."
                step = "Wait for one with get_installation, and name several packages in one call."
                raise SandpodError(ErrorCode.RATE_LIMITED, message, next_step=step)
            name = installation.new_name(request.key)
            begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._carry_out(request, name, begun, keep=keep))
            self._work[task] = record.owner
            task.add_done_callback(self._ended)
            # It goes on if this call is cancelled.
            await asyncio.wait({task, begun}, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done():
                task.result()
            return name

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._work[task]
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SandpodError):
            logger.error("an installation failed", exc_info=error)

    async def _carry_out(self, request: _Request, name: str, begun: "asyncio.Future[None]", *, keep: bool) -> None:
        channel = self._channels[request.language]
        talk = channel.talk(request.record, name)
        try:
            await talk.begin(installing=True, seconds=LONGEST, key=name if keep else None)
        except BaseException:
            await talk.close()
            raise
        begun.set_result(None)
        keeper = asyncio.create_task(self._sandboxes.keep_alive(request.record))
        try:
            line = await self._result_line(channel, talk, request.wanted)
            await talk.finish(line)
        finally:
            keeper.cancel()

    async def _result_line(self, channel: Channel[Any, Any], talk: Talk[Any], wanted: list[Any]) -> bytes:
        """Install, and return what the sandbox is to keep of it."""
        try:
            packages, note = await channel.install(talk, wanted)
        except SandpodError as error:
            return installation.result_line(talk.run, [], None, error)
        except asyncio.CancelledError:  # the server ends
            return installation.result_line(talk.run, [], None, Failure.INTERRUPTED.error())
        except Exception:
            logger.exception("an installation failed")
            return installation.result_line(talk.run, [], None, Failure.SERVER.error())
        return installation.result_line(talk.run, packages, note, None)


def _no_such() -> SandpodError:
    message = "There is no such installation, or it is no longer remembered."
    step = "Call install_packages again: installed packages take no time, and list_packages lists them."
    return SandpodError(ErrorCode.NOT_FOUND, message, next_step=step)
