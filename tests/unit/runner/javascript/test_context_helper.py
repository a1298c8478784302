"""The process between the runner and Node."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from sandpod_runner.ipc.jobs import REQUEST, Job, write_job
from sandpod_runner.javascript.context_helper import _Helper


class Sides(NamedTuple):
    """A helper, and what is at the other ends of its pipes."""

    helper: _Helper
    runner: socket.socket
    node: socket.socket
    answers: int

    def cell(self, code: bytes = b"1") -> None:
        job = write_job(Job({}, [], code=code))
        socket.send_fds(self.runner, [REQUEST.pack(7)], [job])
        os.close(job)
        assert self.helper._pass_on()

    def say(self, words: bytes) -> None:
        self.node.sendall(words)
        assert self.helper._hear()


@pytest.fixture
def sides() -> Iterator[Sides]:
    runner, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    node, theirs = socket.socketpair()
    answers, answering = os.pipe()
    with runner, ours, node, theirs, os.fdopen(answers), os.fdopen(answering, "w"):
        helper = _Helper(1, ours, theirs, answering)
        helper._poll.register(theirs)
        yield Sides(helper, runner, node, answers)


def test_cell_is_passed_on_as_node_reads_it_and_never_waited_for(sides: Sides) -> None:
    code = b"x" * 3_000_000
    sides.cell(code)
    line = b""
    while not line.endswith(b"\n"):
        line += sides.node.recv(1024 * 1024)
        sides.helper._send()
    assert (json.loads(line)["number"], json.loads(line)["code"]) == (7, code.decode())


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        ("cell { interrupt }", (1, 0, b"x")),
        ("cell { interrupt interrupt }", (1, 0, b"x")),
        ("cell { interrupt !", (1, 0, b"!")),
        ("cell interrupt { }", (1, 1, b"x")),
        ("cell { } interrupt", (0, 1, b".")),
        ("cell { } interrupt cell { }", (0, 1, b"..")),
        ("cell { interrupt ! cell { }", (1, 0, b"!.")),
    ],
)
def test_node_gets_one_signal_and_only_while_it_takes_one(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, before: str, seen: tuple[int, int, bytes]
) -> None:
    """`seen`: the signals, the lines that stand for one, and the answers."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    for word in before.split():
        if word == "cell":
            sides.cell()
        elif word == "interrupt":
            sides.helper._interrupt()
        else:
            sides.say(word.encode())
    assert set(sent) <= {signal.SIGINT}
    assert (len(sent), sides.node.recv(65536).count(b"null\n"), os.read(sides.answers, 16)) == seen
