"""One local sandbox as a process: how it is started, reached and ended.

Called by `local.py`. What the sandbox may see is decided in `bwrap.py` and `seccomp.py`; who may use it, and for how
long, in `in_process.py`.
"""

import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpod_gateway.backends import bwrap, local_init, local_launcher, seccomp
from sandpod_gateway.backends.bwrap import Bind, Descriptors, View
from sandpod_gateway.backends.local_host import Host
from sandpod_gateway.backends.local_settings import LocalSettings
from sandpod_gateway.backends.local_stream import Listener, SocketStream, connect

_TAIL: Final = 4096
"""Last bytes of what bubblewrap and the runner said that are kept, to tell why a sandbox did not start."""
_INFO_SECONDS: Final = 30.0
_TERM_SECONDS: Final = 3.0
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")


class LocalProcess:
    """A started sandbox. Make it with `start_isolated` or `start_plain`."""

    def __init__(self, process: asyncio.subprocess.Process, listener: Listener) -> None:
        self._process = process
        self._listener = listener
        self._pidfd: int | None = None
        self._tail = bytearray()
        self._reader = asyncio.create_task(self._read_tail())
        self._folder: Path | None = None

    def follow(self, pidfd: int | None) -> None:
        """End it by this open file of its PID 1 from now on."""
        self._pidfd = pidfd

    def owns(self, folder: Path) -> None:
        """Remove the folder when the sandbox has ended."""
        self._folder = folder

    async def connect(self) -> SocketStream:
        """Open a stream to the runner.

        Raises:
            OSError: The sandbox has ended.
        """
        return await connect(self._listener.address)

    async def wait(self) -> int:
        """Return the exit code once the sandbox has ended by itself or by `end`; -N or 128 + N for signal N."""
        return await self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.returncode is not None

    @property
    def last_words(self) -> str:
        """The end of what bubblewrap and the runner said on their standard streams. Untrusted."""
        return self._tail.decode("utf-8", "replace").strip()

    async def end(self) -> None:
        """Kill all that runs in the sandbox and wait until it is gone. May be called more than once."""
        if self._pidfd is not None:
            # PID 1 of the sandbox: the kernel kills the rest of it first. Bubblewrap outside ends after that.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        elif not self.ended:
            await self._terminate()
        await self._process.wait()
        await self._reader
        self._close()

    async def _terminate(self) -> None:
        """End a runner that is no PID 1: only it knows what it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TERM_SECONDS):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close(self) -> None:
        self._listener.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _read_tail(self) -> None:
        output = self._process.stdout
        while output is not None and (piece := await output.read(_TAIL)):
            self._tail = (self._tail + piece)[-_TAIL:]


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolated:
    """What starts sandboxes in namespaces of their own.

    Attributes:
        host: What is used of this machine; it has a bubblewrap.
        bwrap: That bubblewrap.
        settings: Sizes and limits.
    """

    host: Host
    bwrap: str
    settings: LocalSettings

    async def start(self, uid: int | None, program: Callable[[int], Sequence[str]] | None = None) -> LocalProcess:
        """Start a sandbox.

        Args:
            uid: A user that nobody else is, to drop to; None keeps the gateway's own user.
            program: What runs as its PID 1, given the number of the listening socket; None for the runner.

        Raises:
            OSError: Nothing could be started.
        """
        listener = Listener()
        with contextlib.ExitStack() as stack:
            on_failure = stack.enter_context(contextlib.ExitStack())
            on_failure.callback(listener.close)
            info, info_write = os.pipe()
            stack.callback(os.close, info_write)
            on_failure.callback(os.close, info)
            descriptors = Descriptors(
                seccomp=_memory_file(stack, seccomp.program(platform.machine())),
                info=info_write,
                files={path: _memory_file(stack, text.encode()) for path, text in bwrap.FILES.items()},
            )
            listening = listener.socket.fileno()
            inside = program(listening) if program else self._runner(listening)
            command = self._command(uid, descriptors, inside)
            inherited = (listening, descriptors.seccomp, info_write, *descriptors.files.values())
            process = await _spawn(command, inherited, {}, "/")
            on_failure.pop_all()
        listener.started()
        started = LocalProcess(process, listener)
        try:
            started.follow(await _first_process(info, process.pid))
        except BaseException:
            await started.end()
            raise
        return started

    def _runner(self, listening: int) -> list[str]:
        options = runner_options(self.settings, bwrap.HOME, self.settings.processes)
        return runner_command(self.host.python, f"{bwrap.HOME}/local_init.py", options, listening)

    def _command(self, uid: int | None, descriptors: Descriptors, program: Sequence[str]) -> list[str]:
        if uid is None:
            return bwrap.command(self.bwrap, self.host.view, self.settings, descriptors, program)
        path = Path(self.bwrap)
        # The program in PyPI's package finds its library two folders up.
        folder = path.parents[2] if path.parent.name == "_bin" else path.parent
        sources, view = staged(self.host.view, str(folder))
        executable = f"{local_launcher.STAGE}/0/{path.relative_to(folder)}"
        command = bwrap.command(executable, view, self.settings, descriptors, program)
        launcher = [sys.executable, "-I", "-S", local_launcher.__file__, str(uid)]
        return [*launcher, *sources, "--", *command]


def staged(view: View, first: str) -> tuple[list[str], View]:
    """Return what the launcher binds below its stage, and the view with these places as sources.

    Args:
        view: What a sandbox sees.
        first: A folder to stage as number 0.
    """
    sources = [first]
    binds = []
    for bind in view.binds:
        if any(Path(bind.source).is_relative_to(folder) for folder in _SYSTEM):
            binds.append(bind)
        else:
            binds.append(Bind(f"{local_launcher.STAGE}/{len(sources)}", bind.dest))
            sources.append(bind.source)
    return sources, View(binds=tuple(binds), symlinks=view.symlinks, path=view.path)


async def start_plain(host: Host, settings: LocalSettings) -> LocalProcess:
    """Start a runner without any isolation, in a folder of its own.

    Raises:
        OSError: Nothing could be started.
    """
    listener = Listener()
    folder = Path(tempfile.mkdtemp(prefix="sandpod-"))
    workspace = folder / "workspace"
    for place in (workspace, folder / "tmp"):
        place.mkdir()
    variables = bwrap.environment(f"{Path(host.python).parent}:{os.environ.get('PATH', os.defpath)}", settings)
    variables |= {"SANDPOD_WORKSPACE": str(workspace), "TMPDIR": str(folder / "tmp")}
    # Without a user namespace a process limit would count all of the user's own processes.
    options = runner_options(settings, str(Path(host.runner).parent), 0)
    listening = listener.socket.fileno()
    command = runner_command(host.python, local_init.__file__, options, listening)
    try:
        process = await _spawn(command, (listening,), variables, str(workspace))
    except BaseException:
        listener.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    listener.started()
    started = LocalProcess(process, listener)
    started.owns(folder)
    return started


def runner_options(settings: LocalSettings, path: str, processes: int) -> str:
    """Return what `local_init.py` takes as its first argument."""
    limits = {"processes": processes, "data": settings.data_bytes, "open_files": settings.open_files}
    return json.dumps({"path": path, "limits": limits})


def runner_command(python: str, init: str, options: str, listening: int) -> list[str]:
    """Return the command that becomes the runner."""
    return [python, "-I", init, options, "serve", "--listen-fd", str(listening)]


async def _spawn(
    command: Sequence[str], inherited: Sequence[int], variables: dict[str, str], folder: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        pass_fds=tuple(inherited),
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A Ctrl-C in the gateway's terminal is the gateway's: it ends its sandboxes itself.
        start_new_session=True,
    )


def _memory_file(stack: contextlib.ExitStack, content: bytes) -> int:
    descriptor = os.memfd_create("sandpod")
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _first_process(info: int, parent: int) -> int | None:
    """Return an open file of the sandbox's PID 1, or None when bubblewrap failed before there was one.

    Args:
        info: Where bubblewrap writes; closed here.
        parent: Bubblewrap's own process id.
    """
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(info, "rb", buffering=0)
    )
    try:
        async with asyncio.timeout(_INFO_SECONDS):
            data = await reader.read()
    finally:
        transport.close()
    try:
        pid = json.loads(data)["child-pid"]
        pidfd = os.pidfd_open(pid)
    except (ValueError, KeyError, ProcessLookupError):
        return None
    # The number may be another process's by now if that one has ended already.
    if _parent_of(pid) != parent:
        os.close(pidfd)
        return None
    return pidfd


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        # The name before it can hold anything but is the only field in parentheses.
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    return 0
