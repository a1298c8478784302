"""The runner's side of the zygote: starts programs through it, learns how they end, and starts it again if it dies.

It also reaps whatever becomes the runner's own child, and ends what an ended program left. It knows nothing of frames.
"""

import asyncio
import itertools
import logging
import os
import signal
import socket
from dataclasses import dataclass, field

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import MESSAGE_SIZE, REQUEST, Exit, Job, Kind, Message, write_job
from sandpod_runner.limits.network import Connects
from sandpod_runner.output.stdio_pipes import Pipes, open_pipes
from sandpod_runner.processes.environment import PACKAGES
from sandpod_runner.processes.program import FREEZE_AFTER, LostError, Program, sweep

logger = logging.getLogger(__name__)

_START = (
    "import sys; sys.path[0] = sys.argv[1]; from sandpod_runner.zygote.server import main; "
    "sys.path.remove(sys.argv[1]); main(int(sys.argv[2]), sys.argv[3] == '1', sys.argv[4:])"
)
_RESTART_PAUSE = 0.1  # seconds after a zygote that lived shorter than that
_LATE = 0.5  # seconds that a program which is over has to end


@dataclass(slots=True)
class _Zygote:
    """One zygote; after its end `pid` is 0, until another one takes its place and its requests."""

    pid: int
    sock: socket.socket
    pending: dict[int, Program] = field(default_factory=dict)
    unread: bool = False  # whether it ended before it had read all that it was asked for


class Launcher:
    """Starts programs and sees their ends.

    `env` is the environment of programs, and `modules` are what Python programs have imported already. They are forked
    from `python`, which may be another one than the runner's own. `connects` decides about their connections, where
    they have no network.
    """

    def __init__(
        self, env: dict[str, str], modules: tuple[str, ...], python: str, connects: Connects | None = None
    ) -> None:
        self.env = env
        self.ready = asyncio.Event()  # whether the zygote has imported its modules
        self._python = python
        self._modules = modules
        self._connects = connects
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._programs: dict[int, Program] = {}
        self._ends = 0
        self._died = asyncio.Event()  # set whenever a child has ended
        self._closing = False
        self._late_sweep: asyncio.Task[None] | None = None
        self._zygotes: set[int] = set()  # the one that serves, and those that were killed and are not reaped yet
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._zygote = self._start()

    def start(self, job: Job, fds: list[int]) -> Program:
        """Have a program started. The descriptors are closed here, even if it can't be. Raises LostError: It can't."""
        number, program = next(self._numbers), Program(fds)
        try:
            program.fds = [write_job(job), *fds]
            self._ask(number, program)
        except OSError as error:
            raise LostError("programs can't be started at the moment") from error
        finally:
            if number not in self._zygote.pending:
                program.close_fds()
        return program

    def start_piped(self, job: Job, *, stdin: bool, shows: bool, gets_job: bool = False) -> tuple[Program, Pipes]:
        """Have a program started with new pipes, and return both. Raises LostError, OSError: It can't be."""
        pipes = open_pipes(stdin=stdin, shows=shows, gets_job=gets_job)
        try:
            return self.start(job, pipes.hand_over()), pipes
        except BaseException:
            pipes.close()
            raise

    def accept_report(self, program: Program, how: Exit) -> None:
        """Accept a program's own report that it is over, while its process is still being torn down.

        That takes milliseconds, more the more it has imported. One that goes on in spite of its report is ended.
        """
        if not program.ended.done():
            program.ended.set_result(how)
            program.pid.add_done_callback(lambda pid: self._end_late(pid.result()) if not pid.exception() else None)

    def renew(self) -> None:
        """Replace a zygote that has not answered for too long: a program may have made it so."""
        if self.ready.is_set():
            process_tree.send([self._zygote.pid], signal.SIGKILL)

    def catch_up(self) -> None:
        """Read the ends that have been reported but not read yet."""
        self._receive(self._zygote)

    async def sweep(self) -> None:
        """End all that ended programs left."""
        await sweep(self._reap, self._strays, lambda: self._ends, self._died)

    async def close(self) -> None:
        """End the zygote and everything that came from it."""
        self._closing = True
        self._cut_off(self._zygote)
        self._programs.clear()
        for program in self._zygote.pending.values():
            program.fail("the runner ends")
        await self.sweep()
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def _start(self) -> _Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.set_inheritable(True)
        closed = str(int(self._connects is not None))
        try:
            pid = os.posix_spawn(
                self._python,
                [self._python, "-s", "-c", _START, PACKAGES, str(theirs.fileno()), closed, *self._modules],
                self.env,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)],
                setsigmask=(),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        zygote = _Zygote(pid, ours)
        self._zygotes.add(pid)
        self.ready.clear()
        self._loop.add_reader(ours, self._receive, zygote)
        return zygote

    def _ask(self, number: int, program: Program) -> None:
        """Ask the zygote for a process; where it was killed and nobody has noticed yet, ask the next one."""
        try:
            socket.send_fds(self._zygote.sock, [REQUEST.pack(number)], program.fds)
        except BlockingIOError:
            raise  # it lives, and has more to do than its socket holds
        except OSError:
            self.catch_up()  # what it had done is known before the rest is asked for again
            self._restart()
            socket.send_fds(self._zygote.sock, [REQUEST.pack(number)], program.fds)
        self._zygote.pending[number] = program

    def _receive(self, zygote: _Zygote) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(zygote.sock, MESSAGE_SIZE, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # So the kernel says that the other end was closed with something unread in it, before it gives out what
                # that end had sent.
                zygote.unread = True
                continue
            except OSError:
                data = b""
            if len(data) != MESSAGE_SIZE:
                self._lose(zygote)
                return
            for fd in fds:
                if self._connects is not None:
                    self._connects.watch(fd)
            self._take(zygote, Message.unpack(data))

    def _take(self, zygote: _Zygote, message: Message) -> None:
        match message.kind:
            case Kind.READY:
                self.ready.set()
            case Kind.FORKED:
                self._programs[message.pid] = program = zygote.pending.pop(message.number)
                program.begin(message.pid)
            case Kind.FAILED:
                zygote.pending.pop(message.number).fail(os.strerror(message.status))
            case Kind.EXITED:
                self._ended(message.pid, Exit(message.status, message.cpu, message.max_rss))

    def _ended(self, pid: int, how: Exit) -> None:
        program = self._programs.pop(pid, None)
        if program is None:
            return
        self._ends += 1
        if program.end(how) and self._strays():
            self._late_sweep = self._loop.create_task(self.sweep())  # it reported its end itself, and left something

    def _end_late(self, pid: int, rounds: int = 0) -> None:
        if pid in self._programs:
            if rounds > 0:
                process_tree.end_trees([pid], freeze=rounds >= FREEZE_AFTER)
            self._loop.call_later(_LATE, self._end_late, pid, rounds + 1)

    def _strays(self) -> set[int]:
        # A zygote that is being killed still has its programs, some of which go on: it is no root of a tree to end.
        parents = (*(self._zygotes - {self._zygote.pid}), os.getpid())
        children = set[int]().union(*map(process_tree.children, parents))
        self.catch_up()  # a program whose zygote has just been killed is known as one
        strays = children - self._zygotes - self._programs.keys()
        # gVisor lists the threads of children among them, and a signal to a thread's number ends its whole process.
        return strays & process_tree.parents().keys() if strays else strays

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid == self._zygote.pid:  # every program may stop it, and none could be started or seen to end
                    process_tree.send([pid], signal.SIGCONT)
                continue
            self._died.set()
            if pid == self._zygote.pid:
                self.catch_up()
            self._zygotes.discard(pid)
            # Programs become children of the runner when their zygote dies.
            self._ended(pid, Exit(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))

    def _cut_off(self, zygote: _Zygote) -> None:
        if zygote.pid != 0:
            self._loop.remove_reader(zygote.sock)
            zygote.sock.close()
            process_tree.send([zygote.pid], signal.SIGKILL)
            zygote.pid = 0

    def _lose(self, zygote: _Zygote) -> None:
        """Have another zygote started in place of one that was killed.

        It read its requests in order and reported each before the next, so all but the first that it did not report
        were never read, and are asked for again; the first one is if it can't have been read either.
        """
        if zygote is not self._zygote or self._closing or zygote.pid == 0:
            return
        self._cut_off(zygote)
        if zygote.pending and not (zygote.unread and len(zygote.pending) == 1):
            first = zygote.pending.pop(next(iter(zygote.pending)))
            first.fail("the process that starts programs was killed")
        logger.warning("the process that starts programs has ended; another one is started")
        if self.ready.is_set():
            self._restart()
        else:
            self._loop.call_later(_RESTART_PAUSE, self._restart)

    def _restart(self) -> None:
        """Start a zygote where there is none; if none can be started now, try again after a pause."""
        if self._closing or self._zygote.pid != 0:
            return
        try:
            zygote = self._start()
        except OSError as error:
            logger.warning("the process that starts programs can't be started: %s", error.strerror)
            self._loop.call_later(_RESTART_PAUSE, self._restart)
            return
        lost, self._zygote = self._zygote, zygote
        for number, asked in lost.pending.items():
            try:
                self._ask(number, asked)
            except OSError as error:
                asked.fail(error.strerror or "")
        for pid, program in list(self._programs.items()):
            # Reaped by a zygote that died before it reported that. Others are the runner's children now.
            gone = not program.alive or not process_tree.exists(pid)
            if gone and pid not in process_tree.children(os.getpid()):
                self._ended(pid, Exit(None))
