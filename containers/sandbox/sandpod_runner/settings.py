"""What the pod's template or the local backend asks of the runner, read once from its environment.

None of these names reaches a program.
"""

import resource
from collections.abc import Mapping
from dataclasses import dataclass

from sandpod_runner.processes.languages import CommandLanguage, read_languages


class SettingsError(ValueError):
    """A variable of the environment can't be used; says which and what it takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The runner's settings. Sizes are bytes; None is no limit."""

    workspace: str = "/workspace"  # SANDPOD_WORKSPACE, the folder that files are served from and programs start in
    memory_limit: int | None = None  # SANDPOD_MEMORY_LIMIT, where no cgroup says it: the local backend
    processes: int | None = None  # SANDPOD_PROCESSES, of the user in all
    open_files: int | None = None  # SANDPOD_OPEN_FILES, of one process
    run_timeout: int | None = None  # SANDPOD_RUN_TIMEOUT, seconds that a run takes at most, whatever it asks for
    output_bytes: int | None = None  # SANDPOD_OUTPUT_BYTES, what a run may write at most, whatever it asks for
    # SANDPOD_WORKSPACE_BYTES, what the folder holds at most; on a disk no file may be larger.
    workspace_bytes: int | None = None
    # SANDPOD_IN_MEMORY, folders by comma whose files take the sandbox's memory; mounts may not show it.
    in_memory: tuple[str, ...] = ()
    preimport: tuple[str, ...] = ()  # SANDPOD_PREIMPORT, Python modules by comma, imported once so that runs need not
    # SANDPOD_PROBES, `host:port` by comma, which must not be reachable from here.
    probes: tuple[tuple[str, int], ...] = ()
    # SANDPOD_PROBE_INTERVAL, seconds between two later looks whether they are; None is never.
    probe_interval: int | None = None
    allow_open_network: bool = False  # SANDPOD_ALLOW_OPEN_NETWORK=1, serve even where they are
    # SANDPOD_CLOSED_NETWORK=1, programs have no network: what they want of one is refused at once.
    closed_network: bool = False
    # SANDPOD_PYTHON, what the image's own Python is called, where the runner has one for itself.
    python: str | None = None
    languages: tuple[CommandLanguage, ...] = ()  # SANDPOD_LANGUAGES, the template's languages as JSON
    # SANDPOD_SKELETON, a folder whose files are linked into the programs' home at the start.
    skeleton: str | None = None

    def rlimits(self, *, on_disk: bool) -> list[tuple[int, int]]:
        """Return the limits of each program's process: resource and value.

        A workspace in memory keeps its size by itself, and a file there may have holes.
        """
        wanted = (
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_FSIZE, self.workspace_bytes if on_disk else None),
            (resource.RLIMIT_CORE, 0),
        )
        return [(kind, value) for kind, value in wanted if value is not None]


def read_settings(env: Mapping[str, str]) -> Settings:
    """Return the settings that the environment holds. Raises SettingsError: A value is malformed."""
    return Settings(
        workspace=env.get("SANDPOD_WORKSPACE") or "/workspace",
        memory_limit=_number(env, "SANDPOD_MEMORY_LIMIT"),
        processes=_number(env, "SANDPOD_PROCESSES"),
        open_files=_number(env, "SANDPOD_OPEN_FILES"),
        run_timeout=_number(env, "SANDPOD_RUN_TIMEOUT"),
        output_bytes=_number(env, "SANDPOD_OUTPUT_BYTES"),
        workspace_bytes=_number(env, "SANDPOD_WORKSPACE_BYTES"),
        in_memory=_words(env, "SANDPOD_IN_MEMORY"),
        preimport=_words(env, "SANDPOD_PREIMPORT"),
        probes=tuple(_endpoint(word) for word in _words(env, "SANDPOD_PROBES")),
        probe_interval=_number(env, "SANDPOD_PROBE_INTERVAL"),
        allow_open_network=env.get("SANDPOD_ALLOW_OPEN_NETWORK") == "1",
        closed_network=env.get("SANDPOD_CLOSED_NETWORK") == "1",
        python=env.get("SANDPOD_PYTHON") or None,
        languages=_languages(env.get("SANDPOD_LANGUAGES", "")),
        skeleton=env.get("SANDPOD_SKELETON") or None,
    )


def _languages(text: str) -> tuple[CommandLanguage, ...]:
    try:
        return read_languages(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"SANDPOD_LANGUAGES can't be used: {error}") from error


def _words(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in env.get(name, "").split(",") if word.strip())


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or not text.isascii() or int(text) == 0:
        raise SettingsError(f"{name} is {text!r}: set it to a whole number over 0, or leave it out")
    return int(text)


def _endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise SettingsError(f"SANDPOD_PROBES has {text!r}: write each as host:port")
    return host.strip("[]"), int(port)
