"""What README, Makefile, lock files and workflows say is so: names of commands, files and tests, pinned versions."""

import ast
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from sandpod_gateway.app import Gateway
from sandpod_gateway.backends.factory import create_backend
from sandpod_gateway.settings import Settings, load

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "containers/sandbox"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

NAMED_TEST = re.compile(r"`([^`]+)::([^`]+)`")
TROUBLE_COMMENT = re.compile(r"# T\d\d(, T\d\d)*")

IMAGE_TARGETS = {f"image-{name}" for name in re.findall(r"^IMAGES := (.+)$", MAKEFILE, re.MULTILINE)[0].split()}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):.* ## ", MAKEFILE, re.MULTILINE))
PHONY = set(re.findall(r"^\.PHONY: ([a-z][a-z-]*)$", MAKEFILE, re.MULTILINE))
# Each lock file, and the extras of pyproject.toml that it holds.
LOCKS = {"run": {"node"}, "gateway": {"kubernetes"}, "operator": {"kubernetes", "operator"}}
LOCKS["dev"] = {"node", "kubernetes", "operator", "dev"}


def code_in(text: str) -> list[str]:
    """Return the lines of all code blocks and the content of all code spans."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line for block in blocks for line in block.splitlines()] + spans


def make_targets(lines: list[str]) -> set[str]:
    """Return the targets of every `make ...` in the lines; settings and comments are none."""
    found = set()
    for line in lines:
        if match := re.match(r"(?:- run: |stage \S+ )?make\s+([^#]*)", line.strip()):
            words = match[1].split()
            found |= {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}
    return found


def test_readme_starts_with_the_two_commands() -> None:
    block = re.search(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert [line.split("#")[0].strip() for line in block[1].splitlines()] == ["make run", "make test"]


def test_every_command_that_readme_names_is_a_target_with_a_help_line() -> None:
    named = make_targets(code_in(README))
    assert {"run", "test", "test-cluster", "bench"} <= named
    assert named <= TARGETS


def test_every_target_with_a_help_line_is_phony() -> None:
    assert TARGETS == PHONY


def test_every_file_that_readme_names_exists() -> None:
    links = {link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link}
    spans = {code.split("::")[0] for code in code_in(README) if re.match(r"(tests|tools|charts|manifests)/", code)}
    assert links
    assert [name for name in sorted(links | spans) if not (ROOT / name).exists()] == []


def protections() -> list[tuple[str, str]]:
    """Return each sentence of README's table of protections with the tests that it names."""
    table = README.split("## What it protects against")[1].split("What it does **not**")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")][2:]
    return [(sentence.strip(), tests.strip()) for sentence, tests in rows]


def ids_above_tests(file: str) -> dict[str, set[str]]:
    """Return the tests of a file, each with the ids of the troubles that the comment above it names."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            above = lines[min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 2]
            found[node.name] = set(above[2:].split(", ")) if TROUBLE_COMMENT.fullmatch(above) else set()
    return found


@pytest.mark.parametrize(("sentence", "tests"), protections(), ids=lambda text: text[:50])
def test_every_protection_in_readme_names_a_test_that_exists(sentence: str, tests: str) -> None:
    named = NAMED_TEST.findall(tests)
    assert named, sentence
    for file, name in named:
        assert name in ids_above_tests(file)


def troubles() -> dict[str, set[tuple[str, str]]]:
    """Return the tests that the list of troubles names, by the trouble's id."""
    text = (ROOT / "tests/troubles.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (T\d\d) \| [^|]+ \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) == text.count("\n| T"), "a row is malformed"
    assert [number for number, _ in rows] == [f"T{number:02}" for number in range(1, len(rows) + 1)]
    return {number: set(NAMED_TEST.findall(tests)) for number, tests in rows}


def test_every_trouble_names_tests_that_exist_and_name_it() -> None:
    said = {(number, *test) for number, tests in troubles().items() for test in tests}
    assert {number for number, _, _ in said} == troubles().keys(), "a trouble has no test"
    comments = 0
    found = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        comments += sum(TROUBLE_COMMENT.fullmatch(line) is not None for line in path.read_text("utf-8").splitlines())
        file = str(path.relative_to(ROOT))
        found |= {(number, file, name) for name, numbers in ids_above_tests(file).items() for number in numbers}
    assert found == said
    assert comments == len({(file, name) for _, file, name in found}), "a comment stands above no test"


def test_readme_says_the_same_setting_in_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = re.search(r"sandpod serve (--limits\.\S+ \d+)", README)
    variable = re.search(r"(SANDPOD_\w+)=(\d+) sandpod serve", README)
    line = re.search(r"--config settings.yaml +# (.*)", README)
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


async def test_readme_names_every_tool_and_no_other() -> None:
    table = README.split("| tools | what they do |")[1].split("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    server = Gateway(Settings(), create_backend("local")).mcp
    assert set(re.findall(r"`(\w+)`", " ".join(first_cells))) == {tool.name for tool in await server.list_tools()}


def test_example_in_readme_is_a_program() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    compile(example, "README.md", "exec")


def lock_file(lock: str) -> Path:
    return IMAGE / "requirements.txt" if lock == "image" else ROOT / "requirements" / f"{lock}.lock"


def pins(lock: str) -> dict[str, Version]:
    """Return the version of each package in a lock file."""
    text = lock_file(lock).read_text(encoding="utf-8")
    return {name: Version(version) for name, version in re.findall(r"^([a-z0-9._-]+)==([^ \\]+)", text, re.MULTILINE)}


def requirements_of(extras: set[str]) -> list[Requirement]:
    """Return what pyproject.toml asks for, without its references to itself."""
    project = PROJECT["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [asked for line in lines if (asked := Requirement(line)).name != "sandpod"]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_every_dependency_in_a_version_that_is_asked_for(lock: str) -> None:
    pinned = pins(lock)
    for asked in requirements_of(LOCKS[lock]):
        assert asked.specifier.contains(pinned[asked.name]), asked


@pytest.mark.parametrize("lock", [*LOCKS, "image"])
def test_lock_has_a_hash_for_every_package_and_no_address(lock: str) -> None:
    text = lock_file(lock).read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


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


@pytest.mark.parametrize("place", ["containers/sandbox/node", "tests/contract/conformance"])
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
    stages = re.findall(r"^(?:stage|begin) \S+ make --no-print-directory (.+)$", script, re.MULTILINE)
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
