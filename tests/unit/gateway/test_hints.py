import pytest

from sandpod_api.run_results import Language
from sandpod_gateway.hints import hint_for


@pytest.mark.parametrize(
    ("outcome", "detail", "stderr", "language", "word"),
    [
        ("timeout", None, "", Language.PYTHON, "timeout"),
        ("out_of_memory", "It used more than 512 MiB.", "", Language.PYTHON, "512 MiB"),
        ("sandbox_lost", "The sandbox went away.", "", Language.SHELL, "lost"),
        ("error", None, "ModuleNotFoundError: No module named 'a_x.b'", Language.PYTHON, 'packages=["a-x"]'),
        ("error", None, "ModuleNotFoundError: No module named 'yaml'", Language.PYTHON, 'packages=["pyyaml"]'),
        ("error", None, "ModuleNotFoundError: No module named 'x'", Language.PYTHON, "install_packages"),
        ("error", None, "Error: Cannot find module 'a-b/c'", Language.JAVASCRIPT, 'packages=["a-b"]'),
        ("error", None, "Error: Cannot find package '@a/b'", Language.JAVASCRIPT, 'packages=["@a/b"]'),
        ("error", None, "Error: Cannot find module './x.js'", Language.JAVASCRIPT, "paths begin"),
        ("error", None, "OSError: [Errno 30] Read-only file system: '/etc/x'", Language.PYTHON, "/workspace"),
        ("error", None, "curl: (6) Could not resolve host: example.org", Language.SHELL, "no network"),
        ("error", None, "RuntimeError: \nImage export requires the Kaleido package, v1", Language.PYTHON, "a browser"),
        ("cancelled", "The sandbox was closed.", "", Language.SHELL, "closed"),
    ],
)
def test_a_failure_with_a_known_cause_says_what_to_do(
    outcome: str, detail: str | None, stderr: str, language: Language, word: str
) -> None:
    assert word in (hint_for(outcome, detail, stderr, language) or "")


def test_success_and_unknown_failures_have_no_hint() -> None:
    assert hint_for("ok", None, "No module named 'x'", Language.PYTHON) is None
    assert hint_for("error", None, "boom", Language.PYTHON) is None


def test_what_was_shown_and_did_not_come_is_said() -> None:
    assert (hint_for("ok", None, "", None, 1) or "").startswith("1 thing that it showed was too much")
    assert (hint_for("error", "It broke.", "", None, 2) or "").startswith("It broke. 2 things that it showed were")
