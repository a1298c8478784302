"""Fails when a Python module has grown past the limit, or when an agreed exception is no longer needed.

Called by `make check`. A long module asks for a cut; where a cut would make it worse, the exception stands with its
reason in pyproject.toml under `[tool.sandpod.long-modules]`. It changes no file.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

LIMIT = 300
# A suite of one subject is read case by case, so its length costs less.
TEST_LIMIT = 450
ROOTS = ("client", "operator", "gateway", "containers", "tests", "tools", "examples")


def modules(root: Path) -> Iterator[Path]:
    """Yield the project's Python modules, in order."""
    for name in ROOTS:
        yield from sorted((root / name).rglob("*.py"))


def limit(name: str) -> int:
    """Return how many lines a module may have."""
    return TEST_LIMIT if name.startswith("tests/") else LIMIT


def complaints(root: Path, exceptions: dict[str, str]) -> list[str]:
    """Return one sentence for each module over the limit and for each exception without need."""
    lengths = {
        str(path.relative_to(root)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules(root)
    }
    found = [
        f"{name} has {lines} lines, the limit is {limit(name)}: cut it, or give the reason in pyproject.toml."
        for name, lines in lengths.items()
        if lines > limit(name) and name not in exceptions
    ]
    found += [
        f"{name} needs no exception: remove it from pyproject.toml."
        for name in exceptions
        if lengths.get(name, 0) <= limit(name)
    ]
    return found


def main() -> int:
    """Print the complaints and return the exit code."""
    root = Path(__file__).resolve().parent.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found = complaints(root, settings["tool"].get("sandpod", {}).get("long-modules", {}))
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
