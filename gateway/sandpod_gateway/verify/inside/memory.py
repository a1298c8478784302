"""Takes memory step by step, as much as it is told, and says so if it got all."""

from sandpod_gateway.verify.inside.tools import arguments, tell

STEP = 1 << 24


def main() -> None:
    """Take it."""
    most = arguments()["bytes"]
    held: list[bytes] = []
    while len(held) * STEP < most:
        held.append(b"x" * STEP)
    tell({"taken": len(held) * STEP})


main()
