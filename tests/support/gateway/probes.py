"""Probes: programs that run in a real local sandbox and tell what they could do there.

Called by the tests of local isolation and limits; `conftest.py` makes the sandboxes.
"""

import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from sandpod_gateway.backends.local.backend import LocalBackend
from sandpod_gateway.backends.local.settings import LocalSettings
from support.gateway.peer import Peer, talk

SETTINGS = LocalSettings(
    warm=0, memory="160Mi", workspace_size="32Mi", tmp_size="16Mi", packages_size="16Mi", processes=48
)

# What the probes use. A call's result is the name of its error, or "done".
TOOLS = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def trial(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return "done"

def call(name, *arguments):
    ctypes.set_errno(0)
    return "done" if getattr(libc, name)(*arguments) >= 0 else errno.errorcode[ctypes.get_errno()]

def tell(value):
    print(json.dumps(value), flush=True)

"""


@dataclass(frozen=True)
class Box:
    """A local sandbox to try things in."""

    backend: LocalBackend
    name: str

    def talk(self) -> AbstractAsyncContextManager[Peer]:
        return talk(self.backend, self.name)

    async def look(self, code: str) -> Any:
        """Run a probe to its good end and return what it told."""
        async with self.talk() as peer:
            text, end = await peer.output(TOOLS + code)
        assert end.header["outcome"] == "ok", text[-2000:]
        return json.loads(text)

    async def answers(self) -> None:
        async with self.talk() as peer:
            assert (await peer.output("print('still here')"))[0] == "still here\n"
