"""The runner's settings and the environment that it builds for programs."""

import resource
from pathlib import Path

import pytest

from sandpod_api import names
from sandpod_runner.ipc.home import added_packages
from sandpod_runner.processes.environment import build_environment, count_cpus, find_program, prepare_home
from sandpod_runner.settings import Settings, SettingsError, read_settings


def test_settings_have_the_names_that_the_operator_writes() -> None:
    env = {
        names.ENV_PROBES: "10.96.0.1:443, [fd00::1]:6443",
        names.ENV_PREIMPORT: "numpy, pandas",
        names.ENV_PROCESSES: "64",
        names.ENV_OPEN_FILES: "1024",
        names.ENV_RUN_TIMEOUT: "600",
        names.ENV_OUTPUT_BYTES: "4096",
        names.ENV_WORKSPACE_BYTES: "1000",
        names.ENV_PACKAGES: names.PACKAGES,
        names.ENV_PACKAGES_BYTES: "900",
    }
    settings = read_settings(env)
    assert settings.probes == (("10.96.0.1", 443), ("fd00::1", 6443))
    assert (settings.run_timeout, settings.output_bytes) == (600, 4096)
    assert settings.preimport == ("numpy", "pandas")
    assert (settings.packages, settings.packages_bytes) == ("/packages", 900)
    assert settings.rlimits(on_disk=True) == [
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_FSIZE, 1000),
        (resource.RLIMIT_CORE, 0),
    ]


def test_nothing_set_is_no_limit_but_no_core_either() -> None:
    assert read_settings({}) == Settings()
    assert Settings().rlimits(on_disk=True) == [(resource.RLIMIT_CORE, 0)]


@pytest.mark.parametrize("value", ["many", "-1", "0", "1.5", "1k", "²"])
def test_number_that_is_none_is_refused_by_name(value: str) -> None:
    with pytest.raises(SettingsError, match="SANDPOD_PROCESSES"):
        read_settings({"SANDPOD_PROCESSES": value})


@pytest.mark.parametrize("value", ["10.0.0.1", ":443", "host:", "host:https", "host:0", "host:70000"])
def test_probe_without_host_or_port_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        read_settings({"SANDPOD_PROBES": value})


def test_environment_takes_over_only_what_is_named() -> None:
    outer = {"PATH": "/opt/bin", "NODE_PATH": "/n", "HOME": "/root", "SECRET": "x", "KUBERNETES_PORT": "y", "TZ": ""}
    env = build_environment(outer, tmp="/tmp", cpus=2, offline=False)
    assert env["PATH"] == "/tmp/home/.local/bin:/opt/bin"
    assert (env["HOME"], env["OMP_NUM_THREADS"]) == ("/tmp/home", "2")
    assert env["NODE_PATH"] == "/tmp/home/.local/lib/node_modules:/n"
    assert not {"SECRET", "KUBERNETES_PORT", "TZ"} & env.keys()
    assert build_environment({}, tmp="/tmp", cpus=1, offline=False)["PATH"]


def test_home_is_made_with_links_to_the_images_files(tmp_path: Path) -> None:
    skeleton = tmp_path / "skeleton"
    (skeleton / ".config" / "matplotlib").mkdir(parents=True)
    (skeleton / ".config" / "matplotlib" / "fonts.json").write_text("{}")
    (skeleton / ".local").mkdir()
    (skeleton / ".local" / "library").symlink_to("/usr/lib")
    env = build_environment({}, tmp=str(tmp_path), cpus=1, offline=False)
    for _ in range(2):
        prepare_home(env, str(skeleton))
    linked = Path(env["MPLCONFIGDIR"]) / "fonts.json"
    assert linked.is_symlink()
    assert linked.read_text() == "{}"
    assert (tmp_path / "home" / ".local" / "library").readlink() == skeleton / ".local" / "library"
    assert Path(env["XDG_CACHE_HOME"]).is_dir()


def test_packages_lie_in_a_folder_of_their_own_where_there_is_one(tmp_path: Path) -> None:
    room, skeleton = tmp_path / "room", tmp_path / "skeleton"
    room.mkdir()
    (skeleton / ".local/lib/node_modules").mkdir(parents=True)
    (skeleton / ".local/lib/node_modules/own").symlink_to("/usr/lib")
    env = build_environment({}, tmp=str(tmp_path), cpus=1, offline=False)
    for _ in range(2):
        prepare_home(env, str(skeleton), str(room))
    assert (tmp_path / "home" / ".local").readlink() == room
    assert Path(added_packages(env["HOME"])).resolve().is_relative_to(room)
    assert (room / "lib/node_modules/own").is_symlink()


def test_home_that_can_not_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("in the way")
    prepare_home(build_environment({}, tmp=str(tmp_path), cpus=1, offline=False), None)
    assert (tmp_path / "home").is_file()


def test_program_is_found_on_the_path_in_order_of_preference(tmp_path: Path) -> None:
    for name, mode in (("sh", 0o755), ("bash", 0o644)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    assert find_program(("bash", "sh"), f"/nosuch:{tmp_path}") == f"{tmp_path}/sh"
    assert find_program(("nosuch",), str(tmp_path)) is None


def test_there_is_at_least_one_processor() -> None:
    assert count_cpus() >= 1


def test_file_in_memory_may_have_holes_beyond_the_folders_size() -> None:
    assert Settings(workspace_bytes=5, packages_bytes=9).rlimits(on_disk=False) == [(resource.RLIMIT_CORE, 0)]


def test_file_of_a_package_may_be_larger_than_a_workspace_on_a_disk() -> None:
    limits = Settings(workspace_bytes=5, packages_bytes=9).rlimits(on_disk=True)
    assert limits == [(resource.RLIMIT_FSIZE, 9), (resource.RLIMIT_CORE, 0)]
