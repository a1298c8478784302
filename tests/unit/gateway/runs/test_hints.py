"""Which hint belongs to which failure. That what they say works is tried in `tests/contract/test_hints.py`."""

import pytest

from sandpod_gateway.api.results import ErrorCode
from sandpod_gateway.backends.base import TemplateInfo
from sandpod_gateway.errors import SandpodError
from sandpod_gateway.runs.hints import Place, about_dropped, downloads, from_stderr, hint_for
from support.gateway.fake_gateway import Caller
from support.gateway.fake_gateway import Place as Served

HERE = Place(sandbox="sbx-a", template="default")
NO_NAME = "curl: (6) Could not resolve host: example.org"


@pytest.mark.parametrize(
    ("outcome", "detail", "stderr", "word"),
    [
        ("timeout", None, "", "timeout"),
        ("out_of_memory", "It used more than 512 MiB.", "", "512 MiB"),
        ("error", "A process was killed.", "boom", "A process was killed."),
        ("error", "A process was killed.", "ModuleNotFoundError: No module named 'x'", "install_packages"),
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

    async def several(owner: str) -> tuple[TemplateInfo, ...]:
        del owner
        return (TemplateInfo(name="other", networks=("all",)), TemplateInfo(name="default", networks=("none", "web")))

    place.backend.templates = several  # type: ignore[method-assign]  # this backend has but one
    assert 'create_sandbox(template="default", network="web")' in ((await alice.python(failing)).hint or "")

    async def refuse(owner: str) -> tuple[TemplateInfo, ...]:
        del owner
        raise SandpodError(ErrorCode.BACKEND_UNAVAILABLE, "Not now.", next_step="Try again.")

    place.backend.templates = refuse  # type: ignore[method-assign]  # a fault that this backend can't have
    assert "sandpod://capabilities" in ((await alice.python(failing)).hint or "")


@pytest.mark.parametrize(
    ("stderr", "word"),
    [
        ('  File "main.py", line 1\n    !pip install requests -q\n    ^\nSyntaxError: invalid syntax', '["requests"]'),
        ('  File "main.py", line 1\n    %pip install "a[b]==1" c\n    ^\nSyntaxError: invalid', '["a[b]==1", "c"]'),
        (
            '  File "m", line 9\n    !python -m pip install -r x.txt\n    ^\nSyntaxError: invalid',
            "Call install_packages in",
        ),
        ("ERROR: No matching distribution found for left-pad==1.0", 'packages=["left-pad==1.0"], sandbox="sbx-a"'),
        ("bash: line 1: git: command not found", "no program 'git' here, and programs can't be installed"),
        ("bash: line 1: git: command not found", "This sandbox has no network."),
        ("sh: 1: jq: not found", "no program 'jq'"),
        ("/bin/sh: 1: pip3: not found", "install_packages"),
        (
            "  File subprocess.py, in _execute_child\nFileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'",
            "no program 'ffmpeg'",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'", "no 'data/x.csv': list_files"),
        ("Error: ENOENT: no such file or directory, open 'x.csv'", "no 'x.csv': list_files"),
        ("cat: x.csv: No such file or directory", "no 'x.csv': list_files"),
        ("ls: cannot access 'x y': No such file or directory", "no 'x y': list_files"),
        ("NameError: name 'df' is not defined", "df is not defined here. Variables of earlier calls"),
        ("ReferenceError: df is not defined", "pass the same `context`"),
        ("ModuleNotFoundError: No module named 'tkinter'", "no display"),
        ("ModuleNotFoundError: No module named '_tkinter'", "no display"),
    ],
)
def test_habits_of_other_places_are_answered_with_what_works_here(stderr: str, word: str) -> None:
    assert word in (from_stderr(stderr, HERE) or "")


def test_name_that_a_context_does_not_have_is_no_case_for_a_context() -> None:
    place = Place(sandbox="sbx-a", template="default", context=True)
    assert from_stderr("NameError: name 'df' is not defined", place) is None


def test_what_a_program_writes_is_looked_through_in_time_that_grows_with_its_length() -> None:
    for text in ("_execute_child ", " !pip install ", "NameError: name '", "a: 1: ", "cat: ", "Cannot find module '"):
        from_stderr(text * (200_000 // len(text)), HERE)  # a pattern that began anew everywhere would take minutes


@pytest.mark.parametrize(
    ("command", "elsewhere"),
    [("curl -s https://x.example | jq .", True), ("wget -q x", True), ("curl -s localhost:80", False), ("ls", False)],
)
def test_downloads_are_told_from_other_commands(command: str, elsewhere: bool) -> None:  # noqa: FBT001
    assert downloads(command) == elsewhere


def test_success_and_unknown_failures_have_no_hint() -> None:
    assert hint_for("ok", None, "No module named 'x'", HERE) is None
    assert hint_for("error", None, "boom", HERE) is None


def test_what_was_shown_and_did_not_come_is_said() -> None:
    assert (about_dropped(1) or "").startswith("1 thing that it showed was too much")
    assert about_dropped(0) is None
