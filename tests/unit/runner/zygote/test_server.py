"""A process that waits for its program."""

import subprocess
import sys

import pytest

WAIT = """
import socket
from sandpod_runner.ipc.jobs import REQUEST
from sandpod_runner.zygote.server import become
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
{}
become(theirs)
"""


@pytest.mark.parametrize(
    ("act", "status", "said"),
    [("ours.close()", 0, ""), ("ours.send(REQUEST.pack(7))", 126, "The program could not be started: IndexError")],
    ids=["the zygote has ended", "the descriptors were lost"],
)
def test_waiting_process_without_a_program_ends_well_only_with_the_zygote(act: str, status: int, said: str) -> None:
    env = {"PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", WAIT.format(act)], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == status
    assert ran.stderr.startswith(said)
