"""Whatever comes over a stream, the runner answers or gives the stream up, and serves the next one as ever."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpod_runner.protocol import messages as protocol
from sandpod_runner.protocol.frames import encode
from support.runner.harness import PATIENCE, Client, Runner, running

KINDS = [
    "hello",
    "run",
    "stdin",
    "cancel",
    "follow",
    "tail",
    "list",
    "usage",
    "artifacts",
    "restart",
    "file",
    "ping",
    "x",
]
KINDS += ["", *protocol.CHANNEL_FRAMES]
NAMES = [
    *(
        "run",
        "id",
        "t",
        "language",
        "args",
        "env",
        "cwd",
        "stdin",
        "timeout",
        "output_limit",
        "detached",
        "context",
        "key",
    ),
    *(
        "op",
        "path",
        "offset",
        "limit",
        "overwrite",
        "last",
        "abort",
        "recursive",
        "destination",
        "cursor",
        "wait",
        "eof",
    ),
    *("stdout", "stderr", "since", "archive", "version"),
    *("channel", "kind", "received", "upto", "mark", "cols", "rows", "stay"),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["python", "shell", "javascript", "read", "write", "list", "move", "archive", "terminal", "a", "../x", "r-1"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=3,
)
HEADERS = st.builds(
    lambda kind, fields: {**fields, "t": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5),
) | st.just({"t": "open", "channel": "a", "kind": "terminal", "timeout": 1})
GREETING = encode({"t": "hello", "version": protocol.VERSION})


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner of its own: frames may start and delete whatever they can."""
    with running(tmp_path_factory.mktemp("runner")) as started:
        yield started


def talk(runner: Runner, data: bytes) -> None:
    """Send it all on a stream of its own, and read what comes until the runner closes it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(str(runner.address))
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except ConnectionError:
            pass  # it was given up, which is an answer too


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.tuples(HEADERS, st.binary(max_size=200)), max_size=4), greet=st.booleans())
def test_frames_that_mean_anything_do_no_harm(
    runner: Runner,
    frames: list[tuple[dict[str, object], bytes]],
    greet: bool,  # noqa: FBT001
) -> None:
    talk(runner, (GREETING if greet else b"") + b"".join(encode(header, payload) for header, payload in frames))
    assert runner.process.poll() is None


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=500), greet=st.booleans())
def test_bytes_that_are_no_frames_do_no_harm(runner: Runner, data: bytes, greet: bool) -> None:  # noqa: FBT001
    talk(runner, (GREETING if greet else b"") + data)
    assert runner.process.poll() is None


async def test_next_stream_is_served_as_ever(client: Client) -> None:
    assert (await client.run("print('well')")).out == b"well\n"
