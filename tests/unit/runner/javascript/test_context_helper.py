"""The process between the runner and Node."""

import json
import os
import socket

from sandpod_runner.ipc.jobs import REQUEST, Job, write_job
from sandpod_runner.javascript.context_helper import _Helper


def test_cell_is_passed_on_as_node_reads_it_and_never_waited_for() -> None:
    code = b"x" * 3_000_000
    runner, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    node, theirs = socket.socketpair()
    with runner, ours, node, theirs:
        helper = _Helper(1, ours, theirs)
        helper._poll.register(theirs)
        job = write_job(Job({}, [], code=code))
        socket.send_fds(runner, [REQUEST.pack(7)], [job])
        os.close(job)
        assert helper._pass_on()
        line = b""
        while not line.endswith(b"\n"):
            line += node.recv(1024 * 1024)
            helper._send()
        assert (json.loads(line)["number"], json.loads(line)["code"]) == (7, code.decode())
