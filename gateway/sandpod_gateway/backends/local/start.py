"""Starts local sandboxes: isolated by bubblewrap, or, where that was asked for, as plain processes.

What an isolated one may see is decided in `bwrap.py` and `seccomp.py`; this is about descriptors that it inherits and
about leaving nothing behind when a start fails or is cancelled.
"""

import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Final

from sandpod_gateway.backends.local import bwrap, seccomp
from sandpod_gateway.backends.local.bwrap import Bind, View
from sandpod_gateway.backends.local.host import RUNNER, SYSTEM, Host
from sandpod_gateway.backends.local.inside import init as local_init
from sandpod_gateway.backends.local.inside import launcher as local_launcher
from sandpod_gateway.backends.local.process import LocalProcess, listen
from sandpod_gateway.backends.local.settings import LocalSettings

_SPARSE: Final = 2**30  # bytes that a file may have whatever the folders hold


async def start(host: Host, settings: LocalSettings, uid: int | None, program: Sequence[str] = ()) -> LocalProcess:
    """Start a sandbox, isolated unless the settings say otherwise. Raises OSError: nothing could be started.

    An isolated one drops to the uid, a user that nobody else is, or keeps the gateway's own for None; its PID 1 is the
    program, or the runner for none.
    """
    isolated = not settings.unsafe_no_isolation
    work = _start_isolated(host, settings, uid, program) if isolated else _start_plain(host, settings)
    starting = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Bubblewrap takes its child with it only once that is set up, some milliseconds from now.
        with contextlib.suppress(OSError):
            await (await starting).end()
        raise


class _Descriptors(contextlib.ExitStack):
    """What one start inherits, closed with it, and the gateway's ends, which are closed only after a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.ours = self.enter_context(contextlib.ExitStack())
        self._socket, self._address = listen(self.ours)
        self.listening = self._socket.fileno()  # what the runner listens on
        self._inherited = [self.listening]

    def pipe(self, *, into_sandbox: bool) -> tuple[int, FileIO]:
        """Return the sandbox's end of a pipe and the gateway's to keep."""
        reader, writer = os.pipe()
        ends = os.fdopen(reader, "rb", 0), os.fdopen(writer, "wb", 0)
        inside, ours = ends if into_sandbox else ends[::-1]
        return self._inherit(inside), self.ours.enter_context(ours)

    def file(self, content: bytes) -> int:
        """Return a file in memory to read."""
        file = os.fdopen(os.memfd_create("sandpod"), "w+b", 0)
        file.write(content)
        file.seek(0)
        return self._inherit(file)

    def _inherit(self, file: FileIO) -> int:
        self._inherited.append(self.enter_context(file).fileno())
        return self._inherited[-1]

    async def spawn(self, command: Sequence[str], variables: dict[str, str], folder: str) -> LocalProcess:
        """Start the process that inherits; from then on the gateway's ends are its object's."""
        process = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=self._inherited,
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the gateway's terminal is the gateway's: it ends its sandboxes itself.
            start_new_session=True,
        )
        self._socket.close()  # With the runner gone, connecting fails.
        return LocalProcess(process, self._address, self.ours.pop_all())


async def _start_isolated(host: Host, settings: LocalSettings, uid: int | None, program: Sequence[str]) -> LocalProcess:
    with _Descriptors() as ends:
        info, info_ours = ends.pipe(into_sandbox=False)
        lifeline, _ = ends.pipe(into_sandbox=True)
        descriptors = {
            "seccomp": ends.file(seccomp.program(platform.machine())),
            "info": info,
            **{path: ends.file(text.encode()) for path, text in bwrap.FILES.items()},
        }
        inside = program or _runner(host, settings, ends.listening, lifeline)
        started = await ends.spawn(_command(host, settings, uid, descriptors, inside), {}, "/")
    try:
        await started.follow(info_ours)
    except BaseException:
        await started.end()
        raise
    return started


def _command(
    host: Host, settings: LocalSettings, uid: int | None, descriptors: dict[str, int], program: Sequence[str]
) -> list[str]:
    path = Path(host.bwrap or "")
    if uid is None:
        return bwrap.command(str(path), host.view, settings, descriptors, program)
    # The program in PyPI's package finds its library two folders up.
    folder = path.parents[2] if path.parent.name == "_bin" else path.parent
    sources, view = staged(host.view, str(folder))
    executable = f"{local_launcher.STAGE}/0/{path.relative_to(folder)}"
    command = bwrap.command(executable, view, settings, descriptors, program)
    return [sys.executable, "-I", "-S", local_launcher.__file__, str(uid), *sources, "--", *command]


def staged(view: View, first: str) -> tuple[list[str], View]:
    """Return what the launcher binds below its stage, `first` as number 0, and the view with these as sources."""
    sources = [first]
    binds = []
    for bind in view.binds:
        if any(Path(bind.source).is_relative_to(folder) for folder in (*SYSTEM, "/etc")):
            binds.append(bind)
        else:
            binds.append(Bind(f"{local_launcher.STAGE}/{len(sources)}", bind.dest))
            sources.append(bind.source)
    return sources, replace(view, binds=tuple(binds))


async def _start_plain(host: Host, settings: LocalSettings) -> LocalProcess:
    """Start a runner in a folder of its own."""
    with _Descriptors() as ends:
        folder = Path(ends.ours.enter_context(tempfile.TemporaryDirectory("", "sandpod-", ignore_cleanup_errors=True)))
        workspace, temporary = folder / "workspace", folder / "tmp"
        workspace.mkdir()
        temporary.mkdir()
        places = {"SANDPOD_WORKSPACE": str(workspace), "TMPDIR": str(temporary)}
        variables = bwrap.environment(host.view, settings) | places
        lifeline, _ = ends.pipe(into_sandbox=True)
        return await ends.spawn(_runner(host, settings, ends.listening, lifeline), variables, str(workspace))


def _runner(host: Host, settings: LocalSettings, listening: int, lifeline: int) -> list[str]:
    """Return the command of the runner. `init.py` gets where its package is, and limits, of which 0 sets none."""
    isolated = not settings.unsafe_no_isolation
    limits = {
        # Without a user namespace a process limit would count all of the user's own processes.
        "processes": settings.processes if isolated else 0,
        "data": settings.data_bytes,
        "open_files": settings.open_files,
        # More than any folder holds, so that a full one says so, and a file may have holes; files in memory without a
        # folder are bounded too.
        "file_size": max(settings.workspace_bytes, settings.tmp_bytes, settings.packages_bytes, _SPARSE) + 2**20,
    }
    options = {
        "path": bwrap.HOME if isolated else str(RUNNER.parent),
        "limits": limits,
        "lifeline": lifeline,
        # With bubblewrap, which ends with the gateway, the runner does.
        "end_with_gateway": not isolated,
    }
    script = f"{bwrap.HOME}/init.py" if isolated else local_init.__file__
    # No site-packages: the runner needs none, and what a Python loads from there can take longer than the runner.
    return [host.python, "-I", "-S", script, json.dumps(options), "serve", "--listen-fd", str(listening)]
