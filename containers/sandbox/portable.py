"""Makes a Python that runs in any Linux image, with the runner in it, out of the Python that runs this.

    python3 portable.py PACKAGE TARGET HOME

Called while the sandbox image is built. PACKAGE is the runner, TARGET the folder that is made, HOME where that folder
will lie in other images: the program names its loader and its libraries there, so it uses nothing of the image that it
comes into, which may have another C library or none. It needs `patchelf` on the PATH.
"""

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

# What a program that only passes bytes on does without; all the rest of the standard library is there. From `_bz2` on:
# extensions with large libraries behind them, as `hashlib` does without OpenSSL.
_LEFT_OUT: Final = """
__pycache__ config-* curses dbm dist-packages distutils ensurepip idlelib lib2to3 pydoc_data site-packages
sitecustomize.py sqlite3 test tkinter turtle* unittest xmlrpc
_bz2.* _codecs_* _crypt.* _ctypes_test.* _curses* _dbm.* _gdbm.* _hashlib.* _lzma.* _sqlite3.* _ssl.* _test*
_tkinter.* _uuid.* _xx* nis.* ossaudiodev.* readline.* xxlimited*
"""


def make(package: Path, target: Path, home: str) -> None:
    """Make the folder `target`, which must not exist, with the runner's own package; it will lie at `home`."""
    version = f"python{sysconfig.get_python_version()}"
    library = target / "lib"
    shutil.copytree(sysconfig.get_path("stdlib"), library / version, ignore=shutil.ignore_patterns(*_LEFT_OUT.split()))
    # Next to the standard library and not in it: the image's own Python gets this folder alone on its path.
    shutil.copytree(package, target / "packages" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    (library / version / package.name).symlink_to(Path("..", "..", "packages", package.name))
    program = target / "bin" / "python3"
    program.parent.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), program)
    extensions = [*(library / version / "lib-dynload").glob("*.so")]
    needed = libraries([program, *extensions])
    for name, path in needed.items():
        shutil.copy2(path, library / name)
    [loader] = [name for name in needed if name.startswith("ld-")]
    patch(program, "--set-interpreter", f"{home}/lib/{loader}", "--force-rpath", "--set-rpath", f"{home}/lib")
    for file in (*extensions, *(library / name for name in needed)):
        # A place of its own to look in would count for more than the program's.
        if patch(file, "--print-rpath"):
            patch(file, "--remove-rpath")
    # It becomes the one that can't be read once it is where it will lie: what can't be read can't be copied.
    shutil.copy2(program, program.with_name("shielded-python3"))
    # Copies have times of their own, so the compiled files must not depend on them.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    for folder in (library / version, target / "packages"):
        if not compileall.compile_dir(folder, quiet=1, invalidation_mode=unchecked):
            raise SystemExit(f"{folder} could not be compiled")


def patch(file: Path, *options: str) -> str:
    """Call patchelf and return its output."""
    return subprocess.run(["patchelf", *options, str(file)], check=True, capture_output=True, text=True).stdout.strip()


def libraries(files: list[Path]) -> dict[str, Path]:
    """Return the shared libraries that these files need, the loader too, by name."""
    found: dict[str, Path] = {}
    for file in files:
        output = subprocess.run(["ldd", str(file)], check=True, capture_output=True, text=True).stdout
        if "not found" in output:
            raise SystemExit(f"{file} needs a library that is not here:\n{output}")
        found |= {
            Path(path).name: Path(path).resolve() for path in re.findall(r"(?:=> |^\s)(/\S+)", output, re.MULTILINE)
        }
    return found


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
