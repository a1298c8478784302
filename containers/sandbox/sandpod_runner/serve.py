"""Puts the runner together and serves streams until it is asked to end.

First it protects itself, then the network is probed while the zygote imports its modules; only then it listens.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from sandpod_runner.files.artifacts import Artifacts
from sandpod_runner.files.disk import find_disk_watch
from sandpod_runner.files.server import Storage
from sandpod_runner.files.workspace import Workspace
from sandpod_runner.ipc import process_tree, syscalls
from sandpod_runner.ipc.jobs import Job
from sandpod_runner.limits import network
from sandpod_runner.limits.memory import find_watch
from sandpod_runner.limits.threads import start_threads
from sandpod_runner.processes import environment
from sandpod_runner.processes.launcher import Launcher
from sandpod_runner.processes.node_pool import NodePool
from sandpod_runner.protocol import messages
from sandpod_runner.runs.context import Contexts
from sandpod_runner.runs.registry import Runs
from sandpod_runner.runs.request import MAX_TIMEOUT
from sandpod_runner.runs.run import CodeFolder, Toolbox
from sandpod_runner.server.connection import Connection, join
from sandpod_runner.settings import Settings, SettingsError, read_settings

logger = logging.getLogger(__name__)

NOT_ISOLATED: Final = 78
TERMINATED: Final = 128 + signal.SIGTERM
"""As a shell reports it. After a 0 the kubelet calls the pod Succeeded, and drops that it evicted it, and for what."""
_CONFIG: Final = 2
_TERMINATION_LOG: Final = "/dev/termination-log"
_PEER: Final = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_Welcome = Callable[[socket.socket], Coroutine[Any, Any, object]]
_SI_USER: Final = 0  # the code of a signal that was sent by `kill`


def serve(listen_fd: int | None) -> int:
    """Serve until SIGTERM, and return the exit code. Streams come from an inherited socket or the named one."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="sandpod-runner: %(message)s")
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}.\n")
        return _CONFIG
    protect(listen_fd)
    syscalls.share_heap()
    code = asyncio.run(_serve(settings, listen_fd))
    sys.stderr.flush()
    # Threads that wait for a disk must not keep a sandbox that has ended.
    os._exit(code)


def protect(listen_fd: int | None) -> None:
    """Keep programs away from this process, and make it the one that all orphans come to."""
    syscalls.set_readable(False)
    if os.getpid() != 1:
        syscalls.adopt_orphans()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 or int(name) == listen_fd:  # noqa: PLR2004 - the standard streams stay as they are
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)


def watch_term(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` in the loop when SIGTERM comes from outside this process's own namespace, as the kubelet's does.

    Programs of the same user must not be able to end the runner. If it is not PID 1 they can kill it anyway, so there
    any SIGTERM counts. Call it before any other thread is started: the signal is blocked in all of them.
    """
    # Python has a handler for this one, with which a program could interrupt PID 1. Without any, the kernel drops it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while True:
            info = signal.sigwaitinfo({signal.SIGTERM})
            # A sender outside the namespace has no number in it. One inside can't pretend: the kernel fills both in,
            # and takes neither from anyone who sends with data of his own.
            if os.getpid() != 1 or (info.si_pid == 0 and info.si_code == _SI_USER):
                loop.call_soon_threadsafe(stop)
                return

    threading.Thread(target=wait, name="term", daemon=True).start()


async def _serve(settings: Settings, listen_fd: int | None) -> int:
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    watch_term(loop, ending.set)
    start_threads()
    tmp = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the sandbox's own
    closed = settings.closed_network and not settings.allow_open_network
    offline = closed or network.has_loopback_alone()
    env = environment.build_environment(os.environ, tmp=tmp, cpus=environment.count_cpus(), offline=offline)
    environment.prepare_home(env, settings.skeleton, settings.packages)
    python, version = environment.find_python(settings.python, env)
    connects = network.Connects() if closed else None
    launcher = Launcher(env, settings.preimport, python, connects)
    opened: asyncio.Task[str] | None = None
    try:
        if listen_fd is None:
            # One that may serve with an open network need not wait until it is closed.
            patience = 0.0 if settings.allow_open_network else network.PATIENCE
            reached = await network.find_lasting_open(settings.probes, patience)
            if reached is not None and not _tolerate(reached, settings):
                return NOT_ISOLATED
            if settings.probe_interval is not None and settings.probes and not settings.allow_open_network:
                opened = loop.create_task(network.wait_for_open(settings.probes, settings.probe_interval))
                opened.add_done_callback(lambda _: ending.set())
        warm = loop.create_task(launcher.ready.wait())
        stop = loop.create_task(ending.wait())
        await asyncio.wait({warm, stop}, return_when=asyncio.FIRST_COMPLETED)
        runs = _compose(settings, launcher, environment.find_languages(version, settings.languages, env), tmp)
        await _listen(runs, listen_fd, ending)
        await runs.close()
        if opened is not None and opened.done():
            _tolerate(opened.result(), settings)
            return NOT_ISOLATED
    finally:
        await launcher.close()
    return TERMINATED


def _tolerate(reached: str, settings: Settings) -> bool:
    message = f"NetworkOpen: reached {reached}"
    sys.stderr.write(f"{message}\n")
    if settings.allow_open_network:
        return True
    with contextlib.suppress(OSError), open(_TERMINATION_LOG, "w") as file:
        file.write(message)
    return False


def _compose(settings: Settings, launcher: Launcher, languages: environment.Languages, tmp: str) -> Runs:
    workspace = Workspace(settings.workspace)
    disk = find_disk_watch(workspace.root, settings.workspace_bytes, settings.in_memory, settings.packages)
    packages = None
    if settings.packages is not None:
        packages = find_disk_watch(
            settings.packages, settings.packages_bytes, settings.in_memory, workspace.root, packages=True
        )
    base = Job(env=launcher.env, rlimits=settings.rlimits(on_disk=disk is not None))
    node = NodePool(launcher, languages.node, base) if languages.node else None
    folders = (workspace.root, tmp, "/dev/shm")  # noqa: S108 - a name of the system's
    memory = find_watch(settings.memory_limit, folders, settings.in_memory, packages=settings.packages)
    storage = Storage(workspace, disk, Artifacts(workspace.root))
    contexts = Contexts(launcher, base, languages.node)
    code = CodeFolder(tmp, languages.commands)
    most = settings.run_timeout or MAX_TIMEOUT, settings.output_bytes or sys.maxsize
    return Runs(Toolbox(launcher, languages, node, contexts, code, base, memory, storage, packages, *most))


async def _listen(runs: Runs, listen_fd: int | None, ending: asyncio.Event) -> None:
    """Serve streams until it is time to end."""
    loop, connect = asyncio.get_running_loop(), partial(Connection, runs)
    if listen_fd is None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(messages.SOCKET)
        listener.listen(16)
        welcome: _Welcome = partial(join, connect=connect)
    else:
        listener = socket.socket(fileno=listen_fd)
        welcome = partial(loop.connect_accepted_socket, connect)
    listener.setblocking(False)
    accepting = loop.create_task(_accept(listener, welcome))
    logger.info("ready")
    await ending.wait()
    accepting.cancel()
    listener.close()


async def _accept(listener: socket.socket, welcome: _Welcome) -> None:
    loop = asyncio.get_running_loop()
    welcomes: set[asyncio.Task[object]] = set()
    while True:
        try:
            sock, _ = await loop.sock_accept(listener)
        except OSError as error:
            logger.warning("a stream could not be accepted: %s", error)
            await asyncio.sleep(0.1)
            continue
        if is_own_program(sock):
            sock.close()
            continue
        task = loop.create_task(welcome(sock))
        welcomes.add(task)
        task.add_done_callback(welcomes.discard)


def is_own_program(sock: socket.socket) -> bool:
    """Return whether the peer descends from the runner: a program could start runs that outlive its own."""
    pid, _, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if pid == 0:
        return False  # of another process namespace
    table = process_tree.parents()
    return pid not in table or pid in process_tree.trees([os.getpid()], table)
