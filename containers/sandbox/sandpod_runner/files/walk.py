"""Goes through the folders of the workspace, whatever programs change in it meanwhile.

One folder is open at a time, however many there are and however deep they lie. Each is opened by its path and looked at
then: the kernel says where it is, so that a folder which a program swaps for a link leads nowhere.
"""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from sandpod_runner.files.workspace import make_usable
from sandpod_runner.ipc.descriptors import closing

_FLAGS: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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


class Walk:
    """What is in a folder and, folder by folder, below it. Links are not followed.

    `top` is where to begin, relative to the root. `without` are paths that are left out with all below them, `skip`
    names of such folders, `device` is the only file system whose entries count. With `ordered` each folder is read as a
    whole and sorted by name; `repair` takes the rights over folders that are closed to their own user.
    """

    def __init__(
        self,
        root: str,
        top: str = "",
        *,
        without: Collection[str] = (),
        skip: Collection[str] = (),
        device: int | None = None,
        recursive: bool = True,
        ordered: bool = False,
        repair: bool = False,
    ) -> None:
        self._root = root
        self._top = top
        self._without = without
        self._skip = skip
        self._device = device
        self._recursive = recursive
        self._ordered = ordered
        self._repair = repair
        self.missed: OSError | None = None
        """Why a folder that is still there could not be looked into, if one could not."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield what there is."""
        todo = [self._top]
        while todo:
            where = todo.pop()
            deeper: list[str] = []
            try:
                folder = self._open(where)
            except (FileNotFoundError, NotADirectoryError):
                continue  # a program was quicker
            except OSError as error:
                self.missed = error
                continue
            with closing(folder), os.scandir(folder) as found:
                yield from self._entries(folder, f"{where}/" if where else "", found, deeper)
            todo += reversed(deeper)

    def _entries(
        self, folder: int, prefix: str, found: "os._ScandirIterator[str]", deeper: list[str]
    ) -> Iterator[Entry]:
        for each in sorted(found, key=lambda entry: entry.name) if self._ordered else found:
            path = prefix + each.name
            if path in self._without:
                continue
            try:
                entry = Entry(path, each.name, folder, each.stat(follow_symlinks=False))
            except OSError:
                continue  # removed meanwhile
            if self._device not in {None, entry.info.st_dev} or (entry.is_folder and each.name in self._skip):
                continue
            yield entry
            if self._recursive and entry.is_folder:
                deeper.append(path)

    def _open(self, where: str) -> int:
        path = os.path.join(self._root, where)
        if self._repair:
            with closing(self._checked(os.open(path, os.O_PATH | _FLAGS))) as fd:
                make_usable(f"/proc/self/fd/{fd}")
        return self._checked(os.open(path, os.O_RDONLY | _FLAGS))

    def _checked(self, fd: int) -> int:
        location = os.readlink(f"/proc/self/fd/{fd}")
        if location != self._root and not location.startswith(f"{self._root}/"):
            os.close(fd)
            raise NotADirectoryError
        return fd
