"""Finds files of the workspace and nothing outside it, whatever links the sandbox's programs have made.

A path is opened first and checked afterwards: the kernel reports where the open file is, so no link can change between
check and use. A walk has one folder open at a time, however many there are and however deep they lie.
"""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

from sandpod_runner.ipc.descriptors import closing
from sandpod_runner.protocol.errors import Refusal
from sandpod_runner.protocol.fields import require
from sandpod_runner.protocol.messages import HIDDEN
from sandpod_runner.protocol.paths import unspell

_OUTSIDE: Final = "The path leads out of the workspace."
_RESERVED: Final = f"The folder {HIDDEN} is the sandbox's own: use another name."
_MAX_PATH: Final = 4096
_DELETED: Final = " (deleted)/"
_require: Final = partial(require, code="invalid_path")
_O_PATH: Final = os.O_PATH | os.O_CLOEXEC
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL: Final = ".sandpod-part-"  # how names of files begin that are still being written


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a folder that was checked."""

    folder: int  # an open descriptor of it
    name: str  # the last part of the path, which may be a link or not exist

    def stat(self) -> os.stat_result:
        """Return what the name stands for, as from `lstat`. Raises FileNotFoundError and other errors of the system."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def exists(self) -> bool:
        """Return whether the name stands for anything."""
        with contextlib.suppress(FileNotFoundError):
            self.stat()
            return True
        return False


class Workspace:
    """The folder that files are served from."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)

    def relative(self, path: Any) -> str:
        """Return a path relative to the workspace, without dots; `.` is itself. Raises Refusal: invalid_path."""
        is_path = isinstance(path, str) and path and "\0" not in path
        _require(is_path, "The path is empty or has a NUL character in it.")
        try:
            size = len(os.fsencode(path))
        except UnicodeEncodeError as error:
            raise Refusal("invalid_path", "The path has characters that no file name can have.") from error
        _require(size <= _MAX_PATH, "The path is too long.")
        normal: str = os.path.normpath(path)
        if os.path.isabs(normal):
            normal = os.path.relpath(normal, self.root)
        _require(normal != ".." and not normal.startswith("../"), _OUTSIDE)
        _require(normal != HIDDEN and not normal.startswith(f"{HIDDEN}/"), _RESERVED)
        return normal

    def open(self, path: Any) -> int:
        """Return a descriptor (O_PATH) of what is at a path, links followed. Raises Refusal: invalid_path; OSError."""
        return self._checked(os.open(os.path.join(self.root, self.relative(path)), _O_PATH))

    def open_folder(self, path: Any) -> int:
        """Return a descriptor (O_PATH) of a folder. Raises Refusal: invalid_path; OSError: There is none."""
        fd = self.open(path)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refusal("invalid_path", "The path is not a folder.")
        return fd

    def location(self, folder: int, name: str = "") -> str:
        """Return the path of an open folder of the workspace, or of a name in it: relative, without links."""
        return os.path.join(_location(folder), name).removeprefix(self.root).strip("/")

    def folder_path(self, path: Any) -> str:
        """Return the real path of a folder, spelled as in a frame. Raises Refusal: invalid_path; OSError."""
        self.restore()
        with closing(self.open_folder(unspell(path) if isinstance(path, str) else path)) as fd:
            return _location(fd)

    def restore(self) -> None:
        """Make the workspace again where a program has removed it, or closed it to its own user."""
        with contextlib.suppress(OSError):
            os.makedirs(self.root, exist_ok=True)
        make_usable(self.root)

    @contextlib.contextmanager
    def place(self, path: Any, *, create: bool = False) -> Iterator[Place]:
        """Yield the checked folder of a path, and the name in it. Raises Refusal: invalid_path; OSError."""
        relative = self.relative(path)
        _require(relative != ".", "That is the workspace itself.")
        parent, name = os.path.split(relative)
        with closing(self._make_folders(parent) if create else self.open_folder(parent or ".")) as folder:
            yield Place(folder, name)

    def _make_folders(self, parent: str) -> int:
        folder = self.open_folder(".")
        for part in filter(None, parent.split("/")):
            with closing(folder):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
                # A link to a folder inside is followed, and the folder it leads to is checked like any other.
                folder = self._checked(os.open(part, _O_PATH | os.O_DIRECTORY, dir_fd=folder))
        return folder

    def _checked(self, fd: int) -> int:
        location, own = f"{_location(fd)}/", f"{self.root}/"
        if not location.startswith(own):
            refusal = Refusal("invalid_path", _OUTSIDE)
        elif location.startswith(f"{own}{HIDDEN}/"):
            refusal = Refusal("invalid_path", _RESERVED)
        elif location.endswith(_DELETED) and os.fstat(fd).st_nlink == 0:
            refusal = Refusal("not_found", "There is no such file or folder.")
        else:
            return fd
        os.close(fd)
        raise refusal


@dataclass(slots=True)
class Entry:
    """What a folder holds."""

    path: str  # relative to the root
    name: str
    folder: int  # a descriptor of the folder that it is in, open until the next entry is asked for
    info: os.stat_result  # as from `lstat`

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.info.st_mode)


@dataclass(slots=True)
class Walk:
    """What is in a folder and, folder by folder, below it. Links are not followed."""

    root: str
    top: str = ""  # where to begin, relative to the root
    _: KW_ONLY
    public: bool = False  # leave out the runner's own folder, and files that are still being written
    skip: Collection[str] = ()  # names of folders that are left out with all below them
    device: int | None = None  # the only file system whose entries count
    recursive: bool = True
    ordered: bool = False  # read each folder as a whole, and sort it by name
    repair: bool = False  # take the rights over folders that are closed to their own user
    missed: OSError | None = None  # set to why a folder that is still there could not be looked into, if one could not

    def __iter__(self) -> Iterator[Entry]:
        """Yield what there is."""
        todo = [self.top]
        while todo:
            where = todo.pop()
            try:
                folder = self._open(where)
            except (FileNotFoundError, NotADirectoryError):
                continue  # a program was quicker
            except OSError as error:
                self.missed = error
                continue
            deeper: list[str] = []
            with closing(folder), os.scandir(folder) as found:
                for each in sorted(found, key=lambda entry: entry.name) if self.ordered else found:
                    entry = self._entry(folder, f"{where}/{each.name}" if where else each.name, each)
                    if entry is None:
                        continue
                    if not (self.public and entry.name.startswith(PARTIAL)):
                        yield entry
                    if self.recursive and entry.is_folder:
                        deeper.append(entry.path)
            todo += reversed(deeper)

    def _entry(self, folder: int, path: str, found: "os.DirEntry[str]") -> Entry | None:
        if self.public and path == HIDDEN:
            return None
        try:
            entry = Entry(path, found.name, folder, found.stat(follow_symlinks=False))
        except OSError:
            return None  # removed meanwhile
        is_left_out = self.device not in {None, entry.info.st_dev} or (entry.is_folder and found.name in self.skip)
        return None if is_left_out else entry

    def _open(self, where: str) -> int:
        path = os.path.join(self.root, where)
        if self.repair:
            with closing(self._checked(os.open(path, os.O_PATH | _FOLDER))) as fd:
                make_usable(f"/proc/self/fd/{fd}")
        return self._checked(os.open(path, os.O_RDONLY | _FOLDER))

    def _checked(self, fd: int) -> int:
        if not f"{_location(fd)}/".startswith(f"{self.root}/"):
            os.close(fd)
            raise NotADirectoryError
        return fd


def make_usable(folder: str) -> None:
    """Restore the user's rights over a folder, where a program has taken them away."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.stat(folder).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(folder, mode | stat.S_IRWXU)


def reopen(fd: int, flags: int) -> int:
    """Return a readable descriptor of the same regular file or folder. Raises OSError: It may not be read."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def _location(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
