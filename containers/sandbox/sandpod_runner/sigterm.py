"""SIGTERM for a process that programs of the same user must not be able to end, as the kubelet does from outside."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

_SI_USER = 0


def watch_term(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` in the loop when SIGTERM comes from outside this process's own namespace.

    A process that is not PID 1 can be killed from inside anyway, so there any SIGTERM counts. Call it before any other
    thread is started: the signal is blocked in all of them.
    """
    # Python has a handler for this one, with which a program could interrupt PID 1. Without any, the kernel drops it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait, args=(loop, stop), name="term", daemon=True).start()


def _wait(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    while True:
        info = signal.sigwaitinfo({signal.SIGTERM})
        # A sender outside the namespace has no number in it. One inside can't pretend: the kernel fills both in, and
        # takes neither from anyone who sends with data of his own.
        from_outside = info.si_pid == 0 and info.si_code == _SI_USER
        if from_outside or os.getpid() != 1:
            loop.call_soon_threadsafe(stop)
            return
