"""Whatever frames a sandbox sends, the gateway's inbox takes them: nothing is raised, and nothing grows."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_peers import Sink
from sandpod_gateway.inbox import Inbox
from sandpod_runner.protocol.frames import Frame

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["r-1", "stdout", "ok", "text/plain", "image/png", "session_busy"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [
    *("run", "id", "stream", "offset", "mime", "index", "outcome", "exit_code", "signal", "duration_ms", "cpu_ms"),
    *("stdout_bytes", "artifacts", "artifacts_more", "detail", "code", "message", "as", "version", "languages", "runs"),
]
FRAMES = st.builds(
    lambda kind, fields, payload: Frame({**fields, "t": kind}, payload),
    st.sampled_from(
        ["hello", "started", "known", "out", "display", "result", "end", "reply", "pong", "error", "", "x"]
    ),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    st.binary(max_size=100),
)


class _Careless(Sink):
    """Takes any offset: what comes is the sandbox's business."""

    def output(self, stream: str, offset: int, data: bytes) -> None:
        assert stream in {"stdout", "stderr"}
        assert offset >= 0
        self.got.append((stream, data))


@settings(deadline=None)
@given(st.lists(FRAMES, max_size=30))
def test_frames_that_mean_anything_are_taken(frames: list[Frame]) -> None:
    async def take() -> None:
        inbox = Inbox()
        inbox.expect_run("r-1", _Careless())
        inbox.expect_reply(1)
        for frame in frames:
            inbox.take(frame)
        assert set(inbox.runs) <= {"r-1"}
        assert set(inbox.replies) <= {1}

    asyncio.run(take())
