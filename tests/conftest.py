"""What all tests share: none of the libraries that `sandpod setup` has made, few collections, patient clients."""

import gc
import os
import sys

import pytest
from httpx2._config import DEFAULT_TIMEOUT_CONFIG


def pytest_configure() -> None:
    os.environ["XDG_DATA_HOME"] = "/nonexistent"
    os.environ["XDG_STATE_HOME"] = "/dev/null/none"  # servers of tests are found by their addresses alone
    # Of five seconds a busy machine needs more to answer at all.
    for phase in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, phase, 60.0)
    gc.set_threshold(10_000, 20, 20)
    gc.disable()  # until all is imported, which stays


def pytest_collection_finish() -> None:
    """Leave what was imported out of each collection: it stays, and it is most of all there is."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let hypothesis summarise its own tests only: for the summary of none it would import all of itself."""
    if "hypothesis" not in sys.modules:
        session.config.pluginmanager.unregister(name="hypothesispytest")
