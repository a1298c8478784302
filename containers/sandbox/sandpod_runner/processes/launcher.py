"""The runner's side of the zygote: starts programs through it, learns how they end, and starts it again if it dies.

It also reaps whatever becomes the runner's own child, and ends what an ended program left. It knows nothing of frames.
"""

import asyncio
import itertools
import logging
import os
import signal
import socket

from sandpod_runner.ipc import process_tree
from sandpod_runner.ipc.jobs import MESSAGE_SIZE, REQUEST, Exit, Job, Kind, Message, write_job
from sandpod_runner.limits.network import Connects
from sandpod_runner.processes.languages import PACKAGES
from sandpod_runner.processes.program import Link, LostError, Program, Wish
from sandpod_runner.processes.sweep import Sweeper

logger = logging.getLogger(__name__)

_START = (
    "import sys; sys.path[0] = sys.argv[1]; from sandpod_runner.zygote.server import main; "
    "sys.path.remove(sys.argv[1]); main(int(sys.argv[2]), sys.argv[3] == '1', sys.argv[4:])"
)
_RESTART_PAUSE = 0.1  # seconds after a zygote that lived shorter than that
_LATE = 0.5  # seconds that a program which is over has to end
_FREEZE_AFTER = 2  # rounds of killing that did not end it


class Launcher:
    """Starts programs and sees their ends.

    Args:
        env: The environment of programs.
        modules: What Python programs have imported already.
        python: The interpreter that programs are forked from; it may be another one than the runner's own.
        connects: What decides about their connections, where they have no network.
    """

    def __init__(
        self, env: dict[str, str], modules: tuple[str, ...], python: str, connects: Connects | None = None
    ) -> None:
        self.env = env
        self._python = python
        self._modules = modules
        self._connects = connects
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._programs: dict[int, Program] = {}
        self._ready = asyncio.Event()
        self._ends = 0
        self._sweeper = Sweeper(self._reap, self._strays, lambda: self._ends)
        self._closing = False
        self._again: list[tuple[int, Wish]] = []
        self._late_sweep: asyncio.Task[None] | None = None
        self._zygotes: set[int] = set()  # the one that serves, and those that were killed and are not reaped yet
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._link = self._start()

    async def ready(self) -> None:
        """Return when the zygote has imported its modules."""
        await self._ready.wait()

    def start(self, job: Job, fds: list[int]) -> Program:
        """Have a program started. The descriptors stay the caller's, who may close them at once.

        Raises:
            LostError: It can't be asked for now.
        """
        program = Program(self._loop.create_future(), self._loop.create_future())
        # Nobody may be waiting for the process when it turns out that there is none.
        program.pid.add_done_callback(lambda future: future.exception())
        wish = Wish(program, [])
        try:
            wish.fds.append(write_job(job))
            for fd in fds:
                wish.fds.append(os.dup(fd))
            self._ask(next(self._numbers), wish)
        except OSError as error:
            wish.close()
            raise LostError("programs can't be started at the moment") from error
        return program

    def _ask(self, number: int, wish: Wish) -> None:
        """Ask the zygote for a process; where it was killed and nobody has noticed yet, ask the next one."""
        try:
            socket.send_fds(self._link.sock, [REQUEST.pack(number)], wish.fds)
        except BlockingIOError:
            raise  # it lives, and has more to do than its socket holds
        except OSError:
            self._receive(self._link)  # what it had done is known before the rest is asked for again
            if self._link.pid == 0:
                self._restart()
            socket.send_fds(self._link.sock, [REQUEST.pack(number)], wish.fds)
        self._link.pending[number] = wish

    def take_word(self, program: Program, how: Exit) -> None:
        """Take a program's own word that it is over, while its process is still being taken apart.

        That takes milliseconds, more the more it has imported. One that goes on in spite of its word is ended.
        """
        if not program.ended.done():
            program.ended.set_result(how)
            program.pid.add_done_callback(lambda pid: self._end_late(pid.result()) if not pid.exception() else None)

    def _end_late(self, pid: int, rounds: int = 0) -> None:
        if pid not in self._programs:
            return
        if rounds > 0:
            process_tree.end_trees([pid], freeze=rounds >= _FREEZE_AFTER)
        self._loop.call_later(_LATE, self._end_late, pid, rounds + 1)

    def renew(self) -> None:
        """Replace a zygote that has not answered for too long: a program may have made it so."""
        if self._link.ready:
            process_tree.send([self._link.pid], signal.SIGKILL)

    def catch_up(self) -> None:
        """Take note of the ends that have been reported and were not read yet."""
        self._receive(self._link)

    async def sweep(self) -> None:
        """End all that ended programs left: what became the runner's own child and is no program that goes on."""
        await self._sweeper.sweep()

    def _strays(self) -> set[int]:
        # A zygote that is being killed still has its programs, some of which go on: it is no root of a tree to end.
        parents = (*(self._zygotes - {self._link.pid}), os.getpid())
        children = set[int]().union(*map(process_tree.children, parents))
        self.catch_up()  # a program whose zygote has just been killed is known as one
        strays = children - self._zygotes - self._programs.keys()
        # gVisor lists the threads of children among them, and a signal to a thread's number ends its whole process.
        return strays & process_tree.parents().keys() if strays else strays

    async def close(self) -> None:
        """End the zygote and everything that came from it."""
        self._closing = True
        self._loop.remove_reader(self._link.sock)
        self._link.sock.close()
        process_tree.send([self._link.pid], signal.SIGKILL)
        self._programs.clear()
        for wish in (*self._link.pending.values(), *(wish for _, wish in self._again)):
            self._give_up(wish, "the runner ends")
        await self.sweep()
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def _start(self) -> Link:
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
        link = Link(pid, ours)
        self._zygotes.add(pid)
        self._ready.clear()
        self._loop.add_reader(ours, self._receive, link)
        return link

    def _receive(self, link: Link) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(link.sock, MESSAGE_SIZE, 1)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # So the kernel says that the other end was closed with something unread in it, before it gives out what
                # that end had sent.
                link.unread = True
                continue
            except OSError:
                data = b""
            if len(data) != MESSAGE_SIZE:
                self._lose(link)
                return
            for fd in fds:
                if self._connects is not None:
                    self._connects.watch(fd)
            self._take(link, Message.unpack(data))

    def _take(self, link: Link, message: Message) -> None:
        match message.kind:
            case Kind.READY:
                link.ready = True
                self._ready.set()
            case Kind.FORKED:
                wish = link.pending.pop(message.number)
                wish.close()
                self._programs[message.pid] = wish.program
                wish.program.begin(message.pid)
            case Kind.FAILED:
                self._give_up(link.pending.pop(message.number), os.strerror(message.status))
            case Kind.EXITED:
                self._ended(message.pid, Exit(message.status, message.cpu, message.max_rss))

    def _ended(self, pid: int, how: Exit) -> None:
        program = self._programs.pop(pid, None)
        if program is None:
            return
        self._ends += 1
        if program.end(how) and self._strays():
            self._late_sweep = self._loop.create_task(self.sweep())  # it said that it was over, and had left something

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid == self._link.pid:  # every program may stop it, and none could be started or seen to end
                    process_tree.send([pid], signal.SIGCONT)
                continue
            self._sweeper.died.set()
            if pid == self._link.pid:
                self._receive(self._link)
            self._zygotes.discard(pid)
            # Programs become children of the runner when their zygote dies.
            self._ended(pid, Exit(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024))

    def _give_up(self, wish: Wish, why: str) -> None:
        wish.close()
        if not wish.program.pid.done():
            wish.program.pid.set_exception(LostError(why))

    def _lose(self, link: Link) -> None:
        """Start another zygote in the place of one that was killed.

        It read its requests in order and reported each before the next, so all but the first that it did not report
        were never read, and are asked for again; the first one is if it can't have been read either.
        """
        if link is not self._link or self._closing or link.pid == 0:
            return
        self._loop.remove_reader(link.sock)
        link.sock.close()
        process_tree.send([link.pid], signal.SIGKILL)
        wishes = list(link.pending.items())
        if wishes and not (link.unread and len(wishes) == 1):
            self._give_up(wishes.pop(0)[1], "the process that starts programs was killed")
        self._again += wishes
        logger.warning("the process that starts programs has ended; another one is started")
        self._link = Link(0, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        if link.ready:
            self._restart()
        else:
            self._loop.call_later(_RESTART_PAUSE, self._restart)

    def _restart(self) -> None:
        """Start a zygote where there is none; if none can be started now, try again after a pause."""
        if self._closing or self._link.pid != 0:
            return
        try:
            link = self._start()
        except OSError as error:
            logger.warning("the process that starts programs can't be started: %s", error.strerror)
            self._loop.call_later(_RESTART_PAUSE, self._restart)
            return
        self._link.sock.close()
        self._link = link
        again, self._again = self._again, []
        for number, wish in again:
            try:
                self._ask(number, wish)
            except OSError as error:
                self._give_up(wish, error.strerror or "")
        for pid, program in list(self._programs.items()):
            # Reaped by a zygote that died before it reported that. Others are the runner's children now.
            gone = not program.alive or not process_tree.exists(pid)
            if gone and pid not in process_tree.children(os.getpid()):
                self._ended(pid, Exit(None))
