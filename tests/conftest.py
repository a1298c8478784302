"""What no test may depend on: the libraries that `sandpod setup` has made for whoever runs the tests."""

import os


def pytest_configure() -> None:
    os.environ["XDG_DATA_HOME"] = "/nonexistent"
