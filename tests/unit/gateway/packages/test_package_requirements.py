from typing import Any

import pytest
from packaging.requirements import Requirement

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.cache import FileCache
from sandpod_gateway.packages.channel import MAX_REQUESTED, FairSlots
from sandpod_gateway.packages.pip.packages import PythonPackages, State, Target
from sandpod_gateway.packages.sandbox import InstalledPackage
from sandpod_gateway.packages.settings import PackageSettings


def channel(settings: PackageSettings) -> PythonPackages:
    sandboxes: Any = None  # that are not asked for anything
    return PythonPackages(sandboxes, settings, FileCache(None, 0), FairSlots(1))


def parse(packages: list[str]) -> list[Requirement]:
    return channel(PackageSettings()).parse(packages)


def names(*packages: str) -> list[str]:
    return [str(requirement) for requirement in parse(list(packages))]


@pytest.mark.promise("package-names")
@pytest.mark.claim("install_packages(packages)")
def test_names_with_versions_and_extras_are_taken_and_sorted() -> None:
    assert names("numpy>=1.26,<3", "uvicorn[standard]", "A_b.C == 1.0") == [
        "a-b-c==1.0",
        "numpy<3,>=1.26",
        "uvicorn[standard]",
    ]
    assert names("x", "X", "x ") == ["x"]


@pytest.mark.promise("python-packages", "package-names")
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "requests; touch /tmp/pwn",
        "--index-url=http://evil/simple",
        "-r/etc/passwd",
        "-e .",
        "git+https://example.com/x",
        "x @ http://example.com/x.whl",
        "x@file:///etc/passwd",
        "/etc/passwd",
        "../x",
        ".",
        "./x.whl",
        "http://example.com/x.whl",
        "x; python_version > '3'",
        "x --pre",
        "x\n--pre",
        "x\0",
        "x>=",
        "naïve",
        "x" * 300,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SandpodError) as caught:
        parse([text])
    assert caught.value.code == ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("count", [0, MAX_REQUESTED + 1])
def test_number_of_packages_is_bounded(count: int) -> None:
    with pytest.raises(SandpodError) as caught:
        parse([f"x{number}" for number in range(count)])
    assert caught.value.code == ErrorCode.INVALID_ARGUMENT


def test_allowed_and_blocked_names_are_compared_as_python_does() -> None:
    packages = channel(PackageSettings(allow=["Good_*", "fine"], deny=["good-but-bad"]))
    assert [each.name for each in packages.parse(["good.one", "FINE>=1"])] == ["fine", "good-one"]
    for text in ("other", "Good.But_Bad"):
        with pytest.raises(SandpodError) as caught:
            packages.parse([text])
        assert caught.value.code == ErrorCode.PACKAGE_BLOCKED


def test_what_is_there_satisfies_what_it_fits() -> None:
    there = {"a": InstalledPackage(version="1.5"), "b": InstalledPackage(version="2.0rc1")}
    state = State(environment=Target(markers={}, abi="cp313", platform="linux-aarch64", libc=("", "")), installed=there)

    def present(*packages: str) -> list[str] | None:
        found = channel(PackageSettings()).present(parse(list(packages)), state)
        return None if found is None else [f"{package.name} {package.version}" for package in found]

    assert present("a>=1", "B") == ["a 1.5", "b 2.0rc1"]
    # What an extra needs can't be seen from versions.
    assert [present("a>=2"), present("a", "c"), present("a[x]")] == [None] * 3
