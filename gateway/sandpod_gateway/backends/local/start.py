"""Starts local sandboxes: isolated by bubblewrap, or, where that was asked for, as plain processes.

What an isolated one may see is decided in `bwrap.py` and `seccomp.py`; this is about descriptors that it inherits and
about leaving nothing behind when a start fails or is cancelled.
"""

import asyncio
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandpod_gateway.backends.local import bwrap, seccomp
from sandpod_gateway.backends.local.bwrap import Bind, Descriptors, View
from sandpod_gateway.backends.local.host import Host
from sandpod_gateway.backends.local.inside import init as local_init
from sandpod_gateway.backends.local.inside import launcher as local_launcher
from sandpod_gateway.backends.local.process import LocalProcess
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.local.socket import Listener

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")
_SPARSE: Final = 2**30  # bytes that a file may have whatever the folders hold


class _Ends:
    """The descriptors of one start. All but those that the sandbox's process object keeps are closed with it."""

    def __init__(self) -> None:
        self._inside = contextlib.ExitStack()
        self._failed = contextlib.ExitStack()
        self.listener = Listener()
        self._failed.callback(self.listener.close)
        self.listening = self.listener.socket.fileno()  # what the runner listens on
        self.inherited = [self.listening]

    def pipe(self, *, into_sandbox: bool) -> tuple[int, int]:
        """Return the sandbox's end of a pipe and the gateway's to keep."""
        reader, writer = os.pipe()
        inside, ours = (reader, writer) if into_sandbox else (writer, reader)
        self._failed.callback(os.close, ours)
        return self._inherit(inside), ours

    def file(self, content: bytes) -> int:
        """Return a file in memory to read."""
        descriptor = self._inherit(os.memfd_create("sandpod"))
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _inherit(self, descriptor: int) -> int:
        self._inside.callback(os.close, descriptor)
        self.inherited.append(descriptor)
        return descriptor

    async def spawn(
        self, command: Sequence[str], variables: dict[str, str], folder: str, lifeline: int
    ) -> LocalProcess:
        """Start the process that inherits; from then on the kept ends are its object's and the caller's."""
        process = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=self.inherited,
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the gateway's terminal is the gateway's: it ends its sandboxes itself.
            start_new_session=True,
        )
        self._failed.pop_all()
        self.listener.started()
        return LocalProcess(process, self.listener, lifeline)

    def close(self) -> None:
        """Close what was inherited, and after a failure all else."""
        self._inside.close()
        self._failed.close()


@dataclass(frozen=True, slots=True)
class Isolated:
    """What starts sandboxes in namespaces of their own, on a host that has a bubblewrap."""

    host: Host
    settings: LocalSettings

    async def start(self, uid: int | None, program: Sequence[str] = ()) -> LocalProcess:
        """Start a sandbox.

        Args:
            uid: A user that nobody else is, to drop to; None keeps the gateway's own user.
            program: What runs as its PID 1; the runner when empty.

        Raises:
            OSError: Nothing could be started.
        """
        starting = asyncio.ensure_future(self._start(uid, program))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Bubblewrap takes its child with it only once that is set up, some milliseconds from now.
            with contextlib.suppress(OSError):
                await (await starting).end()
            raise

    async def _start(self, uid: int | None, program: Sequence[str]) -> LocalProcess:
        with contextlib.closing(_Ends()) as ends:
            info, info_ours = ends.pipe(into_sandbox=False)
            lifeline, lifeline_ours = ends.pipe(into_sandbox=True)
            descriptors = Descriptors(
                seccomp=ends.file(seccomp.program(platform.machine())),
                info=info,
                files={path: ends.file(text.encode()) for path, text in bwrap.FILES.items()},
            )
            command = self._command(uid, descriptors, program or self._runner(ends.listening, lifeline))
            started = await ends.spawn(command, {}, "/", lifeline_ours)
        try:
            await started.follow(info_ours)
        except BaseException:
            await started.end()
            raise
        return started

    def _runner(self, listening: int, lifeline: int) -> list[str]:
        # With bubblewrap, which ends with the gateway, the runner does.
        options = _options(self.settings, bwrap.HOME, lifeline, processes=self.settings.processes, with_gateway=False)
        return [self.host.python, "-I", f"{bwrap.HOME}/init.py", options, "serve", "--listen-fd", str(listening)]

    def _command(self, uid: int | None, descriptors: Descriptors, program: Sequence[str]) -> list[str]:
        path = Path(self.host.bwrap or "")
        if uid is None:
            return bwrap.command(str(path), self.host.view, self.settings, descriptors, program)
        # The program in PyPI's package finds its library two folders up.
        folder = path.parents[2] if path.parent.name == "_bin" else path.parent
        sources, view = staged(self.host.view, str(folder))
        executable = f"{local_launcher.STAGE}/0/{path.relative_to(folder)}"
        command = bwrap.command(executable, view, self.settings, descriptors, program)
        return [sys.executable, "-I", "-S", local_launcher.__file__, str(uid), *sources, "--", *command]


def staged(view: View, first: str) -> tuple[list[str], View]:
    """Return what the launcher binds below its stage, `first` as number 0, and the view with these as sources."""
    sources = [first]
    binds = []
    for bind in view.binds:
        if any(Path(bind.source).is_relative_to(folder) for folder in _SYSTEM):
            binds.append(bind)
        else:
            binds.append(Bind(f"{local_launcher.STAGE}/{len(sources)}", bind.dest))
            sources.append(bind.source)
    return sources, replace(view, binds=tuple(binds))


async def start_plain(host: Host, settings: LocalSettings) -> LocalProcess:
    """Start a runner without any isolation, in a folder of its own. Raises OSError: nothing could be started."""
    folder = Path(tempfile.mkdtemp(prefix="sandpod-"))
    workspace, temporary = folder / "workspace", folder / "tmp"
    workspace.mkdir()
    temporary.mkdir()
    chosen = [str(Path(program).parent) for program in (host.python, host.node) if program is not None]
    path = ":".join([*chosen, os.environ.get("PATH", os.defpath)])
    modules = ":".join(bind.source for bind in host.modules)
    variables = bwrap.environment(replace(host.view, path=path, node_path=modules), settings)
    variables |= {"SANDPOD_WORKSPACE": str(workspace), "TMPDIR": str(temporary)}
    try:
        with contextlib.closing(_Ends()) as ends:
            lifeline, lifeline_ours = ends.pipe(into_sandbox=True)
            # Without a user namespace a process limit would count all of the user's own processes.
            options = _options(settings, str(Path(host.runner).parent), lifeline, processes=0, with_gateway=True)
            runner = [host.python, "-I", local_init.__file__, options, "serve", "--listen-fd", str(ends.listening)]
            started = await ends.spawn(runner, variables, str(workspace), lifeline_ours)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    started.at_end.callback(shutil.rmtree, folder, ignore_errors=True)
    return started


def _options(settings: LocalSettings, path: str, lifeline: int, *, processes: int, with_gateway: bool) -> str:
    """Return what `init.py` is given: where the runner is, limits (0 sets none), if it ends with the gateway itself."""
    limits = {
        "processes": processes,
        "data": settings.data_bytes,
        "open_files": settings.open_files,
        # More than any folder holds, so that a full one says so, and a file may have holes; files in memory without a
        # folder are bounded too.
        "file_size": max(settings.workspace_bytes, settings.tmp_bytes, _SPARSE) + 2**20,
    }
    return json.dumps({"path": path, "limits": limits, "lifeline": lifeline, "end_with_gateway": with_gateway})
