"""Claims that race and fail against a real API server, and what the API server says came of them: `make bench-claims`.

    python -m bench.claims --tries 100000      on the cluster of KUBECONFIG, in a namespace of its own

It fails when one sandbox was given twice, was lost, went back to a pool, or stayed behind.
"""

import argparse
import asyncio
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from support.claims.history import Verdict
from support.claims.storm import Storm, storm_over
from support.operator.process import namespace


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Lets gateways race for sandboxes while everything goes wrong.")
    parser.add_argument("--tries", type=int, default=100_000, help="claims that reach the API server")
    parser.add_argument("--workers", type=int, default=2, help="processes with gateways' backends")
    parser.add_argument("--backends", type=int, default=12, help="backends of each")
    parser.add_argument("--replicas", type=int, default=4, help="warm sandboxes of each of the three pools")
    parser.add_argument("--keep", type=Path, help="folder to keep the journals and logs in")
    return parser.parse_args()


def say(text: str) -> None:
    """Print a line with the time and the load of the machine."""
    print(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f}  {text}", flush=True)


def report(verdict: Verdict, seconds: float) -> None:
    """Print what was counted and what is wrong."""
    for what, count in sorted(verdict.counts.items()):
        print(f"  {what:<40} {count:>8}")
    print(f"  {'longest from claim to end, s':<40} {verdict.longest:>8.0f}")
    print(f"  {'seconds in all':<40} {seconds:>8.0f}")
    print(f"{len(verdict.wrong)} of {verdict.counts['sandboxes claimed']} claimed sandboxes are wrong")
    for text in verdict.wrong[:20]:
        print(f"  {text}")


def main() -> None:
    """Let it rage in a namespace of its own."""
    options = parse()
    begun = time.monotonic()
    with ExitStack() as stack:
        there = stack.enter_context(namespace("storm"))
        folder = options.keep or Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        storm = Storm(
            tries=options.tries,
            workers=options.workers,
            backends=options.backends,
            replicas=options.replicas,
            say=say,
        )
        verdict = asyncio.run(storm_over(there, folder, storm))
    report(verdict, time.monotonic() - begun)
    sys.exit(bool(verdict.wrong))


if __name__ == "__main__":
    main()
