"""`python3 -I -m sandpod_runner`: serve (the default), attach, run, ready or kernel. Each imports what it needs."""

import sys

_USAGE = "usage: sandpod_runner [serve [--listen-fd N] | attach | run LANGUAGE [ARG...] | ready | kernel]\n"
_WRONG_USE = 2


def main(argv: list[str]) -> int:
    """Run one command, which comes without the program's name, and return the exit code."""
    match argv:
        case [] | ["serve"]:
            return _serve()
        case ["serve", "--listen-fd", number] if number.isdecimal():
            return _serve(int(number))
        case ["attach" | "ready" as command]:
            from sandpod_runner.server import attach  # noqa: PLC0415 - see the module's first lines

            return attach.attach() if command == "attach" else attach.ready()
        case ["run", language, *arguments]:
            from sandpod_runner.server.client import run  # noqa: PLC0415 - as above

            return run(language, arguments)
        case ["kernel"]:
            return _report_kernel()
    sys.stderr.write(_USAGE)
    return _WRONG_USE


def _serve(listen_fd: int | None = None) -> int:
    # The event loop takes TLS along where it finds it. Nothing here speaks it, and it is over a megabyte.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]  # the documented way to say that there is none
    from sandpod_runner.serve import serve  # noqa: PLC0415 - as above

    return serve(listen_fd)


def _report_kernel() -> int:
    """Write which kernel the sandbox sees as the container's termination message, for the operator to compare.

    It runs in a container before the sandbox's, where a RuntimeClass promises another kernel than the node's. The
    message is JSON: boot_id (empty where there is none) and release.
    """
    import json  # noqa: PLC0415 - as above
    import os  # noqa: PLC0415 - as above

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii", errors="replace") as file:
            boot_id = file.read(256).strip()
    except OSError:
        boot_id = ""
    with open("/dev/termination-log", "w", encoding="ascii") as file:
        json.dump({"boot_id": boot_id, "release": os.uname().release[:256]}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
