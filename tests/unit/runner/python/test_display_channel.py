"""Pictures that are kept whole in the workspace."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandpod_runner.python.display_channel import Channel

WRITERS, ROUNDS = 8, 60


def test_pictures_that_are_kept_at_the_same_time_never_take_each_others_place(tmp_path: Path) -> None:
    ready = threading.Barrier(WRITERS)

    def keep(number: int) -> list[str]:
        channel = Channel(os.open(os.devnull, os.O_WRONLY), str(tmp_path))
        paths = [channel.keep("image/png", b"%d" % number) for _ in range(ROUNDS) if ready.wait() >= 0]
        channel.close()
        return paths

    with ThreadPoolExecutor(WRITERS) as writers:
        for number, paths in enumerate(writers.map(keep, range(WRITERS))):
            assert [(tmp_path / path).read_bytes() for path in paths] == [b"%d" % number] * ROUNDS
