"""What README and docs/ say is so: links, paths, commands, settings, and their generated parts."""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import pages
from sandpod_gateway.backends.local import environments
from sandpod_gateway.backends.local.settings import LocalSettings
from sandpod_gateway.capabilities import facts
from sandpod_gateway.settings import Settings, load

ROOT = Path(__file__).resolve().parents[2]
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages.pages()}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):.* ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TREES = "charts|client|containers|docs|examples|gateway|manifests|operator|requirements|tests|tools"
GROUPS = [name for name, field in Settings.model_fields.items() if hasattr(field.annotation, "model_fields")]

every_page = pytest.mark.parametrize("page", PAGES)


def code_of(page: str) -> list[str]:
    """Return the lines of all code blocks and the content of all code spans of a page."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", PAGES[page], flags=re.MULTILINE | re.DOTALL))
    return [line.strip() for block in blocks for line in block.splitlines()] + spans


@every_page
def test_generated_parts_are_up_to_date(page: str) -> None:
    assert pages.filled(PAGES[page]) == PAGES[page], "run `make docs`"


def test_generated_parts_are_the_same_whatever_was_set_and_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    environment = environments.choose(LocalSettings())
    assert environment is not None
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    environment.complete.touch()
    assert "Installed:" in facts(Settings())["libraries"]
    monkeypatch.setenv("SANDPOD_TOOLS", '["core"]')
    monkeypatch.setenv("SANDPOD_LIMITS__RUN_TIMEOUT", "7")
    assert pages.filled(PAGES["docs/tools.md"]) == PAGES["docs/tools.md"]


@every_page
def test_every_link_leads_to_a_file(page: str) -> None:
    links = {link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]) if "://" not in link} - {""}
    assert [link for link in sorted(links) if not (ROOT / page).parent.joinpath(link).exists()] == []


@every_page
def test_every_path_exists(page: str) -> None:
    paths = {span for span in code_of(page) if re.fullmatch(rf"({TREES})/[\w./-]*", span)}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@every_page
def test_every_make_command_is_a_target(page: str) -> None:
    lines = [re.split(r"[#;|&]", line)[0].split() for line in code_of(page)]
    named = {word for words in lines if words[:1] == ["make"] for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}
    assert named <= TARGETS


@every_page
def test_every_setting_exists(page: str) -> None:
    known = set(re.findall(r"^\| `([\w.]+)`", pages.settings_reference("gateway"), re.MULTILINE))
    spans = {span for span in code_of(page) if re.fullmatch(rf"({'|'.join(GROUPS)})(\.[a-z_]+)+", span)}
    flags = {flag.replace("-", "_") for flag in re.findall(rf"--((?:{'|'.join(GROUPS)})\.[a-z.-]+)", PAGES[page])}
    assert sorted((spans | flags) - known) == []


def test_every_promise_is_on_a_page_and_has_a_test() -> None:
    promises = pages.promises()
    shown = " ".join(re.findall(r"<!-- generated: promises (.+?) -->", "\n".join(PAGES.values()))).split()
    assert sorted(shown) == sorted(promises)
    ids = [id_ for topic in promises.values() for id_ in topic]
    assert len(ids) == len(set(ids))
    assert pages.marked("promise").keys() == set(ids)


def test_markers_are_found_whatever_else_decorates_a_test(tmp_path: Path) -> None:
    source = '@pytest.mark.promise("a", "b")\n@pytest.mark.slow\nasync def test_x(): pass\ndef test_y(): pass\n'
    (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
    assert pages.marked("promise", tmp_path) == {"a": ["test_x"], "b": ["test_x"]}


def test_every_example_is_on_a_page() -> None:
    shown = set(re.findall(r"<!-- generated: (examples/\S+) -->", "\n".join(PAGES.values())))
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*") if path.is_file()}
    assert shown == {name for name in found if "__pycache__" not in name}


def test_readme_and_the_reference_name_the_same_tools() -> None:
    cells = re.findall(r"^\| (`[^|]+) \|", PAGES["README.md"].split("## Tools")[1].split("## ")[0], re.MULTILINE)
    described = re.findall(r"^### (\w+)$", PAGES["docs/tools.md"].split("## Reference")[1], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(described)


def test_navigation_has_every_page() -> None:
    navigation = str(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])
    files = set(re.findall(r"'([\w/-]+\.md)'", navigation))
    assert files == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


def test_one_setting_is_said_in_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGES["docs/settings.md"]
    flag = re.search(r"sandpod serve (--limits\.\S+ \d+)", text)
    variable = re.search(r"(SANDPOD_\w+)=(\d+) sandpod serve", text)
    line = re.search(r"--config settings.yaml +# (.*)", text)
    assert flag is not None
    assert variable is not None
    assert line is not None
    file = tmp_path / "settings.yaml"
    file.write_text(line[1], encoding="utf-8")
    by_flag = load(flag[1].split(), config=None, program="sandpod serve")
    by_file = load([], config=file, program="sandpod serve")
    monkeypatch.setenv(variable[1], variable[2])
    by_variable = load([], config=None, program="sandpod serve")
    assert by_flag.limits.run_timeout == by_variable.limits.run_timeout == by_file.limits.run_timeout == 120


@pytest.mark.parametrize("file", sorted((ROOT / "examples/clients").glob("*.json")), ids=lambda path: path.name)
def test_settings_of_a_client_name_a_server(file: Path) -> None:
    settings = json.loads(file.read_text(encoding="utf-8"))
    (server,) = (settings.get("mcpServers") or settings["servers"]).values()
    if "command" in server:
        command = [server["command"].rpartition("/")[2], *server["args"]]
        assert command[:2] in (["sandpod", "stdio"], ["npx", "-y"])
    addresses = [word for word in [server.get("url", ""), *server.get("args", [])] if word.startswith("http")]
    assert addresses == ([] if server.get("args") == ["stdio"] else ["https://sandpod.example.com/mcp"])
    assert server.get("type", "http") == "http"


def test_examples_are_python_that_imports_no_part_of_this_project() -> None:
    programs = sorted((ROOT / "examples").rglob("*.py"))
    assert programs
    for program in programs:
        imports = [node for node in ast.walk(ast.parse(program.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        assert not any((node.module or "").startswith("sandpod_") for node in imports)
