"""A pseudo-terminal whose channel ends in any order, or was never opened, is closed."""

import os
from typing import Any

import pytest

from sandpod_runner.channels.pseudo_terminal import PseudoTerminal
from sandpod_runner.protocol.errors import Refusal


class Stream:
    can_send = True

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        pass


async def test_one_whose_first_opening_is_refused_ends() -> None:
    forgotten: list[str] = []
    terminal = PseudoTerminal("term-1", forgotten.append)
    [slave, *_] = terminal.hand_over()
    with pytest.raises(Refusal):
        terminal.open({"received": 5}, Stream())
    assert (forgotten, terminal._master) == (["term-1"], -1)
    os.close(slave)

    terminal = PseudoTerminal("term-2", forgotten.append)
    [slave, *_] = terminal.hand_over()
    terminal.open({}, stream := Stream())
    with pytest.raises(Refusal):
        terminal.open({"received": 5}, Stream())
    terminal.orphan(stream)
    with pytest.raises(Refusal):
        terminal.open({"received": 5}, Stream())
    assert forgotten == ["term-1"], "whoever has it may come back"
    terminal.close()
    os.close(slave)


async def test_one_whose_client_leaves_is_read_no_more_and_closed() -> None:
    terminal = PseudoTerminal("term-1", lambda _: None)
    terminal.hang_up = lambda: None  # its program is being ended in another way
    [slave, *_] = terminal.hand_over()
    terminal.open({}, Stream())
    assert terminal._reading
    terminal.close()
    assert (terminal._reading, terminal._master) == (False, -1)
    terminal.finish()
    os.close(slave)
