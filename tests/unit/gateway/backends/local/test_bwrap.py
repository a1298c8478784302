"""The bubblewrap command line of a local sandbox, whole, and what must never be missing from it."""

import dataclasses
from dataclasses import replace

import pytest

from sandpod_gateway.backends.local import bwrap
from sandpod_gateway.backends.local.bwrap import FILES, Bind, View
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.backends.local.start import staged

VIEW = View(
    binds=(Bind("/usr", "/usr"), Bind("/root/.pyenv/3.11", "/root/.pyenv/3.11")),
    symlinks=(("usr/bin", "/bin"),),
    path="/usr/bin",
)
SETTINGS = LocalSettings(
    workspace_size="1Mi", tmp_size="2Mi", packages_size="3Mi", memory="64Mi", processes=32, open_files=128
)
DESCRIPTORS = {"seccomp": 7, "info": 8, **{path: number for number, path in enumerate(FILES, 9)}}


def command() -> list[str]:
    return bwrap.command("/bwrap", VIEW, SETTINGS, DESCRIPTORS, ["/usr/bin/python3", "x.py"])


def test_command_line_is_this() -> None:
    expected = """
        /bwrap --unshare-user --unshare-all --disable-userns --uid 1000 --gid 1000 --hostname sandbox --cap-drop ALL
        --seccomp 7 --new-session --die-with-parent --as-pid-1 --info-fd 8 --clearenv --proc /proc --dev /dev
        --perms 1777 --size 2097152 --tmpfs /dev/shm --remount-ro /dev
        --perms 1777 --size 2097152 --tmpfs /tmp --symlink /tmp /var/tmp
        --perms 0755 --size 1048576 --tmpfs /workspace --perms 0755 --size 3145728 --tmpfs /packages
        --ro-bind /usr /usr --ro-bind /root/.pyenv/3.11 /root/.pyenv/3.11 --symlink usr/bin /bin
        --symlink /workspace /app/results --symlink /workspace /home/user --symlink /workspace /mnt/data
        --perms 0444 --file 9 /etc/passwd --perms 0444 --file 10 /etc/group
        --perms 0444 --file 11 /etc/nsswitch.conf --perms 0444 --file 12 /etc/hosts --remount-ro /
        --setenv PATH /usr/bin --setenv LANG C.UTF-8
        --setenv SANDPOD_MEMORY_LIMIT 67108864 --setenv SANDPOD_PROCESSES 32 --setenv SANDPOD_OPEN_FILES 128
        --setenv SANDPOD_PACKAGES /packages --setenv SANDPOD_PACKAGES_BYTES 3145728
        --chdir /workspace -- /usr/bin/python3 x.py
    """
    assert command() == expected.split()


@pytest.mark.parametrize("dest", ["/app", "/app/results", "/app/results/venv"])
def test_folder_of_the_host_is_not_covered_by_a_link(dest: str) -> None:
    view = dataclasses.replace(VIEW, binds=(*VIEW.binds, bwrap.Bind("/x", dest)))
    arguments = bwrap.command("/bwrap", view, SETTINGS, DESCRIPTORS, ["x"])
    assert arguments.count("/app/results") == (dest == "/app/results")
    assert arguments[arguments.index("/mnt/data") - 2 :][:2] == ["--symlink", "/workspace"]


def test_nothing_of_the_host_is_writable() -> None:
    options = {argument for argument in command() if argument.startswith("--")}
    assert options.isdisjoint({"--bind", "--bind-try", "--dev-bind", "--dev-bind-try", "--bind-fd", "--overlay"})


def test_root_is_made_read_only_after_all_else_was_mounted() -> None:
    arguments = command()
    last = max(index for index, argument in enumerate(arguments) if argument in {"--tmpfs", "--ro-bind", "--file"})
    assert arguments.index("/", last) > last
    assert arguments[arguments.index("/", last) - 1] == "--remount-ro"


def test_modules_to_import_are_passed_on() -> None:
    settings = LocalSettings(preimport=["numpy", "pandas"])
    assert bwrap.environment(VIEW, settings)["SANDPOD_PREIMPORT"] == "numpy,pandas"


def test_folders_of_javascript_packages_are_passed_on_where_there_are_any() -> None:
    assert bwrap.environment(replace(VIEW, node_path="/a:/b"), SETTINGS)["NODE_PATH"] == "/a:/b"
    assert "NODE_PATH" not in bwrap.environment(VIEW, SETTINGS)


def test_a_users_folders_are_staged_and_the_systems_are_not() -> None:
    sources, view = staged(VIEW, "/root/venv")
    assert sources == ["/root/venv", "/root/.pyenv/3.11"]
    assert view.binds == (Bind("/usr", "/usr"), Bind("/tmp/1", "/root/.pyenv/3.11"))
    assert (view.symlinks, view.path) == (VIEW.symlinks, VIEW.path)
