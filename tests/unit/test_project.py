"""What Makefile, lock files and workflows say is so: names of commands, pinned versions."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from sandpod.cli.server_program import SERVER_COMMANDS, SHARED_COMMANDS

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "containers/sandbox"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

IMAGE_TARGETS = {f"image-{name}" for name in re.findall(r"^IMAGES := (.+)$", MAKEFILE, re.MULTILINE)[0].split()}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):.* ## ", MAKEFILE, re.MULTILINE))
PHONY = set(re.findall(r"^\.PHONY: ([a-z][a-z-]*)$", MAKEFILE, re.MULTILINE))
# Each lock file, and the extras of pyproject.toml that it holds.
LOCKS = {"run": {"node"}, "gateway": {"kubernetes"}, "operator": {"kubernetes", "operator"}}
LOCKS["dev"] = {"docs", "node", "kubernetes", "operator", "dev"}


def make_targets(lines: list[str]) -> set[str]:
    """Return the targets of every `make ...` in the lines; settings and comments are none."""
    found = set()
    for line in lines:
        if match := re.match(r"(?:- run: |stage \S+ )?make\s+([^#]*)", line.strip()):
            words = match[1].split()
            found |= {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}
    return found


def test_every_target_with_a_help_line_is_phony() -> None:
    assert TARGETS == PHONY


def lock_file(lock: str) -> Path:
    return IMAGE / "requirements.txt" if lock == "image" else ROOT / "requirements" / f"{lock}.lock"


def pins(lock: str) -> dict[str, Version]:
    """Return the version of each package in a lock file."""
    text = lock_file(lock).read_text(encoding="utf-8")
    return {name: Version(version) for name, version in re.findall(r"^([a-z0-9._-]+)==([^ \\]+)", text, re.MULTILINE)}


def requirements_of(extras: set[str]) -> list[Requirement]:
    """Return what pyproject.toml asks for, without its references to itself and to the client, which is built here."""
    project = PROJECT["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [asked for line in lines if not (asked := Requirement(line)).name.startswith("sandpod")]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_every_dependency_in_a_version_that_is_asked_for(lock: str) -> None:
    pinned = pins(lock)
    for asked in requirements_of(LOCKS[lock]):
        assert asked.specifier.contains(pinned[asked.name]), asked


@pytest.mark.parametrize("lock", [*LOCKS, "clients", "provider", "image"])
def test_lock_has_a_hash_for_every_package_and_no_address(lock: str) -> None:
    text = lock_file(lock).read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_client_is_a_distribution_of_the_same_version_whose_libraries_the_server_has() -> None:
    client = tomllib.loads((ROOT / "client/pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = PROJECT["project"]["version"]
    assert client["version"] == version
    assert f"{client['name']}=={version}" in PROJECT["project"]["dependencies"]
    for lock in LOCKS:
        pinned = pins(lock)
        for asked in map(Requirement, client["dependencies"]):
            assert asked.specifier.contains(pinned[asked.name]), asked
    # One program, which is the client's: the server's commands are entry points.
    assert set(client["scripts"]) & set(PROJECT["project"]["scripts"]) == set()
    assert sorted(PROJECT["project"]["entry-points"]["sandpod.commands"]) == sorted(SERVER_COMMANDS + SHARED_COMMANDS)


def test_image_has_every_library_that_is_asked_for_in_the_version_that_is_tested() -> None:
    asked = [
        Requirement(line)
        for line in (IMAGE / "requirements.in").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    pinned = pins("image")
    assert [str(each) for each in asked if not each.specifier.contains(pinned[each.name])] == []
    # Where they depend on Python's version, there are several of one package.
    tested = re.findall(r"^([a-z0-9._-]+)==([^ \\]+)", lock_file("dev").read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for name, _ in tested}
    assert [name for name, version in pinned.items() if name in names and (name, str(version)) not in tested] == []


@pytest.mark.parametrize("place", ["containers/sandbox/node", "tests/contract/conformance", "tests/contract/sign_in"])
def test_javascript_lock_has_a_hash_for_every_package_and_no_address(place: str) -> None:
    asked = json.loads((ROOT / place / "package.json").read_text(encoding="utf-8"))["dependencies"]
    locked = json.loads((ROOT / place / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert locked.pop("")["dependencies"] == asked
    assert locked.keys() >= {f"node_modules/{name}" for name in asked}
    assert [name for name, package in locked.items() if not package["integrity"].startswith("sha512-")] == []
    assert [name for name, package in locked.items() if "resolved" in package] == []


@pytest.mark.parametrize("lock", ["run", "gateway", "operator"])
def test_what_runs_has_the_versions_that_are_tested(lock: str) -> None:
    tested = pins("dev")
    assert {name: version for name, version in pins(lock).items() if tested.get(name) != version} == {}


def test_continuous_integration_calls_only_make_targets() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    stages = re.findall(r"^(?:stage|begin) \S+ make --no-print-directory (?:-j2 )?(.+)$", script, re.MULTILINE)
    assert len(stages) == len(re.findall(r"^(?:stage|begin) ", script, re.MULTILINE))
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step and not step["run"].startswith("sudo sysctl")]
    assert all(command.startswith("make ") for command in commands)
    assert set(" ".join(stages).split()) | make_targets(commands) <= TARGETS | IMAGE_TARGETS


def test_workflow_may_write_nothing_and_pins_every_action() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert job["permissions"] == {"contents": "read"}
        for step in job["steps"]:
            assert "uses" not in step or re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"])


def test_line_limit_complains_of_long_modules_and_of_idle_exceptions(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("line_limits", ROOT / "tools/line_limits.py")
    assert spec is not None
    assert spec.loader is not None
    line_limits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(line_limits)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/long.py").write_text("x = 1\n" * 301, encoding="utf-8")
    (tmp_path / "tools/short.py").write_text("x = 1\n" * 300, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("x = 1\n" * 301, encoding="utf-8")
    assert [text.split()[0] for text in line_limits.complaints(tmp_path, {})] == ["tools/long.py"]
    assert line_limits.complaints(tmp_path, {"tools/long.py": "a reason"}) == []
    idle = {"tools/long.py": "a reason", "tools/short.py": "none"}
    assert [text.split()[0] for text in line_limits.complaints(tmp_path, idle)] == ["tools/short.py"]
