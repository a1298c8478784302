"""`sandpod ls` and `sandpod cp`: files of a sandbox, whose names are not trusted, listed and copied both ways."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sandpod.blocking import Sandbox
from sandpod.cli.arguments import DEFAULT, server
from sandpod.cli.output import Progress, print_json, print_table, printable, say
from sandpod.errors import InvalidArgumentError, LimitError, NotFoundError, SandpodError

_REMOTE: Final = re.compile(r"([^/:]*):(.*)", re.DOTALL)  # as scp: a colon before the first slash


@dataclass(frozen=True, slots=True)
class Remote:
    """A path in a sandbox."""

    sandbox: str
    path: str


def add_parsers(commands: Any, options: argparse.ArgumentParser) -> None:
    """Add the commands to the parser's subcommands."""
    listing = commands.add_parser("ls", help="list files of a sandbox", parents=[options])
    listing.add_argument(
        "path", nargs="?", default=":", metavar="[SANDBOX:]PATH", help="folder; default: the workspace"
    )
    listing.add_argument("-r", "--recursive", action="store_true", help="include what is in its subfolders")
    listing.add_argument("-l", "--long", action="store_true", help="with sizes and times")
    listing.set_defaults(command=list_files)
    copy = commands.add_parser("cp", help="copy files and folders into a sandbox, or out of it", parents=[options])
    copy.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="path here, or SANDBOX:PATH; :PATH is your default one"
    )
    copy.add_argument("target", metavar="TARGET", help="the same")
    copy.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    copy.set_defaults(command=copy_files)


def list_files(arguments: argparse.Namespace) -> int:
    """List files."""
    where = parsed(arguments.path) or Remote(DEFAULT, arguments.path)
    with Sandbox.connect(where.sandbox, **server(arguments)) as sandbox:
        entries = sandbox.files.list(where.path or ".", recursive=arguments.recursive)
    if arguments.json:
        print_json(entries)
    elif arguments.long:
        print_table(
            ("KIND", "SIZE", "MODIFIED", "PATH"),
            [(each.kind, each.size, each.modified_at, each.path) for each in entries],
        )
    else:
        for each in entries:
            print(printable(each.path) + ("/" if each.kind == "directory" else ""))  # noqa: T201
    return 0


def copy_files(arguments: argparse.Namespace) -> int:
    """Copy each source."""
    target, sources = parsed(arguments.target), [(each, parsed(each)) for each in arguments.sources]
    sandboxes = {each.sandbox for _, each in sources if each is not None} | ({target.sandbox} if target else set())
    if len(sandboxes) != 1 or any((remote is None) == (target is None) for _, remote in sources):
        step = "One side is in a sandbox, written SANDBOX:PATH (:PATH for your default one), the other is here."
        raise _wrong("Files are copied into one sandbox, or out of it.", step)
    copied = []
    with Sandbox.connect(sandboxes.pop(), **server(arguments)) as sandbox:
        copy = _Copy(sandbox, quiet=arguments.quiet or arguments.json, several=len(sources) > 1)
        for name, remote in sources:
            if remote is None and target is not None:
                copied += list(copy.upload(Path(name), target.path))
            elif remote is not None:
                copied += list(copy.download(remote.path, Path(arguments.target)))
    if arguments.json:
        print_json([{"source": source, "target": where} for source, where in copied])
    return 0


def parsed(text: str) -> Remote | None:
    """Return the path in a sandbox that a text names, or None for one of this machine."""
    found = _REMOTE.fullmatch(text)
    return Remote(found[1] or DEFAULT, found[2]) if found else None


class _Copy:
    def __init__(self, sandbox: Sandbox, *, quiet: bool, several: bool) -> None:
        self._sandbox = sandbox
        self._quiet = quiet
        self._several = several

    def upload(self, source: Path, target: str) -> Iterator[tuple[str, str]]:
        """Copy a file or folder into the sandbox; give what went where."""
        if not source.exists():
            raise _wrong(f"There is no {str(source)!r} here.", "Name a file or folder.")
        into = self._several or target in {"", "."} or target.endswith("/") or self._is_folder(target)
        base = str(PurePosixPath(target) / source.resolve().name) if into else target
        if not source.is_dir():
            yield self._put(source, base)
            return
        paths = sorted(source.rglob("*"))
        filled = {path.parent for path in paths}
        for path in (source, *paths):
            place = f"{base}/{path.relative_to(source).as_posix()}".removesuffix("/.")
            if path.is_symlink() and path != source:
                say(f"{path} is left out: it is no file.")
            elif path.is_file():
                yield self._put(path, place)
            elif not path.is_dir():
                say(f"{path} is left out: it is no file.")
            elif path not in filled:  # a file makes the folders that it is in
                self._sandbox.files.make_directory(place)
                yield str(path), place

    def download(self, source: str, target: Path) -> Iterator[tuple[str, str]]:
        """Copy a file or folder out of the sandbox; give what went where."""
        name = PurePosixPath(source).name
        if not self._is_folder(source):
            yield self._get(source, _below(target, name) if self._several or target.is_dir() else target)
            return
        base = _below(target, name) if name and (self._several or target.is_dir()) else target
        yield from self._download_folder(source or ".", base)

    def _download_folder(self, source: str, target: Path) -> Iterator[tuple[str, str]]:
        """Copy what is in a folder, one folder after the other: a list of all would be too long."""
        folders = [(source, target)]
        while folders:
            source, target = folders.pop()
            _make(target)
            entries = self._sandbox.files.list(source)
            if not entries:
                yield source, str(target)
            for entry in entries:
                place = _below(target, PurePosixPath(entry.path).name)
                if entry.kind == "directory":
                    folders.append((entry.path, place))
                elif entry.kind == "file":
                    yield self._get(entry.path, place)
                else:
                    say(f"{entry.path} is left out: it is no file.")

    def _put(self, source: Path, target: str) -> tuple[str, str]:
        progress = Progress(str(source), quiet=self._quiet)
        try:
            self._sandbox.files.upload(source, target, on_progress=progress)
        finally:
            progress.end()
        return str(source), target

    def _get(self, source: str, target: Path) -> tuple[str, str]:
        progress = Progress(source, quiet=self._quiet)
        try:
            self._sandbox.files.download(source, target, on_progress=progress)
        finally:
            progress.end()
        return source, str(target)

    def _is_folder(self, path: str) -> bool:
        try:
            self._sandbox.files.list(path or ".")
        except (NotFoundError, InvalidArgumentError):
            return False
        except LimitError:
            pass  # there are too many files in it for a list
        return True


def _below(folder: Path, name: str) -> Path:
    """Return a path in a folder of this machine, for a name of a sandbox. Raises SandpodError: it would lead out."""
    path = folder / name
    if name in {"", ".", ".."} or "/" in name or "\0" in name or (path.is_symlink() and path.is_dir()):
        raise _wrong(f"The name {name!r} would lead out of {str(folder)!r}.", "Copy what has it by itself.")
    return path


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _wrong(f"The folder {str(folder)!r} can't be made: {error.strerror}.", "Choose another one.") from error


def _wrong(message: str, step: str) -> SandpodError:
    return InvalidArgumentError("invalid_argument", message, step)
