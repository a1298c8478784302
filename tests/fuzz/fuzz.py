"""Fuzzes what takes bytes from outside, one target after another: `make fuzz`.

    python -m fuzz.fuzz --minutes 60

What has been found of use before is kept in `.build/fuzz`, so that each time goes on where the last one has left off.
An input that shows a bug is put into `tests/fuzz/corpus`, where tests replay it from then on.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from fuzz.targets import TARGETS

CORPUS: Final = Path(__file__).parent / "corpus"
FOLDER: Final = Path(".build/fuzz")
LONGEST: Final = 4096  # bytes of an input
SLOWEST: Final = 30  # seconds for one
MEMORY: Final = 2048  # MiB


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Fuzzes what takes bytes from outside.")
    parser.add_argument("--minutes", type=float, default=60, help="for all targets together")
    parser.add_argument("--target", action="append", choices=TARGETS, help="one of them, and no others")
    return parser.parse_args()


def fuzz(name: str, seconds: float) -> list[Path]:
    """Fuzz a target for a time; return the inputs that show a bug, which are in the corpus now."""
    kept, crashes, log = FOLDER / name, FOLDER / f"{name}-found", FOLDER / f"{name}.log"
    shutil.rmtree(crashes, ignore_errors=True)
    for folder in (kept, crashes, CORPUS / name):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={LONGEST}", f"-timeout={SLOWEST}"]
    options += [f"-rss_limit_mb={MEMORY}", f"-artifact_prefix={crashes}/", "-print_final_stats=1"]
    command = [sys.executable, "-m", "fuzz.worker", name, *options, str(kept), str(CORPUS / name)]
    with log.open("wb") as out:
        ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False, env=os.environ)
    told = log.read_text(encoding="utf-8", errors="replace")
    stats = dict(line[6:].split(": ") for line in told.splitlines() if line.startswith("stat::"))
    runs = stats.get("number_of_executed_units", "?").strip()
    found = []
    for crash in sorted(crashes.iterdir()):
        data = crash.read_bytes()
        place = CORPUS / name / f"found-{hashlib.sha256(data).hexdigest()[:16]}"
        place.write_bytes(data)
        found.append(place)
    inputs = len(list(kept.iterdir()))
    print(
        f"{time.strftime('%H:%M:%S')} {name:<12} {runs:>9} inputs tried, {inputs} kept, {len(found)} found", flush=True
    )
    if ended.returncode:
        print(told[-3000:])
        return found or [log]
    return found


def main() -> None:
    """Fuzz all targets, or those that the command line names."""
    options = parse()
    names = options.target or list(TARGETS)
    found = [place for name in names for place in fuzz(name, options.minutes * 60 / len(names))]
    for place in found:
        print(f"FOUND {place}: mend what it shows, and keep it")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
