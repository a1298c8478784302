"""Prints Prometheus rules with every window and waiting time divided, so that alerts can be tried in seconds.

    python tools/rules.py --speed 60 charts/sandpod/files/rules.yaml > fast.yaml

Thresholds stay: an alert that asks for more than five of something in a window asks for as many in the shorter one. An
age that an expression compares with, written as `5 * 60`, is a time as well; a certificate's days are not divided.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Final

import yaml

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_WINDOW: Final = re.compile(r"(\[|\boffset )(\d+)([smh])\b")
_AGE: Final = re.compile(r"\b(\d+) \* 60\b")


def seconds(duration: str) -> int:
    """Return a duration of one unit, such as `5m`, in seconds."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]


def sped_up(text: str, speed: int) -> str:
    """Return a file of rules with all its times divided, and none of them below a second."""

    def shorter(duration: str) -> str:
        return f"{max(1, seconds(duration) // speed)}s"

    groups: dict[str, Any] = yaml.safe_load(text)
    for rule in (rule for group in groups["groups"] for rule in group["rules"]):
        found = _WINDOW.sub(lambda match: match[1] + shorter(match[2] + match[3]), rule["expr"])
        rule["expr"] = _AGE.sub(lambda match: f"{int(match[1]) * 60 / speed:g}", found)
        if "for" in rule:
            rule["for"] = shorter(rule["for"])
    return yaml.safe_dump(groups, sort_keys=False, width=1000)


def main() -> int:
    """Print the rules; return the exit code."""
    parser = argparse.ArgumentParser(description="Print Prometheus rules with all times divided.")
    parser.add_argument("--speed", type=int, default=60, help="what times are divided by")
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    sys.stdout.write(sped_up(arguments.file.read_text(encoding="utf-8"), arguments.speed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
