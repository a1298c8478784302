"""When memory counts as running out, and how soon the next look is."""

from pathlib import Path

import pytest

from sandpod_runner.limits import memory
from sandpod_runner.limits.memory import Watch

MIB = 1024 * 1024


class Figures:
    """Memory in use that the test sets, and a watch over it."""

    def __init__(self, limit: int) -> None:
        self.value = 0
        self.watch = Watch(limit, self.used)

    def used(self, over: int) -> int:
        assert over <= self.watch.limit
        return self.value


def kind(watch: Watch | None) -> str:
    """Return the name of the function that made a watch."""
    assert watch is not None
    return watch._used_over.__qualname__.partition(".")[0]


@pytest.mark.parametrize(
    ("limit", "line"),
    [(512 * MIB, 512 * MIB - 512 * MIB // 20), (256 * MIB, 232 * MIB), (4096 * MIB, 4096 * MIB - 4096 * MIB // 20)],
)
def test_line_is_a_twentieth_or_24_mib_below_the_limit(limit: int, line: int) -> None:
    figures = Figures(limit)
    watch = figures.watch
    watch.rest()
    figures.value = line
    assert watch.look()[0] is False
    figures.value = line + 1
    assert watch.look()[0] is True


def test_files_that_fill_the_memory_leave_the_next_run_half_of_what_is_left() -> None:
    figures = Figures(512 * MIB)
    watch = figures.watch
    figures.value = 508 * MIB
    watch.rest()
    assert watch.look()[0] is False
    figures.value = 511 * MIB
    assert watch.look()[0] is True


def test_looks_come_sooner_the_nearer_the_line_is() -> None:
    figures = Figures(2048 * MIB)
    watch = figures.watch
    watch.rest()
    pauses = []
    for used in (0, 1000, 1800, 1930, 1945):
        figures.value = used * MIB
        pauses.append(watch.look()[1])
    assert pauses == sorted(pauses, reverse=True)
    assert 0.002 <= pauses[-1] < pauses[0] <= 0.25


def files(folder: Path, names: dict[str, str]) -> list[str]:
    for name, text in names.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in names]


def test_cache_that_can_be_dropped_is_not_counted_once_it_matters(tmp_path: Path) -> None:
    paths = files(
        tmp_path,
        {
            "max": "1000\n",
            "current": "900\n",
            "stat": "anon 300\ninactive_file 200\nactive_file 100\n",
            "events": "oom_kill 3\n",
        },
    )
    watch = memory.cgroup_watch(
        1000, paths[1], paths[2], paths[3], ("inactive_file", "active_file", "slab_reclaimable")
    )
    assert watch._used_over(950) == 900
    assert watch._used_over(800) == 600
    assert watch.kills() == 3


def groups(folder: Path, limit: str, *, stat: bool = True) -> str:
    """Lay a cgroup of version 2 out and return the folder that it is in."""
    stats = {"memory.stat": "inactive_file 0\n", "memory.events": "oom_kill 0\n"} if stat else {}
    files(folder, {"memory.max": limit, "memory.current": f"{MIB}\n", **stats})
    return str(folder)


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n", "", "x\n"])
def test_group_without_a_limit_is_not_watched_unless_the_settings_have_one(tmp_path: Path, text: str) -> None:
    base = groups(tmp_path, text)
    assert memory.find_watch(None, [], base=base) is None
    assert kind(memory.find_watch(100 * MIB, [], base=base)) == "process_watch"


@pytest.mark.parametrize("settings", [None, 300 * MIB, 512 * MIB])
def test_groups_own_limit_counts_where_it_is_no_larger(tmp_path: Path, settings: int | None) -> None:
    watch = memory.find_watch(settings, [], base=groups(tmp_path, f"{300 * MIB}\n"))
    assert watch is not None
    assert watch.limit == 300 * MIB
    assert kind(watch) == "cgroup_watch"


def test_kernel_that_counts_but_does_not_limit_is_held_to_the_settings(tmp_path: Path) -> None:
    base = groups(tmp_path, f"{20_000 * MIB}\n", stat=False)
    assert memory.find_watch(None, [], base=base) is None
    watch = memory.find_watch(512 * MIB, [], base=base)
    assert watch is not None
    assert watch.limit == 512 * MIB
    assert kind(watch) == "gvisor_watch"
    assert watch.kills() == 0


@pytest.mark.parametrize("folders", [[], ["/dev/shm"]])
def test_kernel_that_counts_files_it_maps_has_them_taken_off_and_its_own_share_added(
    tmp_path: Path, folders: list[str]
) -> None:
    """What a file system in memory holds that the sandbox itself sees is in its kernel's figures already."""
    usage, meminfo = files(tmp_path, {"usage": f"{300 * MIB}\n", "meminfo": f"Cached: 9 kB\nMapped: {90 * 1024} kB\n"})
    watch = memory.gvisor_watch(1024 * MIB, usage, folders, meminfo)
    assert watch._used_over(500 * MIB) == (300 + 128) * MIB
    assert watch._used_over(400 * MIB) == (300 + 128 - 90) * MIB


def test_files_in_folders_that_are_said_to_be_in_memory_are_added_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, meminfo = files(tmp_path, {"usage": "0\n", "meminfo": "MemTotal: 1 kB\n"})
    monkeypatch.setattr(memory, "_folder_bytes", {str(tmp_path): 7 * MIB}.__getitem__)
    watch = memory.gvisor_watch(512 * MIB, usage, [str(tmp_path), str(tmp_path)], meminfo)
    assert watch._used_over(0) == (96 + 7) * MIB


def test_figures_that_can_not_be_read_stop_nothing(tmp_path: Path) -> None:
    watch = memory.cgroup_watch(512 * MIB, str(tmp_path / "missing"), "", "", ())
    watch.rest()
    assert watch.look()[0] is False
    assert watch.kills() == 0


def test_folders_on_a_disk_are_not_counted_as_memory() -> None:
    assert memory.process_watch(MIB, ["/proc"])._used_over(0) > 0
