"""Fuzzes one target until its time is over, or something is found; libFuzzer's options follow the target's name.

Atheris is chosen, since it sees which branches an input takes and keeps what takes a new one: parsers of bytes are got
through byte by byte that way, which inputs that are only random never do. It has wheels for Linux; `make fuzz` installs
it into an environment of its own, and what it has found is replayed by `make test` without it.
"""

import logging
import sys

import atheris

with atheris.instrument_imports(include=["sandpod_gateway", "sandpod_runner"]):
    from fuzz.targets import TARGETS


def main() -> None:
    """Fuzz the target that the command line names."""
    logging.getLogger("sandpod_gateway").setLevel(logging.ERROR)
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
