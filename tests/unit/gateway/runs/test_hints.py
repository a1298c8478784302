"""Which hint belongs to which failure. That what they say works is tried in `tests/contract/test_hints.py`."""

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import TemplateInfo
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runs.hints import Place, about_dropped, hint_for
from support.gateway.fake_gateway import Caller
from support.gateway.fake_gateway import Place as Served

HERE = Place(sandbox="sbx-a", template="default")
NO_NAME = "curl: (6) Could not resolve host: example.org"


@pytest.mark.parametrize(
    ("outcome", "detail", "stderr", "word"),
    [
        ("timeout", None, "", "timeout"),
        ("out_of_memory", "It used more than 512 MiB.", "", "512 MiB"),
        ("output_limit", "It wrote more than 2 GiB.", "", "to a file"),
        ("sandbox_lost", "The sandbox went away.", "", "lost"),
        ("error", None, "ModuleNotFoundError: No module named 'a_x.b'", 'packages=["a-x"]'),
        ("error", None, "ModuleNotFoundError: No module named 'yaml'", 'packages=["pyyaml"]'),
        (
            "error",
            None,
            "ModuleNotFoundError: No module named 'x'",
            'install_packages(packages=["x"], sandbox="sbx-a")',
        ),
        ("error", None, "Error: Cannot find module 'a-b/c'", 'packages=["a-b"], language="javascript"'),
        ("error", None, "Error: Cannot find package '@a/b'", 'packages=["@a/b"]'),
        ("error", None, "Error: Cannot find package 'a\")\nb'", None),
        ("error", None, "Error: Cannot find package 'a\")'", r'packages=["a\")"]'),
        ("error", None, "Error: Cannot find module './x.js'", "list_files"),
        ("error", None, "OSError: [Errno 30] Read-only file system: '/etc/x'", "/workspace"),
        ("error", None, "OSError: [Errno 28] No space left on device", "full"),
        ("error", None, "ImportError: libtk8.6.so: cannot open shared object file", "no display"),
        ("error", None, "qt.qpa.xcb: could not connect to display", "no display"),
        ("error", None, "bash: line 1: npm: command not found", "install_packages"),
        ("error", None, "RuntimeError: \nImage export requires the Kaleido package, v1", "a browser"),
        ("cancelled", "The sandbox was closed.", "", "closed"),
    ],
)
def test_a_failure_with_a_known_cause_says_what_to_do(
    outcome: str, detail: str | None, stderr: str, word: str | None
) -> None:
    hint = hint_for(outcome, detail, stderr, HERE)
    assert hint is None if word is None else word in (hint or "")


@pytest.mark.parametrize(
    ("network", "networks", "hint"),
    [
        ("none", None, "no network. sandpod://capabilities lists templates' network profiles"),
        ("none", ("none",), "no other profile: bring data in with"),
        (
            "none",
            ("none", "pypi", "web"),
            'profiles of its template: pypi, web; call create_sandbox(template="default", ',
        ),
        ("pypi", ("none", "pypi", "web"), 'has the network profile "pypi", which may not open that. Other profiles'),
        ("pypi", ("none", "pypi"), "no other profile"),
    ],
)
def test_a_missing_network_is_told_with_the_profiles_of_the_template(
    network: str, networks: tuple[str, ...] | None, hint: str
) -> None:
    place = Place(sandbox="sbx-a", template="default", network=network, networks=networks)
    assert hint in (hint_for("error", None, NO_NAME, place) or "")


async def test_profiles_are_those_of_the_sandboxs_own_template(alice: Caller, place: Served) -> None:
    failing = f"import sys\nprint({NO_NAME!r}, file=sys.stderr)\nsys.exit(6)"

    async def several() -> tuple[TemplateInfo, ...]:
        return (TemplateInfo(name="other", networks=("all",)), TemplateInfo(name="default", networks=("none", "web")))

    place.backend.templates = several  # type: ignore[method-assign]  # this backend has but one
    assert 'create_sandbox(template="default", network="web")' in ((await alice.python(failing)).hint or "")

    async def refuse() -> tuple[TemplateInfo, ...]:
        raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "Not now.", next_step="Try again.")

    place.backend.templates = refuse  # type: ignore[method-assign]  # a fault that this backend can't have
    assert "sandpod://capabilities" in ((await alice.python(failing)).hint or "")


def test_success_and_unknown_failures_have_no_hint() -> None:
    assert hint_for("ok", None, "No module named 'x'", HERE) is None
    assert hint_for("error", None, "boom", HERE) is None


def test_what_was_shown_and_did_not_come_is_said() -> None:
    assert (about_dropped(1) or "").startswith("1 thing that it showed was too much")
    assert about_dropped(0) is None
