"""The settings that the pod's template or the local backend gives the runner. None of them reaches a program."""

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from sandpod_runner.limits.network import Endpoint
from sandpod_runner.processes.environment import CommandLanguage, read_languages


class SettingsError(ValueError):
    """A variable of the environment is malformed; the message names it and what it takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The runner's settings. Sizes are bytes; None is no limit. Each is read from SANDPOD_ and its name in capitals."""

    workspace: str = "/workspace"  # the folder that files are served from and programs start in
    memory_limit: int | None = None  # where no cgroup sets one: the local backend
    processes: int | None = None  # of the user, in total
    open_files: int | None = None  # of one process
    run_timeout: int | None = None  # seconds that a run takes at most, whatever it asks for
    output_bytes: int | None = None  # what a run may write at most, whatever it asks for
    workspace_bytes: int | None = None  # what the workspace holds at most
    packages: str | None = None  # the folder that added packages go to; None is ~/.local itself
    packages_bytes: int | None = None  # what it holds at most
    in_memory: tuple[str, ...] = ()  # folders, comma-separated, whose files take memory though mounts may not show it
    preimport: tuple[str, ...] = ()  # Python modules, comma-separated, imported once so that runs need not
    probes: tuple[Endpoint, ...] = ()  # `host:port`, comma-separated, which must not be reachable from here
    probe_interval: int | None = None  # seconds between later probes; None is never
    allow_open_network: bool = False  # 1: serve even where they are
    closed_network: bool = False  # 1: programs have no network, and connections are refused at once
    python: str | None = None  # the name of the image's own Python, where the runner brings one for itself
    languages: tuple[CommandLanguage, ...] = ()  # the template's languages as JSON
    skeleton: str | None = None  # a folder whose files are linked into the programs' home at the start

    def rlimits(self, *, on_disk: bool) -> list[tuple[int, int]]:
        """Return the limits of each program's process: resource and value."""
        # In memory the file system keeps the workspace's size, and a file may have holes. Else one of a package may be
        # larger than the workspace.
        file_size = max(self.workspace_bytes or 0, self.packages_bytes or 0) if on_disk else 0
        wanted = (
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_FSIZE, file_size or None),
            (resource.RLIMIT_CORE, 0),
        )
        return [(kind, value) for kind, value in wanted if value is not None]


def read_settings(env: Mapping[str, str]) -> Settings:
    """Return the settings that the environment holds. Raises SettingsError: A value is malformed."""
    values = {}
    for field in fields(Settings):
        name = f"SANDPOD_{field.name.upper()}"
        if text := env.get(name):
            try:
                values[field.name] = _READERS[field.type](text)
            except (ValueError, RecursionError) as error:
                raise SettingsError(f"{name} can't be used: {error}") from error
    return Settings(**values)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) == 0:
        raise ValueError(f"{text!r} is not a whole number over 0; leave it out for no limit")
    return int(text)


def _endpoints(text: str) -> tuple[Endpoint, ...]:
    found = []
    for word in _words(text):
        host, _, port = word.rpartition(":")
        if not host or not port.isdecimal() or int(port) not in range(1, 65536):  # of more the system keeps 16 bits
            raise ValueError(f"{word!r} is not host:port")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


_READERS: Final[Mapping[Any, Callable[[str], Any]]] = {
    str: str,
    str | None: str,
    int | None: _number,
    bool: lambda text: text == "1",
    tuple[str, ...]: _words,
    tuple[Endpoint, ...]: _endpoints,
    tuple[CommandLanguage, ...]: read_languages,
}
