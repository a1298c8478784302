"""Goes through the folders of the workspace, whatever programs change in it meanwhile.

One folder is open at a time, however many there are and however deep they lie. Each is opened by its path and looked at
then: the kernel says where it is, so that a folder which a program swaps for a link leads nowhere.
"""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from sandpod_runner.files.workspace import make_usable
from sandpod_runner.ipc.descriptors import closing
from sandpod_runner.protocol.messages import HIDDEN

PARTIAL: Final = ".sandpod-part-"  # how names of files begin that are still being written
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
        for each in sorted(found, key=lambda entry: entry.name) if self.ordered else found:
            path = prefix + each.name
            if self.public and path == HIDDEN:
                continue
            try:
                entry = Entry(path, each.name, folder, each.stat(follow_symlinks=False))
            except OSError:
                continue  # removed meanwhile
            if self.device not in {None, entry.info.st_dev} or (entry.is_folder and each.name in self.skip):
                continue
            if not (self.public and each.name.startswith(PARTIAL)):
                yield entry
            if self.recursive and entry.is_folder:
                deeper.append(path)

    def _open(self, where: str) -> int:
        path = os.path.join(self.root, where)
        if self.repair:
            with closing(self._checked(os.open(path, os.O_PATH | _FLAGS))) as fd:
                make_usable(f"/proc/self/fd/{fd}")
        return self._checked(os.open(path, os.O_RDONLY | _FLAGS))

    def _checked(self, fd: int) -> int:
        location = os.readlink(f"/proc/self/fd/{fd}")
        if location != self.root and not location.startswith(f"{self.root}/"):
            os.close(fd)
            raise NotADirectoryError
        return fd
