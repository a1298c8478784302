"""Which languages a sandbox has: what the image has, what its template adds, and what is refused."""

import ast
import json
import sys
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import pytest

from sandpod_api import names
from sandpod_api.templates import TemplateLanguage
from sandpod_runner.processes import environment
from sandpod_runner.processes.environment import CommandLanguage, find_languages, find_python, read_languages
from sandpod_runner.settings import SettingsError, read_settings

RUBY = {"name": "ruby", "command": ["ruby", "-W0", "{file}"], "extension": ".rb"}
PACKAGES = Path(environment.PACKAGES)
UNDER_THE_IMAGES_PYTHON = ("sandpod_runner.zygote.server", "sandpod_runner.python.context")
OLDEST = (3, 9)
"""The oldest Python whose programs the runner can start."""


def program(folder: Path, name: str, text: str = "exit 0") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_languages_of_a_template_are_read_as_the_operator_writes_them() -> None:
    written = json.dumps([TemplateLanguage.model_validate(RUBY).to_wire()])
    assert read_settings({names.ENV_LANGUAGES: written}).languages == (
        CommandLanguage("ruby", ("ruby", "-W0", "{file}"), ".rb"),
    )
    assert read_settings({}).languages == ()


CHANGES: list[dict[str, Any]] = [
    {"name": "python"},
    {"name": "../x"},
    {"name": 3},
    {"command": []},
    {"command": "ruby {file}"},
    {"command": ["ruby"]},
    {"command": ["{file}"]},
    {"command": ["ruby", "{file}", ""]},
    {"command": ["ruby", "{file}", "\0"]},
    {"extension": "/../x"},
    {"extension": None},
]


@pytest.mark.parametrize(
    "wrong",
    [
        "{}",
        "[1]",
        "nonsense",
        "[" * 10_000,
        json.dumps([RUBY] * 17),
        *(json.dumps([RUBY | change]) for change in CHANGES),
    ],
)
def test_what_is_no_language_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(SettingsError, match="SANDPOD_LANGUAGES"):
        read_settings({"SANDPOD_LANGUAGES": wrong})


def test_only_languages_whose_program_is_there_are_offered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ruby = program(tmp_path, "ruby")
    wanted = read_languages(json.dumps([RUBY, RUBY | {"name": "lua", "command": ["lua", "{file}"]}]))
    found = find_languages(find_python(None, {})[1], wanted, {"PATH": str(tmp_path)})
    assert dict(found.versions) == {"python": ".".join(map(str, sys.version_info[:3])), "ruby": ""}
    assert found.commands["ruby"].command == (ruby, "-W0", "{file}")
    assert (found.node, found.shell) == (None, None)
    assert "there is no lua: lua is not in this image" in capfd.readouterr().err


def test_python_of_the_image_starts_its_programs() -> None:
    env = {"PATH": str(Path(sys.executable).parent)}
    found, version = find_python("python3", env)
    assert (Path(found).name, version) == ("python3", ".".join(map(str, sys.version_info[:3])))


@pytest.mark.parametrize("text", ["exit 1", "echo SyntaxError; exit 1", "true", "kill -9 $$"])
def test_python_that_can_not_do_it_is_no_language_and_the_runners_own_starts_programs(
    tmp_path: Path, text: str
) -> None:
    program(tmp_path, "python3", text)
    for path in (tmp_path, tmp_path / "none"):
        found = find_python("python3", {"PATH": str(path)})
        assert found == (sys.executable, "")
        assert "python" not in find_languages(found[1], (), {"PATH": str(path)}).versions


def test_program_that_never_answers_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PATIENCE", 0.2)
    program(tmp_path, "node", "sleep 3051")
    found = find_languages(find_python(None, {})[1], (), {"PATH": f"{tmp_path}:/bin"})
    assert found.node is None
    assert "javascript" not in found.versions


def imported() -> dict[str, Path]:
    """The runner's modules that the zygote and what is forked from it import, however late, with their files."""
    finder = ModuleFinder([str(PACKAGES)])
    for name in UNDER_THE_IMAGES_PYTHON:
        finder.import_hook(name)
    ours = {name: module for name, module in finder.modules.items() if name.startswith("sandpod_runner")}
    return {name: Path(vars(module)["__file__"]) for name, module in ours.items()}


def test_all_that_runs_under_an_images_own_python_is_found() -> None:
    rooms = {name.split(".")[1] for name in imported() if "." in name}
    assert rooms == {"zygote", "python", "javascript", "ipc", "protocol"}
    folder = PACKAGES / "sandpod_runner"
    halves = {path for room in rooms - {"protocol", "ipc"} for path in (folder / room).glob("*.py")}
    assert halves <= set(imported().values())


@pytest.mark.parametrize("file", sorted(imported().values()))
def test_what_runs_under_an_images_own_python_is_written_for_old_ones(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=OLDEST)
    postponed = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    unions = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.BinOp) and _is_union(node)]
    assert postponed or not unions, f"unions at {unions} need `from __future__ import annotations`"
    words: list[Any] = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    assert not [word.lineno for word in words if word.arg in {"slots", "kw_only", "strict"}]


def _is_union(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Constant) and node.right.value is None
