import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.packages.pip.packages import parse as parse_one
from sandpod_gateway.packages.pip.packages import satisfied
from sandpod_gateway.packages.requests import MAX_REQUESTED, NameRules, parse_each
from sandpod_gateway.packages.settings import PackageSettings


def parse(packages: list[str]) -> list[Requirement]:
    return parse_each(packages, parse_one)


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
    settings = PackageSettings(allow=["Good_*", "fine"], deny=["good-but-bad"])
    rules = NameRules(settings, canonicalize_name)
    rules.check_requested(["good.one", "FINE"])
    for name in ("other", "Good.But_Bad"):
        with pytest.raises(SandpodError) as caught:
            rules.check_requested([name])
        assert caught.value.code == ErrorCode.PACKAGE_BLOCKED
    rules.check_installed(["anything"])
    with pytest.raises(SandpodError):
        rules.check_installed(["anything", "Good_But_Bad"])


def test_what_is_there_satisfies_what_it_fits() -> None:
    installed = {"a": "1.5", "b": "2.0rc1"}
    assert satisfied(parse(["a>=1", "B"]), installed)
    assert not satisfied(parse(["a>=2"]), installed)
    assert not satisfied(parse(["a", "c"]), installed)
    # What an extra needs can't be seen from that.
    assert not satisfied(parse(["a[x]"]), installed)
